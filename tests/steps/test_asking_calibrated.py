"""`SemanticUQ` with a calibration: what it sets, what it refuses, and the probabilities that it gives."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_calibration import (
    OF_ANOTHER_TEMPERATURE,
    calibration,
    provenance,
    threshold,
)

import semcal
from semcal.calibration.calibration import Calibration
from semcal.data.question import Question
from semcal.demo.paths import nli_model_dir
from semcal.errors import ModelError, SemcalWarning, StoreError, UsageError
from semcal.models.engine.draw import Truncation
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel

TABLE = {"Who sang it?": {"Mira Oln.": 0.6, "Bo Tarn.": 0.3, "Ana Velis.": 0.1}}
ONE = "Who sang it?"


@pytest.fixture
def model() -> FakeLanguageModel:
    return FakeLanguageModel(TABLE)


@pytest.fixture
def known(model) -> Calibration:
    """Made with the model itself."""
    return calibration(provenance=provenance(model), answer_format="auto")


def test_the_confidence_is_the_calibrated_probability_of_the_commonest_meaning(model, known) -> None:
    plain = semcal.SemanticUQ(model, m=10).ask(ONE)
    answer = semcal.SemanticUQ(model, calibration=known).ask(ONE)
    assert (answer.text, answer.row["samples"]) == (plain.text, plain.row["samples"])
    assert answer.confidence == pytest.approx(0.1 + 0.6 * plain.confidence)
    assert (answer.measure, answer.entropy, answer.abstained) == ("Calibrated", plain.entropy, None)
    assert (answer.calibration, plain.calibration) == (known.id, None)
    first, *others = answer.meanings
    assert (first.text, first.share, first.probability) == (answer.text, plain.confidence, answer.confidence)
    left = 0.2 * (1 - answer.confidence)
    assert math.fsum(one.probability for one in others) == pytest.approx(left)
    for one in others:
        assert one.probability == pytest.approx(left * one.share / (1 - first.share))
    assert answer.by_measure == plain.by_measure
    assert f"confidence={answer.confidence:.3g})" in repr(answer)


def test_the_answer_stands_first_though_another_meaning_is_more_probable(model, known) -> None:
    unsure = replace(
        known, further=1.0, map=replace(known.map, parameters={"thresholds": (0.0,), "values": (0.1,)})
    )
    answer = semcal.SemanticUQ(model, calibration=unsure).ask(ONE)
    assert answer.meanings[0].text == answer.text
    assert answer.meanings[1].probability > answer.confidence == 0.1


@pytest.mark.parametrize(("limit", "abstained"), [(0.1, False), (0.99, True), (None, True)])
def test_the_threshold_of_the_calibration_decides(model, known, limit, abstained) -> None:
    answer = semcal.SemanticUQ(model, calibration=replace(known, threshold=threshold(limit))).ask(ONE)
    assert (answer.threshold, answer.abstained) == (limit, abstained)


def test_a_threshold_can_be_given_where_the_calibration_has_none(model, known) -> None:
    assert semcal.SemanticUQ(model, calibration=known, abstain_below=0.9).ask(ONE).abstained is True
    with pytest.raises(UsageError, match=r"^abstain_below: "):
        semcal.SemanticUQ(model, calibration=replace(known, threshold=threshold(0.5)), abstain_below=0.9)


def test_further_temperatures_are_drawn_in_the_same_pass_and_clustered_apart(model, known) -> None:
    two = replace(known, map=OF_ANOTHER_TEMPERATURE, temperatures=(2.0,))
    same = FakeEquivalence([{"mira oln", "bo tarn"}])
    answer = semcal.SemanticUQ(model, calibration=replace(two, equivalence=same.name), equivalence=same).ask(
        ONE
    )
    hot = semcal.SemanticUQ(model, recalibrator=semcal.recalibration.Temperature(2.0), equivalence=same).ask(
        ONE
    )
    share = max(len(cluster) for cluster in hot.row["clusters"]) / 10
    assert answer.confidence == pytest.approx(1 / (1 + math.exp(-share)))
    assert answer.row["samples"] == semcal.SemanticUQ(model).ask(ONE).row["samples"]
    assert len(answer.row["samples"]) == 10


def test_verdicts_are_shared_between_the_temperatures(model, known) -> None:
    same = FakeEquivalence([{"mira oln", "bo tarn"}])
    two = replace(known, map=OF_ANOTHER_TEMPERATURE, temperatures=(1.5, 2.0), equivalence=same.name)
    uq = semcal.SemanticUQ(model, calibration=two, equivalence=same)
    uq.ask(ONE)
    assert uq.costs["pairs"] == 3 * 10 * 9
    assert uq.costs["calls"] <= 6  # no more than all ordered pairs of three distinct answers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linkage", "greedy"),
        ("measure", "E-SC"),
        ("recalibrator", semcal.recalibration.SE()),
        ("truncation", Truncation(top_k=1)),
    ],
)
def test_what_the_calibration_sets_is_refused_by_name(model, known, name, value) -> None:
    with pytest.raises(UsageError, match=f"^{name}: .* calibration"):
        semcal.SemanticUQ(model, calibration=known, **{name: value})


def test_the_equivalence_is_that_of_the_calibration_and_no_other(model, known) -> None:
    assert isinstance(semcal.SemanticUQ(model, calibration=known).equivalence, ExactMatch)
    semcal.SemanticUQ(model, calibration=known, equivalence="exact")
    with pytest.raises(UsageError, match=r"^equivalence: got 'fake', expected 'exact'"):
        semcal.SemanticUQ(model, calibration=known, equivalence=FakeEquivalence([]))
    elsewhere = replace(known, equivalence="/somewhere/nli_model")
    with pytest.raises(UsageError, match=r"got 'exact'"):
        semcal.SemanticUQ(model, calibration=elsewhere, equivalence="exact")
    with pytest.raises(UsageError, match=r"got 'atlas'"):  # whose directory is called so
        semcal.SemanticUQ(model, calibration=elsewhere, equivalence="atlas")
    semcal.SemanticUQ(model, calibration=elsewhere, equivalence=str(nli_model_dir()))
    with pytest.raises(ModelError, match="/somewhere/nli_model"):
        semcal.SemanticUQ(model, calibration=elsewhere)
    embedded = semcal.SemanticUQ(model, calibration=replace(known, equivalence="atlas"))
    semcal.SemanticUQ(model, calibration=embedded.calibration, equivalence=embedded.equivalence)


def test_another_revision_of_the_equivalence_is_refused_unless_forced(model, known) -> None:
    made, other = FakeEquivalence([{"mira oln", "bo tarn"}]), FakeEquivalence([])
    of_made = replace(known, equivalence=made.name, equivalence_revision=made.revision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        semcal.SemanticUQ(model, calibration=of_made, equivalence=made)
        semcal.SemanticUQ(model, calibration=replace(of_made, equivalence_revision=None), equivalence=other)
    text = f"made with revision '{made.revision}' of the equivalence 'fake', not '{other.revision}'"
    with pytest.raises(UsageError, match=text):
        semcal.SemanticUQ(model, calibration=of_made, equivalence=other)
    with pytest.warns(SemcalWarning, match=text):
        semcal.SemanticUQ(model, calibration=of_made, equivalence=other, force=True)
    rows = [{"question": ONE, "samples": ["Mira Oln"] * 10}]
    with pytest.raises(UsageError, match=text):
        semcal.score(rows, other, calibration=of_made)
    assert semcal.score(rows, made, calibration=of_made)[0].confidence == pytest.approx(0.7)


def test_another_model_or_prompt_is_refused_unless_forced(model, known) -> None:
    other = FakeLanguageModel({ONE: {"Bo.": 1.0}})
    with pytest.raises(UsageError, match=r"^calibration: fitted on fake"):
        semcal.SemanticUQ(other, calibration=known)
    with pytest.warns(SemcalWarning, match="made for another model") as caught:
        forced = semcal.SemanticUQ(other, calibration=known, force=True)
    assert len(caught) == 1
    assert forced.ask(ONE).confidence == pytest.approx(0.7)
    changed = replace(known, provenance=replace(known.provenance, prompt_hash="another"))
    with pytest.raises(UsageError, match=r"^calibration: "):
        semcal.SemanticUQ(model, calibration=changed)
    with pytest.warns(SemcalWarning, match="made for another model or prompt"):
        semcal.SemanticUQ(model, calibration=changed, force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        semcal.SemanticUQ(model, calibration=known, force=True)


def test_a_calibration_of_stored_samples_says_once_what_cannot_be_checked(model) -> None:
    with pytest.warns(SemcalWarning, match="made from stored samples") as caught:
        uq = semcal.SemanticUQ(model, calibration=calibration())
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uq.ask(ONE)
        semcal.SemanticUQ(model, calibration=calibration(), force=True)
    with pytest.warns(SemcalWarning):  # whose prompt it does not know
        semcal.SemanticUQ(model, calibration=calibration(), few_shot=[Question("e", "What?", ("A book",))])


def test_a_calibration_that_was_edited_is_refused(model, known, tmp_path: Path) -> None:
    path = known.save_pretrained(tmp_path)
    path.write_text(path.read_text().replace('"m": 10', '"m": 20'))
    with pytest.raises(StoreError, match="checksum"):
        semcal.SemanticUQ(model, calibration=tmp_path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(StoreError, match="damaged"):
        semcal.SemanticUQ(model, calibration=tmp_path)
