"""Time to open, filter and sort the page of a grid run with 2,000 simulated questions and five methods.

    python -m benchmarks page

Milliseconds in headless Chromium from a choice to the rendered table (median of several choices); "open" is
from the start of loading to the first table. The CPU seconds for making the page and its size are also given.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from benchmarks import not_run
from semcal.experiment.analyses import analyse
from semcal.experiment.finished import read_finished
from semcal.experiment.report.build import build

sys.path += ["tests/experiment", "tests/report"]

from browser import CHROMIUM, FLAGS
from made_up_grid import Grid, write_grid

QUESTIONS = 2000
QUICK = {"QUESTIONS": 20}
TOOK = re.compile(r'TOOK (\{.*\})", source')
#: Actions of a reader; the outcome goes to the console, because it follows the load of the page.
DRIVER = """
const took = {};
const form = document.getElementById("filters");
const waiting = () => !/ of |No /.test(document.getElementById("count").textContent);
const pause = () => new Promise((done) => setTimeout(done, 0));
const timed = async (what, act) => {
  const start = performance.now();
  act();
  await pause();
  while (waiting()) await pause();
  document.body.offsetHeight;
  (took[what] ??= []).push(performance.now() - start);
};
const choose = (name, value) => () => {
  form.elements[name].value = value;
  form.dispatchEvent(new Event("input", { bubbles: true }));
};
(async () => {
  while (waiting()) await pause();
  document.body.offsetHeight;
  took.open = [performance.now()];
  for (const value of ["sure-wrong", "unsure-right", "disagree", "right", "all"])
    await timed("filter", choose("outcome", value));
  for (const value of ["TS", ""]) await timed("filter", choose("method", value));
  for (const value of ["b", "be", "bel", ""]) await timed("search", choose("search", value));
  const heads = () => document.querySelectorAll("table.questions thead button");
  for (const i of heads().keys()) await timed("sort", () => heads()[i].click());
  await timed("turn a page", () => document.querySelector("#pages [name=next]").click());
  await timed("open a question", () => document.querySelector(".expand").click());
  console.log("TOOK " + JSON.stringify(took));
})();
"""


def results() -> list[dict[str, Any]]:
    with TemporaryDirectory() as place:
        grid = Grid(models=("alpha-1b",), datasets={"made-up-trivia": False}, runs=1, n=QUESTIONS, counts=())
        folder = write_grid(Path(place) / "run", grid)
        analyse(folder)
        start = process_time()
        page = build(folder)
        seconds, size = process_time() - start, page.stat().st_size
        took = driven(page) if CHROMIUM else {}
        methods = len(read_finished(folder).methods)
    row: dict[str, Any] = {what: round(sorted(times)[len(times) // 2]) for what, times in took.items()}
    if not CHROMIUM:
        row["open"] = not_run("Chromium")
    return [
        {
            "answers": QUESTIONS * methods,
            **row,
            "CPU s of the report": round(seconds, 1),
            "MB": round(size / 1e6, 1),
        }
    ]


def driven(page: Path) -> dict[str, list[float]]:
    """Return action → milliseconds each time."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text(encoding="utf-8"))
    path = page.with_name("driven.html")
    path.write_text(text.replace("</body>", f"<script>{{{DRIVER}}}</script></body>"), encoding="utf-8")
    flags = [flag for flag in FLAGS if not flag.startswith(("--dump-dom", "--virtual-time"))]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={page.parent / 'profile'}"]
    command += ["--remote-debugging-port=0", path.as_uri()]  # keeps the browser open
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as browser:
        assert browser.stderr is not None
        found = next(filter(None, map(TOOK.search, browser.stderr)), None)
        browser.terminate()
    if found is None:
        sys.exit("the page did not get through")
    took: dict[str, list[float]] = json.loads(found[1])
    return took
