"""What users give in Python: questions, samples, models and equivalences, made uniform or refused by name."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from semcal.arrays import as_option
from semcal.data.datasets import load_questions, parse_list, questions_from_rows, references_of
from semcal.data.question import Question
from semcal.data.sources import COMMON_NAMES, check_different, json_value, peek, read_source_rows, rename
from semcal.errors import InputError, RowError, SemcalWarning, UsageError, shown
from semcal.files import TOO_DEEP, JsonLine, JsonObject, fault, row_of
from semcal.models.clustering import check_clusterable
from semcal.models.equivalence import (
    DEFAULT,
    LETTER,
    CachedEquivalence,
    EmbeddedEquivalence,
    Equivalence,
    ExactMatch,
    is_same_equivalence,
    names_a_server,
    needs_no_model,
)
from semcal.models.load import load_cross_encoder, load_model
from semcal.models.protocols import Capabilities
from semcal.rows import AnswerKind, Json, Row, RowsAt, check_distinct

if TYPE_CHECKING:
    from semcal.models.protocols import Sampler
    from semcal.servers.settings import ServerSettings


_Item = TypeVar("_Item")


class DataFrameLike(Protocol):
    """A pandas or polars DataFrame."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""


ModelLike: TypeAlias = "Sampler | str | Path"
"""A model of `semcal.load_model`, or its name, directory or address."""
EquivalenceLike: TypeAlias = "Equivalence | str | Path"
"""What decides which answers mean the same: "default", "exact", or an NLI model's name or directory."""
Questions: TypeAlias = (
    "str | Path | DataFrameLike "
    "| Iterable[Question | str | Mapping[str, object] | Sequence[Mapping[str, object]]]"
)
"""A file, a DataFrame, dicts, texts, lists of messages or `semcal.Question` objects."""
Samples: TypeAlias = "str | Path | DataFrameLike | Iterable[Mapping[str, object]]"
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


def as_model(model: object) -> Sampler:
    """Return a language model: as it is, or loaded from its directory, id or name ("atlas"), or a server."""
    if names_a_server(model):
        from semcal.servers.sampler import load_server

        return load_server(str(model))
    if isinstance(model, str | Path):
        return load_model(model)
    if not isinstance(getattr(model, "capabilities", None), Capabilities):
        raise UsageError(
            f"the model is {_kind(model)}; give its name or directory, or a language model as "
            "semcal.load_model returns it; a model in memory is wrapped by "
            "semcal.models.CausalLanguageModel(model, tokenizer, name=...), and a sampler of your own has "
            "`capabilities` (semcal.models.Capabilities)"
        )
    return cast("Sampler", model)


def load_equivalence(
    name_or_dir: str | Path = DEFAULT,
    *,
    device: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    settings: ServerSettings | None = None,
) -> Equivalence:
    """Load what decides whether two answers mean the same.

    Parameters
    ----------
    name_or_dir : str or Path
        "default", the model for real text that comes with the package; "exact", equality of normal forms;
        "among:spam,ham", that of labels, where any other answer is invalid and counts as none;
        "atlas", the NLI model of the invented world; the directory or hub id of a sequence-classification
        checkpoint with a label "entailment" (such as those trained on MNLI); "openai:URL#MODEL", a language
        model that is asked in words.
    device : str, optional
        Where the model runs: "cpu", "cuda", "cuda:1". By default a GPU if there is one.
    revision : str, optional
        Commit, tag or branch of a hub id.
    cache : str or Path, optional
        A file in which verdicts are kept and looked up, shared by runs and processes.
    settings : ServerSettings, optional
        How a server is asked. The key is SEMCAL_JUDGE_API_KEY, or else that of the settings, which is
        SEMCAL_API_KEY by default.

    Raises
    ------
    ModelError
        If the checkpoint cannot be loaded or does not say which label is entailment.
    ServerError
        If the server cannot be reached.
    StoreError
        If the cache is damaged or belongs to another program.

    Examples
    --------
    >>> load_equivalence("exact").name
    'exact'
    """
    if needs_no_model(str(name_or_dir)):
        if str(name_or_dir) in ("exact", LETTER):
            return ExactMatch(letter=str(name_or_dir) == LETTER)
        return ExactMatch.among(str(name_or_dir))
    equivalence: Equivalence
    if str(name_or_dir) == DEFAULT:
        equivalence = EmbeddedEquivalence()
    elif names_a_server(name_or_dir):
        from semcal.servers.entailment import load_verdicts

        equivalence = load_verdicts(str(name_or_dir), settings)
    else:
        equivalence = load_cross_encoder(name_or_dir, device, revision)
    return equivalence if cache is None else CachedEquivalence(equivalence, cache)


