"""`decide=True`: the decisions of all draws, from fewer of them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from made_up_calibration import OF_ANOTHER_TEMPERATURE, calibration, threshold

import semcal
from semcal.errors import InputError, QuestionError, SemcalWarning, UsageError
from semcal.metrics.probability_maps import MapCandidate, ProbabilityMap
from semcal.models.equivalence import ExactMatch, Triple
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.language_model import Capabilities, Generation, SampleRequest

pytestmark = pytest.mark.filterwarnings("ignore:the calibration was made from stored samples")

TABLE = {
    "Who wrote it?": {"Ana Velis": 0.9, "Bo Tarn": 0.1},
    "Who sang it?": {"Cy Dann": 0.4, "Di Reeve": 0.3, "Ed Orr": 0.3},
    "Who built it?": {"Fay Long": 0.6, "F. Long": 0.3, "": 0.1},
    "Who sold it?": {"": 0.7, "Gil Ames": 0.3},
}
SAME = FakeEquivalence([{"fay long", "f long"}, {"cy dann", "di reeve"}])


@pytest.fixture(autouse=True)
def _groups_by_normal_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no equivalence is named answers are grouped by normal forms: that is not what is tested here."""
    monkeypatch.setattr("semcal.inputs.DEFAULT", "exact")


class Replayed:
    """A sampler whose draws are stored."""

    name, revision = "stored", "1"

    capabilities = Capabilities()

    def __init__(self, samples: Mapping[str, Sequence[str]]) -> None:
        self.samples = samples
        self.drawn = 0

    def drawn_of(self, name: str) -> list[tuple[str, float]]:
        """The draws with log-likelihoods, made up, some of them equal."""
        return [(text, -0.5 * (1 + len(text) * (k + 3) % 5)) for k, text in enumerate(self.samples[name])]

    def encode(self, chat: Any) -> tuple[int, ...]:
        return (len(chat),)

    def special_tokens_in(self, text: str) -> tuple[str, ...]:
        return ()

    def sample(self, request: SampleRequest, progress: Any = None) -> Any:
        del progress
        prompts, m, first = request.prompts, request.m, request.first
        assert len(request.seeds) == len(request.recalibrators) == 1
        self.drawn += m * len(prompts)
        return [
            [
                [
                    [
                        Generation(text, (1,), (u,), True)
                        for text, u in self.drawn_of(prompt.question_id)[first:][:m]
                    ]
                    for prompt in prompts
                ]
            ]
        ]


class Overlapping:
    """An answer entails another whose words it holds, or with which it shares half of all words."""

    name, revision = "words", "1"

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        pairs = [(set(a.split()), set(b.split())) for _, a, b in triples]
        return [b <= a or 2 * len(a & b) >= len(a | b) for a, b in pairs]


