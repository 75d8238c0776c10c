"""The questions of a grid, cut into parts, with every row of the data that could not be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from semcal.data.datasets import read_questions
from semcal.data.question import GROUP, Question, data_hash
from semcal.data.sources import ATLAS
from semcal.data.splits import SplitSizes, split_questions
from semcal.errors import InputError, RowError
from semcal.experiment.grid_settings import DataSet
from semcal.registry import Registry

PARTS = ("calibration_train", "validation", "test")

#: Characters of a question with its passage; a longer one must not become an example in every prompt.
LONGEST = 1_000_000
_SIZES = Registry("data set", dict.fromkeys(ATLAS.names(), "semcal.demo.questions:SIZES"))


@dataclass(frozen=True)
class Problem:
    """A row of the data, or a question, that was refused."""

    dataset: str
    line: int | None  # of the source; None for what a model refuses: the reason names the question
    reason: str
    model: str | None = None  # which model refuses it; None where the row itself is bad
    row_id: str | int | None = None  # the row's id, where it has one and a line

    def row(self) -> dict[str, Any]:
        """As a row of problems.jsonl."""
        fields = asdict(self).items()
        return {key: value for key, value in fields if key not in ("model", "row_id") or value is not None}

    @property
    def where(self) -> str:
        """The data set, and the model that refuses it."""
        return self.dataset if self.model is None else f"{self.dataset} under {self.model}"

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.where}: {self.reason}"
        return f"{self.where}, {RowError(self.line, self.reason, self.row_id)}"


@dataclass(frozen=True)
class Parts:
    """The questions of one data set, by what they are used for; disjoint."""

    name: str
    few_shot: tuple[Question, ...]
    calibration_train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]
    problems: tuple[Problem, ...] = ()  # rows that were left out

    @cached_property
    def open_book(self) -> bool:
        """Whether there are passages."""
        return any(question.context is not None for question in (*self.test, *self.calibration_train))

    def part(self, name: str) -> tuple[Question, ...]:
        """The questions of "calibration_train", "validation" or "test"."""
        questions = {part: getattr(self, part) for part in PARTS}[name]
        assert isinstance(questions, tuple)
        return questions

    def sizes(self) -> dict[str, int]:
        """How many questions each part has."""
        return {part: len(self.part(part)) for part in PARTS}

    def described(self) -> dict[str, Any]:
        """Sizes and hashes, by which two run folders know that they hold the same questions."""
        hashes = {part: data_hash(self.part(part)) for part in PARTS}
        return {"sizes": self.sizes(), "hashes": hashes, "few_shot": data_hash(self.few_shot)}


def sizes_of_built_in(source: str) -> Mapping[str, int] | None:
    """How many questions the parts of a set that comes with the package have; None for other sources."""
    return dict(_SIZES.load(source)) if source in _SIZES.names() else None


def load_parts(dataset: DataSet) -> Parts:
    """Read a data set and cut it into parts.

    InputError if the source cannot be read, or has fewer questions than are asked for.
    """
    if dataset.source in ATLAS.names():
        return _built_in(dataset)
    bad: list[Problem] = []
    pool = list(_good(_rows(dataset, dataset.source, dataset.split), dataset.name, bad))
    own_test = None
    if dataset.test_source is not None or dataset.test_split is not None:
        rows = _rows(dataset, dataset.test_source or dataset.source, dataset.test_split)
        own_test = list(_good(rows, dataset.name, bad))
    sizes = SplitSizes(
        dataset.calibration_train, dataset.validation or 2000, dataset.test or 2000, dataset.few_shot
    )
    try:
        cut = split_questions(pool, test_questions=own_test, sizes=sizes, seed=dataset.split_seed)
    except InputError as error:
        refused = f" ({len(bad)} rows were refused, the first: {bad[0]})" if bad else ""
        raise InputError(f"data set {dataset.name!r}: {error}{refused}") from error
    return Parts(dataset.name, cut.few_shot, cut.calibration_train, cut.validation, cut.test, tuple(bad))


def _rows(dataset: DataSet, source: str, split: str | None) -> Iterator[Question | RowError]:
    return read_questions(
        source,
        format=dataset.format,
        subset=dataset.subset,
        split=split,
        columns=dataset.columns,
        answers_needed=True,
    )


def _good(rows: Iterator[Question | RowError], name: str, bad: list[Problem]) -> Iterator[Question]:
    for row in rows:
        if isinstance(row, RowError):
            bad.append(Problem(name, row.line, row.reason, row_id=row.row_id))
        elif (length := len(row.question) + len(row.context or "")) > LONGEST:
            reason = f"{length} characters are more than any model reads; cut the passage"
            bad.append(Problem(name, row.line, reason, row_id=row.id))
        else:
            yield row


def _built_in(dataset: DataSet) -> Parts:
    embedded = ATLAS.load(dataset.source)(dataset.source)
    few_shot = embedded.few_shot if dataset.few_shot is None else embedded.few_shot[: dataset.few_shot]
    train, validation, test = (
        _first(getattr(embedded, part), getattr(dataset, part), part, dataset) for part in PARTS
    )
    return Parts(dataset.name, few_shot, train, validation, test)


def _first(
    questions: Sequence[Question], count: int | None, part: str, dataset: DataSet
) -> tuple[Question, ...]:
    if count is not None and count > len(questions):
        raise InputError(
            f"data set {dataset.name!r}: {dataset.source} has {len(questions)} questions for {part}, "
            f"{count} are asked for; ask for less"
        )
    return tuple(questions[:count])


def essentials(question: Question) -> Question:
    """A question without the fields that no job reads."""
    group = question.extra.get(GROUP)
    return replace(question, extra={} if group is None else {GROUP: group})
