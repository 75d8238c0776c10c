"""The log of replies and of their labels: one SQLite file, in WAL mode.

A reply is in the file before its client receives it, so a kill loses no reply (a power cut may lose the
last one). Labels are stored in their order of arrival, which monitoring reads. Only the first label of equal
answers to equal questions counts, because later labels are not independent evidence. The log keeps all
labels: if the operator strikes the first, the next one counts. Times are only displayed; the order of rows
does not depend on clocks.
"""

from __future__ import annotations

import heapq
import json
import math
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from semcal import databases
from semcal.errors import InputError
from semcal.files import dumps

#: Seconds to wait for another program that has locked the file; until the next success, no other write waits.
PATIENCE = 1.0
#: Number of rows per read or copy, and the cache of such reads in KiB: ids are in random order.
PAGE, CACHE = 1000, 65_536
LAYOUT_NUMBER = 2

_TABLES = {
    "replies": """\
CREATE TABLE replies (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, time REAL NOT NULL, template TEXT NOT NULL,
    features TEXT NOT NULL, answer TEXT, probability REAL, threshold REAL, abstained INTEGER NOT NULL,
    route TEXT NOT NULL, cost REAL, audited INTEGER NOT NULL, texts TEXT, calibration TEXT NOT NULL,
    content INTEGER
)
""",
    "labels": """\
CREATE TABLE labels (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL REFERENCES replies (id), correct INTEGER NOT NULL,
    time REAL NOT NULL, key TEXT NOT NULL, struck REAL, subject TEXT NOT NULL, audited INTEGER NOT NULL,
    UNIQUE (id, correct, key)
)
""",
    # finds the labels of one subject quickly
    "subjects": "CREATE INDEX subjects ON labels (subject, number) WHERE struck IS NULL",
    "audits": "CREATE INDEX audits ON labels (subject, audited, number) WHERE struck IS NULL",
    "sides": "CREATE INDEX sides ON labels (subject, correct) WHERE struck IS NULL",
    "strikes": """\
CREATE TABLE strikes (number INTEGER PRIMARY KEY, time REAL NOT NULL, labels INTEGER NOT NULL)
""",
}
_LAYOUT = databases.DatabaseLayout(
    "log of replies",
    "give the FILE of semcal serve --log FILE, or a new file",
    owner=0x736D6C67,  # "smlg" in ASCII
    schema=LAYOUT_NUMBER,
    tables=_TABLES,
)
#: Rules for a row that occurs in several logs: a label that is struck in one of them is struck.
_MERGED = {
    "replies": "DO NOTHING",
    "labels": "(id, correct, key) DO UPDATE SET struck = ifnull(struck, excluded.struck)",
}
#: A label belongs to a reply, and to all replies of one calibration with an equal question and answer.
_LABEL = """\
INSERT OR IGNORE INTO labels (id, correct, time, key, subject, audited)
SELECT id, ?, ?, ?, CASE WHEN content IS NULL THEN id ELSE calibration || ' ' || content END, audited
FROM replies WHERE id = ?
"""
_RIVALS = "SELECT 1 FROM labels AS rival WHERE rival.subject = labels.subject AND rival.struck IS NULL"
_COUNTS = f"labels.struck IS NULL AND NOT EXISTS ({_RIVALS} AND rival.number < labels.number)"
_COUNTS_AUDITED = (
    "labels.audited = 1 AND labels.struck IS NULL "
    f"AND NOT EXISTS ({_RIVALS} AND rival.audited = 1 AND rival.number < labels.number)"
)
_CONFLICTS = f"labels.struck IS NULL AND EXISTS ({_RIVALS} AND rival.correct = 1 - labels.correct)"
_COUNTING = f"""\
SELECT id, number, correct FROM labels
WHERE id IN (SELECT value FROM json_each(?)) AND key = ? AND {_COUNTS} ORDER BY number
"""
#: Condition for the replies of some calibrations.
_BY = "(:calibrations IS NULL OR calibration IN (SELECT value FROM json_each(:calibrations)))"
_LABELLED = """\
SELECT labels.number, replies.id, probability, threshold, abstained, correct, replies.audited, labels.number
FROM labels JOIN replies ON replies.id = labels.id
WHERE labels.number > :last AND {by} AND {counts} ORDER BY labels.number LIMIT :page
"""
_N_LABELS = f"SELECT count(*) FROM labels JOIN replies ON replies.id = labels.id WHERE {_BY} AND {_COUNTS}"
_PROBABILITIES = f"""\
SELECT number, number, probability FROM replies
WHERE number > :last AND {_BY} AND probability IS NOT NULL ORDER BY number LIMIT :page
"""
#: Condition for the labels of a `LabelChoice`.
_CHOSEN = """\
(:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
AND (:key IS NULL OR key = :key) AND time >= :since AND time < :until
"""
_LISTED = f"""\
SELECT labels.number, id, time, key, correct, {_COUNTS}, {_CONFLICTS}, struck
FROM labels WHERE labels.number > :last AND {_CHOSEN} ORDER BY labels.number LIMIT :page
"""
_STRIKE = f"""\
UPDATE labels SET struck = :struck WHERE (struck IS NULL) = (:struck IS NOT NULL) AND {_CHOSEN}
"""


