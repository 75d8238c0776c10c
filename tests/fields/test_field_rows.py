"""Fields in rows: shares, alternatives, equivalence of strings, and items for metrics."""

from __future__ import annotations

import json

import pytest
from invoices import SCHEMA, rows

from semcal.errors import InputError
from semcal.fields.rows import (
    add_fields,
    check_has_fields,
    check_structured,
    features_of_field,
    grade_fields,
    item_rows,
)
from semcal.fields.schema import parse_schema
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import FakeEquivalence
from semcal.rows import Row

SHORT = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": ["number", "null"]}}}


def row(*documents, schema=SHORT, **further):
    texts = [text if text is None or isinstance(text, str) else json.dumps(text) for text in documents]
    return Row({"id": "1", "question": "Read it.", "schema": schema, "samples": texts, **further})


def test_a_share_is_of_all_samples_and_invalid_ones_have_no_value():
    (done,) = add_fields([row({"city": "Rome"}, {"city": "rome"}, {"city": "Lima"}, None)])
    assert done["invalid_samples"] == 1
    assert done["answer"] == {"city": "Rome"}
    assert done["fields"]["/city"] == {
        **dict.fromkeys(("probability", "accepted")),
        "value": "Rome",
        "share": 0.5,
        "alternatives": [{"value": "Lima", "share": 0.25}],
    }
    assert done["fields"]["/n"]["value"] is None
    assert done["fields"]["/n"]["share"] == 0.75


def test_a_row_without_a_valid_sample_has_no_answer_and_a_reason():
    (done,) = add_fields([row("none", None)])
    assert (done["answer"], done["fields"], done["invalid_samples"]) == (None, {}, 2)
    assert "no sample is valid" in done["reason"]
    assert grade_fields(done.set(answers={}))["document"] == {"complete": False, "correct": False}


def test_an_equivalence_joins_short_strings_under_the_name_of_the_field():
    same = FakeEquivalence([("Rome", "Roma")])
    documents = [{"city": "Rome"}, {"city": "Roma"}, {"city": "Lima"}]
    (done,) = add_fields([row(*documents)], ClusterConfig(same))
    assert done["fields"]["/city"]["share"] == pytest.approx(2 / 3)


def test_numbers_within_the_tolerance_are_equal():
    schema = {"properties": {"n": {"type": "number", "x-tolerance": 0.1}}}
    (done,) = add_fields([row({"n": 1.0}, {"n": 1.05}, {"n": 1.3}, schema=schema, answers={"n": 1.08})])
    assert done["fields"]["/n"]["share"] == pytest.approx(2 / 3)
    assert grade_fields(done)["fields"]["/n"]["correct"] is True


def test_the_share_of_a_number_counts_all_samples_within_the_tolerance_of_it():
    line = {"properties": {"name": {"type": "string"}, "n": {"type": "number", "x-tolerance": 0.1}}}
    schema = {"properties": {"n": line["properties"]["n"], "lines": {"type": "array", "items": line}}}
    pairs = ((1.0, 1.08), (1.1, 1.16))
    first, second = ({"n": n, "lines": [{"name": "a", "n": 1}, {"name": "b", "n": m}]} for n, m in pairs)
    (done,) = add_fields([row(first, second, schema=schema, answer={**first, "n": 1.05})], kind="given")
    assert {block["share"] for block in done["fields"].values()} == {1}


def test_an_equivalence_compares_a_stated_document_with_the_samples():
    same = ClusterConfig(FakeEquivalence([("Rome", "Roma")]))
    documents = [{"city": "Roma"}, {"city": "Roma"}, {"city": "Lima"}]
    for city, share in (("Rome", 2 / 3), ("Oslo", 0)):
        (done,) = add_fields([row(*documents, answer={"city": city})], same, kind="given")
        assert done["fields"]["/city"]["share"] == pytest.approx(share)
    (done,) = add_fields([row(*documents[:2], greedy='{"city": "Rome"}')], same, kind="greedy")
    assert done["fields"]["/city"]["share"] == 1


