"""A grid whose models are a local one and one behind a server: what is left out, what fails, what resumes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.calibration.calibration import Calibration
from semcal.errors import ServerError, UsageError
from semcal.experiment.analyses import analyse
from semcal.experiment.finished import read_finished
from semcal.experiment.grid_plan import forecast
from semcal.experiment.grid_settings import GridSettings, Model, claim_folder
from semcal.experiment.grid_steps import GridState
from semcal.experiment.report import build
from semcal.experiment.report.build import write_tables
from semcal.experiment.report.explorer import explorer_blocks
from semcal.models.protocols import Sampler
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.servers.settings import ServerSettings
from semcal.workers import PRELOAD, SerialExecutor, start_context
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

#: Of the two data sets questions that the fake server knows nothing of: it answers by their hash.
SMALL = (
    "methods=[Base, SE, TS, Platt, Calibrated]",
    "fitting.losses=[[NLL, null]]",
    "sampling.counts=[2]",
    "calibrated={questions: 8}",
    "evaluation.resamples=100",
    "extras={figure_files: false, entailment: false}",
    "runs.count=1",
    "block=3",
)
#: Requests that are sent at a time: those that a kill can find without a reply.
AT_A_TIME = 2
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer(log_probs="scaled") as one:
        yield one


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def models(url: str) -> list[dict[str, Any]]:
    served = {"name": "served", "path": f"openai:{url}#fake", "server": {"concurrency": 4}}
    return [{"name": "one", "path": "one"}, served]


def settings(data: Path, url: str, *more: str) -> GridSettings:
    return mills.settings(data, *SMALL, *more, models=models(url))


class Refusing(ServerClient):
    """A client to which some requests fail for good."""

    refused_words: tuple[str, ...] = ()

    def send_all(self, requests: Sequence[ServerRequest], *args: Any, **options: Any) -> list[Any]:
        found = super().send_all(requests, *args, **options)
        asked = [json.dumps(one.body["messages"][-1]) for one in requests]
        return [
            RequestFailed("HTTP 400: not this one", 400) if any(map(text.count, self.refused_words)) else one
            for text, one in zip(asked, found)
        ]


def run(
    folder: Path,
    chosen: GridSettings,
    server: FakeServer,
    refused: tuple[str, ...] = (),
    log_probs: str | None = "scaled",
) -> Any:
    """Run a grid of local models of the made-up world and one behind the server."""

    def load(which: Model) -> Sampler:
        if not which.is_server:
            return mills.model_of(which)
        asked = ServerSettings(concurrency=AT_A_TIME)
        model = model_of(server, settings=asked, log_probs=log_probs, max_n=4)
        model.client.__class__ = Refusing
        model.client.refused_words = refused  # type: ignore[attr-defined]
        return model

    state = GridState(folder, load, partial(mills.equivalence_of, folder))
    return mills.run(folder, chosen, executor=SerialExecutor(state))


def shown(folder: Path, out: Path) -> str:
    """What results.md says, after all tables and the page's questions were made."""
    results, finished = analyse(folder, out), read_finished(folder)
    write_tables(finished, results, out / "tables")
    explorer_blocks(finished)
    return build.results_markdown(results)


