"""Confidences and entropies of clustered rows (spec sections 2 and 3), and the features of a calibration.

Features are what the samples of a question say about its answer (spec section 11).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal.errors import InputError, shown
from semcal.metrics.arguments import Floats
from semcal.metrics.probability_maps import FEW, PLENTY, MapCandidate
from semcal.pipeline.rows import clusters_of, identity, log_likelihoods_of, temperatures_of
from semcal.qa.normal_form import normal_form
from semcal.semantics import MEASURES, SemanticConfidence, confidence
from semcal.semantics.measures import EQUALLY_LIKELY

Row = Mapping[str, Any]
RowsAt = Mapping[float | None, Sequence[Row]]
"""Temperature → rows of the same questions, clustered and measured at that temperature by themselves.

The first entry holds the draws from which the answer is taken; its key is None where these are under a
recalibrator, or of a temperature that nobody knows.
"""

#: Measures whose share of the answer's meaning is a feature.
SHARES = ("E-SC", "L-SC", "IC-SC")
#: Right answers, and wrong ones, from which on isotonic calibration is tried.
ISOTONIC = 50
#: The fields of a row with one entry a sample.
PER_SAMPLE = (
    *("samples", "log_likelihoods", "normal_forms", "likelihood", "finished"),
    *("generations", "token_ids", "token_log_probs"),
)
#: The features of the answer's own draws; those of further draws have " at T=…" behind them.
FEATURES = (*SHARES, "entropy", "meanings", "likelihood")
#: Of these features more is less agreement: they never raise the probability. The others never lower it.
FALLING = ("entropy", "meanings")
#: The least log-likelihood that tells answers apart, in nats a token.
LEAST = -50.0


def likeliest(groups: Sequence[Sequence[int]], log_likelihoods: Sequence[float] | None) -> int:
    """Settle a tie as `semcal.semantics.confidence` does: return the number of the likelier group."""
    known = [[log_likelihoods[i] for i in group] for group in groups] if log_likelihoods else []
    peak = max((u for group in known for u in group), default=-math.inf)
    if peak == -math.inf:
        return 0
    sums = [math.fsum(math.exp(u - peak) for u in group) for group in known]
    return next(k for k, one in enumerate(sums) if one >= max(sums) * (1 - EQUALLY_LIKELY))


def representative(row: Row, cluster: Sequence[int], sharper: Sequence[str] = ()) -> str:
    """Return the commonest wording of a cluster; of equally common ones the likelier.

    Without likelihoods that whose normal form more of the `sharper` draws have, and then the first.
    """
    places: dict[str, list[int]] = {}
    for i in sorted(cluster):
        places.setdefault(row["samples"][i], []).append(i)
    most = max(map(len, places.values()))
    tied = [text for text, draws in places.items() if len(draws) == most]
    known = log_likelihoods_of(row, len(row["samples"])) if len(tied) > 1 else None
    forms = Counter(map(normal_form, sharper if len(tied) > 1 and known is None else ()))
    if forms:
        return max(tied, key=lambda text: forms[normal_form(text)])
    return tied[likeliest([places[text] for text in tied], known)]


@dataclass(frozen=True)
class AnswerFeatures:
    """The answers to N questions and the features of each."""

    answers: tuple[str, ...]
    meanings: tuple[int, ...]  # the cluster that the answer stands for, among the first draws
    values: Mapping[str, Floats]  # name → (N,); NaN where a question lacks it
    probabilities: tuple[str, ...]  # the names of those in [0, 1]


def features_of(rows: RowsAt) -> AnswerFeatures:
    """Return the answer of each question and what its samples say about it.

    The answer is the most frequent meaning of the first draws, `top_cluster` of E-SC, in its commonest
    wording. Features: its share under E-SC, L-SC and IC-SC; the semantic entropy of E-SC
    (nats); the logarithm of the number of meanings; the log-likelihood of its likeliest member (nats a
    token); and for each further temperature the largest share under E-SC and the logarithm of the number of
    meanings there. Without log-likelihoods only what can be counted.
    """
    first, *others = rows
    meanings = [row["top_cluster"]["E-SC"] for row in rows[first]]
    sharper = _sharper(rows, first) or [[]] * len(meanings)
    found = [dict(_own(row, top)) for row, top in zip(rows[first], meanings)]
    for temperature in others:
        for features, row in zip(found, rows[temperature]):
            features.update(_at(row, temperature))
    names = list(dict.fromkeys(name for features in found for name in features))
    return AnswerFeatures(
        answers=tuple(
            representative(row, row["clusters"][top], draws)
            for row, top, draws in zip(rows[first], meanings, sharper)
        ),
        meanings=tuple(meanings),
        values={name: np.array([one.get(name, math.nan) for one in found]) for name in names},
        probabilities=tuple(name for name in names if name.partition(" ")[0] in SHARES),
    )


def _own(row: Row, top: int) -> Iterator[tuple[str, float]]:
    clusters = row["clusters"]
    for measure in SHARES:
        if row["confidences"].get(measure):
            yield measure, row["confidences"][measure][top]
    yield "entropy", row["semantic_entropy"]["E-SC"]
    yield "meanings", math.log(len(clusters))
    known = row.get("log_likelihoods")
    if known and all(known[i] is not None for i in range(len(known))):
        yield "likelihood", max(LEAST, *(float(known[i]) for i in clusters[top]))


def _at(row: Row, temperature: float | None) -> Iterator[tuple[str, float]]:
    where = f"at T={temperature:g}"
    sizes = [len(cluster) for cluster in row["clusters"]]
    yield f"E-SC {where}", max(sizes) / sum(sizes)
    yield f"meanings {where}", math.log(len(sizes))


def falls(feature: str) -> bool:
    """Whether the feature, at whatever temperature, falls as agreement rises."""
    return feature.partition(" ")[0] in FALLING


def candidates_for(features: AnswerFeatures) -> list[MapCandidate]:
    """Return what is tried beside a constant, simplest first: no map, maps of one share, regressions.

    From five to nine right or wrong answers only the beta map of E-SC is tried, and a regression takes five
    right and five wrong ones for each of its features: with fewer it takes chance for a rule. Isotonic
    calibration, whose steps follow single answers, takes 50 right and 50 wrong ones and must be clearly
    better than the smooth maps, and what reads further draws clearly better than what does not.
    """
    known = [name for name, values in features.values.items() if not np.isnan(values).all()]
    own = tuple(name for name in known if " at " not in name)
    shares = tuple(name for name in known if name in features.probabilities)

    def logistic(names: Sequence[str], tier: int = 0) -> MapCandidate:
        read = tuple(name for name in names if name in shares)
        falling = tuple(name for name in names if falls(name))
        rising = tuple(name for name in names if not falls(name))
        fewest = max(PLENTY, FEW * len(names))
        return MapCandidate("logistic", tuple(names), read, rising, falling, fewest, tier)

    found = [
        MapCandidate("none", ("E-SC",)),
        *(
            MapCandidate("beta", (one,), fewest=FEW if one == "E-SC" else PLENTY)
            for one in shares
            if one in own
        ),
        logistic(own),
        MapCandidate("isotonic", ("E-SC",), fewest=ISOTONIC, tier=1),
    ]
    return [*found, logistic(known, tier=2)] if len(known) > len(own) else found


def rows_by_temperature(rows: Sequence[Row]) -> RowsAt:
    """Split rows whose samples were drawn at several `temperatures` into rows of one temperature each.

    Those under a recalibrator come first, then those at T = 1, or else of the first sample of the first row.
    Clusters are cut down to the samples of each temperature. Rows without the field stand under None.
    InputError if only some rows have `temperatures`, or a row lacks samples at one of them.

    >>> row = {"id": "1", "samples": ["Ana", "Bo", "Ana"], "temperatures": [0.5, 1.0, 1.0]}
    >>> {t: [one["samples"] for one in split] for t, split in rows_by_temperature([row]).items()}
    {1.0: [['Bo', 'Ana']], 0.5: [['Ana']]}
    """
    given = [temperatures_of(row) for row in rows]
    if not any(given):
        return {None: rows}
    known = list(dict.fromkeys(t for of_row in given for t in of_row or ()))
    found: dict[float | None, Sequence[Row]] = {}
    for temperature in sorted(known, key=lambda t: (t is not None, t != 1.0, known.index(t))):
        split = []
        for row, of_row in zip(rows, given):
            chosen = [i for i, t in enumerate(of_row or ()) if t == temperature]
            if not chosen:
                at = "under the recalibrator" if temperature is None else f"at T = {temperature:g}"
                raise InputError(
                    f"question {identity(row)!r} has no sample {at}, and others have; draw as many at each "
                    "temperature for every question"
                )
            split.append(chosen_draws(row, chosen))
        found[temperature] = split
    return found


def chosen_draws(row: Row, chosen: Sequence[int]) -> dict[str, Any]:
    """Return the row with some of its samples, and their clusters, without `temperatures`."""
    place = {sample: number for number, sample in enumerate(chosen)}
    m = len(row["samples"])
    lists = [key for key in PER_SAMPLE if isinstance(row.get(key), list) and len(row[key]) == m]
    cut = {key: [row[key][i] for i in chosen] for key in lists}
    if "clusters" in row:
        clusters = [[place[i] for i in cluster if i in place] for cluster in row["clusters"]]
        cut["clusters"] = sorted(cluster for cluster in clusters if cluster)
    return {key: value for key, value in row.items() if key != "temperatures"} | cut


def check_measurable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row can be measured."""
    clusters = clusters_of(row)
    identity(row)
    log_likelihoods_of(row, sum(map(len, clusters)))
    given = temperatures_of(row)
    if given is not None:
        for cluster in clusters_of(row, len(given)):
            if len({given[i] for i in cluster}) > 1:
                raise InputError(
                    f"the cluster {shown(cluster)} mixes samples of several temperatures; run "
                    "`semcal cluster` again"
                )


