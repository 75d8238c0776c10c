"""The page in headless Chromium: it opens, reads what is asked for, filters, sorts, links."""

from __future__ import annotations

from typing import Any

import pytest
from browser import CHROMIUM, driven
from made_up_grid import Grid, write_grid

from semcal.experiment.finished import FinishedRun, read_finished
from semcal.experiment.report.build import page as grid_page
from semcal.experiment.report.explorer import explorer_blocks
from semcal.models.equivalence import CachedEquivalence
from semcal.models.fakes import FakeEquivalence

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

#: What a reader does, in order; each step leaves a line in the outcome.
DRIVER = """
const outcome = {};
const form = document.getElementById("filters");
const count = () => document.getElementById("count").textContent;
const rows = () => [...document.querySelectorAll("table.questions > tbody > tr:not(.detail)")];
const column = (name) => {
  const heads = [...document.querySelectorAll("table.questions thead button")].map((b) => b.textContent);
  return rows().map((row) => row.children[heads.indexOf(name)].textContent);
};
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const settled = async () => { do await pause(5); while (!/ of |No /.test(count())); };
const choose = async (name, value) => {
  form.elements[name].value = value;
  form.dispatchEvent(new Event("input", { bubbles: true }));
  await settled();
};
(async () => {
  await settled();
  outcome.opened = count();
  for (const value of ["right", "sure-wrong", "unsure-right", "disagree", "all"]) {
    await choose("outcome", value);
    outcome[value] = count();
  }
  await choose("rule", "equality");
  outcome.rule = count();
  await choose("rule", "");
  await choose("model", "");
  outcome.models = [count(), column("Model")[0]];
  for (const turn of [1, 2]) document.querySelector("#pages [name=next]").click();
  outcome.models.push(column("Model")[0], document.querySelector("#pages span").textContent);
  await choose("dataset", "");
  outcome.everything = count();
  await choose("run", "1");
  outcome.other = count();
  await choose("method", "TS");
  document.querySelectorAll("table.questions thead button")[5].click();
  outcome.sorted = [document.activeElement.textContent, column("Confidence")];
  location.hash = "#model=beta%2F2b&dataset=made-up-reading&run=0&method=TS&measure=L-SC&id=LINKED";
  await pause(50);
  await settled();
  const open = document.querySelector(".expand[aria-expanded=true]");
  outcome.linked = [open === document.activeElement, open.textContent, form.elements.measure.value];
  const detail = document.querySelector("tr.detail:not([hidden])");
  outcome.detail = detail.textContent;
  outcome.verdicts = [...detail.querySelectorAll("td.verdict")].map((cell) => cell.title);
  outcome.forms = [...detail.querySelectorAll(".verdicts tbody th")].map((cell) => cell.textContent);
  outcome.methods = [...detail.querySelectorAll(".methods tbody tr")].map((row) =>
    [...row.children].map((cell) => cell.textContent.trim()));
  const link = detail.querySelector("a");
  outcome.link = link.getAttribute("href") === location.hash;
  location.hash = "#id=nobody";
  await pause(50);
  outcome.nobody = count();
  document.title = "outcome" + JSON.stringify(outcome);
})();
"""
METHODS = ("SE", "TS")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Two models, two data sets, two methods, two runs of 20 questions."""
    grid = Grid(methods=METHODS, runs=2, n=20, counts=())
    return read_finished(write_grid(tmp_path_factory.mktemp("grid") / "run", grid))


@pytest.fixture(scope="module")
def linked(run: FinishedRun) -> int:
    """The place of a question with three answers or more, for which two verdicts are stored."""
    rows = rows_of(run, "beta/2b", "made-up-reading", "TS", "L-SC")
    place = next(i for i, row in enumerate(rows) if len(set(row["normal_forms"])) > 2)
    question, (a, b, c, *_) = rows[place]["question"], dict.fromkeys(rows[place]["normal_forms"])
    stored = CachedEquivalence(FakeEquivalence([{a, b}]), run.folder / "verdicts.sqlite")
    assert stored.entails([(question, a, b), (question, c, a)]) == [True, False]
    return place


@pytest.fixture(scope="module")
def page(run: FinishedRun, linked: int, made_up_results: dict[str, Any]) -> str:
    return grid_page(run, made_up_results, [], explorer_blocks(run))


@pytest.fixture(scope="module")
def outcome(page: str, linked: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a reader finds."""
    driver = DRIVER.replace("LINKED", f"made-up-reading-{linked:04d}")
    return driven(page, driver, tmp_path_factory.mktemp("driven"))


