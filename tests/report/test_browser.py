"""The page at work in headless Chromium: it opens without an error, filters, sorts, pages and unfolds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, driven, dump
from made_up_run import edit_row, write_run

from semcal.report import build

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

#: What a reader does, in order; each step leaves a line in the outcome.
DRIVER = """
const outcome = {};
const form = document.getElementById("filters");
const choose = (name, value) => {
  form.elements[name].value = value;
  form.dispatchEvent(new Event("input", { bubbles: true }));
};
const count = () => document.getElementById("count").textContent;
const column = (n) => [...document.querySelectorAll("table.questions > tbody > tr:not(.detail)")]
  .map((row) => row.children[n].textContent);
const head = (n) => document.querySelectorAll("table.questions thead th")[n];
outcome.opened = count();
for (const value of ["right", "wrong", "sure-wrong", "unsure-right", "all"]) {
  choose("outcome", value);
  outcome[value] = count();
}
choose("method", "TS");
outcome.method = count();
head(4).firstChild.click();
outcome.descending = [head(4).getAttribute("aria-sort"), column(4), document.activeElement.textContent];
head(4).firstChild.click();
outcome.ascending = [head(4).getAttribute("aria-sort"), column(4)];
choose("measure", "L-SC");
outcome.other = column(4);
choose("search", "MARKUP <IMG");
outcome.found = [count(), column(3)];
document.querySelector(".expand").click();
outcome.detail = document.querySelector("tr.detail").textContent;
outcome.images = document.images.length;
choose("search", "");
choose("method", "");
outcome.first = document.querySelector("#pages span").textContent;
document.querySelector("#pages [name=next]").click();
outcome.second = document.querySelector("#pages span").textContent;
document.querySelector(".choices input[value=L-SC]").click();
outcome.figures = [...document.querySelectorAll("[data-value]")].filter((part) => !part.hidden)
  .map((part) => part.dataset.value);
document.title = "outcome" + JSON.stringify(outcome);
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(
        tmp_path_factory.mktemp("browser"), sets=("made-up-rare",), measures=("E-SC", "L-SC"), n=30
    )
    samples = ["markup <img src=x onerror=alert(1)>"] * 10
    row = {"samples": samples, "clusters": [list(range(10))], "cluster_correct": [False]}
    row["log_likelihoods"] = [-0.5] * 10
    row |= {"confidences": {"E-SC": [1.0], "L-SC": [1.0]}, "top_cluster": {"E-SC": 0, "L-SC": 0}}
    row |= {"confidence": {"E-SC": 1.0, "L-SC": 1.0}, "correct": {"E-SC": False, "L-SC": False}}
    edit_row(folder, "samples/made-up-rare/TS.jsonl", **row)
    return folder


@pytest.fixture(scope="module")
def outcome(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a reader finds."""
    page = build(run).read_text(encoding="utf-8")
    return driven(page, DRIVER, tmp_path_factory.mktemp("driven"))


def answers(run: Path) -> list[tuple[str, float, bool]]:
    """(method, confidence, correctness) of every row under E-SC."""
    found = []
    for path in sorted((run / "samples/made-up-rare").iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.append((path.stem, row["confidence"]["E-SC"], row["correct"]["E-SC"]))
    return found


def test_the_page_opens_under_its_own_policy_without_a_complaint(run: Path, tmp_path: Path) -> None:
    dom, said = dump(build(run), tmp_path / "profile")
    assert said == ""
    assert ">90 of 90 answers<" in dom


def test_filters_leave_what_they_say(run: Path, outcome: dict[str, Any]) -> None:
    rows = answers(run)
    wanted = {
        "opened": rows,
        "all": rows,
        "right": [row for row in rows if row[2]],
        "wrong": [row for row in rows if not row[2]],
        "sure-wrong": [row for row in rows if row[1] >= 0.9 and not row[2]],
        "unsure-right": [row for row in rows if row[1] < 0.5 and row[2]],
        "method": [row for row in rows if row[0] == "TS"],
    }
    assert all(wanted.values())
    assert {key: outcome[key] for key in wanted} == {
        key: f"{len(found)} of 90 answers" for key, found in wanted.items()
    }


def test_sorting_by_confidence_turns_around_and_keeps_the_focus(run: Path, outcome: dict[str, Any]) -> None:
    wanted = sorted(f"{confidence:.3f}" for method, confidence, _ in answers(run) if method == "TS")
    assert outcome["ascending"] == ["ascending", wanted]
    assert outcome["descending"] == ["descending", wanted[::-1], "Confidence"]
    assert outcome["other"] != wanted
    assert outcome["other"] == sorted(outcome["other"])


def test_markup_is_found_shown_and_never_rendered(outcome: dict[str, Any]) -> None:
    assert outcome["found"] == ["1 of 90 answers", ["markup <img src=x onerror=alert(1)>"]]
    assert "markup <img src=x onerror=alert(1)> ×10" in outcome["detail"]
    assert outcome["images"] == 0


def test_pages_turn_and_the_figures_follow_the_measure(outcome: dict[str, Any]) -> None:
    assert (outcome["first"], outcome["second"]) == ("1–50 of 90", "51–90 of 90")
    assert outcome["figures"] == ["L-SC", "L-SC"]
