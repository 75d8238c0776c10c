"""Probabilities of fields: the field rate, one map, thresholds over documents, and files."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from invoices import SCHEMA, rows

from semcal.calibration.fields import FieldCalibration, FieldStep, calibrate_fields
from semcal.errors import FitError, InputError, SemcalWarning, StoreError
from semcal.fields.rows import add_fields, grade_fields
from semcal.fields.schema import parse_schema
from semcal.metrics.probability_maps import CATEGORY, GROUP, RATE, MapCandidate
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row

EXACT = ClusterConfig(ExactMatch())


@pytest.fixture(scope="module")
def calibration():
    with pytest.warns(SemcalWarning, match="/note"):
        return calibrate_fields(
            list(map(Row, rows())), EXACT, parse_schema(SCHEMA), risks=[0.3], document_risks=[0.9]
        )


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
    step = FieldStep(calibration, EXACT)
    applied = step([Row(row) for row in rows(20, seed=1)])
    for row in applied:
        fields = row["fields"]
        assert fields["/note"]["probability"] is None
        assert fields["/note"]["accepted"] is False
        assert all(0 < fields[path]["probability"] < 1 for path in fields if path != "/note")
        assert {*row["review"]} == {path for path in fields if not fields[path]["accepted"]}
        ordered = [fields[path]["probability"] or -1 for path in row["review"]]
        assert ordered == sorted(ordered)
        assert 0 < row["document"]["probability"] < 1
        assert isinstance(row["document"]["accepted"], bool)
    vendors = [row["fields"]["/vendor"]["probability"] for row in applied]
    totals = [row["fields"]["/total"]["probability"] for row in applied]
    assert np.mean(vendors) > np.mean(totals)


def test_the_promise_holds_for_other_documents_of_the_same_world(calibration):
    (threshold,) = calibration.thresholds
    assert threshold.threshold is not None
    applied = FieldStep(calibration, EXACT)([Row(row) for row in rows(200, seed=2)])
    graded = [grade_fields(row, calibration.parsed) for row in applied]
    accepted = [block["correct"] for row in graded for block in row["fields"].values() if block["accepted"]]
    assert len(accepted) > 100
    assert 1 - np.mean(accepted) <= 0.3


def test_a_calibration_is_read_as_it_was_written(calibration, tmp_path):
    path = calibration.save_pretrained(tmp_path)
    again = FieldCalibration.from_pretrained(tmp_path)
    assert replace(again, report={}) == replace(calibration, report={})
    row = Row(rows(1, seed=3)[0])
    assert FieldStep(again, EXACT)([row])[0].json == FieldStep(calibration, EXACT)([row])[0].json
    path.write_text(path.read_text().replace("/vendor", "/seller"))
    with pytest.raises(StoreError, match="checksum"):
        FieldCalibration.from_pretrained(tmp_path)


def test_a_document_without_a_valid_sample_has_no_probability(calibration):
    row = Row({"id": "1", "question": "Read it.", "samples": ["none"] * 6})
    (applied,) = FieldStep(calibration, EXACT)([row])
    assert applied["document"] == {"probability": None, "accepted": False}
    assert applied["fields"] == {}


def test_rows_that_cannot_be_calibrated_name_the_key(calibration):
    made = list(map(Row, rows(10)))
    schema = parse_schema(SCHEMA)
    with pytest.raises(FitError, match="5"):
        calibrate_fields(made[:3], EXACT, schema)
    with pytest.raises(InputError, match="'samples'"):
        calibrate_fields([*made, made[0].set(id="x", samples=made[0].samples[:2])], EXACT, schema)
    with pytest.raises(InputError, match="'schema'"):
        calibrate_fields(made, EXACT)
    with pytest.raises(InputError, match="'answers'"):
        calibrate_fields([*made, made[0].set(id="x", answers={"vendor": 1})], EXACT, schema)
    with pytest.raises(InputError, match="'samples'"):
        calibration.apply(add_fields([made[0].set(samples=made[0].samples[:2])], EXACT, schema))
