"""The tables of a grid run: self-describing entries of `REPORT_TABLES`, in order.

A new table needs only its registration there (`register`): it then has files, a place on the page and, if it
asks for one, in results.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any

from semcal.experiment.analyses.grid_scores import (
    FEWEST_OF_A_KIND,
    Record,
    Records,
    has_enough,
)
from semcal.experiment.analyses.score_analyses import QUANTITIES, SHORT
from semcal.experiment.grid_settings import slug
from semcal.experiment.report.tables import (
    Field,
    RunResults,
    Table,
    TableCell,
    cell_of,
    flagged,
    flagged_cell,
    in_order,
    larger_is_better,
    mark,
    marks_note,
    mean_of,
    metric_title,
    number,
    pivot,
    select,
    value_at,
)
from semcal.measures import MEASURES
from semcal.recalibration.methods import UNFITTED
from semcal.registry import Catalogue

# ---- Sections of the page ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A part of the page with the figures and tables that name it."""

    name: str  # anchor
    title: str
    note: str = ""
    link: str = ""  # its name in the bar at the top, "" for none
    chosen: str = ""  # label of the choice among its tables, if one is shown at a time
    folded: bool = True
    behind: bool = False  # whether it follows the questions


#: The sections in the order of the page.
SECTIONS = Catalogue(
    "section",
    [
        Section(
            "scores",
            "Scores",
            "ACE is the mean difference between confidence and accuracy (0 is best). AUROC measures how well "
            "confidence separates right answers from wrong ones (1 is best, 0.5 is chance).",
            folded=False,
        ),
        Section(
            "measures",
            "Scores by measure",
            "± is the standard error over runs on the same questions; brackets contain the 95% interval over "
            "questions.",
            link="By measure",
        ),
        Section(
            "calibrated",
            "Calibrated beside the other methods",
            "Calibrated has Base's answers, so its accuracy is Base's; only the probability of each answer "
            "differs. The other methods sample their own answers.",
            folded=False,
        ),
        Section("paired", "Paired tests of TS", chosen="Of"),
        Section("selective", "Selective answering", link="Selective answering"),
        Section("worked", "Worked example"),
        Section("entropy", "Semantic entropy"),
        Section("draws", "Number of sampled answers"),
        Section("fits", "Losses and temperatures"),
        Section("spread", "How the measures differ"),
        Section(
            "answers",
            "Answers and grading",
            "The sheet for judging the clusters by hand (table 12) is tables/12-audit.csv.",
            behind=True,
        ),
        Section("prompts", "Data and prompts", behind=True),
        Section("further", "Comparison with the published numbers", behind=True),
        Section("contrasts", "Claims of the paper, and results of this run", link="Claims", behind=True),
    ],
)

