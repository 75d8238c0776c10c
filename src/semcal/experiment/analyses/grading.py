"""Grading by words against by entailment (table 13), the rules one by one, and what normal forms change.

Beyond the paper: what reading numbers and dates does to clusters, and to the scores that follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.experiment.analyses.columns import Columns
from semcal.experiment.analyses.contrasts import contrast_summary
from semcal.experiment.analyses.grid_scores import GridScores, PairScores
from semcal.experiment.finished import FinishedRun
from semcal.metrics import Contrast
from semcal.metrics.frequencies import draw_counts
from semcal.metrics.intervals import wilson_interval
from semcal.qa.grading import RULES, RuleGrader
from semcal.qa.questions import several, ties_of
from semcal.registry import Registry

Rows = Sequence[Mapping[str, Any]]
Flags = NDArray[np.bool_]
#: The rules in the order in which they are tried, the optional one last.
RULES_IN_ORDER = (*RULES, "ROUGE-L")


def agreement(scores: GridScores) -> list[dict[str, Any]]:
    """Compare the two gradings of Base's selected answers in run 0.

    {model, dataset, measure, n, agreement, interval, lexical_only, nli_only}: the share of questions on which
    both agree with its 95 % interval (Wilson), and the shares that one alone accepts. Empty where answers
    were not graded by entailment.
    """
    return [
        {"model": model, "dataset": dataset, "measure": measure, **_agreement(found, measure)}
        for model, dataset in scores.run.pairs
        for found in _base(scores, model, dataset)
        if found.correct_nli is not None
        for measure in scores.run.measures
    ]


def deciding_rules(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, measure, n, rules}: how often each rule decided on Base's answers in run 0."""
    return [
        {"model": model, "dataset": dataset, "measure": measure}
        | {"n": found.rules[measure].total(), "rules": dict(sorted(found.rules[measure].items()))}
        for model, dataset in scores.run.pairs
        for found in _base(scores, model, dataset)
        for measure in scores.run.measures
    ]


def _base(scores: GridScores, model: str, dataset: str) -> list[Columns]:
    """Base's answers in run 0; none where Base was not run."""
    if "Base" not in scores.run.methods:
        return []
    chosen = scores.run.choice(model, dataset, "Base", scores.run.measures[0])
    return [scores.columns(model, dataset, chosen["candidate"])]


def _agreement(columns: Columns, measure: str) -> dict[str, Any]:
    assert columns.correct_nli is not None
    lexical, nli = columns.correct[measure], columns.correct_nli[measure]
    known = ~np.isnan(lexical) & ~np.isnan(nli)
    n = int(known.sum())
    if not n:
        return {"n": 0, "agreement": None, "interval": None, "lexical_only": None, "nli_only": None}
    lexical, nli = lexical[known] == 1, nli[known] == 1
    share = float(np.mean(lexical == nli))
    return {
        "n": n,
        "agreement": share,
        "interval": list(wilson(share, n)),
        "lexical_only": float(np.mean(lexical & ~nli)),
        "nli_only": float(np.mean(nli & ~lexical)),
    }


