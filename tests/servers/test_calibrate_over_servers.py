"""`semcal calibrate` over servers: questions that fail, and where such a calibration holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import semcal
from semcal.calibration.calibration import Calibration
from semcal.errors import SemcalWarning, UsageError
from tests.servers import fake_model
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer

#: The fake server answers these by their hash; right are the likeliest of its answers.
RIGHT = [max(known, key=lambda text: known[text]) for known in fake_model.ANSWERS.values()]
LABELLED = [{"id": f"q{i}", "question": f"Who built mill {i}?", "answers": RIGHT} for i in range(60)]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer(log_probs="scaled") as one:
        yield one


def served(server: FakeServer, **more: Any) -> Any:
    return model_of(server, **{"log_probs": "scaled", "max_n": 4, **more})


@pytest.fixture(scope="module")
def made(server: FakeServer) -> Calibration:
    return semcal.calibrate(served(server), LABELLED, m=5, progress=False)


def test_a_calibration_over_a_server_says_of_which_and_is_applied_there_whatever_the_url(
    server: FakeServer, made: Calibration
) -> None:
    assert made.provenance is not None
    assert (made.provenance.model, made.provenance.revision) == ("fake", "vLLM 0.0.1: fake, messages")
    model = served(server)
    model.profile = replace(model.profile, url="http://elsewhere/v1")
    answer = semcal.SemanticUQ(model, calibration=made).ask(LABELLED[0]["question"])
    assert answer.measure == "Calibrated"
    assert 0 < answer.confidence < 1


@pytest.mark.parametrize(
    "other",
    [{"server": "llama.cpp"}, {"model": "other"}, {"token_ids": True}, {"truncated_to": "top_k 40"}],
)
def test_another_server_model_form_of_prompts_or_truncation_is_refused(
    server: FakeServer, made: Calibration, other: dict[str, Any]
) -> None:
    model = served(server, token_ids="token_ids" in other)
    model.profile = replace(model.profile, **{key: one for key, one in other.items() if key != "token_ids"})
    with pytest.raises(UsageError, match="fitted o"):
        semcal.SemanticUQ(model, calibration=made)
    with pytest.warns(SemcalWarning, match="another model"):
        semcal.SemanticUQ(model, calibration=made, force=True)


def test_another_version_of_the_server_is_warned_about_which_no_local_checkpoint_is(
    server: FakeServer, made: Calibration
) -> None:
    with pytest.warns(SemcalWarning, match=r"vLLM 0\.0\.1.* vLLM 0\.0\.2"):
        semcal.SemanticUQ(served(server, version="0.0.2"), calibration=made)
    assert made.provenance is not None
    local = replace(made.provenance, revision="sha256:0a1b")
    for revision in ("sha256:0a1c", "vLLM 0.0.1: fake, messages"):
        with pytest.raises(UsageError, match="fake"):
            local.check(model="fake", revision=revision)
