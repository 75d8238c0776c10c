"""Stages of a grid: pieces of work whose rows the run folder holds, or that are done now and kept there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from semcal.experiment.grid_jobs import GridJob
from semcal.pipeline.executor import Executor
from semcal.pipeline.store import Store, digest

__all__ = ["STAGES", "Piece", "Shard", "Stages"]

#: In the order in which each builds on those before it.
STAGES = (
    "check",
    "features",
    "fit",
    "diagnose",
    "sample",
    "greedy",
    "cluster",
    "grade",
    "select",
    "measure",
    "nli",
    "plain",
)
Lines = list[str]


@dataclass(frozen=True)
class Piece:
    """One block of a stage.

    Attributes
    ----------
    inputs : mapping
        All that its rows depend on.
    where : mapping
        What its job needs besides, and its rows do not depend on: names of folders and models.
    label : mapping
        What it is a part of: model, dataset, part, block.
    needs : tuple of Path
        Files beside the block without which it is done again.
    spent_on : str
        What its time is counted towards; its stage if this is empty.
    """

    inputs: Mapping[str, Any]
    where: Mapping[str, Any]
    label: Mapping[str, Any]
    needs: tuple[Path, ...] = ()
    spent_on: str = ""

    @property
    def key(self) -> dict[str, str]:
        """What names the block."""
        return {"inputs": digest(self.inputs)}


@dataclass(frozen=True)
class Shard:
    """A share of the blocks: of every `of` that follow one another the one at `number` (from 1)."""

    number: int
    of: int

    def holds(self, place: int) -> bool:
        """Whether the block at a place (from 0) is in it."""
        return place % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass
class Stages:
    """The blocks of a run folder, and what is missing of them.

    Attributes
    ----------
    store : Store
    shard : Shard or None
        None does everything.
    step : callable
        Told of every block that is there.
    missing : Counter
        Blocks of other shards that are not there, by stage.
    made : Counter
        Rows that were made just now, by what their time is counted towards.
    say : callable
        Told what has to be made again.
    """

    store: Store
    executor: Executor[Any]
    shard: Shard | None = None
    step: Callable[[str], None] = lambda _stage: None
    missing: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    say: Callable[[str], None] = lambda _: None

    def rows(
        self,
        stage: str,
        pieces: Sequence[Piece | None],
        rank: int,
        *,
        everyone: bool = False,
        before: Callable[[], None] | None = None,
    ) -> list[Lines | None]:
        """The rows of each piece; None for a piece of another shard that is not there, and for None.

        `everyone` is for what each shard needs whole: it begins with its own share, and takes what it finds.
        `before` is carried out first if there is a piece to be made.
        """
        found = [None if piece is None else self._find(stage, piece) for piece in pieces]
        wanted = [i for i, piece in enumerate(pieces) if piece is not None and found[i] is None]
        own = [i for i in wanted if self.shard is None or self.shard.holds(i)]
        others = [i for i in wanted if i not in set(own)]
        now = [*own, *others] if everyone else own
        if now and before is not None:
            before()
        begun: dict[Future[Lines], int] = {}
        for i in now:
            future = self._begin(stage, pieces[i], rank)
            begun[future] = i
            if future.done() and not future.cancelled():
                future.result()  # a serial executor has done it: its error ends the stage before more is done
        for future in as_completed(begun):
            found[begun[future]] = future.result()
        for i in [] if everyone else others:
            piece = pieces[i]
            assert piece is not None
            found[i] = self._find(stage, piece)
            self.missing[stage] += found[i] is None
        return found

    def has(self, stage: str, piece: Piece) -> bool:
        """Whether a piece is done, as far as can be told without reading it."""
        return all(path.exists() for path in (*piece.needs, self.store.path(stage, piece.key)))

    def _find(self, stage: str, piece: Piece) -> Lines | None:
        if not all(path.exists() for path in piece.needs):
            return None
        lines = self.store.find_lines(stage, piece.key)
        if lines is not None:
            self.step(stage)
        return lines

    def _begin(self, stage: str, piece: Piece | None, rank: int) -> Future[Lines]:
        assert piece is not None
        inputs = json.dumps({**piece.inputs, **piece.where}, ensure_ascii=False, allow_nan=False)
        block = self.store.path(stage, piece.key).relative_to(self.store.root)
        shared = self.shard is not None and all(path.exists() for path in piece.needs)
        job = GridJob(stage, inputs, str(block) if shared else None)
        keep = partial(self._keep, stage, piece)
        return self.executor.submit(job, stage=piece.spent_on or stage, then=keep, priority=rank)

    def _keep(self, stage: str, piece: Piece, lines: Lines) -> Lines:
        self.step(stage)
        self.made[piece.spent_on or stage] += len(lines)
        return self.store.keep_lines(stage, piece.key, lines, piece.label)
