"""Atomic writes, locks between processes, and JSON Lines (design.md, file contracts).

An unfinished file is in a folder with a random name beside its place, with a lock file that the writer holds.
A process that can take the lock knows that the writer has ended, even across containers, where process ids
have no meaning.

JSON Lines hold one object per line; a bad line is reported and not fatal. JSON has no infinities: −inf is
the string "-inf", and an undefined number is null. Python's json accepts too much (NaN, duplicate keys, any
depth, lone surrogates): `parse` reads a text, and `fault` checks the result.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeAlias

from semcal.errors import InputError, RowError, StoreError, UsageError, shown

if TYPE_CHECKING:
    from filelock import FileLock

JsonObject: TypeAlias = dict[str, Any]
Json: TypeAlias = Mapping[str, Any]
"""An object of a file."""

PART, LOCK = ".semcal.part", ".semcal.lock"
#: Names of files and folders that a killed process leaves behind.
_LEFTOVER = re.compile(r"\.(.+\.)?semcal\.(part|lock)", re.DOTALL)
#: Folders with the names of open files, which are written directly.
_OPEN_FILES = ("/dev", "/dev/fd", "/proc/self/fd")
#: Seconds to wait for a lock; a lock that is only tested is free sooner.
PATIENCE = 0.5
#: Errors of a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def user_cache(name: str) -> Path:
    """Return the folder of a cache: below SEMCAL_CACHE, or else in the user's cache folder."""
    if folder := os.environ.get("SEMCAL_CACHE"):
        return Path(folder, name)
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual).expanduser() / "semcal" / name


