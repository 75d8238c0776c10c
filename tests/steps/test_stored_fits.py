"""Fits to stored features: how much they hold at a time."""

from __future__ import annotations

import pytest

from semcal.data.question import chat
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import Prompt
from semcal.recalibration import SE, exact_solver
from semcal.recalibration.exact_solver import mean_loss_of

QUESTIONS = [f"How far is mill {number}?" for number in range(30)]


def test_the_mean_loss_is_the_same_however_few_logits_may_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeLanguageModel({q: {"seven miles": 0.75, "nine": 0.25} for q in QUESTIONS})
    prompts = [Prompt(str(number), model.encode(chat(q))) for number, q in enumerate(QUESTIONS)]
    answers = [[model.encode_answer((), text) for text in ("seven miles", "nine")] for _ in QUESTIONS]
    features = model.features(prompts, answers)
    held: list[int] = []
    plain = model.logits

    def watched(states):
        found = plain(states)
        held.append(found.numel())
        return found

    monkeypatch.setattr(model, "logits", watched)
    whole = mean_loss_of(model, features, SE())
    most, vocabulary = max(held), model.width
    held.clear()
    monkeypatch.setattr(exact_solver, "LOGITS", 4 * vocabulary)
    assert mean_loss_of(model, features, SE()) == pytest.approx(whole, rel=1e-12)
    assert max(held) == 4 * vocabulary < most