def rows_of(
    run: FinishedRun, model: str, dataset: str, method: str, measure: str, number: int = 0
) -> list[dict[str, Any]]:
    return run.rows(model, dataset, run.choice(model, dataset, method, measure)["candidate"], number)


def first_cell(run: FinishedRun) -> list[dict[str, Any]]:
    """The rows that the page shows first: E-SC of every method on the first model and data set."""
    return [row for name in METHODS for row in rows_of(run, "alpha-1b", "made-up-trivia", name, "E-SC")]


def test_filters_leave_what_they_say(run: FinishedRun, outcome: dict[str, Any]) -> None:
    rows = [(row["confidence"]["E-SC"], row["correct"]["E-SC"], row) for row in first_cell(run)]
    wanted = {
        "opened": len(rows),
        "all": len(rows),
        "right": sum(right for _, right, _ in rows),
        "sure-wrong": sum(p >= 0.9 and not right for p, right, _ in rows),
        "unsure-right": sum(p < 0.5 and right for p, right, _ in rows),
        "rule": sum(row["rule"]["E-SC"] == "equality" for *_, row in rows),
    }
    assert all(wanted.values())
    assert {key: outcome[key] for key in wanted} == {key: f"{n} of 40 answers" for key, n in wanted.items()}


def test_measures_disagree_where_they_differ_in_correctness_or_by_half(
    run: FinishedRun, outcome: dict[str, Any]
) -> None:
    found = 0
    for name in METHODS:
        by_measure = {m: rows_of(run, "alpha-1b", "made-up-trivia", name, m) for m in run.measures}
        for i in range(20):
            seen = [(by_measure[m][i]["confidence"][m], by_measure[m][i]["correct"][m]) for m in run.measures]
            spread = max(p for p, _ in seen) - min(p for p, _ in seen)
            found += len({right for _, right in seen}) > 1 or spread >= 0.5
    assert 0 < found < 40
    assert outcome["disagree"] == f"{found} of 40 answers"


def test_other_models_data_sets_and_runs_are_read_when_they_are_asked_for(outcome: dict[str, Any]) -> None:
    assert outcome["models"] == ["80 of 80 answers", "alpha-1b", "beta/2b", "41–60 of 80"]
    assert outcome["everything"] == "160 of 160 answers"
    assert outcome["other"] == "160 of 160 answers"


def test_sorting_turns_confidence_down_and_keeps_the_focus(run: FinishedRun, outcome: dict[str, Any]) -> None:
    wanted = sorted(
        (
            f"{row['confidence']['E-SC']:.3f}"
            for pair in run.pairs
            for row in rows_of(run, *pair, "TS", "E-SC", 1)
        ),
        reverse=True,
    )
    assert outcome["sorted"] == ["Confidence", wanted[:20]]


def test_a_link_opens_one_question_with_all_that_is_known_of_it(
    run: FinishedRun, linked: int, outcome: dict[str, Any]
) -> None:
    pair = ("beta/2b", "made-up-reading")
    row = rows_of(run, *pair, "TS", "L-SC")[linked]
    assert outcome["linked"] == [True, row["question"], "L-SC"]
    assert outcome["link"]
    for part in (*row["answers"], row["id"], row["context"], *set(row["samples"]), row["greedy"]):
        assert part in outcome["detail"]
    for line, name in zip(outcome["methods"], METHODS):
        others = {m: rows_of(run, *pair, name, m)[linked] for m in run.measures}
        marks = {m: "✓" if other["correct"][m] else "✗" for m, other in others.items()}
        assert line[0] == name
        assert line[2:] == [f"{other['confidence'][m]:.3f} {marks[m]}" for m, other in others.items()]


def test_stored_verdicts_stand_between_the_answers(
    run: FinishedRun, linked: int, outcome: dict[str, Any]
) -> None:
    row = rows_of(run, "beta/2b", "made-up-reading", "TS", "L-SC")[linked]
    shown = [form.split(" ", 1)[1] for form in outcome["forms"]]
    ordered = [row["normal_forms"][i] for cluster in row["clusters"] for i in cluster]
    assert shown == list(dict.fromkeys(ordered))
    a, b, c, *_ = (shown.index(form) for form in dict.fromkeys(row["normal_forms"]))
    size = len(shown)
    wanted = ["same" if i % (size + 1) == 0 else "not asked" for i in range(size * size)]
    wanted[a * size + b], wanted[c * size + a] = "entails", "does not entail"
    assert outcome["verdicts"] == wanted


def test_a_link_to_no_question_says_so(outcome: dict[str, Any]) -> None:
    assert outcome["nobody"] == "The page has no question nobody."
