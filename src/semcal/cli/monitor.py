"""`semcal monitor`: whether labels that came later bear out what a calibration promises."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.console import info, refuse_existing, show
from semcal.cli.row_streams import BadRows, good_rows, open_rows
from semcal.databases import is_database
from semcal.errors import InputError, UsageError, shown
from semcal.files import dumps
from semcal.rows import Row

if TYPE_CHECKING:
    from semcal.calibration.calibrated import Calibration
    from semcal.serve.log import LabelledReply
    from semcal.serve.watch import PromiseWatch, WatchName

READ = ("id", "confidence", "abstained", "correct", "threshold", "audited")


def command(
    file: str = Argument(
        metavar="FILE", help="What semcal serve --log wrote, or rows (JSON Lines; - for standard input)."
    ),
    risk: float | None = opt.PROMISED_RISK,
    calibration: str | None = opt.CALIBRATION,
    alpha: float = opt.ALPHA,
    tolerance: float | None = opt.TOLERANCE,
    audited: bool = Option(
        False, "--audited", help="Only labels of replies that semcal serve --audit has marked."
    ),
    plot: Path | None = Option(
        None,
        "--plot",
        metavar="FILE",
        callback=opt.out_path,
        help="Draw the e-values label by label (.pdf, .png, .svg).",
    ),
    columns: list[str] | None = opt.COLUMNS,
    overwrite: bool = opt.OVERWRITE,
    json: bool = opt.JSON,
) -> int:
    """Watch whether the promise of a calibration holds, by labels in the order in which they came.

    Reads the log of semcal serve, or rows {id, confidence, abstained, correct}; without correct a reply has
    no label yet. Prints a line a watch: risk (wrong among answered, against --risk or what --calibration
    promises), calibration (whether of answers with probability p the share p is right) and, with
    --calibration, questions (whether probabilities are as on its questions; a warning, no alarm). The exit
    code is 1 if there is an alarm.
    """
    from semcal.serve.watch import PromiseWatch

    if plot is not None:
        from semcal.plotting import check_figure_path

        check_figure_path(plot)
        if not overwrite:
            refuse_existing("--plot", plot)
    learnt = None if calibration is None else opt.open_calibration(calibration)
    course = Course(PromiseWatch.of(learnt, risk=risk, alpha=alpha, tolerance=tolerance))
    with BadRows() as bad:
        if file != "-" and is_database(Path(file)):
            if columns:
                raise UsageError("--columns is for a file of rows, and a log has none; leave it out")
            _read_log(file, course, learnt, audited=audited)
        else:
            limit = None if learnt is None else learnt.limit
            for row in good_rows(_open(file, columns), bad):
                course.take(row, limit, audited=audited)
    watch = course.watch
    alpha = watch.tests["calibration"].alpha
    if "risk" not in watch.tests:
        info("monitor: no risk is promised, and none is watched; name it (--risk), or a calibration with one")
    if plot is not None:
        from semcal.plotting import watch_figure, write_figure

        write_figure(
            watch_figure(course.log_e, {name: test.alarm_at for name, test in watch.tests.items()}, alpha),
            plot,
        )
    if json or not sys.stdout.isatty():
        for line in watch.lines:
            show(dumps(line))
    else:
        show(_page(course, alpha))
    return 1 if watch.alarm else bad.exit_code()


@dataclass
class Course:
    """A watch, and how its e-values went."""

    watch: PromiseWatch
    log_e: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0  # of the answered ones that count for the risk
    right: int = 0  # of those with a probability
    mean: float = 0.0  # probability of these

    def __post_init__(self) -> None:
        self.log_e = {name: [] for name in self.watch.tests}

    def update(self, reply: LabelledReply) -> None:
        """Take a label."""
        self.watch.update(reply)
        self.wrong += self._note("risk") and not reply.correct
        if self._note("calibration"):
            assert reply.probability is not None
            self.right += reply.correct
            self.mean += (reply.probability - self.mean) / self.watch.tests["calibration"].n

    def observe(self, probability: float) -> None:
        """Take the probability of a reply."""
        self.watch.observe(probability)
        self._note("questions")

    def take(self, row: Row, limit: float | None, *, audited: bool) -> None:
        """Take a row of a file; where it names no threshold `limit` decided."""
        from semcal.serve.log import LabelledReply

        values = row.json
        probability = _number(values["confidence"])
        if probability is not None:
            self.observe(probability)
        marked = bool(values.get("audited"))
        if values.get("correct") is None or (audited and not marked):
            return
        threshold = _number(values.get("threshold", limit))
        answered = (probability, threshold, bool(values.get("abstained")))
        self.update(LabelledReply(str(values.get("id")), *answered, bool(values["correct"]), marked))

    def _note(self, name: WatchName) -> bool:
        """Note the e-value of a test if it took an outcome."""
        test = self.watch.tests.get(name)
        if test is None or test.n == len(self.log_e[name]):
            return False
        self.log_e[name].append(test.log_e)
        return True


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _read_log(file: str, course: Course, calibration: Calibration | None, *, audited: bool) -> None:
    """Take the replies of a calibration, or of the one that answered."""
    from semcal.serve.log import ReplyLog

    log = ReplyLog(Path(file))
    try:
        labels = log.calibrations()
        ids = tuple(labels) if calibration is None else calibration.ids_in_logs
        if len(set(ids) - {""}) > 1 and calibration is None:
            raise UsageError(
                f"{file} has replies by the calibrations {', '.join(filter(None, ids))}, each with a promise "
                "of its own; give one of them (--calibration)"
            )
        if others := sum(count for name, count in labels.items() if name not in ids):
            info(f"monitor: {others} labels are of replies by other calibrations, and do not count")
        if "questions" in course.watch.tests:
            for probability in log.probabilities(ids):
                course.observe(probability)
        for reply in log.labelled(ids):
            if reply.audited or not audited:
                course.update(reply)
    finally:
        log.close()


def _open(file: str, columns: list[str] | None) -> Iterator[Row | InputError]:
    """The rows of a file; those that cannot be used are errors."""
    ids = set[str]()

    def check(row: Row) -> None:
        _check_row(row)
        if row.has("id"):
            if str(row.json["id"]) in ids:
                raise InputError("this id is in a row before; a reply has one label, the first that came")
            ids.add(str(row.json["id"]))

    return open_rows(file, columns, check, fields=READ, label="monitor")


def _check_row(row: Row) -> None:
    """Raise InputError unless the row says of one answer what is watched."""
    if not row.has("confidence"):
        raise InputError(
            "no 'confidence' (null where the answer had none); --columns confidence=NAME for another name"
        )
    for key in READ[1:]:
        value = row.json.get(key)
        if isinstance(value, Mapping):
            raise InputError(
                f"{key!r} holds several measures; name the column of the answer's own: --columns "
                "confidence=probability, --columns correct=answer_correct"
            )
        if key in ("confidence", "threshold"):
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
            if value is not None and not 0 <= number <= 1:
                raise InputError(f"{key!r} must be a number from 0 to 1, or null, got {shown(value)}")
        elif value not in (None, 0, 1):
            raise InputError(f"{key!r} must be true, false or null, got {shown(value)}")


# ---- What is printed ---------------------------------------------------------------------------------------


def _page(course: Course, alpha: float) -> str:
    """The watches as a person reads them."""
    verdicts = {"risk": _risk, "calibration": _calibration, "questions": _questions}
    lines = [
        f"{name:<12} {test.n:>7} {test.e_value:>9.3g}  {verdicts[name](course)}"
        for name, test in course.watch.tests.items()
    ]
    chance = f"{100 * alpha:.3g} %"
    return "\n".join(
        [
            f"{'watch':<12} {'labels':>7} {'e-value':>9}",
            *lines,
            "",
            f"While what is watched holds, its e-value ever reaches {1 / alpha:.3g} with a chance of at most",
            f"{chance}, if whether a label comes does not depend on its value.",
            *(["What to do: docs/monitor.md."] if course.watch.alarm else []),
        ]
    )


def _risk(course: Course) -> str:
    watch, test = course.watch, course.watch.tests["risk"]
    risks = [watch.risk] if watch.risk is not None else [risk for _, risk in watch.risks]
    promised = " and ".join(f"{100 * risk:.3g} %" for risk in risks) + " promised"
    if not test.n:
        return f"no labels of answered replies; {promised}"
    share = f"{course.wrong} of {test.n} answered are wrong ({100 * course.wrong / test.n:.3g} %), {promised}"
    return f"{_verdict(test.alarm_at)}; {share}"


def _calibration(course: Course) -> str:
    test = course.watch.tests["calibration"]
    if not test.n:
        return "no labels of replies with a probability"
    right = course.right / test.n
    text = f"{_verdict(test.alarm_at)}; {100 * course.mean:.3g} % said to be right, {100 * right:.3g} % are"
    return text if test.alarm_at is None or test.strongest == "all" else f"{text}; most at p {test.strongest}"


def _questions(course: Course) -> str:
    test = course.watch.tests["questions"]
    if test.alarm_at is not None:
        return f"look different from reply {test.alarm_at} on; label some"
    return "look like those of the calibration"


def _verdict(alarm_at: int | None) -> str:
    return "holds so far" if alarm_at is None else f"ALARM at label {alarm_at}"
