"""Read questions with their answers from files, Python objects or the Hugging Face hub (spec.md, section 9).

Every source yields `Question | RowError`, one at a time. A bad row does not end the reading: its error has
the number of the row, the value and the remedy.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

from semcal.data.question import Question, group_of, reference_text, turns_of
from semcal.data.sources import (
    ATLAS,
    BUILT_IN,
    EXAMPLES,
    HubDataset,
    check_different,
    find_source,
    json_value,
    read_hub_rows,
    read_source_rows,
    rename,
)
from semcal.errors import InputError, RowError, SemcalWarning, UsageError, shown
from semcal.files import TOO_DEEP, JsonLine, row_of
from semcal.registry import check_name

FIELDS = ("id", "question", "answers", "context", "messages")
ATLAS_SPLITS = ("few_shot", "calibration_train", "validation", "test")
_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
#: Several references in one text, not written as a list.
_SEVERAL = re.compile(r"[^\s;|]\s*[;|]\s*[^\s;|]")
_DISAMBIGUATION = re.compile(r"\s*\(disambiguation\)$", re.IGNORECASE)


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


def question_from_row(row: JsonLine, *, answers_needed: bool = False) -> Question:
    """Return the question in a row; RowError if the row is not usable.

    The keys are "id" (text or whole number; by default the row's number), "question", "answers" (a text or
    whole number, a list of them, or an object of the hub), "context" (a text or null) and "messages" (a chat
    in place of a question). Further keys go to `extra`. With `answers_needed`, a row without answers is an
    error.

    >>> question_from_row(JsonLine(7, {"question": "Who found it? ", "answers": ["Ada", "Ada "], "level": 2}))
    Question(id='7', question='Who found it?', answers=('Ada',), context=None, extra={'level': 2})
    """
    values = {name: row.data.get(name) for name in FIELDS}
    try:
        messages, context = values["messages"], values["context"]
        if isinstance(messages, str) and messages.strip():  # a cell of a table
            messages = parse_list(messages)
        turns = turns_of(messages or None)
        if isinstance(context, str) and not context.strip():
            context = None
        if not isinstance(context, str | None):
            raise InputError(f'"context" must be the passage as a text, or null, got {shown(context)}')
        question = Question(
            id=_id(values["id"]) if "id" in row.data else str(row.line),
            question=_question(values["question"], row.data, needed=not turns),
            answers=references_of(values["answers"]),
            context=context,
            extra={key: value for key, value in row.data.items() if key not in FIELDS},
            line=row.line,
            numbered="id" not in row.data,
            messages=turns,
        )
        if answers_needed and not question.answers:
            raise InputError(
                f'no "answers". Give at least one text{_keys(row.data)}, or {_NAMED}answers=NAME.'
            )
        group_of(question.extra)
    except InputError as error:
        raise row.error(str(error)) from None
    return question


_NAMED = "name its column: --columns "


def _keys(row: Iterable[str]) -> str:
    return f" (the row's keys: {', '.join(map(str, row))[:200]})"


def _id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise InputError(f'"id" must be a text or a whole number, got {shown(value)}')


def _question(value: Any, row: Iterable[str], *, needed: bool) -> str:
    if not needed and value in (None, ""):
        return ""
    if value is None:
        raise InputError(f'no "question"{_keys(row)}. Add it, or {_NAMED}question=NAME.')
    text = clean_text(value) if isinstance(value, str) else ""
    if not text:
        raise InputError(f'"question" must be a non-empty text, got {shown(value)}')
    return text


def references_of(value: Any) -> tuple[str, ...]:
    """Return the references in a cell, stripped, without empty texts, duplicates, "(disambiguation)"."""
    texts = _answer_list(value)
    if not isinstance(texts, (list, tuple)):
        hint = ". A document needs a schema (--schema)" if isinstance(value, Mapping) else ""
        raise InputError(f'"answers" must be a text or a list of texts, got {shown(value)}{hint}')
    cleaned = (clean_text(reference_text(text)) for text in texts)
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
    value = parse_cell(text)
    if isinstance(value, list):
        return value
    raise InputError(f'expected a list of texts like ["a", "b"], got {shown(text)}')


def parse_cell(text: str) -> Any:
    """Return the value in a cell of a table, written in JSON or by pandas; None for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text)
            return value if repr(value) == text else None  # Python joins "['a' 'b']" to one text "ab"
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None


