"""Take the pictures of the page of `semcal serve` that docs/serve.md shows.

    python -m tools.serve_pictures [--out docs]

Two pictures show `semcal serve` with the model of the package, after labeled questions and their labels: an
answer on a desktop, and an abstention on a phone with a dark theme. The third picture shows a document with
fields. Its model is made up, and misreads the total of every second invoice. Needs Chromium.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image

from semcal.calibration.fields import calibrate_fields
from semcal.data import load_questions
from semcal.fields.schema import parse_schema
from semcal.models.clustering import ClusterConfig
from semcal.models.distribution import Base
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.sample import SampleStep, Sampling, SamplingConfig
from semcal.rows import Row
from semcal.serve.documents import DocumentSource
from semcal.steps import WorkerState
from tests.serve.devtools import Page, browsing
from tests.serve.serving import running

#: Labeled questions of the package that are asked first, and the shown questions.
ASKED = 40
ANSWERED, ABSTAINED = "Who governed Ruvorkreth?", "On which day did the battle of Krissutrund take place?"
SCHEMA = {
    "type": "object",
    "required": ["vendor", "date", "total"],
    "properties": {"vendor": {"type": "string"}, "date": {"type": "string"}, "total": {"type": "number"}},
}


@contextmanager
def serving_atlas(folder: Path) -> Iterator[str]:
    """Serve the model of the package in another process, and yield its address."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "semcal",
        "serve",
        "-q",
        "--port",
        str(port),
        "--log",
        str(folder / "log"),
    ]
    process = subprocess.Popen(command)
    try:
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60)
                break
            except httpx.TransportError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def send_labels(url: str) -> None:
    """Ask labeled questions, and send their reference answers as labels."""
    with httpx.Client(base_url=url, timeout=120) as client:
        for question in load_questions("atlas-trivia", limit=ASKED):
            turns = [{"role": "user", "content": question.question}]
            reply = client.post("/v1/chat/completions", json={"model": "atlas", "messages": turns}).json()
            label = {"id": reply["id"], "reference": question.answers[0]}
            client.post("/v1/semcal/labels", json=label).raise_for_status()


def invoice_model() -> tuple[DocumentSource, str]:
    """Return a made-up model with a calibration of fields, and an invoice that it often misreads."""
    texts = [
        f"Invoice {number} of Mill {number % 9}, 12 May: {100 + number} dollars" for number in range(480)
    ]
    table, rows = {}, []
    for number, text in enumerate(texts):
        right = {"vendor": f"Mill {number % 9}", "date": "12 May", "total": 100 + number}
        wrong = {**right, "total": 1000 + 10 * number}
        table[text] = {json.dumps(right): 0.999, json.dumps(wrong): 0.001}
        if number % 2:
            table[text] = {json.dumps(right): 0.55, json.dumps(wrong): 0.45}
        rows.append(Row({"id": text, "question": text, "answers": right}))
    schema, model = parse_schema(SCHEMA), FakeLanguageModel(table)
    config = SamplingConfig(10, 0, 1.0, 64, answer_format="whole")
    sampling = Sampling((Base(),), PromptConfig(system="Read the invoice."), config, schema=SCHEMA)
    rows = SampleStep(sampling, full=True)(rows, WorkerState(model), lambda _: None)
    calibration = calibrate_fields(
        rows, ClusterConfig(ExactMatch()), schema, risks=[0.05], document_risks=[0.2]
    )
    least_sure = min(rows, key=lambda row: max(map(row.samples.count, row.samples)))
    return DocumentSource(model, ExactMatch(), calibration, sampling), least_sure.question


def show(page: Page, url: str, question: str, size: tuple[int, int], scale: float, *, dark: bool) -> None:
    """Open the page in a window, ask a question, and open its first meaning."""
    width, height = size
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.call("Emulation.setEmulatedMedia", features=[theme])
    page.call("Emulation.setScrollbarsHidden", hidden=True)
    phone = {"mobile": dark, "deviceScaleFactor": scale}
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)
    page.call("Page.navigate", url=f"{url}/")
    page.until("document.readyState === 'complete' && !document.querySelector('#main').hidden")
    page.do(f"document.querySelector('#question').value = {json.dumps(question)}; ask()")
    page.until("document.querySelector('#result').matches('[aria-busy=false]:not(:empty)')")
    page.do("document.querySelector('details')?.setAttribute('open', ''); document.activeElement.blur()")
    page.until("!document.querySelector('#watch').hidden")


def write_picture(page: Page, path: Path) -> None:
    """Write the visible part of the page as PNG with 256 colors."""
    time.sleep(0.5)  # until arrows have turned
    data = base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])
    Image.open(io.BytesIO(data)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(
        path, optimize=True
    )


def main() -> None:
    """Write all pictures into --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name, browsing(Path(name) / "profile") as page:
        with serving_atlas(Path(name)) as url:
            send_labels(url)
            show(page, url, ANSWERED, (1120, 1010), 1, dark=False)
            write_picture(page, out / "serve-page.png")
            show(page, url, ABSTAINED, (390, 1010), 1.25, dark=True)
            write_picture(page, out / "serve-page-phone.png")
        source, invoice = invoice_model()
        with running(source) as server:
            show(page, server.url, invoice, (1120, 760), 1, dark=False)
            write_picture(page, out / "serve-page-document.png")


if __name__ == "__main__":
    main()
