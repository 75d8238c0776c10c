"""What `semcal.score`, `ask_many`, `calibrate` and `fit` return in Python, as JSON."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import semcal
from semcal.results import Results
from tests.golden.questions import made_up_samples, questions_of


def write_python_results() -> None:
    """Call each function, and write what it returns as NAME.json, and the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _write_of_samples()
        _write_of_a_model()
    _write("warnings", [str(warning.message) for warning in told])


def _write_of_samples() -> None:
    samples = list(made_up_samples(45))
    scored = semcal.score(samples, "exact", progress=False)
    _write("score", _contents(scored) | {"metrics": scored.metrics(ci=True, risk=0.5, delta=0.2)})
    few = semcal.score(samples[:12], measure="T-SC", t_alpha=0.75, linkage="complete", progress=False)
    _write("score-tempered", _contents(few))
    learnt = scored.calibrate(risk=0.5, delta=0.2)
    _write("results-calibrate", learnt)
    applied = semcal.score(samples[:20], "exact", calibration=learnt, progress=False)
    _write("score-calibrated", _contents(applied))
    _write(
        "calibrate-samples",
        semcal.score(samples[:40], "exact", progress=False).calibrate(seed=4),
    )


def _write_of_a_model() -> None:
    questions = questions_of("test", 5, "atlas-trivia")
    labelled = questions_of("calibration_train", 24, "atlas-trivia")
    asked = semcal.ask_many("atlas", questions, m=5, equivalence="atlas", progress=False)
    _write("ask-many", _contents(asked))
    fitted = semcal.fit("atlas", labelled, progress=False)
    _write("fit", fitted)
    how: dict[str, Any] = {"equivalence": "atlas", "progress": False, "max_new_tokens": 24}
    learnt = semcal.calibrate("atlas", labelled, m=5, temperatures=[0.7], recalibrator=fitted, **how)
    _write("calibrate", learnt)
    calibrated = semcal.ask_many("atlas", questions, calibration=learnt, progress=False)
    _write("ask-many-calibrated", _contents(calibrated))


def _contents(results: Results) -> dict[str, Any]:
    """All that results hold of each answer; what `rows` are made of only once."""
    answers = [{"repr": repr(answer), **vars(answer), "row": None} for answer in results]
    shown = {"repr": repr(results), "equivalence": results.equivalence, "failures": results.failures}
    return {**shown, "records": results.records(), "rows": results.rows, "answers": answers}


def _write(name: str, value: Any) -> None:
    text = json.dumps(value, indent=1, default=_plain, ensure_ascii=False)
    Path(f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """What JSON has no name for: fields of objects, arrays, mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