def read_questions(
    source: str | Path,
    *,
    subset: str | None = None,
    split: str | None = None,
    columns: Mapping[str, str] = _NO_COLUMNS,
    answers_needed: bool = False,
) -> Iterator[Question | RowError]:
    """Yield the questions of a data set, and a `RowError` for each bad row.

    Parameters
    ----------
    source : str or Path
        A local file: JSON Lines, JSON, SQuAD's own JSON, CSV, TSV (all may be gzipped) or Parquet. "-" is
        JSON Lines on standard input. If no file has this name, a data set: "triviaqa", "nq-open", "squad" or
        any "owner/name" on the Hugging Face hub, or "atlas-trivia", "atlas-rare", "atlas-reading" or
        "real" of the package.
    subset, split : str, optional
        Part of a data set on the hub (split "train" by default), or of the package: "few_shot",
        "calibration_train" (the default), "validation" or "test".
    columns : mapping of str to str
        Column of the source for "id", "question", "answers", "context" or "messages", where it has another
        name.
    answers_needed : bool
        Treat a question without answers as a bad row.

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
    source = find_source(source)
    if str(source) in ATLAS and not Path(source).exists():
        if subset or columns:
            raise UsageError(f"{source} is part of the package: no subset or columns apply")
        part = check_name(split or "calibration_train", ATLAS_SPLITS, what=f"split of {source}")
        return iter(getattr(resolve_name("semcal.demo.questions:load_set")(str(source)), part))
    dataset = _hub_dataset(str(source), subset)
    if dataset is None:
        if split is not None or subset is not None:
            raise UsageError(f"{source} is a local file; subset and split are for data sets. Leave them out.")
        rows = read_source_rows(source)
    else:
        columns = columns or dataset.columns
        names = (*FIELDS, "title")
        rows = read_hub_rows(replace(dataset, columns=columns), split=split or "train", names=names)
    return questions_from_rows(rename(rows, columns), answers_needed=answers_needed)


def _hub_dataset(source: str, subset: str | None) -> HubDataset | None:
    if source == "-" or Path(source).exists() or Path(source).suffix:
        return None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        return HubDataset(source, subset)
    known = [*BUILT_IN, *ATLAS, *EXAMPLES]
    dataset = BUILT_IN[check_name(source, known, what="file or data set")]
    return dataset if subset is None else replace(dataset, subset=subset)


def questions_from_rows(
    rows: Iterable[JsonLine | RowError], *, answers_needed: bool = False
) -> Iterator[Question | RowError]:
    """Yield the question in each row, and bad rows as errors; a bad row is also one with an id used before.

    If a row has an id, all later rows need one. SemcalWarning at the end if most answers seem to be lists.
    """
    lines: dict[str, int] = {}
    has_ids, n_several = False, 0
    for row in rows:
        if isinstance(row, RowError):
            yield row
            continue
        has_ids = has_ids or "id" in row.data
        if has_ids and "id" not in row.data:
            yield RowError(row.line, 'no "id", but earlier rows have one. Give every row an id.')
            continue
        try:
            question = question_from_row(row, answers_needed=answers_needed)
        except RowError as error:
            yield error
            continue
        n_several += any(map(_SEVERAL.search, question.answers)) and len(question.answers) == 1
        first = lines.setdefault(question.id, row.line)
        if first == row.line:
            yield question
        else:
            yield row.error(
                f'"id" {shown(question.id)} was used in line {first}. Give each question its own.'
            )
    if n_several > max(1, len(lines) / 2):
        warnings.warn(
            f'"answers" of {n_several} of {len(lines)} rows seem to hold several references in one text, '
            'which count as one. Write them as a JSON list: ["A", "B"].',
            SemcalWarning,
            stacklevel=2,
        )


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


# ---- Questions as Python arguments: files, DataFrames, dicts or texts --------------------------------------

_Item = TypeVar("_Item")


class DataFrameLike(Protocol):
    """A pandas or polars DataFrame."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""


Questions: TypeAlias = (
    "str | Path | DataFrameLike "
    "| Iterable[Question | str | Mapping[str, object] | Sequence[Mapping[str, object]]]"
)
"""A file, a DataFrame, dicts, texts, lists of messages or `semcal.Question` objects."""


