"""Probabilities of fields: the field rate, one map, thresholds over documents, and files."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from invoices import SCHEMA, rows
from pydantic import BaseModel, Field

from semcal.calibration.fields import FieldCalibration, calibrate_fields
from semcal.errors import FitError, InputError, SemcalWarning, StoreError, UsageError
from semcal.fields.rows import add_fields, grade_fields
from semcal.fields.schema import parse_schema
from semcal.metrics.probability_maps import CATEGORY, GROUP, RATE, MapCandidate
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row

EXACT = ClusterConfig(ExactMatch())


def learn(documents, **options):
    """The calibration of invoices, whose field `note` no reference has."""
    with pytest.warns(SemcalWarning, match="/note"):
        return calibrate_fields(list(map(Row, documents)), EXACT, parse_schema(SCHEMA), **options)


@pytest.fixture(scope="module")
def calibration():
    return learn(rows(), risks=[0.3], document_risks=[0.9])


def test_the_field_rate_is_of_the_other_documents():
    features = {
        CATEGORY: np.array([0.0, 0, 0, 1, 1, 1]),
        GROUP: np.array([0.0, 1, 2, 0, 1, 2]),
        "x": np.zeros(6),
    }
    correct = np.array([1.0, 1, 0, 0, 0, 1])
    fitted = MapCandidate("logistic", (RATE,)).fit(features, correct)
    g = 0.5  # (3 + 1/2) / (6 + 1)
    of_first = math.log((2 + 5 * g) / (1 + 5 * (1 - g)))
    assert fitted.parameters["rates"][0] == pytest.approx(of_first)
    assert fitted.parameters["rates"][-1] == pytest.approx(0.0)  # a field without labels has the overall rate
    seen = {CATEGORY: np.array([0.0, 1, 7, -1])}
    p = fitted.predict(seen)
    assert p[2] == p[3]
    assert p[0] >= p[2] >= p[1]


def test_one_map_learns_that_totals_are_often_wrong(calibration):
    report = calibration.report
    assert calibration.fields == ("/items/*", "/paid", "/total", "/vendor")
    assert report["unlabeled"] == ["/note"]
    assert report["documents"] == 80
    assert report["invalid_samples"] == 1
    assert report["calibrated"]["auroc"] > report["share"]["auroc"]
    assert report["calibrated"]["ace"] < report["share"]["ace"]
    assert report["by_field"]["/vendor"]["accuracy"] == 1
    assert report["by_field"]["/total"]["accuracy"] < 0.8
    assert "/total" in calibration.summary


def test_applied_to_rows_it_gives_probabilities_and_a_review_list(calibration):
    applied = calibration.predict(rows(20, seed=1))
    for row in applied:
        fields = row["fields"]
        assert fields["/note"]["probability"] is None
        assert fields["/note"]["accepted"] is False
        assert all(0 < fields[path]["probability"] < 1 for path in fields if path != "/note")
        assert {*row["review"]} == {path for path in fields if not fields[path]["accepted"]}
        ordered = [fields[path]["probability"] or -1 for path in row["review"]]
        assert ordered == sorted(ordered)
        known = [p for block in fields.values() if (p := block["probability"]) is not None]
        assert 0 < row["document"]["probability"] <= min(known)
        assert isinstance(row["document"]["accepted"], bool)
    vendors = [row["fields"]["/vendor"]["probability"] for row in applied]
    totals = [row["fields"]["/total"]["probability"] for row in applied]
    assert np.mean(vendors) > np.mean(totals)


def test_the_promise_holds_for_other_documents_of_the_same_world(calibration):
    (threshold,) = calibration.thresholds
    assert threshold.threshold is not None
    graded = [grade_fields(row, calibration.parsed) for row in calibration.predict(rows(200, seed=2))]
    accepted = [block["correct"] for row in graded for block in row["fields"].values() if block["accepted"]]
    assert len(accepted) > 100
    assert 1 - np.mean(accepted) <= 0.3


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"risks": "0.1"}, "risk"),
        ({"document_risks": [1.5]}, "risk"),
        ({"delta": 2}, "delta"),
        ({"answer": "all"}, "answer"),
        ({"grader": "rules"}, "grader"),
        ({"cluster": "exact"}, "cluster"),
    ],
)
def test_unusable_options_are_named(wrong, named):
    with pytest.raises(UsageError, match=named):
        calibrate_fields(**{"rows": rows(), "cluster": EXACT, "schema": SCHEMA, **wrong})


def test_each_value_of_a_column_has_a_threshold_and_an_unseen_value_is_not_accepted():
    made = [{**row, "kind": "easy" if number % 4 else "hard"} for number, row in enumerate(rows(160))]
    learned = learn(made, risks=[0.3], document_risks=[0.9], by="kind")
    assert learned.thresholds == learned.document_thresholds == ()
    assert {*learned.by_value} == {"easy", "hard"}
    thresholds = [one for of in learned.by_value.values() for one in (*of.fields, *of.documents)]
    assert {one.delta for one in thresholds} == {0.025}
    assert learned.by_value["easy"].fields[0].threshold is not None
    assert "kind easy: threshold" in learned.summary
    row = Row(rows(1, seed=3)[0])
    seen, unseen, none = learned.predict([row.set(kind="easy"), row.set(kind="new", id="1"), row.set(id="2")])
    assert any(block["accepted"] for block in seen["fields"].values())
    for one in (unseen, none):
        assert not any(block["accepted"] for block in one["fields"].values())
        assert one["document"]["accepted"] is False
        assert one["fields"]["/vendor"]["probability"] == seen["fields"]["/vendor"]["probability"]


def test_token_probabilities_are_used_if_they_separate_values_that_samples_agree_on():
    rng, made = np.random.default_rng(0), []
    for number in range(120):
        right = number % 3 > 0
        tokens = ['{"city": "', "Rome", '"}']
        p = rng.uniform(0.6, 1) if right else rng.uniform(0.2, 0.7)
        scores = {"token_texts": [tokens] * 2, "token_log_probs": [[0.0, math.log(p), 0.0]] * 2}
        answers = {"city": "Rome" if right else "Oslo"}
        made.append(Row({"id": f"{number}", "samples": ["".join(tokens)] * 2, "answers": answers, **scores}))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    learned = calibrate_fields(made, EXACT, schema)
    assert "smallest-token" in learned.map.candidate.features
    assert learned.report["calibrated"]["auroc"] > 0.8
    without = calibrate_fields([row.without("token_texts") for row in made], EXACT, schema)
    assert not {"smallest-token", "mean-token"} & {*without.map.features}


def test_a_pydantic_class_is_a_schema():
    class City(BaseModel):
        name: str = Field(alias="city")

    made = [{**row, "schema": City, "answers": City(**row["answers"])} for row in cities()]
    assert (
        calibrate_fields(made, EXACT).fields == calibrate_fields(cities(), EXACT, City).fields == ("/city",)
    )


def cities():
    samples = ['{"city": "Rome"}', '{"city": "Oslo"}', '{"city": "Rome"}']
    return [
        {"id": f"{i}", "samples": samples, "answers": {"city": "Rome" if i % 3 else "Oslo"}}
        for i in range(30)
    ]


def test_a_calibration_is_read_as_it_was_written(calibration, tmp_path):
    path = calibration.save_pretrained(tmp_path)
    again = FieldCalibration.from_pretrained(tmp_path)
    assert replace(again, report={}) == replace(calibration, report={})
    row = rows(1, seed=3)
    assert again.predict(row)[0].json == calibration.predict(row)[0].json
    path.write_text(path.read_text().replace("/vendor", "/seller"))
    with pytest.raises(StoreError, match="checksum"):
        FieldCalibration.from_pretrained(tmp_path)


def test_a_document_without_a_valid_sample_has_no_probability(calibration):
    (applied,) = calibration.predict([{"id": "1", "question": "Read it.", "samples": ["none"] * 6}])
    assert applied["document"] == {"probability": None, "accepted": False}
    assert applied["fields"] == {}


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_documents_without_a_valid_sample_do_not_change_the_map_of_documents():
    unread = [{**row, "id": f"n{row['id']}", "context": "", "samples": ["-"] * 6} for row in rows()]
    without, beside = (calibrate_fields(made, EXACT, SCHEMA) for made in (rows(), [*rows(), *unread]))
    assert beside.document_map == without.document_map


def test_documents_without_fields_test_the_threshold_of_documents():
    """Half of the empty lists are wrong, so that a risk of 0.1 cannot be promised."""
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
    made = [
        {"id": str(n), "samples": [sample] * 2, "answers": {"items": [] if n % 4 == 1 else ["a"]}}
        for n, sample in enumerate(['{"items": ["a"]}', '{"items": []}'] * 150)
    ]
    learned = calibrate_fields(made, EXACT, schema, document_risks=[0.1])
    assert learned.report["held_out_documents"] == 120
    assert learned.document_thresholds[0].threshold is None
    assert [row["document"]["accepted"] for row in learned.predict(made[:2])] == [False, False]


def test_rows_that_cannot_be_calibrated_name_the_key(calibration):
    made = list(map(Row, rows(10)))
    schema = parse_schema(SCHEMA)
    with pytest.raises(FitError, match="5"):
        calibrate_fields(made[:3], EXACT, schema)
    with pytest.raises(InputError, match="'samples'"):
        calibrate_fields([*made, made[0].set(id="x", samples=made[0].samples[:2])], EXACT, schema)
    with pytest.raises(InputError, match="'schema'"):
        calibrate_fields(made, EXACT)
    with pytest.raises(InputError, match="'kind'"):
        calibrate_fields(made, EXACT, schema, by="kind")
    for reference in ({"vendor": 1}, ["a"], None):
        with pytest.raises(InputError, match=r"rows\[10\].*'answers'"):
            calibrate_fields([*made, made[0].set(id="x", answers=reference)], EXACT, schema)
    with pytest.raises(FitError, match="holds no JSON object"):
        calibrate_fields([row.set(samples=["none"] * 6) for row in made], EXACT, schema)
    with pytest.raises(InputError, match="'schema'"):
        calibration.predict([{**rows(1)[0], "schema": {"properties": {"vendor": {"type": "string"}}}}])
    with pytest.raises(InputError, match="'samples'"):
        calibration.apply(add_fields([made[0].set(samples=made[0].samples[:2])], EXACT, schema))


YEARS = {"type": "object", "properties": {"2023": {"type": "number"}, "2024": {"type": "number"}}}


def years(*samples, answers):
    return [{"id": f"{i}", "samples": samples, "answers": answers} for i in range(20)]


@pytest.mark.parametrize(
    ("samples", "answers", "schema", "named"),
    [
        (['{"2023": 1}', '{"2023": ""}'], {"2023": 1}, {"additionalProperties": False}, ["20 of 40 samples"]),
        (['{"2023": 1}'] * 2, {"2032": 1, "2024": None}, {}, ["2032", "/2023"]),
    ],
)
def test_problems_of_labeled_documents_are_named(samples, answers, schema, named):
    with pytest.warns(SemcalWarning) as caught:
        calibrate_fields(years(*samples, answers=answers), EXACT, {**YEARS, **schema})
    assert all(any(text in str(one.message) for one in caught) for text in named)


def test_keys_that_are_numbers_are_fields_of_their_own():
    made = years(*['{"2023": 1, "2024": 2}'] * 2, answers={"2023": 1})
    with pytest.warns(SemcalWarning, match="/2024"):
        calibration = calibrate_fields(made, EXACT, YEARS)
    assert (calibration.fields, calibration.report["share"]["accuracy"]) == (("/2023",), 1.0)
    (row,) = calibration.predict([{"id": "x", "samples": ['{"2023": 1, "2024": 2}'] * 2}])
    assert [block["probability"] is None for block in row["fields"].values()] == [False, True]


NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("part", "filled", "empty", "field"),
    [
        (NAME, {"name": "x"}, None, "/a/name"),
        ({"type": "array", "items": NAME}, [{"name": "x"}], [], "/a/*/name"),
    ],
)
def test_fields_below_an_empty_object_or_list_of_a_reference_are_labeled(part, filled, empty, field):
    samples = [json.dumps({"a": filled}), "{}"]
    made = [{"id": f"{n}", "samples": [samples[n % 2]], "answers": {"a": empty}} for n in range(40)]
    learned = calibrate_fields(made, EXACT, {"properties": {"a": part}})
    assert learned.report["by_field"][field]["accuracy"] == 0
    assert learned.report["document"]["accuracy"] == 0.5


def test_the_keys_of_a_dictionary_are_one_field():
    rate = {"type": "object", "properties": {"rate": {"type": "number"}}}
    schema = {"type": "object", "properties": {"rates": {"type": "object", "additionalProperties": rate}}}

    def row(key: str, **more: object) -> dict[str, object]:
        return {"id": key, "samples": [f'{{"rates": {{"{key}": {{"rate": 2}}}}}}'] * 2, **more}

    made = [row(f"key {i}", answers={"rates": {f"key {i}": {"rate": 2 + (i % 3 == 0)}}}) for i in range(30)]
    calibration = calibrate_fields(made, EXACT, schema)
    assert (calibration.fields, calibration.report["fields"]) == (("/rates/*/rate",), 30)
    (new,) = calibration.predict([row("another key")])
    assert new["fields"]["/rates/another key/rate"]["probability"] == pytest.approx(2 / 3, abs=0.03)


def test_a_constant_map_orders_fields_by_their_share():
    def row(n: int, share: int) -> dict[str, object]:
        samples = ['{"2023": 1, "2024": 2}'] * share + ['{"2023": 1, "2024": 3}'] * (5 - share)
        return {"id": f"{n}", "samples": samples, "answers": {"2023": 1, "2024": 2 if share == 5 else 3}}

    calibration = calibrate_fields([row(n, 5 if n % 10 else 3) for n in range(30)], EXACT, YEARS)
    assert (calibration.report["chosen"], calibration.report["calibrated"]["auroc"]) == ("constant(share)", 1)
    assert calibration.predict([row(31, 3)])[0]["review"] == ["/2024", "/2023"]
