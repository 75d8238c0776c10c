"""Entailment between answers: the protocol, exact match, the embedded model, and verdicts on disk.

An equivalence only decides *directed* entailment between normal forms (spec section 5, 4). The module
`clustering` applies rules (`semcal.meaning.rules`), equality of normal forms, both directions and linkage.

`EmbeddedEquivalence` is a small cross-encoder for real text that needs no PyTorch: MiniLM with six layers,
trained on pairs of answers, run by ONNX Runtime in integers of 8 bits. It reads
`[CLS] question [SEP] answer [SEP] other answer [SEP]` once, in sorted order of the answers, so that both
directions have the same verdict. A much smaller network maps each answer to a vector: two answers without a
common word and with distant vectors differ, and their pair is not read. Both networks read one text at a
time, so that a verdict does not depend on other pairs.

`CachedEquivalence` stores verdicts in one SQLite file that methods, runs and processes share (section 5, 6).
Each verdict has its margin, so that a later run joins clusters exactly as the first run. The file is opened
for each look-up and closed again, so that forked workers share no connection. One idle connection stays open,
because closing the last connection would write the whole log back into the file and wait for the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from semcal.databases import (
    LOCK_TIMEOUT,
    DatabaseLayout,
    as_store_errors,
    close_whole,
    connect,
    make_folder,
    prepare,
    transaction,
)
from semcal.errors import ModelError, SemcalWarning, UsageError, shown
from semcal.hub_names import NLI_MODEL
from semcal.registry import Catalogue
from semcal.text.normal_form import TEXT_RULES, asks_for_code, code_form, letter_form, normal_form

#: The name of the embedded model, which is the default.
DEFAULT = "default"
#: (question, premise answer, hypothesis answer); the answers are normal forms.
Triple = tuple[str, str, str]


class Equivalence(Protocol):
    """Directed entailment between two answers to one question.

    Every implementation guarantees three properties: verdicts are in the order of the triples; a verdict
    depends only on its triple, not on the other triples of the call; and equal name and revision imply equal
    verdicts, because they are the key of verdicts on disk.
    """

    @property
    def name(self) -> str:
        """The id or directory name of the model, or another name such as "exact"."""

    @property
    def revision(self) -> str:
        """The commit or the hash of the model; another revision may have other verdicts."""

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each (question, premise, hypothesis) True if the premise entails the hypothesis."""