# ---- The parts of a table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableContent:
    """The content of a table: the results of a run, its rows, and their model, if of one."""

    results: RunResults
    rows: Records
    model: str = ""

    @property
    def measures(self) -> list[str]:
        """The measures of the run, in the order of tables."""
        return in_order(self.results["measures"], MEASURES)


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table of the report: its name, place, rows and layout."""

    name: str  # name of its files and its anchor; with `by_model` NAME-MODEL
    section: str  # the name of one of `SECTIONS`
    caption: str | Callable[[TableContent], str]
    analysis: str = ""  # its rows of results.json, by default those with its name
    rows: Callable[[RunResults, Records], Records] = lambda _, rows: rows  # selects and joins the rows
    #: The keys of the leading columns, with their headings.
    index: Mapping[str, str] | Callable[[TableContent], Mapping[str, str]]
    fields: Sequence[Field] | Callable[[TableContent], Sequence[Field]] = ()  # the other columns
    heads: Callable[[TableContent], Iterable[tuple[str, ...]]] | None = None  # by default all values
    by_model: bool = False  # whether there is one table for each model, also without rows
    underline: bool = False  # whether the best value of a data set is underlined
    in_markdown: bool = False  # whether results.md contains it

    def tables(self, results: RunResults) -> list[Table]:
        """Return the table of a run, one for each model if `by_model`; none without rows."""
        analysis = self.analysis or self.name
        rows = self.rows(results, results["analyses"].get(analysis) or results.get(analysis) or [])
        if self.by_model:
            return [
                self._table(TableContent(results, select(rows, {"model": model}), model))
                for model in results["models"]
            ]
        return [self._table(TableContent(results, rows))] if rows else []

    def _table(self, content: TableContent) -> Table:
        name = f"{self.name}-{slug(content.model)}" if self.by_model else self.name
        caption = self.caption(content) if callable(self.caption) else self.caption
        index = self.index(content) if callable(self.index) else self.index
        fields = self.fields(content) if callable(self.fields) else self.fields
        heads = None if self.heads is None else self.heads(content)
        table = pivot(name, caption, content.rows, index, fields, heads=heads, underline=self.underline)
        note = resampled_groups(content.results) if "over questions" in caption else ""
        return replace(table, caption=f"{caption}. {note}") if note else table


#: All tables, in the order of the page and of results.md.
REPORT_TABLES: Catalogue[ReportTable] = Catalogue("table")


def report_tables(results: RunResults) -> list[Table]:
    """Yield all tables with rows."""
    return [table for entry in REPORT_TABLES.values() for table in entry.tables(results)]


def resampled_groups(results: RunResults) -> str:
    """Return a note on data sets whose intervals resample groups of questions, "" if there are none."""
    groups = [
        f"{row['dataset']} ({row['test_groups']} groups)"
        for row in results["analyses"].get("splits", ())
        if "test_groups" in row
    ]
    return f"Questions of one passage or group are resampled together: {', '.join(groups)}" if groups else ""


# ---- Rows, fields and captions that tables share -----------------------------------------------------------

PAIR = {"model": "Model", "dataset": "Data set"}
METHOD = {**PAIR, "method": "Method"}
CANDIDATE = {**PAIR, "candidate": "Candidate"}
MEASURE = {**PAIR, "measure": "Measure"}


def _capital(metric: str) -> str:
    title = metric_title(metric)
    return f"{title[0].upper()}{title[1:]}"


def _by_measure(value: str | Callable[[Record], Any], content: TableContent) -> list[Field]:
    return [Field(name, value, where={"measure": name}) for name in content.measures]


def _with_interval(key: str, row: Record) -> TableCell:
    return replace(number(row[key]), interval=row["interval"] and tuple(row["interval"]))


def difference_cell(row: Record) -> TableCell:
    """Return a difference with its sign, bold if `better`, in brackets if worse."""
    if row["difference"] is None:
        return number(None)
    cell = number(row["difference"], sign="+")
    better = None if row["too_few"] else row["better"]
    return replace(
        cell,
        text=f"({cell.text})" if better is False else cell.text,
        best=better is True and not row["less_accurate"],
        interval=tuple(row["interval"]),
    )


def _less_caption(subject: str, bold: str, brackets: str, content: TableContent) -> str:
    return (
        f"{subject} on the same questions, with its 95% interval over questions; bold if {bold}, in brackets "
        f"if {brackets}{marks_note(content.rows)}"
    )


def means(rows: Iterable[Record], keys: Sequence[str], values: Mapping[str, tuple[str, ...]]) -> Records:
    """Return a row for each value of the keys, with the means of known values at some paths."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, head))
        | {name: mean_of(value_at(row, path) for row in group) for name, path in values.items()}
        for head, group in groups.items()
    ]


# ---- Claims, and Calibrated minus the other methods --------------------------------------------------------


def _region(row: Record) -> str:
    low, high = row["region"]
    if low is not None and high is not None:
        return f"{number(low, 2).text} to {number(high, 2).text}"
    return f"above {low:g}" if high is None else f"at most {high:.3g}"


# ---- One table a model: data sets × methods, metrics × measures --------------------------------------------

CALIBRATED_NOTE = "; Calibrated maps E-SC of Base, and is graded on the wording of its answer"
BOLD = "The best value of each measure and data set is bold; ⁼ marks ties after rounding"
ABOVE_CHANCE = "; ACE and ECE are compared above their noise floors"
MetricHeading = tuple[str, str, bool | None]  # key, heading, and whether larger is better
CONF: MetricHeading = ("SE_conf", "(a) SE_conf", True)
VANILLA: MetricHeading = ("SE_vanilla", "(b) SE_vanilla", True)
BRIER_PARTS = ("brier", "reliability", "resolution", "uncertainty", "refinement")


