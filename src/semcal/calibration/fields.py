"""Learn the probability that each field of a structured answer is correct, from labeled documents.

All fields share one map. Fields of one document stay in one fold, and are tested together for a threshold.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from semcal import inputs, metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import (
    ID_LETTERS,
    CalibrationConfig,
    LabeledAnswers,
    Threshold,
    calibration_config,
)
from semcal.calibration.features import MOST_LACKING
from semcal.calibration.learning import open_book_of
from semcal.calibration.thresholds import ThresholdLabels, kept_apart, set_thresholds
from semcal.data.question import group_labels
from semcal.errors import (
    FitError,
    InputError,
    SemcalWarning,
    StoreError,
    UndefinedWarning,
    UsageError,
    shown,
)
from semcal.fields.documents import with_values
from semcal.fields.rows import (
    DOCUMENT,
    FIELDS,
    INVALID,
    REVIEW,
    add_fields,
    check_structured,
    context_form,
    features_of_field,
    field_of,
    grade_fields,
    is_labeled,
    labeled_fields,
    schema_of,
)
from semcal.fields.schema import Schema, escaped, parse_schema
from semcal.files import dumps, json_checksum
from semcal.hub_names import FIELD_CALIBRATION
from semcal.inputs import CalibrationKeywords, Samples
from semcal.measuring import slice_of
from semcal.metrics.frequencies import Groups
from semcal.metrics.overview import dependent_noise_floor
from semcal.metrics.probability_maps import (
    CATEGORY,
    FEW,
    GROUP,
    PLENTY,
    RATE,
    Features,
    Labelled,
    MapCandidate,
    MapScore,
    ProbabilityMap,
    choose_map,
    part_of,
    predict_out_of_fold,
)
from semcal.models.clustering import ClusterConfig
from semcal.recalibration.files import not_finite, read_contents, write_contents
from semcal.recalibration.records import check_enough
from semcal.rows import AnswerKind, Json, Row
from semcal.steps import Step
from semcal.text import aligned

TOKENS = ("smallest-token", "mean-token")
#: Features of fields whose larger values never raise, and never lower, the probability.
FALLING, RISING = ("entropy", "values"), ("odds", RATE, "verbatim", *TOKENS)
#: Fewest labels of a field for figures of its own.
ENOUGH = 20


@dataclass(frozen=True)
class Promises:
    """The thresholds of fields and of documents, one for each risk, the strictest first."""

    fields: tuple[Threshold, ...] = ()
    documents: tuple[Threshold, ...] = ()


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
        The map of fields, and the map of documents.
    thresholds, document_thresholds : tuple of Threshold
        The threshold of each risk: at most this share of the accepted fields is wrong, and of the accepted
        documents has an error. docs/fields.md says which fields count.
    by : str, optional
        The column whose values have thresholds of their own, in `by_value`.
    by_value : mapping of str to Promises
        The thresholds for each value of the column. A document with another value is not accepted.
    m : int
        Number of samples of a document.
    equivalence, linkage : str
        The settings that compared strings.
    answer_kind : {"modal", "greedy", "given"}
        The document whose fields are judged.
    sampled_by : mapping
        The known model and prompt of all samples; samples of others are rejected.
    report : mapping
        Numbers of documents and fields, candidates, and figures, out of fold, overall and by field. The noise
        floor `ace_floor` is for fields that depend on each other within a document.
    open_book : bool or None
        Whether the labeled documents had a context; None if mixed or in messages.
    labeled : LabeledAnswers
        The documents that the map of documents was fitted to.

    Notes
    -----
    The probability of a document is at most the smallest probability of its fields.

    Examples
    --------
    >>> FieldCalibration.from_pretrained("my-fields")  # doctest: +SKIP
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
    by: str | None = None
    by_value: Mapping[str, Promises] = field(default_factory=dict)
    answer_kind: AnswerKind = "modal"
    sampled_by: Mapping[str, str | float] = field(default_factory=dict)
    open_book: bool | None = None
    labeled: LabeledAnswers = field(default_factory=LabeledAnswers)
    #: As in a `Calibration`: no score of rows is calibrated, and production labels do not extend it.
    score: ClassVar[None] = None
    ancestors: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def id(self) -> str:
        """The hash of all parts that determine answers, probabilities and decisions."""
        contents = asdict(self)
        decisive = {name: contents[name] for name in contents.keys() - {"report", "labeled"}}
        return json_checksum(decisive)[:ID_LETTERS]

    @property
    def all_thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds of whole documents, as a watch needs them."""
        return self.document_thresholds

    @property
    def limit(self) -> float | None:
        """The threshold of documents for the largest risk, if one was shown to hold."""
        return self.document_thresholds[-1].threshold if self.document_thresholds else None

    def difference(self, sampled_by: Mapping[str, Any]) -> str | None:
        """Return the first key in which samples differ from those of the calibration; None without any."""
        known = self.sampled_by.items()
        return next((name for name, value in known if sampled_by.get(name, value) != value), None)

    @property
    def parsed(self) -> Schema:
        """The schema with its tree of fields."""
        return parse_schema(self.schema)

    @property
    def cluster(self) -> ClusterConfig:
        """The settings that compare strings, with their equivalence loaded."""
        return inputs.load_cluster_config(ClusterConfig(self.equivalence, self.linkage))

    def predict(self, rows: Samples) -> list[Row]:
        """Return rows as of `calibrate_fields`, with `answer`, `fields`, `document` and `review`.

        InputError if a row is invalid, or was sampled otherwise than the labeled documents.
        """
        return FieldStep(self, self.cluster)(document_rows(rows, self.schema, kind=self.answer_kind)[0])

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """Add probabilities to rows with `fields`, and `document` and `review`.

        `review` lists the fields below the threshold, or all fields if there is none, the least probable
        first, after the fields without a probability. InputError if a row has another number of samples.
        """
        for row in rows:
            self._check(row)
        table = FieldTable.of(rows, self.fields, labels=False)
        known = table.features[CATEGORY] >= 0
        p, scores = _predict(self.map, table.features)
        of_documents = _of_documents(table.place, p, known, len(rows))
        p_document, document_scores = _predict(self.document_map, of_documents, of_documents["least"])
        applied = []
        for number, row in enumerate(rows):
            limit, document_limit = self.limits(row)
            blocks, order = dict(row.json.get(FIELDS) or {}), []
            for i in np.flatnonzero(table.place == number).tolist():
                probability = float(p[i]) if known[i] else None
                accepted = None if limit is None else bool(known[i] and scores[i] >= limit)
                path = table.paths[i]
                blocks[path] = {**blocks[path], "probability": probability, "accepted": accepted}
                if not accepted:
                    order.append((-1.0 if probability is None else float(scores[i]), path))
            is_read = row.json.get("answer") is not None
            whole: dict[str, Any] = {
                "probability": float(p_document[number]) if is_read else None,
                "accepted": None
                if document_limit is None
                else bool(is_read and document_scores[number] >= document_limit),
            }
            review = [path for _, path in sorted(order, key=lambda pair: pair[0])]
            applied.append(row.set(**{FIELDS: blocks, DOCUMENT: whole, REVIEW: review}))
        return applied

    def _check(self, row: Row) -> None:
        if other := self.difference(row.sampled_by.to_json()):
            raise InputError(
                f"question {row.id!r}: 'sampled_by' has another {other} than the samples of the "
                "calibration. Sample with its model and prompt, or calibrate again"
            )
        if schema_of(row, self.parsed).hash != self.parsed.hash:
            raise InputError(f"question {row.id!r}: 'schema' is not that of the calibration. Leave it out")
        if len(row.samples) != self.m:
            raise InputError(
                f"question {row.id!r}: 'samples' holds {len(row.samples)} samples, and the calibration "
                f"was learned with {self.m}. Sample {self.m} documents"
            )

    def limits(self, row: Row) -> tuple[float | None, float | None]:
        """Return the least scores of an accepted field and of an accepted document, None without a risk."""
        if self.by is None:
            return _limit(self.thresholds), _limit(self.document_thresholds)
        one = self.by_value.get(slice_of(row, self.by))
        if one is not None:
            return _limit(one.fields), _limit(one.documents)
        some = next(iter(self.by_value.values()), Promises())
        return (np.inf if some.fields else None), (np.inf if some.documents else None)

    @property
    def promises(self) -> list[tuple[Threshold, str]]:
        """The thresholds of fields and of documents, each with its guarantee, also by value of a column."""
        parts = {"": Promises(self.thresholds, self.document_thresholds)}
        parts |= {f"{self.by} {value}: ": one for value, one in self.by_value.items()}
        return [
            (one, name + _sentence_about(kind, one.sentence))
            for name, part in parts.items()
            for kind, thresholds in (("fields", part.fields), ("documents", part.documents))
            for one in thresholds
        ]

    @property
    def summary(self) -> str:
        """The promises and the figures as a text, a line for each field."""
        report = self.report
        lines = [f"{sentence.rstrip('.')}." for _, sentence in self.promises]
        held_out = report["held_out_documents"]
        counts = f"{report['fields']:,} fields of {report['document']['n']:,} documents"
        tested = f"; {held_out:,} other documents test the thresholds" if held_out else ""
        lines += [f"Figures of {counts}, with the map {report['chosen']}{tested}.", ""]
        names = {"accuracy": "accuracy", "mean_confidence": "mean confidence", "ace": "ACE"}
        names |= {"ace_floor": "noise floor", "auroc": "AUROC"}
        table = [["", "fields", *names.values()]]
        figures = {"share of samples": report["share"], "calibrated": report["calibrated"]}
        for label, values in {**figures, **report["by_field"]}.items():
            cells = ["–" if values.get(name) is None else f"{values[name]:.3f}" for name in names]
            table.append([label, str(values["n"]), *cells])
        return "\n".join([*lines, *aligned(table)])

    def to_report(self) -> dict[str, Any]:
        """Return the report with all thresholds, as `semcal calibrate` prints it."""
        contents = asdict(self)
        names = ["thresholds", "document_thresholds", *([] if self.by is None else ["by", "by_value"]), "m"]
        return {**self.report, **{name: contents[name] for name in names}}

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write the calibration to a directory, and return the path of its file."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        contents = asdict(self)
        return write_contents(folder, FIELD_CALIBRATION, {"json_schema": contents.pop("schema"), **contents})

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> FieldCalibration:
        """Load a calibration; UsageError if the directory holds none, StoreError if its file is damaged."""
        contents, path = read_contents(directory, FIELD_CALIBRATION)
        contents |= {"schema": contents.pop("json_schema", None)}
        try:
            if wrong := [where for where, _ in not_finite(contents)]:
                raise InputError(f"{wrong[0]}: expected a finite number")
            return _CONTENTS.validate_json(dumps(contents), strict=True)
        except (ValidationError, InputError) as error:
            raise StoreError(f"{path}: {error}. Calibrate again") from error


