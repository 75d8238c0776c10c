"""Labels that came back in production, from logs of `semcal serve`, for a calibration that is learnt again.

A label counts if its reply is by the calibration, or by one that it was itself learnt again from: these
draw alike, and a label says whether the answer is right, whatever probability it was given. Of equal
answers to equal questions one label counts, for the others are no independent evidence: the first of an
audited reply, else the first. The map may be fitted to any of them. A threshold is set on audited replies
alone: what people label of their own accord are answers that they saw, or complain about. An audited reply
without a label counts as wrong there, so that no choice of what is labeled can lower the threshold. With
fewer than `ENOUGH` of the audited replies labeled, none of them is used for a threshold.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats
from semcal.calibration.calibration import Calibration
from semcal.calibration.configuration import APART
from semcal.calibration.features import FEATURES, MOST_LACKING, SHARES
from semcal.calibration.report import AddedLabels
from semcal.errors import InputError, StoreError, shown
from semcal.reply_log import reading_logs

#: The share of the audited replies that must be labeled before a threshold is set on them.
ENOUGH = 0.95
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
    """K labels, as `calibrate_rows` learns from them beside its rows.

    Audited replies without a label, which count as wrong, are among those for the threshold.
    """

    features: Mapping[str, Floats]  # name → (K,); NaN where a reply lacks it
    correct: Floats  # (K,)
    apart: NDArray[np.bool_]  # (K,), for the threshold
    record: AddedLabels
    ancestors: tuple[str, ...]  # of what is learnt with them
    alone: bool = False  # whether the threshold is set on them alone
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # ids of the audited replies without a label, in the order of the log


def read_logs(paths: Sequence[Path]) -> list[LoggedReply]:
    """Return the replies of logs that are labelled or audited, in order; nothing is written to the logs.

    Several logs are those of replicas, and are merged in order of time; a label may be in another log than
    its reply. InputError if a file is missing, StoreError if it is no log, is locked or damaged.
    """
    names = " and ".join(map(str, paths))
    with reading_logs(paths) as log:
        return [_reply(names, row) for row in log.rows(_REPLIES)]


def _reply(name: str, row: Sequence[Any]) -> LoggedReply:
    """A row of a log; StoreError if it is none."""
    number, id, correct, audited, calibration, route, template, covered, text, at, content = row
    try:
        features = {str(key): _number(key, value) for key, value in json.loads(text).items()}
        if correct not in (None, 0, 1):
            raise ValueError(f"the label is {shown(correct)}")
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        where = f"row {number}, the reply {shown(id)}: {error}"
        raise StoreError(f"the log {name} is damaged: {where}; give a copy from before") from error
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
_UNLABELED = (
    "no added label is for the threshold, since {} of {} audited replies have no label; label these, however "
    "young they are, or let each count as wrong (--config calibration.allow_unlabeled=true)"
)


def labels_for(
    calibration: Calibration,
    replies: Sequence[LoggedReply],
    *,
    name: str = "the log",
    threshold: bool = True,
    alone: bool = False,
    allow_unlabeled: bool = False,
) -> ProductionLabels:
    """Choose the labels from which a calibration is learnt again.

    Parameters
    ----------
    calibration : Calibration
    replies : sequence of LoggedReply
        From `read_logs`; `name` is what messages call their logs.
    threshold : bool
        Whether a threshold is set. Then audited replies of which `is_apart` says so are apart for it, and
        those without a label count as wrong. None are if another model or calibration answered in between,
        since what the calibration abstained from is then missing, or if fewer than `ENOUGH` are labeled.
    alone : bool
        Whether the threshold is set on no others.
    allow_unlabeled : bool
        Whether a threshold may be set with fewer labels than `ENOUGH`.

    Raises
    ------
    InputError
        If there is no label to use.
    """
    left_out, gated, subjects = Counter[str](), False, defaultdict[str | int, list[LoggedReply]](list)
    reasons = list(_reasons(calibration, replies))
    own = [reply.number for reply, reason in zip(replies, reasons) if reason is None]
    for reply, reason in zip(replies, reasons):
        gated |= reason in (OTHER_MODEL, OTHER_CALIBRATION) and own[:1] < [reply.number] < own[-1:]
        if reason is None:
            subjects[reply.id if reply.content is None else reply.content].append(reply)
        elif reply.correct is not None:
            left_out[reason] += 1
    labels, missing = list[tuple[LoggedReply, bool]](), list[LoggedReply]()
    for equal in subjects.values():
        audited = [reply for reply in equal if reply.audited]
        # Audited ones first: what people label of their own accord, and when, depends on the answer.
        order = sorted(equal, key=lambda reply: (not reply.audited, reply.labelled_at or 0))
        labeled = [(reply, reply.correct) for reply in order if reply.correct is not None]
        if audited and not (labeled and labeled[0][0].audited):
            missing.append(audited[0])
        for reply, correct in labeled[:1]:
            # The first audited reply stands for its equals, whichever of these is labeled.
            labels.append((audited[0] if reply.audited else reply, correct))
        if len(labeled) > 1:
            left_out[EQUAL] += len(labeled) - 1
    if not labels:
        raise _nothing_to_add(calibration, replies, left_out, name)
    n_audited = sum(reply.audited for reply, _ in labels) + len(missing)
    is_enough = allow_unlabeled or len(missing) <= (1 - ENOUGH) * n_audited
    for_threshold = threshold and not gated and is_enough
    assumed = [(reply, False) for reply in missing if for_threshold and is_apart(reply.id)]
    used = sorted([*labels, *assumed], key=lambda label: label[0].number)
    apart = np.array([reply.audited and for_threshold and is_apart(reply.id) for reply, _ in used])
    features = {
        name: np.array([reply.features.get(name) for reply, _ in used], float)
        for name in dict.fromkeys(name for reply, _ in used for name in reply.features)
    }
    record = AddedLabels(
        int((~apart).sum()), int(apart.sum()), len(missing), dict(left_out), assumed_wrong=len(assumed)
    )
    problems = list[str]()
    if threshold and not apart.any():
        few = _UNLABELED.format(len(missing), n_audited)
        problems.append(_AFTER_ANOTHER if gated else _NOT_AUDITED if is_enough else few)
    found = sum(reply.calibration in calibration.ancestors for reply, _ in labels)
    before = calibration.report.added
    if before is not None and (lacking := before.labeled - found) > 0:
        again = "give the logs from before as well (--add LOG --add LOG)"
        known = f"{lacking} of the {before.labeled} labels that the calibration was learnt with"
        problems.append(f"{known} are in none of these logs, and count no more; {again}")
    return ProductionLabels(
        features,
        np.array([correct for _, correct in used], float),
        apart,
        record,
        (*calibration.ancestors, calibration.id),
        alone,
        tuple(problems),
        tuple(reply.id for reply in missing),
    )


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
    calibration: Calibration, replies: Sequence[LoggedReply], reasons: Mapping[str, int], name: str
) -> InputError:
    if not reasons:
        return InputError(
            f"{name} holds no labels; send them to /v1/semcal/labels of semcal serve, or add the --label-log "
            "of its replicas"
        )
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    ids = {reply.calibration for reply in replies}
    by = f"; it has replies by {', '.join(sorted(ids))}" if ids else ""
    return InputError(
        f"no label of {name} can be added to the calibration {calibration.id}: {why}{by}; give the "
        "calibration that was served with this log"
    )


def usable_features(own: Mapping[str, Floats], added: Mapping[str, Floats]) -> list[str]:
    """The names of the features of own questions that four in five replies have as well."""
    return [name for name in own if name in added and np.isnan(added[name]).mean() <= MOST_LACKING]
