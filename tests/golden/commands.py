"""The commands whose output is stored: rows, fits and exports here, what is larger in modules of its own.

Each part writes into its own folder as the working directory, so that no path in an output tells where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path

import torch

from tests.cli.invoking import configured
from tests.golden.calibrations import write_calibrations
from tests.golden.grids import write_calibrated_grid, write_paper_grid
from tests.golden.invoking import store_output
from tests.golden.machine_facts import is_compared, without_machine_facts
from tests.golden.python_results import write_python_results
from tests.golden.questions import write_questions
from tests.golden.recordings import write_imports
from tests.golden.servers import write_served

FITS: dict[str, Sequence[str]] = {
    "ts": (),
    "ts-ss": ("--loss", "SS", "--alpha", "0.5"),
    "ts-sgd": ("--solver", "sgd"),
    "ats": ("--method", "ATS", "--config", "fit.learning_rate=1e-3"),
    "platt": ("--method", "Platt", "--config", "fit.learning_rate=1e-3"),
    "ts-grid": ("--method", "TS-grid"),
    "ts-selected": ("--select",),
    "ts-selected-by-brier": ("--select", "--by", "brier"),
}
CLUSTERINGS = (
    ("exact", "components"),
    ("default", "components"),
    ("default", "greedy"),
    ("default", "complete"),
    ("atlas", "greedy"),
)
SAMPLED_FITS = ("ts-grid", "ts-selected", "ts-selected-by-brier")
EXPORTS = ("temperature", "logits-processor")


def write_parts(folder: Path, names: Sequence[str]) -> None:
    """Run the commands of some parts, each part in a folder of its own."""
    torch.set_num_threads(1)
    for name in names:
        part = folder.absolute() / name
        part.mkdir(parents=True)
        with chdir(part):
            PARTS[name]()


def stored_files(folder: Path) -> dict[str, str]:
    """The text files of a folder that are compared, by their path in it."""
    return dict(_stored(folder))


def _stored(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and is_compared(name):
            yield name, without_machine_facts(name, path.read_text(encoding="utf-8"))


def write_pipe() -> None:
    """Questions that become samples, clusters, measures, grades and metrics, with other ways to cluster."""
    questions = write_questions("questions.jsonl", "test", 8)
    sampling = ("--model", "atlas", "--max-new-tokens", 24, "--seed", 3)
    sampled = store_output("sample", "sample", questions, *sampling)
    clustered = store_output("cluster", "cluster", "-", "--equivalence", "atlas", stdin=sampled)
    measured = store_output("measure", "measure", "-", stdin=clustered)
    graded = store_output("grade", "grade", "-", stdin=measured)
    store_output("metrics", "metrics", "-", "--ci", stdin=graded)
    parameters = configured("measure.t_alpha=0.75", "measure.g_alpha=1.25")
    store_output("measure-at", "measure", "-", *parameters, stdin=clustered)
    store_output("grade-rouge", "grade", "-", "--rouge", *configured("sampling.seed=5"), stdin=measured)
    nli = ("--grader", "nli", "--equivalence", "atlas")
    store_output("grade-nli", "grade", "-", *nli, "--limit", 4, stdin=measured)
    for equivalence, linkage in CLUSTERINGS:
        settings = configured(f"cluster.linkage={linkage}", "cluster.merge_refusals=true")
        how = ("--equivalence", equivalence, *settings)
        store_output(f"cluster-{equivalence}-{linkage}", "cluster", "-", *how, stdin=sampled)
    sure = ("--temperature", 0.7, "--m", 3, "--limit", 5)
    store_output("sample-at-temperature", "sample", questions, "--model", "atlas", *sure)
    embedded = ("--model", "atlas", "--equivalence", "atlas", "--recalibrator", "atlas")
    store_output("ask", "ask", "Who governed Ruvorkreth?", *embedded, "--json")


def write_fits() -> None:
    """Recalibrators of every method, fitted and chosen."""
    labelled = write_questions("labelled.jsonl", "calibration_train", 16)
    validation = write_questions("validation.jsonl", "validation", 8)
    for name, options in FITS.items():
        arguments: list[object] = ["--model", "atlas", "--out", name, *options]
        if name in SAMPLED_FITS:
            arguments += ["--equivalence", "atlas", "--m", 3, "--max-new-tokens", 16]
        if "--select" in options:
            arguments += ["--validation", validation]
        store_output(name, "fit", labelled, *arguments, "--json")


def write_exports() -> None:
    """A fitted temperature in the form of each program."""
    for form in EXPORTS:
        store_output(form, "export", "../fit/ts", "--format", form)


#: Folder → the function that writes into it.
PARTS: Mapping[str, Callable[[], None]] = {
    "pipe": write_pipe,
    "fit": write_fits,
    "export": write_exports,
    "import": write_imports,
    "calibrate": write_calibrations,
    "servers": write_served,
    "python": write_python_results,
    "grid": write_paper_grid,
    "calibrated-grid": write_calibrated_grid,
}
#: Two processes write the parts at the same time: the names of the parts of each.
PROCESSES = (
    ("grid", "calibrate"),
    ("pipe", "fit", "export", "import", "servers", "python", "calibrated-grid"),
)
