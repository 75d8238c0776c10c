"""Claims about tokens, metrics, correlations and grading, and findings beyond the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.claims.statements import (
    AGREEMENT,
    FAILS,
    FILLER,
    FILLER_TOKENS,
    GRADINGS_AGREE,
    HOLDS,
    INDEPENDENCE,
    LESS_ALIKE,
    MEASURES_DIFFER,
    METRICS_AGREE,
    NEARLY_ALIKE,
    NORMAL_FORMS_CLUSTERS,
    NORMAL_FORMS_SCORES,
    OPEN,
    ORDER_OF_TOKENS,
    Claim,
    absent,
    all_of,
    any_of,
    positive,
    with_enough_questions,
)
from semcal.experiment.analyses.contrasts import contrast_summary, contrast_text, measures_of, pooled_benefit
from semcal.experiment.analyses.grading import ARMS, METRICS, Ablation, wilson
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.experiment.analyses.scores_by_method import SHOWN, mean_correlation
from semcal.experiment.finished import FinishedRun, Pair
from semcal.metrics import Contrast, ace, auroc, ece

Fit = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

# ---- Tokens -----------------------------------------------------------------------------------------------

CONTENT = ("content",)
CHANGES = ("top_changed", "order_changed")


def filler_claim(scores: GridScores) -> Claim:
    """Judge whether ATS overfits filler tokens."""
    run = scores.run
    fits = {method: _fits(run, method, loss="NLL") for method in ("TS", "ATS")}
    if missing := absent(tuple(fits), run.methods) or _unfitted(fits, " by NLL"):
        return FILLER_TOKENS.undecidable(missing)
    by_pair = [_saved_by_ats(run, pair) for pair in run.pairs]
    train = {method: _mean(found, "train_nll") for method, found in fits.items()}
    validation = {method: _mean(found, "validation_nll") for method, found in fits.items()}
    saved = {
        kind: _class_nll(fits["TS"], classes) - _class_nll(fits["ATS"], classes)
        for kind, classes in (("filler", FILLER), ("content", CONTENT))
    }
    semantic = pooled_benefit(scores, "brier", "TS", "ATS")
    if semantic is None:
        return FILLER_TOKENS.undecidable("No question counts, so there is no semantic Brier score.")
    if np.isnan([*train.values(), *saved.values()]).any():
        return FILLER_TOKENS.undecidable("The fits of TS and ATS hold no losses by class of token.")
    parts = [
        _everywhere([one["saved in training"] for one in by_pair]),
        _everywhere([one["saved on filler less content"] for one in by_pair]),
        positive(semantic, parts=3),
    ]
    evidence = {
        "train_nll": train,
        "validation_nll": {name: None if np.isnan(v) else v for name, v in validation.items()},
        "saved_by_ats": saved,
        "by_pair": by_pair,
        "brier_benefit_of_ts": contrast_summary(semantic),
        "parts": parts,
    }
    because = (
        f"Training NLL {train['ATS']:.3f} for ATS and {train['TS']:.3f} for TS (validation "
        f"{validation['ATS']:.3f} and {validation['TS']:.3f}); ATS saves {saved['filler']:+.3f} a filler "
        f"token and {saved['content']:+.3f} a content token; benefit of TS in Brier score "
        f"{semantic.value:+.3f}."
    )
    return FILLER_TOKENS.judged(all_of(parts), because, evidence)


def _saved_by_ats(run: FinishedRun, pair: Pair) -> dict[str, Any]:
    """By how much ATS is below TS in training NLL, and the NLL that it saves on filler less on content."""
    of = {method: _fits(run, method, loss="NLL", pairs=[pair]) for method in ("TS", "ATS")}
    filler, content = (
        _class_nll(of["TS"], classes) - _class_nll(of["ATS"], classes) for classes in (FILLER, CONTENT)
    )
    return {
        "model": pair[0],
        "dataset": pair[1],
        "saved in training": _mean(of["TS"], "train_nll") - _mean(of["ATS"], "train_nll"),
        "saved on filler less content": filler - content,
    }


def _everywhere(differences: Sequence[float]) -> str:
    """Whether all of them are above 0, or not even their mean is."""
    known = [one for one in differences if not np.isnan(one)]
    if known and min(known) > 0:
        return HOLDS
    return FAILS if known and np.mean(known) <= 0 else OPEN


def order_claim(scores: GridScores) -> Claim:
    """Judge which methods change the order of tokens, and what that does to greedy answers."""
    run = scores.run
    fits = {method: _fits(run, method) for method in ("TS", "ATS", "Platt")}
    changed = {
        method: {key: [fit[key] for fit in found if fit.get(key) is not None] for key in CHANGES}
        for method, found in fits.items()
    }
    if missing := absent(tuple(fits), run.methods) or _unfitted(fits):
        return ORDER_OF_TOKENS.undecidable(missing)
    if not all(all(by.values()) for by in changed.values()):
        return ORDER_OF_TOKENS.undecidable(
            "The fits of TS, ATS and Platt do not all say which tokens change."
        )
    most = {method: max(max(values) for values in by.values()) for method, by in changed.items()}
    parts = [
        HOLDS if most["TS"] == 0 else FAILS,
        HOLDS if most["ATS"] == 0 else FAILS,
        HOLDS if most["Platt"] > 0 else FAILS,
    ]
    evidence: dict[str, Any] = {
        method: {key: float(np.mean(values)) for key, values in by.items()} for method, by in changed.items()
    }
    because = "; ".join(
        f"{method}: first token changed at {by['top_changed']:.1%}, order of ten at "
        f"{by['order_changed']:.1%} of positions"
        for method, by in evidence.items()
    )
    accuracy = pooled_benefit(scores, "accuracy", "Platt", "Base") if "Base" in run.methods else None
    if accuracy is not None:
        evidence["accuracy_of_platt_less_base"] = contrast_summary(accuracy)
        because += f". Accuracy under Platt less that under Base: {contrast_text(contrast_summary(accuracy))}"
    return ORDER_OF_TOKENS.judged(all_of(parts), f"{because}.", {**evidence, "parts": parts})


def _unfitted(fits: Mapping[str, Sequence[Fit]], how: str = "") -> str:
    """Which methods have no fit, as a sentence; "" where all have."""
    missing = [method for method, found in fits.items() if not found]
    return f"There is no fit of {' and none of '.join(missing)}{how}." if missing else ""


def _fits(
    run: FinishedRun, method: str, *, loss: str | None = None, pairs: Sequence[Pair] | None = None
) -> list[Fit]:
    return [
        fit
        for pair in (run.pairs if pairs is None else pairs)
        for fit in run.selections[pair].get("fits", [])
        if fit["method"] == method and loss in (None, fit["loss"])
    ]


def _mean(fits: Sequence[Fit], key: str) -> float:
    known = [fit[key] for fit in fits if fit.get(key) is not None]
    return float(np.mean(known)) if known else float("nan")


def _class_nll(fits: Sequence[Fit], names: Sequence[str]) -> float:
    """Mean NLL of the tokens of some classes, mean over fits."""
    found = []
    for fit in fits:
        classes = [one for name, one in (fit.get("classes") or {}).items() if name in names]
        classes = [one for one in classes if one["share"] and one["nll"] is not None]
        if classes:
            shares = [one["share"] for one in classes]
            found.append(np.average([one["nll"] for one in classes], weights=shares))
    return float(np.mean(found)) if found else float("nan")


# ---- Metrics ----------------------------------------------------------------------------------------------

#: (confidence, correct) of the paper's two examples.
EXAMPLES = {
    "calibrated, no discrimination": ([0.5, 0.5], [0, 1]),
    "discriminating, not calibrated": ([0.9, 0.99], [0, 1]),
}


def metrics_claim(scores: GridScores, volatility: Rows) -> Claim:
    """Judge from the rows of `volatility` whether metrics rank the methods alike."""
    known = [row for row in volatility if not np.isnan(row["mean"])]
    if len(scores.run.methods) < 3:
        few = "one method" if len(scores.run.methods) == 1 else "two methods"
        return METRICS_AGREE.undecidable(f"The run has {few}; ranking takes three.")
    if not known:
        return METRICS_AGREE.undecidable("No measure gives every method a confidence, so none can be ranked.")
    half = known[0]["chance"] / 2
    means = {
        " to ".join(metric.upper() for metric in metrics): float(
            np.mean([row["mean"] for row in known if row["metrics"] == metrics])
        )
        for metrics in ([*pair] for pair in dict.fromkeys(tuple(row["metrics"]) for row in known))
    }
    parts = [HOLDS if mean < half else FAILS for mean in means.values()]
    evidence = {"mean_volatility": means, "half_of_chance": half, "parts": parts}
    shown = ", ".join(f"{mean:.2f} from {name}" for name, mean in means.items())
    because = f"Mean change of rank {shown}; unrelated rankings would change by {2 * half:.2f}."
    return METRICS_AGREE.judged(all_of(parts), because, evidence)


def independence_claim(scores: GridScores) -> Claim:
    """Compute the two examples, and how ACE and AUROC go together in the run."""
    found = {
        name: {"ece": ece(*example), "ace": ace(*example), "auroc": auroc(*example)}
        for name, example in EXAMPLES.items()
    }
    calm, sharp = found.values()
    parts = [
        HOLDS if calm["ece"] < 1e-12 and calm["auroc"] == 0.5 else FAILS,
        HOLDS if sharp["auroc"] == 1.0 and sharp["ece"] > 0.4 else FAILS,
    ]
    correlation = _correlation_of_metrics(scores)
    in_run = (
        "In this run the correlation of ACE and AUROC is undefined: it takes three cells that differ."
        if correlation is None
        else "Within models and data sets of this run the correlation of ACE and AUROC is "
        f"{correlation:+.2f}."
    )
    because = (
        f"Examples: ECE {calm['ece']:.3f} with AUROC {calm['auroc']:.1f}, ECE {sharp['ece']:.3f} with AUROC "
        f"{sharp['auroc']:.1f}. {in_run}"
    )
    return INDEPENDENCE.judged(all_of(parts), because, {"examples": found, "correlation": correlation})


def _correlation_of_metrics(scores: GridScores) -> float | None:
    """Pearson correlation of ACE and AUROC over methods and measures, each centred within its pair."""
    parts = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        if len(pair.arrays) < 2 or not measures_of(pair, scores):
            continue
        table = np.array(
            [[by_run[metric].mean() for by_run in pair.by_run.values()] for metric in ("ace", "auroc")]
        )
        parts.append(table - table.mean(axis=1, keepdims=True))
    both = np.concatenate(parts, axis=1) if parts else np.zeros((2, 0))
    both = both[:, ~np.isnan(both).any(axis=0)]
    if both.shape[1] < 3 or not both.std(axis=1).all():
        return None
    return float(np.corrcoef(both)[0, 1])


# ---- Measures and gradings --------------------------------------------------------------------------------


def correlations_claim(scores: GridScores) -> Claim:
    """Judge how measures correlate, on the (model, data set) where all of them vary under each method."""
    known = [
        [one for name in SHOWN if (one := mean_correlation(scores.pair(*pair), name)) is not None]
        for pair in scores.run.pairs
    ]
    whole = [parts for parts in known if len(parts) == len(SHOWN)]
    if not whole:
        constant = (
            "On no model and data set do two measures and more vary over questions under each of Base, SE "
            "and TS."
        )
        return MEASURES_DIFFER.undecidable(absent(SHOWN, scores.run.methods) or constant)
    return judged_correlations({name: Contrast.mean(of) for name, of in zip(SHOWN, zip(*whole))})


def judged_correlations(means: Mapping[str, Contrast]) -> Claim:
    """Judge from the mean correlation under each method, with its resamples."""
    falls = {other: means[other] - means["TS"] for other in ("Base", "SE")}
    parts = [
        positive(Contrast(one.value - limit, one.resampled - limit), margin=0.0, parts=4)
        for other, fall in falls.items()
        for one, limit in ((means[other], NEARLY_ALIKE), (fall, LESS_ALIKE))
    ]
    evidence: dict[str, Any] = {
        "mean": {name: contrast_summary(one) for name, one in means.items()},
        "less under TS": {other: contrast_summary(one) for other, one in falls.items()},
        "parts": parts,
    }
    because = (
        f"Mean correlation {', '.join(f'{one.value:.2f} under {name}' for name, one in means.items())}; less "
        "under TS "
        + ", ".join(
            f"than under {name} by {contrast_text(one)}" for name, one in evidence["less under TS"].items()
        )
    )
    return MEASURES_DIFFER.judged(all_of(parts), f"{because}.", evidence)


def grading_claim(rows: Rows) -> Claim:
    """Judge from the rows of `agreement` whether gradings agree."""
    known = [row for row in rows if row["n"]]
    if not known:
        return GRADINGS_AGREE.undecidable("No answers of Base were graded by entailment as well.")
    pairs = {(row["model"], row["dataset"]): row["n"] for row in known}
    by_pair = {
        pair: float(np.mean([row["agreement"] for row in known if (row["model"], row["dataset"]) == pair]))
        for pair in pairs
    }
    share = float(np.average(list(by_pair.values()), weights=list(pairs.values())))
    largest = {name: max(n for (_, one), n in pairs.items() if one == name) for _, name in pairs}
    low, high = wilson(share, sum(largest.values()))
    verdict = HOLDS if low > AGREEMENT else FAILS if high < AGREEMENT else OPEN
    evidence = {
        "agreement": share,
        "interval": [low, high],
        "by_pair": [{"model": m, "dataset": d, "agreement": value} for (m, d), value in by_pair.items()],
    }
    because = f"They agree on {share:.1%} [{low:.1%}, {high:.1%}] of answers."
    return GRADINGS_AGREE.judged(verdict, because, evidence)


# ---- Beyond the paper -------------------------------------------------------------------------------------


def findings(found: Sequence[Ablation]) -> list[Claim]:
    """Judge what normal forms are good for; nothing where no answers were clustered in both ways."""
    if not found:
        return []
    questions = min(one.n for one in found)
    return [
        with_enough_questions(one, questions) for one in (_clusters_finding(found), _scores_finding(found))
    ]


def _clusters_finding(found: Sequence[Ablation]) -> Claim:
    labelled = [one for one in found if one.fewer_errors() is not None]
    saved = _pooled([one.fewer_errors() for one in labelled])
    if saved is None:
        return NORMAL_FORMS_CLUSTERS.undecidable("Of no data set of the run are pairs of answers labelled.")
    errors = {arm: sum(int(one.pairs[arm].errors.sum()) for one in labelled if one.pairs) for arm in ARMS}
    pairs = sum(int(one.pairs["with"].pairs.sum()) for one in labelled if one.pairs)
    evidence = {"pairs": pairs, "errors": errors, "saved": contrast_summary(saved)}
    because = (
        f"Of {pairs} labelled pairs {errors['without']} stand wrongly without and {errors['with']} with "
        f"them; saved per pair, mean over models and data sets: {contrast_text(contrast_summary(saved))}. "
        f"Clusters differ for {np.mean([one.changed for one in found]):.1%} of the questions."
    )
    return NORMAL_FORMS_CLUSTERS.judged(positive(saved), because, evidence)


def _scores_finding(found: Sequence[Ablation]) -> Claim:
    benefits = {
        metric: _pooled([one.benefit(metric, measure) for one in found for measure in one.measures()])
        for metric in METRICS
    }
    known = {metric: one for metric, one in benefits.items() if one is not None}
    if not known:
        return NORMAL_FORMS_SCORES.undecidable("No measure is defined both ways.")
    evidence = {metric: contrast_summary(one) for metric, one in known.items()}
    words = {"accuracy": "accuracy", "ace": "ACE", "auroc": "AUROC"}
    better = "; ".join(f"{words[metric]} {contrast_text(one)}" for metric, one in evidence.items())
    return NORMAL_FORMS_SCORES.judged(any_of(list(known.values())), f"Better by: {better}.", evidence)


def _pooled(parts: Sequence[Contrast | None]) -> Contrast | None:
    """The mean of those that are defined."""
    known = [one for one in parts if one is not None and not np.isnan(one.value)]
    return Contrast.mean(known) if known else None