def wilson(share: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share.

    >>> low, high = wilson(0.91, 500)
    >>> round(low, 4), round(high, 4)
    (0.8818, 0.9321)
    """
    deviation = math.sqrt(max(share * (1 - share), 0.0))  # a mean of shares may be 1 + 2e-16
    return wilson_interval(share, deviation / math.sqrt(n), n, level)


def rules_alone(run: FinishedRun, measure: str = "E-SC") -> list[dict[str, Any]]:
    """Grade Base's selected answers of run 0 by every rule alone, and by each with those before it.

    All members of the selected meaning are graded, not four of them, with the rules' own thresholds.

    {model, dataset, rule, n, alone, up_to, against_nli}: the share of answers that the rule accepts, and that
    it and the rules before it accept; where answers were graded by entailment as well, of the rule alone
    {false_positives, false_negatives}, shares of all answers, with entailment as the truth. Empty without
    Base.
    """
    if "Base" not in run.methods:
        return []
    found = []
    for model, dataset in run.pairs:
        candidate = run.choice(model, dataset, "Base", measure)["candidate"]
        rows = [row for row in run.rows(model, dataset, candidate) if row["top_cluster"][measure] is not None]
        so_far = np.zeros(len(rows), dtype=np.bool_)
        for rule in RULES_IN_ORDER:
            accepted = _accepted(rows, measure, rule)
            so_far = so_far | accepted
            found.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "rule": rule,
                    "n": len(rows),
                    "alone": float(accepted.mean()) if rows else None,
                    "up_to": float(so_far.mean()) if rows else None,
                    "against_nli": _against_nli(rows, measure, accepted),
                }
            )
    return found


def _accepted(rows: Rows, measure: str, rule: str) -> Flags:
    """Which answers (N,) a rule accepts by itself."""
    grader = RuleGrader(rules=(rule,))
    verdicts = []
    for row in rows:
        members = [row["samples"][i] for i in row["clusters"][row["top_cluster"][measure]]]
        verdicts.append(grader.grade(row["question"], members, row["answers"]).correct)
    return np.array(verdicts, dtype=np.bool_)


def _against_nli(rows: Rows, measure: str, accepted: Flags) -> dict[str, float] | None:
    if not rows or not all("correct_nli" in row for row in rows):
        return None
    truth = np.array([row["correct_nli"][measure] for row in rows], dtype=np.bool_)
    return {
        "false_positives": float(np.mean(accepted & ~truth)),
        "false_negatives": float(np.mean(truth & ~accepted)),
    }


Counts = NDArray[np.int64]
#: (question, an answer, another) → whether they mean the same; None where that is not known.
SameMeaning = Callable[[str, str, str], bool | None]
#: With normal forms, and with text forms in their place.
ARMS = ("with", "without")
#: What is compared, and whether more of it is better.
METRICS = {"accuracy": True, "ace": False, "auroc": True}
#: Resamples of the questions, at most.
RESAMPLES = 400

_ATLAS = ("atlas-trivia", "atlas-rare", "atlas-reading")
_LABELS = Registry("labelled pairs", dict.fromkeys(_ATLAS, "semcal.demo.meanings:same_meaning"))


@dataclass(frozen=True, eq=False)
class PairErrors:
    """Pairs of distinct answers to N questions whose relation is labelled, and what clusters make of them."""

    same: Counts  # (N,) pairs that mean the same
    different: Counts  # (N,) pairs that do not
    split: Counts  # (N,) those of `same` in two clusters
    merged: Counts  # (N,) those of `different` in one cluster

    @property
    def pairs(self) -> Counts:
        """All labelled pairs, (N,)."""
        return self.same + self.different

    @property
    def errors(self) -> Counts:
        """All pairs that are clustered wrongly, (N,)."""
        return self.split + self.merged


def labels_of(source: str) -> SameMeaning | None:
    """The labels of a source: which answers to its questions mean the same; None where there are none.

    Lists of references are no labels: they hold what counts as right, be it one meaning or several.
    """
    found: SameMeaning | None = _LABELS.load(source) if source in _LABELS.names() else None
    return found


def pair_errors(rows: Rows, same_meaning: SameMeaning) -> PairErrors:
    """Count the labelled pairs of rows (`question`, `samples`, `clusters`), and those clustered wrongly."""
    counts = np.array([_count_pairs(row, same_meaning) for row in rows], dtype=np.int64).reshape(-1, 4)
    return PairErrors(*counts.T)


def _count_pairs(row: Mapping[str, Any], same_meaning: SameMeaning) -> tuple[int, int, int, int]:
    cluster = {row["samples"][i]: number for number, of in enumerate(row["clusters"]) for i in of}
    found = [
        (same, cluster[a] == cluster[b])
        for a, b in combinations(cluster, 2)
        for same in [same_meaning(row["question"], a, b)]
        if same is not None
    ]
    return (
        sum(same for same, _ in found),
        sum(not same for same, _ in found),
        found.count((True, False)),
        found.count((False, True)),
    )


@dataclass(frozen=True, eq=False)
class Ablation:
    """One model on one data set, the answers of one candidate in run 0 clustered in two ways."""

    model: str
    dataset: str
    candidate: str
    n: int  # questions
    changed: float  # share of questions whose clusters differ
    meanings: Mapping[str, float]  # per question, by arm
    pairs: Mapping[str, PairErrors] | None  # by arm; None where the data set has no labelled pairs
    scores: PairScores  # by (arm, measure)
    seed: tuple[int, ...]  # of the resamples, which models share
    groups: NDArray[np.intp] | None = None  # as in `PairScores`, of all questions

    @property
    def names(self) -> dict[str, str]:
        """The first fields of its rows of results."""
        return {"model": self.model, "dataset": self.dataset, "candidate": self.candidate}

    def fewer_errors(self) -> Contrast | None:
        """Errors per labelled pair without normal forms, less those with them; None without such pairs."""
        if self.pairs is None or not self.pairs["with"].pairs.any():
            return None
        pairs = self.pairs["with"].pairs
        saved = self.pairs["without"].errors - self.pairs["with"].errors
        times, rng = self.scores.options.resamples, np.random.default_rng(self.seed)
        counts = draw_counts(len(saved), times, rng, self.groups).T
        total = pairs @ counts
        share = np.divide(saved @ counts, total, out=np.full(times, np.nan), where=total > 0)
        return Contrast(float(saved.sum() / pairs.sum()), share)

    def benefit(self, metric: str, measure: str) -> Contrast:
        """How much better a metric is with normal forms."""
        with_, without = (self.scores.resampled.contrast((arm, measure), metric) for arm in ARMS)
        return (with_ - without) * (1.0 if METRICS[metric] else -1.0)

    def measures(self) -> list[str]:
        """The measures that are defined."""
        return [measure for arm, measure in self.scores.arrays if arm == "with"]


def ablations(
    scores: GridScores, labels: Callable[[str], SameMeaning | None] = labels_of
) -> Iterator[Ablation]:
    """Every (model, data set) whose answers were clustered twice; `labels` maps a source to its labels."""
    run = scores.run
    for model, dataset in run.pairs:
        found = run.selections[model, dataset].get("plain")
        if not found:
            continue
        names = {"with": found["of"], "without": found["candidate"]}
        rows = {arm: run.rows(model, dataset, name) for arm, name in names.items()}
        source = next(one["source"] for one in run.settings["datasets"] if one["name"] == dataset)
        same_meaning = labels(source)
        yield Ablation(
            model=model,
            dataset=dataset,
            candidate=found["of"],
            n=len(rows["with"]),
            changed=_changed(rows),
            meanings={arm: float(np.mean([len(row["clusters"]) for row in of])) for arm, of in rows.items()},
            pairs=same_meaning and {arm: pair_errors(of, same_meaning) for arm, of in rows.items()},
            scores=scores.scored(
                model,
                dataset,
                {(arm, measure): name for arm, name in names.items() for measure in run.measures},
                resamples=RESAMPLES,
                bootstrapped=tuple(METRICS),
                runs=1,
            ),
            seed=(run.seed, run.datasets.index(dataset)),
            groups=several(map(ties_of, rows["with"])),
        )


def _changed(rows: Mapping[str, Rows]) -> float:
    both = zip(*(rows[arm] for arm in ARMS), strict=True)
    return float(np.mean([a["clusters"] != b["clusters"] for a, b in both]))


def ablation_clusters(found: Sequence[Ablation]) -> list[dict[str, Any]]:
    """Compare clusters and labelled pairs with and without normal forms.

    {model, dataset, candidate, n, changed, meanings, pairs, fewer_errors}: the share of questions whose
    clusters differ; meanings per question by arm; {same, different, split, merged}, labelled pairs of
    distinct answers, and by arm how many of them are clustered wrongly, null without labels; errors per
    labelled pair that are saved, with interval and p.
    """
    return [
        {
            **one.names,
            "n": one.n,
            "changed": one.changed,
            "meanings": dict(one.meanings),
            "pairs": None if one.pairs is None else _pair_counts(one.pairs),
            "fewer_errors": None if (saved := one.fewer_errors()) is None else contrast_summary(saved),
        }
        for one in found
    ]


def _pair_counts(pairs: Mapping[str, PairErrors]) -> dict[str, Any]:
    return {
        "same": int(pairs["with"].same.sum()),
        "different": int(pairs["with"].different.sum()),
        "split": {arm: int(of.split.sum()) for arm, of in pairs.items()},
        "merged": {arm: int(of.merged.sum()) for arm, of in pairs.items()},
    }


def ablation_scores(found: Sequence[Ablation]) -> list[dict[str, Any]]:
    """{model, dataset, candidate, measure, metric, with, without, benefit}: run 0, by `METRICS`.

    The benefit is how much better the metric is with normal forms, paired by question, with its interval and
    p; null where the metric is undefined. Of each metric a row without a measure holds the means over them.
    """
    return [
        {**one.names, "measure": label, "metric": metric, **_by_arm(one, metric, measures)}
        for one in found
        for label, measures in [*((name, [name]) for name in one.measures()), (None, one.measures())]
        for metric in METRICS
    ]


def _by_arm(one: Ablation, metric: str, measures: Sequence[str]) -> dict[str, Any]:
    """The means over some measures of a metric by arm, and of its benefit; null where none is defined."""
    by_run = one.scores.by_run
    gains = {name: gain for name in measures if not np.isnan((gain := one.benefit(metric, name)).value)}
    if not gains:
        return {**dict.fromkeys(ARMS), "benefit": None}
    means = {arm: float(np.mean([by_run[arm, name][metric][0] for name in gains])) for arm in ARMS}
    return {**means, "benefit": contrast_summary(Contrast.mean(gains.values()))}
