"""A measure and a metric from outside the package are found wherever those of the package are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from semcal.cli.app import app
from semcal.errors import UsageError
from semcal.metrics import METRICS, Metric, bootstrap, summaries
from semcal.report.page import glossary
from semcal.report.tables import measures_in_order, metric_title
from semcal.semantics import MEASURES, Measure


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The square of the share of answers, and the share of overconfident wrong answers."""
    squared = Measure("S-SC", lambda c, _: 2 * c.log_size, "Squared: by n².", needs_likelihoods=False)
    boldness = Metric(
        "boldness",
        lambda t, _: ((t.count - t.right) * (t.value > 0.5)).sum(-1) / t.n,
        "bold",
        "The share of answers that are wrong and surer than 0.5.",
        larger_is_better=False,
    )
    MEASURES.register(squared)
    METRICS.register(boldness)
    yield
    del MEASURES["S-SC"], METRICS["boldness"]


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        app([*arguments, "-q"])
    assert end.value.code == 0


def test_the_commands_show_them_with_intervals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "id": str(n),
            "samples": ["Ana", "Ana", "Bo"],
            "clusters": [[0, 1], [2]],
            "log_likelihoods": [-0.5, -0.5, -1.0] if n % 2 else None,
            "answers": "Ana" if rng.random() < 0.6 else "Bo",
            "question": f"Who is {n}?",
        }
        for n in range(40)
    ]
    clustered, measured, graded, assessed = (str(tmp_path / f"{n}.jsonl") for n in range(4))
    Path(clustered).write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("measure", clustered, "--out", measured)
    first = json.loads(Path(measured).read_text().splitlines()[0])
    assert first["confidence"]["S-SC"] == pytest.approx(4 / 5)
    assert first["confidences"]["S-SC"] == pytest.approx([4 / 5, 1 / 5])
    run("grade", measured, "--out", graded)
    run("metrics", graded, "--ci", "--out", assessed)
    results = {row["measure"]: row for row in map(json.loads, Path(assessed).read_text().splitlines())}
    assert results["S-SC"]["mean_confidence"] == pytest.approx(4 / 5)
    for row in (results["S-SC"], results["L-SC"]):
        low, high = row["interval"]["boldness"]
        assert row["boldness"] == pytest.approx(1 - row["accuracy"])
        assert 0 < low < row["boldness"] < high < 1
        assert row["se"]["boldness"] > 0


def test_functions_glossary_and_tables_know_them() -> None:
    p, c = np.array([0.9, 0.8, 0.2, 0.6]), np.array([1, 0, 0, 0])
    assert summaries([p], [c])["boldness"].tolist() == [0.5]
    assert bootstrap(p, c, metrics=["boldness"])["boldness"].estimate == 0.5
    terms = {code: text for codes in glossary().values() for code, text in codes.items()}
    assert terms["S-SC"] == "Squared: by n²."
    assert terms["bold"].startswith("The share of answers that are wrong")
    assert measures_in_order(["S-SC", "T-SC", "IC-SC", "unknown"]) == ["IC-SC", "T-SC", "S-SC"]
    assert metric_title("boldness") == "bold"


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(UsageError, match="there is a measure called 'E-SC' already"):
        MEASURES.register(Measure("E-SC", lambda c, _: c.log_size))
    with pytest.raises(UsageError, match="unknown metric 'bolness'; did you mean 'boldness'"):
        METRICS["bolness"]
