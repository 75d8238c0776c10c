"""A service behind a real uvicorn on loopback, in a thread of its own, and what it is made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from semcal.calibration.calibration import Calibration
from semcal.calibration.watch import PromiseWatch
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import SampleRequest
from semcal.reply_log import ReplyLog
from semcal.serve.configuration import ServeSettings
from semcal.serve.endpoints import HttpServer, listening
from semcal.serve.service import Service
from semcal.uncertainty import SemanticUQ
from tests.steps.made_up_calibration import calibration, provenance, threshold

#: The answers to each question, and their probabilities.
TABLE = {
    "Who wrote it?": {"Ana Velis": 0.9, "Bo Tarn": 0.1},
    "Who sang it?": {"Cy Orn": 0.5, "Di Ase": 0.3, "Ed Vin": 0.2},
    "Where is it?": {"Mirna": 1.0},
}
WROTE, SANG, WHERE = TABLE
#: Distinct questions with one answer each, so that each label counts.
MANY = [f"Who wrote part {number}?" for number in range(14)]
TABLE |= {question: {"Ana Velis": 1.0} for question in MANY}


class SlowModel(FakeLanguageModel):
    """A model that waits for `go` in each pass, and lists the questions of each."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.passes: list[list[str]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def sample(self, request: SampleRequest, progress: Any = None) -> Any:
        self.passes.append([prompt.question_id for prompt in request.prompts])
        self.begun.release()
        assert self.go.wait(30)
        return super().sample(request, progress)


def uq_of(model: Any = None, **changed: Any) -> SemanticUQ:
    """A model with a calibration of 10 draws: p = .1 + .6 share, and where a `limit` is given a threshold."""
    model = model or FakeLanguageModel(TABLE)
    asking = changed.pop("asking", None)
    if (limit := changed.pop("limit", 0.6)) is not None:
        changed.setdefault("threshold", threshold(limit))
    changed.setdefault("provenance", provenance(model, asking))
    return SemanticUQ(model, calibration=calibration(**changed))


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; fail after half a minute."""
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it never came true")


@dataclass
class Running:
    """A server that runs."""

    service: Service
    server: HttpServer
    url: str
    client: OpenAI

    def read_for(self, seconds: float) -> None:
        """Give heads and bodies this time from now on; honest ones get more than a busy machine takes."""
        self.service.settings.__dict__["read_timeout"] = seconds

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=30, verify=False, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30, verify=False, **options)

    def chat(self, text: str | Sequence[dict[str, Any]], **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else list(text)
        model = self.service.models[0]
        return self.post("/v1/chat/completions", {"model": model, "messages": messages, **body})


def watch_of(log: Path, calibration: Calibration) -> PromiseWatch:
    """The watch of a server that starts with this log."""
    watch = PromiseWatch.of(calibration)
    with closing(ReplyLog(log, read_only=True)) as opened:
        watch.read(opened, (calibration.id,))
    return watch


@contextmanager
def running(
    uq: SemanticUQ | Any = None,
    *,
    log: ReplyLog | None = None,
    watch: PromiseWatch | None = None,
    fallback: SemanticUQ | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve while the block runs."""
    chosen = ServeSettings(**{"port": 0, "grace": 10.0, **settings})
    with listening(chosen) as bound:
        service = Service(uq or uq_of(), chosen, fallback=fallback, log=log, watch=watch)
        host, port = bound.getsockname()[:2]
        server = HttpServer(service)
        thread = threading.Thread(target=server.answer, args=(bound,))
        thread.start()
        url = f"http://{host}:{port}"
        try:
            with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                yield Running(service, server, url, client)
        finally:
            server.should_exit = True
            thread.join()
