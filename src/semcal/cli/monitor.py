"""`semcal monitor`: test the promise of a calibration with later labels; `semcal labels`: list labels."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from semcal.calibration.watch import PromiseWatch
    from semcal.metrics.sequential import SequentialTest

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

    files, audited = options.files, options.audited
    of_rows = [file for file in files if file == "-" or not is_database(Path(file))]
    if not of_rows:
        if options.columns:
            raise UsageError("--columns requires a file of rows; omit it for a log")
        _read_logs(list(map(Path, files)), watch, learned, audited=audited)
    elif len(files) > 1:
        raise UsageError(
            f"{of_rows[0]}: several files must all be logs of semcal serve. Pass a single file of rows."
        )
    else:
        scored = learned if isinstance(learned, Calibration) and learned.score is not None else None
        rows = good_rows(_open(files[0], options.columns, scored), bad)
        measured = rows if scored is None else _measured(rows, scored)
        limit = None if learned is None else learned.limit
        if again := take_rows(measured, watch, limit, audited=audited):
            info(f"monitor: {again} labels are of questions and answers that were labeled before")


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


def take_rows(rows: Iterable[Row], watch: PromiseWatch, limit: float | None, *, audited: bool = False) -> int:
    """Add rows of a file to the watch; `limit` is the threshold of rows without one.

    For equal question, context and answer, the first label counts. Return the number of later labels.
    """
    left, labeled, ungraded = iter(rows), Counter[str](), 0
    while batch := list(islice(left, PAGE)):
        values = [{**row.json, "correct": row.verdict} for row in batch]
        watch.observe(*(float(row["confidence"]) for row in values if row["confidence"] is not None))
        labels = (row for row in values if row["correct"] is not None)
        used = (row for row in labels if row.get("audited") or not audited)
        watch.update(*(_reply(row, limit) for row in used if _is_first(row, labeled)))
        ungraded += sum(row["correct"] is None and bool(row.get("answers")) for row in values)
    if ungraded:
        info(
            f"monitor: {ungraded:,} rows have 'answers' but no 'correct' and are no labels; run semcal grade"
        )
    return labeled.total() - len(labeled)


def _is_first(row: Mapping[str, Any], labeled: Counter[str]) -> bool:
    """Count the label of a row; return whether no earlier label is of equal question, context and answer."""
    content = [row.get(name) for name in ("question", "messages", "context", "answer")]
    if content[3] is None or not (content[0] or content[1]):
        return True
    labeled[subject := dumps(content)] += 1
    return labeled[subject] == 1


def _reply(row: Mapping[str, Any], limit: float | None) -> LabelledReply:
    answered = (_number(row["confidence"]), _number(row.get("threshold", limit)), bool(row.get("abstained")))
    return LabelledReply(str(row.get("id")), *answered, row["correct"], bool(row.get("audited")))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _measured(rows: Iterable[Row], calibration: Calibration) -> list[Row]:
    """Return rows with a score as rows with its probability as the confidence; others are kept."""
    from semcal.calibration.compatibility import CalibrationStep

    known = list(rows)
    scores = [row for row in known if not row.has("confidence")]
    measured = iter(CalibrationStep(calibration)(scores))
    chosen = (row if row.has("confidence") else next(measured) for row in known)
    return [row if row.has("confidence") else row.set(confidence=row["probability"]) for row in chosen]


def _open(
    file: str, columns: list[str] | None, calibration: Calibration | None = None
) -> Iterator[Row | InputError]:
    """Yield the rows of a file, or with a calibration of a score also rows with it; bad rows are errors."""
    from semcal.calibration.compatibility import check_calibratable

    ids = set[str]()

    def check(row: Row) -> None:
        if calibration is not None and not row.has("confidence"):
            check_calibratable(row, calibration)
            row = row.set(confidence=0.5)
        _check_row(row)
        if row.has("id"):
            if str(row.json["id"]) in ids:
                raise InputError("the id occurs in an earlier row; a reply has one label. Remove one row")
            ids.add(str(row.json["id"]))

    return open_rows(file, columns, check, fields=READ, label="monitor")


def _check_row(row: Row) -> None:
    """Raise InputError unless the row holds the watched values of one answer."""
    if not row.has("confidence"):
        raise InputError(
            "'confidence': missing (null for an unknown one). Pass --columns confidence=NAME for another name"
        )
    for key in READ[1:]:
        value = row.json.get(key)
        if isinstance(value, Mapping):
            raise InputError(
                f"{key!r} holds several measures. Pass the columns of the answer: --columns "
                "confidence=probability, --columns correct=answer_correct"
            )
        if key in ("confidence", "threshold"):
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
            if value is not None and not 0 <= number <= 1:
                raise InputError(f"{key!r} must be a number from 0 to 1, or null, got {shown(value)}")
        elif key == "correct":
            _ = row.verdict
        elif value not in (None, 0, 1):
            raise InputError(f"{key!r} must be true, false or null, got {shown(value)}")


# ---- Output ------------------------------------------------------------------------------------------------


def _page(watch: PromiseWatch, alpha: float) -> str:
    """Return the watches as text: the result first, then figures and evidence of each watch."""
    figures = {"risk": _risk, "calibration": _calibration, "questions": _questions}
    of_labels = {name: test for name, test in watch.tests.items() if name != "questions"}
    alarms = [name for name, test in of_labels.items() if test.alarm_at is not None]
    result = "No alarm: the labels do not contradict the calibration so far."
    if alarms:
        result = f"ALARM: {' and '.join(alarms)}. Read docs/alarm.md."
    elif not any(test.n for test in of_labels.values()):
        result = "No alarm: there are no labels yet."
    lines = [result, ""]
    for name, test in watch.tests.items():
        unit = "replies" if name == "questions" else "labels"
        evidence = f"e-value {test.e_value:.3g} after {test.n:,} {unit}"
        lines.append(paragraph(f"{name:<13}{figures[name](watch)}; {evidence}", indent=" " * 13))
    never = (
        f"An e-value of {1 / alpha:.3g} is an alarm. If a promise holds, the probability of an alarm is at "
        f"most {100 * alpha:.3g}%, however long the watch runs. This requires that the time of a label does "
        "not depend on its value."
    )
    return "\n".join([*lines, "", paragraph(never)])


def _risk(watch: PromiseWatch) -> str:
    test = watch.tests["risk"]
    risks = [watch.risk] if watch.risk is not None else [risk for _, risk in watch.risks]
    promised = "at most " + " and ".join(f"{100 * risk:.3g}%" for risk in risks) + " promised"
    if not test.n:
        return f"no labels of answered replies; {promised}"
    wrong = round(test.groups["answered"].outcome_sum)
    share = f"{wrong:,} of {test.n:,} answers are wrong ({100 * wrong / test.n:.3g}%), {promised}"
    return f"{_verdict(test)}; {share}"


def _calibration(watch: PromiseWatch) -> str:
    test = watch.tests["calibration"]
    if not test.n:
        return "no labels of replies with a probability"
    labels = next(iter(test.groups.values()))  # of all replies
    stated, right = labels.mean_sum / test.n, 100 * labels.outcome_sum / test.n
    text = f"{_verdict(test)}; the mean probability is {stated:.3f}, and {right:.3g}% are right"
    where = test.strongest if test.notice_at is not None and " to " in test.strongest else None
    return text if where is None else f"{text}; the largest gap is at probabilities {where}"


def _questions(watch: PromiseWatch) -> str:
    test = watch.tests["questions"]
    if test.alarm_at is not None:
        return f"different from the questions of the calibration since reply {test.alarm_at:,}; label some"
    return "similar to the questions of the calibration"


def _verdict(test: SequentialTest) -> str:
    if test.alarm_at is not None:
        return f"ALARM at label {test.alarm_at:,}"
    if test.notice_at is None:
        return "holds so far"
    return f"notice at label {test.notice_at:,}: the promise may not hold"


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
    with an opposite verdict. Choose labels with --id, --key, --since and --until. A running server removes
    struck labels from its watch at the next label, or at the next reply during an alarm.
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