def as_questions(questions: object, name: str = "questions", *, labelled: bool = False) -> list[Question]:
    """Return questions from a file, texts (which become ids), dicts, `Question`s or a DataFrame.

    `name` is the name of the argument in errors. An error names the first bad row. With `labelled`, rows need
    reference answers; the caller checks an empty list, and `Question`s without answers.
    """
    argument = Argument(questions, name)
    if isinstance(questions, str | Path):
        argument.check_path()
        return load_questions(questions, answers_needed=labelled)
    items = argument.items("texts, dicts or Questions", may_be_empty=labelled)
    items = [{"messages": item} if _are_messages(item) else item for item in items]
    texts = [item for item in items if isinstance(item, str)]
    if items and len(texts) == len(items):
        if labelled:
            raise InputError(
                f"{name}: got texts without reference answers. Give dicts such as "
                '{"question": "Who?", "answers": ["Ada"]}.'
            )
        return _from_texts(texts, name)
    if all(isinstance(item, Question) for item in items):
        return items
    rows = questions_from_rows(argument.rows(items), answers_needed=labelled)
    return list(map(argument.usable, rows))


def _are_messages(item: object) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(isinstance(turn, Mapping) for turn in item)


def _from_texts(texts: list[str], name: str) -> list[Question]:
    """Questions whose ids are their texts; the id of a repeated text gets a number."""
    copies = Counter[str]()
    questions: dict[str, Question] = {}
    for place, text in enumerate(map(str, texts)):
        if not text.strip():
            raise InputError(f"{name}[{place}] is empty. Leave it out.")
        copies[text] += 1
        question_id = f"{text} ({copies[text]})" if text in questions else text
        questions[question_id] = Question(question_id, text)
    return list(questions.values())


def name_of(questions: object) -> str:
    """Return the name of the source of questions."""
    return Path(questions).name if isinstance(questions, str | Path) else "questions given in Python"


@dataclass(frozen=True)
class Argument:
    """An argument that holds rows, and its name in messages."""

    value: Any
    name: str

    def check_path(self) -> None:
        """Raise UsageError for a question in place of a file name."""
        path = self.value
        if isinstance(path, str) and (not path.strip() or (" " in path.strip() and not Path(path).exists())):
            raise UsageError(f'{self.name}: no such file: {shown(path)}. Put a text in a list: ["…"].')

    def items(self, kinds: str, *, may_be_empty: bool = False) -> list[Any]:
        """Return the items of a list, an iterator or a DataFrame."""
        value = self.value
        if hasattr(value, "to_dicts"):  # polars
            items: list[Any] = value.to_dicts()
        elif hasattr(value, "to_dict") and hasattr(value, "columns"):  # pandas
            check_different([str(name) for name in value.columns], self.name)
            items = value.to_dict(orient="records")
        elif isinstance(value, bytes | Mapping | type) or not isinstance(value, Iterable):
            raise UsageError(
                f"{self.name}: got {shown(value)}. Give a file, a list of {kinds}, or a DataFrame."
            )
        else:
            items = list(value)
        if not items and not may_be_empty:
            raise InputError(f"{self.name} is empty. Give at least one row.")
        return items

    def rows(self, items: list[Any]) -> Iterator[JsonLine | RowError]:
        """Yield the items as rows of a file. NumPy values become Python's; missing values become None."""
        for place, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise InputError(
                    f"{self.name}[{place}]: got {shown(item)}, expected items of one kind. "
                    'Give dicts such as {"question": "Who?", …}.'
                )
            try:
                cells = {str(key): as_cell(value) for key, value in item.items()}
            except TypeError as error:
                raise InputError(f"{self.at(place)}: {error}. Leave it out, or give its text.") from None
            except RecursionError:
                raise InputError(f"{self.at(place)}: {TOO_DEEP}") from None
            yield row_of(place + 1, cells)

    def at(self, index: int) -> str:
        """Return the Python expression of a row."""
        return f"{self.name}.iloc[{index}]" if hasattr(self.value, "iloc") else f"{self.name}[{index}]"

    def usable(self, item: _Item | RowError) -> _Item:
        """Return the item; raise an error with its place."""
        if isinstance(item, RowError):
            raise self.error(item)
        return item

    def error(self, error: RowError) -> InputError:
        """Return the error with the place of its row: the line of a file, the index of a list."""
        if isinstance(self.value, str | Path):
            return error
        named = "" if error.row_id is None else f" (id {shown(error.row_id)})"
        return InputError(f"{self.at(error.line - 1)}{named}: {error.reason}")


def as_cell(value: Any) -> Any:
    """Return a value as it stands in a file; a class of pydantic is its schema. TypeError if impossible."""
    if (schema_of := getattr(value, "model_json_schema", None)) is not None:  # pydantic
        return schema_of() if isinstance(value, type) else value.model_dump(mode="json", by_alias=True)
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else json_value(value)
