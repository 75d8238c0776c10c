"""Labels that came back in production, from logs of `semcal serve`, for a calibration that is learnt again.

A label counts if its reply is by the calibration, or by one that it was itself learnt again from: these
draw alike, and a label says whether the answer is right, whatever probability it was given. Of equal
answers to equal questions one label counts, for the others are no independent evidence: the first of an
audited reply, else the first. The map may be fitted to any of them. A threshold is set on those of audited
replies alone, which are labelled in any case: what people label of their own accord are answers that they
saw, or complain about.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.calibration.calibrated import AddedLabels, Calibration
from semcal.calibration.features import FEATURES, MOST_LACKING, SHARES
from semcal.calibration.learning import APART
from semcal.databases import (
    REPLY_LOG,
    REPLY_LOG_SCHEMA,
    as_store_errors,
    is_database,
    layout_of,
    reader,
)
from semcal.errors import InputError, StoreError, shown
from semcal.metrics.frequencies import Floats

#: Why labels are not used, in the order in which it is asked.
OTHER_MODEL = "answered by another model (--fallback)"
OTHER_CALIBRATION = "by another calibration"
OTHER_PROMPT = "under another prompt"
NOT_COVERED = "of requests that the calibration did not cover"
NO_FEATURES = "without the features to learn from"
EQUAL = "of an answer and a question that were labeled before"

_REPLIES = """\
SELECT replies.number, replies.id, correct, replies.audited, calibration, route, template,
    probability IS NOT NULL OR abstained, features, labels.number, content
FROM replies LEFT JOIN labels ON labels.number = (
    SELECT min(number) FROM labels WHERE labels.id = replies.id AND struck IS NULL
)
WHERE correct IS NOT NULL OR replies.audited ORDER BY replies.number
"""


@dataclass(frozen=True)
class LoggedReply:
    """A reply that is labelled, or should be."""

    number: int  # its place in the log
    id: str
    correct: bool | None  # None without a label
    audited: bool  # whether it is to be labelled in any case
    calibration: str  # the id
    route: str  # the model that answered
    template: str  # the hash of the prompt's template
    covered: bool
    features: Mapping[str, float | None]
    labelled_at: int | None = None  # the place of its label among the labels of the log
    content: int | None = None  # the hash of question and answer


@dataclass(frozen=True)
class ProductionLabels:
    """K labels, as `calibrate_rows` learns from them beside its rows."""

    features: Mapping[str, Floats]  # name → (K,); NaN where a reply lacks it
    correct: Floats  # (K,)
    apart: NDArray[np.bool_]  # (K,), for the threshold
    record: AddedLabels
    ancestors: tuple[str, ...]  # of what is learnt with them
    alone: bool = False  # whether the threshold is set on them alone
    problems: tuple[str, ...] = ()


def read_log(path: Path) -> list[LoggedReply]:
    """The replies of a log that are labelled, or are audited, in their order; nothing is written to it.

    InputError if there is no such file, StoreError if it is no log, is locked or damaged.
    """
    if not path.is_file():
        raise InputError(f"there is no log {path}; give the FILE of semcal serve --log FILE")
    owner, schema = 0, 0
    with as_store_errors(f"the log {path}", "give a copy from before"):
        if is_database(path):
            with closing(reader(path)()) as database:
                owner, schema = layout_of(database)
                if (owner, schema) == (REPLY_LOG, REPLY_LOG_SCHEMA):
                    return [_reply(path, row) for row in database.execute(_REPLIES).fetchall()]
    if owner == REPLY_LOG:
        raise StoreError(f"{path} is a log of another version (layout {schema}); give a log of this version")
    raise StoreError(f"{path} is no log of replies; give the FILE of semcal serve --log FILE")


def _reply(path: Path, row: Sequence[Any]) -> LoggedReply:
    """A row of a log; StoreError if it is none."""
    number, id, correct, audited, calibration, route, template, covered, text, at, content = row
    try:
        features = {str(name): _number(name, value) for name, value in json.loads(text).items()}
        if correct not in (None, 0, 1):
            raise ValueError(f"the label is {shown(correct)}")
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        where = f"row {number}, the reply {shown(id)}: {error}"
        raise StoreError(f"the log {path} is damaged: {where}; give a copy from before") from error
    label = None if correct is None else bool(correct)
    return LoggedReply(
        *(number, id, label, bool(audited), calibration, route, template, bool(covered), features),
        labelled_at=at,
        content=content,
    )


def _number(name: str, value: object) -> float | None:
    """A feature; ValueError for what is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the feature {shown(name)} is {shown(value)}, and no number")
    if name in FEATURES and FEATURES[name].is_share and not 0 <= value <= 1:
        raise ValueError(f"the feature {shown(name)} is {shown(value)}, and no share")
    return float(value)


def is_apart(reply_id: str) -> bool:
    """Whether a reply's label is for a threshold: two in five are, by a hash of the id.

    It is another hash than the one that marks replies for the audit.
    """
    return is_in_share(f"threshold {reply_id}", APART)


