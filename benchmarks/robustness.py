"""Damaged and hostile inputs to every command: rejections, reports and violations.

    python -m benchmarks.robustness [--cases N] [--seed S] [--area NAME]

Each case damages one row, file, setting or option in one seeded way and runs the command in this process. A
case is a violation if it ends with a traceback, with another exit code than 0, 1 and 2, without a message on
a failure, with a warning of Python, with a line of more than 2,000 characters, or after more than 30 seconds
of processor time. For commands that write a row for each row, it is also a violation if the number of input
rows differs from that of output and reported rows, or if an undamaged row has another result than without the
damage.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Any
from unittest.mock import patch

import typer

from benchmarks._damage import Area, Arguments, Ended, RowCommand, faults_of, file_case, row_case, semcal
from benchmarks._damaged_logs import import_cases
from benchmarks._hostile_clients import client_areas
from benchmarks._hostile_servers import hostile_areas
from benchmarks._mutations import (
    OPTIONS,
    WORK,
    Change,
    changed_bytes,
    changed_json,
    changed_text,
)
from semcal.cli.app import COMMANDS, app
from semcal.cli.config_file import FileSetting, keys_by_option
from semcal.cli.options import parameters_of
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.files import canonical
from semcal.store import UnfinishedWork

CASES, SEED = 2400, 0
QUICK: dict[str, Any] = {}
#: Columns of the samples as a table.
COLUMNS = ("id", "question", "answers", "samples", "log_likelihoods")
#: Options for the amount of work; a large value is work, not damage.
AMOUNTS = {"--m", "--max-new-tokens", "--workers", "--limit", "--bins", "model.memory"}
GRID = """\
preset: sound
models: [{name: one, path: atlas}]
datasets: [{name: rare, source: atlas-rare, calibration_train: 30, validation: 20, test: 20}]
methods: [Base, TS]
runs: {count: 1}
sampling: {m: 4}
equivalence: exact
"""
Case = Callable[[Random], tuple[Ended, str, list[str]]]


# Undamaged files


@dataclass(frozen=True)
class Bench:
    """The undamaged files of all cases."""

    folder: Path

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / name

    def lines(self, name: str) -> tuple[bytes, ...]:
        """Return the rows of a file."""
        return tuple(self.path(name).read_bytes().splitlines())

    def files(self, *folders: str) -> list[Path]:
        """Return all files of folders except logs."""
        found = (file for name in folders for file in sorted(self.path(name).rglob("*")))
        return [file for file in found if file.is_file() and file.suffix != ".log"]


def kept(file: Path) -> tuple[str, str]:
    """Return the option that stores verdicts in a file."""
    return "--config", f"cluster.cache={file}"


def prepared(folder: Path) -> Bench:
    """Make rows of every stage, recalibrators, a cache, features, checkpoints, a run, unfinished blocks."""
    bench = Bench(folder)
    _questions(bench)
    _rows(bench)
    samples = bench.path("samples.jsonl")
    _done(semcal("cluster", samples, "--equivalence", "atlas", *kept(bench.path("verdicts.sqlite"))))
    fit = ("fit", bench.path("labelled.jsonl"), "--model", "atlas", "--features", bench.path("features"))
    _done(semcal(*fit, "--out", bench.path("recalibrator")))
    steps = ("--method", "Platt", "--config", "fit.learning_rate=1e-4")
    _done(semcal(*fit, *steps, "--out", bench.path("platt")))
    shutil.copytree(language_model_dir(), bench.path("model"))
    shutil.copytree(nli_model_dir(), bench.path("nli"))
    bench.path("grid.yaml").write_text(GRID)
    _done(semcal("run", bench.path("grid.yaml"), "--out", bench.path("run"), "--workers", "1"))
    with patch.object(UnfinishedWork, "finish", lambda _: None):
        _done(semcal(*_resumed(bench)))
    return bench


def _questions(bench: Bench) -> None:
    asked = {f"q{i}": f"Where was person number {i} born?" for i in range(8)}
    questions = [
        {"id": key, "question": text, "answers": [f"town {key[1:]}", f"the town of {key[1:]}"]}
        for key, text in asked.items()
    ]
    _write(bench.path("questions.jsonl"), questions)
    bench.path("questions.jsonl.gz").write_bytes(gzip.compress(bench.path("questions.jsonl").read_bytes()))
    _write(bench.path("labelled.jsonl"), [{**q, "id": f"{q['id']}{k}"} for k in "abcdefg" for q in questions])
    cells = [f'{q["id"]},"{q["question"]}",{q["answers"][0]}' for q in questions]
    bench.path("questions.csv").write_text("\n".join(["id,question,answers", *cells]) + "\n")
    _write(
        bench.path("predictions.jsonl"),
        [{**q, "prediction": f"town {i % 3}"} for i, q in enumerate(questions)],
    )


def _rows(bench: Bench) -> None:
    stages = ("samples", "clustered", "measured", "graded")
    first = _done(semcal("sample", bench.path("questions.jsonl"), "--model", "atlas", "--m", "4"))
    bench.path("samples.jsonl").write_text(first.stdout)
    with bench.path("samples.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows([json.dumps(row[name]).strip('"') for name in COLUMNS] for row in first.rows)
    for before, after, command in zip(stages, stages[1:], ("cluster", "measure", "grade")):
        ended = _done(semcal(command, bench.path(f"{before}.jsonl")))
        bench.path(f"{after}.jsonl").write_text(ended.stdout)


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _done(ended: Ended) -> Ended:
    if ended.code or ended.fault:
        raise SystemExit(f"an undamaged command failed: {ended.fault or ended.stderr[-500:]}")
    return ended


def _resumed(bench: Bench) -> Arguments:
    """Sample to a new file from the stored blocks."""
    bench.path("resumed.jsonl").unlink(missing_ok=True)
    questions = bench.path("questions.jsonl")
    return ("sample", questions, "--model", "atlas", "--m", "2", "--out", bench.path("resumed.jsonl"))


def _fitted(bench: Bench, file: Path, *options: str | Path) -> Arguments:
    shutil.rmtree(bench.path("fitted"), ignore_errors=True)
    return ("fit", file, "--model", "atlas", "--out", bench.path("fitted"), "--fresh", *options)


def _report(bench: Bench) -> Arguments:
    shutil.rmtree(bench.path("again"), ignore_errors=True)
    return ("report", bench.path("run"), "--out", bench.path("again"))


# Areas


def areas(bench: Bench) -> dict[str, tuple[float, Case]]:
    """Return name of each area → its share of the cases, and a function that makes a case."""
    rows = {name: (6.0, _row_cases(command, bench.folder)) for name, command in _row_commands(bench).items()}
    return {
        **rows,
        **_data_areas(bench),
        **_model_areas(bench),
        **_store_areas(bench),
        "imports": (12.0, import_cases(bench.path("logs"))),
        "every command, options": (14.0, _option_cases(bench)),
        "run --set": (4.0, _setting_cases(bench)),
        **hostile_areas(bench.folder),
        **client_areas(),
    }


def _row_commands(bench: Bench) -> dict[str, RowCommand]:
    samples, questions = bench.lines("samples.jsonl"), bench.lines("questions.jsonl")
    model = ("--model", "atlas", "--m", "4")
    return {
        "cluster, rows": RowCommand("cluster", samples),
        "measure, rows": RowCommand("measure", bench.lines("clustered.jsonl")),
        "grade, rows of clusters": RowCommand("grade", bench.lines("measured.jsonl")),
        "grade, rows of predictions": RowCommand("grade", bench.lines("predictions.jsonl")),
        "sample, questions": RowCommand("sample", questions, model, model=True),
        "ask, questions": RowCommand("ask", questions, (*model, "--json"), model=True),
        "cluster by an NLI model, rows": RowCommand(
            "cluster", samples, ("--equivalence", "atlas"), model=True
        ),
    }


def _data_areas(bench: Bench) -> dict[str, tuple[float, Case]]:
    small = ("--model", "atlas", "--m", "2", "--limit", "2")
    questions = bench.path("questions.jsonl")
    return {
        "metrics, rows": (4, _files(lambda f: ("metrics", f), [bench.path("graded.jsonl")])),
        "metrics --ci, rows": (1, _files(lambda f: ("metrics", f, "--ci"), [bench.path("graded.jsonl")])),
        "cluster, CSV": (4, _files(lambda f: ("cluster", f), [bench.path("samples.csv")])),
        "sample, CSV": (4, _files(lambda f: ("sample", f, *small), [bench.path("questions.csv")])),
        "sample, gzip": (2, _files(lambda f: ("sample", f, *small), [bench.path("questions.jsonl.gz")])),
        "sample, few-shot examples": (
            2,
            _files(lambda f: ("sample", questions, *small, "--few-shot", f), [bench.path("labelled.jsonl")]),
        ),
        "fit, questions": (3, _files(lambda f: _fitted(bench, f), [bench.path("labelled.jsonl")])),
        "run --dry-run, settings": (5, _files(lambda f: ("run", f, "--dry-run"), [bench.path("grid.yaml")])),
    }


def _model_areas(bench: Bench) -> dict[str, tuple[float, Case]]:
    sample = ("sample", bench.path("questions.jsonl"), "--m", "2", "--limit", "2")
    samples = bench.path("samples.jsonl")
    return {
        "sample, checkpoint": (6, _files(lambda f: (*sample, "--model", f.parent), bench.files("model"))),
        "cluster, NLI checkpoint": (
            5,
            _files(lambda f: ("cluster", samples, "--equivalence", f.parent), bench.files("nli")),
        ),
        "sample, recalibrator": (
            5,
            _files(
                lambda f: (*sample, "--model", "atlas", "--recalibrator", f.parent),
                bench.files("recalibrator", "platt"),
                sealed=True,
            ),
        ),
        "export, recalibrator": (
            5,
            _files(lambda f: ("export", f.parent), bench.files("recalibrator"), sealed=True),
        ),
    }


def _store_areas(bench: Bench) -> dict[str, tuple[float, Case]]:
    samples, labelled = bench.path("samples.jsonl"), bench.path("labelled.jsonl")
    cached = ("cluster", samples, "--equivalence", "atlas")
    return {
        "cluster, NLI cache": (4, _files(lambda f: (*cached, *kept(f)), [bench.path("verdicts.sqlite")])),
        "fit, stored features": (
            3,
            _files(
                lambda _: _fitted(bench, labelled, "--features", bench.path("features")),
                bench.files("features"),
            ),
        ),
        "sample, unfinished blocks": (
            3,
            _files(lambda _: _resumed(bench), bench.files("resumed.jsonl.unfinished")),
        ),
        "status, stored run": (5, _files(lambda _: ("status", bench.path("run")), bench.files("run"))),
        "report, stored run": (0.5, _files(lambda _: _report(bench), bench.files("run"))),
    }


def _row_cases(command: RowCommand, folder: Path) -> Case:
    whole: list[Ended] = []

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        if not whole:
            whole.append(_done(command.run(folder / "rows.jsonl", command.lines)))
        return row_case(command, whole[0], folder, random)

    return case


def _files(arguments: Callable[[Path], Arguments], files: Sequence[Path], *, sealed: bool = False) -> Case:
    """Return cases that damage one of some files; half of the `sealed` ones keep a correct checksum."""

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        file = random.choice(files)
        change = (
            _resealed if sealed and file.suffix == ".json" and random.random() < 0.5 else change_for(file)
        )
        return file_case(arguments, file, change, random)

    return case


def change_for(file: Path) -> Change:
    """Return the damage for a file of this kind."""
    if file.suffix == ".json":
        return changed_json
    return changed_text if file.suffix in (".csv", ".yaml", ".jinja", ".jsonl") else changed_bytes


def _resealed(data: bytes, random: Random) -> tuple[bytes, str]:
    """Return a recalibrator's file with a changed value and the new checksum."""
    changed, words = changed_json(data, random)
    try:
        content = json.loads(changed)
        content.pop("sha256", None)
        content["sha256"] = sha256(canonical(content).encode()).hexdigest()
        return json.dumps(content).encode(), f"{words} (checksum right)"
    except (ValueError, AttributeError, RecursionError):
        return changed, words