_CONTENTS = TypeAdapter(FieldCalibration)


def as_field_calibration(calibration: object) -> FieldCalibration | None:
    """Return a calibration of fields, or the one in a directory; None for other calibrations."""
    if isinstance(calibration, str | Path) and (Path(calibration) / FIELD_CALIBRATION.file).is_file():
        return FieldCalibration.from_pretrained(calibration)
    return calibration if isinstance(calibration, FieldCalibration) else None


@dataclass(frozen=True)
class FieldStep(Step):
    """Add fields with their probabilities to rows, compared as the calibration was learned."""

    name: ClassVar[str] = "measure"
    calibration: FieldCalibration
    cluster: ClusterConfig | None = None  # by default with the equivalence of the worker
    accepted_only: bool = False  # `answer` has null for fields that are not accepted

    def __call__(self, rows: Sequence[Row], models: Any = None, *_: object) -> list[Row]:
        """Return the rows with probabilities, in their order."""
        calibration = self.calibration
        cluster = self.cluster or ClusterConfig(models.equivalence, calibration.linkage)
        found = add_fields(rows, cluster, calibration.parsed, calibration.answer_kind)
        applied = calibration.apply(found)
        if not self.accepted_only:
            return applied
        return [row.set(answer=with_values(row["answer"], dict.fromkeys(row[REVIEW]))) for row in applied]


