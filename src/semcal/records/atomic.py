"""Atomic writing of files and folders, and file locks.

An unfinished file has a random name, opened exclusively, and an advisory lock (flock) while it is written. A
process that can take that lock knows that the writer has ended, even across containers, where process ids
mean nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from semcal.errors import UsageError

PART, LOCK = ".semcal.part", ".semcal.lock"
#: Names of files and folders that a killed process leaves behind.
_LEFTOVER = re.compile(r"\.(.+\.)?semcal\.(part|lock)", re.DOTALL)
#: Folders of the names of open files, which are written directly.
_OPEN_FILES = ("/dev", "/dev/fd", "/proc/self/fd")
#: Seconds to wait for a lock; one that is only tested is free again sooner.
PATIENCE = 0.5


def user_cache(name: str, environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The folder of a kind of what can be made again: below SEMCAL_CACHE, or else the user's caches.

    >>> str(user_cache("servers", {"SEMCAL_CACHE": "/big"}, "linux"))
    '/big/servers'
    """
    own = environment.get("SEMCAL_CACHE")
    if own:
        return Path(own, name)
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
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean(path.parent.absolute())
        with _opened(path) as handle:
            temporary = Path(handle.name)
            try:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make OSErrors inside name `path`: that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).endswith(PART):
            error.filename = str(path)
        raise


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, for what will be renamed to it."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean(path.parent.absolute())
        folder, handle = _new_folder(path)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `path` when the block ends; an error leaves `path` unchanged."""
    with part_folder(path) as folder, part_folder(path) as old:
        yield folder
        if path.exists():
            path.replace(old)
        try:
            folder.rename(path)
        except BaseException:
            if not path.exists():
                old.rename(path)
            raise


@contextmanager
def file_lock(path: Path, busy: str, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file `path`, whose name ends in `LOCK`, while the block runs; its last holder removes it.

    If another process holds it for `patience` seconds, UsageError says `busy`.
    The lock of a process ends with it, however it ends.
    """
    handle = _locked(path, busy, patience)
    try:
        yield
    finally:
        if _flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            path.unlink(missing_ok=True)
        os.close(handle)


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


def _opened(path: Path) -> BinaryIO:
    """A new file beside `path`, locked."""
    while True:
        handle = _random_name(path).open("xb")
        _flock(handle.fileno(), fcntl.LOCK_EX)
        if _is_at(Path(handle.name), handle.fileno()):  # else it was removed as a leftover before the lock
            return handle
        handle.close()


def _new_folder(path: Path) -> tuple[Path, int]:
    """A new folder beside `path`, and the handle that holds its lock."""
    while True:
        temporary = _random_name(path)
        temporary.mkdir()
        try:
            handle = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        _flock(handle, fcntl.LOCK_EX)
        if _is_at(temporary, handle):
            return temporary, handle
        os.close(handle)


def _locked(path: Path, busy: str, patience: float) -> int:
    """The open lock file."""
    deadline = time.monotonic() + patience
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        if _flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB) and _is_at(path, handle):
            return handle
        os.close(handle)
        if time.monotonic() > deadline:
            raise UsageError(busy)
        time.sleep(PATIENCE / 20)


def _flock(handle: int, kind: int) -> bool:
    """Whether the lock was taken; always true on a file system without locks."""
    try:
        fcntl.flock(handle, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _remove_if_dead(path: Path) -> None:
    """Remove a leftover unless a process holds its lock, or it is not ours."""
    is_folder = path.is_dir()
    with suppress(OSError):  # removed meanwhile, a symbolic link, or not ours: skip it
        handle = os.open(path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_folder:
                shutil.rmtree(path)
            elif stat.S_ISREG(os.fstat(handle).st_mode):
                path.unlink()
        finally:
            os.close(handle)