@dataclass(frozen=True)
class Reply:
    """The log entry of one reply."""

    id: str  # for labels
    time: float  # seconds since 1970 by the clock of the machine
    template: str  # hash of the prompt's template
    features: Mapping[str, float | None]  # of the calibration
    answer: str | None  # normal form; None if the log keeps no answers
    probability: float | None  # None if the calibration does not cover the request
    threshold: float | None  # of the decision
    abstained: bool
    route: str  # the model that answered
    cost: float | None = None  # by the prices of the model server; None if unknown
    audited: bool = False  # whether it was selected for a label
    texts: Mapping[str, Any] | None = None  # question and samples, with --log-texts
    calibration: str = ""  # id of the calibration
    content: int | None = None  # hash of question and answer; None if no other reply equals this one


_COLUMNS = [column.name for column in fields(Reply)]
_ADD = f"INSERT INTO replies ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"
_REPLY = f"SELECT {', '.join(_COLUMNS)} FROM replies WHERE id = :id"


@dataclass(frozen=True)
class LabelledReply:
    """The data of a reply and its label for monitoring."""

    id: str
    probability: float | None
    threshold: float | None
    abstained: bool
    correct: bool
    audited: bool
    number: int = field(default=0, compare=False)  # place of the label in the log


@dataclass(frozen=True)
class LoggedLabel:
    """One label in the operator's list."""

    id: str  # of the reply
    time: float  # seconds since 1970
    key: str  # beginning of the hash of the sender's key; "" without keys
    correct: bool
    counts: bool  # whether it is the first label of an equal question and answer that is not struck
    conflicts: bool  # whether another label of this question and answer has the opposite verdict
    struck: bool


@dataclass(frozen=True)
class LabelChoice:
    """Conditions that a chosen label fulfills; by default all labels are chosen."""

    ids: Sequence[str] | None = None  # of replies
    key: str | None = None
    since: float = 0.0  # seconds since 1970
    until: float = math.inf

    @property
    def values(self) -> dict[str, Any]:
        """Return the parameters of a statement with `_CHOSEN`."""
        return {**vars(self), "ids": None if self.ids is None else dumps(list(self.ids))}


