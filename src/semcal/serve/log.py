"""The log of what was answered, and of which answers proved right: one SQLite file, in WAL.

A reply is in the file before its client has it, so that a kill loses none (a power cut may lose the last).
Labels stand in their order of arrival, which is what a watch on the promise reads. Of the labels of equal
answers to equal questions the first counts, for the others are no independent evidence; they are kept, and
where the operator strikes the first, the next one counts. Times are for people alone: nothing is ordered by
them, so that a clock that is put back changes nothing.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from semcal import databases
from semcal.databases import as_store_errors, connect, transaction
from semcal.files import dumps

#: Seconds to wait once for another program that has locked the file; until a write works no other waits.
PATIENCE = 1.0
#: Rows that are read at a time.
PAGE = 1000

_REPLIES = """\
CREATE TABLE replies (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, time REAL NOT NULL, template TEXT NOT NULL,
    features TEXT NOT NULL, answer TEXT, probability REAL, threshold REAL, abstained INTEGER NOT NULL,
    route TEXT NOT NULL, cost REAL, audited INTEGER NOT NULL, texts TEXT, calibration TEXT NOT NULL,
    content INTEGER
)
"""
_LABELS = """\
CREATE TABLE labels (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL REFERENCES replies (id), correct INTEGER NOT NULL,
    time REAL NOT NULL, key TEXT NOT NULL, struck REAL, subject TEXT NOT NULL, audited INTEGER NOT NULL,
    UNIQUE (id, correct, key)
)
"""
#: What makes it quick to find the labels of one subject, however many there are.
_INDEXES = {
    name: f"CREATE INDEX {name} ON labels ({columns}) WHERE struck IS NULL"
    for name, columns in (
        ("subjects", "subject, number"),
        ("audits", "subject, audited, number"),
        ("sides", "subject, correct"),
    )
}
_STRIKES = "CREATE TABLE strikes (number INTEGER PRIMARY KEY, time REAL NOT NULL, labels INTEGER NOT NULL)"
_LAYOUT = databases.DatabaseLayout(
    "log",
    databases.REPLY_LOG,
    databases.REPLY_LOG_SCHEMA,
    {"replies": _REPLIES, "labels": _LABELS, **_INDEXES, "strikes": _STRIKES},
)
#: A label is about a reply, and about all replies by one calibration with its question and answer.
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
_LABELLED = """\
SELECT labels.number, replies.id, probability, threshold, abstained, correct, replies.audited, labels.number
FROM labels JOIN replies ON replies.id = labels.id
WHERE labels.number > :last AND (:calibrations IS NULL
    OR calibration IN (SELECT value FROM json_each(:calibrations)))
AND {} ORDER BY labels.number LIMIT :page
"""
_COUNTING = f"""\
SELECT id, number, correct FROM labels
WHERE id IN (SELECT value FROM json_each(?)) AND key = ? AND {_COUNTS} ORDER BY number
"""
#: The labels that an operator chooses.
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
_PROBABILITIES = """\
SELECT number, probability FROM replies
WHERE number > :last AND (:calibrations IS NULL
    OR calibration IN (SELECT value FROM json_each(:calibrations)))
