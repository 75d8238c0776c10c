"""A hostile grid in headless Chromium: nothing runs, nothing breaks the layout, all is shown as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, driven, dump
from made_up_grid import Grid, edited, write_grid

from semcal.experiment.analyses import analyse
from semcal.experiment.finished import FinishedRun, read_finished
from semcal.experiment.report.build import page as grid_page
from semcal.experiment.report.build import page_figure, write_tables
from semcal.experiment.report.explorer import explorer_blocks
from semcal.experiment.report.report_figures import planned_figures
from semcal.files import dumps
from semcal.yaml_files import parse_yaml, yaml_text

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

RUN = "window.ran=1"
HOSTILE = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f'"><img src=x onerror="{RUN}">',
    f"' onmouseover='{RUN}' x='",
    f"<svg/onload={RUN}>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"javascript:{RUN}",
    "<style>*{display:none}</style><title></title><base href=//x>",
    "]]><!-- <script>",
    "a\u2028b\u2029c",
    "\u202egnitset",
    "שלום עולם, مرحبا",
    "x\x00y\x1b[31m\x08",
    "&lt;b&gt; &amp;#60; &",
    "{{script}} {{data}} ${1+1} \\u003c/script\\u003e",
    "$\\frac{x$ _ ^ %",
    "W" * 3000,
    "word " * 200_000,
)
#: All but the last, of a megabyte, which stands in questions, passages and answers alone.
SHORT = HOSTILE[:-1]
MODEL, DATASETS = (
    HOSTILE[1] + HOSTILE[10],
    {'"><img src=x onerror=window.ran=1> $\\frac{x$': False, "W" * 80: True},
)
#: What a script finds that opens every question.
DRIVER = r"""
const outcome = {};
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const count = () => document.getElementById("count").textContent;
const settled = async () => { do await pause(5); while (!/ of |No /.test(count())); };
const form = document.getElementById("filters");
const look = () => ({
  ran: window.ran ?? null,
  images: document.images.length,
  frames: document.querySelectorAll("iframe, object, embed, base, body style:not(svg style)").length,
  handlers: [...document.querySelectorAll("*")].filter((one) =>
    [...one.attributes].some(({ name }) => /^on/i.test(name))).length,
  scripts: document.scripts.length,
  links: [...document.querySelectorAll("a")].filter((a) => !a.getAttribute("href").startsWith("#")).length,
  fits: document.documentElement.scrollWidth <= window.innerWidth,
  counted: count(),
});
(async () => {
  await settled();
  for (const one of document.querySelectorAll("details")) one.open = true;
  form.elements.dataset.value = "";
  form.dispatchEvent(new Event("input", { bubbles: true }));
  await settled();
  outcome.opened = look();
  outcome.questions = [];
  for (const button of document.querySelectorAll("table.questions .expand")) {
    button.click();
    await pause(1);
    outcome.questions.push([button.textContent.length, button.textContent.slice(0, 200)]);
  }
  outcome.expanded = look();
  outcome.text = document.querySelector("main").textContent.replaceAll(/\s+/g, " ").length;
  outcome.heading = document.querySelector("h1").textContent;
  document.title = "outcome" + JSON.stringify(outcome);
})();
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Names, questions, answers, passages, settings, prompts and the record of the machine."""
    grid = Grid(models=(MODEL,), datasets=DATASETS, methods=("TS",), runs=1, n=len(HOSTILE), counts=())
    folder = write_grid(tmp_path_factory.mktemp("hostile") / "run", grid)

    def spoil(number: int, row: dict[str, Any]) -> None:
        text = HOSTILE[number]
        row |= {"question": text, "greedy": text, "answers": [text[:5000], *row["answers"]]}
        row |= {"context": text} if "context" in row else {}
        row["samples"][0] = row["normal_forms"][0] = text
        row["rule"] = dict.fromkeys(row["rule"], text[:100])

    edited(folder, spoil)
    for path in folder.glob("selection/*/*.json"):
        path.write_text(dumps(json.loads(path.read_text()) | {"prompt": "\n".join(SHORT)}))
    settings = parse_yaml((folder / "settings.yaml").read_text(), what="settings")
    settings["equivalence"] = "\n".join(text for text in SHORT if "\0" not in text)  # NUL is refused
    (folder / "settings.yaml").write_text(yaml_text(settings))
    (folder / "environment.json").write_text(dumps({"versions": {"semcal": HOSTILE[0]}, HOSTILE[2]: SHORT}))
    analyse(folder)
    return read_finished(folder)


@pytest.fixture(scope="module")
def page(run: FinishedRun) -> str:
    results = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    plans = [one for one in planned_figures(run, results) if one.number in ("0", "3", "9", "11")]
    figures = [(one, one.drawn()) for one in plans]
    drawn = [page_figure(*pair, f"f{i}") for i, pair in enumerate(figures) if pair[1] is not None]
    return grid_page(run, results, drawn, explorer_blocks(run))


@pytest.fixture(scope="module")
def outcome(page: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What stands in the page without the policy that keeps foreign scripts from running."""
    return driven(page, DRIVER, tmp_path_factory.mktemp("driven"))


def test_nothing_of_a_run_is_executed_loaded_or_linked(page: str, outcome: dict[str, Any]) -> None:
    scripts = page.count("<script")
    assert scripts == 2 + len(DATASETS) * 2  # data, the page's own, and the questions and answers of each set
    for when in ("opened", "expanded"):
        found = outcome[when]
        assert (found["ran"], found["images"], found["frames"], found["handlers"]) == (None, 0, 0, 0)
        assert (found["scripts"], found["links"]) == (scripts + 1, 0)


def test_words_without_end_and_megabytes_leave_the_page_as_wide_as_the_window(
    outcome: dict[str, Any],
) -> None:
    assert outcome["opened"]["fits"]
    assert outcome["expanded"]["fits"]


def test_all_of_it_is_shown_as_text(outcome: dict[str, Any]) -> None:
    assert outcome["expanded"]["counted"] == f"{2 * len(HOSTILE)} of {2 * len(HOSTILE)} answers"
    wanted = {(len(text), text[:200]) for text in HOSTILE}
    assert {(length, text) for length, text in outcome["questions"]} == wanted
    assert outcome["heading"] == f"{MODEL} on {' and '.join(DATASETS)}".replace("\u202e", "�")


def test_it_opens_under_its_own_policy_without_a_complaint(page: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    dom, said = dump(path, tmp_path / "profile")
    assert said == ""
    assert f">{len(HOSTILE)} of {2 * len(HOSTILE)}" not in dom
    assert f">{len(HOSTILE)} of {len(HOSTILE)} answers<" in dom


def test_its_tables_are_written_for_other_programs(run: FinishedRun, tmp_path: Path) -> None:
    results = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    write_tables(run, results, tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not any(line.startswith(("=", "@", "+")) for line in text.splitlines())
        assert path.suffix != ".md" or "<script" not in text
