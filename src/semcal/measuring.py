"""Confidence measures of clustered rows (spec sections 2, 3) and metrics of graded rows (sections 6, 8)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from semcal import metrics
from semcal.data.question import Ties, several
from semcal.errors import InputError, shown
from semcal.files import dumps, parse_float
from semcal.measures import MEASURES, SemanticConfidence, confidence
from semcal.measures.formulas import EQUALLY_LIKELY
from semcal.metrics.frequencies import Groups
from semcal.registry import check_name
from semcal.rows import (
    ANSWER_KINDS,
    CALIBRATED,
    STATED,
    Json,
    Measures,
    Row,
    RowsAt,
    as_rows,
    rows_by_temperature,
)
from semcal.text.normal_form import normal_form

Name = TypeVar("Name", bound=Hashable)
Figures: TypeAlias = dict[str, Any]
"""The metrics of one measure, None if undefined; `se` and `interval` hold a value for each metric."""
OF_ANSWER = {"confidence": "probability", "correct": "answer_correct"}
#: The slice of rows without the column.
NO_VALUE = "(none)"
#: The fields of a risk-controlled threshold in the output.
OF_THRESHOLD = (
    *("delta", "threshold", "answered", "coverage", "errors", "upper_bound", "questions_needed", "sentence"),
)
#: Shares of the least confident questions that are rejected for `selective_accuracy`.
REJECTION_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class MeasureOptions:
    """The parameters of T-SC and G-SC, the measured temperature, and the rule for ties."""

    t_alpha: float = 0.5
    g_alpha: float = 0.5
    temperature: float | None = None  # for rows with several; by default T = 1, or else the first
    ties: str = "likelier"  # or "first"


DEFAULTS = MeasureOptions()


def likeliest(groups: Sequence[Sequence[int]], log_likelihoods: Sequence[float] | None) -> int:
    """Return the index of the more likely group, by the rule for ties of `semcal.measures.confidence`."""
    values = [[log_likelihoods[i] for i in group] for group in groups] if log_likelihoods else []
    peak = max((u for group in values for u in group), default=-math.inf)
    if peak == -math.inf:
        return 0
    sums = [math.fsum(math.exp(u - peak) for u in group) for group in values]
    return next(k for k, total in enumerate(sums) if total >= max(sums) * (1 - EQUALLY_LIKELY))


def representative(
    samples: Sequence[str | None],
    cluster: Sequence[int],
    log_likelihoods: Sequence[float] | None,
    sharper: Sequence[str] = (),
) -> str | None:
    """Return the most frequent wording of a cluster; None means no answer.

    Ties go to the more likely wording. Without likelihoods, ties go to the wording whose normal form is more
    frequent in `sharper`, the samples at lower temperatures, and then to the first wording.
    """
    places: dict[str | None, list[int]] = {}
    for i in sorted(cluster):
        places.setdefault(samples[i], []).append(i)
    most = max(map(len, places.values()))
    tied = [text for text, draws in places.items() if len(draws) == most]
    if len(tied) > 1 and log_likelihoods is None and sharper:
        forms = Counter(map(normal_form, sharper))
        return max(tied, key=lambda text: forms[normal_form(text or "")])
    return tied[likeliest([places[text] for text in tied], log_likelihoods)]


def wordings(row: Row) -> list[str | None]:
    """Return the most frequent wording of each cluster, which is the answer if the cluster is on top.

    The cluster of samples without an answer has the wording None.
    """
    temperatures, wordings = row.temperatures, []
    for cluster in row.clusters:
        limit = temperatures[cluster[0]] or 1.0 if temperatures else 0.0
        sharper = [text for text, t in zip(row.samples, temperatures or ()) if text and t and t < limit]
        wordings.append(representative(row.samples, cluster, row.log_likelihoods, sharper))
    return wordings


def check_measurable(row: Row) -> None:
    """Raise InputError unless the row can be measured."""
    temperatures = row.temperatures
    _ = row.clusters, row.id, row.log_likelihoods
    for cluster in row.clusters if temperatures else ():
        if len({(temperatures or ())[i] for i in cluster}) > 1:
            raise InputError(
                f"the cluster {shown(cluster)} mixes samples of several temperatures; run "
                "`semcal cluster` again"
            )


def sharper_draws(rows: RowsAt, temperature: float | None) -> list[list[str]]:
    """Return the samples of each question below this temperature; an unknown temperature counts as 1."""
    limit = 1.0 if temperature is None else temperature
    below = [part for t, part in rows.items() if t is not None and t < limit]
    return [[text for row in rows_of for text in row.texts] for rows_of in zip(*below)]


def measure_at(rows: RowsAt, options: MeasureOptions = DEFAULTS) -> dict[float | None, list[Row]]:
    """Measure the rows of each temperature; samples at lower temperatures settle ties without likelihoods."""
    return {t: measure_rows(part, options, sharper=sharper_draws(rows, t)) for t, part in rows.items()}


def measure_rows(
    rows: Sequence[Row],
    options: MeasureOptions = DEFAULTS,
    *,
    sharper: Sequence[Sequence[str]] = (),
) -> list[Row]:
    """Add the seven measures to clustered rows, all rows at once.

    Rows have `id`, `clusters` and `log_likelihoods`; a row whose likelihoods are null gets E-SC alone. Each
    row gets `confidences` (per cluster), `confidence`, `top_cluster` and `semantic_entropy` (nats) by
    measure. A value is null if the measure is undefined, or if the cluster holds samples at other
    temperatures. `tied: n` is added if n > 1 meanings share the first place of E-SC. Ties go to the more
    likely cluster. Without likelihoods, ties go to the cluster whose normal forms are more frequent in
    `sharper`, the row's samples at lower temperatures. Otherwise, or with ties "first", ties go to the first
    cluster. Samples without an answer (null) are one cluster, which has no likelihood and wins ties only with
    "first".

    >>> row = Row({"id": "1", "clusters": [[0, 1], [2]], "log_likelihoods": None})
    >>> measure_rows([row])[0].top_clusters
    {'E-SC': 0}
    """
    parts = [_measured_part(row, options, texts) for row, texts in zip(rows, sharper or [()] * len(rows))]
    measures = _measures([part for part, _, _ in parts], [texts for _, _, texts in parts], options)
    return [
        row.add(measured if numbers is None else _widened(measured, numbers, len(row.json["clusters"])))
        for row, (_, numbers, _), measured in zip(rows, parts, measures)
    ]


def _measured_part(
    row: Row, options: MeasureOptions, sharper: Sequence[str]
) -> tuple[Row, Sequence[int] | None, Sequence[str]]:
    """Return the samples at the measured temperature, their clusters (None: all), and sharper samples."""
    temperatures = row.temperatures
    if temperatures is None:
        return row, None, sharper
    split = rows_by_temperature([row])
    chosen = options.temperature if options.temperature in split else next(iter(split))
    clusters = row.clusters
    numbers = [k for k, cluster in enumerate(clusters) if temperatures[cluster[0]] == chosen]
    (texts,) = sharper_draws(split, chosen) or [[]]
    return split[chosen][0], sorted(numbers, key=clusters.__getitem__), texts


def _widened(measures: Measures, numbers: Sequence[int], count: int) -> Measures:
    """Return the measures for all `count` clusters of a row, null for clusters without measures."""
    places = {k: place for place, k in enumerate(numbers)}
    return replace(
        measures,
        confidences={
            name: values and [values[places[k]] if k in places else None for k in range(count)]
            for name, values in measures.confidences.items()
        },
        top_cluster={name: None if k is None else numbers[k] for name, k in measures.top_cluster.items()},
    )


def _measures(
    rows: Sequence[Row], sharper: Sequence[Sequence[str]], options: MeasureOptions
) -> list[Measures]:
    """Measure rows of one temperature: first the rows with likelihoods, then the others."""
    by_row = [Measures({}, {}, {}, {}, _tied(row)) for row in rows]
    likely = [row.log_likelihoods for row in map(_named, rows)]
    is_likely = [max(u or (), default=-math.inf) > -math.inf for u in likely]
    for places in (np.flatnonzero(is_likely).tolist(), np.flatnonzero(np.logical_not(is_likely)).tolist()):
        if not places:
            continue
        with_all = is_likely[places[0]]
        ties: str | list[list[float]] = options.ties
        if not with_all and ties != "first":
            ties = [_with_form(rows[i], sharper[i]) for i in places]
        results = confidence(
            [rows[i].clusters for i in places],
            [likely[i] or [] for i in places] if with_all else None,
            measure=[name for name, entry in MEASURES.items() if with_all or not entry.needs_likelihoods],
            t_alpha=options.t_alpha,
            g_alpha=options.g_alpha,
            ids=[rows[i].id for i in places],
            ties=ties,
        )
        for name, result in results.items():
            _fill([by_row[i] for i in places], name, result)
    for row, u, has_likelihoods in zip(by_row, likely, is_likely):
        if u and not has_likelihoods:  # no sample has an answer: measures that need likelihoods are undefined
            for columns in (row.confidences, row.confidence, row.top_cluster, row.semantic_entropy):
                columns |= dict.fromkeys(MEASURES.keys() - columns.keys())  # type: ignore[operator]
    return by_row


def _fill(measures: Sequence[Measures], name: str, result: SemanticConfidence) -> None:
    columns = result.per_question(), result.confidence, result.entropy, result.top_cluster
    for row, p, largest, entropy, top in zip(measures, *columns):
        defined = not np.isnan(largest)
        for by_name, value in (
            (row.confidences, p.tolist() if defined else None),
            (row.confidence, float(largest) if defined else None),
            (row.top_cluster, int(top) if defined else None),
            (row.semantic_entropy, float(entropy) if defined else None),
        ):
            by_name[name] = value  # type: ignore[index]


def _tied(row: Row) -> int | None:
    sizes = [len(cluster) for cluster in row.clusters]
    tied = sizes.count(max(sizes))
    return tied if tied > 1 else None


def _named(row: Row) -> Row:
    """Return the row; an error in its log-likelihoods names the row."""
    try:
        _ = row.log_likelihoods
    except InputError as error:
        raise InputError(f"question {row.id!r}: {error}") from None
    return row


def _with_form(row: Row, texts: Sequence[str]) -> list[float]:
    """Return one more than the number of texts with a normal form of each cluster; 0 without an answer."""
    count, counts = Counter(map(normal_form, texts)), []
    for cluster in row.clusters:
        forms = {normal_form(row.samples[i] or "") for i in cluster} if texts else ()
        counts.append(1.0 + sum(count[form] for form in forms) if row.has_answer(cluster) else 0.0)
    return counts


@dataclass(frozen=True)
class MeasureStep:
    """Step that measures clustered rows with `measure_rows`."""

    name: ClassVar[str] = "measure"
    needs: ClassVar[tuple[str, ...]] = ()
    options: MeasureOptions = DEFAULTS

    def key(self) -> Json:
        """Return the options."""
        return vars(self.options)

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Return the measured rows."""
        return measure_rows(rows, self.options)


