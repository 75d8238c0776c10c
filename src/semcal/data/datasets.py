"""Read questions with their answers from local files or the Hugging Face hub (spec.md, section 9).

Every source yields `Question | RowError`, one at a time. A bad row does not end the reading: its error has
the number of the row, the value and the remedy.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from semcal.data.question import Question, Turn, group_of, reference_text, turns_of
from semcal.data.sources import (
    ATLAS,
    BUILT_IN,
    COMMON_NAMES,
    EXAMPLES,
    HubDataset,
    Notify,
    find_source,
    peek,
    read_hub_rows,
    read_source_rows,
)
from semcal.errors import InputError, RowError, UsageError, shown
from semcal.files import JsonLine, fault
from semcal.registry import check_name

FIELDS = ("id", "question", "answers", "context", "messages")
ATLAS_SPLITS = ("few_shot", "calibration_train", "validation", "test")
_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
_DISAMBIGUATION = re.compile(r"\s*\(disambiguation\)$", re.IGNORECASE)
#: Columns that are read, by our names, with other names for them.
_COLUMNS = {name: COMMON_NAMES.get(name, ()) for name in FIELDS}


def clean_text(text: str) -> str:
    """Return `text` on one line with single blanks, without the quotes that a CSV export left behind.

    >>> clean_text('"Who wrote ""Moonfleet""?"')
    'Who wrote "Moonfleet"?'
    >>> clean_text(" 54\\u00a0km \\n")
    '54 km'
    >>> clean_text('"Moonfleet"')
    '"Moonfleet"'
    """
    text = " ".join(text.split())
    if '""' not in text:
        return text
    inner = text[1:-1]
    wrapped = text[0] == text[-1] == '"' and '"' not in inner.replace('""', "")
    return (inner if wrapped else text).replace('""', '"').strip()


def question_from_row(
    row: JsonLine, *, columns: Mapping[str, str] = _NO_COLUMNS, answers_needed: bool = False
) -> Question:
    """Return the question in a row; RowError if the row is not usable.

    The keys are "id" (text or whole number; by default the row's number), "question", "answers" (a text or
    whole number, a list of them, or an object of the hub), "context" (a text or null) and "messages" (a chat
    in place of a question). `columns` maps these names to other keys. Further keys go to `extra`. With
    `answers_needed`, a row without answers is an error.

    >>> question_from_row(JsonLine(7, {"question": "Who found it? ", "answers": ["Ada", "Ada "], "level": 2}))
    Question(id='7', question='Who found it?', answers=('Ada',), context=None, extra={'level': 2})
    """
    names = {name: columns.get(name, name) for name in FIELDS}
    values = {name: row.data.get(key) for name, key in names.items()}
    try:
        if reason := fault(row.data):
            raise InputError(reason)
        messages = _messages(values["messages"], names["messages"])
        question = Question(
            id=_id(values["id"]) if names["id"] in row.data else str(row.line),
            question=_question(values["question"], row.data, names["question"], needed=not messages),
            answers=references_of(values["answers"], names["answers"]),
            context=_context(values["context"], names["context"]),
            extra={k: v for k, v in row.data.items() if k not in names and k not in names.values()},
            line=row.line,
            numbered=names["id"] not in row.data,
            messages=messages,
        )
        if answers_needed and not question.answers:
            raise InputError(f'no answers. Give "{names["answers"]}" at least one text{_keys(row.data)}.')
        group_of(question.extra)
    except InputError as error:
        raise _bad_row(row, names["id"], str(error)) from None
    return question


def _bad_row(row: JsonLine, id_key: str, reason: str) -> RowError:
    return JsonLine(row.line, {"id": row.data.get(id_key)}).error(reason)


def _keys(row: Iterable[str]) -> str:
    return f" (the row's keys: {', '.join(map(str, row))[:200]})"


def _id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise InputError(f'"id" must be a text or a whole number, got {shown(value)}')


def _messages(value: Any, key: str) -> tuple[Turn, ...]:
    return turns_of(parse_list(value) if isinstance(value, str) and value.strip() else value or None, key)


def _question(value: Any, row: Iterable[str], key: str, *, needed: bool) -> str:
    if not needed and value in (None, ""):
        return ""
    if {"role", "content"} <= {*row}:
        raise InputError('it is a message, not a row. Put a chat in one list: {"messages": [{…}, {…}]}.')
    if value is None:
        raise InputError(f'no "{key}"{_keys(row)}. Add it, or name its column: --columns question=NAME.')
    text = clean_text(value) if isinstance(value, str) else ""
    if not text:
        raise InputError(f'"{key}" must be a non-empty text, got {shown(value)}')
    return text


def _context(value: Any, key: str) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return value
    raise InputError(f'"{key}" must be the passage as a text, or null, got {shown(value)}')


def references_of(value: Any, key: str = "answers") -> tuple[str, ...]:
    """Return the references in a cell, stripped, without empty texts, duplicates, "(disambiguation)"."""
    texts = _answer_list(value)
    if not isinstance(texts, (list, tuple)):
        raise InputError(f'"{key}" must be a text or a list of texts, got {shown(value)}')
    cleaned = (clean_text(reference_text(text, key)) for text in texts)
    return tuple(dict.fromkeys(text for text in (_DISAMBIGUATION.sub("", t) or t for t in cleaned) if text))


def _answer_list(value: Any) -> Any:
    if value is None:
        return []
    if isinstance(value, str):
        text = value.strip()
        return parse_list(text) if text.startswith(('["', "['")) and text.endswith("]") else [text]
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, Mapping):
        if "text" in value:  # SQuAD on the hub
            return _answer_list(value["text"])
        if "value" in value:  # TriviaQA on the hub
            aliases = value.get("aliases") or []
            return [value["value"], *aliases] if isinstance(aliases, (list, tuple)) else value
    return value


def parse_list(text: str) -> list[Any]:
    """Return the list in a cell of a table, written in JSON or by pandas; InputError for other text.

    >>> parse_list('["Ada", "Bo"]'), parse_list("['Ada', 'Bo']"), parse_list("[-0.5, null]")
    (['Ada', 'Bo'], ['Ada', 'Bo'], [-0.5, None])
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text)
            value = value if repr(value) == text else None  # Python joins "['a' 'b']" to one text "ab"
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    if isinstance(value, list):
        return value
    raise InputError(f'expected a list of texts like ["a", "b"], got {shown(text)}')


