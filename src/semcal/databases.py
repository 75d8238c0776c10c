"""SQLite files of ours: who made them, their layout, transactions, and readers beside a writer."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from semcal.errors import StoreError

#: Seconds to wait for other processes that write.
LOCK_TIMEOUT = 60.0
#: Identify logs of `semcal serve` ("smlg" in ASCII), and their layout; the first had no `calibration`.
REPLY_LOG = 0x736D6C67
REPLY_LOG_SCHEMA = 2
#: Errors of SQLite that do not mean a damaged file; all others do.
UNUSABLE = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
}


def is_database(path: Path) -> bool:
    """Whether a file is there and begins as those of SQLite do."""
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        return handle.read(16) == b"SQLite format 3\0"


@contextmanager
def as_store_errors(name: str, remedy: str) -> Iterator[None]:
    """Raise what SQLite says of a file as StoreError: it cannot be used, or is damaged, with the remedy."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for texts that are not UTF-8
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in UNUSABLE:
            raise StoreError(
                f"cannot use {name}: {error}; see that no other program has locked it, that there is space "
                "and that it may be written to"
            ) from error
        raise StoreError(f"{name} is damaged ({error}); {remedy}") from error


def close_whole(database: sqlite3.Connection) -> None:
    """Close with everything in the file itself, which SQLite leaves undone where two close at once."""
    with suppress(sqlite3.Error):
        database.execute("PRAGMA busy_timeout = 1000")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def tables_of(database: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Everything that a database declares by a statement: type, name and statement."""
    return database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()


def layout_of(database: sqlite3.Connection) -> tuple[int, int]:
    """Which program made a database, and in which layout."""
    (owner,) = database.execute("PRAGMA application_id").fetchone()
    (schema,) = database.execute("PRAGMA user_version").fetchone()
    return owner, schema


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction, started when no other process writes."""
    database.execute("BEGIN IMMEDIATE")
    with database:
        yield


def write_ahead(database: sqlite3.Connection) -> None:
    """Allow readers beside a writer; SQLite does not wait for locks when switching to WAL, so we do."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
