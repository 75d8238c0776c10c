"""Learn the probability that each field of a structured answer is correct, from labeled documents.

All fields share one map. Fields of one document stay in one fold, and are tested together for a threshold.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import Threshold
from semcal.calibration.calibrator import kept_apart, set_thresholds
from semcal.data.question import group_labels
from semcal.errors import InputError, SemcalWarning, StoreError, UndefinedWarning
from semcal.fields.rows import (
    DOCUMENT,
    FIELDS,
    INVALID,
    REVIEW,
    add_fields,
    check_structured,
    context_form,
    features_of_field,
    grade_fields,
    is_labeled,
    labeled_fields,
    pattern_of,
)
from semcal.fields.schema import Schema, parse_schema
from semcal.files import dumps
from semcal.hub_names import FIELD_CALIBRATION
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    CATEGORY,
    FEW,
    GROUP,
    PLENTY,
    RATE,
    Features,
    Labelled,
    MapCandidate,
    ProbabilityMap,
    choose_map,
    part_of,
    predict_out_of_fold,
)
from semcal.models.clustering import ClusterConfig
from semcal.recalibration.files import not_finite, read_contents, write_contents
from semcal.recalibration.records import check_enough
from semcal.rows import AnswerKind, Json, Row, check_distinct
from semcal.steps import Step

#: Features of fields whose larger values never raise, and never lower, the probability.
FALLING, RISING = ("entropy", "values"), ("odds", RATE, "verbatim")
#: Fewest labels of a field for figures of its own.
ENOUGH = 20
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "auroc", "gain")
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class FieldCalibration:
    """Maps from the samples of a structured answer to the probabilities of its fields and of the document.

    Attributes
    ----------
    schema : mapping
        The JSON Schema of the documents.
    fields : tuple of str
        The labeled fields; only these have a probability.
    map, document_map : ProbabilityMap
        The map of fields, and the map of documents (None if documents were not all labeled).
    thresholds, document_thresholds : tuple of Threshold
        The threshold of each risk; of the accepted fields of new documents, at most this share is wrong.
    m : int
        Number of samples of a document.
    equivalence, linkage : str
        The settings that compared strings.
    answer_kind : {"modal", "greedy", "given"}
        The document whose fields are judged.
    report : mapping
        Numbers of documents and fields, candidates, and figures, out of fold, overall and by field.
    """

    schema: Mapping[str, Any]
    fields: tuple[str, ...]
    map: ProbabilityMap
    document_map: ProbabilityMap
    m: Annotated[int, Field(ge=1)]
    equivalence: str
    linkage: str
    report: Mapping[str, Any]
    thresholds: tuple[Threshold, ...] = ()
    document_thresholds: tuple[Threshold, ...] = ()
    answer_kind: AnswerKind = "modal"

    @property
    def parsed(self) -> Schema:
        """The schema with its tree of fields."""
        return parse_schema(self.schema)

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """Add probabilities to rows with `fields`, and `document` and `review`.

        `review` lists the fields below the threshold, or all fields if there is none, the least probable
        first, after the fields without a probability. InputError if a row has another number of samples.
        """
        for row in rows:
            if len(row.samples) != self.m:
                raise InputError(
                    f"question {row.id!r}: 'samples' holds {len(row.samples)} samples, and the calibration "
                    f"was learned with {self.m}. Sample {self.m} documents"
                )
        table = FieldTable.of(rows, self.fields, labels=False)
        p = self.map.predict(table.features) if len(table.paths) else np.zeros(0)
        known = table.features[CATEGORY] >= 0
        scores = self.map.scores(table.features) if len(table.paths) else p
        p_document = self.document_map.predict(_of_documents(table.place, p, known, len(rows)))
        limit, document_limit = (_limit(part) for part in (self.thresholds, self.document_thresholds))
        applied = []
        for number, row in enumerate(rows):
            at = np.flatnonzero(table.place == number).tolist()
            blocks, order = dict(row.json.get(FIELDS) or {}), []
            for i in at:
                probability = float(p[i]) if known[i] else None
                accepted = None if limit is None else bool(known[i] and scores[i] >= limit)
                path = table.paths[i]
                blocks[path] = {**blocks[path], "probability": probability, "accepted": accepted}
                if not accepted:
                    order.append((-1.0 if probability is None else probability, path))
            whole: dict[str, Any] = {"probability": None, "accepted": None}
            if row.json.get("answer") is not None:
                whole["probability"] = float(p_document[number])
            if document_limit is not None:
                is_known = whole["probability"] is not None
                whole["accepted"] = bool(is_known and p_document[number] >= document_limit)
            review = [path for _, path in sorted(order, key=lambda pair: pair[0])]
            applied.append(row.set(**{FIELDS: blocks, DOCUMENT: whole, REVIEW: review}))
        return applied

    @property
    def summary(self) -> str:
        """The promises and the figures as a text, a line for each field."""
        report = self.report
        lines = [one.sentence.replace("questions", "fields") for one in self.thresholds]
        lines += [one.sentence.replace("questions", "documents") for one in self.document_thresholds]
        lines.append(
            f"{report['fields']:,} fields of {report['documents']:,} documents; map {report['chosen']}"
        )
        names = ("accuracy", "mean_confidence", "ace", "ace_floor", "auroc")
        lines.append(f"{'':<30}" + "".join(f"{name.replace('_', ' '):>17}" for name in ("n", *names)))
        figures = {"share of samples": report["share"], "calibrated": report["calibrated"]}
        for label, values in {**figures, **report["by_field"]}.items():
            cells = ["–" if values.get(name) is None else f"{values[name]:.3f}" for name in names]
            lines.append(f"{label:<30}" + "".join(f"{cell:>17}" for cell in (str(values["n"]), *cells)))
        return "\n".join(lines)

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write the calibration to a directory, and return the path of its file."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        contents = asdict(self)
        return write_contents(folder, FIELD_CALIBRATION, {"json_schema": contents.pop("schema"), **contents})

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> FieldCalibration:
        """Load a calibration; StoreError if its file is damaged."""
        contents, path = read_contents(directory, FIELD_CALIBRATION)
        contents |= {"schema": contents.pop("json_schema", None)}
        try:
            if wrong := [where for where, _ in not_finite(contents)]:
                raise InputError(f"{wrong[0]}: expected a finite number")
            return _CONTENTS.validate_json(dumps(contents), strict=True)
        except (ValidationError, InputError) as error:
            raise StoreError(f"{path}: {error}. Calibrate again") from error


_CONTENTS = TypeAdapter(FieldCalibration)


@dataclass(frozen=True)
class FieldStep(Step):
    """Add the probabilities of fields to rows; rows without fields get them first."""

    name: ClassVar[str] = "measure"
    calibration: FieldCalibration
    cluster: ClusterConfig  # with the loaded equivalence of the calibration

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Return the rows with probabilities, in their order."""
        calibration = self.calibration
        without = [row for row in rows if calibration.answer_kind != "modal" or not row.has(FIELDS)]
        found = iter(add_fields(without, self.cluster, calibration.parsed, calibration.answer_kind))
        given = {id(row) for row in without}
        return calibration.apply([next(found) if id(row) in given else row for row in rows])


