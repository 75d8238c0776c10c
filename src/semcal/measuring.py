"""Confidences and entropies of clustered rows (spec sections 2 and 3), and what settles ties."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from semcal.errors import InputError, shown
from semcal.measures import MEASURES, SemanticConfidence, confidence
from semcal.measures.formulas import EQUALLY_LIKELY
from semcal.rows import Measures, Row, RowsAt, rows_by_temperature
from semcal.text.normal_form import normal_form


@dataclass(frozen=True)
class MeasureOptions:
    """The parameter a of T-SC and of G-SC, the temperature that is measured, and what ties go to."""

    t_alpha: float = 0.5
    g_alpha: float = 0.5
    temperature: float | None = None  # of rows with several: by default T = 1, or else the first
    ties: str = "likelier"  # or "first"


DEFAULTS = MeasureOptions()


def likeliest(groups: Sequence[Sequence[int]], log_likelihoods: Sequence[float] | None) -> int:
    """Settle a tie as `semcal.measures.confidence` does: return the number of the likelier group."""
    values = [[log_likelihoods[i] for i in group] for group in groups] if log_likelihoods else []
    peak = max((u for group in values for u in group), default=-math.inf)
    if peak == -math.inf:
        return 0
    sums = [math.fsum(math.exp(u - peak) for u in group) for group in values]
    return next(k for k, total in enumerate(sums) if total >= max(sums) * (1 - EQUALLY_LIKELY))


def representative(
    samples: Sequence[str],
    cluster: Sequence[int],
    log_likelihoods: Sequence[float] | None,
    sharper: Sequence[str] = (),
) -> str:
    """Return the commonest wording of a cluster; of equally common ones the likelier.

    Without likelihoods that whose normal form more of the `sharper` draws have, and then the first.
    """
    places: dict[str, list[int]] = {}
    for i in sorted(cluster):
        places.setdefault(samples[i], []).append(i)
    most = max(map(len, places.values()))
    tied = [text for text, draws in places.items() if len(draws) == most]
    if len(tied) > 1 and log_likelihoods is None and sharper:
        forms = Counter(map(normal_form, sharper))
        return max(tied, key=lambda text: forms[normal_form(text)])
    return tied[likeliest([places[text] for text in tied], log_likelihoods)]


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
    """The draws of each question at temperatures below this one, which counts as 1 where it is not known."""
    limit = 1.0 if temperature is None else temperature
    below = [part for t, part in rows.items() if t is not None and t < limit]
    return [[text for row in rows_of for text in row.samples] for rows_of in zip(*below)]


def measure_at(rows: RowsAt, options: MeasureOptions = DEFAULTS) -> dict[float | None, list[Row]]:
    """Measure the rows of each temperature; draws at sharper ones settle ties where likelihoods cannot."""
    return {t: measure_rows(part, options, sharper=sharper_draws(rows, t)) for t, part in rows.items()}


def measure_rows(
    rows: Sequence[Row],
    options: MeasureOptions = DEFAULTS,
    *,
    sharper: Sequence[Sequence[str]] = (),
) -> list[Row]:
    """Add the seven measures to clustered rows, all rows at once.

    Rows have `id`, `clusters` and `log_likelihoods` (null where they are not known: such a row gets E-SC
    alone). They get `confidences` (per cluster), `confidence`, `top_cluster` and `semantic_entropy` (nats),
    each by measure; null where a measure is undefined, and for clusters of other draws; and `tied: n` where
    n > 1 meanings share the first place of E-SC. Ties go to the likelier cluster; without likelihoods to that
    whose normal forms more of the `sharper` draws of the row (or of its `temperatures`) have; else, or with
    ties "first", to the first.

    >>> row = Row({"id": "1", "clusters": [[0, 1], [2]], "log_likelihoods": None})
    >>> measure_rows([row])[0].top_clusters
    {'E-SC': 0}
    """
    parts = [_part_of(row, options, texts) for row, texts in zip(rows, sharper or [()] * len(rows))]
    measures = _measures([part.row for part in parts], [part.sharper for part in parts], options)
    return [
        row.add(part.widen(measured, len(row.json["clusters"])))
        for row, part, measured in zip(rows, parts, measures)
    ]


@dataclass(frozen=True)
class _Part:
    """The draws of a row that are measured."""

    row: Row
    numbers: Sequence[int] | None  # of their clusters among those of the row; None for all
    sharper: Sequence[str]

    def widen(self, measures: Measures, count: int) -> Measures:
        """Measures of these clusters as those of all `count`: null for the others."""
        if (numbers := self.numbers) is None:
            return measures
        places = {k: place for place, k in enumerate(numbers)}
        return Measures(
            confidences={
                name: values and [values[places[k]] if k in places else None for k in range(count)]
                for name, values in measures.confidences.items()
            },
            confidence=measures.confidence,
            top_cluster={name: None if k is None else numbers[k] for name, k in measures.top_cluster.items()},
            semantic_entropy=measures.semantic_entropy,
            tied=measures.tied,
        )


def _part_of(row: Row, options: MeasureOptions, sharper: Sequence[str]) -> _Part:
    temperatures = row.temperatures
    if temperatures is None:
        return _Part(row, None, sharper)
    split = rows_by_temperature([row])
    chosen = options.temperature if options.temperature in split else next(iter(split))
    clusters = row.clusters
    numbers = [k for k, cluster in enumerate(clusters) if temperatures[cluster[0]] == chosen]
    (texts,) = sharper_draws(split, chosen) or [[]]
    return _Part(split[chosen][0], sorted(numbers, key=clusters.__getitem__), texts)


def _measures(
    rows: Sequence[Row], sharper: Sequence[Sequence[str]], options: MeasureOptions
) -> list[Measures]:
    """The measures of rows of one temperature: first those with likelihoods, then the others."""
    by_row = [Measures({}, {}, {}, {}, _tied(row)) for row in rows]
    likely = [row.log_likelihoods for row in map(_named, rows)]
    for places in ([i for i, u in enumerate(likely) if u], [i for i, u in enumerate(likely) if not u]):
        if not places:
            continue
        with_all = likely[places[0]] is not None
        ties: str | list[list[float]] = options.ties
        if not with_all and ties != "first":
            ties = [_with_form(rows[i], sharper[i]) for i in places]
        results = confidence(
            [rows[i].clusters for i in places],
            [likely[i] or [] for i in places] if with_all else None,
            measure=[name for name, one in MEASURES.items() if with_all or not one.needs_likelihoods],
            t_alpha=options.t_alpha,
            g_alpha=options.g_alpha,
            ids=[rows[i].id for i in places],
            ties=ties,
        )
        for name, result in results.items():
            _fill([by_row[i] for i in places], name, result)
    return by_row


def _fill(measures: Sequence[Measures], name: str, result: SemanticConfidence) -> None:
    """Write a measure into those of each question; None where it is undefined."""
    columns = result.per_question(), result.confidence, result.entropy, result.top_cluster
    for row, p, largest, entropy, top in zip(measures, *columns):
        defined = not np.isnan(largest)
        for field, value in (
            (row.confidences, p.tolist() if defined else None),
            (row.confidence, float(largest) if defined else None),
            (row.top_cluster, int(top) if defined else None),
            (row.semantic_entropy, float(entropy) if defined else None),
        ):
            field[name] = value  # type: ignore[index]


def _tied(row: Row) -> int | None:
    sizes = [len(cluster) for cluster in row.clusters]
    tied = sizes.count(max(sizes))
    return tied if tied > 1 else None


def _named(row: Row) -> Row:
    """The row; what is wrong with its log-likelihoods names it."""
    try:
        _ = row.log_likelihoods
    except InputError as error:
        raise InputError(f"question {row.id!r}: {error}") from None
    return row


def _with_form(row: Row, texts: Sequence[str]) -> list[float]:
    """How many of some texts have a normal form of each cluster."""
    if not texts:
        return [0.0] * len(row.clusters)
    count, forms = Counter(map(normal_form, texts)), [normal_form(text) for text in row.samples]
    return [float(sum(count[form] for form in {forms[i] for i in cluster})) for cluster in row.clusters]


@dataclass(frozen=True)
class MeasureStep:
    """Measures clustered rows: `measure_rows`."""

    name: ClassVar[str] = "measure"
    options: MeasureOptions = DEFAULTS

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Measure."""
        return measure_rows(rows, self.options)
