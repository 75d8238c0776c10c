"""What every analysis starts from: confidence, correctness and entropy of each method and measure.

Methods and measures are compared on the same questions: one that is null under some method or measure counts
for none of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.errors import StoreError, UndefinedWarning
from semcal.experiment.analyses.columns import Columns, read_columns
from semcal.experiment.finished import FinishedRun, Pair
from semcal.metrics import CommonResamples, Interval

__all__ = ["BOOTSTRAPPED", "Cell", "GridScores", "PairScores", "over_runs"]

Floats = NDArray[np.float64]
#: Metrics that get an interval over questions (the bin-free ones would take minutes).
BOOTSTRAPPED = ("accuracy", "ece", "ace", "brier", "auroc", "aurac")


@dataclass(frozen=True, eq=False)
class Cell:
    """One method under one measure: R runs on the N questions that count.

    Attributes
    ----------
    confidence, correct, entropy, greedy_correct : ndarray of float64, shape (R, N)
        Correctness is 0 or 1: of the selected answer, and of the greedy answer of the candidate.
    """

    confidence: Floats
    correct: Floats
    entropy: Floats
    greedy_correct: Floats


@dataclass(frozen=True, eq=False)
class PairScores:
    """All methods and measures of one model on one data set.

    Attributes
    ----------
    cells : dict of (method, measure) to Cell
    n : int
        Questions that count.
    undefined : int
        Questions that do not, because a measure is null under some method.
    bins, resamples, seed
        Of the metrics and the bootstrap.
    """

    cells: dict[tuple[str, str], Cell]
    n: int
    undefined: int
    bins: int
    resamples: int
    seed: tuple[int, int]

    @cached_property
    def by_run(self) -> dict[tuple[str, str], dict[str, Floats]]:
        """Every metric of every run: (method, measure) → metric → [R]."""
        if not self.cells:
            return {}
        confidence = np.concatenate([cell.confidence for cell in self.cells.values()])
        correct = np.concatenate([cell.correct for cell in self.cells.values()])
        found = metrics.summaries(confidence, correct, bins=self.bins)
        runs = len(confidence) // len(self.cells)
        return {
            key: {name: values[i * runs : (i + 1) * runs] for name, values in found.items()}
            for i, key in enumerate(self.cells)
        }

    @cached_property
    def resampled(self) -> CommonResamples[tuple[str, str]]:
        """The metrics of `BOOTSTRAPPED` on common resamples of the questions."""
        return metrics.common_resamples(
            {key: (cell.confidence, cell.correct) for key, cell in self.cells.items()},
            metrics=BOOTSTRAPPED,
            bins=self.bins,
            resamples=self.resamples,
            seed=self.seed,
        )

    @cached_property
    def entropies(self) -> CommonResamples[tuple[str, str, str]]:
        """AUROC of −entropy, of the selected ("SE_conf") and of the greedy answer ("SE_vanilla")."""
        return metrics.common_resamples(
            {
                (*key, variant): (-cell.entropy, correct)
                for key, cell in self.cells.items()
                for variant, correct in (("SE_conf", cell.correct), ("SE_vanilla", cell.greedy_correct))
            },
            metrics=("auroc",),
            resamples=self.resamples,
            seed=self.seed,
        )


class GridScores:
    """The scores of a finished run; files are read, and resamples drawn, when they are first asked for.

    Parameters
    ----------
    run : FinishedRun
    """

    def __init__(self, run: FinishedRun) -> None:
        self.run = run
        self._columns: dict[tuple[Any, ...], Columns] = {}
        self._pairs: dict[Pair, PairScores] = {}

    def columns(
        self, model: str, dataset: str, candidate: str, number: int = 0, *, draws: int | None = None
    ) -> Columns:
        """The rows of one candidate and run as arrays."""
        key = (model, dataset, candidate, number, draws)
        if key not in self._columns:
            self._columns[key] = read_columns(self.run, model, dataset, candidate, number=number, draws=draws)
        return self._columns[key]

    def pair(self, model: str, dataset: str) -> PairScores:
        """The scores of one model on one data set."""
        if (model, dataset) not in self._pairs:
            self._pairs[model, dataset] = self._scored(model, dataset)
        return self._pairs[model, dataset]

    def runs_of(self, model: str, dataset: str, candidate: str, *, draws: int | None = None) -> list[Columns]:
        """The columns of every run that there is at a number of draws."""
        numbers = [
            number
            for number in range(self.run.runs)
            if draws in (None, self.run.m)
            or self.run.samples_path(model, dataset, candidate, number, draws=draws).exists()
        ]
        return [self.columns(model, dataset, candidate, number, draws=draws) for number in numbers]

    def scored(
        self,
        model: str,
        dataset: str,
        candidates: dict[tuple[str, str], str],
        *,
        draws: int | None = None,
        resamples: int | None = None,
    ) -> PairScores:
        """Score some (label, measure) → candidate on the questions that all have in common."""
        columns = {key: self.runs_of(model, dataset, name, draws=draws) for key, name in candidates.items()}
        _check_same_questions(self.run, model, dataset, list(columns.values()))
        stacked = {key: _stacked(found, key[1]) for key, found in columns.items()}
        stacked = {
            key: cell for key, cell in stacked.items() if not _null(cell).all()
        }  # a measure without likelihoods
        null = np.any([_null(cell) for cell in stacked.values()], axis=0) if stacked else np.zeros(0, bool)
        cells = {
            key: Cell(*(part[:, ~null] for part in (c.confidence, c.correct, c.entropy, c.greedy_correct)))
            for key, c in stacked.items()
        }
        return PairScores(
            cells=cells if (~null).any() else {},
            n=int((~null).sum()),
            undefined=int(null.sum()),
            bins=self.run.bins,
            resamples=resamples or self.run.resamples,
            seed=(self.run.seed, self.run.datasets.index(dataset)),
        )

    def _scored(self, model: str, dataset: str) -> PairScores:
        chosen = {
            (method, measure): self.run.choice(model, dataset, method, measure)["candidate"]
            for method in self.run.methods
            for measure in self.run.measures
        }
        return self.scored(model, dataset, chosen)


def over_runs(values: Floats | Sequence[float], interval: Interval | None = None) -> dict[str, Any]:
    """Mean and standard error over runs, and beside them the interval over questions.

    Returns
    -------
    dict
        {mean, se, runs, interval}: `se` is null for one run, `interval` [low, high] where one was computed,
        all null where the metric is undefined in some run.

    Examples
    --------
    >>> over_runs([0.80, 0.82, 0.81, 0.83])
    {'mean': 0.815, 'se': 0.0064549..., 'runs': [0.8, 0.82, 0.81, 0.83], 'interval': None}
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        found = metrics.mean_and_standard_error(values)
    ends = None if interval is None else [_null_if_nan(interval.low), _null_if_nan(interval.high)]
    return {
        "mean": _null_if_nan(found.mean),
        "se": _null_if_nan(found.standard_error),
        "runs": [_null_if_nan(float(value)) for value in values],
        "interval": None if ends is None or None in ends else ends,
    }


def _null_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value


def _stacked(runs: Sequence[Columns], measure: str) -> Cell:
    return Cell(
        np.stack([one.confidence[measure] for one in runs]),
        np.stack([one.correct[measure] for one in runs]),
        np.stack([one.entropy[measure] for one in runs]),
        np.stack([one.greedy_correct for one in runs]),
    )


def _null(cell: Cell) -> NDArray[np.bool_]:
    """Questions (N,) for which something is null in some run."""
    parts = np.array([cell.confidence, cell.correct, cell.entropy])
    return np.asarray(np.isnan(parts).any(axis=(0, 1)))


def _check_same_questions(
    run: FinishedRun, model: str, dataset: str, columns: Sequence[Sequence[Columns]]
) -> None:
    if len({one.ids for runs in columns for one in runs}) > 1:
        raise StoreError(
            f"the sample files of {model} on {dataset} in {run.folder} hold different questions, or the same "
            "in another order: delete them and run `semcal run` again"
        )