# ---- Metrics of graded rows --------------------------------------------------------------------------------


@dataclass
class Scores:
    """The values from which the metrics of one measure are computed, one for each defined row."""

    confidence: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    entropy: list[float | None] = field(default_factory=list)  # nats, None if missing
    score: list[float | None] = field(default_factory=list)  # share of samples, for equal confidences
    ties: list[Ties] = field(default_factory=list)  # the passage and group of the row
    slices: list[str] = field(default_factory=list)  # the value of the column that defines slices
    abstained: list[bool | None] = field(default_factory=list)  # None without a threshold
    limits: set[float] = field(default_factory=set)  # the promised risks of the rows' thresholds
    undefined: int = 0  # number of rows whose confidence or correctness is null

    def add(
        self,
        confidence: float | None,
        correct: bool | None,
        entropy: float | None,
        ties: Ties,
        score: Any,
        sliced: tuple[str, bool | None, float | None] | None = None,
    ) -> None:
        """Add one row."""
        if confidence is None or correct is None:
            self.undefined += 1
            return
        self.confidence.append(confidence)
        self.correct.append(correct)
        self.entropy.append(entropy)
        self.score.append(score)
        self.ties.append(ties)
        if sliced is not None:
            self.slices.append(sliced[0])
            self.abstained.append(sliced[1])
            self.limits |= set() if sliced[2] is None else {sliced[2]}

    @property
    def order(self) -> list[float]:
        """The values for ranking and thresholds: the confidence, or the score if all of them are equal."""
        scores = [score for score in self.score if score is not None]
        constant = len(scores) == len(self.confidence) and len(set(self.confidence)) == 1
        return scores if constant else self.confidence