def read_questions(
    source: str | Path,
    *,
    format: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    columns: Mapping[str, str] = _NO_COLUMNS,
    answers_needed: bool = False,
    labelled: bool = False,
    notify: Notify | None = None,
) -> Iterator[Question | RowError]:
    """Yield the questions of a data set, and a `RowError` for each bad row.

    Parameters
    ----------
    source : str or Path
        A local file: JSON Lines, JSON, SQuAD's own JSON, CSV, TSV (all may be gzipped) or Parquet. "-" is
        JSON Lines on standard input. If no file has this name, a data set: "triviaqa", "nq-open", "squad" or
        any "owner/name" on the Hugging Face hub, or "atlas-trivia", "atlas-rare", "atlas-reading" or
        "real" of the package.
    format : str, optional
        Format of the file: "jsonl", "json", "csv", "tsv", "parquet". The default is that of its ending.
    subset, split : str, optional
        Part of a data set on the hub (split "train" by default), or of the package: "few_shot",
        "calibration_train" (the default), "validation" or "test".
    columns : mapping of str to str
        Column of the source for "id", "question", "answers" or "context". Case is ignored ("Question"), and
        "query" means "question". If answers are needed, "answer" means "answers", unless the rows hold
        "answers", samples or a prediction.
    answers_needed : bool
        Treat a question without answers as a bad row.
    labelled : bool
        Read the column "answer" as "answers" even if answers are not needed.
    notify : callable, optional
        Called with notes about the source: its delimiter, the names of its columns.

    Yields
    ------
    Question or RowError
        In the order of the source. A second row with the same id is an error. If rows have no ids, the row
        number (from 1; in JSON Lines and CSV the line number) is the id. After a row with an id, every row
        needs one.

    Raises
    ------
    InputError
        If the source as a whole cannot be read: no such file or data set, damaged, hub out of reach.
    UsageError
        If an option does not apply to the source, or `columns` names a missing column.
    MissingExtraError
        For Parquet without pyarrow, for the hub without datasets.
    """
    names = {*_COLUMNS, *(name for aliases in _COLUMNS.values() for name in aliases), "title"}
    names |= {"answer"} if answers_needed or labelled else set()
    source = find_source(source)
    name = _plain_name(source)
    if name in ATLAS.names() and not Path(source).exists():
        if format or subset or columns:
            raise UsageError(f"{source} is part of the package: no format, subset or columns apply")
        part = check_name(split or "calibration_train", ATLAS_SPLITS, what=f"split of {source}")
        return iter(getattr(ATLAS.load(name)(name), part))
    dataset = _hub_dataset(str(source), subset)
    if dataset is None:
        if split is not None or subset is not None:
            raise UsageError(f"{source} is a local file; subset and split are for data sets. Leave them out.")
        names |= {theirs.lower() for theirs in columns.values()}
        rows = read_source_rows(source, format=format, names=names, notify=notify)
    elif format is not None:
        raise UsageError(f"{source} is a data set on the hub: a format is for local files. Leave it out.")
    else:
        columns = columns or dataset.columns
        rows = read_hub_rows(replace(dataset, columns=columns), split=split or "train", names=names)
    return questions_from_rows(rows, columns, answers_needed=answers_needed, labelled=labelled, notify=notify)


