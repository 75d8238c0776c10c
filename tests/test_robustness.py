"""The commands that need no model, on damaged rows; `python -m benchmarks.robustness` tries everything."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks._damage import RowCommand, row_case
from benchmarks._hostile_clients import client_areas
from benchmarks._hostile_servers import hostile_areas
from benchmarks.robustness import main

CASES = 40
QUESTION = {"question": "Which river runs through Belmar?", "answers": ["the Sull", "Sull"]}
SAMPLES = ["the Sull", "Sull", "the Orne", ""]


def rows(**more: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps({"id": f"q{i}", **QUESTION, **more}).encode() for i in range(5))


CLUSTERED = {"samples": SAMPLES, "clusters": [[0, 1], [2], [3]], "log_likelihoods": [-0.1, -0.2, -1.5, -3.0]}
COMMANDS = {
    "cluster": rows(samples=SAMPLES),
    "measure": rows(**CLUSTERED),
    "grade": rows(**CLUSTERED, top_cluster={"E-SC": 0, "L-SC": 1}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_row_is_reported_or_read_and_the_others_come_out_as_without_it(
    name: str, tmp_path: Path
) -> None:
    command = RowCommand(name, COMMANDS[name])
    whole = command.run(tmp_path / "rows.jsonl", command.lines)
    assert (whole.code, len(whole.rows)) == (0, 5)
    faults = [
        (words, found)
        for number in range(CASES)
        for _, words, found in [row_case(command, whole, tmp_path, Random(number))]
        if found
    ]
    assert faults == []


@pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed
@pytest.mark.parametrize("area", ["sample, hostile server", "ask, hostile server"])
def test_a_server_that_damages_its_replies_breaks_no_rule(area: str, tmp_path: Path) -> None:
    _, case = hostile_areas(tmp_path)[area]
    found = [case(Random(number)) for number in range(6)]
    assert [(words, faults) for _, words, faults in found if faults] == []
    assert {ended.code for ended, _, _ in found} >= {0, 1}


@pytest.mark.parametrize("area", client_areas())
def test_a_client_that_harms_a_service_breaks_no_rule(area: str) -> None:
    _, case = client_areas()[area]
    assert [(words, faults) for _, words, faults in map(case, map(Random, range(4))) if faults] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed
def test_no_command_breaks_on_damaged_files_settings_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "250", "--seed", "3"]) == 0, capsys.readouterr().out