def _by_measure(row: Row, key: str) -> dict[str | None, Any]:
    value = row.json.get(key)
    by_measure = dict(value) if isinstance(value, Mapping) else {None: value}
    if key in OF_ANSWER and row.has(*OF_ANSWER.values()):
        if CALIBRATED in by_measure:
            raise InputError(
                f"{key!r} holds {CALIBRATED!r}, the name reserved for 'probability'. Rename this measure."
            )
        by_measure[CALIBRATED] = row[OF_ANSWER[key]]
        if key == "confidence" and row.json.get("answer", "") is None:
            by_measure[CALIBRATED] = 0.0  # no answer is never correct
    return by_measure


def _of_own_answer(row: Row) -> Row:
    """Return the row with `answer_correct`, if only the verdict of people (`correct`) states it."""
    # A row without `confidence` has a calibrated score, and no measures.
    if row.has("probability") and not row.has("confidence"):
        own = {"correct": {}, "answer_correct": row.json.get("answer_correct", row.verdict)}
        return row.set(confidence={}, **own if row.has("correct") else {})
    if not isinstance(names := row.json.get("confidence"), Mapping):
        return row
    kinds = (kind for kind in reversed(ANSWER_KINDS) if kind in STATED and STATED[kind][2] in row.json)
    kind = next(kinds, None)
    right = row.json.get("answer_correct", row.verdict) if kind or row.has("probability") else None
    if right is None:
        return row
    row = row.set(answer_correct=right)
    if kind is None:
        return row if isinstance(row.json.get("correct"), Mapping) else row.set(correct=dict.fromkeys(names))
    place = row.stated_answer(kind).cluster
    shares = row.measured.confidences
    confidence = {k: None if of is None else 0.0 if place is None else of[place] for k, of in shares.items()}
    return row.set(confidence=confidence, correct=dict.fromkeys(confidence, right))


