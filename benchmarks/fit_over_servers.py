"""What the k likeliest tokens of each position say about T, and T over llama.cpp by every route.

    python -m benchmarks.fit_over_servers

The embedded model's log-probabilities at the gold answers of 250 labelled questions of each set: the interval
that is certain whatever the tails are, the estimate with power-law tails, and what renormalising the k
likeliest gives, beside the exact T with the labels' standard error. Then T over llama.cpp's server with the
same model in float32, by each route, of 200 questions, with the requests that it takes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import logsumexp

from semcal.demo.paths import language_model_dir
from semcal.demo.questions import load_set
from semcal.engine.loading import load_model
from semcal.errors import FitError
from semcal.pipeline.calibration_set import CalibrationSet, calibration_features
from semcal.pipeline.fitting import fit
from semcal.pipeline.prompting import PromptConfig
from semcal.recalibration import fit_temperatures
from semcal.recalibration.server_fit import PowerLaw, TopK, certified_interval

QUESTIONS, ASKED = 250, 200
ROUTES = ("one token", "draws", "top-k", "whole vocabulary")


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    model = load_model("atlas", device="cpu")
    found = []
    for name in ("atlas-trivia", "atlas-rare"):
        asking = PromptConfig()
        labelled = CalibrationSet.of(model, load_set(name).calibration_train[:QUESTIONS], asking=asking)
        features = calibration_features(model, labelled, asking=asking)
        (exact,) = fit_temperatures(features, model.logits, losses=[("NLL", None)], resamples=2)
        rows = torch.log_softmax(
            model.logits(features.states[features.predicting_rows()]).double(), 1
        ).numpy()
        targets, weight = features.targets.numpy(), features.token_weights().numpy()
        found += [row(name, rows, targets, weight, k, exact) for k in (5, 20, 100, 1000)]
    return found


def row(
    name: str, log_probs: np.ndarray, targets: np.ndarray, weight: np.ndarray, k: int, exact: Any
) -> dict[str, Any]:
    order = np.argsort(-log_probs, axis=1, kind="stable")[:, :k]
    top = [[float(of[i]) for i in best if i != y] for of, best, y in zip(log_probs, order, targets)]
    own = log_probs[np.arange(len(targets)), targets]
    known = TopK.of(top, own, vocabulary=log_probs.shape[1])
    low, high = certified_interval(known, own, weight)

    def slope(beta: float) -> float:
        z = beta * known.log_probs
        p = np.exp(z - logsumexp(z, axis=1, keepdims=True))
        return float(weight @ ((p * np.where(p > 0, known.log_probs, 0)).sum(1) - own))

    return {
        "set": name,
        "k": k,
        "exact T": exact.temperature,
        "± labels": exact.standard_error,
        "mass left": float(known.rest.mean()),
        "certain from": low,
        "to": high,
        "power-law tails": PowerLaw(known).temperature(own, weight),
        "renormalised": 1 / brentq(slope, 0.05, 20),
    }


def main() -> None:
    from benchmarks.__main__ import table
    from semcal.engine.servers.sampler import load_server
    from semcal.engine.servers.settings import ServerSettings
    from semcal.pipeline.server_fitting import fit_over_server
    from tools.gguf import write_gguf
    from tools.llama_server import llama_server

    print(table(results()), flush=True)
    questions = load_set("atlas-trivia").calibration_train[:ASKED]
    exact = fit(load_model("atlas", device="cpu"), questions, progress=False)
    rows = [{"route": "the model itself", "T": exact.temperature, "away": 0.0}]
    rows[0] |= {"± all": exact.report["standard_error"], "± route": 0.0, "requests": None}
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(language_model_dir(), Path(folder) / "atlas.gguf")
        with llama_server(Path(folder) / "atlas.gguf", log=Path(folder) / "log") as url:
            settings = ServerSettings(str(language_model_dir()), profiles=Path(folder))
            server = load_server(f"openai:{url}", settings)
            with server.client as client:
                for route in ROUTES:
                    before = client.usage.requests
                    how: Any = {"asking": PromptConfig(), "data": "", "versions": {}, "progress": False}
                    how["on_bad_question"] = print  # one draw in 10 000 or so is half a character
                    try:
                        one = fit_over_server(server, questions, route=route, **how)  # type: ignore[arg-type]
                    except FitError as error:
                        print(f"{route}: {error}\n", flush=True)
                        continue
                    t, report = one.recalibrator.temperature_, one.report
                    rows.append(
                        {
                            "route": route,
                            "T": t,
                            "away": t - exact.temperature,
                            "± all": report["standard_error"],
                            "± route": report["route_error"],
                            "requests": client.usage.requests - before,
                        }
                    )
                    print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