def _limit(thresholds: Sequence[Threshold]) -> float | None:
    """Return the threshold of the largest risk: infinite if none was shown, None without a risk."""
    if not thresholds:
        return None
    return np.inf if thresholds[-1].threshold is None else thresholds[-1].threshold


@dataclass(frozen=True)
class FieldTable:
    """The fields of documents as rows of a table with N lines."""

    paths: Sequence[str]
    place: Groups  # the number of the document of each field
    features: Features
    correct: Floats  # NaN if unknown

    @classmethod
    def of(cls, rows: Sequence[Row], fields: Sequence[str], *, labels: bool = True) -> FieldTable:
        """Return the table of the fields of rows; the category of a field that is not in `fields` is −1."""
        code = {name: number for number, name in enumerate(fields)}
        groups = group_labels(_ties(row, number) for number, row in enumerate(rows))
        paths, place, correct, lines = [], [], [], []
        for number, row in enumerate(rows):
            context = context_form(row)
            for path, block in (row.json.get(FIELDS) or {}).items():
                category = code.get(pattern_of(path), -1)
                if labels and category < 0:
                    continue
                paths.append(path)
                place.append(number)
                correct.append(float(block["correct"]) if labels else np.nan)
                line = features_of_field(path, block, len(row.samples), context)
                lines.append({**line, CATEGORY: category, GROUP: groups[number]})
        names = lines[0] if lines else (CATEGORY, GROUP)
        features = {name: np.array([line[name] for line in lines], dtype=float) for name in names}
        return cls(paths, np.array(place, dtype=np.intp), features, np.array(correct))