def _sentence_about(kind: str, sentence: str) -> str:
    """Return the sentence of a threshold of questions for fields or documents."""
    of_fields = [("groups of questions", "documents"), ("new group", "new document")]
    words = of_fields if kind == "fields" else []
    words += [(": answers", ": accepts"), ("answers", kind), ("Ask easier questions, or use", "Use")]
    words += [("questions", kind), ("question", kind[:-1])]
    for word, other in words:
        sentence = sentence.replace(word, other)
    return sentence


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
        groups = _groups(rows)
        paths, place, correct, lines = [], [], [], []
        for number, row in enumerate(rows):
            context = context_form(row)
            for path, block in (row.json.get(FIELDS) or {}).items():
                category = code.get(field_of(path, block), -1)
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


def _groups(rows: Sequence[Row]) -> Groups:
    return group_labels((*row.ties, ("row", number)) for number, row in enumerate(rows))


#: The maps of documents, from the product and the smallest of the probabilities of their fields.
DOCUMENT_MAPS = (
    MapCandidate("none", ("product",)),
    MapCandidate("beta", ("product",), fewest=FEW),
    MapCandidate("beta", ("least",), fewest=PLENTY),
)


def _candidates(features: Features) -> list[MapCandidate]:
    """Return the maps that are tried: the share itself, its beta map, and regressions with the field rate."""
    with_value = features["null"] == 0
    lacking = {name: np.isnan(features[name][with_value]).sum() for name in TOKENS}
    tokens = [name for name in TOKENS if lacking[name] <= MOST_LACKING * with_value.sum() > 0]
    known = [*("entropy", "values", "verbatim", "null", "depth"), *tokens]
    known = [name for name in known if np.ptp(np.nan_to_num(features[name])) > 0]

    def logistic(names: tuple[str, ...], tier: int = 0) -> MapCandidate:
        rising, falling = (tuple(n for n in names if n in part) for part in (RISING, FALLING))
        read = tuple(name for name in names if name in TOKENS)
        return MapCandidate("logistic", names, read, rising, falling, max(PLENTY, FEW * len(names)), tier)

    simple = ("odds", RATE)
    sets = dict.fromkeys(((*simple, *(n for n in known if n in tokens)), (*simple, *known)))
    return [
        MapCandidate("none", ("share",)),
        MapCandidate("beta", ("share",), fewest=FEW),
        logistic(simple, tier=-1),
        *(logistic(names, tier=1) for names in sets if names != simple),
    ]


