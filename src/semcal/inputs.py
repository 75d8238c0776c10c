"""What users give in Python: questions, samples, models and equivalences, made uniform or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from semcal.arrays import as_option
from semcal.data.column_names import COMMON_NAMES, check_different, peek, rename
from semcal.data.datasets import load_questions, parse_list, questions_from_rows, references_of
from semcal.data.question import Question
from semcal.data.sources import json_value, read_source_rows
from semcal.errors import InputError, RowError, SemcalWarning, UsageError, shown
from semcal.files import TOO_DEEP, JsonLine, fault, row_of
from semcal.models.clustering import check_clusterable
from semcal.models.equivalence import DEFAULT, Equivalence, names_a_server
from semcal.models.language_model import Capabilities
from semcal.models.loading import load_equivalence, load_model
from semcal.rows import Row, RowsAt, check_distinct

if TYPE_CHECKING:
    from semcal.models.language_model import Sampler


class Table(Protocol):
    """A pandas or polars DataFrame."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""


ModelLike: TypeAlias = "Sampler | str | Path"
"""A model of `semcal.load_model`, or its name, directory or address."""
EquivalenceLike: TypeAlias = "Equivalence | str | Path"
"""What decides which answers mean the same: "default", "exact", or an NLI model's name or directory."""
Questions: TypeAlias = "str | Path | Table | Iterable[Question | str | Mapping[str, Any]]"
"""A file, a DataFrame, dicts, texts or `semcal.Question` objects."""
Samples: TypeAlias = "str | Path | Table | Iterable[Mapping[str, Any]]"
"""A file, a DataFrame or dicts, a row a question, with `samples`."""

#: Fewer draws than this have no share.
FEWEST = 2
#: The columns of rows of samples, and those of them whose cells hold lists.
SAMPLED = ("id", "question", "answers", "context", "group", "samples", "log_likelihoods", "temperatures")
LISTS = {
    "samples": None,
    "log_likelihoods": "[-0.5, -1.2]",
    "temperatures": "[1, 0.5]",
    "clusters": "[[0, 2], [1]]",
}


def as_model(given: Any) -> Sampler:
    """Return a language model: as it is, or loaded from its directory, id or name ("atlas"), or a server."""
    if names_a_server(given):
        from semcal.servers.sampler import load_server

        return load_server(given)
    if isinstance(given, str | Path):
        return load_model(given)
    if not isinstance(getattr(given, "capabilities", None), Capabilities):
        raise UsageError(
            f"the model is {_kind(given)}; give its name or directory, or a language model as "
            "semcal.load_model returns it; a model in memory is wrapped by "
            "semcal.models.CausalLanguageModel(model, tokenizer, name=...), and a sampler of your own has "
            "`capabilities` (semcal.models.Capabilities)"
        )
    found: Sampler = given
    return found


def as_equivalence(given: Any) -> Equivalence:
    """Return an equivalence: as it is, or loaded from its name, directory or id; None is the embedded one."""
    if given is None:
        given = DEFAULT
    if isinstance(given, str | Path):
        return load_equivalence(given)
    if isinstance(given, type) or not hasattr(given, "entails"):
        raise UsageError(
            f'the equivalence is {_kind(given)}; give "default", "exact", the name or directory of an NLI '
            "model, or what semcal.load_equivalence returns"
        )
    found: Equivalence = given
    return found


def checked_draws(m: Any) -> int:
    """Return a number of draws; UsageError unless it is a whole number of 2 or more."""
    found = int(as_option(m, "m", "a whole number of draws, such as 10", whole=True))
    if found < FEWEST:
        raise UsageError(
            f"m = {m}: one draw has a share of 1 whatever it says; sample at least {FEWEST}, better 10"
        )
    return found


def check_stored_draws(rows: RowsAt) -> None:
    """Raise UsageError if rows hold one draw a question, as `checked_draws` would of a model."""
    first = next(iter(rows.values()))
    if first:
        checked_draws(len(first[0].samples))


