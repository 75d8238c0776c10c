"""Tables beyond the paper's: claims, paired tests, transfer, fits, grading, tokens and normal forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from semcal.report.against_base import (
    METRICS,
    against_base_table,
    difference_cell,
    flagged,
    less_accurate_note,
)
from semcal.report.paper_tables import fitted_temperature
from semcal.report.tables import (
    Cell,
    Field,
    Row,
    Table,
    flat_table,
    in_order,
    larger_is_better,
    mark,
    means_of,
    measures_in_order,
    metric_title,
    number,
    pivot,
)

Results = Mapping[str, Any]
QUANTITIES = {
    "ace": "ACE",
    "brier": "Brier score",
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "SE_conf": "AUROC of SE_conf",
    "SE_vanilla": "AUROC of SE_vanilla",
    "gain": "AURAC − accuracy",
}
PAIR = {"model": "Model", "dataset": "Data set"}
CANDIDATE = {**PAIR, "candidate": "Candidate"}
MEASURE = {**PAIR, "measure": "Measure"}


def further_tables(results: Results) -> list[Table]:
    """The tables that the results allow."""
    analyses = results["analyses"]
    tables = (
        _claims(results["claims"]),
        *calibrated_tables(results),
        *(against_base_table(results, metric) for metric in METRICS),
        *(_paired(results, quantity) for quantity in QUANTITIES),
        *(_transfer(results, metric) for metric in ("ace", "brier")),
        _score_maps(results),
        _refits(analyses["refits"]),
        _fits(analyses.get("fits")),
        _answers(results),
        _deciding_rules(analyses["deciding_rules"]),
        _rules_alone(analyses.get("rules_alone")),
        _losses(results),
        _token_classes(analyses.get("fits") or []),
        *ablation_tables(results),
    )
    return [table for table in tables if table is not None]


def _claims(rows: Sequence[Row]) -> Table:
    index = {"claim": "Claim", "source": "Where", "verdict": "Verdict", "because": "Because"}
    return flat_table("claims", "The paper's claims, and what becomes of them in this run", rows, index)


def _paired(results: Results, quantity: str) -> Table | None:
    rows = flagged(results, [row for row in results["analyses"]["paired"] if row["quantity"] == quantity])
    if not rows:
        return None
    measures = measures_in_order(results["measures"])
    return pivot(
        f"paired-{quantity.lower().replace('_', '-')}",
        f"{QUANTITIES[quantity]} of TS less that of each other method on the same questions, with its 95 % "
        "interval over questions; in bold where TS is shown to be better, in brackets where worse"
        f"{less_accurate_note(rows)}",
        rows,
        {**PAIR, "against": "TS less"},
        [Field(measure, difference_cell, where={"measure": measure}) for measure in measures],
    )


def _transfer(results: Results, metric: str) -> Table | None:
    """A metric at the temperature fitted on each data set, the mean over measures; the best in bold."""
    rows = results["analyses"]["transfer"]
    if not rows:
        return None
    table = pivot(
        f"transfer-{metric}",
        f"{QUANTITIES[metric]} under T (TS by NLL) fitted on one data set and used on another, mean over "
        "measures and runs",
        means_of(rows, ("model", "used_on", "fitted_on"), mean=(metric, "mean")),
        {"model": "Model", "used_on": "Used on"},
        [Field(name, "mean", "Fitted on", where={"fitted_on": name}) for name in results["datasets"]],
        heads=product(results["models"], results["datasets"]),
    )
    return replace(table, rows=tuple((*row[:2], *mark(row[2:], larger=False)) for row in table.rows))


def _score_maps(results: Results) -> Table | None:
    """ACE of Base's confidence, as it is and mapped; None where no map was asked for."""
    rows = results["analyses"].get("score_maps")
    if not rows:
        return None
    base = [{**row, "map": "none"} for row in results["analyses"]["confidence"] if row["method"] == "Base"]
    return pivot(
        "score-maps",
        "ACE of Base with its confidence as it is, and mapped by what validation questions taught; the "
        "answers and their accuracy stay the same",
        [*base, *rows],
        {**PAIR, "map": "Map"},
        [Field(name, "ace", where={"measure": name}) for name in measures_in_order(results["measures"])],
        heads=dict.fromkeys(
            (row["model"], row["dataset"], name) for row in rows for name in ("none", row["map"])
        ),
    )


