"""The rows of a run as arrays: each file is read once, and no row is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from semcal.errors import StoreError
from semcal.experiment.finished import FinishedRun
from semcal.qa.first_answer import is_refusal
from semcal.qa.questions import Ties, ties_of

__all__ = ["Columns", "read_columns"]

Floats = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Columns:
    """N test questions under one candidate in one run.

    Attributes
    ----------
    ids : tuple of N str
    ties : tuple of N tuples
        What each question shares with others of its group: a passage, a value in the field `group`.
    confidence, correct, entropy : dict of str to ndarray of float64, shape (N,)
        By measure; NaN where the measure is null. Correctness is 0 or 1, entropies are in nats.
    greedy : tuple of N str
        The greedy answers.
    greedy_correct : ndarray of float64, shape (N,)
    beam_correct : ndarray of float64, shape (N,), or None
        Where beams were made.
    correct_nli : dict of str to ndarray of float64, shape (N,), or None
        Correctness by entailment, by measure, where it was asked for.
    rules : dict of str to Counter
        By measure how often each rule decided.
    distinct, meanings : float
        Distinct answers and meanings of a question, mean over questions.
    refusals : float
        Share of the draws that refuse to answer.
    """

    ids: tuple[str, ...]
    ties: tuple[Ties, ...]
    confidence: dict[str, Floats]
    correct: dict[str, Floats]
    entropy: dict[str, Floats]
    greedy: tuple[str, ...]
    greedy_correct: Floats
    beam_correct: Floats | None
    correct_nli: dict[str, Floats] | None
    rules: dict[str, Counter[str]]
    distinct: float
    meanings: float
    refusals: float


def read_columns(
    run: FinishedRun, model: str, dataset: str, candidate: str, number: int = 0, *, draws: int | None = None
) -> Columns:
    """Read the rows of one candidate and run.

    Raises
    ------
    StoreError
        As `FinishedRun.rows`; also if a confidence is no number.
    """
    path = run.samples_path(model, dataset, candidate, number, draws=draws)
    rows = _read(path, run.selections[model, dataset]["sizes"]["test"])
    if rows is None:
        rows = run.rows(model, dataset, candidate, number, draws=draws)
    try:
        return _columns(rows, run.measures)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StoreError(
            f"{path} holds something that is no measured row ({error}): delete it and run `semcal run` again"
        ) from error


class _Needed(TypedDict):
    """What of a row becomes columns."""

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


def _read(path: Path, n: int) -> Rows | None:
    """What is needed of the n rows of a file, in a third of the time that all of it takes.

    None where anything is unusual: the file is then read whole, which tells what is wrong, if something is.
    """
    try:
        lines = path.read_bytes().splitlines()
        return list(map(_NEEDED.validate_json, lines)) if len(lines) == n else None
    except (OSError, ValidationError):
        return None


def _columns(rows: Rows, measures: Sequence[str]) -> Columns:
    samples = [row["samples"] for row in rows]
    draws = Counter(chain.from_iterable(samples))
    return Columns(
        ids=tuple(str(row["id"]) for row in rows),
        ties=tuple(map(ties_of, rows)),
        confidence=_by_measure(rows, "confidence", measures),
        correct=_by_measure(rows, "correct", measures),
        entropy=_by_measure(rows, "semantic_entropy", measures),
        greedy=tuple(row["greedy"] for row in rows),
        greedy_correct=np.array([row["greedy_correct"] for row in rows], dtype=np.float64),
        beam_correct=_flat(rows, "beam_correct"),
        correct_nli=_by_measure(rows, "correct_nli", measures) if "correct_nli" in rows[0] else None,
        rules=_rules([row["rule"] for row in rows], measures),
        distinct=float(np.mean([len(set(texts)) for texts in samples])),
        meanings=float(np.mean([len(row["clusters"]) for row in rows])),
        refusals=sum(count for text, count in draws.items() if _refuses(text)) / draws.total(),
    )


_refuses = lru_cache(maxsize=2**16)(is_refusal)  # runs and candidates share many of their answers


def _by_measure(rows: Rows, key: str, measures: Sequence[str]) -> dict[str, Floats]:
    """NaN for null; [N] a measure."""
    table = np.array([[row[key].get(name) for name in measures] for row in rows], dtype=np.float64)
    return dict(zip(measures, np.ascontiguousarray(table.T)))


def _rules(found: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> dict[str, Counter[str]]:
    """By measure how often each rule decided."""
    return {name: Counter([str(rule.get(name)) for rule in found]) for name in measures}


def _flat(rows: Rows, key: str) -> Floats | None:
    if not all(key in row for row in rows):
        return None
    return np.array([row[key] for row in rows], dtype=np.float64)
