"""The five lines of Python that a practitioner writes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import semcal
from semcal.data.question import Question
from semcal.errors import UsageError
from semcal.models.engine.draw import Truncation
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.recalibration.fit import Fit

TABLE = {
    "Who wrote it?": {"Ana Velis.": 0.5, "Dr Ana Velis.": 0.3, "Bo Tarn.": 0.2},
    "Who sang it?": {"Mira Oln.": 0.9, "Bo Tarn.": 0.1},
}
PAIR = [Question("1", "Who wrote it?", ("Bo Tarn",)), Question("2", "Who sang it?", ("Mira Oln",))]


def thrice(*questions: Question) -> list[Question]:
    """Each question three times over, as a fit needs five."""
    return [replace(one, id=f"{one.id}{copy}") for copy in "abc" for one in questions]


LABELLED = thrice(*PAIR)


@pytest.fixture
def model() -> FakeLanguageModel:
    return FakeLanguageModel(TABLE)


def test_an_answer_names_its_meanings_and_their_shares(model) -> None:
    same = FakeEquivalence([{"ana velis", "dr ana velis"}])
    answer = semcal.SemanticUQ(model, equivalence=same, m=200, measure="L-SC").ask("Who wrote it?")
    assert answer.text == "Ana Velis"
    assert answer.by_measure["E-SC"].confidence == pytest.approx(0.8, abs=0.1)
    assert [len(meaning.samples) for meaning in answer.meanings] == sorted(
        (len(meaning.samples) for meaning in answer.meanings), reverse=True
    )
    shares = [meaning.share for meaning in answer.meanings]
    assert sum(shares) == pytest.approx(1.0)
    assert max(shares) == answer.confidence == answer.by_measure["L-SC"].confidence
    assert answer.entropy == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert {meaning.probability for meaning in answer.meanings} == {None}


def test_the_confidence_is_of_the_answer_that_is_given() -> None:
    wordings = ["Ana", "Velis", "Ana V", "A Velis", "Dr Velis"]  # each unlikely, together the commonest
    odd = FakeLanguageModel({"Who?": {**dict.fromkeys(wordings, 0.12), "Bo": 0.4}})
    same = FakeEquivalence([{wording.lower() for wording in wordings} | {"velis"}])
    answers = [
        semcal.SemanticUQ(odd, m=20, equivalence=same, measure=name).ask("Who?") for name in ("E-SC", "B-SC")
    ]
    for answer in answers:
        assert (answer.text, answer.confidence) == answer.by_measure[answer.measure]
        assert (answer.text, answer.confidence) == (answer.meanings[0].text, answer.meanings[0].share)
    assert answers[0].text in wordings
    assert answers[1].text == "Bo"
    assert answers[0].by_measure == answers[1].by_measure


def test_an_answer_abstains_below_the_threshold_and_only_where_there_is_one(model) -> None:
    answers = [
        semcal.SemanticUQ(model, m=10, abstain_below=t).ask("Who sang it?") for t in (None, 0.0, 0.9, 1.0)
    ]
    assert [answer.threshold for answer in answers] == [None, 0.0, 0.9, 1.0]
    assert answers[0].confidence == 0.9
    assert [answer.abstained for answer in answers] == [None, False, False, True]
    with pytest.raises(UsageError, match="abstain_below"):
        semcal.SemanticUQ(model, abstain_below=70)


def test_one_draw_is_refused(model) -> None:
    with pytest.raises(UsageError, match=r"^m = 1: "):
        semcal.SemanticUQ(model, m=1)


def test_the_same_question_gets_the_same_answer_alone_or_among_others(model) -> None:
    uq = semcal.SemanticUQ(model, m=10)
    many = uq.ask_many([Question(q, q) for q in TABLE])
    assert [uq.ask(q).row["samples"] for q in TABLE] == [answer.row["samples"] for answer in many]


def test_a_fit_raises_the_temperature_of_a_model_that_is_sure_and_wrong(model) -> None:
    fitted = semcal.fit(model, LABELLED)
    assert isinstance(fitted, Fit)
    assert fitted.temperature > 1.2
    assert fitted.recalibrator.certificate_.loss < fitted.recalibrator.certificate_.loss_at_one
    base = semcal.SemanticUQ(model, m=300).ask("Who sang it?").confidence
    cooled = semcal.SemanticUQ(model, recalibrator=fitted, m=300).ask("Who sang it?").confidence
    assert cooled < base


@pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
def test_all_references_share_the_weight_of_one_question(model) -> None:
    twice = [Question("1", "Who wrote it?", ("Bo Tarn", "Ana Velis")), PAIR[1]]
    both = semcal.fit(model, thrice(*twice)).recalibrator.certificate_.loss_at_one
    one, other = (
        semcal.fit(
            model, thrice(Question("1", "Who wrote it?", (answer,)), PAIR[1])
        ).recalibrator.certificate_
        for answer in twice[0].answers
    )
    assert both == pytest.approx((one.loss_at_one + other.loss_at_one) / 2, rel=1e-6)


def test_a_fit_is_saved_with_its_prompt_and_refused_elsewhere(model, tmp_path) -> None:
    few_shot = [Question("e", "What is it?", ("A book",))]
    semcal.fit(model, LABELLED, few_shot=few_shot).save_pretrained(tmp_path)
    again = semcal.Fit.from_pretrained(tmp_path)
    assert [q.question for q in again.asking.few_shot] == ["What is it?"]
    semcal.SemanticUQ(model, recalibrator=again)
    with pytest.raises(UsageError, match="another prompt"):
        semcal.SemanticUQ(model, recalibrator=again, system="Be brief.")
    other = FakeLanguageModel({"Who?": {"Bo": 1.0}})
    with pytest.raises(UsageError, match="recalibrator: fitted on fake"):
        semcal.SemanticUQ(other, recalibrator=again)
    assert semcal.SemanticUQ(other, recalibrator=again, force=True).recalibrator is again.recalibrator


def test_the_interval_of_t_takes_questions_on_one_passage_together(model) -> None:
    grouped = [replace(one, extra={"group": one.id[0]}) for one in LABELLED]
    alone, together = (semcal.fit(model, given).report for given in (LABELLED, grouped))
    assert "n_groups" not in alone
    assert together["n_groups"] == 2
    assert together["standard_error"] > 1.3 * alone["standard_error"]


def test_a_truncation_rules_answers_out_and_leaves_likelihoods_as_they_are(model) -> None:
    asked = semcal.SemanticUQ(model, m=200, truncation=Truncation(top_k=2)).ask("Who wrote it?")
    found = dict(zip(asked.row["samples"], asked.row["log_likelihoods"]))
    assert set(found) == {"Ana Velis", "Dr Ana Velis"}
    assert found["Ana Velis"] == pytest.approx(math.log(0.5) / 3, abs=1e-6)
