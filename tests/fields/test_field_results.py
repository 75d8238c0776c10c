"""`semcal.score` of structured answers: fields with shares or probabilities, metrics, and calibration."""

from __future__ import annotations

import json

import pytest
from invoices import SCHEMA, rows
from pydantic import BaseModel

import semcal
from semcal.errors import InputError, SemcalWarning, UsageError


@pytest.fixture(scope="module")
def calibration():
    scored = semcal.score(rows(), "exact", schema=SCHEMA)
    with pytest.warns(SemcalWarning, match="/note"):
        return scored.calibrate(risks=[0.3], document_risks=[0.9])


def test_fields_have_shares_without_a_calibration_and_metrics_by_field():
    scored = semcal.score(rows(20), "exact", schema=SCHEMA)
    assert "20 graded; E-SC" in repr(scored)
    assert json.loads(scored[0].text)["vendor"] == "Mill 0"
    assert (scored[0].confidence, scored[0].abstained) == (None, None)
    by = scored.metrics(by="field")["E-SC"]["by"]
    assert {part["value"] for part in by} == {"/vendor", "/total", "/paid", "/items/*"}
    records = scored.records()
    assert {record["path"] for record in records} >= {"/vendor", "/total", "/items/0"}
    assert len(scored.to_df()) == len(records)


@pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")
def test_rows_without_a_reference_are_named_and_an_empty_reference_is_one():
    schema, samples = {"properties": {"city": {"type": "string"}}}, ["{}"] * 2
    made = [{"id": f"{n}", "samples": samples, "answers": {}} for n in range(5)]
    assert "none graded" in repr(semcal.score(made, "exact", schema=schema))
    made += [{"id": "x", "samples": samples, "answers": {"city": None}}, {"id": "y", "samples": samples}]
    scored = semcal.score(made, "exact", schema=schema)
    assert "6 graded" in repr(scored)
    with pytest.warns(SemcalWarning, match="1 of 7 rows"):
        assert scored.calibrate().report["documents"] == 6


def test_a_calibration_gives_probabilities_as_measure_does(calibration, tmp_path):
    calibration.save_pretrained(tmp_path)
    new = rows(20, seed=1)
    scored = semcal.score(new, calibration=tmp_path)
    assert [one.row["fields"] for one in semcal.score(new, calibration=calibration)] == [
        one.row["fields"] for one in scored
    ]
    for one, row in zip(scored, calibration.predict(new)):
        assert one.confidence == row["document"]["probability"]
        assert one.abstained is not row["document"]["accepted"]
        assert {path: block["probability"] for path, block in row["fields"].items()} == {
            path: block["probability"] for path, block in one.row["fields"].items()
        }
        assert all(path in one.explanation for path in row["review"])
    assert {*scored.metrics()} == {"E-SC", "Calibrated"}


def test_a_given_document_is_judged_and_may_be_an_object_of_pydantic():
    class Invoice(BaseModel):
        vendor: str
        total: float
        paid: bool

    made = []
    for number, row in enumerate(rows(60)):
        reference = {key: row["answers"][key] for key in ("vendor", "total", "paid")}
        stated = Invoice(vendor=f"Mill {number}", total=100 + number, paid=True)
        made.append({**row, "answer": stated, "answers": Invoice(**reference)})
    scored = semcal.score(made, "exact", schema=Invoice, answer="given")
    assert scored[3].row["fields"]["/total"]["value"] == 103
    learned = scored.calibrate()
    assert learned.answer_kind == "given"
    assert learned.report["by_field"]["/paid"]["accuracy"] == 0.5
    assert semcal.score(made, calibration=learned)[1].row["fields"]["/paid"]["value"] is True
    with pytest.raises(InputError, match="'answer'"):
        semcal.score([{key: row[key] for key in row if key != "answer"} for row in made], calibration=learned)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"measure": "E-SC"}, "measure"), ({"grader": "rules"}, "grader"), ({"t_alpha": 0.4}, "t_alpha")),
        *(({"equivalence": "default"}, "equivalence"), ({"answer": "given"}, "answer")),
        ({"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}, "schema"),
    ],
)
def test_options_that_a_calibration_of_fields_sets_are_refused(calibration, options, named):
    with pytest.raises(UsageError, match=named):
        semcal.score(rows(2), calibration=calibration, **options)


def test_a_bad_row_is_named():
    good, bad = rows(2)
    with pytest.raises(InputError, match="'answers'"):
        semcal.score([good, {**bad, "answers": {"vendor": 3}}], "exact", schema=SCHEMA)
