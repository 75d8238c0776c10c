"""SQLite files of this package: layouts, transactions, and readers beside a writer."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from semcal.errors import StoreError

#: Seconds to wait for other processes that write.
LOCK_TIMEOUT = 60.0
#: Size in bytes up to which indexes are compared with tables, which takes minutes for millions of rows.
LARGEST_COMPARED = 100_000_000
#: Errors of SQLite that do not mean a damaged file; all other errors do.
UNUSABLE = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
}


@dataclass(frozen=True)
class DatabaseLayout:
    """The layout of one kind of file, and its name in messages."""

    noun: str  # "log of replies"
    remedy: str  # for a file of another program or layout
    owner: int  # the `application_id`
    schema: int
    tables: Mapping[str, str]  # statements that create tables and indexes, by name and in order

    def refusal(self, path: Path) -> StoreError:
        """Return the error for a file of another program."""
        return StoreError(f"{path} belongs to another program, expected a {self.noun}; {self.remedy}")


def make_folder(path: Path, name: str) -> None:
    """Make the missing folder of a file, called `name` in messages; StoreError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the folder of {name} {path}: {error}") from error


def connect(path: Path, patience: float = LOCK_TIMEOUT) -> sqlite3.Connection:
    """Return a connection for one thread at a time. A power cut may lose the last writes, but not the file.

    The connection waits `patience` seconds while other processes write. A new file is readable by its owner
    only. Only SQLite opens an existing file, because closing another descriptor drops all locks of this
    process.
    """
    with suppress(OSError):  # the file exists, or the error of SQLite is clearer
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    database = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA synchronous = NORMAL")
    return database


def reader(path: Path) -> Callable[[], sqlite3.Connection]:
    """Return a function that opens read-only connections, which leave no files beside the database.

    The file is read once, before the first connection: closing a descriptor drops this process's locks.
    """
    log, in_wal = path.with_name(f"{path.name}-wal"), False
    with suppress(OSError), path.open("rb") as handle:  # SQLite reports a missing file
        in_wal = handle.read(20)[18:19] == b"\2"
    settled = "&immutable=1" if in_wal and not (log.is_file() and log.stat().st_size) else ""
    uri = f"{path.resolve().as_uri()}?mode=ro{settled}"
    return partial(sqlite3.connect, uri, uri=True, timeout=LOCK_TIMEOUT, check_same_thread=False)


def prepare(database: sqlite3.Connection, path: Path, layout: DatabaseLayout) -> None:
    """Create the tables if there are none, and check that the database is whole.

    StoreError is raised for a database of another program or version, sqlite3.DatabaseError for damage.
    """
    if not tables_of(database):
        write_ahead(database)
        with transaction(database):
            if not tables_of(database):  # no other process was faster
                database.execute(f"PRAGMA application_id = {layout.owner}")
                database.execute(f"PRAGMA user_version = {layout.schema}")
                for statement in layout.tables.values():
                    database.execute(statement)
    check(database, path, layout)
    write_ahead(database)


def check(database: sqlite3.Connection, path: Path, layout: DatabaseLayout) -> None:
    """Check that a file is whole and has this layout; the errors are those of `prepare`."""
    (owner,) = database.execute("PRAGMA application_id").fetchone()
    (schema,) = database.execute("PRAGMA user_version").fetchone()
    if owner != layout.owner:
        raise layout.refusal(path)
    if schema != layout.schema:
        raise StoreError(f"{path} has layout {schema}, expected {layout.schema}; {layout.remedy}")
    found = [(kind, name, statement.strip()) for kind, name, statement in tables_of(database)]
    made = [(text.split()[1].lower(), name, text.strip()) for name, text in layout.tables.items()]
    if found != made:
        raise sqlite3.DatabaseError("its tables differ from the layout")
    compared = "integrity" if path.stat().st_size <= LARGEST_COMPARED else "quick"
    (state,) = database.execute(f"PRAGMA {compared}_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(" ".join(state.split()))


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether the error is a lock of another process."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF


def is_database(path: Path) -> bool:
    """Return whether a file exists and begins like an SQLite file."""
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        return handle.read(16) == b"SQLite format 3\0"


@contextmanager
def as_store_errors(name: str, remedy: str, *, foreign: str | None = None) -> Iterator[None]:
    """Raise errors of SQLite as a StoreError with the remedy.

    `foreign` is the remedy for a file that is not a database; it defaults to `remedy`.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # OperationalError also for texts that are not UTF-8
        code = _code(error)
        if code in UNUSABLE:
            raise StoreError(
                f"cannot use {name}: {error}. Check that no other program has locked it, that there is space "
                "and that it may be written to."
            ) from error
        if foreign is not None and code == sqlite3.SQLITE_NOTADB:
            remedy = foreign
        raise StoreError(f"{name} is damaged ({error}); {remedy}") from error


def close_whole(database: sqlite3.Connection) -> None:
    """Move all data into the main file and close, also if two processes close at once."""
    with suppress(sqlite3.Error):
        database.execute("PRAGMA busy_timeout = 1000")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def tables_of(database: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Return type, name and statement of each object that a database declares."""
    return database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction, which starts when no other process writes."""
    database.execute("BEGIN IMMEDIATE")
    with database:
        yield


def write_ahead(database: sqlite3.Connection) -> None:
    """Allow readers beside a writer (WAL). Wait for locks, because SQLite does not wait here."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
