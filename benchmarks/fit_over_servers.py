"""T over llama.cpp by each exact route, compared with the exact T of the local model.

    python -m benchmarks.fit_over_servers

The embedded model in float32, 200 labeled questions, with the number of requests of each route.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, get_args

from benchmarks._llama import embedded_server
from semcal.demo.paths import language_model_dir
from semcal.demo.questions import load_set
from semcal.models.load import load_model
from semcal.models.prompting import PromptConfig
from semcal.recalibration.fit import fit
from semcal.recalibration.fit_data import FitData
from semcal.recalibration.server_fit import fit_over_server

ASKED = 200
QUICK = {"ASKED": 6}


def results() -> list[dict[str, Any]]:
    from semcal.servers.sampler import Route, load_server
    from semcal.servers.settings import ServerSettings

    questions = load_set("atlas-trivia").calibration_train[:ASKED]
    exact = fit(load_model("atlas", device="cpu"), questions, progress=False)
    rows: list[dict[str, Any]] = [{"route": "the model itself", "T": exact.temperature, "away": 0.0}]
    rows[0] |= {"± all": exact.report["standard_error"], "± route": 0.0, "requests": None}
    with tempfile.TemporaryDirectory() as folder, embedded_server() as url:
        settings = ServerSettings(str(language_model_dir()), profiles=Path(folder))
        server = load_server(f"openai:{url}", settings)
        with server.client as client:
            for route in get_args(Route):
                before = client.usage.requests
                labelled = FitData.of(server, questions, asking=PromptConfig())
                one = fit_over_server(server, labelled, route=route)
                t, report = one.fit.temperature, one.report
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
    return rows


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
