"""What is in a run folder: its state, and starting a stage again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semcal.errors import StoreError, UsageError
from semcal.experiment.grid_blocks import STAGES, expected_blocks
from semcal.experiment.grid_settings import GridSettings
from semcal.experiment.paths import QUESTIONS, selection_path
from semcal.experiment.reading import FILE, read_settings
from semcal.pipeline.store import read_block
from semcal.records import clear_folder, own_files, read_object
from semcal.registry import check_name


@dataclass(frozen=True)
class RunState:
    """How far a run is."""

    done: dict[tuple[str, str], Counter[str]]  # blocks that are there, by (model, data set) and stage
    expected: dict[tuple[str, str], Counter[str]]  # blocks that there will be
    rows: int  # cells whose rows are written
    damaged: tuple[str, ...]  # what is wrong with the blocks that cannot be used

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.damaged and self.rows == len(self.expected) and not any(self.missing().values())

    def missing(self) -> Counter[str]:
        """Blocks that are not there, by stage, in the order of the stages."""
        found: Counter[str] = Counter()
        for cell, expected in self.expected.items():
            for stage in STAGES:
                found[stage] += max(0, expected[stage] - self.done.get(cell, Counter())[stage])
        return found

    def total(self, stage: str) -> int:
        """Blocks that a stage has in all."""
        return sum(expected[stage] for expected in self.expected.values())


def settings_in(folder: Path) -> GridSettings:
    """The settings of a run folder; UsageError where it is none."""
    if not (folder / FILE).is_file():
        raise UsageError(f"{folder} is no run folder: it has no {FILE}; make one with `semcal run CONFIG`")
    return read_settings(folder / FILE)


def blocks_in(folder: Path) -> Iterator[Path]:
    """The blocks of a run folder, stage by stage."""
    for stage in STAGES:
        yield from sorted((folder / "blocks" / stage).glob("*.jsonl"))


def state_of(folder: Path) -> RunState:
    """Read every block of a run folder, and say what is missing.

    UsageError if it is no run folder.
    """
    settings = settings_in(folder)
    path = folder / QUESTIONS
    remedy = "delete it and run the same command again"
    described = read_object(path, remedy=remedy) if path.exists() else {}
    sizes = {
        one.name: described[one.name]["sizes"]
        if one.name in described
        else {part: getattr(one, part) or 0 for part in ("calibration_train", "validation", "test")}
        for one in settings.datasets
    }
    expected = {
        (model.name, dataset.name): expected_blocks(settings, sizes[dataset.name])
        for model in settings.models
        for dataset in settings.datasets
    }
    damaged, seen = [], set()
    for block in blocks_in(folder):
        try:
            label = read_block(block).label
        except StoreError as error:
            damaged.append(str(error))
            continue
        place = json.dumps([label.get("part"), label.get("block")])
        seen.add((label.get("model"), label.get("dataset"), block.parent.name, place))
    done: dict[tuple[str, str], Counter[str]] = {}
    for model, dataset, stage, _ in seen:
        done.setdefault((str(model), str(dataset)), Counter())[stage] += 1
    rows = sum((folder / selection_path(*cell)).exists() for cell in expected)
    return RunState(done, expected, rows, tuple(damaged))


def forget_from(folder: Path, stage: str) -> None:
    """Remove the blocks of a stage and of those after it; NLI verdicts stay.

    UsageError if there is no such stage.
    """
    check_name(stage, (*STAGES, "rows"), what="stage")
    gone = STAGES[STAGES.index(stage) :] if stage in STAGES else ()
    folders = [f"blocks/{one}" for one in gone]
    folders += ["recalibrators"] if "fit" in gone else []
    folders += ["work/features"] if "features" in gone else []
    for name in [*folders, "calibrations", "samples", "selection"]:
        shutil.rmtree(folder / name, ignore_errors=True)


def forget(folder: Path) -> None:
    """Remove a run folder of ours, and nothing else."""
    if (folder / FILE).is_file():
        clear_folder(folder)
    elif folder.exists() and own_files(folder):
        raise UsageError(f"{folder} is no run folder (it has no {FILE}), so --fresh leaves it alone")
