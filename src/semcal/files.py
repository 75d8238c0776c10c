"""Atomic writes, locks between processes, and JSON Lines (design.md, file contracts).

An unfinished file is in a folder with a random name beside its place, with a lock file that the writer holds.
A process that can take the lock knows that the writer has ended, even across containers, where process ids
have no meaning.

JSON Lines hold one object per line; a bad line is reported and not fatal. JSON has no infinities: −inf is
the string "-inf", and an undefined number is null. Python's json accepts too much (NaN, duplicate keys, any
depth, lone surrogates): `parse` reads a text, and `fault` checks the result. Other file formats are
recognized by ending or first bytes, and the error names the conversion.
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
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from itertools import count
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


def user_cache(name: str, environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return the folder of a cache: below SEMCAL_CACHE, or else in the user's cache folder.

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
    """Return whether a path is a device, a pipe or an open file, which is written directly.

    >>> is_stream(Path("/dev/null")), is_stream(Path("rows.jsonl"))
    (True, False)
    """
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
_PANDAS = (
    "python -c \"import pandas; pandas.{reader}('{name}')"
    ".to_json('rows.jsonl', orient='records', lines=True)\""
)


@dataclass(frozen=True)
class _Kind:
    """A file format that is not supported, with the remedy; `start` is a pattern of its first bytes."""

    description: str
    remedy: str
    endings: tuple[str, ...] = ()
    start: bytes | None = None


_KINDS = (
    _Kind(
        "a spreadsheet",
        f"save it as CSV (UTF-8) there, or convert it: {_PANDAS.replace('{reader}', 'read_excel')}",
        (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"),
    ),
    _Kind("a Numbers document", "export it as CSV there (File > Export To > CSV)", (".numbers",)),
    _Kind(
        "a pickle, which can run any code when it is opened",
        f"where you trust it, convert it: {_PANDAS.replace('{reader}', 'read_pickle')}",
        (".pkl", ".pickle", ".joblib"),
    ),
    _Kind(
        "an Arrow or Feather file",
        f"convert it: {_PANDAS.replace('{reader}', 'read_feather')}",
        (".arrow", ".feather"),
        b"ARROW1",
    ),
    _Kind(
        "an archive, or a spreadsheet",
        "unpack it and name the file inside; save a spreadsheet as CSV (UTF-8)",
        start=b"PK\x03\x04",
    ),
    _Kind(
        "an archive",
        "unpack it and name the file inside (gzip alone, as in rows.jsonl.gz, is read as it is)",
        (".zip", ".7z", ".rar", ".tar", ".tgz", ".bz2", ".xz", ".zst"),
    ),
    _Kind("gzipped, though its name does not end in .gz", "rename it", start=b"\x1f\x8b\x08"),
    _Kind("a Parquet file", "rename it to {name}.parquet", start=b"PAR1"),
    _Kind(
        "UTF-16 text", "save it as UTF-8", start=rb"\xff\xfe[^\0]\0|\xfe\xff\0[^\0]|([^\0]\0){4}|(\0[^\0]){4}"
    ),
)


def check_ending(path: Path) -> None:
    """Raise InputError, with the conversion, for a file with the ending of an unsupported format.

    >>> check_ending(Path("answers.zip"))
    Traceback (most recent call last):
    semcal.errors.InputError: answers.zip is an archive: unpack it and name the file inside (gzip alone, ...
    """
    name = path.name.lower().removesuffix(".gz")
    for kind in _KINDS:
        if name.endswith(kind.endings):
            raise InputError(f"{path} is {kind.description}: {kind.remedy.replace('{name}', path.name)}")


def check_start(start: bytes, source: str | Path) -> None:
    """Raise InputError, with the conversion, for a file with the first bytes of an unsupported format."""
    for kind in _KINDS:
        if kind.start is not None and re.match(kind.start, start):
            name = "standard input" if str(source) == "-" else source
            raise InputError(
                f"{name} is {kind.description}: {kind.remedy.replace('{name}', Path(source).name)}"
            )


def check_json_lines(source: str) -> None:
    """Raise InputError, with the conversion, for a table where JSON Lines are needed."""
    name = Path(source).name
    for ending, reader in ((".csv", "read_csv"), (".tsv", "read_table"), (".parquet", "read_parquet")):
        if name.lower().removesuffix(".gz").endswith(ending):
            convert = _PANDAS.replace("{reader}", reader).replace("{name}", name)
            raise InputError(f"{source} is not a file of JSON Lines. Convert it: {convert}")


# Strict JSON

#: Maximum depth of nested lists and objects in a row.
DEEPEST = 100
TOO_DEEP = f"nested more than {DEEPEST} deep: leave out the key that holds this"
#: A lone surrogate: JSON can escape it, UTF-8 cannot encode it.
HALF = re.compile("[\\ud800-\\udfff]")

_Keyed = tuple[str | None, Any]


class _Doubled(JsonObject):
    """An object with a duplicate key: `key`."""

    key: str


class _TooLong(str):
    """The digits of a whole number that is too long for Python."""


class _Reading(threading.local):
    """The state of `parse` in a thread: `odd` is true if `fault` must check the result."""

    def __init__(self) -> None:
        self.odd = False
        decoder = partial(json.JSONDecoder, object_pairs_hook=self.object, parse_constant=self.constant)
        self.decode, self.decode_long = decoder().decode, decoder(parse_int=self.integer).decode

    def object(self, pairs: list[tuple[str, Any]]) -> JsonObject:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        self.odd = True
        doubled = _Doubled(members)
        doubled.key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return doubled

    def constant(self, name: str) -> float:
        self.odd = self.odd or name == "NaN"
        return float(name)

    def integer(self, digits: str) -> int | _TooLong:
        try:
            return int(digits)
        except ValueError:
            self.odd = True
            return _TooLong(digits)


_READING = _Reading()


def parse(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether `fault` must check it; InputError for other text.

    >>> parse('{"id": 1, "samples": ["Ada"]}')
    ({'id': 1, 'samples': ['Ada']}, False)
    """
    reading = _READING  # json.loads would make a decoder for each text
    reading.odd = False
    try:
        try:
            value = reading.decode(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # a whole number has thousands of digits: read again, slower
            value = reading.decode_long(text)
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except ValueError as error:
        raise InputError(f"not JSON ({error})") from None
    odd = reading.odd or "\\ud" in text or "\\uD" in text or text.count("[") + text.count("{") > DEEPEST
    return value, odd


def fault(content: Any) -> str | None:
    """Return the reason why a parsed value cannot be used or written, None for a valid value.

    >>> fault({"id": 1, "log_likelihoods": [-0.1, float("nan")]})
    "'log_likelihoods' holds NaN, which is not valid JSON: write null for an unknown number"
    >>> fault(parse('{"id": 1, "id": 2}')[0])
    "the key 'id' occurs twice in one object: rename or remove one"
    """
    level: list[_Keyed] = [(None, content)]
    for _ in range(DEEPEST + 1):
        for key, value in level:
            reason = _fault_of_one(key, value)
            if reason is not None:
                return reason
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


def _fault_of_one(key: str | None, value: Any) -> str | None:
    if isinstance(value, _Doubled):
        return f"the key {shown(value.key)} occurs twice in one object: rename or remove one"
    if isinstance(value, _TooLong):
        reason = f"a whole number of {len(value)} digits: write it as a text, in quotes"
    elif isinstance(value, float) and math.isnan(value):
        reason = "NaN, which is not valid JSON: write null for an unknown number"
    elif isinstance(value, str) and (half := HALF.search(value)):
        reason = f"{half[0]!a}, half a character, which cannot be written: save the file as UTF-8"
    else:
        return None
    return f"{'a value' if key is None else shown(key)} holds {reason}"


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
#: Lines up to this multiple of `LONGEST` are skipped; a device can have a line without end.
SKIPPED = 10


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
    """Return a parsed value as a row, or a `RowError` if it is not one.

    `odd` is true if the value may be invalid JSON (see `fault`).

    >>> row_of(3, {"id": "b2", "confidence": float("nan")})
    RowError("line 3 (id 'b2'): 'confidence' holds NaN, which is not valid JSON: write null for an ...
    """
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
    text = _written(value, _json_text if indent is None else partial(_indented, indent=indent))
    return text if text.isascii() else _UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)


def canonical(value: Any) -> str:
    """Return `value` as `dumps` does, keys sorted and without spaces: the same text for equal values.

    >>> canonical({"b": [1, 2.5], "a": "x"})
    '{"a":"x","b":[1,2.5]}'
    """
    return _written(value, partial(_json_text, sort_keys=True, separators=(",", ":")))


_json_text = partial(json.dumps, ensure_ascii=False, allow_nan=False)
_PLAIN = (str, int, float, bool, type(None))


def _indented(value: Any, *, indent: int, default: Callable[[Any], Any] = _encodable) -> str:
    """Return `json.dumps` with an indent; lists of numbers and texts are left to its compiled part."""
    value = value if isinstance(value, (*_PLAIN, dict, list, tuple)) else default(value)
    if isinstance(value, _PLAIN) or not value:
        return _json_text(value)
    write = partial(_indented, indent=indent, default=default)
    start, end = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        inner = ",\n".join(f"{_json_text({key: 0})[1:-2]}{write(item)}" for key, item in value.items())
    elif {*map(type, value)} <= {*_PLAIN}:
        inner = _json_text(value, separators=(",\n", ": "))[1:-1]
    else:
        inner = ",\n".join(map(write, value))
    return f"{start}\n{inner}".replace("\n", "\n" + " " * indent) + f"\n{end}"


def _written(value: Any, write: Callable[..., str]) -> str:
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
    check_ending(path)
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as handle:
            yield handle  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}). Get it again.") from error