AND probability IS NOT NULL ORDER BY number LIMIT :page
"""


@dataclass(frozen=True)
class Reply:
    """What is kept of one reply."""

    id: str  # that of the reply, by which it is labelled
    time: float  # seconds since 1970 by the clock of the machine
    template: str  # the hash of the prompt's template
    features: Mapping[str, float | None]  # what the calibration read of the answer
    answer: str | None  # its normal form; None where answers are not kept
    probability: float | None  # None where the calibration does not cover the request
    threshold: float | None  # the one that decided
    abstained: bool
    route: str  # the model that answered
    cost: float | None = None  # by the prices of the model server; None where they are not known
    audited: bool = False  # whether it is to be labelled in any case
    texts: Mapping[str, Any] | None = None  # the question and the draws, with --log-texts
    calibration: str = ""  # the id of the one that the probability is by
    content: int | None = None  # hash of question and answer; None where no other reply equals this one


@dataclass(frozen=True)
class LabelledReply:
    """What a watch reads of a reply and its label."""

    id: str
    probability: float | None
    threshold: float | None
    abstained: bool
    correct: bool
    audited: bool
    number: int = field(default=0, compare=False)  # the place of the label in its log


@dataclass(frozen=True)
class LoggedLabel:
    """One label, as an operator sees it."""

    id: str  # that of the reply
    time: float  # seconds since 1970
    key: str  # the beginning of the hash of the key that sent it; "" without keys
    correct: bool
    counts: bool  # whether it is the first of an equal question and answer that is not struck
    conflicts: bool  # whether another one of them says otherwise
    struck: bool


@dataclass(frozen=True)
class LabelChoice:
    """The labels that fulfill all of these conditions; by default all labels."""

    ids: Sequence[str] | None = None  # of replies
    key: str | None = None
    since: float = 0.0  # seconds since 1970
    until: float = math.inf

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of a statement with `_CHOSEN`."""
        return {**vars(self), "ids": None if self.ids is None else dumps(list(self.ids))}