def _methods(content: TableContent) -> list[str]:
    methods = dict.fromkeys([*content.results["methods"], *(row["method"] for row in content.rows)])
    return in_order(list(methods))


def method_table(
    name: str,
    caption: str,
    *metrics: str | MetricHeading,
    section: str = "measures",
    analysis: str = "confidence",
    measures: Sequence[str] = (),
    more: Sequence[Field] = (),
    underline: bool = False,
    in_markdown: bool = False,
) -> ReportTable:
    """Return a table in the paper's layout, one for each model: data sets × methods by metrics × measures.

    A metric is a name of `METRICS` or has its own heading. `measures` are all of the run by default; `more`
    are the last columns. With `underline`, the best value of a data set is underlined.
    """
    headed = [
        (metric, metric_title(metric), larger_is_better(metric)) if isinstance(metric, str) else metric
        for metric in metrics
    ]

    def fields(content: TableContent) -> list[Field]:
        names = in_order(measures or content.results["measures"], MEASURES)
        return [
            *(
                Field(measure, key, title, where={"measure": measure}, larger=larger)
                for key, title, larger in headed
                for measure in names
            ),
            *(
                replace(field, title=f"{field.title}, {names[0]}", where={"measure": names[0]})
                for field in more
            ),
        ]

    def full_caption(content: TableContent) -> str:
        spread = "mean ± standard error over runs, and the 95% interval over questions"
        if content.results["runs"] == 1:
            spread = "one run, with the 95% interval over questions"
        under = "; the best value of a data set is underlined" if underline else ""
        above = ABOVE_CHANCE if {"ace", "ece"} & {key for key, *_ in headed} else ""
        note = CALIBRATED_NOTE if "Calibrated" in _methods(content) else ""
        marks = f"{above}{under}{marks_note(content.rows)}{note}"
        return f"{caption} for {content.model}: {spread}. {BOLD}{marks}."

    return ReportTable(
        name=name,
        section=section,
        caption=full_caption,
        analysis=analysis,
        rows=flagged,
        index={"dataset": "Data set", "method": "Method"},
        fields=fields,
        heads=lambda content: product(content.results["datasets"], _methods(content)),
        by_model=True,
        underline=underline,
        in_markdown=in_markdown,
    )


# ---- Ranks and differences --------------------------------------------------------------------------------


def _rank_changes(metrics: Sequence[str], results: RunResults, rows: Records) -> Records:
    """Return mean |change of rank| by method; nothing for a single method."""
    rows = [row for row in rows if row["metrics"] == metrics and len(results["methods"]) > 1]
    changes: list[Record] = [
        {**row, "method": method, "change": row["per_method"].get(method)}
        for method in in_order(results["methods"])
        for row in rows
    ]
    means = [{**row, "method": "Mean", "change": replace(number(row["mean"], 2), best=True)} for row in rows]
    return changes + means


def _rank_columns(content: TableContent) -> list[Field]:
    pairs = dict.fromkeys((row["model"], row["dataset"]) for row in content.rows)
    return [Field(pair[1], "change", pair[0], 2, dict(zip(PAIR, pair))) for pair in pairs]


def _of_quantity(quantity: str, results: RunResults, rows: Records) -> Records:
    return flagged(results, select(rows, {"quantity": quantity}))


# ---- Fits and temperatures ---------------------------------------------------------------------------------


def fitted_temperature(row: Record) -> TableCell:
    """Return the temperature of a fit, with a star if it is at its bound."""
    cell = number(row["temperature"], 2)
    return replace(cell, text=f"{cell.text}*") if row["at_bound"] else cell


#: The scores beside the losses of fits.
LOSS_SCORES = ("ace", "auroc", "brier")


def _mean_losses(results: RunResults, rows: Records) -> Records:
    """Return means by method and loss, without the loss for methods that are not fitted."""
    fits = {tuple(fit[key] for key in CANDIDATE): fit for fit in results["analyses"].get("fits") or []}
    methods = {name: place for place, name in enumerate(in_order(results["methods"]))}
    in_place = sorted(rows, key=lambda row: methods[row["method"]])  # all losses of a method together
    joined = [
        {**fits.get(tuple(row[key] for key in CANDIDATE), {}), **row}
        | {"fitted": row["method"] if row["method"] in UNFITTED else f"{row['method']} by {row['loss']}"}
        for pair in product(results["models"], results["datasets"])
        for row in select(in_place, dict(zip(PAIR, pair)))
        if fits
    ]
    losses = {key: (key,) for key in ("train_nll", "validation_nll")}
    return means(joined, (*PAIR, "fitted"), losses | {key: (key, "mean") for key in LOSS_SCORES})


