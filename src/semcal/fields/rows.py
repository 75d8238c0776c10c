"""Structured answers in rows of files: fields, features of fields, and grades.

A row with a schema gets `answer` (the document that its samples agree on), `fields` (for each leaf by JSON
Pointer: value, share of samples and other values) and `invalid_samples`, the number of samples without a
valid document. A calibration adds the probability of each field, and grading its correctness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from semcal.errors import InputError, shown
from semcal.fields.documents import (
    ABSENT,
    FieldKey,
    Item,
    Keys,
    LeafScores,
    agreed_document,
    are_equal,
    commonest_wording,
    grade_document,
    items_of,
    join_numbers,
    leaf_scores,
    leaves_of,
    read_document,
    read_reference,
    with_values,
)
from semcal.fields.schema import InvalidDocument, JsonValue, Node, Schema, escaped, parse_schema
from semcal.files import JsonObject, dumps
from semcal.models.clustering import ClusterConfig, cluster_missing, match_answers
from semcal.models.equivalence import needs_no_model
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, Sampler
from semcal.models.sample import SampleStep, Sampling, SamplingConfig
from semcal.rows import AnswerKind, Row, TokenScores
from semcal.steps import Step, WorkerState
from semcal.text.normal_form import normal_form
from semcal.workers import Progress

#: Keys of rows with structured answers.
SCHEMA, FIELDS, DOCUMENT, REVIEW, INVALID = "schema", "fields", "document", "review", "invalid_samples"
#: The end of a path whose value is empty in a reference, so that all fields below must be empty.
BELOW = "\0"
#: Longest string, in words, that an equivalence compares by meaning.
MOST_WORDS = 20


def is_structured(row: Row, schema: Schema | None = None) -> bool:
    """Return whether the answers of a row are structured, as all are if a schema is given."""
    return schema is not None or row.has(SCHEMA) or row.has(FIELDS)


def schema_of(row: Row, given: Schema | None = None) -> Schema:
    """Return the schema of a row: its own, or the one that is given for all rows."""
    own = row.json.get(SCHEMA)
    if own is None or isinstance(own, str):
        if given is None:
            raise InputError(f"'schema' is {shown(own)}. Pass the schema with --schema FILE")
        return given
    return parse_schema(own)


def check_structured(
    given: Schema | None, row: Row, *, labeled: bool = False, kind: AnswerKind = "modal"
) -> None:
    """Raise InputError unless a row has a schema, texts of samples, and a valid reference if any.

    A row that must be `labeled` has a reference; with another `kind` of answer it has this document.
    """
    _ = row.id, row.scored_tokens, row.group, row.context
    schema = schema_of(row, given)
    if labeled or row.json.get("answers") is not None:
        read_reference(schema, row.json.get("answers"))
    if kind != "modal":
        _stated(row, schema, kind)


def check_to_sample(schema: Schema | None, row: Row, *, labeled: bool = False) -> None:
    """Raise InputError unless a row has a question, or messages, and a valid reference if any."""
    _ = row.id, row.question, row.group, row.context
    if labeled or row.json.get("answers") is not None:
        read_reference(schema_of(row, schema), row.json.get("answers"))


# ---- Fields of samples


@dataclass(frozen=True)
class _Documents:
    """The valid documents of the samples of a row."""

    schema: Schema
    documents: Sequence[JsonValue]
    reasons: Sequence[str]  # of invalid samples
    token_scores: Sequence[LeafScores]  # of the values in samples with known tokens

    @classmethod
    def of(cls, row: Row, schema: Schema) -> _Documents:
        documents, reasons, scores = [], [], list[LeafScores]()
        for text, tokens in zip(row.samples, row.scored_tokens):
            try:
                documents.append(read_document(schema, text))
            except InvalidDocument as error:
                reasons.append(str(error))
                continue
            if tokens is not None:
                scores += leaf_scores(schema, documents[-1], *tokens)
        return cls(schema, documents, reasons, scores)


def add_fields(
    rows: Sequence[Row],
    cluster: ClusterConfig | None = None,
    schema: Schema | None = None,
    kind: AnswerKind = "modal",
) -> list[Row]:
    """Add `answer`, `fields` and `invalid_samples` to rows.

    The answer is the document that the samples agree on, or with another `kind` the row's own: its `answer`
    ("given") or `greedy`. A row without a valid sample has no answer and no fields. The equivalence of
    `cluster` joins strings of up to 20 words of fields that are not in a list; other strings are equal if
    their normal forms are equal.
    """
    read = [_Documents.of(row, schema_of(row, schema)) for row in rows]
    is_stated = [kind != "modal" and bool(one.documents) for one in read]
    stated = [_stated(row, one.schema, kind) if on else None for row, one, on in zip(rows, read, is_stated)]
    joined: list[dict[FieldKey, Any]] = [{} for _ in rows]
    to_compare: list[tuple[int, Node, Row]] = []
    for number, one in enumerate(read):
        by_field: dict[str, tuple[Node, dict[Any, JsonValue]]] = {}
        for document in one.documents:
            for node, value in leaves_of(one.schema.root, document):
                by_field.setdefault(node.path, (node, {}))[1].setdefault(node.key(value), value)
        own = {
            node.path: {"answer": value}
            for node, value in leaves_of(one.schema.root, stated[number])
            if isinstance(value, str) and node.key(value) not in by_field.get(node.path, (node, {}))[1]
        }
        for node, values in by_field.values():
            if node.tolerance:
                join_numbers(node, values.values(), joined[number])
            texts = [value for value in values.values() if isinstance(value, str)]
            answer = own.get(node.path, {})
            short = all(len(text.split()) <= MOST_WORDS for text in (*texts, *answer.values()))
            in_list, are_several = "/*" in node.path, texts and len(texts) + len(answer) > 1
            if are_several and short and not (in_list or node.to_the_letter or node.is_date):
                pseudo = Row({"id": node.path, "question": node.question, "samples": texts, **answer})
                to_compare.append((number, node, pseudo))
    if cluster is not None and to_compare and not needs_no_model(cluster.address):
        clustered = cluster_missing([row for _, _, row in to_compare], cluster)
        matched = iter(match_answers([row for row in clustered if row.has("answer")], "given", cluster.judge))
        for (number, node, _), row in zip(to_compare, clustered):
            firsts = [node.key(row.samples[members[0]]) for members in row.clusters]
            for first, members in zip(firsts, row.clusters):
                joined[number] |= {(node.path, node.key(row.samples[i])): first for i in members}
            place = next(matched).stated_answer("given").cluster if row.has("answer") else None
            if place is not None:
                joined[number][node.path, node.key(row["answer"])] = firsts[place]
    return [
        _with_fields(row, one, Keys(equal), kind, answer)
        for row, one, equal, answer in zip(rows, read, joined, stated)
    ]


def _with_fields(row: Row, sampled: _Documents, keys: Keys, kind: AnswerKind, answer: JsonValue) -> Row:
    counts = {INVALID: len(sampled.reasons)}
    row = row.without(FIELDS, DOCUMENT, REVIEW, "reason")
    if not sampled.documents:
        return row.set(answer=None, fields={}, reason=f"no sample is valid: {sampled.reasons[0]}", **counts)
    if kind == "modal":
        answer = agreed_document(sampled.schema, sampled.documents, keys)
    if answer is None:
        return row.set(answer=None, fields={}, reason="the greedy answer is not valid", **counts)
    scores: dict[FieldKey, list[TokenScores]] = {}
    for node, value, of_value in sampled.token_scores:
        scores.setdefault((node.path, keys.of(node, value)), []).append(of_value)
    items = items_of(sampled.schema, answer, sampled.documents, keys)
    described = {item.path: _described(item, len(row.samples), keys, scores) for item in items}
    return row.set(answer=answer, fields=described, **counts)


def _stated(row: Row, schema: Schema, kind: AnswerKind) -> JsonValue:
    key = "greedy" if kind == "greedy" else "answer"
    value = row.json.get(key)
    if kind == "greedy" and value is None and key in row.json:  # no answer
        return None
    if value is None:
        raise InputError(f"{key!r} is missing, the document that is judged. Add it, or leave --answer out")
    try:
        return read_document(schema, value) if isinstance(value, str) else schema.root.read(value)
    except InvalidDocument as error:
        if kind == "greedy":  # as a sample that is not valid
            return None
        raise InputError(f"{key!r} is not valid under the schema: {error}. Correct the document") from None


def _described(
    item: Item, m: int, keys: Keys, scores: Mapping[FieldKey, Sequence[TokenScores]]
) -> dict[str, Any]:
    """Return the block of a field: value, share of all m samples, and other values with theirs.

    The token scores are means over the samples that state the value.
    """
    by_key: dict[Any, list[JsonValue]] = {}
    stated = [value for value in item.values if value is not ABSENT]
    different = [value for value in stated if not are_equal(item.node, item.value, value, keys)]
    for value in different:  # that there is an object is one value, if the answer has none
        key = keys.of(item.node, value) if item.node.kind == "leaf" else "object"
        by_key.setdefault(key, []).append(value)
    share = (len(stated) - len(different)) / m
    others = sorted(by_key.values(), key=len, reverse=True)
    of_value = scores.get((item.node.path, keys.of(item.node, item.value)))
    return {
        "value": item.value,
        "probability": None,
        "share": share,
        "accepted": None,
        "alternatives": [{"value": commonest_wording(equal), "share": len(equal) / m} for equal in others],
        **({} if item.node.path == pattern_of(item.path) else {"field": item.node.path}),
        **({} if of_value is None else {"token_scores": [fmean(part) for part in zip(*of_value)]}),
    }


# ---- Features


def pattern_of(path: str) -> str:
    """Return the field of a path: "*" stands for the places of elements.

    >>> pattern_of("/items/2/price")
    '/items/*/price'
    """
    return "/".join("*" if part.isdecimal() else part for part in path.split("/"))


def field_of(path: str, block: Mapping[str, Any]) -> str:
    """Return the field of a block at a path; the block names it if keys are numbers, or not in the schema."""
    return str(block.get("field") or pattern_of(path))


def features_of_field(path: str, block: Mapping[str, Any], m: int, context: str | None) -> dict[str, float]:
    """Return the features of a field.

    - `share` of samples with this value, and `odds`, the logarithm of (k + 1/2) / (m − k + 1/2);
    - `entropy` of the values (nats), and `values`, the logarithm of their number;
    - `verbatim`, whether the value stands in the context as it is written (NaN without a context);
    - `null`, whether the field is empty, and `depth`, the number of parts of its path;
    - `smallest-token` and `mean-token`, the probabilities of the value's tokens (NaN if unknown).
    """
    share = float(block["share"])
    others = [float(other["share"]) for other in block["alternatives"]]
    shares = [one for one in (share, *others, 1 - share - sum(others)) if one > 1e-9]
    value, verbatim = block["value"], math.nan
    if context is not None and value is not None:
        verbatim = float(normal_form(str(value)) in context)
    smallest, mean = block.get("token_scores") or (math.nan, math.nan)
    return {
        "share": share,
        "odds": math.log(share * m + 0.5) - math.log((1 - share) * m + 0.5),
        "entropy": -sum(one * math.log(one) for one in shares),
        "values": math.log(len(shares)),
        "verbatim": verbatim,
        "null": float(value in (None, "")),
        "depth": float(path.count("/")),
        "smallest-token": smallest,
        "mean-token": mean,
    }


def context_form(row: Row) -> str | None:
    """Return the normal form of the text that values may stand in: the context, or the messages."""
    texts = [row.context] if row.context is not None else [turn.content for turn in row.messages]
    return normal_form("\n".join(texts)) if texts else None


# ---- Grades


def grade_fields(row: Row, schema: Schema | None = None) -> Row:
    """Add `correct` to each field; to `document` whether no value is missing, and all fields are correct too.

    A key that the reference leaves out is an empty field.
    """
    schema = schema_of(row, schema)
    reference = row.json.get("answers")
    if row.json.get("answer") is None:
        read_reference(schema, reference)
        return row.set(
            fields={}, document={**(row.json.get(DOCUMENT) or {}), "complete": False, "correct": False}
        )
    # the answer lacks the values of fields that were not accepted, if only the others were asked for
    values = {path: block["value"] for path, block in row[FIELDS].items()}
    correct, is_complete = grade_document(schema, with_values(row["answer"], values), reference, Keys())
    if differences := sorted(row[FIELDS].keys() ^ correct.keys()):
        differ = f"'fields' and 'answer' differ in {differences[0]} under this schema"
        raise InputError(f"{differ}. Run `semcal cluster` with this schema")
    fields = {path: {**block, "correct": correct[path]} for path, block in row[FIELDS].items()}
    right = is_complete and all(correct.values())
    return row.set(
        fields=fields, document={**(row.json.get(DOCUMENT) or {}), "complete": is_complete, "correct": right}
    )


def labeled_fields(rows: Iterable[Row]) -> set[str]:
    """Return the fields that the reference of at least one graded row mentions, and all fields above them."""
    found: set[str] = set()
    rows = list(rows)

    def visit(value: JsonValue, path: str) -> None:
        if value in (None, []):
            found.add(f"{path}{BELOW}")
        found.add(path)
        if isinstance(value, Mapping):
            for name, item in value.items():
                if name != "any_of":
                    visit(item, f"{path}/{escaped(name)}")
        elif isinstance(value, list):
            for item in value:
                visit(item, f"{path}/*")

    for row in rows:
        visit(row.json.get("answers"), "")
    blocks = (block for row in rows for block in (row.json.get(FIELDS) or {}).items())
    named = {
        block["field"] for path, block in blocks if "field" in block and {path, pattern_of(path)} & found
    }
    return found | named | {pattern_of(path) for path in found}


def is_labeled(pattern: str, labeled: set[str]) -> bool:
    """Return whether a reference mentions a field or its list, or says that all above it is empty."""
    parts = pattern.split("/")
    above = ("/".join(parts[:n]) for n in range(2, len(parts)))
    is_element = pattern.endswith("/*") and pattern[:-2] in labeled
    return pattern in labeled or is_element or any(f"{path}{BELOW}" in labeled for path in above)


def item_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row for each graded field: confidence by measure and correctness, in the group of its document.

    Fields that no reference mentions are left out. Rows without structured answers stay as they are.
    """
    labeled = labeled_fields(row for row in rows if is_structured(row))
    for row in rows:
        if not is_structured(row):
            yield row
            continue
        for path, block in (row.json.get(FIELDS) or {}).items():
            if "correct" not in block or not is_labeled(pattern := field_of(path, block), labeled):
                continue
            group = row.id if row.group in (None, "") else row.group
            json: JsonObject = {"id": f"{row.id}{path}", "field": pattern, "group": group}
            shared = {key: row[key] for key in row if key not in ("answer", "answers", "correct", FIELDS)}
            json = {**shared, **json, "confidence": {"E-SC": block["share"]}}
            json |= {"correct": {"E-SC": block["correct"]}}
            if (p := block.get("probability")) is not None:
                json |= {"answer": str(block["value"]), "probability": p, "answer_correct": block["correct"]}
                if block.get("accepted") is not None:
                    json |= {"abstained": not block["accepted"]}
            yield Row(json, row.line)