def _ties(row: Row, number: int) -> tuple[Any, ...]:
    return (*row.ties, ("row", number))


def _candidates(features: Features) -> list[MapCandidate]:
    """Return the maps that are tried: the share itself, its beta map, and regressions with the field rate."""
    known = [name for name in ("entropy", "values", "verbatim", "null", "depth") if name in features]
    known = [name for name in known if np.ptp(np.nan_to_num(features[name])) > 0]

    def logistic(names: tuple[str, ...], tier: int = 0) -> MapCandidate:
        rising, falling = (tuple(n for n in names if n in part) for part in (RISING, FALLING))
        return MapCandidate("logistic", names, (), rising, falling, max(PLENTY, FEW * len(names)), tier)

    return [
        MapCandidate("none", ("share",)),
        MapCandidate("beta", ("share",), fewest=FEW),
        logistic(("odds", RATE), tier=-1),
        logistic(("odds", RATE, *known), tier=1),
    ]


def _of_documents(place: Groups, p: Floats, known: Any, n: int) -> dict[str, Floats]:
    """Return the features of documents: the product and the smallest of the probabilities of fields."""
    product, least = np.ones(n), np.ones(n)
    np.multiply.at(product, place[known], p[known])
    np.minimum.at(least, place[known], p[known])
    return {"product": product, "least": least}


