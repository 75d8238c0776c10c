"""`SemanticUQ` with a calibration: what it sets, what it refuses, and the probabilities that it gives."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_calibration import (
    OF_ANOTHER_TEMPERATURE,
    OF_THE_LIKELIHOOD,
    calibration,
    provenance,
    threshold,
)

import semcal
from semcal.calibration.calibration import Calibration
from semcal.calibration.compatibility import what_cannot_be_checked
from semcal.data.question import Question
from semcal.demo.paths import nli_model_dir
from semcal.errors import SemcalWarning, StoreError, UsageError
from semcal.models.engine.draw import Truncation
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.recalibration import TemperatureScaling

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
        ("m", 10),
        ("linkage", "greedy"),
        ("max_new_tokens", 3),
        ("measure", "E-SC"),
        ("recalibrator", semcal.recalibration.SE()),
        ("few_shot", ()),
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
    with pytest.raises(UsageError, match=r"^equivalence: .*'/somewhere/nli_model'.*--equivalence"):
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
    with pytest.warns(SemcalWarning, match=r"made for another model \(fake") as caught:
        forced = semcal.SemanticUQ(other, calibration=known, force=True)
    assert len(caught) == 1
    assert forced.ask(ONE).confidence == pytest.approx(0.7)
    changed = replace(known, provenance=replace(known.provenance, prompt_hash="another"))
    with pytest.raises(UsageError, match=r"^calibration: "):
        semcal.SemanticUQ(model, calibration=changed)
    with pytest.warns(SemcalWarning, match="made for another prompt"):
        semcal.SemanticUQ(model, calibration=changed, force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        semcal.SemanticUQ(model, calibration=known, force=True)


def test_what_stored_rows_do_not_tell_is_named(model, known) -> None:
    fitted = TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    for changed, text in (
        ({}, "from fake with its prompt at T = 1, and clustered with exact (components)"),
        ({"temperatures": (0.5, 2.0)}, "at T = 1 and 0.5 and 2, and"),
        ({"temperature": None}, "with its prompt at the same temperature, and"),
        ({"temperature": None, "recalibrator": fitted}, "prompt and its recalibrator, and"),
        (
            {"temperature": None, "recalibrator": fitted, "temperatures": (0.5,)},
            "and its recalibrator and at T = 0.5, and",
        ),
        ({"provenance": None}, "from the model of the calibration with"),
    ):
        assert text in what_cannot_be_checked(replace(known, **changed))


def test_the_few_shot_prompt_of_the_calibration_is_asked(model) -> None:
    asking = PromptConfig((Question("e", "What is it?", ("A book",)),))
    uq = semcal.SemanticUQ(model, calibration=calibration(provenance=provenance(model, asking)))
    assert [example.question for example in uq.asking.few_shot] == ["What is it?"]


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


def test_a_calibration_by_path_gives_the_same_probability(model, known, tmp_path: Path) -> None:
    fitted = TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    under = replace(known, temperature=None, recalibrator=fitted)
    under.save_pretrained(tmp_path)
    uq = semcal.SemanticUQ(model, calibration=str(tmp_path))
    assert uq.recalibrator.temperature_ == fitted.temperature_
    assert uq.ask(ONE).confidence == semcal.SemanticUQ(model, calibration=under).ask(ONE).confidence


def test_a_calibration_that_was_edited_is_refused(model, known, tmp_path: Path) -> None:
    path = known.save_pretrained(tmp_path)
    path.write_text(path.read_text().replace('"m": 10', '"m": 20'))
    with pytest.raises(StoreError, match="checksum"):
        semcal.SemanticUQ(model, calibration=tmp_path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(StoreError, match="damaged"):
        semcal.SemanticUQ(model, calibration=tmp_path)


def test_an_unknown_likelihood_takes_the_mean_of_the_fit() -> None:
    rows = [
        {
            "id": "1",
            "samples": ["Bo"] * 10,
            "clusters": [list(range(10))],
            "log_likelihoods": given,
            "confidences": {"E-SC": [1.0]},
            "semantic_entropy": {"E-SC": 0.0},
            "top_cluster": {"E-SC": 0},
        }
        for given in ([-0.5] * 10, None, [-0.5] * 9 + [None])
    ]
    found = [one.probability for one in calibration(map=OF_THE_LIKELIHOOD).apply({1.0: rows})]
    assert found == pytest.approx([1 / (1 + math.exp(u)) for u in (0.5, 1.0, 1.0)])
