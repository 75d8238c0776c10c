"""The ten figures of a grid run show the numbers of results.json and of stored rows, byte for byte."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up_grid import Grid, write_grid
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from semcal.errors import UsageError
from semcal.experiment.finished import FinishedRun, read_finished, read_results
from semcal.experiment.report.build import inline_svg
from semcal.experiment.report.question_figures import prompt_figure, schematic_figure, teaser_figure
from semcal.experiment.report.report_figures import (
    before_after_figure,
    correlation_figure,
    count_figure,
    distribution_figure,
    planned_figures,
    scatter_figure,
    selective_figure,
)
from semcal.measures import MEASURES
from semcal.metrics import reliability_diagram
from semcal.plotting import method_colour, write_figure

Results = dict[str, Any]
MODEL, DATASET = "alpha-1b", "made-up-trivia"


@pytest.fixture(scope="module")
def run(analysed_grid: Path) -> FinishedRun:
    return read_finished(analysed_grid)


def of(models: tuple[str, ...] = (MODEL,), datasets: tuple[str, ...] = (DATASET,), measures=()) -> Any:
    """What figures ask of a run besides its rows."""
    return SimpleNamespace(models=models, datasets=datasets, measures=measures)


def texts(figure: Figure) -> list[str]:
    """Everything that is written in a figure's panels."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def points(figure: Figure) -> set[tuple[str, float, float]]:
    """(colour, x, y) of every point of a scatter."""
    return {
        (to_hex(colour), x, y)
        for axes in figure.axes
        for one in axes.collections
        if one.get_label() in MEASURES
        for colour, (x, y) in zip(one.get_facecolors(), one.get_offsets())
    }


def test_all_figures_are_written_twice_as_pdf_and_png_without_dates(
    analysed_grid: Path, tmp_path: Path
) -> None:
    plans = planned_figures(read_finished(analysed_grid), read_results(analysed_grid))
    drawn = [(plan, figure) for plan in plans if (figure := plan.drawn()) is not None]
    paths = [path for plan, figure in drawn for path in plan.write(figure, tmp_path)]
    assert [path.name for path in paths if path.suffix == ".png"] == [
        "figure-00-before-after+alpha-1b+made-up-trivia.png",
        "figure-01-pull.png",
        "figure-02-schematic.png",
        "figure-03-scatter.png",
        "figure-04-selective+alpha-1b.png",
        "figure-05-selective+alpha-1b.png",
        "figure-06-generations+alpha-1b+made-up-trivia.png",
        "figure-07a-NLL.png",
        "figure-07b-SS.png",
        "figure-08-prompts.png",
        "figure-09-distributions+alpha-1b+made-up-trivia.png",
        "figure-10-correlations+alpha-1b+made-up-trivia.png",
    ]
    assert len(paths) == 24
    for path, head in zip(paths, [b"%PDF", b"\x89PNG"] * 12):
        content = path.read_bytes()
        assert content.startswith(head)
        assert b"Date" not in content


def test_the_scatter_has_the_mean_of_every_method_and_measure_with_standard_errors(
    made_up_results: Results,
) -> None:
    entries = made_up_results["analyses"]["confidence"]
    figure = scatter_figure(of(), entries)
    assert points(figure) == {
        (method_colour(entry["method"]), entry["ace"]["mean"], entry["auroc"]["mean"]) for entry in entries
    }
    (axes,) = figure.axes
    across = axes.collections[0].get_segments()
    bars = {round(float(np.ptp(segment[:, 0])) / 2, 9) for segment in across}
    assert bars == {round(entry["ace"]["se"], 9) for entry in entries}


def test_data_sets_of_one_model_stand_side_by_side_each_at_its_own_scale(
    made_up_results: Results,
) -> None:
    entries = made_up_results["analyses"]["confidence"]
    moved = [{**e, "dataset": "other", "ace": {**e["ace"], "mean": e["ace"]["mean"] + 1}} for e in entries]
    figure = scatter_figure(of(datasets=(DATASET, "other")), [*entries, *moved])
    left, right = figure.axes
    assert left.get_position().y0 == pytest.approx(right.get_position().y0)
    assert left.get_position().x1 < right.get_position().x0
    assert right.get_xlim()[0] == pytest.approx(left.get_xlim()[0] + 1)
    assert right.get_ylim() == pytest.approx(left.get_ylim())


def test_data_sets_of_several_models_are_rows(made_up_results: Results) -> None:
    entries = made_up_results["analyses"]["confidence"]
    places = [(e, d) for e in (MODEL, "beta") for d in (DATASET, "other")]
    every = [{**entry, "model": model, "dataset": name} for model, name in places for entry in entries]
    figure = scatter_figure(of((MODEL, "beta"), (DATASET, "other")), every)
    grid = np.array(figure.axes).reshape(2, 2)
    assert [axes.get_title() for axes in grid[0]] == [f"{DATASET}, {MODEL}", f"{DATASET}, beta"]
    assert grid[0, 0].get_position().y0 > grid[1, 0].get_position().y1


