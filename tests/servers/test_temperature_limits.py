"""Temperatures that a server refuses, or changes without a word."""

from __future__ import annotations

from typing import Any

import pytest

from semcal.data.question import chat
from semcal.errors import UsageError
from semcal.models.language_model import Prompt, SampleRequest
from semcal.recalibration import Temperature
from tests.servers import fake_model
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer

ASKED = [Prompt("q", (), chat(next(iter(fake_model.ANSWERS))))]


def draw(temperature: float, *, server: str = "vLLM", **profile: Any) -> int:
    """The number of requests that draws at a temperature took."""
    with FakeServer(server=server) as running:
        model = model_of(running, **profile)
        with model.client:
            model.sample(SampleRequest(ASKED, recalibrators=[Temperature(temperature)], m=1))[0]
        return len(running.requests)


@pytest.mark.parametrize("temperature", [0.01, 2.0])
def test_the_limits_themselves_are_drawn_at(temperature: float) -> None:
    assert draw(temperature, max_temperature=2.0, log_probs="scaled") == 1


def test_a_temperature_above_the_server_s_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(UsageError, match=r"T = 2\.1 is above 2, the highest that http"):
        draw(2.1, max_temperature=2.0)


def test_a_temperature_that_vllm_would_raise_silently_is_refused() -> None:
    with pytest.raises(UsageError, match=r"T = 0\.005 is below 0\.01, to which vLLM raises it silently"):
        draw(0.005)


def test_other_servers_take_it() -> None:
    assert draw(0.005, server="llama.cpp", log_probs="scaled") == 1