def _option_cases(bench: Bench) -> Case:
    """Return cases with an invalid value for any option of any command."""
    base: dict[str, Arguments] = {
        "sample": (bench.path("questions.jsonl"), "--model", "atlas", "--m", "2", "--limit", "2"),
        "ask": ("Where was person number 1 born?", "--m", "2", "--workers", "1"),
        "cluster": (bench.path("samples.jsonl"),),
        "measure": (bench.path("clustered.jsonl"),),
        "grade": (bench.path("measured.jsonl"),),
        "metrics": (bench.path("graded.jsonl"),),
        "fit": _fitted(bench, bench.path("labelled.jsonl"))[1:],
        "export": (bench.path("recalibrator"),),
        "run": (bench.path("grid.yaml"), "--dry-run"),
        "status": (bench.path("run"),),
        "report": _report(bench)[1:],
    }
    commands: Any = typer.main.get_command(app)
    named = [
        (name, option.opts[0])
        for name in base
        for option in commands.commands[name].params
        if option.param_type_name == "option" and not option.is_flag and option.opts[0] != "--ray"
    ]
    named += [
        (name, keys_by_option()[setting])
        for name in base
        for setting, parameter in parameters_of(resolve_name(f"semcal.cli.{COMMANDS[name][0]}")).items()
        if isinstance(parameter.default, FileSetting)
    ]

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        name, option = random.choice(named)
        value = random.choice([one for one in OPTIONS if option not in AMOUNTS or one not in WORK])
        for made in ("fitted", "again"):
            shutil.rmtree(bench.path(made), ignore_errors=True)
        words = (option, value) if option.startswith("--") else ("--config", f"{option}={value}")
        ended = semcal(name, *base[name], *words)
        return ended, f"{name} {option} {value[:30]!r}", faults_of(ended)

    return case


