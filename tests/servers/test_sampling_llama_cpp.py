"""Over llama.cpp's server: the samples and log-probabilities of the model, and its temperature."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chi2

from semcal.data.question import Question, chat
from semcal.demo.paths import language_model_dir
from semcal.demo.questions import load_set
from semcal.errors import UsageError
from semcal.meaning.answer import first_answer
from semcal.models import load_model
from semcal.models.causal_lm import CausalLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Generation, Prompt, SampleRequest
from semcal.recalibration import Base, Temperature
from semcal.recalibration.fit import Fit, fit, recalibrator_and_prompt
from semcal.recalibration.fit_data import FitData
from semcal.recalibration.server_fit import ServerFit, fit_over_server
from semcal.servers.sampler import ServerModel, load_server
from semcal.servers.settings import ServerSettings

pytestmark = pytest.mark.servers


def cut(_: Prompt, generation: Generation) -> tuple[int, int, bool]:
    """As `semcal.models.sample` cuts."""
    end = first_answer(generation.text).end
    whole = generation.finished and not generation.text[end:].strip()
    return 0, len(generation.text) if whole else end, True


@pytest.fixture(scope="module")
def local() -> CausalLanguageModel:
    return load_model("atlas", device="cpu")


@pytest.fixture(scope="module", params=["token ids", "messages"])
def model(request: Any, llama_server: str, llama_cache: Path) -> Iterator[ServerModel]:
    tokenizer = "atlas" if request.param == "token ids" else None
    settings = ServerSettings(tokenizer, profiles=llama_cache / "servers")
    found = load_server(f"openai:{llama_server}#atlas", settings)
    with found.client:
        yield found


@pytest.fixture(scope="module")
def chats() -> list[Any]:
    return [chat(question.question) for question in load_set("atlas-rare").validation[:40]]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 4.0])
def test_log_probabilities_of_draws_are_those_of_the_model_within_a_thousandth(
    model: ServerModel, local: CausalLanguageModel, chats: list[Any], temperature: float
) -> None:
    recalibrator = Base() if temperature == 1 else Temperature(temperature)
    asked = [Prompt(f"q{i}", model.encode(one), one) for i, one in enumerate(chats)]
    encoded = [Prompt(f"q{i}", local.encode(one), one) for i, one in enumerate(chats)]
    how: Any = {"m": 1, "seeds": [3], "max_new_tokens": 6, "cut": cut}
    (found,) = model.sample(SampleRequest(asked, recalibrators=[recalibrator], **how))[0]
    draws = [one for (one,) in found]
    known = [i for i, one in enumerate(draws) if one.token_log_probs]
    assert len(known) > (0.95 if temperature < 2 else 0.5) * len(chats)  # but for half characters
    scored = [draws[i] for i in known]
    drawn = local.score(
        [encoded[i] for i in known], [[one.token_ids] for one in scored], recalibrator=recalibrator
    )
    for one, (log_probs,) in zip(scored, drawn, strict=True):
        assert one.token_log_probs == pytest.approx(log_probs, abs=1e-3)
    rest = [i for i in known if draws[i].rescored is not None]
    if model.format is None:
        assert all(draws[i].rescored == () for i in rest)
        return
    assert rest
    completed = [[local.complete(draws[i], cut(encoded[i], draws[i])[1])] for i in rest]
    for i, (log_probs,) in zip(
        rest, local.score([encoded[i] for i in rest], completed, recalibrator=recalibrator)
    ):
        assert draws[i].rescored == pytest.approx(log_probs, abs=1e-3)


def test_first_words_come_as_often_as_the_model_says(
    model: ServerModel, local: CausalLanguageModel, chats: list[Any]
) -> None:
    m, t = 400, Temperature(1.3)
    prompt = Prompt("q", model.encode(chats[0]), chats[0])
    request = SampleRequest([prompt], recalibrators=[t], m=m, seeds=[5], max_new_tokens=1)
    ((draws,),) = model.sample(request)[0]
    seen = Counter(one.token_ids[0] for one in draws if one.token_ids)
    own = Prompt("q", local.encode(chats[0]))
    tokens = [token for token, _ in seen.most_common(12)]
    ((*scores,),) = local.score([own], [[(token,) for token in tokens]], recalibrator=t)
    p = [math.exp(score[0]) for score in scores]
    often = [(seen[token], m * share) for token, share in zip(tokens, p) if m * share >= 5]
    often.append((m - sum(count for count, _ in often), m - sum(expected for _, expected in often)))
    statistic = sum((count - expected) ** 2 / expected for count, expected in often)
    assert statistic < chi2.isf(1e-6, len(often) - 1)


@pytest.mark.parametrize("model", ["messages"], indirect=True)
def test_a_slot_reads_a_question_once_for_all_its_draws(
    model: ServerModel, chats: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all four slots read it, as their replies say; the last token is read for each draw in any case."""
    send_all = model.client.send_all

    def read_for(chats: list[Any], **options: Any) -> int:
        counts: list[int] = []

        def counting(requests: Any, parse: Any, **given: Any) -> Any:
            def parse_too(reply: Any) -> Any:
                usage = reply["usage"]
                counts.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] - 1)
                return parse(reply)

            return send_all(requests, parse_too, **{**given, **options})

        monkeypatch.setattr(model.client, "send_all", counting)
        asked = [Prompt(f"read {i}", model.encode(one), one) for i, one in enumerate(chats)]
        how: Any = {"m": 8, "seeds": [5], "max_new_tokens": 4, "cut": cut}
        model.sample(SampleRequest(asked, recalibrators=[Base()], **how))
        assert len(counts) == 8 * len(chats)
        return sum(counts)

    assert model.profile.slots == 4
    assert read_for(chats[:20]) < read_for(chats[20:], in_turn=1) / 2


# ---- T fitted over the server, against the exact fit to the same questions with the model itself

QUESTIONS = load_set("atlas-trivia").calibration_train[:30]


@pytest.fixture(scope="module")
def exact(local: CausalLanguageModel) -> Fit:
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
    server: ServerModel, local: CausalLanguageModel
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
