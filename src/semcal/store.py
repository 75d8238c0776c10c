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
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from semcal.errors import StoreError, UsageError
from semcal.files import JsonObject, canonical, dumps, remove_leftovers, write_rows, writing
from semcal.rows import Json
from semcal.text.normal_form import TEXT_RULES

#: Stages that group or grade answers: their blocks are of one version of the rules for texts.
_OF_TEXTS = frozenset(
    ["cluster", "grade", "greedy", "nli", "select", "measure", "candidates", "temperatures"]
)
#: What unfinished work was begun with, and the folder of what it has finished.
SETTINGS, FINISHED = "settings.json", "blocks"


def digest(value: Any) -> str:
    """Return a hash (32 hex digits) of anything JSON can hold, the same on every machine."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def key_of(value: Any) -> Any:
    """What names blocks that are made by or of a value: its `key()`, or else all fields of its objects."""
    if hasattr(value, "key"):
        return value.key()
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if is_dataclass(value):
        return {field.name: key_of(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): key_of(item) for name, item in value.items()}
    return list(map(key_of, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class StoredBlock:
    """A finished block: its rows as JSON, and what it is a part of, as it was told when it was written."""

    lines: Sequence[str]
    label: Json
    seal: str  # checksum of the rows, the name and the label

    def key(self) -> str:
        """What names blocks that are made of this one."""
        return self.seal


class Store:
    """The finished blocks below a folder, in `blocks/<stage>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, stage: str, key: Json) -> Path:
        """Where the block of `stage` made of `key` lies: settings and inputs, or their hashes."""
        made_of = {"stage": stage, **key} | ({"text_rules": TEXT_RULES} if stage in _OF_TEXTS else {})
        return self.root / "blocks" / stage / f"{digest(made_of)}.jsonl"

    def find(self, stage: str, key: Json) -> StoredBlock | None:
        """Return a block, None if it is not there; StoreError if it is damaged or another user's."""
        path = self.path(stage, key)
        try:
            return read_block(path) if path.exists() else None
        except PermissionError as error:
            reason = f"cannot read {path}: it belongs to another user"
            raise StoreError(f"{reason}; name a folder of your own, or let its owner share it") from error

    def keep(self, stage: str, key: Json, lines: Sequence[str], label: Json | None = None) -> StoredBlock:
        """Write a block of rows that are JSON already; `label` says what it is a part of."""
        path = self.path(stage, key)
        seal = _seal(path, lines, label or {})
        end = {"block": seal} | ({"of": label} if label else {})
        with writing(path, private=True) as handle:
            handle.writelines(line + "\n" for line in [*lines, dumps(end)])
        return StoredBlock(lines, label or {}, seal["sha256"])


@dataclass
class Stage:
    """The blocks of one stage, each named by `settings` and its inputs; without a store nothing is kept."""

    store: Store | None
    name: str
    settings: Json  # all that its rows depend on, but the inputs

    def rows(self, inputs: Sequence[Json], compute: Callable[[], Sequence[Json]]) -> list[JsonObject]:
        """Return the rows made of some inputs, computing and keeping them if they are not there yet.

        StoreError if the block is there but damaged.
        """
        rows = self.find(inputs)
        return self.keep(inputs, compute()) if rows is None else rows

    def find(self, inputs: Sequence[Json]) -> list[JsonObject] | None:
        """Return the rows made of some inputs, None if they are not there."""
        block = None if self.store is None else self.store.find(self.name, self._key(inputs))
        return None if block is None else list(map(json.loads, block.lines))

    def keep(self, inputs: Sequence[Json], rows: Sequence[Json]) -> list[JsonObject]:
        """Write the rows made of some inputs, and return them as they will be read again."""
        if self.store is None:
            return [dict(row) for row in rows]
        block = self.store.keep(self.name, self._key(inputs), list(map(dumps, rows)))
        return list(map(json.loads, block.lines))

    def _key(self, inputs: Sequence[Json]) -> Json:
        return {**self.settings, "inputs": list(inputs)}


class UnfinishedWork(Stage):
    """What a long command has finished, kept in a folder beside its --out until that is whole.

    Without a folder nothing is kept. `settings` are everything but the inputs that results depend on;
    UsageError if the folder holds unfinished work with others. `fresh` forgets what an earlier call has left,
    and `resumed` says whether one with these settings has left something.
    """

    def __init__(self, folder: Path | None, settings: Json, *, fresh: bool) -> None:
        super().__init__(None if folder is None else Store(folder), "rows", {"settings": dict(settings)})
        self._folder, self._begun_with = folder, settings
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
            write_rows(self._folder / SETTINGS, [self._begun_with])

    def keep(self, inputs: Sequence[Json], rows: Sequence[Json]) -> list[JsonObject]:
        """Write the rows made of some inputs, and return them."""
        self.begin()
        return super().keep(inputs, rows)

    def _is_resumed(self, folder: Path) -> bool:
        path = folder / SETTINGS
        if not path.is_file():
            return False
        if path.read_bytes().strip() == dumps(self._begun_with).encode():
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


def read_block(path: Path) -> StoredBlock:
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
    return StoredBlock(texts, end.get("of", {}), end["block"]["sha256"])


def _seal(path: Path, lines: Sequence[str], label: Any) -> Json:
    text = "\n".join([path.name, canonical(label), *lines])
    return {"rows": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it holds just this."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    with writing(path) as handle:
        handle.write(text)