def test_figure_7_has_standard_deviations_and_leaves_out_what_is_undefined(made_up_results: Results) -> None:
    entries = [dict(one) for one in made_up_results["analyses"]["losses"] if one["loss"] == "NLL"]
    entries[0]["auroc"] = {"mean": None, "sd": None}
    figure = scatter_figure(of(), entries, error="sd")
    assert len(points(figure)) == len({(e["ace"]["mean"], e["auroc"]["mean"]) for e in entries[1:]})


def test_a_panel_without_a_point_says_that_it_is_undefined(made_up_results: Results) -> None:
    entries = [
        {**one, "auroc": {"mean": None, "se": None}} for one in made_up_results["analyses"]["confidence"]
    ]
    assert texts(scatter_figure(of(), entries)) == ["undefined"]


def test_selective_accuracy_is_drawn_as_it_was_computed(made_up_results: Results) -> None:
    entries = made_up_results["analyses"]["selective"]
    figure = selective_figure(of(measures=("L-SC",)), entries, MODEL)
    wanted = next(one for one in entries if (one["method"], one["measure"]) == ("TS", "L-SC"))
    lines = {to_hex(line.get_color()): line for line in figure.axes[0].lines if len(line.get_xdata()) == 19}
    assert set(lines) == {method_colour(name) for name in ("Base", "SE", "TS")}
    np.testing.assert_array_equal(lines[method_colour("TS")].get_ydata(), wanted["accuracy"])
    np.testing.assert_array_equal(lines[method_colour("TS")].get_xdata(), wanted["rejection"])


def test_the_number_of_draws_is_on_one_axis_and_both_metrics_on_the_other(made_up_results: Results) -> None:
    entries = made_up_results["analyses"]["generations"]
    upper, lower = count_figure(of(measures=("E-SC",)), entries, MODEL, DATASET).axes
    for axes, metric in ((upper, "ace"), (lower, "auroc")):
        line = next(line for line in axes.lines if to_hex(line.get_color()) == method_colour("SE"))
        own = [one for one in entries if (one["method"], one["measure"]) == ("SE", "E-SC")]
        assert list(line.get_xdata()) == [5, 10]
        assert list(line.get_ydata()) == [one[metric]["mean"] for one in own]


def test_histograms_hold_the_shares_and_the_median(made_up_results: Results) -> None:
    entries = made_up_results["analyses"]["distributions"]
    figure = distribution_figure(of(measures=made_up_results["measures"]), entries)
    assert len(figure.axes) == 3 * 7
    for axes, entry in zip(
        figure.axes, sorted(entries, key=lambda e: ("Base", "SE", "TS").index(e["method"]))
    ):
        np.testing.assert_array_equal(axes.patches[0].get_data().values, entry["share"])
        assert axes.lines[0].get_xdata()[0] == entry["median"]


def test_every_correlation_is_written_in_its_cell(made_up_results: Results) -> None:
    entries = made_up_results["analyses"]["correlations"]
    figure = correlation_figure(of(), entries)
    for axes, entry in zip(figure.axes, entries):
        written = [float(text.get_text().replace("−", "-")) for text in axes.texts]
        np.testing.assert_allclose(written, np.ravel(entry["matrix"]), atol=0.00501)
        assert axes.get_title() == f"{entry['method']}, mean {entry['mean']:.2f}"


def test_a_constant_measure_has_dashes_for_correlations(made_up_results: Results) -> None:
    entry = dict(made_up_results["analyses"]["correlations"][0])
    entry |= {"matrix": [[math.nan] * 7] * 7, "mean": None}
    (axes,) = correlation_figure(of(), [entry]).axes
    assert {text.get_text() for text in axes.texts} == {"–"}
    assert axes.get_title() == "Base"


def test_the_teaser_figure_has_a_question_that_the_fitted_temperature_helps(run: FinishedRun) -> None:
    figure = teaser_figure(run, ())
    assert figure is not None
    asked = " ".join(figure.get_suptitle().split())
    before, after = (
        next(row for row in run.rows(MODEL, DATASET, name) if row["question"] == asked)
        for name in ("SE", run.choice(MODEL, DATASET, "TS", "L-SC")["candidate"])
    )
    errors = [(row["confidence"]["L-SC"] - row["correct"]["L-SC"]) ** 2 for row in (before, after)]
    assert errors[0] > errors[1]
    for axes, row in zip(figure.axes, (before, after)):
        widths = sorted((bar.get_width() for bar in axes.patches), reverse=True)
        np.testing.assert_allclose(widths, sorted(row["confidences"]["L-SC"], reverse=True))
        top = max(axes.patches, key=lambda bar: bar.get_width())
        assert bool(top.get_hatch()) == (not row["correct"]["L-SC"])


def test_a_run_without_the_two_methods_has_no_teaser_figure(tmp_path: Path) -> None:
    grid = Grid(models=(MODEL,), datasets={DATASET: False}, methods=("Base",), runs=1, n=3, counts=())
    assert teaser_figure(read_finished(write_grid(tmp_path / "run", grid)), ()) is None