def calibrated_tables(results: Results) -> list[Table]:
    """Calibrated beside every method, and less each of them; none where it was not run."""
    rows = results["analyses"].get("calibrated")
    if not rows:
        return []
    metrics = {"accuracy": "Accuracy", "mean_confidence": "Confidence", "ace": "ACE"}
    more = {"brier": "Brier score", "auroc": "AUROC", "gain": "Gain"}
    fields = [Field(name, key) for key, name in metrics.items()]
    fields += [Field("by chance", "ace_floor"), *(Field(name, key) for key, name in more.items())]
    differences = [
        {**row, "less": other, "metric": metric, "less_accurate": False} | _tested(found, metric)
        for row in rows
        for other, of in row.get("against", {}).items()
        for metric, found in of.items()
    ]
    return [
        flat_table(
            "calibrated",
            "Calibrated beside the methods of the run under E-SC: every answer in its commonest wording, on "
            "which it is graded, with the 95 % interval over questions. By chance: the ACE that calibrated "
            "confidences show on as many questions",
            rows,
            {**PAIR, "method": "Method"},
            *fields,
        ),
        pivot(
            "calibrated-against",
            "Calibrated less each other method on the same questions, with its 95 % interval over questions; "
            "in bold where Calibrated is shown to be better, in brackets where worse",
            differences,
            {**PAIR, "less": "Calibrated less"},
            [
                Field(name, difference_cell, where={"metric": metric})
                for metric, name in {"accuracy": "Accuracy", "ace": "ACE", **more}.items()
            ],
        ),
    ]


def _tested(found: Mapping[str, Any] | None, metric: str) -> dict[str, Any]:
    """A difference and whether it is for the better; None where the interval holds 0."""
    if found is None:
        return {"difference": None}
    low, high = found["interval"]
    better = (low > 0) == larger_is_better(metric) if low > 0 or high < 0 else None
    return {"difference": found["value"], "interval": found["interval"], "better": better}


# ---- Fits and answers -------------------------------------------------------------------------------------


def _refits(rows: Sequence[Row]) -> Table | None:
    """Temperatures over runs that fitted anew; None where one fit served all."""
    caption = "Temperatures over runs, each with a fit of its own: mean ± standard error over runs"
    return flat_table("refits", caption, rows, CANDIDATE, Field("T", "temperature")) if rows else None


def _fits(rows: Sequence[Row] | None) -> Table | None:
    if not rows:
        return None
    return flat_table(
        "fits",
        "Fits: NLL of the reference tokens (nats), and the share of positions where another token becomes"
        " the most likely or the ten most likely change order (* T at its bound)",
        rows,
        CANDIDATE,
        Field("Parameters", "parameters"),
        Field("T", fitted_temperature),
        Field("calibration-train", "train_nll", "NLL"),
        Field("validation", "validation_nll", "NLL"),
        Field("first token", "top_changed", "Changed", 4),
        Field("order of ten", "order_changed", "Changed", 4),
    )


def _answers(results: Results) -> Table:
    return flat_table(
        "answers",
        f"Distinct answers and meanings among {results['m']} draws (means per question), and the share of "
        "draws that refuse to answer",
        [{**row, "methods": ", ".join(row["methods"])} for row in results["analyses"]["answers"]],
        {**CANDIDATE, "methods": "Used by"},
        Field("Distinct answers", "distinct", digits=2),
        Field("Meanings", "meanings", digits=2),
        Field("Refusals", "refusals"),
    )


def _deciding_rules(rows: Sequence[Row]) -> Table | None:
    if not rows:
        return None

    def share(rule: str, row: Row) -> float:
        return float(row["rules"].get(rule, 0) / row["n"])

    rules = sorted({rule for row in rows for rule in row["rules"]})
    return flat_table(
        "deciding-rules",
        "Share of Base's answers in run 0 on which each rule of grading decided",
        rows,
        MEASURE,
        *(Field(rule, partial(share, rule)) for rule in rules),
    )


def _rules_alone(rows: Sequence[Row] | None) -> Table | None:
    if not rows:
        return None
    return flat_table(
        "rules-alone",
        "Share of Base's answers (E-SC, run 0) that a rule of grading accepts alone, and with the rules "
        "before it; what it accepts or rejects alone against grading by entailment",
        rows,
        {**PAIR, "rule": "Rule"},
        Field("Alone", "alone"),
        Field("With those before", "up_to"),
        Field("accepted wrongly", ("against_nli", "false_positives"), "Against entailment"),
        Field("rejected wrongly", ("against_nli", "false_negatives"), "Against entailment"),
    )


# ---- Tokens -----------------------------------------------------------------------------------------------


