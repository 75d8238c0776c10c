"""`semcal monitor`: test the promise of a calibration with later labels; `semcal labels`: list labels."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.console import info, paragraph, refuse_existing, show
from semcal.cli.row_streams import BadRows, good_rows, open_rows
from semcal.databases import is_database
from semcal.errors import InputError, UsageError, shown
from semcal.files import dumps
from semcal.reply_log import PAGE, LabelChoice, LabelledReply, LoggedLabel, ReplyLog, reading_logs
from semcal.rows import Row

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration
    from semcal.calibration.fields import FieldCalibration
    from semcal.calibration.watch import PromiseWatch, WatchName

READ = ("id", "confidence", "abstained", "correct", "threshold", "audited")


@dataclass(frozen=True)
class MonitorOptions:
    """The options of `semcal monitor`."""

    files: list[str] = Argument(
        metavar="FILE...",
        help="Logs of semcal serve --log, also of several replicas, or a file of rows (JSON Lines; - for "
        "standard input).",
    )
    risk: float | None = opt.PROMISED_RISK
    calibration: str | None = opt.CALIBRATION
    alpha: float = opt.ALPHA
    audited: bool = Option(
        False, "--audited", help="Only use labels of replies that semcal serve --audit has marked."
    )
    plot: Path | None = Option(
        None,
        metavar="FILE",
        help="File for a plot of the e-values label by label (.pdf, .png, .svg).",
    )
    columns: list[str] | None = opt.COLUMNS
    overwrite: bool = opt.OVERWRITE
    json: bool = opt.JSON


def command(options: MonitorOptions) -> int:
    """Watch whether the promise of a calibration holds, with labels in order of arrival.

    Reads the log of semcal serve (or the logs of its replicas, which are merged by time), rows {id,
    confidence, abstained, correct}, or rows with the score of --calibration. A row without correct has no
    label yet. Prints one line for each watch. The watch on risk compares the wrong answers among answered
    questions with --risk or the promise of --calibration. The watch on calibration tests whether a share p of
    the answers with probability p is right. With --calibration, the watch on questions compares the
    probabilities with those of the labeled questions; it warns without an alarm. The exit code is 1 if there
    is an alarm.
    """
    from semcal.calibration.watch import PromiseWatch

    if options.plot is not None:
        from semcal.plotting import check_figure_path

        check_figure_path(options.plot)
        if not options.overwrite:
            refuse_existing("--plot", options.plot)
    learned = None if options.calibration is None else opt.open_any_calibration(options.calibration)
    watch = PromiseWatch.of(learned, risk=options.risk, alpha=options.alpha)
    for test in watch.tests.values() if options.plot is not None else ():
        test.kept = math.inf
    with BadRows() as bad:
        _read(options, watch, learned, bad)
    alpha = watch.tests["calibration"].alpha
    if "risk" not in watch.tests:
        info(
            "monitor: the risk is not watched, as none is promised; pass --risk, or a calibration with a risk"
        )
    if options.plot is not None:
        from semcal.plotting import watch_figure, write_figure

        courses = {str(name): test.course for name, test in watch.tests.items()}
        alarms = {str(name): test.alarm_at for name, test in watch.tests.items()}
        write_figure(watch_figure(courses, alarms, alpha), options.plot)
    if options.json or not sys.stdout.isatty():
        for line in watch.lines:
            show(dumps(line))
    else:
        show(_page(watch, alpha))
    return 1 if watch.alarm else bad.exit_code()


def _read(
    options: MonitorOptions,
    watch: PromiseWatch,
    learned: Calibration | FieldCalibration | None,
    bad: BadRows,
) -> None:
    """Add the replies and labels of logs, or of a file of rows, to the watch."""
    from semcal.calibration.calibration import Calibration

    first, *others = options.files
    if not others and (first == "-" or not is_database(Path(first))):
        scored = learned if isinstance(learned, Calibration) and learned.score is not None else None
        rows = good_rows(_open(first, options.columns, scored), bad)
        limit = None if learned is None else learned.limit
        take_rows(rows, watch, limit, scored=scored, audited=options.audited)
    elif options.columns:
        raise UsageError("--columns requires one file of rows; omit it for logs")
    else:
        _read_logs(list(map(Path, options.files)), watch, learned, audited=options.audited)


def _read_logs(
    paths: Sequence[Path],
    watch: PromiseWatch,
    calibration: Calibration | FieldCalibration | None,
    *,
    audited: bool,
) -> None:
    """Take the replies of a calibration, by default of the only one, and print missing information."""
    if calibration is None:
        info("monitor: without --calibration DIR probabilities count as exact, and no promised risk is known")
    with reading_logs(paths) as log:
        names = log.calibrations()
        ids = tuple(names) if calibration is None else (calibration.id,)
        if len(ids) > 1 and calibration is None:
            raise UsageError(
                f"{' and '.join(map(str, paths))} has replies by the calibrations {', '.join(ids)}, each "
                "with its own promise; pass one of them (--calibration)"
            )
        others = [name for name in names if name not in ids]
        if others and (n_others := log.n_labels(others)):
            info(f"monitor: {n_others} labels are of replies by other calibrations, and do not count")
        watch.read(log, ids, audited=audited)


def take_rows(
    rows: Iterator[Row],
    watch: PromiseWatch,
    limit: float | None,
    *,
    scored: Calibration | None = None,
    audited: bool = False,
) -> None:
    """Add rows of a file to the watch; `limit` is the threshold of rows without one.

    With the calibration of a score, it computes the confidence. Of equal question, context and answer, or of
    equal ids, the first label counts.
    """
    labeled, ungraded = Counter[str](), 0
    while batch := list(islice(rows, PAGE)):
        measured = batch if scored is None else [*_measured(batch, scored)]
        watch.observe(*(row["confidence"] for row in measured if row["confidence"] is not None))
        replies = [(_subject(row), _reply(row, limit)) for row in measured if row.verdict is not None]
        used = [(subject, reply) for subject, reply in replies if reply.audited or not audited]
        for subject, reply in used:
            labeled[subject] += 1
            if labeled[subject] == 1:
                watch.update(reply)
        ungraded += sum(row.verdict is None and bool(row.get("answers")) for row in batch)
    if again := labeled.total() - len(labeled):
        info(f"monitor: {again} labels are of replies, or of questions and answers, that were labeled before")
    if ungraded:
        info(
            f"monitor: {ungraded:,} rows have 'answers' but no 'correct' and are no labels; run semcal grade"
        )


def _measured(rows: Sequence[Row], calibration: Calibration) -> Iterator[Row]:
    """Yield the rows; those without a confidence have a score, and get its probability."""
    from semcal.calibration.compatibility import CalibrationStep

    scores = [row for row in rows if not row.has("confidence")]
    measured = (row.set(confidence=row["probability"]) for row in CalibrationStep(calibration)(scores))
    for row in rows:
        yield row if row.has("confidence") else next(measured)


def _subject(row: Row) -> str:
    """Return a text that is equal for rows whose labels count once."""
    question, *others = (row.json.get(name) for name in ("question", "messages", "context", "answer"))
    is_known = others[-1] is not None and (question or others[0])
    return dumps([question, *others]) if is_known else row.id


def _reply(row: Row, limit: float | None) -> LabelledReply:
    decision = row.json.get("threshold", limit), bool(row.get("abstained"))
    return LabelledReply(row.id, row["confidence"], *decision, bool(row.verdict), bool(row.get("audited")))


def _open(file: str, columns: list[str] | None, scored: Calibration | None) -> Iterator[Row | InputError]:
    """Yield the rows of a file; bad rows are errors."""
    from semcal.calibration.compatibility import check_calibratable

    def check(row: Row) -> None:
        if not row.has("confidence"):
            if scored is None:
                raise InputError(
                    "'confidence': missing (null for an unknown one). Pass its column: --columns "
                    "confidence=NAME"
                )
            check_calibratable(row, scored)
        _check_values(row)

    return open_rows(file, columns, check, fields=READ, label="monitor")


def _check_values(row: Row) -> None:
    """Raise InputError for invalid values, or for values of several measures."""
    _ = row.verdict
    for key in READ[1:]:
        value, expected = row.json.get(key), "true, false or null"
        is_valid = value in (None, 0, 1)
        if key in ("confidence", "threshold"):
            expected = "a number from 0 to 1, or null"
            is_valid = value is None or (type(value) in (int, float) and 0 <= value <= 1)
        elif key == "correct":
            is_valid = not isinstance(value, Mapping)  # the verdict was read
        if not is_valid:
            reason = f"{key!r} must be {expected}, got {shown(value)}"
            raise InputError(f"{reason}. Pass the column of the answer: --columns {key}=NAME")


# ---- Output ------------------------------------------------------------------------------------------------


def _page(watch: PromiseWatch, alpha: float) -> str:
    """Return the watches as text: the result first, then findings and evidence of each watch."""
    of_labels = {name: test for name, test in watch.tests.items() if name != "questions"}
    alarms = [name for name, test in of_labels.items() if test.alarm]
    result = "No alarm: the labels do not contradict the calibration so far."
    if alarms:
        result = f"ALARM: {' and '.join(alarms)}. Read docs/alarm.md."
    elif not any(test.n for test in of_labels.values()):
        result = "No alarm: there are no labels yet."
    lines = [result, ""]
    for name, test in watch.tests.items():
        unit = "replies" if name == "questions" else "labels"
        evidence = f"e-value {test.e_value:.3g} after {test.n:,} {unit}"
        lines.append(paragraph(f"{name:<13}{_finding(name, watch)}; {evidence}", indent=" " * 13))
    never = (
        f"An e-value of {1 / alpha:.3g} is an alarm. If a promise holds, the probability of an alarm is at "
        f"most {100 * alpha:.3g}%, however long the watch runs. This requires that the time of a label does "
        "not depend on its value."
    )
    return "\n".join([*lines, "", paragraph(never)])


def _finding(name: WatchName, watch: PromiseWatch) -> str:
    """Return the state of a watch with its figures."""
    test = watch.tests[name]
    if name == "questions" and test.alarm_at is not None:
        return f"different from the questions of the calibration since reply {test.alarm_at:,}; label some"
    if name == "questions":
        return "similar to the questions of the calibration"
    verdict = "holds so far"
    if test.alarm_at is not None:
        verdict = f"ALARM at label {test.alarm_at:,}"
    elif test.notice_at is not None:
        verdict = f"notice at label {test.notice_at:,}: the promise may not hold"
    labels = next(iter(test.groups.values()))  # of all replies that the watch counts
    percent = 100 * labels.outcome_sum / max(1, test.n)
    if name == "risk":
        risks = [watch.risk] if watch.risk is not None else [risk for _, risk in watch.risks]
        promised = "at most " + " and ".join(f"{100 * risk:.3g}%" for risk in risks) + " promised"
        wrong = f"{labels.outcome_sum:,.0f} of {test.n:,} answers are wrong ({percent:.3g}%)"
        return f"{verdict}; {wrong}, {promised}"
    mean = labels.mean_sum / max(1, test.n)
    return f"{verdict}; the mean probability is {mean:.3f}, and {percent:.3g}% are right"


# ---- Labels


def labels(
    file: str = Argument(metavar="LOG", help="Log of semcal serve --log."),
    id: list[str] | None = Option(None, metavar="ID", help="Choose labels of this reply; may be repeated."),
    key: str | None = Option(None, metavar="HASH", help="Choose labels of this key, as in the list."),
    since: datetime | None = Option(None, help="Choose labels at or after this time (UTC)."),
    until: datetime | None = Option(None, help="Choose labels before this time (UTC)."),
    strike: bool = Option(False, "--strike", help="Strike the chosen labels, so that they no longer count."),
    restore: bool = Option(False, "--restore", help="Restore the chosen struck labels."),
    json: bool = opt.JSON,
) -> int:
    """List the labels of a log, or strike labels, for example those of a misused key.

    For equal answers to equal questions, the first label that is not struck counts; "conflicts" marks labels
    with an opposite verdict. Choose labels with --id, --key, --since and --until. The watch of a running
    server leaves out struck labels from one of its next replies on.
    """
    if strike and restore:
        raise UsageError("--strike and --restore exclude each other; pass one of them")
    if strike and id is None and key is None and since is None and until is None:
        raise UsageError("--strike requires a choice of labels; pass --id, --key, --since or --until")
    ReplyLog(Path(file), read_only=True).close()  # the log must exist
    start = 0.0 if since is None else since.replace(tzinfo=UTC).timestamp()
    end = math.inf if until is None else until.replace(tzinfo=UTC).timestamp()
    choice = LabelChoice(id, key, start, end)
    with closing(ReplyLog(Path(file), read_only=not (strike or restore))) as log:
        if strike or restore:
            count = log.strike(choice, restore=restore)
            info(f"labels: {count} {'restored' if restore else 'struck'}")
        found = list(log.labels(choice))
        for line in map(dumps, map(vars, found)) if json or not sys.stdout.isatty() else _lines(found):
            show(line)
        if not found:
            info("labels: no labels found")
    return 0


def _lines(labels: Sequence[LoggedLabel]) -> list[str]:
    lines = []
    for label in labels:
        at = datetime.fromtimestamp(label.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        state = "struck" if label.struck else "counts" if label.counts else "does not count"
        conflict = ", conflicts" if label.conflicts else ""
        said = "right" if label.correct else "wrong"
        lines.append(f"{at}  {label.key or 'none':12}  {said}  {label.id}  {state}{conflict}")
    width = max((len(label.id) for label in labels), default=0)
    return [f"{'time (UTC)':19}  {'key':12}  label  {'reply':{width}}  state", *lines] if lines else []
