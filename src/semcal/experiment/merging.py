"""Run folders of several shards put together into one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from semcal.engine.verdicts import add_verdicts
from semcal.errors import StoreError
from semcal.experiment.folders import blocks_in, settings_in
from semcal.experiment.paths import QUESTIONS
from semcal.experiment.reading import claim_folder
from semcal.pipeline.store import read_block
from semcal.records import atomic_write

__all__ = ["Merged", "merge"]

VERDICTS = "verdicts.sqlite"


@dataclass(frozen=True)
class Merged:
    """What came of putting folders together.

    Attributes
    ----------
    copied, present : int
        Blocks and recalibrators that were brought in, and that were there already.
    refused : tuple of str
        Blocks that are damaged, and files that two folders hold with unlike contents.
    """

    copied: int
    present: int
    refused: tuple[str, ...]


def merge(run: Path, shards: Sequence[Path]) -> Merged:
    """Bring the blocks, recalibrators and NLI verdicts of shards into a run folder.

    Parameters
    ----------
    run : Path
        Made if it is not there; one of the shards may be it.
    shards : sequence of Path
        Run folders with the same settings and questions. What is refused of them is named, the rest is
        brought in.

    Raises
    ------
    UsageError
        If one is no run folder, or has other settings.
    StoreError
        If one was begun with other questions, or their verdicts contradict each other.
    """
    others = [shard for shard in shards if not (run.exists() and shard.samefile(run))]
    for shard in others:
        claim_folder(run, settings_in(shard))
        _same(run, shard, QUESTIONS)
    counts = [0, 0]
    refused: list[str] = []
    for shard in others:
        for path in [*_sound(shard, refused), *_recalibrators(shard)]:
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


def _copy(path: Path, target: Path) -> None:
    """Copy a file so that it appears whole or not at all."""
    with path.open("rb") as source, atomic_write(target) as copy:
        shutil.copyfileobj(source, copy)