def is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe or an open file, which is written directly."""
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or str(path.parent) in _OPEN_FILES


@contextmanager
def atomic_write(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file that appears whole and flushed to disk at the end of the block, or not at all.

    A symbolic link at `path` is replaced, not followed. Leftovers of killed processes in the folder are
    removed. An OSError names `path`. A `private` file is readable by its owner only.
    """
    with part_folder(path) as folder, (folder / path.name).open("xb") as handle:
        if private:
            Path(handle.name).chmod(0o600)
        yield handle
        handle.flush()
        os.fsync(handle.fileno())
        Path(handle.name).replace(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let OSErrors in the block name `path`; the error of a full disk names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None or PART in str(error.filename):
            error.filename = str(path)
        raise


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, for content that then moves to `path`."""
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
    """Hold the lock file `path`, whose name ends in `LOCK`, during the block, and remove it at the end.

    If another process holds the lock for `patience` seconds, a UsageError with the message `busy` is raised.
    A lock ends with its process.
    """
    lock = _lock(path)
    if not _acquire(lock, patience):
        raise UsageError(busy)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release: a process that waits for it then makes a new one
        lock.release()


def remove_leftovers(folder: Path, *, deep: bool = False) -> None:
    """Remove leftovers of killed processes from a folder, and with `deep` from its subfolders."""
    for path in folder.rglob(".*") if deep else folder.glob(".*"):
        if _LEFTOVER.fullmatch(path.name):
            _remove_if_dead(path)


def own_files(folder: Path) -> list[Path]:
    """Return the contents of a folder, without unfinished files and locks."""
    return sorted(path for path in folder.iterdir() if not _LEFTOVER.fullmatch(path.name))


def clear_folder(folder: Path) -> None:
    """Remove everything in a folder except its lock."""
    for path in own_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


#: Removes leftovers from a folder once per process, because listing the folder for each file is slow.
_clean = cache(remove_leftovers)


def _new_part(path: Path) -> tuple[Path, FileLock]:
    while True:
        folder = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}{PART}")
        folder.mkdir()
        lock = _lock(folder / LOCK)
        with suppress(FileNotFoundError):  # the folder was removed as a leftover before it was locked
            if _acquire(lock, PATIENCE):
                return folder, lock


def _lock(path: Path) -> FileLock:
    from filelock import FileLock

    return FileLock(path)


def _acquire(lock: FileLock, patience: float) -> bool:
    """Take the lock if possible; return True also on a file system without locks."""
    try:
        lock.acquire(timeout=patience)
    except TimeoutError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _remove_if_dead(path: Path) -> None:
    """Remove a leftover unless a process holds its lock, or it has another type."""
    is_part = path.name.endswith(PART)
    if path.is_symlink() or path.is_dir() != is_part:
        return
    lock = _lock(path / LOCK if is_part else path)
    with suppress(OSError), lock.acquire(timeout=0):  # held, removed meanwhile, or no locks: skip it
        if is_part:
            shutil.rmtree(path)
        else:
            path.unlink()


# JSON Lines


#: Characters that are escaped although JSON allows them: controls from U+0080 on and marks of the writing
#: direction, which act on a terminal, and halves of characters (of file names), which UTF-8 cannot encode.
_UNSAFE = re.compile("[\x80-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Control characters that no text has, and the first bytes of UTF-16.
_NO_TEXT = re.compile(rb"[\0-\x08\x0e-\x1f]|\xff\xfe|\xfe\xff")


def check_start(start: bytes, source: str | Path) -> None:
    """Raise InputError if a file does not begin like a text in UTF-8."""
    if len(_NO_TEXT.findall(start[:16])) > 1:  # one may be damage of the first row
        raise InputError(
            f"{_name(source)} is not a text in UTF-8, but maybe a spreadsheet, an archive or UTF-16. Convert "
            "it to JSON Lines, CSV or Parquet, and name it by its format."
        )


def check_json_lines(source: str) -> None:
    """Raise InputError for a table where JSON Lines are needed."""
    if source.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".parquet")):
        raise InputError(
            f"{source} is not a file of JSON Lines. Convert it, such as with pandas: "
            "table.to_json('rows.jsonl', orient='records', lines=True)"
        )


def _name(source: str | Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


# Strict JSON

#: Maximum depth of nested lists and objects in a row.
DEEPEST = 100
TOO_DEEP = f"nested more than {DEEPEST} deep: leave out the key that holds this"
#: A lone surrogate: JSON can escape it, UTF-8 cannot encode it.
HALF = re.compile("[\\ud800-\\udfff]")

_Keyed = tuple[str | None, Any]


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InputError(f"the key {shown(key)} occurs twice in one object: rename or remove one")
    return members


_DECODER = json.JSONDecoder(object_pairs_hook=_object)  # json.loads would make one for each text


def parse(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether `fault` must check it; InputError for other text."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"not JSON ({error})") from None
    is_deep = text.count("[") + text.count("{") > DEEPEST
    return value, is_deep or "NaN" in text or "\\ud" in text or "\\uD" in text


def fault(content: Any) -> str | None:
    """Return the reason why a parsed value cannot be used or written, None for a valid value.

    >>> fault({"id": 1, "log_likelihoods": [-0.1, float("nan")]})
    "'log_likelihoods' holds NaN, which is not valid JSON: write null for an unknown number"
    """
    level: list[_Keyed] = [(None, content)]
    for _ in range(DEEPEST + 1):
        for key, value in level:
            name = "a value" if key is None else key
            if isinstance(value, float) and math.isnan(value):
                return f"{shown(name)} holds NaN, which is not valid JSON: write null for an unknown number"
            if isinstance(value, str) and (half := HALF.search(value)):
                return f"{shown(name)} holds {half[0]!a}, half a character: save the file as UTF-8"
        level = [item for keyed in level for item in _inside(*keyed)]
        if not level:
            return None
    return TOO_DEEP


def inside(value: Any, *path: str | int) -> Any:
    """Return the value at keys and indices of a JSON value, None if missing."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _inside(key: str | None, value: Any) -> Iterator[_Keyed]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield key, name
            yield name if key is None else key, item
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield key, item


# Rows

#: Maximum number of bytes of a line: a damaged file, or a small gzip file, can have lines of any length.
LONGEST = 100_000_000


@dataclass(frozen=True)
class JsonLine:
    """One object of a file with the 1-based number of its line."""

    line: int
    data: JsonObject

    def error(self, reason: str) -> RowError:
        """Return the error for an unusable row, with its line and its id."""
        row_id = self.data.get("id")
        is_id = isinstance(row_id, (str, int)) and not isinstance(row_id, bool)
        return RowError(self.line, reason, row_id if is_id else None)


def row_of(line: int, value: Any, *, odd: bool = True) -> JsonLine | RowError:
    """Return a parsed value as a row, or a `RowError` if it is not one; if `odd`, `fault` checks it."""
    if not isinstance(value, dict):
        return RowError(line, f"expected a JSON object, got {type(value).__name__}")
    row = JsonLine(line, value)
    reason = fault(value) if odd else None
    return row if reason is None else row.error(reason)


def _encodable(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):
            return "-inf" if value < 0 else "inf"
        return value
    if isinstance(value, Mapping):
        return {str(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _encodable(value.tolist())
    if is_dataclass(value):
        return {item.name: _encodable(getattr(value, item.name)) for item in fields(value)}
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON that is safe on a terminal: −inf as "-inf", NaN as null, numpy as numbers.

    >>> dumps({"log_likelihoods": [-0.5, float("-inf")], "auroc": float("nan")})
    '{"log_likelihoods": [-0.5, "-inf"], "auroc": null}'
    """
    text = _written(value, indent=indent)
    return text if text.isascii() else _UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)


def canonical(value: Any) -> str:
    """Return `value` as `dumps` does, keys sorted and without spaces: the same text for equal values.

    >>> canonical({"b": [1, 2.5], "a": "x"})
    '{"a":"x","b":[1,2.5]}'
    """
    return _written(value, sort_keys=True, separators=(",", ":"))


def _written(value: Any, **how: Any) -> str:
    write: Callable[..., str] = partial(json.dumps, ensure_ascii=False, allow_nan=False, **how)
    try:
        return write(value, default=_encodable)
    except (TypeError, ValueError):  # NaN, infinities or odd keys
        return write(_encodable(value))


def parse_float(value: Any) -> float | None:
    """Return a number that `dumps` wrote (null is None, "-inf" is −inf); InputError for anything else.

    >>> parse_float("-inf"), parse_float(-0.5), parse_float(None)
    (-inf, -0.5, None)
    """
    if value is None:
        return None
    if value in ("-inf", "-Infinity"):
        return -math.inf
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise InputError(f"expected a number of at most 308 digits, got {shown(value)}") from None
    raise InputError(f'expected a number, null or "-inf", got {shown(value)}')


def read_object(path: Path, *, remedy: str) -> JsonObject:
    """Read a file that holds one JSON object. A StoreError for a damaged file ends with `remedy`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise StoreError(f"{path} is damaged ({error}): {remedy}") from error
    if not isinstance(content, dict):
        raise StoreError(
            f"{path} is damaged (a JSON object was expected, got {type(content).__name__}): {remedy}"
        )
    return content


def write_sealed(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object with its checksum, whole or not at all."""
    with atomic_write(path) as file:
        file.write(canonical({**content, "checksum": json_checksum(content)}).encode())


def read_sealed(path: Path) -> JsonObject | None:
    """Read a file of `write_sealed`, None if it is missing, unreadable or damaged."""
    try:
        content = read_object(path, remedy="run the command again")
    except (OSError, StoreError):
        return None
    return content if content.pop("checksum", None) == json_checksum(content) else None


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def json_checksum(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of an object as JSON, independent of the order of its keys."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


@contextmanager
def _opened(source: str | Path) -> Iterator[BinaryIO]:
    if str(source) == "-":
        with naming(Path("standard input")):
            yield sys.stdin.buffer
        return
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path}: the file does not exist. Check the path.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give a file of JSON Lines.")
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as handle:
            yield handle  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}). Get it again.") from error


def read_rows(source: str | Path) -> Iterator[JsonLine | RowError]:
    """Yield every line of a JSON Lines file as a `JsonLine`, or as a `RowError`; blank lines are skipped.

    The source is a file (gzip if it ends in .gz) or "-" for standard input. InputError if the file is missing
    or a damaged gzip file, its first bytes show another format, or a line is too long.
    """
    with _opened(source) as handle:
        for number, raw in enumerate(iter(partial(handle.readline, LONGEST + 1), b""), start=1):
            if len(raw) > LONGEST:
                raise InputError(
                    f"{_name(source)}: line {number} has more than {LONGEST:,} bytes; leave out a value"
                )
            if number == 1:
                check_start(raw, source)
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if not raw.strip():
                continue
            try:
                value, odd = parse(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                reason = f"not UTF-8 (byte {error.start} of the line): save the file as UTF-8"
                yield RowError(number, reason)
            except InputError as error:
                yield RowError(number, f"{error}; every line must hold one JSON object")
            else:
                yield row_of(number, value, odd=odd)


@contextmanager
def writing(target: str | Path | None, *, private: bool = False) -> Iterator[TextIO]:
    """Open `target` for text that appears whole or not at all; None is standard output.

    The text is written under a temporary name, flushed to disk and renamed (`atomic_write`). An error in the
    block leaves an older file unchanged. Only its owner can read a `private` file. A device or a pipe
    (/dev/null, a FIFO, /dev/stdout) is written directly, and appended to after `>> file`.
    """
    if target is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(target)
    if is_stream(path):
        with naming(path), path.open("a", encoding="utf-8", newline="\n") as handle:
            yield handle
        return
    with (
        atomic_write(path, private=private) as raw,
        open(raw.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as handle,
    ):
        yield handle


def write_rows(target: str | Path | None, rows: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object per line to `target` (see `writing`)."""
    with writing(target) as handle:
        for row in rows:
            handle.write(dumps(row) + "\n")