def _transferred(metric: str, results: RunResults, rows: Records) -> Records:
    """Return a metric at the temperature of each data set, mean over measures; the best is marked."""
    paths = {"mean": (metric, "mean"), "floor": (f"{metric}_floor",)}
    paths |= {"n": ("n",), "accuracy": ("accuracy", "mean")}
    found = means(rows, ("model", "used_on", "fitted_on"), paths)
    transferred: list[Record] = []
    for model, name in product(results["models"], results["datasets"]) if found else ():
        values = []
        for source in results["datasets"]:
            where = {"model": model, "used_on": name, "fitted_on": source}
            row = next(iter(select(found, where)), {})
            flags = {"too_few": not has_enough(row.get("n") or 0, row.get("accuracy"))}
            values.append(flagged_cell(number(row.get("mean")), flags, row.get("floor")))
        cells = dict(zip(results["datasets"], mark(values, larger=False)))
        transferred.append({"model": model, "used_on": name, **cells})
    return transferred


# ---- Answers and data --------------------------------------------------------------------------------------


def _percent(key: str, row: Record) -> TableCell:
    """Return a percentage; deterministic decoding has no spread over runs, so it has its interval only."""
    accuracy = row[key]
    if accuracy is None:
        return number(None)
    low, high = accuracy["interval"]
    return replace(number(100 * accuracy["mean"], 1), interval=(100 * low, 100 * high))


PARTS = (
    ("Calibration", "Training", "calibration_train"),
    ("Calibration", "Validation", "validation"),
    ("Final Evaluation", "Test", "test"),
)
# ---- The paper's published numbers -------------------------------------------------------------------------

#: The files of the folder `published`, in the order of the paper's tables.
PUBLISHED_TABLES = (
    "splits",
    "accuracies",
    "main-llama",
    "main-qwen",
    "main-mistral",
    "entropy-short-conf",
    "entropy-short-vanilla",
    "entropy-conf",
    "entropy-vanilla",
    "temperatures",
    "brier-llama",
    "ace-mcb-qwen",
    "ace-ece-qwen",
    "volatility-qwen",
    "audits",
)
#: Last part of the path of a model → its name in the paper.
PUBLISHED_MODELS = {
    "llama-3.1-8b-instruct": "Llama",
    "meta-llama-3.1-8b-instruct": "Llama",
    "qwen2.5-7b-instruct": "Qwen",
    "ministral-8b-instruct-2410": "Mistral",
}
#: Source of a data set → its name in the paper.
PUBLISHED_DATASETS = {"triviaqa": "TriviaQA", "nq-open": "NQ", "squad": "SQuAD"}

PUBLISHED_INDEX = {**METHOD, "measure": "Measure", "metric": "Metric"}

#: Metrics with two digits in the paper.
TWO_DIGITS = ("T", "change of rank")


@cache
def published(name: str) -> Record:
    """Return the content of one file: {table, model?, rows}, with the label of the table in the paper.

    A row is {dataset, method, measure, metric, mean, se, best}, or the values of the table instead; `overall`
    marks underlined values.
    """
    text = files(__package__).joinpath("published", f"{name}.json").read_text(encoding="utf-8")
    table: Record = json.loads(text)
    return table