def stored(name: str) -> list[dict[str, Any]]:
    folder = os.environ.get("SEMCAL_DATA")
    if not folder:
        pytest.skip("SEMCAL_DATA is not set")
    with gzip.open(Path(folder) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


@pytest.mark.parametrize("name", ["uqnlg_triviaqa_llama13b_a", "sac3_gpt35_samples_a"])
@pytest.mark.parametrize("linkage", ["components", "greedy", "exact"])
def test_decisions_on_all_stored_samples_are_those_of_all_draws(name, linkage):
    rows = [row for row in stored(name) if len(row["samples"]) >= 10]
    samples = {str(number): row["samples"] for number, row in enumerate(rows)}
    questions = [{"id": str(number), "question": row["question"]} for number, row in enumerate(rows)]
    m = len(rows[0]["samples"])
    how: dict[str, Any] = {"equivalence": Overlapping(), "linkage": linkage, "m": m}
    if linkage == "exact":
        how |= {"equivalence": ExactMatch(), "linkage": "components"}
    model: Any = Replayed(samples)
    whole = semcal.SemanticUQ(model, **how)
    expected = whole.ask_many(questions)
    for limit in (0.0, 0.3, 0.5, 0.7, 1.0):
        model.drawn = 0
        early = semcal.SemanticUQ(model, abstain_below=limit, decide=True, **how)
        for one, other in zip(expected, early.ask_many(questions), strict=True):
            confidence, drawn = one.confidence or 0, other.row["samples"]
            assert drawn == one.row["samples"][: len(drawn)]
            assert other.abstained == (confidence < limit)
            low, high = other.bounds or (2, 2)
            assert low <= confidence <= high
            assert other.confidence in (None, confidence)
            if not other.abstained:
                assert not set(other.meanings[0].samples) - set(one.meanings[0].samples)
        assert model.drawn == early.draws <= whole.draws == len(rows) * m
        assert early.draws < whole.draws or limit == 1
        if how["equivalence"].name == "words":
            assert early.nli_calls < whole.nli_calls


def test_complete_linkage_cannot_be_decided_early():
    with pytest.raises(UsageError, match="give linkage components or greedy: with complete a further draw"):
        semcal.SemanticUQ(FakeLanguageModel(TABLE), linkage="complete", abstain_below=0.5, decide=True)


@pytest.mark.parametrize("linkage", ["components", "greedy", "exact"])
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.filterwarnings("ignore:m = ")
def test_decisions_on_every_sequence_of_draws_are_those_of_all_draws(m, linkage):
    """All ways in which m draws may fall on four answers, two of which mean the same, and one is empty."""
    texts = ["ana", "ana v", "bo", ""]
    samples = {"".join(map(str, one)): [texts[k] for k in one] for one in product(range(4), repeat=m)}
    questions = [{"id": name, "question": f"Who {name}?"} for name in samples]
    how: dict[str, Any] = {"equivalence": FakeEquivalence([{"ana", "ana v"}]), "linkage": linkage, "m": m}
    if linkage == "exact":
        how |= {"equivalence": ExactMatch(), "linkage": "components"}
    model: Any = Replayed(samples)
    expected = semcal.SemanticUQ(model, **how).ask_many(questions)
    ties = 0
    for limit in (0.2, 0.5, 0.75):
        early = semcal.SemanticUQ(model, abstain_below=limit, decide=True, **how)
        for one, other in zip(expected, early.ask_many(questions), strict=True):
            assert other.abstained == ((one.confidence or 0) < limit)
            low, high = other.bounds or (2, 2)
            assert low <= (one.confidence or 0) <= high
            if other.abstained:
                continue
            assert not set(other.meanings[0].samples) - set(one.meanings[0].samples)
            if one.tied is not None:  # nothing but all draws decides
                ties += 1
                assert (len(other.row["samples"]), other.tied, other.text) == (m, one.tied, one.text)
    assert ties > 0


@pytest.mark.parametrize("linkage", ["components", "greedy"])
def test_the_draws_of_a_model_are_the_first_of_all(linkage):
    how: dict[str, Any] = {"equivalence": SAME, "abstain_below": 0.6, "linkage": linkage, "m": 20, "seed": 4}
    whole = semcal.SemanticUQ(FakeLanguageModel(TABLE), **how)
    early = semcal.SemanticUQ(FakeLanguageModel(TABLE), decide=True, **how)
    for one, other in zip(whole.ask_many(list(TABLE)), early.ask_many(list(TABLE)), strict=True):
        drawn = other.row["samples"]
        assert drawn == one.row["samples"][: len(drawn)]
        assert other.abstained == one.abstained
    assert early.draws < whole.draws


@pytest.mark.parametrize("limit", [0.3, 0.52, 0.64, 0.7, 0.9])
@pytest.mark.parametrize("of_the_calibration", [True, False])
def test_a_calibration_that_rises_with_the_share_decides_as_with_all_draws(limit, of_the_calibration):
    made = calibration(threshold=threshold(limit) if of_the_calibration else None)
    how: dict[str, Any] = {"calibration": made, "abstain_below": None if of_the_calibration else limit}
    model = FakeLanguageModel(TABLE)
    expected = semcal.SemanticUQ(model, **how).ask_many(list(TABLE))
    found = semcal.SemanticUQ(model, decide=True, **how).ask_many(list(TABLE))
    for one, other in zip(expected, found, strict=True):
        assert other.abstained == one.abstained
        assert other.measure == one.measure == "Calibrated"
        low, high = other.bounds or (2, 2)
        assert low <= (one.confidence or 0) <= high


FALLING = ProbabilityMap(
    MapCandidate("isotonic", ("E-SC",)), {"thresholds": (0.0, 1.0), "values": (0.9, 0.2)}, (0.5,)
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "a threshold is needed"),
        ({"abstain_below": 0.5, "measure": "L-SC"}, "L-SC reads likelihoods"),
        ({"calibration": calibration()}, "a threshold is needed"),
        ({"calibration": calibration(threshold=threshold(None))}, "every answer abstains"),
        ({"calibration": calibration(map=OF_ANOTHER_TEMPERATURE, temperatures=(2.0,))}, "E-SC at T=2"),
        ({"calibration": calibration(map=FALLING, threshold=threshold(0.5))}, "must rise"),
    ],
)
def test_what_further_draws_could_move_either_way_is_refused_by_name(options, reason):
    with pytest.raises(UsageError, match=reason):
        semcal.SemanticUQ(FakeLanguageModel(TABLE), decide=True, **options)


def test_an_answer_that_was_decided_early_says_what_is_known():
    uq = semcal.SemanticUQ(FakeLanguageModel(TABLE), abstain_below=0.7, decide=True)
    rows = [{"question": question, "answers": ["Ana Velis"]} for question in TABLE]
    found = uq.ask_many(rows)
    assert str(found[0]) == "Answer('Ana Velis', confidence=0.7 to 1, abstained=False)"
    record = found[0].record(uq.recalibrator)
    assert (record["confidence"], record["confidence_bounds"], record["m"]) == (None, [0.7, 1.0], 10)
    assert (record["clusters"], record["log_likelihoods"], record["entropy"]) == (None, None, None)
    assert len(record["samples"]) < 10
    assert [row["correct"] for row in found.rows] == [True, False, False, False]
    with pytest.raises(InputError, match="ask without decide"):
        found.metrics()
    assert repr(found) == "Results(4 answers, none graded; meanings by 'exact')"


class Failing(FakeLanguageModel):
    """Fails at one question after the first round."""

    def sample(self, request: SampleRequest, progress: Any = None) -> Any:
        prompts, first = request.prompts, request.first
        ((found,),) = super().sample(request, progress)
        name = "Who wrote it?"
        fails = [first > 0 and prompt.question_id == name for prompt in prompts]
        return [[[QuestionError(name, "HTTP 500") if fail else one for fail, one in zip(fails, found)]]]


def test_a_question_that_fails_is_left_out_and_the_others_are_decided():
    uq = semcal.SemanticUQ(Failing(TABLE), abstain_below=0.9, decide=True)
    with pytest.warns(SemcalWarning, match="1 of 4 questions"):
        found = uq.ask_many(list(TABLE))
    assert [one.id for one in found] == [name for name in TABLE if name != "Who wrote it?"]
    assert list(found.failures) == ["Who wrote it?"]