class ReplyLog:
    """Replies and their labels in a file, which is created if missing; safe for threads.

    With `read_only`, the file does not change, and InputError is raised if it is missing. Processes of one
    machine may share the file. StoreError if it is damaged, not a log of replies, or cannot be written.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path = Path(path)
        self._lock = threading.Lock()
        self._is_locked = False  # by another program, when this one last wrote
        if not read_only:
            databases.make_folder(path, "the log")
        elif not path.is_file():
            raise InputError(f"{path}: the log does not exist. Give the FILE of semcal serve --log FILE.")
        elif not databases.is_database(path):
            raise _LAYOUT.refusal(path)
        with self._as_store_error():
            self._connect = (
                databases.reader(path) if read_only else partial(databases.connect, path, PATIENCE)
            )
            self._database = self._connect() if read_only else databases.connect(path)
            self._close = weakref.finalize(self, databases.close_whole, self._database)
            (databases.check if read_only else databases.prepare)(self._database, path, _LAYOUT)

    def close(self) -> None:
        """Move all data into the file itself and close it."""
        with self._lock:
            self._close()

    # ---- Replies

    def add(self, reply: Reply) -> None:
        """Add a reply; StoreError if that fails."""
        texts = None if reply.texts is None else dumps(dict(reply.texts))
        values = vars(reply) | {"features": dumps(dict(reply.features)), "texts": texts}
        with self._writing() as database:
            database.execute(_ADD, values)

    def merge(self, paths: Sequence[Path], *, without: Sequence[str] = ()) -> None:
        """Add the rows of other logs, `without` some columns, ordered by time and then by log."""
        with self._lock, self._as_store_error():
            for table, rule in _MERGED.items():
                names = [name for _, name, *_ in self._database.execute(f"PRAGMA table_info({table})")][1:]
                insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
                columns = ["NULL" if name in without else name for name in names]
                rows = heapq.merge(*(_in_order(path, table, columns) for path in paths), key=itemgetter(0))
                while some := [row for _, row in islice(rows, PAGE)]:
                    with databases.transaction(self._database):
                        self._database.executemany(f"{insert} ON CONFLICT {rule}", some)

    def reply(self, id: str) -> Reply | None:
        """Return the reply with this id, None if missing."""
        found = self.rows(_REPLY, {"id": id})
        if not found:
            return None
        values = dict(zip(_COLUMNS, found[0]))
        values |= {name: bool(values[name]) for name in ("abstained", "audited")}
        values |= {name: json.loads(values[name]) for name in ("features", "texts") if values[name]}
        return Reply(**values)

    def probabilities(self, calibrations: Sequence[str] | None = None) -> Iterator[tuple[int, float]]:
        """Yield place and probability of replies of these calibrations (default: all), in order."""
        yield from self._pages(_PROBABILITIES, _of(calibrations))

    @property
    def n_routes(self) -> int:
        """The number of models that gave replies."""
        return int(self.rows("SELECT count(DISTINCT route) FROM replies")[0][0])

    def calibrations(self) -> list[str]:
        """Return the ids of all calibrations of replies."""
        return [name for (name,) in self.rows("SELECT DISTINCT calibration FROM replies ORDER BY 1")]

    def n_labels(self, calibrations: Sequence[str] | None = None) -> int:
        """Return the number of labels of these calibrations (default: all) that count."""
        return int(self.rows(_N_LABELS, _of(calibrations))[0][0])

    # ---- Labels

    def label(self, labels: Mapping[str, bool], key: str = "") -> dict[str, bool]:
        """Add labels (true for a correct answer), all of them or none.

        `key` identifies the sender. A key can label a reply once as correct and once as wrong; repetitions
        and unknown ids are ignored. Return the ids whose label counts, with true for a new label.
        """
        with self._writing() as database:
            (last,) = database.execute("SELECT ifnull(max(number), 0) FROM labels").fetchone()
            values = [(int(correct), time.time(), key, id) for id, correct in labels.items()]
            database.executemany(_LABEL, values)
            counting = database.execute(_COUNTING, (dumps(list(labels)), key)).fetchall()
        return {id: number > last for id, number, correct in counting if correct == labels[id]}

    def labels(self, choice: LabelChoice | None = None) -> Iterator[LoggedLabel]:
        """Yield the chosen labels, struck or not, in order of arrival."""
        values = (choice or LabelChoice()).values
        for id, at, key, correct, counts, conflicts, struck in self._pages(_LISTED, values):
            yield LoggedLabel(id, at, key, bool(correct), bool(counts), bool(conflicts), struck is not None)

    def labelled(
        self, calibrations: Sequence[str] | None = None, *, audited: bool = False, after: int = 0
    ) -> Iterator[LabelledReply]:
        """Yield the replies of these calibrations (default: all) whose label counts, in order of labels.

        With `audited`, only audited replies are used, and the first audited label of a subject counts. Only
        labels with a place `after` the given one are used.
        """
        statement = _LABELLED.format(by=_BY, counts=_COUNTS_AUDITED if audited else _COUNTS)
        for id, p, threshold, *flags, number in self._pages(statement, _of(calibrations), after):
            abstained, correct, is_audited = map(bool, flags)
            yield LabelledReply(id, p, threshold, abstained, correct, is_audited, number)

    def strike(self, choice: LabelChoice, *, restore: bool = False) -> int:
        """Strike the chosen labels, or restore struck labels, and return their number."""
        now = time.time()
        with self._writing() as database:
            count = database.execute(_STRIKE, {**choice.values, "struck": None if restore else now}).rowcount
            database.execute("INSERT INTO strikes (time, labels) VALUES (?, ?)", (now, count))
        return count

    @property
    def n_strikes(self) -> int:
        """The number of calls of `strike`, by any process."""
        return int(self.rows("SELECT ifnull(max(number), 0) FROM strikes")[0][0])

    # ---- The file

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a reading statement."""
        with self._as_store_error(), closing(self._connect()) as database:
            return database.execute(statement, values or {}).fetchall()

    def _pages(self, statement: str, values: Mapping[str, Any], last: int = 0) -> Iterator[Any]:
        """Yield rows with a number above `last`, in order, without this number."""
        with self._as_store_error(), closing(self._connect()) as database:
            database.execute(f"PRAGMA cache_size = -{CACHE}")
            while True:
                page = database.execute(statement, {**values, "last": last, "page": PAGE}).fetchall()
                for row in page:
                    yield row[1:]
                if len(page) < PAGE:
                    return
                last = page[-1][0]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._as_store_error():
            patience = 0 if self._is_locked else round(1000 * PATIENCE)
            self._database.execute(f"PRAGMA busy_timeout = {patience}")
            try:
                with databases.transaction(self._database):
                    yield self._database
            except sqlite3.Error as error:
                self._is_locked = databases.is_locked(error)
                raise
            self._is_locked = False

    def _as_store_error(self) -> AbstractContextManager[None]:
        return databases.as_store_errors(f"the log {self.path}", "give a new file, or a copy from before")


