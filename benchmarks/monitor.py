"""How soon `semcal monitor` sees that a promise does not hold, and how often it is wrong where it holds.

    python -m benchmarks monitor
    python -m benchmarks monitor --streams 100

Simulated, 1,000 streams each, level .05: labels of answered replies against a promised risk of .10, labels of
replies with their probabilities, and probabilities alone. On the same streams ville (Waudby-Smith and Ramdas'
bets with their plug-in, and for the risk a mixture of beta distributions, two-sided) and MAPIE's
RiskMonitoring with the promised risk as its threshold, at a level of .10, of which its online part gets half;
what is not installed gets a row that says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import not_run
from benchmarks.__main__ import table
from semcal.calibration.calibrated import Calibration, LikeAnswers
from semcal.metrics.probability_maps import MapCandidate
from semcal.serve.log import LabelledReply
from semcal.serve.watch import ALPHA, TOLERATED, PromiseWatch

RISK, STREAMS = 0.1, 1000
QUICK = {"STREAMS": 1}
#: Labels of the calibration whose probabilities are watched, and of the map that is learnt.
LABELLED, LEARNT = 600, 500
#: The watch's own tolerance for a calibration of so many labels, of which two in three are right.
TOLERANCE = TOLERATED * float(np.sqrt(2 / 9 / LEARNT))
Floats = NDArray[np.float64]
#: From outcomes and what they should be on average to the number of the outcome that raised an alarm.
Tool = Callable[[Floats, Floats], int | None]


@dataclass(frozen=True)
class Stream:
    """Streams of labels: how they come to be, and what their alarms are counted from."""

    name: str
    draw: Callable[[np.random.Generator], tuple[Floats, Floats]]  # outcomes, and what is said of them
    after: int = 0  # labels before anything changes


def risk_stream(name: str, risks: Sequence[tuple[int, float]], after: int = 0) -> Stream:
    """Labels of answered replies, of which these shares are wrong, one after the other."""
    rates = np.concatenate([np.full(n, rate) for n, rate in risks])
    return Stream(
        name, lambda rng: ((rng.random(len(rates)) < rates) * 1.0, np.full(len(rates), RISK)), after
    )


def reply_stream(name: str, excess: Callable[[Floats], Floats], n: int = 1000) -> Stream:
    """Replies whose probability lies too high by `excess`."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats]:
        p = rng.beta(4, 2, n)
        return (rng.random(n) < np.clip(p - excess(p), 0, 1)) * 1.0, p

    return Stream(name, draw)


