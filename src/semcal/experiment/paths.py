"""Where things lie in the run folder of a grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from semcal.errors import UsageError

#: The sizes and hashes of the parts of every data set.
QUESTIONS = "questions.json"
#: The folder of calibration questions and features.
SCRATCH = "work"
#: Characters of a name: files are named by a model and a data set, and file systems stop at 255.
LONGEST = 80


def slug(name: str) -> str:
    """A name as a folder: what is no letter, digit, dot, hyphen or underscore of ASCII becomes "_".

    >>> slug("ATS SS 0.25"), slug("meta-llama/Llama-3.1")
    ('ATS_SS_0.25', 'meta-llama_Llama-3.1')
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def check_slugs(names: Sequence[str], *, what: str) -> None:
    """Raise UsageError for names that would share a folder, or that no folder can have."""
    taken: dict[str, str] = {}
    for name in names:
        folder = slug(name)
        if folder.strip(".") == "":
            raise UsageError(f"{what} {name!r} cannot name a folder; give it letters or digits")
        if len(folder) > LONGEST:
            raise UsageError(
                f"{what} {name[:40]!r}… has {len(name)} characters, more than files can be named by; give it "
                f"at most {LONGEST}"
            )
        other = taken.setdefault(folder, name)
        if other != name or names.count(name) > 1:
            raise UsageError(
                f"{what} {name!r} and {other!r} would share the folder {folder}; give each a name of its own"
            )


def recalibrator_folder(model: str, dataset: str, candidate: str, run: int = 0) -> str:
    """Where a recalibrator lies; refits of further runs lie inside that of the first.

    >>> recalibrator_folder("llama", "trivia", "TS NLL")
    'recalibrators/llama/trivia/TS_NLL'
    """
    base = f"recalibrators/{slug(model)}/{slug(dataset)}/{slug(candidate)}"
    return base if run == 0 else f"{base}/run{run}"


def calibration_folder(model: str, dataset: str) -> str:
    """Where the calibration of one model and data set lies, as `semcal ask --calibration` takes it."""
    return f"calibrations/{slug(model)}/{slug(dataset)}"


def calibrated_path(model: str, dataset: str, run: int) -> str:
    """Where the test answers of a run with their calibrated probabilities lie."""
    return f"{calibration_folder(model, dataset)}/run{run}.jsonl"


def selection_path(model: str, dataset: str) -> str:
    """Where the choice for one model and data set lies."""
    return f"selection/{slug(model)}/{slug(dataset)}.json"


def rows_path(model: str, dataset: str, candidate: str, run: int, count: int | None = None) -> str:
    """Where the rows of a candidate lie: at m draws, or at another number of them.

    >>> rows_path("llama", "trivia", "TS SS 0.1", 2, 25)
    'samples/llama/trivia/TS_SS_0.1/run2.n25.jsonl'
    """
    draws = "" if count is None else f".n{count}"
    return str(Path("samples", slug(model), slug(dataset), slug(candidate), f"run{run}{draws}.jsonl"))
