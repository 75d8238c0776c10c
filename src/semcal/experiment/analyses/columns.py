"""The rows of a run as arrays: each file is read once, and no row is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from semcal.errors import InputError, StoreError
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import Grading, run_seed
from semcal.qa.first_answer import is_refusal
from semcal.qa.grading import Grader, members_to_grade
from semcal.qa.questions import Ties, ties_of
from semcal.rows import Json, Row

Floats = NDArray[np.float64]
Rows = Sequence[Json]


@dataclass(frozen=True, eq=False)
class Columns:
    """N test questions under one candidate in one run; dicts are by measure, NaN where that is null."""

    ids: tuple[str, ...]
    ties: tuple[Ties, ...]  # what a question shares with its group: a passage, a value in the field `group`
    confidence: dict[str, Floats]  # (N,) each
    correct: dict[str, Floats]  # 0 or 1
    entropy: dict[str, Floats]  # nats
    greedy: tuple[str, ...]  # the greedy answers
    greedy_correct: Floats
    beam_correct: Floats | None  # None where no beams were made
    correct_nli: dict[str, Floats] | None  # by entailment; None where that was not asked for
    rules: dict[str, Counter[str]]  # how often each rule of grading decided
    distinct: float  # distinct answers to a question, mean over questions
    meanings: float  # their clusters, mean over questions
    refusals: float  # share of the draws that refuse to answer


def read_columns(
    run: FinishedRun, model: str, dataset: str, candidate: str, number: int = 0, *, draws: int | None = None
) -> Columns:
    """Read the rows of one candidate and run.

    StoreError as `FinishedRun.rows` has it, also if a confidence is no number.
    """
    path = run.samples_path(model, dataset, candidate, number, draws=draws)
    rows = _read_needed(path, run.selections[model, dataset]["sizes"]["test"])
    if rows is None:
        rows = run.rows(model, dataset, candidate, number, draws=draws)
    try:
        return _columns(rows, run.measures)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StoreError(
            f"{path} holds something that is no measured row ({error}): delete it and run `semcal run` again"
        ) from error


class _Needed(TypedDict):
    """The fields of a row that become columns."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    id: str
    samples: list[str]
    clusters: list[Any]
    confidence: dict[str, float | None]
    correct: dict[str, bool | None]
    semantic_entropy: dict[str, float | None]
    rule: dict[str, str | None]
    greedy: str
    greedy_correct: bool
    beam_correct: NotRequired[bool]
    correct_nli: NotRequired[dict[str, bool | None]]
    context: NotRequired[str]
    group: NotRequired[str | int | float]


_NEEDED = TypeAdapter(_Needed)


def _read_needed(path: Path, n: int) -> Rows | None:
    """Parse the needed fields of a file of n rows, in a third of the time that all fields take.

    None where anything is unusual: reading the whole file then says what is wrong, if something is.
    """
    try:
        lines = path.read_bytes().splitlines()
        return list(map(_NEEDED.validate_json, lines)) if len(lines) == n else None
    except (OSError, ValidationError):
        return None


def _columns(rows: Rows, measures: Sequence[str]) -> Columns:
    samples = [row["samples"] for row in rows]
    draws = Counter(chain.from_iterable(samples))
    has_beams = all("beam_correct" in row for row in rows)
    rules = [row["rule"] for row in rows]
    return Columns(
        ids=tuple(str(row["id"]) for row in rows),
        ties=tuple(map(ties_of, rows)),
        confidence=_by_measure(rows, "confidence", measures),
        correct=_by_measure(rows, "correct", measures),
        entropy=_by_measure(rows, "semantic_entropy", measures),
        greedy=tuple(row["greedy"] for row in rows),
        greedy_correct=np.array([row["greedy_correct"] for row in rows], dtype=np.float64),
        beam_correct=np.array([row["beam_correct"] for row in rows], dtype=np.float64) if has_beams else None,
        correct_nli=_by_measure(rows, "correct_nli", measures) if "correct_nli" in rows[0] else None,
        rules={name: Counter(str(rule.get(name)) for rule in rules) for name in measures},
        distinct=float(np.mean([len(set(texts)) for texts in samples])),
        meanings=float(np.mean([len(row["clusters"]) for row in rows])),
        refusals=sum(count for text, count in draws.items() if _refuses(text)) / draws.total(),
    )


_refuses = lru_cache(maxsize=2**16)(is_refusal)  # runs and candidates share many of their answers


def _by_measure(rows: Rows, key: str, measures: Sequence[str]) -> dict[str, Floats]:
    table = np.array([[row[key].get(name) for name in measures] for row in rows], dtype=np.float64)
    return dict(zip(measures, np.ascontiguousarray(table.T)))


def one_member_correct(run: FinishedRun, model: str, dataset: str, candidate: str) -> dict[str, Floats]:
    """Grade one member of each measure's most confident meaning, as SE_vanilla is judged by one answer.

    Stored rows hold the verdict on a meaning of which any of several members may be right. The member graded
    here is the first of those that were drawn for grading, or the most likely one where that is graded in any
    case (`grading.choice: likeliest`). By measure (R, N), NaN where it is null; StoreError as
    `FinishedRun.rows`, also if a row cannot be graded.
    """
    grading = Grading.model_validate(run.settings.get("grading", {}))
    grader, likeliest = grading.grader(), grading.choice == "likeliest"
    table = [
        [
            _member_verdicts(run, row, grader, seed=run_seed(run.seed, number), likeliest=likeliest)
            for row in run.rows(model, dataset, candidate, number)
        ]
        for number in range(run.runs)
    ]
    found = np.array(table, dtype=np.float64)  # (R, N, measures)
    return {name: found[:, :, i] for i, name in enumerate(run.measures)}


def _member_verdicts(
    run: FinishedRun, row: Json, grader: Grader, *, seed: int, likeliest: bool
) -> list[float | None]:
    """The verdicts on a row, a measure each; a meaning that several measures select is graded once."""
    tops = [row["top_cluster"].get(name) for name in run.measures]
    try:
        known = {
            top: _is_right(row, row["clusters"][top], grader, seed=seed, likeliest=likeliest)
            for top in {*tops} - {None}
        }
    except (TypeError, ValueError, KeyError, IndexError, InputError) as error:
        raise StoreError(
            f"question {row.get('id')!r} of a stored file cannot be graded ({error}): delete the folder "
            "samples and run `semcal run` again"
        ) from error
    return [known.get(top) for top in tops]


def _is_right(row: Json, cluster: list[int], grader: Grader, *, seed: int, likeliest: bool) -> bool:
    known = Row(row).log_likelihoods if likeliest else None
    first = None if known is None else max(cluster, key=known.__getitem__)
    (member,) = members_to_grade(cluster, seed=seed, question_id=Row(row).id, limit=1, first=first)
    return grader.grade(row["question"], [row["samples"][member]], row["answers"]).correct