# ---- Steps


def checked_by_kind(
    flat: Callable[[Row], object], structured: Callable[[Row], object], schema: Schema | None = None
) -> Callable[[Row], None]:
    """Return a check of rows, which differs between structured and other answers."""

    def check(row: Row) -> None:
        (structured if is_structured(row, schema) else flat)(row)

    return check


def check_has_fields(row: Row) -> None:
    """Raise InputError unless a row has fields."""
    _ = row.id, row.samples
    if not isinstance(row.json.get(FIELDS), Mapping):
        raise InputError(
            "'fields' is missing, which holds the fields of the answer. Run `semcal cluster` first"
        )
    for path, block in row.json[FIELDS].items():
        others = block.get("alternatives") if isinstance(block, Mapping) else None
        if not (path.startswith("/") and isinstance(others, list) and all(map(_has_share, (block, *others)))):
            reason = f"got {shown(block)}, expected a value, a share and alternatives"
            raise InputError(f"'fields' {path}: {reason}. Run `semcal cluster` again")


def _has_share(block: JsonValue) -> bool:
    share = block.get("share") if isinstance(block, Mapping) and "value" in block else None
    return isinstance(share, int | float) and 0 <= share <= 1


@dataclass(frozen=True)
class StructuredStep(Step):
    """Run `work` on rows with structured answers, and another step on the others."""

    name: ClassVar[str] = "fields"
    others: Step
    work: Callable[[Sequence[Row], WorkerState], Sequence[Row]]
    schema: Schema | None = None  # given for all rows

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The kinds of models of the other step."""
        return self.others.needs

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Return all rows in their order."""
        is_one = [row.failure is None and is_structured(row, self.schema) for row in rows]
        structured = [row for row, one in zip(rows, is_one) if one]
        flat = [row for row, one in zip(rows, is_one) if not one]
        done = iter(self.work(structured, models) if structured else ())
        rest = iter(self.others(flat, models, progress) if flat else ())
        return [next(done if one else rest) for one in is_one]