def is_in_share(text: str, share: float) -> bool:
    """Whether a text is one of a share of all texts, by its hash."""
    return int.from_bytes(sha256(text.encode(errors="surrogatepass")).digest()[:6]) < share * 2**48


_NOT_AUDITED = "no label of an audited reply is for the threshold; serve with --audit, and label those"
_AFTER_ANOTHER = (
    "no added label is for the threshold, since another model answered what the calibration abstained from"
)


def labels_for(
    calibration: Calibration,
    logs: Mapping[Path, Sequence[LoggedReply]],
    *,
    threshold: bool = True,
    alone: bool = False,
) -> ProductionLabels:
    """What a calibration learns again from, of the replies of logs (`read_log`).

    With `threshold` those labels are apart for it whose reply is audited, and of which `is_apart` says so;
    but none where another model or calibration answered in between: what the calibration abstained from is
    then missing. With `alone` it is set on no others. InputError if there is no label to use, or `alone` none
    for it.
    """
    chosen: dict[str | int, LoggedReply] = {}  # by content, the first label of each
    reasons, unlabelled, gated = Counter[str](), 0, False
    for replies in logs.values():
        reasons_of, usable = list(_reasons(calibration, replies)), list[LoggedReply]()
        own = [reply.number for reply, reason in zip(replies, reasons_of) if reason is None]
        for reply, reason in zip(replies, reasons_of):
            gated |= reason in (OTHER_MODEL, OTHER_CALIBRATION) and own[:1] < [reply.number] < own[-1:]
            if reply.correct is None:
                unlabelled += reason is None
            elif reason is None:
                usable.append(reply)
            else:
                reasons[reason] += 1
        # Audited ones first: what people label of their own accord, and when, depends on the answer.
        for reply in sorted(usable, key=lambda reply: (not reply.audited, reply.labelled_at or 0)):
            if chosen.setdefault(_subject(reply), reply) is not reply:
                reasons[EQUAL] += 1
    if not chosen:
        raise _nothing_to_add(calibration, logs, reasons)
    labels = [reply for one in logs.values() for reply in one if chosen.get(_subject(reply)) is reply]
    for_threshold = threshold and not gated
    apart = np.array([label.audited and for_threshold and is_apart(label.id) for label in labels])
    problem = _AFTER_ANOTHER if gated else _NOT_AUDITED
    if alone and not apart.any():
        raise InputError(f"{problem}; leave --audited out, and the calibration's own questions set it")
    features = {
        name: np.array([label.features.get(name) for label in labels], float)
        for name in dict.fromkeys(name for label in labels for name in label.features)
    }
    record = AddedLabels(int((~apart).sum()), int(apart.sum()), unlabelled, dict(reasons))
    ancestors = (*calibration.ancestors, calibration.id)
    correct = np.array([label.correct for label in labels], float)
    problems = (problem,) if threshold and not apart.any() else ()
    found = sum(label.calibration in calibration.ancestors for label in labels)
    before = calibration.report.added
    if before is not None and (lacking := before.fit + before.apart - found) > 0:
        again = "give the logs from before as well (--add LOG --add LOG)"
        known = f"{lacking} of the {before.fit + before.apart} labels that the calibration was learnt with"
        problems = (f"{known} are in none of these logs, and count no more; {again}", *problems)
    return ProductionLabels(features, correct, apart, record, ancestors, alone, problems)


def _subject(reply: LoggedReply) -> str | int:
    """Return the subject of a label: the question and the answer, else the reply alone."""
    return reply.id if reply.content is None else reply.content


def _reasons(calibration: Calibration, replies: Sequence[LoggedReply]) -> Iterable[str | None]:
    """Why each reply of a log is of no use; None where it can be learnt from."""
    ids, provenance = {*calibration.ancestors, calibration.id}, calibration.provenance
    routes = {reply.route for reply in replies if reply.calibration in ids}
    for reply in replies:
        if reply.calibration not in ids:
            yield OTHER_MODEL if routes and reply.route not in routes else OTHER_CALIBRATION
        elif provenance is not None and reply.template != provenance.prompt_hash:
            yield OTHER_PROMPT
        elif not reply.covered:
            yield NOT_COVERED
        else:
            yield NO_FEATURES if reply.features.get(SHARES[0]) is None else None


def _nothing_to_add(
    calibration: Calibration, logs: Mapping[Path, Sequence[LoggedReply]], reasons: Mapping[str, int]
) -> InputError:
    names = " and ".join(map(str, logs))
    if not reasons:
        return InputError(f"{names} holds no labels; send them to /v1/semcal/labels of semcal serve")
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    ids = {reply.calibration for replies in logs.values() for reply in replies}
    by = f"; it has replies by {', '.join(sorted(ids))}" if ids else ""
    return InputError(
        f"no label of {names} can be added to the calibration {calibration.id}: {why}{by}; give the "
        "calibration that was served with this log"
    )


def usable_features(own: Mapping[str, Floats], added: Mapping[str, Floats]) -> list[str]:
    """The names of the features of own questions that four in five replies have as well."""
    return [name for name in own if name in added and np.isnan(added[name]).mean() <= MOST_LACKING]
