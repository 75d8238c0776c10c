"""What is in a run folder: its state, starting a stage again, and merging the folders of shards."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from semcal.engine.equivalence import add_verdicts
from semcal.errors import StoreError, UsageError
from semcal.experiment.grid_blocks import STAGES, expected_blocks
from semcal.experiment.grid_settings import GridSettings
from semcal.experiment.paths import QUESTIONS, selection_path
from semcal.experiment.reading import FILE, claim_folder, read_settings
from semcal.pipeline.store import read_block
from semcal.records import atomic_write, clear_folder, own_files, read_object
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


VERDICTS = "verdicts.sqlite"


@dataclass(frozen=True)
class Merged:
    """What came of putting folders together."""

    copied: int  # blocks and recalibrators that were brought in
    present: int  # those that were there already
    refused: tuple[str, ...]  # damaged blocks, and files that two folders hold with unlike contents


def merge(run: Path, shards: Sequence[Path]) -> Merged:
    """Bring the blocks, recalibrators and NLI verdicts of shards into a run folder, made if it is not there.

    One of the shards may be it. What is refused of them is named, the rest is brought in. UsageError if one
    is no run folder, or has other settings. StoreError if one was begun with other questions, or their
    verdicts contradict each other.
    """
    others = [shard for shard in shards if not (run.exists() and shard.samefile(run))]
    for shard in others:
        claim_folder(run, settings_in(shard))
        _same(run, shard, QUESTIONS)
    counts = [0, 0]
    refused: list[str] = []
    for shard in others:
        for path in [*_sound(shard, refused), *_recalibrators(shard), *_calibrations(shard)]:
            target = run / path.relative_to(shard)
            if not target.exists():
                _copy(path, target)
                counts[0] += 1
            elif target.read_bytes() == path.read_bytes():
                counts[1] += 1
            else:
                refused.append(
                    f"{path} and {target} differ, though both are made of the same; they were made on unlike "
                    "machines or by unlike versions, or one was edited: delete the wrong one"
                )
    for shard in others:
        if (shard / VERDICTS).exists():
            add_verdicts(run / VERDICTS, shard / VERDICTS)
    return Merged(counts[0], counts[1], tuple(refused))


def _same(run: Path, shard: Path, name: str) -> None:
    """Bring a file in, or check that it is the same."""
    if not (shard / name).exists():
        return
    if not (run / name).exists():
        _copy(shard / name, run / name)
    elif (shard / name).read_bytes() != (run / name).read_bytes():
        raise StoreError(
            f"{shard} and {run} were begun with other questions ({name} differs); begin one anew"
        )


def _sound(shard: Path, refused: list[str]) -> Iterator[Path]:
    """The blocks of a shard that are whole."""
    for path in blocks_in(shard):
        try:
            read_block(path)
        except StoreError as error:
            refused.append(str(error))
        else:
            yield path


def _recalibrators(shard: Path) -> list[Path]:
    """The files of all recalibrators, weights before the files that vouch for them."""
    files = [path for path in (shard / "recalibrators").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: (path.suffix == ".json", path))


def _calibrations(shard: Path) -> list[Path]:
    return sorted((shard / "calibrations").rglob("calibration.json"))


def _copy(path: Path, target: Path) -> None:
    """Copy a file so that it appears whole or not at all."""
    with path.open("rb") as source, atomic_write(target) as copy:
        shutil.copyfileobj(source, copy)