def learnt_stream(name: str, n: int) -> Stream:
    """Replies whose probability a logistic map gives that was learnt from `LEARNT` labels."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats]:
        score = rng.beta(3, 1.5, LEARNT + n)
        right = (rng.random(LEARNT + n) < 1 / (1 + np.exp(0.6 - 1.3 * np.log(score / (1 - score))))) * 1.0
        learned = MapCandidate("logistic", ("score",)).fit({"score": score[:LEARNT]}, right[:LEARNT])
        return right[LEARNT:], learned.predict({"score": score[LEARNT:]})

    return Stream(name, draw)


RISK_STREAMS = (
    risk_stream("wrong .10, as promised", [(2000, 0.1)]),
    risk_stream("wrong .15", [(2000, 0.15)]),
    risk_stream("wrong .20", [(2000, 0.2)]),
    risk_stream("wrong .20 after 1000 at .10", [(1000, 0.1), (1000, 0.2)], 1000),
)
REPLY_STREAMS = (
    reply_stream("right as often as said", lambda p: 0 * p),
    reply_stream(".10 less often", lambda p: 0 * p + 0.1),
    reply_stream(".15 less often from .8 on", lambda p: 0.15 * (p >= 0.8)),
    learnt_stream("learnt from 500 labels, 1000 replies", 1000),
    learnt_stream("learnt from 500 labels, 5000 replies", 5000),
)


def risk_watch(wrong: Floats, _: Floats) -> int | None:
    """The watch on the risk."""
    watch = PromiseWatch.of(risk=RISK)
    for outcome in wrong:
        watch.update(LabelledReply("", None, 0.5, False, not outcome, False))
        if watch.alarm:
            break
    return watch.tests["risk"].alarm_at


def reply_watch(right: Floats, p: Floats, tolerance: float = 0.0) -> int | None:
    """The watch on probabilities."""
    watch = PromiseWatch.of(tolerance=tolerance)
    for outcome, probability in zip(right.tolist(), p.tolist()):
        watch.update(LabelledReply("", probability, None, False, bool(outcome), False))
        if watch.alarm:
            break
    return watch.tests["calibration"].alarm_at


def ville_bets(side: str) -> Tool:
    """Bets on the difference between outcomes and what was said."""
    import ville

    test = ville.BettingTest(0.0, bounds=(-1, 1), alternative=side, alpha=ALPHA)
    return lambda outcomes, means: test.fit(outcomes - means).stopping_time()


def ville_risk_bets() -> Tool:
    """Bets on outcomes against the promised risk."""
    import ville

    test = ville.BettingTest(RISK, alternative="greater", alpha=ALPHA)
    return lambda wrong, _: test.fit(wrong).stopping_time()


def ville_mixture() -> Tool:
    """The mixture of beta distributions, which is two-sided."""
    import ville

    test = ville.BernoulliTest(RISK, alpha=ALPHA)
    return lambda wrong, _: test.fit(wrong).stopping_time()


def mapie() -> Tool:
    """The lower bound of the risk."""
    from mapie.exchangeability_testing import RiskMonitoring

    def alarm_at(wrong: Floats, _: Floats) -> int | None:
        monitor = RiskMonitoring("accuracy", test_level=2 * ALPHA, threshold=RISK, warn=False)
        monitor.update(wrong.astype(int), np.zeros(len(wrong), int))
        above = np.flatnonzero(monitor.online_risk_lower_bound_sequence_history > RISK)
        return int(above[0]) + 1 if len(above) else None

    return alarm_at


#: By stream: the name of a tool, its package, and what makes it.
RISK_TOOLS: tuple[tuple[str, str, Callable[[], Tool]], ...] = (
    ("semcal", "semcal", lambda: risk_watch),
    ("ville BettingTest", "ville", ville_risk_bets),
    ("ville BernoulliTest", "ville", ville_mixture),
    ("MAPIE RiskMonitoring", "mapie", mapie),
)
REPLY_TOOLS: tuple[tuple[str, str, Callable[[], Tool]], ...] = (
    ("semcal", "semcal", lambda: reply_watch),
    ("semcal, 500 labels", "semcal", lambda: partial(reply_watch, tolerance=TOLERANCE)),
    ("ville BettingTest", "ville", lambda: ville_bets("two-sided")),
)


def is_there(package: str) -> bool:
    """Whether a package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def row_of(
    watch: str, stream: str, tool: str, alarms: Sequence[int | None], after: int = 0
) -> dict[str, Any]:
    """Alarms in all streams as a row: before anything changed, ever, and how many labels later."""
    at = np.array([np.inf if alarm is None else alarm for alarm in alarms])
    early = at <= after if after else np.zeros(len(at), bool)
    median, most = np.quantile(at[~early] - after, [0.5, 0.9], method="inverted_cdf")
    return {
        "watch": watch,
        "stream": stream,
        "tool": tool,
        "alarms": float(np.mean(np.isfinite(at))),
        "before the change": float(np.mean(early)) if after else None,
        "median labels": None if np.isinf(median) else int(median),
        "90 % of streams by": None if np.isinf(most) else int(most),
    }


def labelled_rows(streams: int) -> Iterator[dict[str, Any]]:
    """The rows of both watches that read labels, each tool on the same streams."""
    for watch, kinds, tools in (
        ("risk", RISK_STREAMS, RISK_TOOLS),
        ("calibration", REPLY_STREAMS, REPLY_TOOLS),
    ):
        present = [(name, make()) for name, package, make in tools if is_there(package)]
        for place, kind in enumerate(kinds):
            for name, tool in present:
                drawn = (kind.draw(np.random.default_rng([place, seed])) for seed in range(streams))
                yield row_of(watch, kind.name, name, [tool(*stream) for stream in drawn], kind.after)


def question_rows(streams: int) -> Iterator[dict[str, Any]]:
    """The rows of the watch that reads no labels."""
    atlas = Calibration.from_pretrained("atlas")
    for name, shape in (("probabilities as before", (4, 2)), ("mean .10 lower", (3.4, 2.6))):
        alarms = []
        for seed in range(streams):
            rng = np.random.default_rng([9, seed])
            parts = np.array_split(np.sort(rng.beta(4, 2, LABELLED)), 10)
            like = tuple(LikeAnswers(float(part[0]), float(part[-1]), len(part), 0) for part in parts)
            watch = PromiseWatch.of(replace(atlas, report=replace(atlas.report, like=like)))
            for probability in rng.beta(*shape, 1000).tolist():
                watch.observe(probability)
                if watch.tests["questions"].alarm:
                    break
            alarms.append(watch.tests["questions"].alarm_at)
        yield row_of("questions", name, "semcal", alarms)


def results(streams: int | None = None) -> list[dict[str, Any]]:
    """A row for each watch, stream and tool."""
    streams, packages = streams or STREAMS, ("ville", "mapie")
    print(*(f"{package} {version(package)}" for package in packages if is_there(package)), "", sep="\n")
    lacking = [
        {"watch": "risk", "tool": f"{name}: {not_run(name)}"} for name in packages if not is_there(name)
    ]
    return [*labelled_rows(streams), *question_rows(streams), *lacking]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, of as many streams as are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks monitor")
    parser.add_argument("--streams", type=int, default=None)
    print(table(results(parser.parse_args(arguments).streams)))


if __name__ == "__main__":
    main(sys.argv[1:])
