"""Finished blocks of rows (design.md, store), each a file that is whole or absent.

A block is a JSON Lines file. Its last line holds the number of rows and a checksum of the rows, the name and
the label. The name is the hash of (stage, settings, inputs), so an existing block is finished, and a block
for other settings is never found.
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
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from semcal.errors import StoreError, UsageError
from semcal.files import Json, JsonObject, canonical, dumps, remove_leftovers, write_rows, writing

#: The file with the settings of unfinished work, and the folder of its finished blocks.
SETTINGS, FINISHED = "settings.json", "blocks"


def digest(value: Any) -> str:
    """Return a hash (32 hex digits) of a JSON value, equal on every machine."""
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


class Store:
    """Finished blocks in the folders `blocks/<stage>/` below a root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, stage: str, key: Json) -> Path:
        """Return the file for the rows of a stage that depend on `key`."""
        return self.root / FINISHED / stage / f"{digest({'stage': stage, **key})}.jsonl"

    @property
    def replies(self) -> Path:
        """The folder for replies of servers outside of blocks."""
        return self.root / FINISHED / "replies"

    def rows(self, stage: str, key: Json, make: Callable[[], Sequence[Json]]) -> list[JsonObject]:
        """Return stored rows, or make and store them; StoreError if the stored rows are damaged."""
        path = self.path(stage, key)
        if (rows := find_rows(path)) is not None:
            return rows
        with keeping_replies(replies_beside(path)):
            made = make()
        return keep_rows(path, made)


class UnfinishedWork(Store):
    """The finished blocks of a long command, in a folder beside its --out file until that file is written.

    `settings` are all settings that results depend on, except the inputs. UsageError is raised if the folder
    holds unfinished work with other settings. `fresh` removes the blocks of an earlier call. `resumed` is
    true if an earlier call with these settings has left blocks.
    """

    def __init__(self, folder: Path, settings: Json, *, fresh: bool) -> None:
        super().__init__(folder)
        self.folder, self._begun_with = folder, settings
        if fresh:
            self.finish()
        self.resumed = self._is_resumed(folder)
        if not self.resumed:  # so that a call with other settings does not use the folder
            write_rows(folder / SETTINGS, [settings])

    def _is_resumed(self, folder: Path) -> bool:
        path = folder / SETTINGS
        if not path.is_file():
            return False
        if path.read_bytes().strip() == dumps(self._begun_with).encode():
            return True
        if not remove_if_nothing_is_finished(folder):
            raise UsageError(
                f"{folder} holds unfinished work of a call with other options. Run that call again to "
                "finish it, or pass --fresh to delete it."
            )
        return False

    def finish(self) -> None:
        """Remove the finished blocks, because the --out file is written."""
        if self.folder.is_dir():
            remove_leftovers(self.folder)
            shutil.rmtree(self.folder / FINISHED, ignore_errors=True)
            (self.folder / SETTINGS).unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


def remove_if_nothing_is_finished(folder: Path) -> bool:
    """Remove the folder of an `UnfinishedWork` without finished blocks; return True if it was removed."""
    if any(path.is_file() for path in (folder / FINISHED).rglob("*")):
        return False
    (folder / SETTINGS).unlink(missing_ok=True)
    with suppress(OSError):  # missing, or not empty
        folder.rmdir()
    return True


def find_rows(path: Path) -> list[JsonObject] | None:
    """Return the rows of a block, None if missing; StoreError if damaged or owned by another user."""
    try:
        return list(map(json.loads, read_block(path)[0])) if path.exists() else None
    except PermissionError as error:
        reason = f"cannot read {path}: it belongs to another user"
        raise StoreError(f"{reason}. Pass a folder of your own, or ask the owner to share it.") from error


def keep_rows(path: Path, rows: Sequence[Json], label: Json | None = None) -> list[JsonObject]:
    """Write the rows of a block with its `label`, and return the rows as `find_rows` will."""
    lines = list(map(dumps, rows))
    end = {"block": _seal(path, lines, label or {})} | ({"of": label} if label else {})
    with writing(path, private=True) as handle:
        handle.writelines(line + "\n" for line in [*lines, dumps(end)])
    replies_beside(path).unlink(missing_ok=True)
    return list(map(json.loads, lines))


def read_block(path: Path) -> tuple[Sequence[str], Json]:
    """Return the rows of a block as JSON, and its label; StoreError if it was shortened or edited."""
    *lines, last = path.read_bytes().removesuffix(b"\n").split(b"\n")
    try:
        texts, end = [line.decode() for line in lines], json.loads(last)
        whole = isinstance(end, dict) and end.get("block") == _seal(path, texts, end.get("of", {}))
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise StoreError(
            f"{path}: the block is damaged or was edited. Delete it and run the same command again."
        )
    return texts, end.get("of", {})


def _seal(path: Path, lines: Sequence[str], label: Any) -> Json:
    text = "\n".join([path.name, canonical(label), *lines])
    return {"rows": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it already has this text."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    with writing(path) as handle:
        handle.write(text)


# ---- Replies of servers for unfinished blocks


class KeptReplies:
    """The replies of servers to requests, each written to a file on arrival.

    A line holds the hash of a request and the compressed reply. A kill may truncate the last line. Damaged
    lines are skipped, and their requests are sent again.
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
        """Write a reply at once, so that it survives the end of this process."""
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
    """Return the stored replies for the current work of this thread, None if there are none."""
    return _kept_replies.get()


@contextmanager
def keeping_replies(path: Path | None) -> Iterator[None]:
    """Store the replies of servers to this thread in a file during the block, and reuse stored replies."""
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
    """Return the file for the replies that a block depends on."""
    return path.with_suffix(".replies")