def _losses(results: Results) -> Table | None:
    """NLL of the fits that a method chose among those of one loss, beside the scores under them."""
    rows, fits = results["analyses"]["losses"], results["analyses"].get("fits")
    if not rows or not fits:
        return None
    fit_of = {tuple(fit[key] for key in CANDIDATE): fit for fit in fits}
    heads = {
        (model, dataset, _fitted(method, loss)): None
        for model in results["models"]
        for dataset in results["datasets"]
        for method in in_order(results["methods"])
        for loss in ("NLL", "SS")
    }
    joined = [
        {**fit_of.get(tuple(row[key] for key in CANDIDATE), {}), **row}
        | {"fitted": _fitted(row["method"], row["loss"])}
        for row in rows
    ]
    index = {**PAIR, "fitted": "Method and loss"}
    means = means_of(
        joined,
        list(index),
        **{key: (key,) for key in ("train_nll", "validation_nll")},
        **{key: (key, "mean") for key in ("ace", "auroc", "brier")},
    )
    there = {tuple(row[key] for key in index) for row in means}
    return pivot(
        "losses",
        "NLL (nats) of the reference tokens under the fits that each method chose among those of one loss, "
        "and the scores of the answers drawn under them: means over measures and runs",
        means,
        index,
        [
            Field("calibration-train", "train_nll", "NLL"),
            Field("validation", "validation_nll", "NLL"),
            *(Field(metric_title(key), key) for key in ("ace", "auroc", "brier")),
        ],
        heads=[head for head in heads if head in there],
    )


def _fitted(method: str, loss: str) -> str:
    """A method with the loss that it was fitted by; Base and SE have none, and are listed under each."""
    return method if method in ("Base", "SE") else f"{method} by {loss}"


def _token_classes(fits: Sequence[Row]) -> Table | None:
    """Share, NLL and temperature of each class of tokens, under what was fitted by NLL."""
    shown = [fit for fit in fits if fit["loss"] in (None, "NLL") and fit["classes"]]
    if not shown:
        return None

    return flat_table(
        "token-classes",
        "Tokens of the validation answers by class: their share, and under Base, SE and every fit by NLL "
        "their mean NLL (nats) and temperature (Platt has none)",
        shown,
        CANDIDATE,
        *(
            Field(name, ("classes", name, key), title, digits)
            for key, title, digits in (("share", "Share", 3), ("nll", "NLL", 3), ("temperature", "T", 2))
            for name in shown[0]["classes"]
        ),
    )


# ---- Normal forms -----------------------------------------------------------------------------------------

ARMS = ("with", "without")
TWICE = "with number and date forms and with texts as SQuAD normalises them, run 0"
BETTER = (
    "how much better the former are, with the 95 % interval over questions, in bold where it lies above 0"
)


def ablation_tables(results: Results) -> list[Table]:
    """The same answers clustered with and without normal forms; none where they were clustered once."""
    rows, scores = results["analyses"].get("remedies"), results["analyses"].get("remedy_scores")
    if not rows:
        return []
    fields = [
        field
        for metric, where in ((name, {"metric": name}) for name in ("accuracy", "ace", "auroc"))
        for field in (
            *(Field(arm, arm, metric_title(metric), where=where) for arm in ARMS),
            Field("better by", partial(_benefit, "benefit", 3), metric_title(metric), where=where),
        )
    ]
    return [
        _ablation_clusters(rows),
        pivot(
            "remedies-scores",
            f"The same answers clustered {TWICE}, mean over measures; {BETTER}",
            [row for row in scores if row["measure"] is None],
            CANDIDATE,
            fields,
            heads=[tuple(row[key] for key in CANDIDATE) for row in rows],
        ),
        pivot(
            "remedies-by-measure",
            f"The same answers clustered {TWICE}, by measure; {BETTER}",
            scores,
            MEASURE,
            fields,
            heads=[
                (row["model"], row["dataset"], measure)
                for row in rows
                for measure in measures_in_order(results["measures"])
            ],
        ),
    ]


def _ablation_clusters(rows: Sequence[Row]) -> Table:
    def labelled(key: str, row: Row) -> Any:
        return row["pairs"][key] if row["pairs"] else "no labels"

    return flat_table(
        "remedies",
        f"Clusters {TWICE}: the share of questions whose clusters differ, meanings per question, and of "
        "the labelled pairs of distinct answers those of one meaning that are split and those of two that "
        "are merged; errors saved per labelled pair, with the 95 % interval over questions",
        rows,
        CANDIDATE,
        Field("Clusters differ", "changed"),
        *(Field(arm, ("meanings", arm), "Meanings", 2) for arm in ARMS),
        *(Field(key, partial(labelled, key), "Labelled pairs") for key in ("same", "different")),
        *(Field(arm, ("pairs", key, arm), key.capitalize()) for key in ("split", "merged") for arm in ARMS),
        Field("Errors saved", partial(_benefit, "fewer_errors", 4)),
    )


def _benefit(key: str, digits: int, row: Row) -> Cell:
    found = row[key]
    if found is None:
        return number(None)
    cell, (low, high) = number(found["value"], digits), found["interval"]
    text = f"+{cell.text}" if found["value"] > 0 else cell.text
    return replace(cell, text=text, interval=(low, high), best=low > 0)
