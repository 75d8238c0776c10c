"""Finished blocks (design.md, store): named by what they are made of, whole or absent.

A block is a JSON Lines file whose last line holds the number of its rows and the checksum of them, of its
name and of what it is a part of. Its name is the hash of (stage, settings, inputs), so a block that exists is
done and one that no longer fits is simply not looked for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.errors import StoreError, UsageError
from semcal.files import canonical, dumps, remove_leftovers, write_rows, writing
from semcal.text.normal_form import TEXT_RULES

Data = Mapping[str, Any]
Rows = list[dict[str, Any]]
#: Stages that group or grade answers: their blocks are of one version of the rules for texts.
_OF_TEXTS = frozenset(
    ["cluster", "grade", "greedy", "nli", "select", "measure", "candidates", "temperatures"]
)
#: What unfinished work was begun with, and the folder of what it has finished.
SETTINGS, FINISHED = "settings.json", "blocks"


def digest(value: Any) -> str:
    """Return a hash (32 hex digits) of anything JSON can hold, the same on every machine."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


class Store:
    """The finished blocks below a folder, in `blocks/<stage>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, stage: str, key: Data) -> Path:
        """Where the block of `stage` made of `key` lies: settings and inputs, or their hashes."""
        made_of = {"stage": stage, **key} | ({"text_rules": TEXT_RULES} if stage in _OF_TEXTS else {})
        return self.root / "blocks" / stage / f"{digest(made_of)}.jsonl"

    def find(self, stage: str, key: Data) -> Rows | None:
        """Return the rows of a block, None if it is not there; StoreError if it is damaged."""
        found = self.find_lines(stage, key)
        return None if found is None else list(map(json.loads, found))

    def keep(self, stage: str, key: Data, rows: Sequence[Data]) -> Rows:
        """Write the rows of a block, and return them as they will be read again."""
        return list(map(json.loads, self.keep_lines(stage, key, list(map(dumps, rows)))))

    def find_lines(self, stage: str, key: Data) -> list[str] | None:
        """Return the rows of a block as they are written, None if it is not there; StoreError if damaged."""
        path = self.path(stage, key)
        return read_block(path).lines if path.exists() else None

    def keep_lines(self, stage: str, key: Data, lines: list[str], label: Data | None = None) -> list[str]:
        """Write a block of rows that are JSON already; `label` says what it is a part of."""
        path = self.path(stage, key)
        seal = {"block": _seal(path, lines, label or {})} | ({"of": label} if label else {})
        with writing(path) as handle:
            handle.writelines(line + "\n" for line in [*lines, dumps(seal)])
        return lines


@dataclass(frozen=True)
class Stage:
    """The blocks of one stage, each named by `settings` and its inputs; without a store nothing is kept."""

    store: Store | None
    name: str
    settings: Data  # all that its rows depend on, but the inputs

    def rows(self, inputs: Sequence[Data], compute: Callable[[], Sequence[Data]]) -> Rows:
        """Return the rows made of some inputs, computing and keeping them if they are not there yet.

        StoreError if the block is there but damaged.
        """
        found = self.find(inputs)
        return self.keep(inputs, compute()) if found is None else found

    def find(self, inputs: Sequence[Data]) -> Rows | None:
        """Return the rows made of some inputs, None if they are not there."""
        return None if self.store is None else self.store.find(self.name, self._key(inputs))

    def keep(self, inputs: Sequence[Data], rows: Sequence[Data]) -> Rows:
        """Write the rows made of some inputs, and return them as they will be read again."""
        if self.store is None:
            return [dict(row) for row in rows]
        return self.store.keep(self.name, self._key(inputs), rows)

    def _key(self, inputs: Sequence[Data]) -> dict[str, Any]:
        return {**self.settings, "inputs": list(inputs)}


class UnfinishedWork:
    """What a long command has finished, kept in a folder beside its --out until that is whole.

    Without a folder nothing is kept. `settings` are everything but the inputs that results depend on;
    UsageError if the folder holds unfinished work with others. `fresh` forgets what an earlier call has left,
    and `resumed` says whether one with these settings has left something.
    """

    def __init__(self, folder: Path | None, settings: Data, *, fresh: bool) -> None:
        self._folder, self._settings = folder, settings
        store = None if folder is None else Store(folder)
        self._rows = Stage(store, "rows", {"settings": dict(settings)})
        if fresh:
            self.finish()
        self.resumed = folder is not None and self._is_resumed(folder)

    @property
    def folder(self) -> Path:
        """Where a command with an --out keeps what it has finished."""
        assert self._folder is not None
        return self._folder

    def begin(self) -> None:
        """Note what is being made, so that another call does not take it for its own."""
        if self._folder is not None and not (self._folder / SETTINGS).exists():
            write_rows(self._folder / SETTINGS, [self._settings])

    def find(self, inputs: Sequence[Data]) -> Rows | None:
        """Return the rows that were made of some inputs, None if they are not there."""
        return self._rows.find(inputs)

    def keep(self, inputs: Sequence[Data], rows: Sequence[Data]) -> Rows:
        """Write the rows made of some inputs, and return them."""
        self.begin()
        return self._rows.keep(inputs, rows)

    def _is_resumed(self, folder: Path) -> bool:
        path = folder / SETTINGS
        if not path.is_file():
            return False
        if path.read_bytes().strip() == dumps(self._settings).encode():
            return True
        if not remove_if_nothing_is_finished(folder):
            raise UsageError(
                f"{folder} holds unfinished work of a call with other options; run that again to "
                "finish it, or give --fresh to drop it"
            )
        return False

    def finish(self) -> None:
        """Remove what was kept: the --out file is whole now."""
        if self._folder is not None and self._folder.is_dir():
            remove_leftovers(self._folder)
            shutil.rmtree(self._folder / FINISHED, ignore_errors=True)
            (self._folder / SETTINGS).unlink(missing_ok=True)
            if not any(self._folder.iterdir()):
                self._folder.rmdir()


def remove_if_nothing_is_finished(folder: Path) -> bool:
    """Remove what an `UnfinishedWork` was begun with if it finished nothing; say whether that is so."""
    if any(path.is_file() for path in (folder / FINISHED).rglob("*")):
        return False
    (folder / SETTINGS).unlink(missing_ok=True)
    with suppress(OSError):  # not there, or something else is in it
        folder.rmdir()
    return True


@dataclass(frozen=True)
class Block:
    """A finished block: its rows as JSON, and what it is a part of, as it was told when it was written."""

    lines: list[str]
    label: Data


def read_block(path: Path) -> Block:
    """Read a block.

    StoreError if it was cut short or edited, or is another block under this name.
    """
    *lines, last = path.read_bytes().removesuffix(b"\n").split(b"\n")
    try:
        texts, end = [line.decode() for line in lines], json.loads(last)
        whole = isinstance(end, dict) and end.get("block") == _seal(path, texts, end.get("of", {}))
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise StoreError(
            f"the block {path} is damaged or was edited; delete it and run the same command again"
        )
    return Block(texts, end.get("of", {}))


def _seal(path: Path, lines: Sequence[str], label: Any) -> dict[str, Any]:
    text = "\n".join([path.name, canonical(label), *lines])
    return {"rows": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it holds just this."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    with writing(path) as handle:
        handle.write(text)
