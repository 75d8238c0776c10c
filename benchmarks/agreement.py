"""The embedded model behind servers and in plain transformers: log-probabilities, frequencies, and fitted T.

    SEMCAL_SERVERS="openai:http://127.0.0.1:8000/v1 openai:..." python -m benchmarks.agreement

The servers have the embedded model in float32: `python -m tools.vllm_server serve FOLDER`, or
`tools.llama_server`, which is started by default. 200 questions have ten answers each, with prompts as token
ids. The log-probability of each sampled token is compared with that of plain transformers after the same
tokens. The place of the token in the distribution, with tokens sorted by probability, must be uniform: the
test is chi-square over at most 20 bins of all tokens where no token has a probability above 0.9 (a token is
an interval, with a random place inside). T is fitted to 200 labeled questions with each route of the server,
and exactly here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, get_args

import numpy as np
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

from benchmarks._llama import embedded_server
from semcal.demo.paths import language_model_dir
from semcal.demo.questions import load_set
from semcal.errors import SemcalError
from semcal.models import Prompt, load_model
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import SampleRequest
from semcal.recalibration import Temperature
from semcal.recalibration.exact_solver import fit_temperatures
from semcal.recalibration.fit_data import FitData, fit_features
from semcal.recalibration.server_fit import fit_over_server
from semcal.servers.sampler import Route, ServerModel, load_server

QUESTIONS, M, MOST_TOKENS, BINS = 200, 10, 24, 20
CERTAIN = 0.9  # maximum probability of a token; above it, the place would be random
TEMPERATURES = (1.0, 0.5, 1.4)
DATA = "atlas-rare"
QUICK = {"QUESTIONS": 6, "M": 3}


def log_probs(net: Any, prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return raw log-probabilities (N, V) for the N tokens of each answer, by plain transformers."""
    longest, start = max(map(len, answers)), len(prompt.token_ids)
    rows = [prompt.token_ids + ids + (0,) * (longest - len(ids)) for ids in answers]
    logits = net(torch.tensor(rows)).logits[:, start - 1 : -1].double()
    return [one[: len(ids)].log_softmax(-1) for one, ids in zip(logits, answers, strict=True)]


def drawn(model: ServerModel, net: Any, prompts: Sequence[Prompt], temperature: float) -> dict[str, Any]:
    """Return one row for answers sampled at a temperature."""
    how: Any = {"recalibrators": [Temperature(temperature)], "m": M, "max_new_tokens": MOST_TOKENS}
    (found,) = model.sample(SampleRequest(prompts, **how))[0]
    generator, apart, places, known, total = np.random.default_rng(0), 0.0, [], 0, 0
    for prompt, draws in zip(prompts, found, strict=True):
        if isinstance(draws, SemcalError):
            raise draws
        total += len(draws)
        raw = log_probs(net, prompt, [one.token_ids for one in draws])
        for one, of_one in zip(draws, raw, strict=True):
            at = (of_one / temperature).log_softmax(-1).numpy()
            own = at[np.arange(len(at)), one.token_ids][:, None]
            above = np.where(at > own, np.exp(at), 0).sum(axis=1)
            place = above + generator.random(len(at)) * np.exp(own[:, 0])
            places.append(place[at.max(axis=1) < np.log(CERTAIN)])
            if one.token_log_probs:
                known += 1
                apart = max(apart, float(np.abs(own[:, 0] - one.token_log_probs).max()))
    of_all = np.concatenate(places)
    seen = np.histogram(of_all, bins=max(2, min(BINS, len(of_all) // 10)), range=(0, 1))[0]
    p = float(stats.chisquare(seen).pvalue)
    return {
        "what": f"draws at T = {temperature:g}: likelihoods known, tokens compared, chi-square p",
        "over HTTP": f"{known} of {total}, {seen.sum()}, {p:.2f}",
        "here": "",
        "apart": apart if known else None,
        "to reach": "<= 0.001",
    }


def fitted(model: ServerModel, labelled: FitData, here: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """Yield a row for each route to T."""
    exact, error = here
    for route in get_args(Route):
        try:
            over = fit_over_server(model, labelled, route=route)
            said: Any = f"{over.fit.temperature:.5f} ± {over.report['standard_error']:.4f}"
            apart: Any = abs(over.fit.temperature - exact)
            reach = "<= 0.001"
        except SemcalError as refused:
            said, apart, reach = f"refused: {refused}", None, ""
        yield {
            "what": f"T by {route}",
            "over HTTP": said,
            "here": f"{exact:.5f} ± {error:.4f}",
            "apart": apart,
            "to reach": reach,
        }


def results() -> list[dict[str, Any]]:
    names = os.environ.get("SEMCAL_SERVERS", "").split()
    torch.set_num_threads(1)
    with ExitStack() as stack, torch.no_grad():
        return list(_rows(names or [f"openai:{stack.enter_context(embedded_server())}"]))


def _rows(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    model = load_model("atlas", device="cpu")
    net = AutoModelForCausalLM.from_pretrained(language_model_dir(), dtype=torch.float32).eval()
    asking = PromptConfig(())
    data = load_set(DATA)
    labelled = FitData.of(model, data.calibration_train[:QUESTIONS], asking=asking)
    features = fit_features(model, labelled, asking=asking)
    (here,) = fit_temperatures(features, model.logits, losses=[("NLL", None)])
    prompts = [prompt for _, prompt, _ in asking.read(model, data.test[:QUESTIONS])[0]]
    for name in names:
        server = load_server(name, tokenizer=str(language_model_dir()))
        said = {"server": f"{server.profile.server} {server.profile.version}, {server.profile.log_probs}"}
        for temperature in TEMPERATURES:
            yield {**said, **drawn(server, net, prompts, temperature)}
        for row in fitted(server, labelled, (here.temperature, here.standard_error)):
            yield {**said, **row}
        server.client.close()


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
