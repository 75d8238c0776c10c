"""What every test of servers may rely on: no key and no URL of the user's environment."""

from __future__ import annotations

import pytest

from semcal.servers import entailment
from semcal.servers.protocol import ServerProfile


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that hold keys and URLs of servers are not set."""
    for name in ("SEMCAL_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "SEMCAL_JUDGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of each server that decides, in place of a probe."""
    monkeypatch.setattr(
        entailment,
        "stored_profile",
        lambda client: ServerProfile(client.endpoint.url, "fake", "vLLM", "0.0.1", log_probs="raw"),
    )
