"""Questions with their answers, from local files or the Hugging Face hub (spec.md, section 9).

Every source gives `Question | RowError`, one at a time: a bad row is reported with its number, its
value and the remedy, and the rest goes on.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from reprlib import Repr
from types import MappingProxyType
from typing import Any

from semcal.errors import InputError, RowError, UsageError
from semcal.qa.groups import GROUP, group_of
from semcal.qa.sources import BUILT_IN, HubDataset, read_hub_rows, read_source_rows
from semcal.records import Row, dumps
from semcal.registry import check_name

__all__ = ["Question", "clean_text", "data_hash", "load_questions", "question_from_row", "read_questions"]

FIELDS = ("id", "question", "answers", "context")
_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
_DISAMBIGUATION = re.compile(r"\s*\(disambiguation\)$", re.IGNORECASE)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxdict = _SHORT.maxlist = 3


@dataclass(frozen=True)
class Question:
    """One question, its reference answers and, open book, its passage.

    Parameters
    ----------
    id : str
        Unique in its data set.
    question : str
        The question, on one line.
    answers : tuple of str
        Reference answers without doublets, in the order of the source; few-shot examples show the first.
    context : str or None
        The passage, exactly as given.
    extra : mapping of str to object
        The other keys of the row.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    context: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def row(self) -> dict[str, Any]:
        """Return the question as a row of a file; passage and answers only where it has them."""
        context = {} if self.context is None else {"context": self.context}
        answers = {"answers": list(self.answers)} if self.answers else {}
        return {"id": self.id, "question": self.question, **context, **answers, **self.extra}


def clean_text(text: str) -> str:
    """Return `text` on one line with single blanks, freed of the quotes that a CSV export left behind.

    Examples
    --------
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
    row: Row, *, columns: Mapping[str, str] = _NO_COLUMNS, answers_needed: bool = False
) -> Question:
    """Return the question that a row holds.

    Parameters
    ----------
    row : Row
        Keys "id" (text or whole number; the row's number where there is no such key), "question",
        "answers" (a text, a list of texts, or SQuAD's and TriviaQA's objects) and "context" (a text or
        null). Other keys go to `extra`.
    columns : mapping of str to str
        Our name of a key → the name that it has in the row.
    answers_needed : bool
        Whether a question without answers is an error.

    Raises
    ------
    RowError
        If the row holds no usable question; the message says what to change.

    Examples
    --------
    >>> question_from_row(Row(7, {"question": "Who found it? ", "answers": ["Ada", "Ada "], "level": 2}))
    Question(id='7', question='Who found it?', answers=('Ada',), context=None, extra={'level': 2})
    """
    names = {name: columns.get(name, name) for name in FIELDS}
    values = {name: row.data.get(key) for name, key in names.items()}
    try:
        question = Question(
            id=_id(values["id"]) if names["id"] in row.data else str(row.line),
            question=_question(values["question"], row.data, names["question"]),
            answers=_answers(values["answers"], names["answers"]),
            context=_context(values["context"], names["context"]),
            extra={key: value for key, value in row.data.items() if key not in names.values()},
        )
        if answers_needed and not question.answers:
            raise InputError(f'no answers: give "{names["answers"]}" at least one text{_hint(row.data)}')
        group_of(question.extra)
        _check_unicode(row.data)
    except InputError as error:
        raise RowError(row.line, str(error)) from None
    except RecursionError:
        raise RowError(row.line, "objects nested hundreds deep cannot be kept: flatten the row") from None
    return question


def _hint(data: Mapping[str, Any]) -> str:
    """What the row does hold, for a message about what it does not."""
    return f" (the row's keys: {', '.join(map(str, data))[:200]})"


def _id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise InputError(f'"id" must be a text or a whole number, got {_SHORT.repr(value)}: name the question')


def _question(value: Any, data: Mapping[str, Any], key: str) -> str:
    if value is None:
        raise InputError(f'no question: give it as "{key}"{_hint(data)}')
    text = clean_text(value) if isinstance(value, str) else ""
    if not text:
        raise InputError(f'"{key}" must be a text that is not empty, got {_SHORT.repr(value)}')
    return text


def _context(value: Any, key: str) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return value
    raise InputError(f'"{key}" must be the passage as a text, or null, got {_SHORT.repr(value)}')


def _answers(value: Any, key: str) -> tuple[str, ...]:
    """References without blanks around them, empty ones, doublets, and Wikipedia's "(disambiguation)"."""
    texts = _answer_list(value)
    if not isinstance(texts, (list, tuple)):
        raise InputError(f'"{key}" must be a text or a list of texts, got {_SHORT.repr(value)}')
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f'"{key}" must hold texts only, got {_SHORT.repr(text)}: write it in quotes')
    cleaned = (clean_text(text) for text in texts)
    return tuple(dict.fromkeys(text for text in (_DISAMBIGUATION.sub("", t) or t for t in cleaned) if text))


def _answer_list(value: Any) -> Any:
    """The list of answers in any of the shapes that data sets give it."""
    if value is None:
        return []
    if isinstance(value, str):
        return _listed(value)
    if isinstance(value, Mapping):
        if "text" in value:  # SQuAD on the hub
            return _answer_list(value["text"])
        if "value" in value:  # TriviaQA on the hub
            aliases = value.get("aliases") or []
            return [value["value"], *aliases] if isinstance(aliases, (list, tuple)) else value
    return value