def as_equivalence(equivalence: object) -> Equivalence:
    """Return an equivalence: as it is, or loaded from its name, directory or id; None is the embedded one."""
    if equivalence is None:
        equivalence = DEFAULT
    if isinstance(equivalence, str | Path):
        return load_equivalence(equivalence)
    if isinstance(equivalence, type) or not hasattr(equivalence, "entails"):
        raise UsageError(
            f'the equivalence is {_kind(equivalence)}; give "default", "exact", the name or directory of an '
            "NLI model, or what semcal.load_equivalence returns"
        )
    return cast("Equivalence", equivalence)


def checked_draws(m: Any, answer: AnswerKind = "modal") -> int:
    """Return a number of draws; UsageError unless it is a whole number of 2 or more.

    With one draw an `answer` that is not read of it may be compared.
    """
    number = int(as_option(m, "m", "a whole number of draws, such as 10", whole=True))
    if number < (FEWEST if answer == "modal" else 1):
        raise UsageError(
            f"m = {m}: one draw has a share of 1 whatever it says; sample at least {FEWEST}, better 10"
        )
    return number


def check_stored_draws(rows: RowsAt, answer: AnswerKind = "modal") -> None:
    """Raise UsageError if rows hold one draw a question, as `checked_draws` would of a model."""
    first = next(iter(rows.values()))
    if first:
        checked_draws(len(first[0].samples), answer)


def check_clustered_by(rows: Iterable[Row], equivalence: str, revision: str | None, linkage: str) -> None:
    """Raise UsageError if another equivalence or linkage made a row's clusters; warn of another revision.

    The three are those of the calibration. What `clustered_by` does not say is not checked.
    """
    for row in rows:
        by = row.json.get("clustered_by") if row.has("clusters") else None
        made_by = by if isinstance(by, Mapping) else {}
        found = str(made_by.get("equivalence") or equivalence), str(made_by.get("linkage") or linkage)
        if not is_same_equivalence(found[0], equivalence) or found[1] != linkage:
            raise UsageError(
                f"question {row.id!r}: 'clustered_by' names the equivalence {shown(found[0])} (linkage "
                f"{shown(found[1])}), and the calibration is for {shown(equivalence)} (linkage "
                f"{shown(linkage)}), which finds other meanings. Cluster the samples again with "
                f"--equivalence {equivalence} --linkage {linkage}, or calibrate again with "
                f"--equivalence {found[0]} --linkage {found[1]}"
            )
        if revision is not None and made_by.get("revision") not in (None, revision):
            warnings.warn(
                f"'clustered_by' names revision {shown(made_by['revision'])} of the equivalence "
                f"{shown(equivalence)}, and the calibration is for revision {shown(revision)}: its "
                "probabilities may not hold",
                SemcalWarning,
                stacklevel=3,
            )


def warn_of_clusters(rows: Sequence[Row], equivalence: str) -> None:
    """Warn where rows hold `clusters` but not their origin, beside a calibration that names an NLI model."""
    stored = sum(row.has("clusters") and not row.has("clustered_by") for row in rows)
    if stored and not needs_no_model(equivalence):
        warnings.warn(
            f"{stored} of {len(rows)} rows hold 'clusters', which are used as they are, and the calibration "
            f"is for the equivalence {shown(equivalence)}: see that it made them, or leave 'clusters' out",
            SemcalWarning,
            stacklevel=3,
        )