def comparisons(name: str, results: RunResults, _: Records) -> Records:
    """Return each published number of a table with our number, if the run has it, and their names.

    The `sources` of results.json identify models and data sets.
    """
    models = {
        PUBLISHED_MODELS.get(path.rstrip("/").rpartition("/")[2].lower()): model
        for model, path in results["sources"]["models"].items()
    }
    datasets = {
        PUBLISHED_DATASETS.get(source.lower()): dataset
        for dataset, source in results["sources"]["datasets"].items()
    }
    table = published(name)
    rows: list[Record] = []
    for row in table["rows"]:
        model, dataset = row.get("model", table.get("model")), row["dataset"]
        if dataset not in datasets or (model is not None and model not in models):
            continue
        place = {"dataset": datasets[dataset]} | ({} if model is None else {"model": models[model]})
        for metric, value, analysis, where, path in _counterparts(row):
            counterpart = next(iter(select(results["analyses"][analysis], {**place, **where})), None)
            digits = 2 if metric in TWO_DIGITS else 3
            paper = replace(number(value, digits), error=row.get("se"))
            ours = cell_of(value_at(counterpart, path), digits)
            if ours.value is None and (counterpart is None or analysis != "volatility"):
                continue  # the table of ranks also has rows of methods that were not run
            names = {"model": model or "", "dataset": dataset, "metric": metric}
            names |= {key: row.get(key, "") for key in ("method", "measure")}
            difference = None if ours.value is None else ours.value - value
            digits = 0 if isinstance(value, int) else digits
            cells = {"paper": paper, "ours": ours, "difference": number(difference, digits, sign="+")}
            rows.append({**names, **cells})
    return rows


def _counterparts(row: Record) -> list[tuple[str, float, str, Record, tuple[str, ...]]]:
    """Return name and value of each number of a published row, and the place of the run's number.

    The place is an analysis, values of its row, and a path.
    """
    if "metric" in row:
        metric = row["metric"]
        analysis = "entropy" if metric.startswith("SE_") else "confidence"
        where = {"method": row["method"], "measure": row["measure"]}
        return [(metric_title(metric), row["mean"], analysis, where, (metric,))]
    if "temperature" in row:
        where = {"measure": row["measure"]}
        return [("T", row["temperature"], "temperatures", where, ("temperature",))]
    if "beam" in row:
        return [("accuracy, 4 beams", row["beam"], "base_accuracies", {}, ("beam",))]
    if "test" in row:
        return [(part, row[part], "splits", {}, (part,)) for *_, part in PARTS]
    if "volatility" in row:
        path = ("mean",) if row["method"] == "Mean" else ("per_method", row["method"])
        return [("change of rank", row["volatility"], "volatility", {"metrics": ["ace", "mcb"]}, path)]
    if row["key"] == "agreement":
        return [("agreement of gradings", row["value"], "agreement", {"measure": "E-SC"}, ("agreement",))]
    return []


# ---- The tables --------------------------------------------------------------------------------------------

