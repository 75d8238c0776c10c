"""NLI verdicts on disk: one SQLite file shared by methods, runs and processes (spec section 5, point 6).

A verdict is a label, not a score, so that a later run decides exactly as the first did. The file is opened
for each look-up and closed again, so that forked workers share no connection. One idle connection stays open:
closing the last one would write the whole log back into the file and wait for the disk.
"""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from semcal.engine.equivalence import Deciding, Equivalence, Triple, address_of
from semcal.errors import StoreError, shown

#: Identify our files ("smcl" in ASCII) and their layout.
APPLICATION_ID = 0x736D636C
SCHEMA = 1
#: Seconds to wait for other processes that write.
LOCK_TIMEOUT = 60.0
#: Triples looked up by one statement; SQLite allows at least 999 parameters.
CHUNK = 300
#: Verdicts of a server that are written by one transaction.
KEPT_TOGETHER = 32
#: Errors of SQLite that do not mean a damaged file; all others do.
UNUSABLE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}

_CREATE = """\
CREATE TABLE verdicts (
    model TEXT NOT NULL, question TEXT NOT NULL, premise TEXT NOT NULL, hypothesis TEXT NOT NULL,
    entails INTEGER NOT NULL CHECK (entails IN (0, 1)),
    PRIMARY KEY (model, question, premise, hypothesis)
) WITHOUT ROWID
"""
_FIND = """
WITH wanted (question, premise, hypothesis) AS (VALUES {rows})
SELECT question, premise, hypothesis, entails FROM wanted JOIN verdicts USING (question, premise, hypothesis)
WHERE model = ?
"""


class CachedEquivalence:
    """An equivalence that looks verdicts up in a file, and adds those that were missing.

    `inner` decides what the file does not hold; its name and revision are part of every key. The file and its
    folder are made where there are none. StoreError if it is damaged, no verdict cache, or cannot be written.
    """

    def __init__(self, inner: Equivalence, path: str | Path) -> None:
        self.inner = inner
        self.path = Path(path)
        self.hits, self.calls = 0, 0  # verdicts so far that the file held, and that `inner` decided
        self.address = address_of(inner)
        self.symmetric = getattr(inner, "symmetric", False)
        self._key = f"{inner.name}@{inner.revision}"
        self._prepare()
        self._stay_open()

    @property
    def name(self) -> str:
        """The name of the equivalence that decides."""
        return self.inner.name

    @property
    def revision(self) -> str:
        """The revision of the equivalence that decides."""
        return self.inner.revision

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each (question, premise, hypothesis) whether the premise entails the hypothesis."""
        known = self._find(triples)
        missing = [triple for triple in dict.fromkeys(triples) if triple not in known]
        if missing:
            known |= self._decide(missing) | self._find(missing)  # another process may have been first
        self.hits += len(triples) - len(missing)
        self.calls += len(missing)
        return [known[triple] for triple in triples]

    def _decide(self, triples: Sequence[Triple]) -> dict[Triple, bool]:
        """Ask `inner`. Verdicts of a server are kept as they come, whatever happens to the others."""
        if not isinstance(self.inner, Deciding):
            found = dict(zip(triples, self.inner.entails(triples), strict=True))
            self._add(found)
            return found
        waiting: dict[Triple, bool] = {}

        def keep(triple: Triple, verdict: bool) -> None:
            waiting[triple] = verdict
            if len(waiting) >= KEPT_TOGETHER:
                self._add(waiting)
                waiting.clear()

        try:
            return self.inner.decide(triples, keep)
        finally:
            self._add(waiting)

    def _find(self, triples: Sequence[Triple]) -> dict[Triple, bool]:
        known = {}
        with self._open() as database:
            for start in range(0, len(triples), CHUNK):
                chunk = triples[start : start + CHUNK]
                statement = _FIND.format(rows=", ".join(["(?, ?, ?)"] * len(chunk)))
                values = [text for triple in chunk for text in triple]
                for question, premise, hypothesis, entails in database.execute(
                    statement, [*values, self._key]
                ):
                    if entails not in (0, 1):
                        raise sqlite3.DatabaseError(f"a verdict is {shown(entails)}, neither 0 nor 1")
                    known[question, premise, hypothesis] = bool(entails)
        return known

    def _add(self, found: dict[Triple, bool]) -> None:
        rows = [(self._key, *triple, int(entails)) for triple, entails in found.items()]
        with self._open() as database, _writing(database):
            database.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?)", rows)

    def _prepare(self) -> None:
        """Create the file if there is none, and check that it is a whole verdict cache."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder of the verdict cache {self.path}: {error}") from error
        with self._open() as database:
            made = not _tables(database)
            if not made:
                self._check(database)
            _write_ahead(database)
            if made:
                with _writing(database):
                    if not _tables(database):  # no other process was faster
                        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                        database.execute(f"PRAGMA user_version = {SCHEMA}")
                        database.execute(_CREATE)
                self._check(database)

    def _stay_open(self) -> None:
        """Keep an idle connection as long as this object exists."""
        with self._as_store_error():
            anchor = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT, check_same_thread=False)
            weakref.finalize(self, _close, anchor)
            anchor.execute("PRAGMA user_version").fetchone()  # opens the file

    def _check(self, database: sqlite3.Connection) -> None:
        (owner,) = database.execute("PRAGMA application_id").fetchone()
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        if owner != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is a database of another program; give the cache a file of its own"
            )
        if schema != SCHEMA:
            raise StoreError(
                f"{self.path} has layout {schema}, this version reads {SCHEMA}; give the cache a new file"
            )
        if _tables(database) != [("table", "verdicts", _CREATE)]:
            raise sqlite3.DatabaseError("its table is not the one that was made")
        (state,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(" ".join(state.split()))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one look-up, its errors raised as StoreError."""
        with self._as_store_error():
            database = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT, isolation_level=None)
            try:
                # a power cut may cost the last verdicts, not the file
                database.execute("PRAGMA synchronous = NORMAL")
                yield database
            finally:
                database.close()

    @contextmanager
    def _as_store_error(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for texts that are not UTF-8
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in UNUSABLE:
                raise StoreError(
                    f"cannot use the verdict cache {self.path}: {error}; see that there is space and that it "
                    "may be written to"
                ) from error
            other = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB
            remedy = "give the cache another file, or if this is one delete it" if other else "delete it"
            raise StoreError(
                f"the verdict cache {self.path} is damaged ({error}); {remedy}, "
                "and its verdicts will be computed anew"
            ) from error


def _close(database: sqlite3.Connection) -> None:
    """Close with all verdicts in the file itself, which SQLite leaves undone where two close at once."""
    with suppress(sqlite3.Error):
        database.execute("PRAGMA busy_timeout = 1000")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def _tables(database: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Everything that a database declares: type, name and statement."""
    return database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()


@contextmanager
def _writing(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction, started when no other process writes."""
    database.execute("BEGIN IMMEDIATE")
    with database:
        yield


def _write_ahead(database: sqlite3.Connection) -> None:
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