@runtime_checkable
class Scoring(Equivalence, Protocol):
    """An equivalence whose verdicts have margins."""

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return a margin for each triple: > 0 if the premise entails the hypothesis, larger if more certain.

        Clusters are joined by descending margin. Margins are rounded to three decimals, so that the order
        does not depend on the batch of a triple.
        """


@runtime_checkable
class Deciding(Equivalence, Protocol):
    """An equivalence that passes on each verdict as soon as it is known."""

    def decide(self, triples: Sequence[Triple], keep: Callable[[Triple, bool], None]) -> dict[Triple, bool]:
        """Decide distinct triples; `keep` receives each verdict to store, in any thread."""


#: Margins of an equivalence without margins.
_MARGINS = {True: 1.0, False: -1.0}


def margins_by(equivalence: Equivalence, triples: Sequence[Triple]) -> list[float]:
    """Return the margin of each triple, 1 or −1 for an equivalence without margins."""
    if isinstance(equivalence, Scoring):
        return equivalence.margins(triples)
    return [_MARGINS[entailed] for entailed in equivalence.entails(triples)]


def rounded(margin: float) -> float:
    """Round a margin to three decimals; a positive one stays positive.

    >>> rounded(1.23456), rounded(0.0001), rounded(-0.0001)
    (1.235, 0.001, 0.0)
    """
    return max(round(margin, 3), 0.001) if margin > 0 else min(round(margin, 3), 0.0)


#: Prefix of the name of an equivalence of labels.
AMONG = "among:"
#: The name of exact equality of letters.
LETTER = "letter"


@dataclass(frozen=True)
class ExactMatch:
    """An equivalence without a model: answers mean the same if and only if their normal forms are equal.

    With `labels`, an answer that is not a label is invalid and counts as no answer. With `letter`, answers
    must be equal in Unicode NFC without outer blanks.

    >>> ExactMatch().entails([("Capital of Peru?", "lima", "lima"), ("Capital of Peru?", "lima", "cusco")])
    [True, False]
    >>> ExactMatch(("spam", "not spam")).form("Spam."), ExactMatch(("spam", "not spam")).form("I think so")
    ('spam', '')
    >>> ExactMatch(letter=True).form(" AB-12.")
    'AB-12.'
    """

    labels: tuple[str, ...] = ()
    revision: str = str(TEXT_RULES)
    letter: bool = False

    @property
    def name(self) -> str:
        """The name for `semcal.load_equivalence`: "exact", "letter" or "among:" with the labels."""
        return f"{AMONG}{','.join(self.labels)}" if self.labels else LETTER if self.letter else "exact"

    @cached_property
    def forms(self) -> frozenset[str]:
        """The forms of the labels."""
        form = code_form if asks_for_code("", self.labels) else normal_form
        return frozenset(map(form, self.labels))

    def form(self, text: str, question: str = "") -> str:
        """Return the form of an answer for comparisons; "" if it is not a label.

        If the question or the labels have codes, case, dots and signs count.
        """
        if self.letter:
            return letter_form(text)
        form = code_form(text) if asks_for_code(question, self.labels) else normal_form(text)
        return form if not self.labels or form in self.forms else ""

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each triple True if its answers are equal strings."""
        return [premise == hypothesis for _, premise, hypothesis in triples]

    @classmethod
    def among(cls, name: str) -> ExactMatch:
        """Return the equivalence of the labels in `name`; UsageError unless there are two or more, each once.

        >>> ExactMatch.among("among:spam, not spam").labels
        ('spam', 'not spam')
        """
        labels = tuple(label.strip() for label in name.removeprefix(AMONG).split(","))
        forms = cls(labels).forms
        if len(labels) < 2 or "" in forms or len(forms) < len(labels):
            raise UsageError(
                f"labels: got {shown(', '.join(labels))}. Pass two or more distinct labels, such as spam,ham"
            )
        return cls(labels)


@dataclass(frozen=True)
class NamedEquivalence:
    """An equivalence of another package that can be loaded by its name."""

    name: str
    load: Callable[[], Equivalence]  # returns an equivalence with this name


#: Registered equivalences by name; `semcal.load_equivalence` also loads the built-in ones.
EQUIVALENCES: Catalogue[NamedEquivalence] = Catalogue("equivalence")


def needs_no_model(name: object) -> bool:
    """Return whether a name denotes equality of forms, of any answers or of labels."""
    return name in ("exact", LETTER) or (isinstance(name, str) and name.startswith(AMONG))


def form_by(equivalence: Equivalence) -> Callable[[str], str]:
    """Return the function from an answer to the form that an equivalence compares."""
    return equivalence.form if isinstance(equivalence, ExactMatch) else normal_form


def count_invalid(equivalence: Equivalence, texts: Iterable[str]) -> int:
    """Return the number of answers that are not labels; 0 without labels."""
    if not isinstance(equivalence, ExactMatch) or not equivalence.labels:
        return 0
    return sum(not equivalence.form(text) for text in texts)


def address_of(equivalence: Equivalence) -> str:
    """Return the argument of `semcal.load_equivalence` for it; its name if it was created in memory."""
    return str(getattr(equivalence, "address", equivalence.name))


def is_same_equivalence(one: str, other: str) -> bool:
    """Return whether two addresses name the same equivalence; directories are compared by the last part."""
    named = any(needs_no_model(name) or name in NLI_MODEL.embedded for name in (one, other))
    return one == other or (not named and Path(one).name == Path(other).name)


def names_a_server(name: object) -> bool:
    """Return whether a name is that of a server: openai:URL#MODEL, or a URL without this prefix."""
    return isinstance(name, str) and name.startswith(("openai:", "http:", "https:"))