def check_assessable(row: Row) -> None:
    """Raise InputError unless the row holds confidence and correct, flat or by measure.

    A row may also hold `probability` and `answer_correct`, or instead `probability` and `correct`.
    """
    _ = row.group, _values(row)


def _values(row: Row) -> dict[str | None, tuple[float | None, bool | None, float | None]]:
    """Return confidence, correctness and entropy by measure; InputError if they cannot be assessed."""
    row = _of_own_answer(row)
    for key in ("confidence", "correct"):
        if not row.has(key):
            raise InputError(f"{key!r}: missing. Run `semcal measure` and `semcal grade` first, or add it.")
    confidence, correct = _by_measure(row, "confidence"), _by_measure(row, "correct")
    if confidence.keys() != correct.keys():
        raise InputError(
            "'confidence' and 'correct' must be a number and a truth value, or hold the same measures"
        )
    entropies = {name: parse_float(value) for name, value in _by_measure(row, "semantic_entropy").items()}
    for name, entropy in entropies.items():
        if entropy is not None and not math.isfinite(entropy):
            wrong, value = _field("semantic_entropy", name), _by_measure(row, "semantic_entropy")[name]
            raise InputError(f"{wrong} must be a finite number or null, got {shown(value)}")
    values = {}
    for name, value in confidence.items():
        number, right = parse_float(value), correct[name]
        if number is not None and not -1e-6 <= number <= 1 + 1e-6:
            raise InputError(f"{_field('confidence', name)} must be in [0, 1], got {shown(value)}")
        if right is not None and not (isinstance(right, bool) or right in (0, 1)):
            raise InputError(f"{_field('correct', name)} must be true or false, got {shown(right)}")
        values[name] = number, None if right is None else bool(right), entropies.get(name)
    return values


def _field(key: str, measure: str | None) -> str:
    if measure == CALIBRATED:
        return repr(OF_ANSWER.get(key, key))
    return repr(key) if measure is None else f"{key!r} of {measure}"


def slice_of(row: Row, column: str) -> str:
    """Return the value of the column that defines slices, or "(none)" if the row has none.

    InputError unless the value is a text, a number or a truth value.
    """
    value = row.json.get(column)
    if value is None:
        return NO_VALUE
    if not isinstance(value, str | int | float):
        raise InputError(f"{column!r} must be a text or a number, got {shown(value)}")
    return value if isinstance(value, str) else dumps(value)


def scores_by_measure(
    rows: Iterable[Row | Json], chosen: Sequence[str] | None = None, *, by: str | None = None
) -> dict[str | None, Scores]:
    """Collect confidence, correctness and entropy by measure, of rows as in `check_assessable`.

    Flat rows have the key None. `probability` and `answer_correct` (or the verdict of people in `correct`)
    have the key "Calibrated". With `chosen`, only these measures are returned; UsageError if no row has one
    of them. With `by`, the value of that column is collected too.
    """
    by_measure: dict[str | None, Scores] = {}
    for row in as_rows(rows):
        for name, values in _values(row).items():
            score = parse_float(row.json.get("score")) if name == CALIBRATED else None
            sliced = None if by is None else (slice_of(row, by), *_promise_of(row, name))
            by_measure.setdefault(name, Scores()).add(*values, row.ties, score, sliced)
    if chosen and by_measure:
        names = [name for name in by_measure if name is not None]
        return {check_name(name, names, what="measure"): by_measure[name] for name in chosen}
    return by_measure


