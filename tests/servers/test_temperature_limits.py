"""Temperatures that a server refuses, or changes without a word."""

from __future__ import annotations

from typing import Any

import pytest

from semcal.data.question import chat
from semcal.errors import UsageError
from semcal.models.protocols import Prompt, SampleRequest
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


def test_the_limits_themselves_are_drawn_at_and_other_servers_have_none() -> None:
    for temperature, server in ((0.01, "vLLM"), (2.0, "vLLM"), (0.005, "llama.cpp")):
        assert draw(temperature, server=server, max_temperature=2.0, log_probs="scaled") == 1


@pytest.mark.parametrize(
    ("temperature", "message"),
    [(2.1, r"T = 2\.1 is above 2, the highest that http"), (0.005, r"T = 0\.005 is below 0\.01")],
)
def test_a_temperature_that_a_server_refuses_or_raises_silently_is_refused(
    temperature: float, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        draw(temperature, max_temperature=2.0)