def cluster_fields(
    rows: Sequence[Row], models: WorkerState, *, linkage: str, schema: Schema | None
) -> Sequence[Row]:
    """Find the fields of rows with the equivalence of a worker."""
    with_fields = add_fields(rows, ClusterConfig(models.equivalence, linkage), schema)
    models.costs.update(
        documents=sum(len(row.samples) for row in rows),
        invalid_documents=sum(row[INVALID] for row in with_fields),
    )
    return with_fields


# ---- Sampling

#: The system message for structured answers, and the usual limit of their tokens.
STRUCTURED = "Answer with one JSON object that is valid under the schema, and with nothing else."
STRUCTURED_TOKENS = 512


def system_message(model: Sampler, schema: Schema) -> str:
    """Return the usual system message; it has the schema for a local model, and a server gets it apart."""
    is_local = model.capabilities.answers_a_request is None
    return STRUCTURED + (f" The schema is:\n{dumps(dict(schema.json))}" if is_local else "")


def document_step(
    schema: Schema,
    config: SamplingConfig,
    kind: AnswerKind,
    recalibrator: AnyRecalibrator,
    prompt: PromptConfig,
) -> SampleStep:
    """Return the step that samples documents; a given answer stays in its row."""
    sampling = Sampling((recalibrator,), prompt, config, schema=schema.json)
    return SampleStep(sampling, full=True, answer="greedy" if kind == "greedy" else "modal")
