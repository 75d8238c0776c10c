"""Finished blocks (design.md, store): named by what they are made of, whole or absent.

A block is a JSON Lines file whose last line holds the number of its rows and the checksum of them, of its
name and of what it is a part of. Its name is the hash of (stage, settings, inputs), so a block that exists is
done and one that no longer fits is simply not looked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from semcal.errors import StoreError, UsageError
from semcal.files import JsonObject, canonical, dumps, remove_leftovers, write_rows, writing
from semcal.rows import Json

#: File of the settings of unfinished work, and folder of its finished blocks.
SETTINGS, FINISHED = "settings.json", "blocks"


def digest(value: Any) -> str:
    """Return a hash (32 hex digits) of anything JSON can hold, the same on every machine."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def key_of(value: Any) -> Any:
    """Return the part of a block's name for a value: its `key()`, or else all fields of its objects."""
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
    """A finished block in its file."""

    lines: Sequence[str]  # rows as JSON
    label: Json  # the label given when the block was written


class Store:
    """The finished blocks below a folder, in `blocks/<stage>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, stage: str, key: Json) -> Path:
        """Return where the rows that a stage made lie; `key` is what they depend on."""
        return self.root / FINISHED / stage / f"{digest({'stage': stage, **key})}.jsonl"

    @property
    def replies(self) -> Path:
        """Where replies of servers are kept that belong to no block."""
        return self.root / FINISHED / "replies"

    def rows(self, stage: str, key: Json, make: Callable[[], Sequence[Json]]) -> list[JsonObject]:
        """Return rows, and make and keep them if they are not there yet; StoreError if they are damaged."""
        path = self.path(stage, key)
        if (rows := find_rows(path)) is not None:
            return rows
        with keeping_replies(replies_beside(path)):
            made = make()
        return keep_rows(path, made)


class UnfinishedWork(Store):
    """What a long command has finished, kept in a folder beside its --out until that is whole.

    `settings` are everything but the inputs that results depend on; UsageError if the folder holds unfinished
    work with others. `fresh` forgets what an earlier call has left, and `resumed` says whether one with these
    settings has left something.
    """

    def __init__(self, folder: Path, settings: Json, *, fresh: bool) -> None:
        super().__init__(folder)
        self.folder, self._begun_with = folder, settings
        if fresh:
            self.finish()
        self.resumed = self._is_resumed(folder)
        if not self.resumed:  # so that another call does not take it for its own
            write_rows(folder / SETTINGS, [settings])

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
        if self.folder.is_dir():
            remove_leftovers(self.folder)
            shutil.rmtree(self.folder / FINISHED, ignore_errors=True)
            (self.folder / SETTINGS).unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


def remove_if_nothing_is_finished(folder: Path) -> bool:
    """Remove what an `UnfinishedWork` was begun with if it finished nothing; say whether that is so."""
    if any(path.is_file() for path in (folder / FINISHED).rglob("*")):
        return False
    (folder / SETTINGS).unlink(missing_ok=True)
    with suppress(OSError):  # not there, or something else is in it
        folder.rmdir()
    return True


def find_rows(path: Path) -> list[JsonObject] | None:
    """Return the rows of a block, None if it is not there; StoreError if it is damaged or another user's."""
    try:
        return list(map(json.loads, read_block(path).lines)) if path.exists() else None
    except PermissionError as error:
        reason = f"cannot read {path}: it belongs to another user"
        raise StoreError(f"{reason}; name a folder of your own, or let its owner share it") from error


def keep_rows(path: Path, rows: Sequence[Json], label: Json | None = None) -> list[JsonObject]:
    """Write the rows of a block, and return them as they will be read; `label` says what it is a part of."""
    lines = list(map(dumps, rows))
    end = {"block": _seal(path, lines, label or {})} | ({"of": label} if label else {})
    with writing(path, private=True) as handle:
        handle.writelines(line + "\n" for line in [*lines, dumps(end)])
    replies_beside(path).unlink(missing_ok=True)
    return list(map(json.loads, lines))


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
    return StoredBlock(texts, end.get("of", {}))


def _seal(path: Path, lines: Sequence[str], label: Any) -> Json:
    text = "\n".join([path.name, canonical(label), *lines])
    return {"rows": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it holds just this."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    with writing(path) as handle:
        handle.write(text)


# ---- Replies of servers, until the block that they belong to is kept


class KeptReplies:
    """The replies of servers to requests, each written to a file as soon as it comes in.

    A line holds the hash of a request and the compressed reply. A kill may cut the last line short; it is
    passed over, as every damaged line is, and its request is sent again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replies = dict(_whole_lines(path))
        self._handle: BinaryIO | None = None

    def find(self, request: Json) -> Any:
        """Return the reply to an equal request, None if there is none."""
        packed = self._replies.get(digest(request))
        return None if packed is None else json.loads(zlib.decompress(b64decode(packed)))

    def add(self, request: Json, reply: Any) -> None:
        """Write a reply; whatever ends this process now, the reply is there."""
        if self._handle is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._handle = os.fdopen(number, "wb", buffering=0)
        packed = b64encode(zlib.compress(json.dumps(reply).encode(), 1))
        self._handle.write(b"\n%s %s\n" % (digest(request).encode(), packed))

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()


def _whole_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for line in lines:
        name, _, packed = line.partition(b" ")
        with suppress(ValueError, zlib.error):
            zlib.decompress(b64decode(packed, validate=True))
            if packed:
                yield name.decode(), packed


_kept_replies: ContextVar[KeptReplies | None] = ContextVar("kept_replies", default=None)


def kept_replies() -> KeptReplies | None:
    """The replies that are kept for the work under way in this thread; None if none are."""
    return _kept_replies.get()


@contextmanager
def keeping_replies(path: Path | None) -> Iterator[None]:
    """Keep what servers reply to this thread while the block runs in a file, and use what is there."""
    if path is None:
        yield
        return
    kept = KeptReplies(path)
    token = _kept_replies.set(kept)
    try:
        yield
    finally:
        _kept_replies.reset(token)
        kept.close()


def replies_beside(path: Path) -> Path:
    """Where the replies are kept that a block is made of."""
    return path.with_suffix(".replies")
