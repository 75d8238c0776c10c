"""Atomic writing of files and folders, and locks between processes.

What is unfinished lies in a folder of a random name beside its place, with a lock file that is held while it
is written. A process that can take that lock knows that the writer has ended, even across containers, where
process ids mean nothing.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from semcal.errors import UsageError

PART, LOCK = ".semcal.part", ".semcal.lock"
#: Names of files and folders that a killed process leaves behind.
_LEFTOVER = re.compile(r"\.(.+\.)?semcal\.(part|lock)", re.DOTALL)
#: Folders of the names of open files, which are written directly.
_OPEN_FILES = ("/dev", "/dev/fd", "/proc/self/fd")
#: Seconds to wait for a lock; one that is only tested is free again sooner.
PATIENCE = 0.5
#: What a file system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def user_cache(name: str, environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The folder of a kind of what can be made again: below SEMCAL_CACHE, or else the user's caches.

    >>> str(user_cache("servers", {"SEMCAL_CACHE": "/big"}, "linux"))
    '/big/servers'
    """
    folder = environment.get("SEMCAL_CACHE")
    if folder:
        return Path(folder, name)
    home = {"darwin": "~/Library/Caches", "win32": environment.get("LOCALAPPDATA", "~/AppData/Local")}
    caches = environment.get("XDG_CACHE_HOME") or home.get(platform, "~/.cache")
    return Path(caches).expanduser() / "semcal" / name


def is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe or an open file: it is written directly, never replaced.

    >>> is_stream(Path("/dev/null")), is_stream(Path("rows.jsonl"))
    (True, False)
    """
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or str(path.parent) in _OPEN_FILES


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file for bytes so that it appears whole, flushed to disk, when the block ends, or not at all.

    A symbolic link at `path` is replaced, not followed. Leftovers of killed processes in the folder are
    removed. An OSError names `path`.
    """
    with part_folder(path) as folder, (folder / path.name).open("xb") as handle:
        yield handle
        handle.flush()
        os.fsync(handle.fileno())
        Path(handle.name).replace(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make OSErrors inside name `path`: that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None or PART in str(error.filename):
            error.filename = str(path)
        raise


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, from which what is made there is moved to `path`."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean(path.parent.absolute())
        folder, lock = _new_part(path)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `path` when the block ends; an error leaves `path` unchanged."""
    with part_folder(path) as part:
        folder, replaced = part / "new", part / "old"
        folder.mkdir()
        yield folder
        if path.exists():
            path.replace(replaced)
        try:
            folder.rename(path)
        except BaseException:
            if not path.exists() and replaced.exists():
                replaced.rename(path)
            raise


@contextmanager
def file_lock(path: Path, busy: str, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file `path`, whose name ends in `LOCK`, while the block runs; it is removed at the end.

    If another process holds it for `patience` seconds, UsageError says `busy`. The lock of a process ends
    with it, however it ends.
    """
    lock = FileLock(path)
    if not _acquire(lock, patience):
        raise UsageError(busy)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: a process that has it open looks for it again
        lock.release()


def remove_leftovers(folder: Path, *, deep: bool = False) -> None:
    """Remove leftovers of killed processes from a folder, and from those below it if `deep`."""
    for path in folder.rglob(".*") if deep else folder.glob(".*"):
        if _LEFTOVER.fullmatch(path.name):
            _remove_if_dead(path)


def own_files(folder: Path) -> list[Path]:
    """Return the contents of a folder, without unfinished files and locks."""
    return sorted(path for path in folder.iterdir() if not _LEFTOVER.fullmatch(path.name))


def clear_folder(folder: Path) -> None:
    """Remove everything in a folder but its lock."""
    for path in own_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


#: Removes leftovers from a folder once per process: listing the folder for each file would take long.
_clean = cache(remove_leftovers)


def _random_name(path: Path) -> Path:
    return path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}{PART}")


def _new_part(path: Path) -> tuple[Path, FileLock]:
    """A new folder beside `path`, and its lock, which is held."""
    while True:
        folder = _random_name(path)
        folder.mkdir()
        lock = FileLock(folder / LOCK)
        with suppress(FileNotFoundError):  # it was removed as a leftover before it was locked
            if _acquire(lock, PATIENCE):
                return folder, lock


def _acquire(lock: FileLock, patience: float) -> bool:
    """Whether the lock was taken; always true on a file system without locks."""
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _remove_if_dead(path: Path) -> None:
    """Remove a leftover unless a process holds its lock, or it is not ours."""
    is_part = path.name.endswith(PART)
    if path.is_symlink() or path.is_dir() != is_part:
        return
    lock = FileLock(path / LOCK if is_part else path)
    with suppress(OSError), lock.acquire(timeout=0):  # held, removed meanwhile, or no locks: skip it
        if is_part:
            shutil.rmtree(path)
        else:
            path.unlink()
