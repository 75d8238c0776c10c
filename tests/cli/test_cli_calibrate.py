"""`semcal calibrate`: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from invoking import semcal, write

from semcal.demo.questions import load_set

#: Tiny models of random weights never end an answer.
pytestmark = pytest.mark.filterwarnings("ignore:.* samples reached the token limit")


def stored(n: int) -> Iterator[dict[str, Any]]:
    """Samples of a system that is right less often than its answers agree."""
    rng = np.random.default_rng(0)
    for number in range(n):
        sure = rng.beta(4, 1.2)
        drawn = ["Ana" if rng.random() < sure else f"Bo {rng.integers(4)}" for _ in range(10)]
        right = "Ana" if rng.random() < 0.7 * sure else "Nobody"
        yield {
            "id": f"q{number}",
            "question": f"Who built mill {number}?",
            "samples": drawn,
            "answers": [right],
        }


def test_a_model_is_asked_and_the_same_call_again_is_refused_until_overwrite(tmp_path: Path) -> None:
    one = load_set("atlas-reading")
    file = write(tmp_path / "q.jsonl", [question.row() for question in one.calibration_train[:20]])
    options = ("--model", "atlas", "--m", 4, "--config", "sampling.max_new_tokens=6")
    call = ("calibrate", file, *options, "--out", tmp_path / "c")
    code, (result,), err = semcal(*call)
    assert code == 0, err
    assert result["m"] == 4
    first = (tmp_path / "c" / "calibration.json").read_bytes()
    assert not (tmp_path / "c.unfinished").exists()
    code, _, err = semcal(*call)
    assert code == 2
    assert "is not empty" in err
    assert semcal(*call, "--overwrite")[0] == 0
    assert (tmp_path / "c" / "calibration.json").read_bytes() == first


def test_a_bad_row_is_reported_and_the_rest_is_calibrated_on(tmp_path: Path) -> None:
    rows = [*stored(60)]
    rows[3]["samples"] = "Ana"
    rows[9]["answers"] = []
    rows[11]["answers"] = [" "]
    rows[13]["group"] = [1]
    rows[15]["context"] = 5
    rows[17]["clusters"] = []
    rows[19]["temperatures"] = ["1"] * 10
    code, (result,), err = semcal("calibrate", write(tmp_path / "s.jsonl", rows), "--out", tmp_path / "c")
    assert code == 1
    assert result["n"] == 53
    assert "'samples' must be a list of strings" in err
    assert "'answers' must be a list of at least one" in err
    assert "line 12 (id 'q11'): 'answers' holds no text, got [' ']" in err
    assert "line 14 (id 'q13'): 'group' must be a text or a number" in err
    assert "line 16 (id 'q15'): 'context' must be the passage as a text" in err
    assert "line 18 (id 'q17'): 'clusters' is empty" in err
    assert "line 20 (id 'q19'): 'temperatures': expected a number" in err


def test_interrupted_before_the_first_block_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    one = load_set("atlas-reading")
    file = write(tmp_path / "q.jsonl", [question.row() for question in one.calibration_train[:20]])
    monkeypatch.setattr("semcal.recalibration.select.sample_candidates", interrupted)
    code, _, err = semcal("calibrate", file, "--model", "atlas", "--m", 4, "--out", tmp_path / "c")
    assert code == 130
    assert "no unfinished work is kept" in err
    assert [path.name for path in tmp_path.iterdir()] == ["q.jsonl"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_table_of_samples_gives_the_calibration_of_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = list(stored(60))
    file = write(tmp_path / "samples.jsonl", rows)
    assert semcal("calibrate", file, "--out", tmp_path / "rows")[0] == 0
    table, path = pandas.DataFrame(rows).drop(columns="id"), tmp_path / f"samples.{kind}"
    if kind == "parquet":
        table.to_parquet(path)
    else:
        cells = table.map(lambda cell: json.dumps(cell) if isinstance(cell, list) else cell)
        cells.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    code, _, err = semcal("calibrate", path, "--out", tmp_path / "table")
    assert code == 0, err
    one, other = (tmp_path / name / "calibration.json" for name in ("rows", "table"))
    assert one.read_bytes() == other.read_bytes()


def test_a_table_goes_through_cluster_and_measure_and_its_bad_cells_are_named(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(
        "question,samples,log_likelihoods\n"
        'Who?,"[""Ana"", ""Ana"", ""Bo""]","[-0.1, -0.2, -1]"\n'
        'Why?,"Ana, Bo",\n'
        'When?,"[""1920"", ""1921""]",\n'
    )
    code, rows, err = semcal("cluster", tmp_path / "s.csv")
    assert code == 1
    assert [(row["id"], row["clusters"]) for row in rows] == [("1", [[0, 1], [2]]), ("3", [[0], [1]])]
    assert "line 3: 'samples'" in err
    table = pandas.DataFrame(rows)
    table.to_parquet(tmp_path / "c.parquet")
    code, found, _ = semcal("measure", tmp_path / "c.parquet")
    piped = semcal("measure", "-", stdin="".join(json.dumps(row) + "\n" for row in rows))[1]
    assert code == 0
    assert [row["confidences"] for row in found] == [row["confidences"] for row in piped]
    code, _, err = semcal("grade", tmp_path / "s.csv")
    assert (code, "is not a file of JSON Lines" in err) == (1, True)