def test_the_schematic_has_the_statistics_and_distributions_of_its_question(run: FinishedRun) -> None:
    figure = schematic_figure(run, ())
    assert figure is not None
    written = texts(figure)
    row = next(row for row in run.rows(MODEL, DATASET, "Base") if row["question"] == written[0])
    likelihood = np.exp(row["log_likelihoods"])
    for cluster in row["clusters"]:
        s, u = likelihood[cluster].sum(), np.array(row["log_likelihoods"])[cluster]
        q = likelihood[cluster] / s
        for value in (s, s / len(cluster), -(q * np.log(q)).sum(), -u.sum()):
            assert f"{abs(value):.2f}" in written
    shown = {text for text in written if text.startswith(("0.", "1.00"))}
    for measure in run.measures:
        assert {f"{p:.2f}" for p in row["confidences"][measure] if p > 0.17} <= shown


@pytest.mark.filterwarnings("error")
def test_prompts_are_set_line_by_line_with_letters_that_the_font_lacks(tmp_path: Path) -> None:
    entries = [
        {"model": "a", "dataset": "d", "open_book": book, "prompt": f"<s>中\ud800 $x_1$\n\nbook: {book}"}
        for book in (True, False)
    ]
    figure = prompt_figure(of(), entries)
    assert [text.get_text() for text in figure.texts] == [
        "(a) closed book, d",
        "<s>中� $x_1$",
        "",
        "book: False",
        "(b) open book, d",
        "<s>中� $x_1$",
        "",
        "book: True",
    ]
    write_figure(figure, tmp_path / "prompts.png")


# ---- A figure inside a page keeps every mark, and says nothing twice ---------------------------------------


@pytest.fixture(scope="module")
def svg() -> str:
    """Bars with and without length, a hatch, markers, mathematics, a dollar."""
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    errors = np.array([0.1, np.nan, np.nan])
    axes.errorbar([1, 2, 3], [1, 2, 3], yerr=errors, fmt="o", color=method_colour("TS"), label="a < b")
    axes.bar([1], [2], hatch="//", color=method_colour("Base"))
    axes.set_title("$\\bar{s}$ & so on")
    return inline_svg(figure, "f1", "what it <shows>")


def test_it_is_well_formed_and_needs_no_other_file(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == "what it <shows>"
    assert "http" not in svg
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("f1-") for name in ids)
    assert set(re.findall(r"(?:href=\"|url\()#([\w-]+)", svg)) == set(ids)


def test_every_marker_and_bar_is_there_and_what_has_no_length_is_not(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert all(path.get("d") for path in root.iter("path"))
    markers = [use for use in root.iter("use") if _style(root, use).count("var(--m-ts)")]
    assert len(markers) == 3
    bars = [path for path in root.iter("path") if "stroke: var(--m-ts)" in _style(root, path)]
    assert len([path for path in bars if path.get("clip-path")]) == 1
    assert "var(--m-base)" in svg


def test_repeated_styles_stand_once(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    styles = [element.get("style") for element in root.iter() if element.get("style")]
    assert len(set(styles)) == len(styles)


def _style(root: ElementTree.Element, element: ElementTree.Element) -> str:
    """The style of an element, its own or that of its class."""
    sheet = root.findtext("style") or ""
    found = re.search(rf"\.{element.get('class')}{{([^}}]*)}}", sheet)
    return (element.get("style") or "") + (found[1] if found else "")


# ---- Files of figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_the_same_figure_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    paths = [write_figure(Figure((1, 1)), tmp_path / str(i) / f"loss.{suffix}") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes() != b""


def test_another_file_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"loss\.gif: .*\.pdf, \.png, \.svg"):
        write_figure(Figure((1, 1)), tmp_path / "loss.gif")


# ---- Reliability: before and after on one panel ------------------------------------------------------------


def test_before_and_after_are_the_curves_of_the_rows_of_all_runs_without_null_ones(tmp_path: Path) -> None:
    grid = Grid(models=("a",), datasets={"d": False}, methods=("Base", "SE", "TS"), runs=2, n=20, counts=())
    run = read_finished(write_grid(tmp_path / "run", replace(grid, null="E-SC")))
    figure = before_after_figure(run, (), "a", "d")
    assert figure is not None
    _, *curves = figure.axes[0].lines
    for method, line in zip(("Base", "TS"), curves, strict=True):
        candidate = run.choice("a", "d", method, "E-SC")["candidate"]
        rows = [row for number in range(2) for row in run.rows("a", "d", candidate, number)]
        known = [row for row in rows if row["confidence"]["E-SC"] is not None]
        assert len(known) == 2 * 19
        confidence, correct = ([row[key]["E-SC"] for row in known] for key in ("confidence", "correct"))
        diagram = reliability_diagram(confidence, correct, resamples=1)
        np.testing.assert_allclose(line.get_xdata(), diagram.confidence)
        np.testing.assert_allclose(line.get_ydata(), diagram.recalibrated)
