"""Settings that stand in a file, or behind --config, in place of options of the command line."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from semcal.cli import monitor
from semcal.cli import options as opt
from semcal.cli.app import COMMANDS
from semcal.cli.config_file import READERS, SECTIONS, FileSetting, keys_by_option, option_of
from tests.cli.invoking import run, semcal, write

QUESTION = {"id": "1", "question": "Who wrote The Amber Gate?"}
ROW = {"id": "1", "question": "Who?", "samples": ["Ana", "Bo", "Ana"]}


def function_of(command: str) -> Any:
    return resolve_name(f"semcal.cli.{COMMANDS[command][0]}")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "q.jsonl", [QUESTION])
    return "sample", "q.jsonl", "-q"


def test_every_setting_of_the_file_is_an_option_of_a_command_and_has_one_place() -> None:
    parameters = {name: opt.parameters_of(function_of(name)) for name in COMMANDS}
    known = {option for of_command in parameters.values() for option in of_command}
    for section, keys in SECTIONS.items():
        assert {option_of(section, key) for key in keys} <= known, section
    in_file = {
        option
        for of_command in parameters.values()
        for option, parameter in of_command.items()
        if isinstance(parameter.default, FileSetting)
    }
    assert in_file <= keys_by_option().keys()
    for place, names in READERS.items():
        section, _, key = place.partition(".")
        assert {*names} <= parameters.keys()
        assert key in {"", *SECTIONS[section]}


def test_the_command_line_comes_before_later_and_then_earlier_sources(asked: tuple[Any, ...]) -> None:
    Path("first.yaml").write_text("model: {name: atlas}\nsampling: {m: 2, max-new-tokens: 4, seed: 5}\n")
    Path("second.yaml").write_text("sampling: {m: 3}\n")
    both = ("--config", "first.yaml", "--config", "second.yaml")
    code, (row,), stderr = semcal(*asked, *both)
    assert (code, len(row["samples"]), stderr) == (0, 3, "")
    by = row["sampled_by"]
    assert (by["m"], by["max_new_tokens"], by["seed"]) == (3, 4, 5)
    _, (row,), _ = semcal(*asked, *both, "--config", "sampling.m=4")
    assert len(row["samples"]) == 4
    _, (again,), _ = semcal(*asked, *both, "--m", "10", "--seed", "0")  # 10 and 0 are the defaults
    assert (again["sampled_by"]["m"], again["sampled_by"]["seed"]) == (10, 0)


def test_one_file_serves_commands_that_read_other_keys_of_it(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "model: {name: none, dtype: bfloat16}\nserver: {retries: 0}\nserve: {port: 1}\n"
        "cluster: {equivalence: exact, linkage: greedy, merge_refusals: true}\ncalibration: {risks: [0.1]}\n"
    )
    rows = write(tmp_path / "rows.jsonl", [ROW | {"samples": ["I don't know.", "No idea.", "Ana"]}])
    code, (row,), _ = semcal("cluster", rows, "--config", file)
    assert (code, row["clusters"]) == (0, [[0, 1], [2]])
    assert row["clustered_by"] | {"equivalence": "exact", "linkage": "greedy"} == row["clustered_by"]


def test_a_key_is_not_read_by_a_command_whose_option_of_that_name_means_another_thing(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "fit: {alpha: 0.25, by: brier}\nserve: {audit: 0.05, calibration: none, force: true}\n"
        "calibration: {answer: greedy, risks: [0.1, 0.2], delta: 0.2}\n"
    )
    rows = write(
        tmp_path / "rows.jsonl",
        [ROW | {"answers": [name], "clusters": [[0, 2], [1]]} for name in ("Ana", "Eda")],
    )
    measured = tmp_path / "measured.jsonl"
    graded = tmp_path / "graded.jsonl"
    for command in (("measure", rows, "--out", measured), ("grade", measured, "--out", graded)):
        assert run(*command, "--config", file)[0] == 0
    code, results, _ = semcal("metrics", graded, "--config", file)
    assert (code, "threshold" in str(results)) == (0, False)
    usual, here = (
        opt.with_settings("monitor", monitor.command, {}, sources, ()) for sources in ((), (str(file),))
    )
    assert here == usual


def test_an_option_of_the_command_line_sets_its_alternative_in_the_file_aside(
    asked: tuple[Any, ...], tmp_path: Path
) -> None:
    Path("all.yaml").write_text(
        "model: {name: atlas}\nsampling: {m: 1, temperature: 0.5}\ncluster: {answers_among: 'Ana, Bo'}\n"
    )
    code, (row,), _ = semcal(*asked, "--config", "all.yaml", "--recalibrator", "atlas")
    assert (code, row["sampled_by"]["temperature"] > 1) == (0, True)
    rows = write(tmp_path / "rows.jsonl", [ROW])
    code, (row,), _ = semcal("cluster", rows, "--config", "all.yaml", "--equivalence", "letter")
    assert (code, row["clustered_by"]["equivalence"]) == (0, "letter")


def test_a_calibration_brings_its_settings_whatever_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "sampling: {m: 3, max_new_tokens: 5, temperature: 2}\nprompt: {system: Be brief.}\n"
        "cluster: {linkage: greedy, answers_among: 'a, b'}\ncalibration: {answer: greedy}\n"
    )
    asked = ("ask", "Who wrote The Amber Gate?", "--model", "atlas", "--json", "-q")
    alone, beside = (
        semcal(*asked, "--calibration", "atlas"),
        semcal(*asked, "--calibration", "atlas", "--config", file),
    )
    assert beside == alone
    code, _, said = semcal(*asked, "--calibration", "atlas", "--m", 3)
    assert (code, "--m" in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("samplng: {m: 3}", "'samplng'; did you mean 'sampling'"),
        ("sampling: {n: 3}", "'n'"),
        ("sampling: 3", "sampling must contain keys and values"),
        ("sampling: {m: many}", "sampling.m"),
        ("sampling: {m: true}", "sampling.m"),
        ("sampling: {m: 0}", "sampling.m"),
        ("sampling: {m: 9000000000}", "sampling.m"),
        ("model: {name: [a, b]}", "model.name"),
        ("- sampling", "must contain sections"),
        ("a: [", "line 1"),
        ("plugins: {a: b}", "plugins"),
    ],
)
def test_a_file_with_a_fault_is_refused_by_name(asked: tuple[Any, ...], text: str, named: str) -> None:
    Path("faulty.yaml").write_text(text)
    code, stdout, stderr = run(*asked, "--model", "atlas", "--config", "faulty.yaml")
    assert (code, stdout, named in stderr) == (2, "", True), stderr


@pytest.mark.parametrize("source", ["sampling.m=x", "sampling.n=3", "none.yaml", "other.m=3", "model.name"])
def test_a_single_setting_with_a_fault_is_refused_by_name(asked: tuple[Any, ...], source: str) -> None:
    code, _, stderr = run(*asked, "--model", "atlas", "--config", source)
    assert (code, source in stderr) == (2, True), stderr


def test_a_single_setting_of_text_is_taken_as_it_stands(asked: tuple[Any, ...]) -> None:
    text = "Reply: {a name}, or [none] # yes"
    code, stdout, _ = run(*asked, "--model", "atlas", "--show-prompt", "--config", f"prompt.system={text}")
    assert (code, text in stdout) == (0, True)


def test_a_command_without_a_model_says_where_to_name_one(asked: tuple[Any, ...]) -> None:
    code, _, stderr = run(*asked)
    assert (code, "--model" in stderr, "model.name" in stderr) == (2, True, True)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"SEMCAL_SERVE_PORT": "x"}, "SEMCAL_SERVE_PORT"),
        ({"SEMCAL_SERVE_PROT": "1"}, "SEMCAL_SERVE_PROT"),
        ({"SEMCAL_SERVE_ABSTAIN": "sentense"}, "did you mean 'sentence'"),
    ],
)
def test_the_environment_of_serve_comes_before_its_file(
    environment: dict[str, str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("serve: {port: 0, abstain: refusal}\nmodel: {name: atlas}\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, _, stderr = run("serve", "--config", file)
    assert (code, named in stderr) == (2, True), stderr


def test_a_key_in_place_of_its_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    file, key = tmp_path / "serve.yaml", "a-key-of-sixteen-letters"
    file.write_text(f"serve: {{keys: [{key}]}}")
    code, _, stderr = run("serve", "--config", file)
    assert (code, "serve.keys" in stderr, key in stderr) == (2, True, False)


def test_settings_of_the_environment_have_the_types_of_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PORT", "7"), ("CORS", "a,b"), ("LOG_TEXTS", "true")):
        monkeypatch.setenv(f"SEMCAL_SERVE_{name}", value)
    command = function_of("serve")
    options = opt.with_settings("serve", command, {"abstain": "error"}, (), {"abstain"})
    assert (options["port"], options["cors"], options["log_texts"]) == (7, ["a", "b"], True)
    assert (options["abstain"], options["queue"]) == ("error", None)