def warn_of_rows_left_out(n: int, *, n_rows: int) -> None:
    """Say that n of the rows of samples have no reference answers, in the name of the caller's caller."""
    if 0 < n < n_rows:
        warnings.warn(
            f"{n} of {n_rows} rows of samples have no reference answers and are left out",
            SemcalWarning,
            stacklevel=3,
        )


def checked_seed(seed: Any) -> int:
    """Return a seed; UsageError unless it is a whole number from 0 on."""
    as_option(seed, "seed", "a whole number from 0 on", low=-1, whole=True)
    return int(seed)


def checked_temperatures(temperatures: Any) -> list[float]:
    """Return temperatures, of one number or several; UsageError unless all are positive numbers."""
    several = isinstance(temperatures, Iterable) and not isinstance(temperatures, str)
    return [
        as_option(number, "temperatures", "a positive number, such as 0.5, or a list of them", low=0)
        for number in (temperatures if several else [temperatures])
    ]


def as_questions(
    questions: object, name: str = "questions", *, labelled: bool = False, given: bool = False
) -> list[Question]:
    """Return questions from a file, texts (which are their ids), dicts, `Question`s or a DataFrame.

    `name` is that of the argument in errors, which name the first bad row and what to do. `labelled`
    questions need answers; none at all, and `Question`s without, are left to who says how many are needed.
    With `given` the key "answer" is no reference, but an answer that is checked.
    """
    argument = _Argument(questions, name)
    if isinstance(questions, str | Path):
        argument.check_path()
        return load_questions(questions, answers_needed=labelled, labelled=not given)
    items = argument.items("texts, dicts or Questions", may_be_empty=labelled)
    items = [{"messages": item} if _are_messages(item) else item for item in items]
    texts = [item for item in items if isinstance(item, str)]
    if items and len(texts) == len(items):
        if labelled:
            raise InputError(
                f"{name} are texts without reference answers; give dicts such as "
                '{"question": "Who?", "answers": ["Ada"]}'
            )
        return _from_texts(texts, name)
    ready = [item for item in items if isinstance(item, Question)]
    if len(ready) == len(items):
        return ready
    rows = questions_from_rows(argument.rows(items), answers_needed=labelled, labelled=not given)
    return list(map(argument.usable, rows))


def _are_messages(item: object) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(isinstance(turn, Mapping) for turn in item)


def as_sample_rows(samples: object, name: str = "samples") -> list[Row]:
    """Return rows of sampled answers from a file, dicts or a DataFrame; rows without ids are numbered."""
    argument = _Argument(samples, name)
    if isinstance(samples, str | Path):
        argument.check_path()
        source = read_source_rows(samples, names=SAMPLED)
    else:
        source = argument.rows(argument.items("dicts"))
    columns, source = peek(source, {column: COMMON_NAMES.get(column, ()) for column in SAMPLED}, {})
    rows = [_sampled(argument.usable(line), argument) for line in rename(source, columns)]
    if not rows:
        raise InputError(f"no rows in {shown(str(samples)) if isinstance(samples, str | Path) else name}")
    named = sum(row.has("id") for row in rows)
    if 0 < named < len(rows):
        raise InputError(f"{len(rows) - named} of {len(rows)} rows of {name} have no id; name all, or none")
    rows = rows if named else [Row({"id": str(number), **row.json}) for number, row in enumerate(rows, 1)]
    check_distinct(str(row.json["id"]) for row in rows)
    return rows


def _sampled(line: JsonLine, argument: _Argument) -> Row:
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
        raise argument.error(line.error(str(error))) from None
    return row


def listed_cells(json: Json) -> JsonObject:
    """Return a row of samples with lists where its cells hold their text; InputError if one is none."""
    cells = dict(json)
    for key in LISTS:
        if isinstance(cells.get(key), str):
            cells[key] = _listed(key, cells[key]) if cells[key].strip() else None
    if "answers" in cells:
        cells["answers"] = list(references_of(cells["answers"]))
    if reason := fault({key: value for key, value in cells.items() if value is not json[key]}):
        raise InputError(reason)
    return {key: value for key, value in cells.items() if value or key not in ("answers", "clusters")}


