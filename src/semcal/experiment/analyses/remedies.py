"""Beyond the paper: what reading numbers and dates does to clusters, and to what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.contrasts import tested
from semcal.experiment.analyses.labelled_pairs import PairErrors, SameMeaning, labels_of, pair_errors
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import Contrast
from semcal.metrics.resamples import draw_counts
from semcal.qa.questions import several, ties_of

__all__ = ["ARMS", "METRICS", "Compared", "compared", "remedies", "remedy_scores"]

Rows = Sequence[Mapping[str, Any]]
#: With normal forms, and with text forms in their place.
ARMS = ("with", "without")
#: What is compared, and whether more of it is better.
METRICS = {"accuracy": True, "ace": False, "auroc": True}
#: Resamples of the questions, at most.
RESAMPLES = 400


@dataclass(frozen=True, eq=False)
class Compared:
    """One model on one data set, the answers of one candidate in run 0 clustered in two ways.

    Attributes
    ----------
    model, dataset, candidate : str
    n : int
        Questions.
    changed : float
        The share of questions whose clusters differ.
    meanings : mapping of str to float
        By arm, per question.
    pairs : mapping of str to PairErrors, or None
        By arm; None where the data set has no labelled pairs.
    scores : PairScores
        By (arm, measure).
    seed : tuple of int
        Of the resamples, which models share.
    groups : ndarray of int, shape (n,), or None
        The group of each question, as in `PairScores`.
    """

    model: str
    dataset: str
    candidate: str
    n: int
    changed: float
    meanings: Mapping[str, float]
    pairs: Mapping[str, PairErrors] | None
    scores: PairScores
    seed: tuple[int, ...]
    groups: NDArray[np.intp] | None = None

    @property
    def names(self) -> dict[str, str]:
        """What its rows of results begin with."""
        return {"model": self.model, "dataset": self.dataset, "candidate": self.candidate}

    def fewer_errors(self) -> Contrast | None:
        """Errors per labelled pair without normal forms, less those with them; None without such pairs."""
        if self.pairs is None or not self.pairs["with"].pairs.any():
            return None
        pairs = self.pairs["with"].pairs
        saved = self.pairs["without"].errors - self.pairs["with"].errors
        times, rng = self.scores.rules.resamples, np.random.default_rng(self.seed)
        counts = draw_counts(len(saved), times, rng, self.groups)
        total = pairs @ counts
        share = np.divide(saved @ counts, total, out=np.full(times, np.nan), where=total > 0)
        return Contrast(float(saved.sum() / pairs.sum()), share)

    def benefit(self, metric: str, measure: str) -> Contrast:
        """How much better a metric is with normal forms."""
        with_, without = (self.scores.resampled.contrast((arm, measure), metric) for arm in ARMS)
        return (with_ - without) * (1.0 if METRICS[metric] else -1.0)

    def measures(self) -> list[str]:
        """The measures that are defined."""
        return [measure for arm, measure in self.scores.cells if arm == "with"]


def compared(
    scores: GridScores, labels: Callable[[str], SameMeaning | None] = labels_of
) -> Iterator[Compared]:
    """Every (model, data set) whose answers were clustered twice; `labels` maps a source to its labels."""
    run = scores.run
    for model, dataset in run.pairs:
        found = run.selections[model, dataset].get("plain")
        if not found:
            continue
        names = {"with": found["of"], "without": found["candidate"]}
        rows = {arm: run.rows(model, dataset, name) for arm, name in names.items()}
        source = next(one["source"] for one in run.settings["datasets"] if one["name"] == dataset)
        knows = labels(source)
        yield Compared(
            model,
            dataset,
            found["of"],
            len(rows["with"]),
            _changed(rows),
            {arm: _meanings(of) for arm, of in rows.items()},
            None if knows is None else {arm: pair_errors(of, knows) for arm, of in rows.items()},
            scores.scored(
                model,
                dataset,
                {(arm, measure): name for arm, name in names.items() for measure in run.measures},
                resamples=RESAMPLES,
                bootstrapped=tuple(METRICS),
                runs=1,
            ),
            (run.seed, run.datasets.index(dataset)),
            several(map(ties_of, rows["with"])),
        )


def remedies(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """Clusters and labelled pairs with and without normal forms.

    Returns
    -------
    list of dict
        {model, dataset, candidate, n, changed, meanings, pairs, fewer_errors}: the share of questions whose
        clusters differ; meanings per question by arm; {same, different, split, merged}, labelled pairs of
        distinct answers, and by arm how many of them stand wrongly, null without labels; errors per labelled
        pair that are saved, with interval and p.
    """
    return [
        {
            **one.names,
            "n": one.n,
            "changed": one.changed,
            "meanings": dict(one.meanings),
            "pairs": _pairs(one),
            "fewer_errors": None if (saved := one.fewer_errors()) is None else tested(saved),
        }
        for one in found
    ]


def remedy_scores(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """{model, dataset, candidate, measure, metric, with, without, benefit}: run 0, by `METRICS`.

    The benefit is how much better the metric is with normal forms, paired by question, with its interval and
    p; null where the metric is undefined. Of each metric a row without a measure holds the means over them.
    """
    return [
        {
            **one.names,
            "measure": label,
            "metric": metric,
            **_scored(one, metric, measures),
        }
        for one in found
        for label, measures in [*((name, [name]) for name in one.measures()), (None, one.measures())]
        for metric in METRICS
    ]


def _scored(one: Compared, metric: str, measures: Sequence[str]) -> dict[str, Any]:
    """The means over some measures of a metric by arm, and of its benefit; null where none is defined."""
    by_run = one.scores.by_run
    gains = {name: gain for name in measures if not np.isnan((gain := one.benefit(metric, name)).value)}
    if not gains:
        return {**dict.fromkeys(ARMS), "benefit": None}
    means = {arm: float(np.mean([by_run[arm, name][metric][0] for name in gains])) for arm in ARMS}
    return {**means, "benefit": tested(Contrast.mean(gains.values()))}


def _changed(rows: Mapping[str, Rows]) -> float:
    both = zip(*(rows[arm] for arm in ARMS), strict=True)
    return float(np.mean([a["clusters"] != b["clusters"] for a, b in both]))


def _meanings(rows: Rows) -> float:
    return float(np.mean([len(row["clusters"]) for row in rows]))


def _pairs(one: Compared) -> dict[str, Any] | None:
    if one.pairs is None:
        return None
    known = one.pairs["with"]
    return {
        "same": int(known.same.sum()),
        "different": int(known.different.sum()),
        "split": {arm: int(of.split.sum()) for arm, of in one.pairs.items()},
        "merged": {arm: int(of.merged.sum()) for arm, of in one.pairs.items()},
    }