def warn_of_clusters(rows: Sequence[Row], equivalence: str) -> None:
    """Warn where rows hold `clusters`, used beside a calibration that names an NLI model."""
    stored = sum(row.has("clusters") for row in rows)
    if stored and equivalence != "exact":
        warnings.warn(
            f"{stored} of {len(rows)} rows hold 'clusters', which are used as they are, and the calibration "
            f"is for the equivalence {shown(equivalence)}: see that it made them, or leave 'clusters' out",
            SemcalWarning,
            stacklevel=3,
        )


def warn_of_rows_left_out(n: int, *, of: int) -> None:
    """Say that n of the rows of samples have no reference answers, in the name of the caller's caller."""
    if 0 < n < of:
        warnings.warn(
            f"{n} of {of} rows of samples have no reference answers and are left out",
            SemcalWarning,
            stacklevel=3,
        )


def checked_seed(seed: Any) -> int:
    """Return a seed; UsageError unless it is a whole number from 0 on."""
    as_option(seed, "seed", "a whole number from 0 on", low=-1, whole=True)
    return int(seed)


def checked_temperatures(given: Any) -> list[float]:
    """Return temperatures, of one number or several; UsageError unless all are positive numbers."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return [
        as_option(one, "temperatures", "a positive number, such as 0.5, or a list of them", low=0)
        for one in (given if several else [given])
    ]


def checked_learning(*, risk: Any, delta: Any, seed: Any) -> tuple[float | None, float, int]:
    """Return risk, delta and seed; UsageError that names the first that is wrong."""
    for name, share, usual in (("risk", risk, 0.1), ("delta", delta, 0.05)):
        if share is not None or name == "delta":
            as_option(share, name, f"a share between 0 and 1, such as {usual}", low=0, high=1)
    return risk, delta, checked_seed(seed)


def as_questions(given: Any, what: str = "questions", *, labelled: bool = False) -> list[Question]:
    """Return questions from a file, texts (which are their ids), dicts, `Question`s or a DataFrame.

    `what` is the argument's name in errors, which name the first bad row and what to do. `labelled` questions
    need answers; none at all, and `Question`s without, are left to who says how many are needed.
    """
    if isinstance(given, str | Path):
        _check_path(given, what)
        return load_questions(given, answers_needed=labelled, labelled=True)
    items = _items(given, what, "texts, dicts or Questions", may_be_empty=labelled)
    texts = [item for item in items if isinstance(item, str)]
    if items and len(texts) == len(items):
        if labelled:
            raise InputError(
                f"{what} are texts without reference answers; give dicts such as "
                '{"question": "Who?", "answers": ["Ada"]}'
            )
        return _from_texts(texts, what)
    asked = [item for item in items if isinstance(item, Question)]
    if len(asked) == len(items):
        return asked
    rows = _rows(items, given, what)
    return [
        _good(one, given, what) for one in questions_from_rows(rows, answers_needed=labelled, labelled=True)
    ]


def as_sample_rows(samples: Any, what: str = "samples") -> list[Row]:
    """Return rows of sampled answers from a file, dicts or a DataFrame; rows without ids are numbered."""
    if isinstance(samples, str | Path):
        _check_path(samples, what)
        source = read_source_rows(samples, names=SAMPLED)
    else:
        source = _rows(_items(samples, what, "dicts"), samples, what)
    columns, source = peek(source, {name: COMMON_NAMES.get(name, ()) for name in SAMPLED}, {})
    rows = [_sampled(_good(row, samples, what), samples, what) for row in rename(source, columns)]
    if not rows:
        raise InputError(f"no rows in {shown(str(samples)) if isinstance(samples, str | Path) else what}")
    named = sum(row.has("id") for row in rows)
    if 0 < named < len(rows):
        raise InputError(f"{len(rows) - named} of {len(rows)} rows of {what} have no id; name all, or none")
    rows = rows if named else [Row({"id": str(number), **row.json}) for number, row in enumerate(rows, 1)]
    check_distinct(str(row.json["id"]) for row in rows)
    return rows


def _sampled(line: JsonLine, source: Any, what: str) -> Row:
    """The row with lists where its cells hold their text, checked."""
    try:
        if "samples" not in line.data:
            raise InputError(
                f"no 'samples' (its keys: {', '.join(line.data)[:200]}); there is one row a question, with "
                "all its sampled answers in one list"
            )
        row = Row(listed_cells(line.data))
        check_clusterable(Row({"id": "", **row.json}))
        _ = row.clusters if row.has("clusters") else None, row.context, row.group
    except InputError as error:
        raise _placed(line.error(str(error)), source, what) from None
    return row


def listed_cells(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of samples with lists where its cells hold their text; InputError if one is none."""
    found = dict(data)
    for key in LISTS:
        if isinstance(found.get(key), str):
            found[key] = _listed(key, found[key]) if found[key].strip() else None
    if "answers" in found:
        found["answers"] = list(references_of(found["answers"]))
    if reason := fault({key: value for key, value in found.items() if value is not data[key]}):
        raise InputError(reason)
    return {key: value for key, value in found.items() if value or key not in ("answers", "clusters")}


