"""The calibration of the embedded language model: `python -m tools.atlas.calibration [DIRECTORY]`.

Learnt from 500 questions each of atlas-trivia and atlas-rare, with a threshold for a risk of .3.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from semcal import Calibrator, ClusterConfig, PromptConfig, SamplingConfig
from semcal.calibration.calibrator import CalibrationRecord
from semcal.demo.paths import calibration_dir
from semcal.demo.questions import load_set
from semcal.workers import versions

LABELS, RISK, LONGEST = 500, 0.3, 24


def main(
    directory: Annotated[Path | None, typer.Argument(help="Where to write, not the package.")] = None,
) -> None:
    """Calibrate, write, and say what was learnt."""
    trivia, rare = load_set("atlas-trivia"), load_set("atlas-rare")
    record = CalibrationRecord("atlas-trivia and atlas-rare, calibration-train", versions())
    found = Calibrator(risks=RISK, record=record).fit(
        "atlas",
        [*trivia.calibration_train[:LABELS], *rare.calibration_train[:LABELS]],
        prompt=PromptConfig(trivia.few_shot),
        sampling=SamplingConfig(max_new_tokens=LONGEST),  # the small vocabulary spells dates in many tokens
        cluster=ClusterConfig("atlas"),
    )
    found = replace(found, samples=None)  # what was sampled is not shipped
    typer.echo(found.save_pretrained(directory or calibration_dir()))
    typer.echo(found.report.why)
    if found.threshold is not None:
        typer.echo(found.threshold.sentence)


if __name__ == "__main__":
    typer.run(main)