def _log_likelihoods(row: Mapping[str, Any], clusters: list[list[int]]) -> list[float] | None:
    """Those of a row; what is wrong with them names the row."""
    try:
        return log_likelihoods_of(row, sum(map(len, clusters)))
    except InputError as error:
        raise InputError(f"question {identity(row)!r}: {error}") from None


def _columns(
    result: SemanticConfidence,
) -> list[tuple[list[float] | None, float | None, float | None, int | None]]:
    """(probabilities, confidence, entropy, top cluster) of each question, None where undefined."""
    columns: list[tuple[list[float] | None, float | None, float | None, int | None]] = []
    for p, largest, entropy, top in zip(
        result.per_question(), result.confidence, result.entropy, result.top_cluster
    ):
        defined = not np.isnan(largest)
        columns.append(
            (p.tolist(), float(largest), float(entropy), int(top)) if defined else (None, None, None, None)
        )
    return columns


def measure_at(rows: RowsAt, **how: Any) -> dict[float | None, list[dict[str, Any]]]:
    """Measure the rows of each temperature; draws at sharper ones settle ties where likelihoods cannot."""
    return {t: measure_rows(part, sharper=_sharper(rows, t), **how) for t, part in rows.items()}


def _sharper(rows: RowsAt, own: float | None) -> list[list[str]]:
    """The draws of each question at temperatures below its own, which counts as 1 where it is not known."""
    below = [part for t, part in rows.items() if t is not None and t < (1.0 if own is None else own)]
    return [[text for row in of_one for text in row["samples"]] for of_one in zip(*below)]


