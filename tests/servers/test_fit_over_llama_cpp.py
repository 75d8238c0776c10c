"""T fitted over llama.cpp's server, against the exact fit to the same questions with the model itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semcal.data.question import Question
from semcal.demo.paths import language_model_dir
from semcal.demo.questions import load_set
from semcal.errors import UsageError
from semcal.models.load import load_model
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import LanguageModel
from semcal.recalibration.fit import Fit, fit, recalibrator_and_prompt
from semcal.recalibration.fit_data import FitData
from semcal.recalibration.server_fit import ServerFit, fit_over_server
from semcal.servers.sampler import ServerModel, load_server
from semcal.servers.settings import ServerSettings

pytestmark = pytest.mark.servers

QUESTIONS = load_set("atlas-trivia").calibration_train[:30]


@pytest.fixture(scope="module")
def local() -> LanguageModel:
    return load_model("atlas", device="cpu")


@pytest.fixture(scope="module")
def exact(local: LanguageModel) -> Fit:
    return fit(local, QUESTIONS, progress=False)


@pytest.fixture(scope="module")
def server(llama_server: str, llama_cache: Path) -> Iterator[ServerModel]:
    settings = ServerSettings(str(language_model_dir()), profiles=llama_cache / "servers", concurrency=4)
    model = load_server(f"openai:{llama_server}", settings)
    with model.client:
        yield model


def over(server: ServerModel, questions: tuple[Question, ...] = QUESTIONS, **how: Any) -> ServerFit:
    return fit_over_server(server, FitData.of(server, questions, asking=PromptConfig()), **how)


def same(found: ServerFit, exact: Fit, *, within: float = 1e-3) -> None:
    assert found.fit.temperature == pytest.approx(exact.temperature, abs=within)
    assert found.report["n_tokens"] == exact.report["n_tokens"]
    for name in ("loss_before", "loss_after", "standard_error", "interval"):
        assert found.report[name] == pytest.approx(exact.report[name], abs=2e-3)


def test_one_token_raw_and_at_the_temperature_gives_the_exact_temperature(
    server: ServerModel, exact: Fit, tmp_path: Path
) -> None:
    before = server.client.usage.requests
    found = over(server, keep=tmp_path)
    same(found, exact)
    assert found.report["route"] == "one token"
    assert found.report["route_error"] < 1e-3
    asked = server.client.usage.requests - before
    again = over(server, keep=tmp_path)
    assert again.report == found.report
    assert server.client.usage.requests - before == asked  # nothing is asked twice


def test_the_whole_vocabulary_gives_the_exact_temperature_of_both_losses(
    server: ServerModel, local: LanguageModel
) -> None:
    few = QUESTIONS[:8]
    nll = over(server, few, route="whole vocabulary")
    same(nll, fit(local, few, progress=False))
    smoothed = over(server, few, loss=("SS", 0.25))
    assert smoothed.report["route"] == "whole vocabulary"
    of_local = fit(local, few, loss="SS", alpha=0.25, progress=False)
    assert smoothed.fit.temperature == pytest.approx(of_local.temperature, rel=1e-3)


def test_what_was_fitted_is_for_this_server_and_prompt(server: ServerModel, tmp_path: Path) -> None:
    found = fit(server, QUESTIONS[:6], progress=False)
    path = found.save_pretrained(tmp_path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["method"] == "TS"
    of_server = written["provenance"]["server"]
    assert of_server["route"] == "one token"
    assert of_server["standard_error"] == pytest.approx(found.report["standard_error"])
    recalibrator, asking = recalibrator_and_prompt(server, tmp_path, None)
    assert recalibrator.temperature_ == pytest.approx(found.temperature)
    assert asking.hash(server) == PromptConfig().hash(server)
    without = ServerModel(server.client, server.profile)
    with pytest.raises(UsageError, match=r"token ids.*messages"):
        recalibrator_and_prompt(without, tmp_path, None)
