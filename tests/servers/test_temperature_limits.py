"""Temperatures that a server refuses, or changes without a word."""

from __future__ import annotations

import pytest

from semcal.data.question import chat
from semcal.errors import UsageError
from semcal.models.protocols import Prompt, SampleRequest
from semcal.recalibration import Temperature
from tests.servers import fake_model
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer


@pytest.mark.parametrize(
    ("temperature", "server", "refused"),
    [
        (0.01, "vLLM", None),
        (2.0, "vLLM", None),
        (0.005, "llama.cpp", None),
        (2.1, "vLLM", r"^temperature: 2\.1 "),
        (0.005, "vLLM", r"^temperature: 0\.005 "),
    ],
)
def test_a_temperature_that_a_server_refuses_or_raises_silently_is_refused_and_the_limits_are_not(
    temperature: float, server: str, refused: str | None
) -> None:
    asked = [Prompt("q", (), chat(next(iter(fake_model.ANSWERS))))]
    request = SampleRequest(asked, recalibrators=[Temperature(temperature)], m=1)
    with FakeServer(server=server) as running:
        model = model_of(running, max_temperature=2.0, log_probs="scaled")
        with model.client:
            if refused is None:
                model.sample(request)
            else:
                with pytest.raises(UsageError, match=refused):
                    model.sample(request)
        assert len(running.requests) == (refused is None)