def _predict(chosen: ProbabilityMap, features: Features, most: Any = 1.0) -> tuple[Floats, Floats]:
    """Return the probabilities and the scores of a map, each at most `most`."""
    if not len(next(iter(features.values()))):
        return np.zeros(0), np.zeros(0)
    return np.minimum(chosen.predict(features), most), np.minimum(chosen.scores(features), most)


def _of_documents(place: Groups, p: Floats, known: Any, n: int) -> dict[str, Floats]:
    """Return the features of documents: the product and the smallest of the probabilities of fields."""
    product, least = np.ones(n), np.ones(n)
    np.multiply.at(product, place[known], p[known])
    np.minimum.at(least, place[known], p[known])
    return {"product": product, "least": least}


def calibrate_fields(
    rows: Samples,
    cluster: ClusterConfig | None = None,
    schema: Any = None,
    *,
    document_risks: float | Sequence[float] = (),
    by: str | None = None,
    seed: int = 0,
    **options: Unpack[CalibrationKeywords],
) -> FieldCalibration:
    """Learn the probability of fields from labeled documents with samples.

    Parameters
    ----------
    rows : file, DataFrame or dicts
        Rows with `id`, `samples` (texts), `answers` (the reference document) and `context`.
    cluster : ClusterConfig, optional
        The settings that compare strings.
    schema : dict, pydantic class or Schema, optional
        The schema of rows without a `schema` of their own.
    document_risks : float or sequence of float
        Largest shares, in (0, 1), of documents with an error among accepted documents. Two in five documents
        are held out for the thresholds.
    by : str, optional
        Column whose k values have thresholds of their own, each with `delta` / k.
    seed : int
        Seed of the folds, and of the choice of held-out documents.
    **options
        Fields of `semcal.CalibrationConfig`: `answer`, the document whose fields are judged; `risks`, largest
        shares of wrong values among accepted fields; and `delta`, the probability that a risk is exceeded,
        for fields and for documents.

    Returns
    -------
    FieldCalibration
        The argument of `semcal.score`, `semcal.ask_many` and `semcal.check`, with `report` and
        `save_pretrained` (docs/fields.md).

    Raises
    ------
    InputError
        If a row, a reference or the schema is invalid, rows have several schemas or numbers of samples, or
        no row has the column `by`.
    FitError
        If there are fewer than 5 documents or labeled fields, or none can be held out for a threshold.

    Examples
    --------
    >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    >>> rows = [
    ...     {"id": f"{i}", "samples": ['{"city": "Rome"}', '{"city": "Oslo"}', '{"city": "Rome"}'],
    ...      "answers": {"city": "Rome" if i % 3 else "Oslo"}}
    ...     for i in range(60)
    ... ]
    >>> calibration = calibrate_fields(rows, ClusterConfig("exact"), schema)
    >>> calibration.fields, round(calibration.report["share"]["accuracy"], 2)
    (('/city',), 0.67)
    """
    if not isinstance(cluster, ClusterConfig | None):
        raise UsageError(f"cluster is {shown(cluster)}. Pass a ClusterConfig, or nothing")
    cluster = inputs.load_cluster_config(cluster or ClusterConfig())
    inputs.check_options(options, ["answer", "risk", "risks", "delta"], of="calibrate_fields")
    config = calibration_config(None, dict(options), of="calibrate_fields")
    document_risks = CalibrationConfig(risks=document_risks).risks  # the smallest first
    rows, schema = document_rows(rows, schema, labeled=True, kind=config.answer)
    check_enough(len(rows), of="to calibrate on")
    if by is not None and not any(row.has(by) for row in rows):
        raise InputError(f"{by!r}: no row has this column of 'by'. Pass one of {', '.join(rows[0].json)}")
    values = np.array(["" if by is None else slice_of(row, by) for row in rows])
    graded = [grade_fields(row, schema) for row in add_fields(rows, cluster, schema, config.answer)]
    if all(row["answer"] is None for row in graded):
        raise FitError(f"samples: in all documents, {graded[0]['reason']}. Correct the samples or the schema")
    labeled = labeled_fields(graded)
    every = sorted({field_of(*block) for row in graded for block in row[FIELDS].items()})
    fields = tuple(name for name in every if is_labeled(name, labeled))
    table = FieldTable.of(graded, fields)
    check_enough(len(table.paths), of="among the fields of the documents")
    has_risks = bool(config.risks or document_risks)
    learned, of_documents = _learn_both(table, graded, fields, seed, hold_out=has_risks)
    report = _report(graded, learned, of_documents, fields, every)
    for problem in _problems(report, graded, set(map(escaped, schema.root.properties))):
        warnings.warn(problem, SemcalWarning, stacklevel=2)
    promises, is_read = {}, np.array([row["answer"] is not None for row in graded])
    for value in dict.fromkeys(sorted(values)):
        of_value, level = values == value, config.delta / len({*values})
        promises[str(value)] = Promises(
            learned.thresholds(config.risks, level, seed, of_value[table.place]),
            of_documents.thresholds(document_risks, level, seed, of_value[is_read]),
        )
    of_all = promises[""] if by is None else Promises()
    return FieldCalibration(
        schema=schema.json,
        fields=fields,
        map=learned.map,
        document_map=of_documents.map,
        m=len(rows[0].samples),
        equivalence=cluster.address,
        linkage=cluster.linkage,
        report=report,
        thresholds=of_all.fields,
        document_thresholds=of_all.documents,
        by=by,
        by_value={} if by is None else promises,
        answer_kind=config.answer,
        sampled_by=_common_origin(rows),
        open_book=open_book_of(rows),
        labeled=of_documents.labeled,
    )