def read_rows(source: str | Path) -> Iterator[JsonLine | RowError]:
    """Yield every line of a JSON Lines file as a `JsonLine`, or as a `RowError`; blank lines are skipped.

    The source is a file (gzip if it ends in .gz) or "-" for standard input. InputError if the file is missing
    or a damaged gzip file, its name or first bytes show another format, or a line has no end.
    """
    with _opened(source) as handle:
        for number, raw in enumerate(_lines(handle, source), start=1):
            if raw is None:
                yield RowError(
                    number, f"longer than {LONGEST} bytes: leave out the long value, or shorten the passage"
                )
                continue
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


def _lines(handle: BinaryIO, source: str | Path) -> Iterator[bytes | None]:
    """Yield every line, None for a line that is too long."""
    for number in count(1):
        if not (raw := handle.readline(LONGEST + 1)):
            return
        is_long, pieces = len(raw) > LONGEST, 0
        while is_long and raw and not raw.endswith(b"\n"):
            if (pieces := pieces + 1) > SKIPPED:
                name = "standard input" if str(source) == "-" else source
                raise InputError(
                    f"{name}: line {number} does not end within {SKIPPED * LONGEST} bytes; expected JSON "
                    "Lines: give a file with one object a line"
                )
            raw = handle.readline(LONGEST)
        yield None if is_long else raw


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