def _of(calibrations: Sequence[str] | None) -> dict[str, str | None]:
    return {"calibrations": None if calibrations is None else dumps(list(calibrations))}


def _in_order(path: Path, table: str, columns: Sequence[str]) -> Iterator[tuple[float, tuple[Any, ...]]]:
    """Yield the rows of a log in order, each with a time that never decreases."""
    at, query = -math.inf, f"SELECT time, {', '.join(columns)} FROM {table} ORDER BY number"
    with (
        databases.as_store_errors(f"the log {path}", "give a copy from before"),
        closing(databases.reader(path)()) as database,
    ):
        for time_of, *row in database.execute(query):
            at = max(at, time_of)
            yield at, tuple(row)


@contextmanager
def reading_logs(paths: Sequence[Path]) -> Iterator[ReplyLog]:
    """Yield a log; if several are given, yield a temporary log with all of their rows, without texts.

    Replies and labels are in order of time, and those of one log keep their order. A label may be in another
    log than its reply. Errors are those of `ReplyLog`.
    """
    first, *others = dict.fromkeys(paths)
    if not others:
        with closing(ReplyLog(first, read_only=True)) as log:
            yield log
        return
    for path in (first, *others):
        ReplyLog(path, read_only=True).close()
    with (
        TemporaryDirectory(prefix="semcal-") as folder,
        closing(ReplyLog(Path(folder) / "logs.sqlite")) as log,
    ):
        log.merge([first, *others], without=("texts",))
        yield log