def _promise_of(row: Row, measure: str | None) -> tuple[bool | None, float | None]:
    """Return whether the answer of a row abstains, and the risk that its threshold promises, if known."""
    abstained, bands = row.json.get("abstained"), row.json.get("thresholds")
    if measure not in (None, CALIBRATED) or not isinstance(abstained, bool):
        return None, None
    loosest = bands[-1] if isinstance(bands, list) and bands else row.json
    risk = loosest.get("risk") if isinstance(loosest, Mapping) else None
    return abstained, risk if isinstance(risk, float) and 0 < risk < 1 else None


def assess(
    scores: Mapping[Name, Scores],
    *,
    bins: int = 15,
    ci: bool = False,
    seed: int = 0,
    resamples: int = 1000,
    risk: float | None = None,
    delta: float = 0.05,
) -> dict[Name, Figures]:
    """Compute every metric of each measure; the only metric is `n` = 0 if no row is defined.

    The metrics are those of `semcal.metrics.summary`; `entropy_auroc` (discrimination of −entropy, the
    paper's SE_conf) if every row has an entropy; and `selective_accuracy` by rejection rate. `ci` adds `se`
    and `interval` (95%, bias-corrected bootstrap over questions) by metric. Rows that share a passage or a
    value in the field `group` are resampled as a whole, and `groups` is the number of groups. `risk` adds
    `risk`, the threshold for this limit (`semcal.metrics.risk_controlled_threshold`), which uses one row of
    each group. For scores with slices, `by` holds `semcal.metrics.intervals` and whether each slice keeps the
    promise of that threshold, or else of the rows' own thresholds.
    """
    results: dict[Name, Figures] = {}
    for name, values in scores.items():
        groups = several(values.ties)
        result = results[name] = _measured(values, bins, groups, seed) if values.confidence else {"n": 0}
        if risk is not None and values.confidence:
            result["risk"] = _risk(values, risk, delta, groups, seed)
        if values.slices:
            result["by"] = _by_slice(values, result.get("risk"), groups, seed)
        if ci and groups is not None:
            result["groups"] = int(groups.max()) + 1
        if ci and values.confidence:
            intervals = metrics.bootstrap(
                values.confidence,
                values.correct,
                score=values.order,
                groups=groups,
                bins=bins,
                resamples=resamples,
                seed=seed,
            )
            result["se"] = {metric: interval.standard_error for metric, interval in intervals.items()}
            result["interval"] = {name: [interval.low, interval.high] for name, interval in intervals.items()}
    return results


def _measured(scores: Scores, bins: int, groups: Groups | None, seed: int) -> Figures:
    numbers = metrics.summary(
        scores.confidence, scores.correct, score=scores.order, bins=bins, groups=groups, seed=seed
    )
    result: Figures = dict(numbers)
    entropies = [value for value in scores.entropy if value is not None]
    if len(entropies) == len(scores.correct):
        result["entropy_auroc"] = metrics.auroc([-value for value in entropies], scores.correct)
    selective = metrics.selective_accuracy(scores.order, scores.correct, rejection=REJECTION_RATES)
    result["selective_accuracy"] = {
        f"{rate:.1f}": value for rate, value in zip(REJECTION_RATES, selective.accuracy.tolist())
    }
    return result


def _by_slice(scores: Scores, found: Figures | None, groups: Groups | None, seed: int) -> list[Figures]:
    """Compute the metrics of each slice, with the threshold found here or with the thresholds of the rows."""
    answered = None if None in scores.abstained else [not abstained for abstained in scores.abstained]
    limit = next(iter(scores.limits)) if len(scores.limits) == 1 else None
    if found is not None:
        threshold, limit = found["threshold"], found["limit"]
        answered = None if threshold is None else [score >= threshold for score in scores.order]
    parts = metrics.slices(
        scores.confidence,
        scores.correct,
        scores.slices,
        answered=answered,
        risk_limit=limit,
        groups=groups,
        seed=seed,
    )
    return [asdict(part) for part in parts]


def _risk(scores: Scores, limit: float, delta: float, groups: Groups | None, seed: int) -> Figures:
    threshold = metrics.risk_controlled_threshold(
        scores.order, scores.correct, risk_limit=limit, delta=delta, groups=groups, seed=seed
    )
    return {"limit": limit} | {key: getattr(threshold, key) for key in OF_THRESHOLD}