def _listed(key: str, text: str) -> list[Any]:
    """The list in a cell of a table."""
    try:
        return parse_list(text)
    except InputError as error:
        expected = f"expected a list like {LISTS[key]}, got {shown(text)}"
        raise InputError(f"{key!r}: {expected if LISTS[key] else error}") from None


def _from_texts(texts: list[str], name: str) -> list[Question]:
    """Questions whose ids are their texts; a repeated one is numbered."""
    copies = Counter[str]()
    questions: dict[str, Question] = {}
    for place, text in enumerate(map(str, texts)):
        if not text.strip():
            raise InputError(f"{name}[{place}] is empty; leave it out")
        copies[text] += 1
        question_id = f"{text} ({copies[text]})" if text in questions else text
        questions[question_id] = Question(question_id, text)
    return list(questions.values())


def name_of(questions: object) -> str:
    """Return where questions come from, for the record."""
    return Path(questions).name if isinstance(questions, str | Path) else "questions given in Python"


@dataclass(frozen=True)
class _Argument:
    """An argument that holds rows, and its name in messages."""

    value: Any
    name: str

    def check_path(self) -> None:
        """Refuse a question where the name of a file goes."""
        path = self.value
        if isinstance(path, str) and (not path.strip() or (" " in path.strip() and not Path(path).exists())):
            raise UsageError(
                f'{self.name} is {shown(path)}, and there is no such file; texts go in a list: ["…"]'
            )

    def items(self, kinds: str, *, may_be_empty: bool = False) -> list[Any]:
        """What a list, an iterator or a DataFrame holds."""
        value = self.value
        if hasattr(value, "to_dicts"):  # polars
            items: list[Any] = value.to_dicts()
        elif hasattr(value, "to_dict") and hasattr(value, "columns"):  # pandas
            check_different([str(name) for name in value.columns], self.name)
            items = value.to_dict(orient="records")
        elif isinstance(value, bytes | Mapping | type) or not isinstance(value, Iterable):
            raise UsageError(
                f"{self.name} is {_kind(value)}; expected a file, a list of {kinds}, or a DataFrame"
            )
        else:
            items = list(value)
        if not items and not may_be_empty:
            raise InputError(f"{self.name} is empty; give at least one row")
        return items

    def rows(self, items: list[Any]) -> Iterator[JsonLine | RowError]:
        """The items as rows of a file, without NumPy; what pandas calls missing is None."""
        for place, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise InputError(
                    f"{self.name}[{place}] is {_kind(item)}; expected all of one kind, such as dicts: "
                    '{"question": "Who?", …}'
                )
            try:
                cells = {str(key): _cell(value) for key, value in item.items()}
            except TypeError as error:
                raise InputError(f"{self.at(place)}: {error}; leave it out, or give its text") from None
            except RecursionError:
                raise InputError(f"{self.at(place)}: {TOO_DEEP}") from None
            yield row_of(place + 1, cells)

    def at(self, index: int) -> str:
        """A row, as Python names it."""
        return f"{self.name}.iloc[{index}]" if hasattr(self.value, "iloc") else f"{self.name}[{index}]"

    def usable(self, item: _Item | RowError) -> _Item:
        """The item; an error is raised with its place."""
        if isinstance(item, RowError):
            raise self.error(item)
        return item

    def error(self, error: RowError) -> InputError:
        """The error with the row's place: the line of a file, the index of a list."""
        if isinstance(self.value, str | Path):
            return error
        named = "" if error.row_id is None else f" (id {shown(error.row_id)})"
        return InputError(f"{self.at(error.line - 1)}{named}: {error.reason}")


def _cell(value: Any) -> Any:
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else json_value(value)


def _kind(value: object) -> str:
    """What something is, for a message: "None", "the class Foo", "of type list"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"of type {type(value).__name__}"
