"""report.html is one file with the run's tables, figures, claims, problems and questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from made_up_grid import Grid, write_grid
from read_page import Page

from semcal.errors import StoreError
from semcal.experiment.analyses import analyse, pair_analysis
from semcal.experiment.finished import FinishedRun, read_finished
from semcal.experiment.report.build import build, page_figure
from semcal.experiment.report.build import page as grid_page
from semcal.experiment.report.explorer import explorer_blocks, unpacked
from semcal.experiment.report.report_figures import planned_figures
from semcal.files import read_rows, write_rows
from semcal.workers import Executor, ProcessExecutor

Results = dict[str, Any]
HOSTILE = "</script><img src=x onerror=alert(1)> \u2028 {{data}}"


@pytest.fixture(scope="module")
def run(analysed_grid: Path) -> FinishedRun:
    return read_finished(analysed_grid)


@pytest.fixture(scope="module")
def text(run: FinishedRun, made_up_results: Results) -> str:
    """The page with the first two figures."""
    plans = planned_figures(run, made_up_results)[:2]
    shown = [page_figure(plan, plan.drawn(), f"f{i}") for i, plan in enumerate(plans)]
    return grid_page(run, made_up_results, shown, explorer_blocks(run))


def bare(run: FinishedRun, results: Results) -> str:
    """The page without figures."""
    return grid_page(run, results, [], explorer_blocks(run))


def test_the_page_is_well_formed_with_unique_ids_and_links_that_lead_somewhere(text: str) -> None:
    page = Page(text)
    assert page.open == []
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert [name for name, count in ids.items() if count > 1] == []
    links = {value[1:] for name, value in page.attributes if name == "href" and value and value[0] == "#"}
    assert links <= set(ids)
    assert (page.tags["title"], page.tags["h1"], page.tags["main"]) == (1, 1, 1)


def test_the_page_needs_nothing_from_outside(text: str) -> None:
    assert "http:" not in text
    assert "https:" not in text
    assert "default-src 'none'" in text
    assert {value for name, value in Page(text).attributes if name == "src"} == set()


def test_the_explorer_holds_every_row_of_the_chosen_candidates(run: FinishedRun) -> None:
    explorer = explorer_blocks(run)
    asked = unpacked(explorer.blocks["questions-0"])
    for number in range(2):
        block = unpacked(explorer.blocks[f"block-0-0-{number}"])
        for candidate, entries in block["candidates"].items():
            for row, entry, question in zip(run.rows(*run.pairs[0], candidate, number), entries, asked):
                clusters, confidences, top, correct, entropy, rule, greedy, greedy_correct = entry
                assert question[:3] == [row["id"], row["question"], row["answers"]]
                assert [sum(one[2::3]) for one in clusters] == [len(one) for one in row["clusters"]]
                members = {block["texts"][i] for one in clusters for i in one[::3]}
                assert members == set(row["samples"])
                assert top == [row["top_cluster"][m] for m in run.measures]
                assert correct == [int(row["correct"][m]) for m in run.measures]
                assert [block["rules"][i] for i in rule] == [row["rule"][m] for m in run.measures]
                assert (block["texts"][greedy], greedy_correct) == (row["greedy"], int(row["greedy_correct"]))
                for k, measure in enumerate(run.measures):
                    shown = [p / 10_000 for p in confidences[k]]
                    assert shown == pytest.approx(row["confidences"][measure], abs=5.1e-5)
                    assert entropy[k] / 10_000 == pytest.approx(row["semantic_entropy"][measure], abs=5.1e-5)
        forms = {text: block["forms"][i] for text, i in zip(block["texts"], block["form_of"]) if i >= 0}
        for row in run.rows(*run.pairs[0], "Base", number):
            assert [forms[text] for text in row["samples"]] == row["normal_forms"]


def test_methods_name_the_candidate_of_each_measure(run: FinishedRun) -> None:
    head = explorer_blocks(run).head
    assert head["choices"][0][0]["TS"] == [
        "TS SS 0.25" if measure in ("L-SC", "IC-SC") else "TS NLL" for measure in run.measures
    ]


def test_a_large_run_is_held_as_run_0_alone_and_the_page_says_so(
    run: FinishedRun, made_up_results: Results
) -> None:
    assert explorer_blocks(run).head["runs"] == [0, 1]
    alone = explorer_blocks(run, small=100)
    assert alone.head["runs"] == [0]
    assert "only run 0 of 2 runs" in grid_page(run, made_up_results, [], alone)


@pytest.fixture
def own_grid(tmp_path: Path) -> FinishedRun:
    """A run of one question for one test to change."""
    grid = Grid(models=("a",), datasets={"d": False}, methods=("Base", "TS"), runs=1, n=2, counts=())
    return read_finished(write_grid(tmp_path / "run", grid))


def edit(run: FinishedRun, **changed: Any) -> None:
    path = run.samples_path("a", "d", "Base", 0)
    first, *rest = [row.data for row in read_rows(path)]
    write_rows(path, [{**first, **changed}, *rest])


def test_markup_in_samples_questions_and_reasons_stays_text(
    own_grid: FinishedRun, made_up_results: Results
) -> None:
    edit(own_grid, question=HOSTILE, samples=[HOSTILE] * 10, greedy=HOSTILE)
    page = Page(bare(own_grid, made_up_results))
    assert page.tags["img"] == 0
    assert page.tags["script"] == 2 + 2
    block = unpacked(explorer_blocks(own_grid).blocks["block-0-0-0"])
    assert HOSTILE in block["texts"]


def test_null_measures_and_likelihoods_of_zero_are_kept_apart(own_grid: FinishedRun) -> None:
    row = own_grid.rows("a", "d", "Base")[0]
    null = {key: {**row[key], "G-SC": None} for key in ("confidences", "confidence", "correct", "rule")}
    null |= {key: {**row[key], "G-SC": None} for key in ("top_cluster", "semantic_entropy")}
    edit(own_grid, log_likelihoods=["-inf", *row["log_likelihoods"][1:]], **null)
    entry = unpacked(explorer_blocks(own_grid).blocks["block-0-0-0"])["candidates"]["Base"][0]
    assert [log for cluster in entry[0] for log in cluster[1::3]].count("-inf") == 1
    assert [part[-1] for part in entry[1:6]] == [None] * 5


@pytest.mark.parametrize("name", ["environment.json", "verdicts.sqlite"])
def test_a_damaged_file_is_named(name: str, own_grid: FinishedRun, made_up_results: Results) -> None:
    (own_grid.folder / name).write_text("{ no", encoding="utf-8")
    with pytest.raises(StoreError, match=name):
        bare(own_grid, made_up_results)


def test_a_folder_without_results_is_told_how_to_get_them(own_grid: FinishedRun) -> None:
    with pytest.raises(StoreError, match="semcal report"):
        build(own_grid.folder)


def test_the_scripts_never_turn_text_into_markup() -> None:
    for name in ("explorer.js", "page.js"):
        script = files("semcal.experiment.report").joinpath("page_files", name).read_text(encoding="utf-8")
        for dangerous in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
        ):
            assert dangerous not in script


# ---- The report is the same whoever makes it ---------------------------------------------------------------

TWO = Grid(
    models=("alpha-1b",),
    datasets={"made-up-trivia": False, "made-up-reading": True},
    methods=("Base", "SE", "TS"),
    runs=2,
    n=20,
    counts=(5, 10),
    resamples=100,
)


@pytest.fixture(scope="module")
def grid_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("shared") / "run", TWO)


@pytest.fixture
def executor() -> Iterator[Executor[int]]:
    with ProcessExecutor(int, 2, preload=()) as workers:
        yield workers


def test_two_processes_write_the_bytes_that_one_writes(
    grid_run: Path, executor: Executor[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "semcal.experiment.report.build.planned_figures"
    monkeypatch.setattr(made, lambda *given: planned_figures(*given)[:5])
    for name, workers in (("alone", None), ("shared", executor)):
        analyse(grid_run, tmp_path / name, workers)
        build(grid_run, tmp_path / name, workers)
    files = {
        name: {
            path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
        }
        for name in ("alone", "shared")
    }
    assert executor.n_processes == 2
    assert {"results.json", "report.html", "figures/figure-03-scatter.pdf"} <= files["alone"].keys()
    assert files["shared"] == files["alone"]


def test_what_a_process_finds_damaged_is_named_and_nothing_is_written(
    executor: Executor[int], tmp_path: Path
) -> None:
    folder = write_grid(tmp_path / "run", TWO)
    path = next(folder.glob("samples/*/made-up-reading/TS_NLL/run1.jsonl"))
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError, match=r"made-up-reading/TS_NLL/run1\.jsonl"):
        analyse(folder, executor=executor)
    assert not (folder / "results.json").exists()


def test_a_part_shows_one_model_on_one_data_set_with_the_seeds_of_the_whole(grid_run: Path) -> None:
    whole = read_finished(grid_run)
    parts = whole.parts()
    assert [part.pairs for part in parts] == [[pair] for pair in whole.pairs]
    assert {row["dataset"] for row in pair_analysis(parts[1]).rows["confidence"]} == {"made-up-reading"}
    assert pair_analysis(parts[1]).scores.seed == (whole.settings.seed, 1)