def measure_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    temperature: float | None = None,
    sharper: Sequence[Sequence[str]] = (),
    ties: str = "likelier",
) -> list[dict[str, Any]]:
    """Add the seven measures to clustered rows, all rows at once.

    Rows have `id`, `clusters` and `log_likelihoods` (null where they are not known: such a row gets E-SC
    alone). They get `confidences` (per cluster), `confidence`, `top_cluster` and `semantic_entropy` (nats),
    each by measure; null where a measure is undefined, and for clusters of other draws; and `tied: n` where
    n > 1 meanings share the first place of E-SC. `t_alpha` and `g_alpha` are the parameter a of T-SC and of
    G-SC; `temperature` chooses the draws of rows with `temperatures`: by default those at T = 1, or else the
    first. Ties go to the likelier cluster; without likelihoods to that whose normal forms more of the
    `sharper` draws of the row (or of its `temperatures`) have; else, or with `ties` "first", to the first.

    >>> row = {"id": "1", "clusters": [[0, 1], [2]], "log_likelihoods": None}
    >>> measure_rows([row])[0]["top_cluster"]
    {'E-SC': 0}
    """
    drawn = [_drawn_at(row, temperature, texts) for row, texts in zip(rows, sharper or [()] * len(rows))]
    measures = _measures([own for own, *_ in drawn], [texts for *_, texts in drawn], t_alpha, g_alpha, ties)
    return [
        {**row, **(one if numbers is None else _widened(one, numbers, len(row["clusters"])))}
        for row, one, (_, numbers, _) in zip(rows, measures, drawn)
    ]