def _listed(key: str, text: str) -> list[Any]:
    """The list in a cell of a table."""
    try:
        return parse_list(text)
    except InputError as error:
        other = f"expected a list like {LISTS[key]}, got {shown(text)}"
        raise InputError(f"{key!r}: {other if LISTS[key] else error}") from None


def _from_texts(texts: list[str], what: str) -> list[Question]:
    """Questions whose ids are their texts; a repeated one is numbered."""
    found: dict[str, Question] = {}
    for place, text in enumerate(map(str, texts)):
        if not text.strip():
            raise InputError(f"{what}[{place}] is empty; leave it out")
        copies = sum(one.question == text for one in found.values()) if text in found else 0
        name = f"{text} ({copies + 1})" if copies else text
        found[name] = Question(name, text)
    return list(found.values())


def name_of(given: Any) -> str:
    """Return where questions come from, for the record."""
    return Path(given).name if isinstance(given, str | Path) else "questions given in Python"


def _check_path(given: str | Path, what: str) -> None:
    """Refuse a question where the name of a file goes."""
    if isinstance(given, str) and (not given.strip() or (" " in given.strip() and not Path(given).exists())):
        raise UsageError(f'{what} is {shown(given)}, and there is no such file; texts go in a list: ["…"]')


def _items(given: Any, what: str, holds: str, *, may_be_empty: bool = False) -> list[Any]:
    """What a list, an iterator or a DataFrame holds."""
    if hasattr(given, "to_dicts"):  # polars
        items: list[Any] = given.to_dicts()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):  # pandas
        check_different([str(name) for name in given.columns], what)
        items = given.to_dict(orient="records")
    elif isinstance(given, bytes | Mapping | type) or not isinstance(given, Iterable):
        raise UsageError(f"{what} is {_kind(given)}; expected a file, a list of {holds}, or a DataFrame")
    else:
        items = list(given)
    if not items and not may_be_empty:
        raise InputError(f"{what} is empty; give at least one row")
    return items


def _rows(items: list[Any], given: Any, what: str) -> Iterator[JsonLine | RowError]:
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InputError(
                f"{what}[{place}] is {_kind(item)}; expected all of one kind, such as dicts: "
                '{"question": "Who?", …}'
            )
        try:
            cells = {str(key): _cell(value) for key, value in item.items()}
        except TypeError as error:
            raise InputError(
                f"{_place(given, what, place)}: {error}; leave it out, or give its text"
            ) from None
        except RecursionError:
            raise InputError(f"{_place(given, what, place)}: {TOO_DEEP}") from None
        yield row_of(place + 1, cells)


def _cell(value: Any) -> Any:
    """A cell without NumPy; what pandas calls missing is None."""
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else json_value(value)


def _good(item: Any, given: Any, what: str) -> Any:
    if isinstance(item, RowError):
        raise _placed(item, given, what)
    return item


def _placed(error: RowError, given: Any, what: str) -> InputError:
    """The error with the row's place in what was given: the line of a file, the index of a list."""
    if isinstance(given, str | Path):
        return error
    named = "" if error.row_id is None else f" (id {shown(error.row_id)})"
    return InputError(f"{_place(given, what, error.line - 1)}{named}: {error.reason}")


def _place(given: Any, what: str, index: int) -> str:
    return f"{what}.iloc[{index}]" if hasattr(given, "iloc") else f"{what}[{index}]"


def _kind(given: Any) -> str:
    """What something is, for a message: "None", "the class Foo", "of type list"."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return "None" if given is None else f"of type {type(given).__name__}"
