"""Questions as Python arguments: files, DataFrames, dicts or texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from semcal.data.datasets import load_questions, questions_from_rows
from semcal.data.question import Question
from semcal.data.sources import check_different, json_value
from semcal.errors import InputError, RowError, UsageError, shown
from semcal.files import TOO_DEEP, JsonLine, row_of

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


def as_questions(
    questions: object, name: str = "questions", *, labelled: bool = False, given: bool = False
) -> list[Question]:
    """Return questions from a file, texts (which become ids), dicts, `Question`s or a DataFrame.

    `name` is the name of the argument in errors. An error names the first bad row. With `labelled`, rows need
    reference answers; the caller checks an empty list, and `Question`s without answers. With `given`, the key
    "answer" is an answer to check, not a reference.
    """
    argument = Argument(questions, name)
    if isinstance(questions, str | Path):
        argument.check_path()
        return load_questions(questions, answers_needed=labelled, labelled=not given)
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
    rows = questions_from_rows(argument.rows(items), answers_needed=labelled, labelled=not given)
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
                f"{self.name}: got {kind_of(value)}. Give a file, a list of {kinds}, or a DataFrame."
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
                    f"{self.name}[{place}]: got {kind_of(item)}, expected items of one kind. "
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
        return schema_of() if isinstance(value, type) else value.model_dump(mode="json")
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else json_value(value)


def kind_of(value: object) -> str:
    """Return the kind of a value for a message: "None", "the class Foo", "a value of type list"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