class ReplyLog:
    """Replies and their labels in a file, which is made where there is none; of all threads.

    With `read_only` nothing of the file is changed, and there must be one. Processes of one machine may share
    the file. StoreError if it is damaged, no log of replies, or cannot be written.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> log = ReplyLog(Path(mkdtemp()) / "log.sqlite")
    >>> log.add(Reply("a", 0.0, "f00", {"E-SC": 1.0}, "paris", 0.9, 0.5, False, "model"))
    >>> log.label({"a": True, "b": False}), log.label({"a": True})
    ({'a': True}, {'a': False})
    >>> list(log.labelled()), list(log.probabilities())
    ([LabelledReply(id='a', probability=0.9, threshold=0.5, abstained=False, correct=True, ...)], [0.9])
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._connect = databases.reader(self.path) if read_only else partial(connect, self.path, PATIENCE)
        self._lock = threading.Lock()
        self._is_locked = False  # by another program, when this one last wrote
        if not read_only:
            databases.make_folder(self.path, "the log")
        with self._as_store_error():
            self._database = self._connect() if read_only else connect(self.path)
            self._close = weakref.finalize(self, databases.close_whole, self._database)
            (databases.check if read_only else databases.prepare)(self._database, self.path, _LAYOUT)

    def add(self, reply: Reply) -> None:
        """Write a reply down; StoreError if that cannot be done."""
        values = vars(reply) | {
            "features": dumps(dict(reply.features)),
            "texts": None if reply.texts is None else dumps(dict(reply.texts)),
        }
        columns = ", ".join(values)
        places = ", ".join(f":{name}" for name in values)
        with self._writing() as database:
            database.execute(f"INSERT INTO replies ({columns}) VALUES ({places})", values)

    def take_over(self, path: Path) -> None:
        """Add the replies and labels of another log that this one lacks."""
        with self._lock, self._as_store_error():
            for table in ("replies", "labels"):
                databases.copy_rows(self._database, table, [path])

    def label(self, labels: Mapping[str, bool], key: str = "") -> dict[str, bool]:
        """Write down, all of them or none, which answers proved right.

        `key` says who labels. One key labels a reply once each way; what it sends again is passed over, and
        so is an id that no reply has. Return the ids whose label counts, and whether it is new.
        """
        with self._writing() as database:
            (last,) = database.execute("SELECT ifnull(max(number), 0) FROM labels").fetchone()
            values = [(int(correct), time.time(), key, id) for id, correct in labels.items()]
            database.executemany(_LABEL, values)
            counting = database.execute(_COUNTING, (dumps(list(labels)), key)).fetchall()
        return {id: number > last for id, number, correct in counting if correct == labels[id]}

    def labels(self, choice: LabelChoice | None = None) -> Iterator[LoggedLabel]:
        """The chosen labels in the order in which they came, struck ones too."""
        values = (choice or LabelChoice()).values
        for id, at, key, correct, counts, conflicts, struck in self._pages(_LISTED, values):
            yield LoggedLabel(id, at, key, bool(correct), bool(counts), bool(conflicts), struck is not None)

    def strike(self, choice: LabelChoice, *, restore: bool = False) -> int:
        """Strike the chosen labels, or restore struck ones; return how many."""
        now = time.time()
        with self._writing() as database:
            count = database.execute(_STRIKE, {**choice.values, "struck": None if restore else now}).rowcount
            database.execute("INSERT INTO strikes (time, labels) VALUES (?, ?)", (now, count))
        return count

    @property
    def n_strikes(self) -> int:
        """The number of times that labels were struck or restored, by any process."""
        with self._reading() as database:
            return int(database.execute("SELECT ifnull(max(number), 0) FROM strikes").fetchone()[0])

    def reply(self, id: str) -> Reply | None:
        """The reply with an id; None if there is none."""
        with self._reading() as database:
            names = list(Reply.__dataclass_fields__)
            row = database.execute(f"SELECT {', '.join(names)} FROM replies WHERE id = ?", [id]).fetchone()
        if row is None:
            return None
        values = dict(zip(names, row))
        values |= {name: bool(values[name]) for name in ("abstained", "audited")}
        values |= {name: json.loads(values[name]) for name in ("features", "texts") if values[name]}
        return Reply(**values)

    def calibrations(self) -> dict[str, int]:
        """The ids of all calibrations that answered, and how many labels of their replies count."""
        joined = f"replies LEFT JOIN labels ON replies.id = labels.id AND {_COUNTS}"
        with self._reading() as database:
            query = f"SELECT calibration, count(labels.id) FROM {joined} GROUP BY calibration"
            return dict(database.execute(query).fetchall())

    def labelled(
        self, calibrations: Sequence[str] | None = None, *, audited: bool = False, after: int = 0
    ) -> Iterator[LabelledReply]:
        """The replies by these calibrations, by default all, whose label counts, in the order of labels.

        With `audited` those of audited replies, of which the first of a subject counts; only those whose
        label has a place `after` this one.
        """
        statement = _LABELLED.format(_COUNTS_AUDITED if audited else _COUNTS)
        for id, p, threshold, *flags, number in self._pages(statement, _of(calibrations), after):
            abstained, correct, is_audited = map(bool, flags)
            yield LabelledReply(id, p, threshold, abstained, correct, is_audited, number)

    def probabilities(self, calibrations: Sequence[str] | None = None) -> Iterator[float]:
        """The probabilities by these calibrations, by default all, in the order of the replies."""
        for (probability,) in self._pages(_PROBABILITIES, _of(calibrations)):
            yield probability

    @property
    def n_routes(self) -> int:
        """How many models gave replies."""
        with self._reading() as database:
            return int(database.execute("SELECT count(DISTINCT route) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Close with everything in the file itself."""
        with self._lock:
            self._close()

    def _pages(self, statement: str, values: Mapping[str, Any], last: int = 0) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement, without the number that they are ordered by, and which is above `last`."""
        while True:
            with self._reading() as database:
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
                with transaction(self._database):
                    yield self._database
            except sqlite3.Error as error:
                self._is_locked = databases.is_locked(error)
                raise
            self._is_locked = False

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._as_store_error(), closing(self._connect()) as database:
            yield database

    def _as_store_error(self) -> AbstractContextManager[None]:
        return as_store_errors(f"the log {self.path}", "give the log a new file")


def _of(calibrations: Sequence[str] | None) -> dict[str, str | None]:
    """The parameter of statements about some calibrations, None for all."""
    return {"calibrations": None if calibrations is None else dumps(list(calibrations))}