def _plain_name(source: str | Path) -> str:
    return str(source).lower().replace("_", "-")


def _hub_dataset(source: str, subset: str | None) -> HubDataset | None:
    """Return the data set on the hub, None for a local file."""
    if source == "-" or Path(source).exists() or Path(source).suffix:
        return None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        return HubDataset(source, subset)
    known = [*BUILT_IN, *ATLAS.names(), *EXAMPLES.names()]
    dataset = BUILT_IN[check_name(_plain_name(source), known, what="file or data set")]
    return dataset if subset is None else replace(dataset, subset=subset)


def questions_from_rows(
    rows: Iterator[JsonLine | RowError],
    columns: Mapping[str, str] = _NO_COLUMNS,
    *,
    answers_needed: bool = False,
    labelled: bool = False,
    notify: Notify | None = None,
) -> Iterator[Question | RowError]:
    """Yield the question in each row, and bad rows as errors; parameters as for `read_questions`."""
    lines: dict[str, int] = {}
    columns, rows = peek(rows, _COLUMNS, columns, labelled=answers_needed or labelled, notify=notify)
    id_key, has_ids = columns.get("id", "id"), False
    for row in rows:
        if isinstance(row, RowError):
            yield row
            continue
        has_ids = has_ids or id_key in row.data
        if has_ids and id_key not in row.data:
            yield RowError(row.line, f'no "{id_key}", but earlier rows have one. Give every row an id.')
            continue
        try:
            question = question_from_row(row, columns=columns, answers_needed=answers_needed)
        except RowError as error:
            yield error
            continue
        first = lines.setdefault(question.id, row.line)
        if first == row.line:
            yield question
        else:
            reason = f'"{id_key}" {shown(question.id)} was used in line {first}. Give each question its own.'
            yield _bad_row(row, id_key, reason)


def load_questions(
    source: str | Path,
    *,
    on_bad_row: Callable[[RowError], None] | None = None,
    limit: int | None = None,
    **options: Any,
) -> list[Question]:
    """Return the questions of a data set as a list.

    `source`, `options` and the errors are those of `read_questions`. `on_bad_row` is called with every bad
    row; without it, the first bad row is raised. `limit` is the maximum number of rows, good or bad.
    InputError also if no question is left.
    """
    questions: list[Question] = []
    for item in islice(read_questions(source, **options), limit):
        if isinstance(item, Question):
            questions.append(item)
        elif on_bad_row is None:
            raise item
        else:
            on_bad_row(item)
    if not questions:
        raise InputError(f"no questions in {source}: it is empty, or none of its rows is valid")
    return questions