def test_an_empty_object_has_the_objects_of_other_samples_as_one_alternative():
    schema = {"properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}
    some = [{"a": {"b": "y"}}, {"a": {"b": "x"}}, {"a": {"b": "x"}}, {"a": {"b": ""}}]
    (done,) = add_fields([row(*[{}] * 6, *some, schema=schema)])
    assert done["fields"]["/a"]["share"] == 0.7
    assert done["fields"]["/a"]["alternatives"] == [{"value": {"b": "x"}, "share": 0.3}]


@pytest.mark.parametrize(("kind", "key"), [("given", "answer"), ("greedy", "greedy")])
def test_a_document_that_is_already_there_is_judged(kind, key):
    stated = row({"city": "Rome"}, {"city": "Lima"}, {"city": "Lima"}, **{key: '{"city": "Rome"}'})
    (done,) = add_fields([stated], kind=kind)
    assert (done["answer"], done["fields"]["/city"]["share"]) == ({"city": "Rome"}, pytest.approx(1 / 3))


@pytest.mark.parametrize("greedy", ['{"city": 1}', "", None])
def test_a_greedy_document_that_is_not_valid_or_missing_is_no_answer(greedy):
    stated = row({"city": "Rome"}, greedy=greedy)
    check_structured(None, stated, kind="greedy")
    (done,) = add_fields([stated], kind="greedy")
    assert (done["answer"], done["fields"], done["invalid_samples"]) == (None, {}, 0)


@pytest.mark.parametrize(
    ("change", "kind", "key"),
    [
        ({"schema": "invoice.json"}, "modal", "'schema'"),
        ({"schema": {"not": {}}}, "modal", "'schema'"),
        ({"answers": {"city": 3}}, "modal", "'answers'"),
        ({"answers": ["Rome"]}, "modal", "'answers'"),
        ({"samples": "Rome"}, "modal", "'samples'"),
        ({}, "given", "'answer'"),
        ({"answer": '{"city": 1}'}, "given", "'answer'"),
        ({}, "greedy", "'greedy'"),
    ],
)
def test_unusable_rows_name_the_key(change, kind, key):
    with pytest.raises(InputError, match=key):
        check_structured(None, row({"city": "Rome"}).set(**change), kind=kind)


def test_features_are_of_the_share_the_values_and_the_context():
    (done,) = add_fields([row({"city": "Rome"}, {"city": "Rome"}, {"city": "Lima"}, None)])
    found = features_of_field("/city", done["fields"]["/city"], 4, "the mill in rome")
    assert found["share"] == 0.5
    assert found["odds"] == pytest.approx(0.0)
    assert found["entropy"] == pytest.approx(1.0397, abs=1e-4)
    assert (found["verbatim"], found["null"], found["depth"]) == (1.0, 0.0, 1.0)


def test_each_graded_field_is_an_item_of_metrics_in_the_group_of_its_document():
    schema = parse_schema(SCHEMA)
    graded = [grade_fields(one, schema) for one in add_fields(list(map(Row, rows(4))), schema=schema)]
    found = list(item_rows(graded))
    assert {item["field"] for item in found} == {"/vendor", "/total", "/paid", "/items/*"}
    assert {item.group for item in found} == {"0", "1", "2", "3"}
    for group in (None, ""):
        assert {item.group for item in item_rows([graded[0].set(group=group)])} == {"0"}
    assert {item.group for item in item_rows([graded[0].set(group=7)])} == {7}
    assert all(item["correct"]["E-SC"] for item in found if item["field"] == "/vendor")


def test_variants_with_another_kind_of_value_under_one_name_are_not_compared():
    kinds = {
        "a": {"type": "array", "items": {"type": "string"}},
        "b": {"type": "integer"},
        "c": {"type": "number"},
    }
    variants = [
        {"type": "object", "properties": {"kind": {"const": kind}, "v": v}} for kind, v in kinds.items()
    ]
    schema = parse_schema({"type": "object", "properties": {"one": {"oneOf": variants}}})
    a, b, c = ({"one": {"kind": kind, "v": value}} for kind, value in (("a", ["x"]), ("b", 5), ("c", 5)))
    for first, reference, correct in ((a, a, [True, True]), (b, a, [False, False]), (b, c, [False, True])):
        made = Row({"id": "1", "samples": [json.dumps(first)] * 2 + [json.dumps(reference)]})
        graded = grade_fields(add_fields([made], schema=schema)[0].set(answers=reference), schema)
        assert [block["correct"] for block in graded["fields"].values()] == correct


KNOWN = {"value": "Rome", "share": 1.0, "alternatives": []}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"/city": 3}, "/city"),
        ({"/city": {**KNOWN, "share": 7}}, "/city"),
        ({"/city": {**KNOWN, "alternatives": [{"value": "Oslo"}]}}, "/city"),
        ({"city": KNOWN}, "city"),
    ],
)
def test_damaged_fields_are_named(fields, path):
    with pytest.raises(InputError, match=f"'fields' {path}"):
        check_has_fields(row({"city": "Rome"}, answer={"city": "Rome"}, fields=fields))


@pytest.mark.parametrize("path", ["/mayor", "/city/0", "/n"])
def test_fields_that_the_schema_of_grades_does_not_have_are_named(path):
    fields = {"/city": KNOWN, path: KNOWN}
    small = {"properties": {"city": {"type": "string"}}}
    made = row({"city": "Rome"}, schema=small, answer={"city": "Rome"}, fields=fields, answers={})
    with pytest.raises(InputError, match=f"'fields'.* {path}"):
        grade_fields(made)
