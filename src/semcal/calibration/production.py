"""Labels from production, in logs of `semcal serve`, for learning a calibration again.

A label counts if its reply is by the calibration or one of its ancestors, which sample alike. Of equal
answers to equal questions one label counts, since copies are not independent evidence: the first of an
audited reply, else the first. The map may be fitted to all labels.

A threshold is set on audited replies only, since people choose which other answers they label. An audited
reply without a label counts as wrong, so that no choice of labels can lower the threshold. If fewer than
`ENOUGH` of the audited replies are labeled, none is used for a threshold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from semcal.arrays import Floats
from semcal.calibration.calibration import APART, Calibration
from semcal.calibration.features import SHARES
from semcal.calibration.report import AddedLabels
from semcal.errors import InputError, StoreError, shown
from semcal.reply_log import reading_logs

#: Share of the audited replies that must be labeled before a threshold is set on them.
ENOUGH = 0.95
#: Reasons why labels are not used, in the order of the checks.
OTHER_CALIBRATION = "by another calibration"
OTHER_PROMPT = "with another prompt"
NOT_COVERED = "of requests that the calibration did not cover"
NO_FEATURES = "without features"
EQUAL = "of an answer and a question that were labeled before"

#: Values of features in a log.
_FEATURES = TypeAdapter(dict[str, FiniteFloat | None])

_REPLIES = """\
SELECT replies.number, replies.id, correct, replies.audited, calibration, template,
    probability IS NOT NULL OR abstained, features, labels.number, content