def _listed(text: str) -> list[Any]:
    """A cell that holds a list, as JSON or as pandas writes it; any other text is one answer."""
    text = text.strip()
    if not (text.startswith(('["', "['")) and text.endswith("]")):
        return [text]
    try:
        return list(json.loads(text))
    except json.JSONDecodeError:
        pass
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if isinstance(found, list) and repr(found) == text:  # "['a' 'b']" would be read as one text "ab"
        return found
    raise InputError(f'expected a list of texts like ["a", "b"], got {_SHORT.repr(text)}')


def _check_unicode(value: Any) -> None:
    """Refuse half characters, which could be read but never be written again."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            shown = _SHORT.repr(value[max(0, error.start - 10) : error.start + 10])
            raise InputError(f"broken character in {shown}: save the file as UTF-8") from None
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_unicode(key)
            _check_unicode(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_unicode(item)


def read_questions(
    source: str | Path,
    *,
    format: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    columns: Mapping[str, str] = _NO_COLUMNS,
    answers_needed: bool = False,
) -> Iterator[Question | RowError]:
    """Yield the questions of a data set, each bad row as the `RowError` that it is.

    Parameters
    ----------
    source : str or Path
        A local file (JSON Lines, JSON, SQuAD's own JSON, CSV, TSV, Parquet; .gz where it is text), "-"
        for JSON Lines on standard input, or a data set on the Hugging Face hub: "triviaqa", "nq-open",
        "squad", or any "owner/name". A file of that name comes first.
    format : str, optional
        Format of the file where its ending does not tell: "jsonl", "json", "csv", "tsv", "parquet".
    subset, split : str, optional
        Which part of a data set on the hub (split "train" by default).
    columns : mapping of str to str
        Where the source calls "id", "question", "answers" or "context" something else: our name → its.
    answers_needed : bool
        Whether a question without answers is a bad row.

    Yields
    ------
    Question or RowError
        In the order of the source. Ids are unique: a second row of one id is an error. Where the rows
        have no ids, the row number (from 1; a line number in JSON Lines and CSV) is the id; once a row
        had one, every later row needs its own.

    Raises
    ------
    InputError
        If the source as a whole cannot be read: no such file or data set, damaged, hub out of reach.
    UsageError
        If an option does not go with the source.
    MissingExtraError
        For Parquet without pyarrow, for the hub without datasets.
    """
    place = _hub_dataset(str(source), subset)
    if place is None:
        if split is not None or subset is not None:
            raise UsageError(f"{source} is a local file: subset and split are for data sets on the hub")
        return _questions(read_source_rows(source, format=format), columns, answers_needed)
    if format is not None:
        raise UsageError(f"{source} is a data set on the hub: a format is for local files")
    rows = read_hub_rows(place if not columns else replace(place, columns=columns), split=split or "train")
    return _questions(rows, columns or place.columns, answers_needed)


def _hub_dataset(source: str, subset: str | None) -> HubDataset | None:
    """The data set on the hub that `source` names; None where it is a local file."""
    if source == "-" or Path(source).exists() or Path(source).suffix:
        return None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        return HubDataset(source, subset)
    place = BUILT_IN[check_name(source.lower().replace("_", "-"), BUILT_IN, what="file or data set")]
    return place if subset is None else replace(place, subset=subset)


def _questions(
    rows: Iterator[Row | RowError], columns: Mapping[str, str], answers_needed: bool
) -> Iterator[Question | RowError]:
    lines: dict[str, int] = {}
    id_key, has_ids = columns.get("id", "id"), False
    for row in rows:
        if isinstance(row, RowError):
            yield row
            continue
        has_ids = has_ids or id_key in row.data
        if has_ids and id_key not in row.data:
            yield RowError(row.line, f'no "{id_key}", though rows before have one: name the question')
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
            shown = _SHORT.repr(question.id)
            yield RowError(
                row.line, f'"{id_key}" {shown} was used in line {first}: give each question its own'
            )


def load_questions(
    source: str | Path,
    *,
    on_bad_row: Callable[[RowError], None] | None = None,
    limit: int | None = None,
    **options: Any,
) -> list[Question]:
    """Return the questions of a data set as a list.

    Parameters
    ----------
    source, **options
        As for `read_questions`.
    on_bad_row : callable, optional
        Called with every bad row, after which reading goes on; by default the first one is raised.
    limit : int, optional
        Read so many rows, good or bad.

    Raises
    ------
    RowError
        For the first bad row, if there is no `on_bad_row`.
    InputError
        As `read_questions`, and if no question is left.
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
        raise InputError(f"no questions in {source}: it is empty, or none of its rows could be used")
    return questions


def data_hash(questions: Sequence[Question]) -> str:
    """Hash of ids, questions, passages, reference answers and groups (where there are any), in order."""
    content = [
        [q.id, q.question, q.context, list(q.answers), *([q.extra[GROUP]] if GROUP in q.extra else [])]
        for q in questions
    ]
    return hashlib.sha256(dumps(content).encode()).hexdigest()[:32]