def document_rows(rows: Samples, given: Any = None, **checked: Any) -> tuple[list[Row], Schema]:
    """Return rows of structured answers and their schema, the given one or that of the rows.

    The rows are checked by `check_structured` with these options.
    """
    schema: Schema | None = given if isinstance(given, Schema | None) else parse_schema(given)
    read = inputs.as_sample_rows(rows, "rows", of_documents=partial(check_structured, schema, **checked))
    own = [schema_of(row) for row in read if not isinstance(row.json.get("schema"), str | None)]
    if len({one.hash for one in (*own, *([] if schema is None else [schema]))}) > 1:
        raise InputError("'schema' differs between rows. Calibrate the rows of each schema separately")
    if len({len(row.samples) for row in read}) > 1:
        raise InputError("'samples' differ in number between rows. Use the same number for all documents")
    return read, schema or own[0]


def _learn_both(
    table: FieldTable, graded: Sequence[Row], fields: Sequence[str], seed: int, *, hold_out: bool
) -> tuple[_Learned, _Learned]:
    """Learn the map of fields, and the map of documents from the probabilities out of fold.

    A document without a valid sample has no probability, and is not learned from. One without labeled fields
    counts as one field where documents are held out.
    """
    groups, of_document = table.features[GROUP].astype(np.intp), _groups(graded)
    is_read = np.array([row["answer"] is not None for row in graded])
    no_cap, apart = np.ones(len(groups)), np.zeros(0, dtype=np.intp)
    if hold_out:
        bare = np.setdiff1d(np.flatnonzero(is_read), table.place)
        every = np.concatenate([groups, of_document[bare]])
        apart = every[kept_apart(len(every), np.unique(every, return_inverse=True)[1], seed)]
    held_out = np.isin(groups, apart)
    candidates = _candidates(table.features)
    learned = _Learned.of(table.features, table.correct, candidates, groups, held_out, no_cap, seed)
    p = learned.map.predict(table.features)
    p[~held_out] = learned.out_of_fold
    of_documents = _of_documents(table.place, p, np.ones(len(p), dtype=bool), len(graded))
    of_documents = part_of(of_documents, is_read)
    correct = np.array([float(is_right(row, fields)) for row in graded])[is_read]
    of_document, cap = of_document[is_read], of_documents["least"]
    held_out = np.isin(of_document, apart)
    return learned, _Learned.of(of_documents, correct, DOCUMENT_MAPS, of_document, held_out, cap, seed)