@pytest.fixture(scope="module")
def whole(data: Path, server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(folder, settings(data, server.url), server)
    analyse(folder)
    return folder


def test_what_a_server_cannot_serve_is_left_out_by_name_and_the_rest_is_answered(whole: Path) -> None:
    found = read_finished(whole)
    gone = ["TS", "Platt", "beams", "transfer", "token_losses"]
    assert found.left_out == {"served": gone}
    assert list(found.selections["served", "mill"]["methods"]) == ["Base", "SE"]
    assert list(found.selections["one", "mill"]["methods"]) == ["Base", "SE", "TS", "Platt"]
    rows = found.rows("served", "mill", "SE")
    assert len(rows) == 11
    assert {text for row in rows for text in row["samples"]} & {"Mirna", "Ana Brod", "green", "1871", "seven"}
    assert all(row["log_likelihoods"] for row in rows)
    assert all("beam" not in row for row in rows)
    assert Calibration.from_pretrained(whole / "calibrations/served/mill").m == 4
    results = json.loads((whole / "results.json").read_text())
    assert results["left_out"] == {"served": gone}
    assert results["methods"] == ["Base", "SE", "TS", "Platt"]
    confidence = results["analyses"]["confidence"]
    assert len({row["measure"] for row in confidence}) == 7
    of = {(row["model"], row["method"]) for row in confidence}
    assert of == {
        *(("one", method) for method in ("Base", "SE", "TS", "Platt", "Calibrated")),
        *(("served", method) for method in ("Base", "SE", "Calibrated")),
    }


class Address:
    """What `model_of` reads of a server that another process runs."""

    def __init__(self, server: FakeServer) -> None:
        self.url, self.quirks = server.url, server.quirks


def test_killed_while_the_server_is_asked_it_goes_on_and_asks_for_no_answer_twice(
    data: Path, server: FakeServer, whole: Path, tmp_path: Path
) -> None:
    chosen, before = settings(data, server.url), len(server.requests)
    server.quirks.delay = 0.01
    process = start_context(PRELOAD).Process(target=run, args=(tmp_path, chosen, Address(server)))
    process.start()
    while process.is_alive() and len(server.requests) < before + 100:
        time.sleep(0.01)
    process.kill()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    server.quirks.delay = 0.0
    run(tmp_path, chosen, server)
    assert mills.contents(tmp_path) == mills.contents(whole)
    bodies = [json.dumps(body, sort_keys=True) for _, body in server.requests[before:]]
    assert len(bodies) - len(set(bodies)) <= AT_A_TIME


def test_questions_that_the_server_fails_at_are_reported_and_left_out_everywhere(
    data: Path, server: FakeServer, tmp_path: Path
) -> None:
    refused = ("mill 7?", "mill 11?", "barn 20?", "mill 31?", "barn 2?")
    chosen, folder = settings(data, server.url), tmp_path / "a"
    problems = run(folder, chosen, server, refused=refused)
    named = {(one.dataset, one.model) for one in problems}
    assert named == {("mill", "served"), ("barn", "served")}
    assert all("HTTP 400: not this one" in one.reason for one in problems)
    found = read_finished(folder)
    for dataset in ("mill", "barn"):
        for model in ("one", "served"):
            rows = found.rows(model, dataset, "SE")
            expected = found.selections[model, dataset]["sizes"]["test"]
            assert len(rows) == expected == len(found.calibrated_rows(model, dataset))
        assert not any(word in row["question"] for row in rows for word in refused)
    lines = (folder / "problems.jsonl").read_text().splitlines()
    ids = {json.loads(line)["reason"].split("'")[1] for line in lines}
    assert ids <= {"mill7", "mill11", "barn20", "mill31", "barn2"}
    assert "for served, which is behind a server" in shown(folder, tmp_path)
    assert run(folder, chosen, server, refused=refused) == problems


def test_a_block_without_any_answer_stops_the_run_and_is_not_kept(
    data: Path, server: FakeServer, whole: Path, tmp_path: Path
) -> None:
    chosen = settings(data, server.url)
    with pytest.raises(ServerError, match="the server answered none"):
        run(tmp_path, chosen, server, refused=("Who",))
    run(tmp_path, chosen, server)
    assert mills.contents(tmp_path) == mills.contents(whole)


def test_servers_alone_make_a_report_of_the_methods_and_without_likelihoods_the_measure_that_they_serve(
    data: Path, server: FakeServer, tmp_path: Path
) -> None:
    run(tmp_path, mills.settings(data, *SMALL, models=models(server.url)[1:]), server, log_probs=None)
    text = shown(tmp_path, tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["methods"] == ["Base", "SE"]
    assert {row["measure"] for row in results["analyses"]["confidence"]} == {"E-SC"}
    assert "Claims are judged on the other" not in text
    assert "for served, which is behind a server" in text


@pytest.mark.parametrize(
    ("model", "more", "named"),
    [
        ({"path": "one", "server": {}}, (), "leave server out"),
        ({"dtype": "float32"}, (), "leave dtype out"),
        ({"server": {"api_key": "sk-1"}}, (), r"models\.0\.server\.api_key"),
        ({"server": {"concurrency": 0}}, (), r"models\.0\.server\.concurrency"),
        ({"server": {"max_cost": 1.0}}, (), r"server\.max_cost"),
        ({"path": "openai:ftp://x"}, (), "http"),
        ({}, ("grading.vanilla=beam",), r"grading\.vanilla"),
        ({}, ("methods=[TS, ATS]",), "methods"),
    ],
)
def test_what_makes_no_sense_for_a_server_is_refused_by_name(
    data: Path, model: dict[str, Any], more: tuple[str, ...], named: str
) -> None:
    given = {"name": "served", "path": f"openai:{NOWHERE}#fake"} | model
    with pytest.raises(UsageError, match=named) as caught:
        mills.settings(data, *SMALL, *more, models=[given])
    assert "sk-1" not in str(caught.value)


def test_how_a_server_is_asked_may_change_when_a_run_goes_on_but_not_what_it_is_sent(
    data: Path, tmp_path: Path
) -> None:
    claim_folder(tmp_path, settings(data, NOWHERE))
    more = ("models.1.server.concurrency=9", "models.1.server.timeout=1")
    claim_folder(tmp_path, settings(data, NOWHERE, *more))
    with pytest.raises(UsageError, match="other settings"):
        claim_folder(tmp_path, settings(data, NOWHERE, "models.1.server.tokenizer=somewhere"))


def test_a_forecast_counts_the_answers_of_servers(data: Path) -> None:
    plan = forecast(settings(data, NOWHERE))
    answers = [cell.answers for cell in plan.cells if cell.model == "served"]
    assert answers == [9 * 2 * 4 + 11 * 2 * 4 + 11] * 2