FROM replies LEFT JOIN labels ON labels.number = (
    SELECT min(number) FROM labels WHERE labels.id = replies.id AND struck IS NULL
)
WHERE correct IS NOT NULL OR replies.audited ORDER BY replies.number
"""


@dataclass(frozen=True)
class LoggedReply:
    """A labeled or audited reply of a log."""

    number: int  # the position in the log
    id: str
    correct: bool | None  # None without a label
    audited: bool
    calibration: str  # the id
    template: str  # the hash of the template of the prompt
    covered: bool
    features: Mapping[str, float | None]
    labelled_at: int | None = None  # the position of the label among the labels of the log
    content: int | None = None  # the hash of question and answer


@dataclass(frozen=True)
class ProductionLabels:
    """K labels for `calibrate_rows`, including audited replies that count as wrong without a label."""

    features: Mapping[str, Floats]  # name → (K,); NaN if unknown
    correct: Floats  # (K,)
    apart: NDArray[np.bool_]  # (K,), for the threshold
    record: AddedLabels
    ancestors: tuple[str, ...]  # of the calibration that is learned with the labels
    alone: bool = False  # whether the threshold is set only on these labels
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # ids of the audited replies without a label, in the order of the log


def read_logs(paths: Sequence[Path]) -> list[LoggedReply]:
    """Return the labeled and audited replies of logs in order; the logs are only read.

    Logs of several replicas are merged in order of time; a label may be in another log than its reply.
    InputError if a file is missing, StoreError if it is not a log, locked or damaged.
    """
    names = " and ".join(map(str, paths))
    with reading_logs(paths) as log:
        return [_reply(names, row) for row in log.rows(_REPLIES)]


def _reply(name: str, row: Sequence[Any]) -> LoggedReply:
    number, id, correct, audited, calibration, template, covered, text, at, content = row
    try:
        features = _FEATURES.validate_json(text)
    except ValidationError as error:
        where = f"row {number}, the reply {shown(id)}: its features are {shown(text)}"
        raise StoreError(f"{name}: the log is damaged: {where}. Use an earlier copy") from error
    verdict = None if correct is None else bool(correct)
    parts = bool(audited), calibration, template, bool(covered), features, at, content
    return LoggedReply(number, id, verdict, *parts)


def is_apart(reply_id: str) -> bool:
    """Return whether the label of a reply is held out for a threshold: two in five are, by hash of the id.

    The hash differs from the hash that selects replies for the audit.
    """
    return is_in_share(f"threshold {reply_id}", APART)


def is_in_share(text: str, share: float) -> bool:
    """Return whether a text belongs to a share of all texts, by its hash."""
    return int.from_bytes(sha256(text.encode(errors="surrogatepass")).digest()[:6]) < share * 2**48


_NOT_AUDITED = "no audited reply has a label for the threshold. Serve with --audit, and label these replies"
_AFTER_ANOTHER = (
    "no added label is used for the threshold, since another model or calibration answered in between. Add a "
    "log of this calibration alone"
)
_UNLABELED = (
    "no added label is used for the threshold, since {} of {} audited replies have no label. Label these"
)


def labels_for(
    calibration: Calibration,
    replies: Sequence[LoggedReply],
    *,
    name: str = "the log",
    threshold: bool = True,
    alone: bool = False,
) -> ProductionLabels:
    """Choose the labels of replies from which their calibration is learned again, as above.

    With `threshold`, some are held out for it, unless another calibration answered in between: questions with
    abstained answers are then missing. `alone` sets the threshold on these labels only. InputError, which
    calls the logs `name`, without a label.
    """
    left_out, subjects = Counter[str](), defaultdict[str | int, list[LoggedReply]](list)
    reasons = list(_reasons(calibration, replies))
    own = [reply.number for reply, reason in zip(replies, reasons) if reason is None]
    gated = False
    for reply, reason in zip(replies, reasons):
        gated |= reason == OTHER_CALIBRATION and own[:1] < [reply.number] < own[-1:]
        if reason is None:
            subjects[reply.id if reply.content is None else reply.content].append(reply)
        elif reply.correct is not None:
            left_out[reason] += 1
    labels, missing = _distinct_labels(subjects.values(), left_out)
    if not labels:
        raise _nothing_to_add(calibration, replies, left_out, name)
    n_audited = sum(reply.audited for reply, _ in labels) + len(missing)
    is_enough = len(missing) <= (1 - ENOUGH) * n_audited
    for_threshold = threshold and not gated and is_enough
    assumed = [(reply, False) for reply in missing if for_threshold and is_apart(reply.id)]
    used = sorted([*labels, *assumed], key=lambda label: label[0].number)
    apart = np.array([reply.audited and for_threshold and is_apart(reply.id) for reply, _ in used])
    names = dict.fromkeys(name for reply, _ in used for name in reply.features)
    n_apart = int(apart.sum())
    problems = list[str]()
    if threshold and not n_apart:
        few = _UNLABELED.format(len(missing), n_audited)
        problems.append(_AFTER_ANOTHER if gated else _NOT_AUDITED if is_enough else few)
    found = sum(reply.calibration in calibration.ancestors for reply, _ in labels)
    before = calibration.report.added
    if before is not None and (lacking := before.labeled - found) > 0:
        problems.append(
            f"{lacking} of the {before.labeled} labels that the calibration was learned with are in none of "
            "these logs, and no longer count. Add the earlier logs as well (--add LOG --add LOG)"
        )
    return ProductionLabels(
        {name: np.array([reply.features.get(name) for reply, _ in used], float) for name in names},
        np.array([correct for _, correct in used], float),
        apart,
        AddedLabels(len(used) - n_apart, n_apart, len(missing), dict(left_out), assumed_wrong=len(assumed)),
        (*calibration.ancestors, calibration.id),
        alone,
        tuple(problems),
        tuple(reply.id for reply in missing),
    )


def _distinct_labels(
    subjects: Iterable[Sequence[LoggedReply]], left_out: Counter[str]
) -> tuple[list[tuple[LoggedReply, bool]], list[LoggedReply]]:
    """Return one label of each list of equal replies, and the audited replies without a label.

    Audited replies come first: people choose the other labels, and their time, by the answer. Other labels
    are counted in `left_out`.
    """
    labels, missing = list[tuple[LoggedReply, bool]](), list[LoggedReply]()
    for equal in subjects:
        audited = [reply for reply in equal if reply.audited]
        order = sorted(equal, key=lambda reply: (not reply.audited, reply.labelled_at or 0))
        labeled = [(reply, reply.correct) for reply in order if reply.correct is not None]
        if audited and not (labeled and labeled[0][0].audited):
            missing.append(audited[0])
        for reply, correct in labeled[:1]:
            # The first audited reply stands for its equals, whichever of these is labeled.
            labels.append((audited[0] if reply.audited else reply, correct))
        if len(labeled) > 1:
            left_out[EQUAL] += len(labeled) - 1
    return labels, missing


def _reasons(calibration: Calibration, replies: Sequence[LoggedReply]) -> Iterable[str | None]:
    """Yield the reason why each reply is not used; None if it is used."""
    ids, provenance = {*calibration.ancestors, calibration.id}, calibration.provenance
    for reply in replies:
        if reply.calibration not in ids:
            yield OTHER_CALIBRATION
        elif provenance is not None and reply.template != provenance.prompt_hash:
            yield OTHER_PROMPT
        elif not reply.covered:
            yield NOT_COVERED
        else:
            yield NO_FEATURES if reply.features.get(SHARES[0]) is None else None


def _nothing_to_add(
    calibration: Calibration, replies: Sequence[LoggedReply], reasons: Mapping[str, int], name: str
) -> InputError:
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "it has none"
    ids = ", ".join(sorted({reply.calibration for reply in replies})) or "no calibration"
    return InputError(
        f"{name}: no label can be added to the calibration {calibration.id}: {why}; it has replies by {ids}. "
        "Pass the calibration that was served with this log, and the logs of all replicas, or send labels to "
        "/v1/semcal/labels"
    )