for _table in (
    ReportTable(
        name="contrasts",
        section="contrasts",
        caption="Contrasts for the paper's claims, pooled over models, data sets and measures, with the 95% "
        "interval over questions. A claim holds if the interval lies in its region, and does not hold if the "
        "interval lies outside. Benefits below 0.005 do not count. Fewer than 20 questions in a data set, or "
        f"fewer than {FEWEST_OF_A_KIND} correct or {FEWEST_OF_A_KIND} wrong answers of a method, are too few "
        "to say. Contrasts are not corrected for multiple comparisons",
        index={"claim": "Claim", "source": "Where", "contrast": "Contrast"},
        fields=(
            Field("Value", partial(_with_interval, "value")),
            Field("Region", _region),
            Field("Verdict", "verdict"),
        ),
    ),
    ReportTable(
        name="calibrated",
        section="calibrated",
        caption="Calibrated and the methods of the run with E-SC. Answers are graded in their most frequent "
        "wording; brackets contain the 95% interval over questions. Noise floor: expected ACE of calibrated "
        "confidences on as many questions. Threshold: the confidence below which answers abstain",
        index=METHOD,
        fields=(
            Field("Accuracy", "accuracy"),
            Field("Confidence", "mean_confidence"),
            Field("ACE", "ace"),
            Field("noise floor", "ace_floor"),
            *(Field(_capital(key), key) for key in ("brier", "auroc", "gain")),
            Field("Threshold", ("calibration", "threshold", "threshold"), digits=2),
            Field("Answered", ("calibration", "answered")),
            Field("Wrong among answered", ("calibration", "wrong")),
        ),
        in_markdown=True,
    ),
    method_table(
        "03-main", "ACE (lower is better) and AUROC (higher is better)", "ace", "auroc", in_markdown=True
    ),
    method_table(
        "03b-ace-by-chance",
        "ACE with its noise floor (mean and 95% quantile), and the p value of calibration,",
        "ace",
        ("ace_floor", "noise floor", None),
        ("ace_floor_95", "noise floor, 95%", None),
        ("ace_p", "p", None),
        in_markdown=True,
    ),
    method_table("02b-selected-accuracies", "Accuracy of the selected answer", "accuracy"),
    method_table("08c-gain", "Gain = accuracy − Brier score (higher is better)", "gain", in_markdown=True),
    method_table("08-brier", "Brier score (lower is better)", "brier"),
    method_table(
        "08b-brier-parts",
        "Brier score = reliability − resolution + uncertainty over unique confidences, and refinement = "
        "uncertainty − resolution,",
        *((key, key.capitalize(), None) for key in BRIER_PARTS),
    ),
    method_table("09-ace-mcb", "ACE and CORP-MCB", "ace", ("mcb", "CORP-MCB", False), in_markdown=True),
    method_table("10-ace-ece", "ACE and ECE", "ace", "ece"),
    method_table(
        "10b-ece-by-chance",
        "ECE with its noise floor (mean and 95% quantile), and the p value of calibration,",
        "ece",
        ("ece_floor", "noise floor", None),
        ("ece_floor_95", "noise floor, 95%", None),
        ("ece_p", "p", None),
    ),
    method_table(
        "selective",
        "Increase of accuracy as the least confident questions are rejected: its slope from 0% to 50% "
        "rejected, and AURAC − accuracy,",
        ("slope", "Slope", True),
        ("gain", "AURAC − accuracy", True),
        section="selective",
        analysis="selective",
    ),
    method_table(
        "04-entropy-short",
        "AUROC of −entropy, judged by (a) the answer of the most confident meaning, (b) one greedy answer,",
        CONF,
        VANILLA,
        measures=SHORT,
        underline=True,
        in_markdown=True,
        section="entropy",
        analysis="entropy",
    ),
    method_table(
        "05-entropy-conf",
        "AUROC of −entropy, judged by the answer of the most confident meaning,",
        CONF,
        underline=True,
        section="entropy",
        analysis="entropy",
    ),
    method_table(
        "06-entropy-vanilla",
        "AUROC of −entropy, judged by one greedy answer of the method,",
        VANILLA,
        more=[Field("Greedy answer differs from Base's", "greedy_differs")],
        underline=True,
        section="entropy",
        analysis="entropy",
    ),
    *(
        ReportTable(
            name=f"11-volatility-{second}",
            section="measures",
            caption=lambda content: (
                "Mean change of rank of the methods from "
                f"{' to '.join(metric_title(key) for key in content.rows[0]['metrics'])}; unrelated rankings "
                f"would change by {content.rows[0]['chance']:.2f}"
            ),
            analysis="volatility",
            rows=partial(_rank_changes, ["ace", second]),
            index={"method": "Method"},
            fields=_rank_columns,
            in_markdown=second == "mcb",
        )
        for second in ("mcb", "ece")
    ),
    *(
        ReportTable(
            name=f"paired-{quantity.lower().replace('_', '-')}",
            section="paired",
            caption=partial(
                _less_caption,
                f"{QUANTITIES[quantity].name} of TS minus that of each other method",
                f"TS is significantly better{' above the noise floor' * (quantity == 'ace')}",
                "worse",
            ),
            analysis="paired",
            rows=partial(_of_quantity, quantity),
            index={**PAIR, "against": "TS minus"},
            fields=partial(_by_measure, difference_cell),
        )
        for quantity in ("ace", "auroc", "brier", "accuracy", "SE_conf", "SE_vanilla", "gain")
    ),
    ReportTable(
        name="07-temperatures",
        section="fits",
        caption="Temperatures of TS for each measure (* at the bound of the fit)",
        analysis="temperatures",
        index={"dataset": "Data set", "model": "Model"},
        fields=partial(_by_measure, fitted_temperature),
        heads=lambda content: product(content.results["datasets"], content.results["models"]),
        in_markdown=True,
    ),
    ReportTable(
        name="fits",
        section="fits",
        caption="Fits: NLL of the reference tokens (nats), and the share of positions at which the most "
        "likely token, or the order of the ten most likely tokens, changes (* T at its bound)",
        index=CANDIDATE,
        fields=(
            Field("Parameters", "parameters"),
            Field("T", fitted_temperature),
            Field("calibration-train", "train_nll", "NLL"),
            Field("validation", "validation_nll", "NLL"),
            Field("first token", "top_changed", "Changed", 4),
            Field("order of ten", "order_changed", "Changed", 4),
        ),
    ),
    ReportTable(
        name="losses",
        section="fits",
        caption="NLL (nats) of the reference tokens with the chosen fits of each method and loss, and the "
        "scores of their answers: means over measures and runs",
        rows=_mean_losses,
        index={**PAIR, "fitted": "Method and loss"},
        fields=(
            Field("calibration-train", "train_nll", "NLL"),
            Field("validation", "validation_nll", "NLL"),
            *(Field(metric_title(key), key) for key in LOSS_SCORES),
        ),
    ),
    *(
        ReportTable(
            name=f"transfer-{metric}",
            section="fits",
            caption=f"{metric_title(metric)} at T (TS by NLL) fitted on one data set and used on another, "
            "mean over measures and runs. The best is bold, ACE above its noise floor; values of fewer than "
            f"{FEWEST_OF_A_KIND} correct or {FEWEST_OF_A_KIND} wrong answers (‡) are never bold",
            analysis="transfer",
            rows=partial(_transferred, metric),
            index={"model": "Model", "used_on": "Used on"},
            fields=lambda content: [
                Field(name, (name,), "Fitted on") for name in content.results["datasets"]
            ],
            in_markdown=metric == "ace",
        )
        for metric in ("ace", "brier")
    ),
    ReportTable(
        name="02-accuracies",
        section="answers",
        caption="Accuracy of the base models on the test questions in percent, with its 95% interval over "
        "questions",
        analysis="base_accuracies",
        index={"model": "Model"},
        fields=lambda content: [
            Field(dataset, partial(_percent, key), title, where={"dataset": dataset})
            for title, key in (("4 beams", "beam"), ("greedy", "greedy"))
            for dataset in content.results["datasets"]
        ],
        in_markdown=True,
    ),
    ReportTable(
        name="answers",
        section="answers",
        caption=lambda content: (
            f"Distinct answers and meanings among {content.results['m']} samples (means per question), and "
            "the share of samples that refuse to answer"
        ),
        rows=lambda _, rows: [{**row, "methods": ", ".join(row["methods"])} for row in rows],
        index={**CANDIDATE, "methods": "Used by"},
        fields=(
            Field("Distinct answers", "distinct", digits=2),
            Field("Meanings", "meanings", digits=2),
            Field("Refusals", "refusals"),
        ),
    ),
    ReportTable(
        name="13-agreement",
        section="answers",
        caption="Agreement of grading by rules with grading by entailment on Base's answers of run 0, its "
        "95% interval (Wilson), and the shares that only one of them accepts",
        analysis="agreement",
        rows=lambda _, rows: [row for row in rows if row["n"]],
        index=MEASURE,
        fields=(
            Field("Questions", "n"),
            Field("Agreement", partial(_with_interval, "agreement")),
            Field("Only rules", "lexical_only"),
            Field("Only entailment", "nli_only"),
        ),
        in_markdown=True,
    ),
    ReportTable(
        name="01-splits",
        section="prompts",
        caption="Sizes of the parts of each data set",
        analysis="splits",
        rows=lambda _, rows: [
            {"stage": stage, "split": split, "dataset": row["dataset"], "n": row[key]}
            for stage, split, key in PARTS
            for row in rows
        ],
        index={"stage": "Stage", "split": "Split"},
        fields=lambda content: [
            Field(name, "n", where={"dataset": name})
            for name in dict.fromkeys(r["dataset"] for r in content.rows)
        ],
        in_markdown=True,
    ),
    *(
        ReportTable(
            name=f"paper-{name}",
            section="further",
            caption=f"The paper's numbers ({published(name)['table']}), ours, and the difference "
            "(ours minus the paper's); ± standard error over runs, in brackets the 95% interval over "
            "questions",
            rows=partial(comparisons, name),
            index=lambda content: {
                key: title for key, title in PUBLISHED_INDEX.items() if any(row[key] for row in content.rows)
            },
            fields=(Field("Paper", "paper"), Field("Ours", "ours"), Field("Difference", "difference")),
        )
        for name in PUBLISHED_TABLES
    ),
):
    REPORT_TABLES.register(_table)