def _setting_cases(bench: Bench) -> Case:
    keys = ("seed", "runs.count", "sampling.m", "models", "datasets", "methods", "memory", "equivalence")
    keys += ("fitting.losses", "sampling.max_new_tokens", "a.b.c", "", "preset")

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        given = f"{random.choice(keys)}={random.choice(OPTIONS)}"
        ended = semcal("run", bench.path("grid.yaml"), "--dry-run", "--set", given)
        return ended, f"--set {given[:40]!r}", faults_of(ended)

    return case


# Execution


def tried(names: Sequence[str], cases: int, seed: int) -> list[Area]:
    """Run all areas, with a separate seed for each case; progress on stderr."""
    here = Path.cwd()
    as_a_command = {"TRANSFORMERS_VERBOSITY": "error"}
    with tempfile.TemporaryDirectory() as temporary, patch.dict(os.environ, as_a_command):
        os.chdir(temporary)  # options may name files, and a relative one lands here
        try:
            wanted = {
                k: v for k, v in areas(prepared(Path(temporary).resolve())).items() if not names or k in names
            }
            total = sum(share for share, _ in wanted.values())
            return [
                _area(name, case, max(1, round(cases * share / total)), seed)
                for name, (share, case) in wanted.items()
            ]
        finally:
            os.chdir(here)


def _area(name: str, case: Case, cases: int, seed: int) -> Area:
    area = Area(name)
    for number in range(cases):
        area.note(*case(Random(f"{seed} {name} {number}")))
    print(f"{name}: {area.ends['cases']} cases, {len(area.violations)} violations", file=sys.stderr)
    return area


def summary(found: Sequence[Area]) -> list[dict[str, Any]]:
    """Return a row for each area, and one of sums."""
    rows = [area.row() for area in found]
    return [*rows, {"area": "all", **{key: sum(row[key] for row in rows) for key in list(rows[0])[1:]}}]


def results() -> list[dict[str, Any]]:
    """Return rows of the table, for `python -m benchmarks`."""
    return summary(tried((), CASES, SEED))


def quick_runs(_: Path) -> list[list[str]]:
    return [["--cases", "30"]]


def main(arguments: Sequence[str] = ()) -> int:
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--area", action="append", default=[])
    options = parser.parse_args(arguments)
    found = tried(options.area, options.cases, options.seed)
    violations = [violation for area in found for violation in area.violations]
    print(table(summary(found)), *violations, sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