def _drawn_at(
    row: Mapping[str, Any], temperature: float | None, sharper: Sequence[str]
) -> tuple[Mapping[str, Any], list[int] | None, Sequence[str]]:
    """The draws of a row that are measured, the numbers of their clusters (None for all), sharper draws."""
    given = temperatures_of(row)
    if given is None:
        return row, None, sharper
    split = rows_by_temperature([row])
    chosen = temperature if temperature in split else next(iter(split))
    numbers = [k for k, cluster in enumerate(row["clusters"]) if given[cluster[0]] == chosen]
    (texts,) = _sharper(split, chosen) or [[]]
    return split[chosen][0], sorted(numbers, key=row["clusters"].__getitem__), texts


def _widened(measures: Mapping[str, Any], numbers: Sequence[int], count: int) -> dict[str, Any]:
    """Measures of some clusters as those of all `count`: null for the others."""
    confidences: dict[str, list[float | None] | None] = {}
    for name, values in measures["confidences"].items():
        known = dict(zip(numbers, values or ()))
        confidences[name] = [known.get(k) for k in range(count)] if values else None
    top = {name: None if k is None else numbers[k] for name, k in measures["top_cluster"].items()}
    return {**measures, "confidences": confidences, "top_cluster": top}


def _measures(
    rows: Sequence[Mapping[str, Any]],
    sharper: Sequence[Sequence[str]],
    t_alpha: float,
    g_alpha: float,
    ties: str,
) -> list[dict[str, Any]]:
    """The fields that are added to rows of one temperature."""
    clusters = [clusters_of(row) for row in rows]
    known = [_log_likelihoods(row, c) for row, c in zip(rows, clusters)]
    added: list[dict[str, Any]] = [
        {"confidences": {}, "confidence": {}, "top_cluster": {}, "semantic_entropy": {}} for _ in rows
    ]
    with_all = {i: u for i, u in enumerate(known) if u is not None}
    without = [i for i, u in enumerate(known) if u is None]
    by_forms = ties if ties == "first" else [_with_form(rows[i], clusters[i], sharper[i]) for i in without]
    known_first = (list(with_all), list(with_all.values()), ties), (without, None, by_forms)
    for chosen, log_likelihoods, how in known_first:
        if not chosen:
            continue
        results = confidence(
            [clusters[i] for i in chosen],
            log_likelihoods,
            measure=[name for name, one in MEASURES.items() if log_likelihoods or not one.needs_likelihoods],
            t_alpha=t_alpha,
            g_alpha=g_alpha,
            ids=[identity(rows[i]) for i in chosen],
            ties=how,
        )
        for name, result in results.items():
            for i, (p, largest, entropy, top) in zip(chosen, _columns(result)):
                added[i]["confidences"][name] = p
                added[i]["confidence"][name] = largest
                added[i]["top_cluster"][name] = top
                added[i]["semantic_entropy"][name] = entropy
    for row, sizes in zip(added, (list(map(len, one)) for one in clusters)):
        if (tied := sizes.count(max(sizes))) > 1:
            row["tied"] = tied
    return added


def _with_form(row: Row, clusters: Sequence[Sequence[int]], texts: Sequence[str]) -> list[float]:
    """How many of some texts have a normal form of each cluster."""
    if not texts:
        return [0.0] * len(clusters)
    count, own = Counter(map(normal_form, texts)), list(map(normal_form, row["samples"]))
    return [float(sum(count[form] for form in {own[i] for i in cluster})) for cluster in clusters]