def calibrate_fields(
    rows: Sequence[Row],
    cluster: ClusterConfig,
    schema: Schema | None = None,
    *,
    answer: AnswerKind = "modal",
    risks: Sequence[float] = (),
    document_risks: Sequence[float] = (),
    delta: float = 0.05,
    seed: int = 0,
) -> FieldCalibration:
    """Learn the probability of fields from labeled documents with samples.

    Parameters
    ----------
    rows : sequence of Row
        Rows with `samples`, `answers` (the reference document) and `context`; with `schema` or without.
    cluster : ClusterConfig
        The settings that compare strings.
    schema : Schema, optional
        The schema of rows without their own.
    answer : {"modal", "greedy", "given"}
        The document whose fields are judged.
    risks, document_risks : sequence of float
        Largest shares of wrong values among accepted fields, and of documents with an error among accepted
        documents. Two in five documents are held out for their thresholds.
    delta : float
        Probability that a risk is exceeded, for fields and for documents.
    seed : int
        Seed of the folds, and of the choice of held-out documents.

    Raises
    ------
    InputError
        If a row or a reference is invalid, or rows have several schemas or numbers of samples.
    FitError
        If there are fewer than 5 documents.
    """
    check_distinct(row.id for row in rows)
    check_enough(len(rows), of="to calibrate on")
    for row in rows:
        try:
            check_structured(row, schema)
        except InputError as error:
            raise row.error(str(error)) from None
    schemas = {parse_schema(row["schema"]).hash: row["schema"] for row in rows if _is_own(row)}
    if len(schemas) + (schema is not None) > 1 and {*schemas} != {schema and schema.hash}:
        raise InputError("'schema' differs between rows. Calibrate the rows of each schema separately")
    schema = schema or parse_schema(next(iter(schemas.values()), None))
    if len({len(row.samples) for row in rows}) > 1:
        raise InputError("'samples' differ in number between rows. Use the same number for all documents")
    graded = [grade_fields(row, schema) for row in add_fields(rows, cluster, schema, answer)]
    labeled = labeled_fields(rows)
    every = sorted({pattern_of(path) for row in graded for path in row[FIELDS]})
    fields = tuple(name for name in every if is_labeled(name, labeled))
    table = FieldTable.of(graded, fields)
    check_enough(len(table.paths), of="among the fields of the documents")
    features, correct, groups = table.features, table.correct, table.features[GROUP].astype(np.intp)
    held_out = np.zeros(len(correct), dtype=bool)
    if risks or document_risks:
        held_out = kept_apart(len(correct), np.unique(groups, return_inverse=True)[1], seed)
    fit, of_fit = ~held_out, np.unique(groups[~held_out], return_inverse=True)[1]
    labels = Labelled(part_of(features, fit), correct[fit], _candidates(features))
    choice = choose_map(*labels, groups=of_fit, seed=seed)
    out, _ = predict_out_of_fold([labels], groups=of_fit, seed=seed)
    p = choice.map.predict(features)
    p[fit] = out  # documents are learned from honest probabilities
    document_table = _of_documents(table.place, p, np.ones(len(p), dtype=bool), len(graded))
    document_right = np.array([float(row[DOCUMENT]["correct"]) for row in graded])
    apart_documents = np.isin(np.arange(len(graded)), table.place[held_out])
    row_groups = group_labels([_ties(row, number) for number, row in enumerate(graded)])
    document_groups = np.unique(row_groups[~apart_documents], return_inverse=True)[1]
    of_documents = Labelled(
        part_of(document_table, ~apart_documents),
        document_right[~apart_documents],
        [
            MapCandidate("none", ("product",)),
            MapCandidate("beta", ("product",), fewest=FEW),
            MapCandidate("beta", ("least",), fewest=PLENTY),
        ],
    )
    document_choice = choose_map(*of_documents, groups=document_groups, seed=seed)
    document_out, _ = predict_out_of_fold([of_documents], groups=document_groups, seed=seed)
    calibration = FieldCalibration(
        schema=schema.json,
        fields=fields,
        map=choice.map,
        document_map=document_choice.map,
        m=len(rows[0].samples),
        equivalence=cluster.address,
        linkage=cluster.linkage,
        report={},
        answer_kind=answer,
    )
    tested = part_of(features, held_out)
    scores = choice.map.scores
    if risks:
        thresholds = set_thresholds(
            scores(tested),
            correct[held_out],
            risks,
            delta,
            fitted=(scores(part_of(features, fit)), out),
            groups=np.unique(groups[held_out], return_inverse=True)[1],
            seed=seed,
        )
        calibration = replace(calibration, thresholds=thresholds)
    if document_risks:
        of_held_out = part_of(document_table, apart_documents)
        fitted_scores = document_choice.map.scores(of_documents.features)
        thresholds = set_thresholds(
            document_choice.map.scores(of_held_out),
            document_right[apart_documents],
            document_risks,
            delta,
            fitted=(fitted_scores, document_out),
            groups=np.unique(row_groups[apart_documents], return_inverse=True)[1],
            seed=seed,
        )
        calibration = replace(calibration, document_thresholds=thresholds)
    names = np.array([pattern_of(path) for path in table.paths])[fit]
    report = {
        "documents": len(rows),
        "held_out_documents": int(apart_documents.sum()),
        "fields": int(fit.sum()),
        "invalid_samples": sum(row[INVALID] for row in graded),
        "without_valid_sample": sum(row["answer"] is None for row in graded),
        "unlabeled": [name for name in every if name not in fields],
        "chosen": choice.map.candidate.name,
        "candidates": [
            {"name": one.candidate.name, "gain": one.gain, "above": one.above} for one in choice.scores
        ],
        "share": _figures(features["share"][fit], correct[fit], of_fit),
        "calibrated": _figures(out, correct[fit], of_fit),
        "document": _figures(document_out, of_documents.correct, document_groups),
        "by_field": {
            name: {
                **_figures(out[at], correct[fit][at], np.unique(of_fit[at], return_inverse=True)[1]),
                "enough": bool(at.sum() >= ENOUGH and len(np.unique(of_fit[at])) >= ENOUGH // 2),
            }
            for name in fields
            if (at := names == name).any()
        },
    }
    for problem in _problems(report):
        warnings.warn(problem, SemcalWarning, stacklevel=2)
    return replace(calibration, report=report)


def _is_own(row: Row) -> bool:
    return isinstance(row.json.get("schema"), Mapping)


def _figures(p: Floats, correct: Floats, groups: Groups) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        values: Json = metrics.summary(p, correct, groups=groups)
    figures = {name: float(values[name]) for name in FIGURES if name in values}
    counts = {"n": len(p), "documents": int(groups.max()) + 1}
    return counts | {name: None if np.isnan(value) else value for name, value in figures.items()}


def _problems(report: Figures) -> list[str]:
    problems = []
    if report["unlabeled"]:
        names = ", ".join(report["unlabeled"][:5])
        problems.append(f"no reference mentions these fields, which get no probability: {names}")
    if report["without_valid_sample"]:
        problems.append(f"{report['without_valid_sample']} documents have no sample that is valid")
    few = [name for name, figures in report["by_field"].items() if not figures["enough"]]
    if few:
        problems.append(f"fields with too few labels for figures of their own: {', '.join(few[:5])}")
    return problems