def _report(
    graded: Sequence[Row],
    learned: _Learned,
    of_documents: _Learned,
    fields: Sequence[str],
    every: Sequence[str],
) -> dict[str, Any]:
    """Return the numbers of documents, fields and samples, and the figures out of fold."""
    fitted = ~learned.held_out
    names = np.array(fields)[learned.features[CATEGORY].astype(np.intp)][fitted]
    return {
        "documents": len(graded),
        "held_out_documents": int(of_documents.held_out.sum()),
        "fields": len(names),
        "invalid_samples": sum(row[INVALID] for row in graded),
        "without_valid_sample": sum(row["answer"] is None for row in graded),
        "unlabeled": [name for name in every if name not in fields],
        "chosen": learned.map.candidate.name,
        "candidates": [
            {"name": one.candidate.name, "gain": one.gain, "above": one.above} for one in learned.scores
        ],
        "share": learned.figures(learned.features["share"][fitted]),
        "calibrated": learned.figures(),
        "document": of_documents.figures(),
        "by_field": {name: learned.figures(at=names == name) for name in fields if name in names},
    }


@dataclass(frozen=True)
class _Learned:
    """A map with its cross-validation, and the items that it was learned from and tested on."""

    map: ProbabilityMap
    scores: Sequence[MapScore]
    out_of_fold: Floats  # of the fitted items
    features: Features
    correct: Floats
    groups: Groups
    held_out: NDArray[np.bool_]
    cap: Floats  # largest probability of each item

    @classmethod
    def of(
        cls,
        features: Features,
        correct: Floats,
        candidates: Sequence[MapCandidate],
        groups: Groups,
        held_out: NDArray[np.bool_],
        cap: Floats,
        seed: int,
    ) -> Self:
        labels = Labelled(features, correct, candidates).part(~held_out)
        of_fit = np.unique(groups[~held_out], return_inverse=True)[1]
        choice = choose_map(*labels, groups=of_fit, seed=seed)
        out, _ = predict_out_of_fold([labels], groups=of_fit, seed=seed)
        out = np.minimum(out, cap[~held_out])
        return cls(choice.map, choice.scores, out, features, correct, groups, held_out, cap)

    @property
    def labeled(self) -> LabeledAnswers:
        """The fitted items, with probabilities of the map, and out of fold."""
        fitted = ~self.held_out
        p, _ = _predict(self.map, part_of(self.features, fitted), self.cap[fitted])
        correct = tuple(map(bool, self.correct[fitted]))
        return LabeledAnswers(tuple(p.tolist()), correct, tuple(self.out_of_fold.tolist()), correct)

    def thresholds(
        self, risks: Sequence[float], delta: float, seed: int, at: NDArray[np.bool_]
    ) -> tuple[Threshold, ...]:
        """Return the threshold of each risk, tested on the held-out items chosen by `at`."""
        tested = self.held_out & at
        if not risks or not tested.any():
            return tuple(Threshold(None, risk, delta / len(risks), 1, 0, 0, None) for risk in risks)
        labels = ThresholdLabels(
            _predict(self.map, part_of(self.features, tested), self.cap[tested])[1],
            self.correct[tested],
            np.unique(self.groups[tested], return_inverse=True)[1],
        )
        return set_thresholds(labels, risks, delta, seed=seed)

    def figures(self, p: Floats | None = None, at: Any = slice(None)) -> dict[str, Any]:
        """Return the figures of some of the fitted items, by default of the probabilities out of fold.

        If the map is a constant, its AUROC is that of the feature that orders the items.
        """
        correct = self.correct[~self.held_out][at]
        groups = np.unique(self.groups[~self.held_out][at], return_inverse=True)[1]
        is_constant = p is None and self.map.candidate.kind == "constant"
        p = (self.out_of_fold if p is None else p)[at]
        order = self.map.scores(part_of(self.features, ~self.held_out))[at] if is_constant else p
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedWarning)
            floor = dependent_noise_floor(p, correct, groups)
            alone = metrics.noise_floor(p, correct)
            auroc = metrics.auroc(order, correct)
        n, documents = len(correct), int(groups.max()) + 1
        figures = {
            "accuracy": correct.mean(),
            "mean_confidence": p.mean(),
            "ace": floor.observed,
            "ace_floor": floor.mean,
            "ace_floor_95": floor.quantile_95,
            "ace_floor_independent": alone.mean,
            "auroc": auroc,
            "gain": metrics.gain(p, correct),
        }
        return {
            "n": n,
            "documents": documents,
            "enough": n >= ENOUGH and documents >= ENOUGH // 2,
            **{name: None if np.isnan(value) else float(value) for name, value in figures.items()},
        }


