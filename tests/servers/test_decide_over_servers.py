"""`decide=True` over a server: fewer requests, and the decisions of all draws."""

from __future__ import annotations

from typing import Any

import pytest

import semcal
from semcal.models.equivalence import ExactMatch
from semcal.text.normal_form import normal_form
from tests.servers import fake_model
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer

QUESTIONS = list(fake_model.ANSWERS)
HOW: dict[str, Any] = {"equivalence": ExactMatch(), "abstain_below": 0.7, "m": 10, "seed": 3}


def test_with_an_answer_a_request_the_draws_are_the_first_of_all_and_fewer_are_asked():
    with FakeServer() as server:
        model = model_of(server, max_n=1)
        whole = semcal.SemanticUQ(model, **HOW)
        expected = whole.ask_many(QUESTIONS)
        asked = model.client.usage.requests
        early = semcal.SemanticUQ(model, decide=True, **HOW)
        found = early.ask_many(QUESTIONS)
        for one, other in zip(expected, found, strict=True):
            assert other.row["samples"] == one.row["samples"][: len(other.row["samples"])]
            assert other.abstained == one.abstained
        assert early.draws == model.client.usage.requests - asked < asked == whole.draws == 60
        model.client.close()


@pytest.mark.parametrize("seed", range(3))
def test_with_several_answers_a_request_a_decision_still_holds_whatever_the_rest_says(seed):
    with FakeServer() as server:
        model = model_of(server, max_n=4)
        early = semcal.SemanticUQ(model, decide=True, **HOW | {"seed": seed})
        for one in early.ask_many(QUESTIONS):
            drawn = one.row["samples"]
            forms = [normal_form(text) for text in drawn]
            most = max(map(forms.count, forms))
            left = 10 - len(drawn)
            assert one.abstained or most >= 7
            assert not one.abstained or most + left < 7
        assert early.draws < 60
        model.client.close()