def side_of(question: str, answer: str) -> str:
    """Return the text of one side of a pair for a cross-encoder (spec section 5, point 4).

    >>> print(side_of(" Who? ", "ada"))
    Question: Who?
    Answer: ada
    >>> side_of("", "ada")
    'ada'
    """
    return f"Question: {question.strip()}\nAnswer: {answer}" if question else answer


class FakeEquivalence:
    """An equivalence from lists: groups of answers with the same meaning, and one-way entailments.

    The answers of a group entail each other for every question. The first answer of a pair in `entailments`
    entails the second. `asked` has every triple so far, in order.

    >>> fake = FakeEquivalence([{"nyc", "new york"}], entailments=[("soho", "nyc")])
    >>> fake.entails([("Where?", "nyc", "new york"), ("Where?", "soho", "nyc"), ("Where?", "nyc", "soho")])
    [True, True, False]
    >>> len(fake.asked)
    3
    """

    def __init__(
        self,
        groups: Iterable[Collection[str]] = (),
        *,
        entailments: Iterable[tuple[str, str]] = (),
        name: str = "fake",
    ) -> None:
        self._entailed = {(a, b) for group in map(set, groups) for a in group for b in group}
        self._entailed |= set(entailments)
        self.name = name
        content = json.dumps(sorted(self._entailed), sort_keys=True)
        self.revision = hashlib.sha256(content.encode()).hexdigest()[:12]
        self.asked: list[Triple] = []

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each (question, premise, hypothesis) True if the premise entails the hypothesis."""
        self.asked += triples
        return [a == b or (a, b) in self._entailed for _, a, b in triples]


#: Margin of answers with equal normal forms.
EQUAL = 10.0
#: Maximum words of an answer that can be compared by its vector.
FEW_WORDS = 30
_TRUNCATION = (
    "the embedded equivalence model reads at most {} tokens of a question and two answers: for longer texts "
    "the beginning of the question and the ends of the answers are cut"
)


def read_question(question: str) -> str:
    """Return a question as the model reads it: without capitals, question marks or multiple blanks.

    >>> read_question(" Who wrote  Hamlet? ")
    'who wrote hamlet'
    """
    return " ".join(question.lower().replace("?", " ").split())


def share_no_word(one: str, other: str) -> bool:
    """Return whether two short normal forms have no word in common.

    >>> share_no_word("new york city", "big apple"), share_no_word("lake como", "lake garda")
    (True, False)
    """
    first, second = one.split(), other.split()
    return max(len(first), len(second)) <= FEW_WORDS and set(first).isdisjoint(second)


class EmbeddedEquivalence:
    """The equivalence of the embedded model; verdicts are equal in both directions.

    `revision` is a hash of the files of the model. ModelError if they are missing or damaged.
    """

    name = address = DEFAULT
    symmetric = True

    def __init__(self, folder: Path | None = None) -> None:
        from semcal.hub_names import NLI_MODEL, locate  # slow: it imports the standard library's HTTP client

        opened = _opened(folder or Path(locate(DEFAULT, NLI_MODEL).source))
        self._pairs, self._answers, self._tokenizer, config, self.revision = opened
        self.threshold, self.near, self._longest = config
        self._start, self._end = self._tokenizer.encode("").ids  # [CLS] and [SEP]
        self._truncated = False

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each (question, answer, other answer) True if the answers mean the same."""
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return a margin for each (question, answer, other answer), above 0 if the answers mean the same.

        The margin is the logit minus the threshold in nats, rounded to three decimals. It is `EQUAL` for
        equal normal forms, and the cosine minus its limit for answers with distant vectors.
        """
        forms = {text: normal_form(text) for _, *pair in triples for text in pair}
        keys = [
            (read_question(question), min(forms[a], forms[b]), max(forms[a], forms[b]))
            for question, a, b in triples
        ]
        margins = {key: EQUAL for key in keys if key[1] == key[2]}
        apart = [key for key in dict.fromkeys(keys) if key not in margins and share_no_word(*key[1:])]
        answers = list(dict.fromkeys(form for key in apart for form in key[1:]))
        vectors = dict(zip(answers, self.vectors(answers), strict=True))
        for key in apart:
            beyond = float(vectors[key[1]] @ vectors[key[2]]) - self.near
            if beyond < 0:
                margins[key] = rounded(beyond)
        left = [key for key in dict.fromkeys(keys) if key not in margins]
        margins |= zip(left, (rounded(float(logit) - self.threshold) for logit in self.logits(left)))
        return [margins[key] for key in keys]

    def logits(self, pairs: Sequence[Triple]) -> NDArray[np.float32]:
        """Return the logit (n,) of each (question, normal form, other normal form), read in this order."""

        def read(encoded: tuple[list[int], int]) -> Any:
            ids, head = encoded
            segments = [int(place >= head) for place in range(len(ids))]
            (logit,) = self._pairs.run(None, {"ids": _row(ids), "segments": _row(segments)})
            return logit

        return np.concatenate([np.zeros(0, np.float32), *_each(read, self.encode(pairs))])

    def vectors(self, forms: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return the unit vector (d,) of each normal form."""

        def read(encoding: Any) -> Any:
            (vector,) = self._answers.run(None, {"ids": _row([self._start, *encoding.ids[:62], self._end])})
            return vector

        return _each(read, self._tokenizer.encode_batch_fast(list(forms), add_special_tokens=False))

    def encode(self, pairs: Sequence[Triple]) -> list[tuple[list[int], int]]:
        """Return the tokens of each pair of normal forms, and the number of tokens before the second answer.

        If the tokens are too long, the beginning of the question is cut, then the end of each answer.
        """
        texts = [text for question, a, b in pairs for text in (read_question(question), a, b)]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        encoded, room = [], self._longest - 4
        for question, first, second in zip(ids[::3], ids[1::3], ids[2::3]):
            if len(question) + len(first) + len(second) > room:
                if not self._truncated:
                    warnings.warn(_TRUNCATION.format(self._longest), SemcalWarning, stacklevel=2)
                self._truncated = True
                first, second = first[: (room - 1) // 2], second[: (room - 1) // 2]
                question = question[-max(1, room - len(first) - len(second)) :]
            head = [self._start, *question, self._end, *first, self._end]
            encoded.append(([*head, *second, self._end], len(head)))
        return encoded


@cache
def _opened(folder: Path) -> tuple[Any, Any, Any, tuple[float, float, int], str]:
    """Read networks, tokenizer, (threshold, "near", maximum tokens) and revision, once per process."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # texts are short: `_each` reads several at once instead
    try:
        names = ("model.onnx", "answers.onnx", "tokenizer.json", "config.json")
        files = [(folder / name).read_bytes() for name in names]
        sessions = [onnxruntime.InferenceSession(x, options, ["CPUExecutionProvider"]) for x in files[:2]]
        config = json.loads(files[3])
        limits = float(config["threshold"]), float(config["near"]), int(config["longest"])
        revision = hashlib.sha256(b"".join(files)).hexdigest()[:12]
        return *sessions, Tokenizer.from_buffer(files[2]), limits, revision
    except Exception as error:  # each library has errors of its own
        raise ModelError(
            f"{folder}: the embedded equivalence model cannot be read ({error}). Install semcal again, or "
            "use --equivalence exact"
        ) from error


def _row(numbers: Sequence[int]) -> NDArray[np.int64]:
    return np.array([numbers], dtype=np.int64)


def _each(read: Callable[[Any], Any], texts: Sequence[Any]) -> list[Any]:
    """Apply `read` to each text, in as many threads as OMP_NUM_THREADS or the processors allow."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    if threads == 1 or len(texts) < 2:
        return [read(text) for text in texts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(read, texts))


#: Identifiers of the files ("smcl" in ASCII) and of their layout.
APPLICATION_ID = 0x736D636C
SCHEMA = 2
#: Triples per statement; SQLite allows at least 999 parameters.
CHUNK = 300
#: Verdicts of a server per transaction.
KEPT_TOGETHER = 32

_CREATE = """\
CREATE TABLE verdicts (
    model TEXT NOT NULL, question TEXT NOT NULL, premise TEXT NOT NULL, hypothesis TEXT NOT NULL,
    margin REAL NOT NULL CHECK (typeof(margin) = 'real' AND abs(margin) < 1e300),
    PRIMARY KEY (model, question, premise, hypothesis)
) WITHOUT ROWID
"""
_FIND = """
WITH wanted (question, premise, hypothesis) AS (VALUES {rows})
SELECT question, premise, hypothesis, margin FROM wanted JOIN verdicts USING (question, premise, hypothesis)
WHERE model = ?
"""
_LAYOUT = DatabaseLayout(
    "verdict cache", "pass another file for the cache", APPLICATION_ID, SCHEMA, {"verdicts": _CREATE}
)


class CachedEquivalence:
    """An equivalence that looks up verdicts in a file, and adds missing ones.

    `inner` decides missing verdicts; its name and revision are part of every key. The file and its folder are
    created if missing. StoreError if the file is damaged, is not a verdict cache, or cannot be written.
    """

    def __init__(self, inner: Equivalence, path: str | Path) -> None:
        self.inner = inner
        self.path = Path(path)
        self.hits, self.calls = 0, 0  # number of verdicts from the file, and by `inner`
        self.address = address_of(inner)
        self.symmetric = getattr(inner, "symmetric", False)
        self._key = f"{inner.name}@{inner.revision}"
        make_folder(self.path, "the verdict cache")
        with self._open() as database:
            prepare(database, self.path, _LAYOUT)
        with self._as_store_error():  # an idle connection, open as long as this object exists
            anchor = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT, check_same_thread=False)
            weakref.finalize(self, close_whole, anchor)
            anchor.execute("PRAGMA user_version").fetchone()  # opens the file

    @property
    def name(self) -> str:
        """The name of the equivalence that decides."""
        return self.inner.name

    @property
    def revision(self) -> str:
        """The revision of the equivalence that decides."""
        return self.inner.revision

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each (question, premise, hypothesis) True if the premise entails the hypothesis."""
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return the margin of each triple, as in `Scoring.margins` or `margins_by`."""
        margins = self._find(triples)
        missing = [triple for triple in dict.fromkeys(triples) if triple not in margins]
        if missing:
            margins |= self._decide(missing) | self._find(missing)  # another process may have been first
        self.hits += len(triples) - len(missing)
        self.calls += len(missing)
        return [margins[triple] for triple in triples]

    def _decide(self, triples: Sequence[Triple]) -> dict[Triple, float]:
        """Ask `inner`; verdicts of a server are stored at once, so that a failure does not lose them."""
        if not isinstance(self.inner, Deciding):
            margins = dict(zip(triples, margins_by(self.inner, triples), strict=True))
            self._add(margins)
            return margins
        waiting: dict[Triple, float] = {}

        def keep(triple: Triple, verdict: bool) -> None:
            waiting[triple] = _MARGINS[verdict]
            if len(waiting) >= KEPT_TOGETHER:
                self._add(waiting)
                waiting.clear()

        try:
            return {triple: _MARGINS[verdict] for triple, verdict in self.inner.decide(triples, keep).items()}
        finally:
            self._add(waiting)

    def _find(self, triples: Sequence[Triple]) -> dict[Triple, float]:
        margins = {}
        with self._open() as database:
            for start in range(0, len(triples), CHUNK):
                chunk = triples[start : start + CHUNK]
                statement = _FIND.format(rows=", ".join(["(?, ?, ?)"] * len(chunk)))
                values = [*(text for triple in chunk for text in triple), self._key]
                for question, premise, hypothesis, margin in database.execute(statement, values):
                    margins[question, premise, hypothesis] = margin
        return margins

    def _add(self, margins: dict[Triple, float]) -> None:
        rows = [(self._key, *triple, margin) for triple, margin in margins.items()]
        with self._open() as database, transaction(database):
            database.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?)", rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one look-up; its errors become StoreErrors."""
        with self._as_store_error(), closing(connect(self.path)) as database:
            yield database

    def _as_store_error(self) -> AbstractContextManager[None]:
        remedy = "delete it to compute its verdicts again"
        foreign = f"pass another file for the cache, or if this is one {remedy}"
        return as_store_errors(f"the verdict cache {self.path}", remedy, foreign=foreign)