def is_right(row: Row, fields: Sequence[str]) -> bool:
    """Return whether a graded document has no missing value, and its labeled fields are all correct."""
    blocks = row[FIELDS].items()
    return bool(row[DOCUMENT]["complete"]) and all(
        block["correct"] for path, block in blocks if field_of(path, block) in fields
    )


def _common_origin(rows: Sequence[Row]) -> dict[str, str | float]:
    """Return the model and the prompt that all rows were sampled with, as far as they are known."""
    origins = [row.sampled_by.to_json() for row in rows]
    names = ("model", "revision", "prompt_hash", "temperature")
    common = {name: {one.get(name) for one in origins} for name in names}
    return {name: value for name, (value, *more) in common.items() if value is not None and not more}


def _problems(report: Json, graded: Sequence[Row], known: set[str]) -> list[str]:
    problems = []
    named = {path.split("/")[1] for row in graded for path in row[FIELDS]}
    if unknown := sorted({escaped(key) for row in graded for key in row["answers"]} - named - known):
        problems.append(f"references have keys that neither schema nor documents have: {', '.join(unknown)}")
    if report["unlabeled"]:
        names = ", ".join(report["unlabeled"][:5])
        problems.append(f"no reference mentions these fields, which get no probability: {names}")
    if without := [row for row in graded if row["answer"] is None]:
        problems.append(
            f"{len(without)} documents have no valid sample, as {without[0].id!r}: {without[0]['reason']}"
        )
    if 5 * report["invalid_samples"] > (m := sum(len(row.samples) for row in graded)):
        problems.append(f"{report['invalid_samples']} of {m} samples hold no document valid under the schema")
    if few := [name for name, figures in report["by_field"].items() if not figures["enough"]]:
        problems.append(f"fields with too few labels for figures of their own: {', '.join(few[:5])}")
    return problems
