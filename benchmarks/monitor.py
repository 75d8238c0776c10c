"""Delay of alarms of `semcal monitor` for broken promises, and false alarms for promises that hold.

    python -m benchmarks monitor
    python -m benchmarks monitor --streams 100

Simulation with 1,000 streams each at level 0.05: labels of answered replies with a promised risk of 0.10,
labels of replies with probabilities by a map that each stream learns from 60 to 500 labels, and probabilities
alone. The same streams are used for ville (bets of Waudby-Smith and Ramdas with their plug-in, and for the
risk a two-sided mixture of beta distributions), and for MAPIE's RiskMonitoring with the promised risk as its
threshold, at level 0.10, of which its online part gets half. Missing packages have a row that says so.
Probabilities are also watched by bets that treat them as exact, and by bets that tolerate two standard errors
of the accuracy among the labels.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from benchmarks import not_run
from benchmarks.__main__ import table
from semcal.calibration.calibration import Calibration, LabeledAnswers
from semcal.calibration.watch import ALPHA, BANDS, RANGES, PromiseWatch, is_within
from semcal.metrics.probability_maps import MapCandidate, choose_map
from semcal.metrics.thresholds import ABOVE, BOTH, EProcess
from semcal.reply_log import LabelledReply

RISK, STREAMS = 0.1, 1000
QUICK = {"STREAMS": 1}
#: Number of labels of the calibration with watched probabilities.
LABELED = 600
#: Numbers of labels for a map, and of watched replies.
LEARNED, REPLIES = (60, 120, 250, 500), 2000
Floats = NDArray[np.float64]


class Labels(NamedTuple):
    """A stream of labels, and the labels of the calibration."""

    outcomes: Floats  # (N,)
    means: Floats  # (N,), as predicted
    labeled: Floats | None = None  # (M, 2): probability by the map, and whether the answer is right


#: The data of a stream's calibration.
ATLAS = Calibration.from_pretrained("atlas")
BELOW = BOTH[len(ABOVE) :]
#: A function from a stream to the number of the outcome that raised an alarm.
Tool = Callable[[Labels], int | None]


@dataclass(frozen=True)
class Stream:
    """Streams of labels: their generator, and the number of labels before a change."""

    name: str
    draw: Callable[[np.random.Generator], Labels]
    after: int = 0  # labels before anything changes


def risk_stream(name: str, risks: Sequence[tuple[int, float]], after: int = 0) -> Stream:
    """Return labels of answered replies with these shares of wrong answers, one after the other."""
    rates = np.concatenate([np.full(n, rate) for n, rate in risks])
    return Stream(
        name, lambda rng: Labels((rng.random(len(rates)) < rates) * 1.0, np.full(len(rates), RISK)), after
    )


#: Models with accuracy 0.59, 0.86 and 0.15: the beta distribution of the share of the answer, and the logit
#: of being correct for a share of one half.
MODELS = {
    "of a usual model": (3, 1.5, -0.4),
    "of an able model": (6, 1, 0.2),
    "of a weak model": (1.5, 3, -1.2),
}


def questions(rng: np.random.Generator, n: int, model: str) -> tuple[dict[str, Floats], Floats]:
    """Return shares of ten samples (n,), and the probability (n,) that each answer is correct."""
    a, b, logit_at_half = MODELS[model]
    share = np.clip(rng.binomial(10, rng.beta(a, b, n)) / 10, 0.1, 1)
    return {"E-SC": share}, expit(1.1 * logit(0.05 + 0.9 * share) + logit_at_half)


def reply_stream(name: str, n: int, change: Callable[[Floats, Floats], Floats], model: str) -> Stream:
    """Return replies with the probability of a map that is learned from n labels.

    `change` turns the accuracy among the labels and the probability into the accuracy of the replies.
    """

    def draw(rng: np.random.Generator) -> Labels:
        values, chance = questions(rng, n, model)
        right = (rng.random(n) < chance) * 1.0
        none = MapCandidate("none", ("E-SC",))
        trials = [none, replace(none, kind="beta"), replace(none, kind="isotonic", fewest=50, tier=1)]
        seed = int(rng.integers(2**31))
        learned = choose_map(values, right, trials, seed=seed).map
        labeled = np.stack([learned.predict(values), right], axis=1)
        values, chance = questions(rng, REPLIES, model)
        said = learned.predict(values)
        outcomes = (rng.random(REPLIES) < np.clip(change(chance, said), 0, 1)) * 1.0
        return Labels(outcomes, said, labeled)

    return Stream(f"{name}, {n} labels {model}", draw)


RISK_STREAMS = (
    risk_stream("risk 0.10, as promised", [(2000, 0.1)]),
    risk_stream("wrong .15", [(2000, 0.15)]),
    risk_stream("wrong .20", [(2000, 0.2)]),
    risk_stream("risk 0.20 after 1,000 labels at 0.10", [(1000, 0.1), (1000, 0.2)], 1000),
)
USUAL, ABLE, WEAK = MODELS
REPLY_STREAMS = (
    *(reply_stream("as before", n, lambda c, _: c, USUAL) for n in LEARNED),
    *(reply_stream("as before", n, lambda c, _: c, ABLE) for n in LEARNED[::2]),
    *(reply_stream("accuracy 0.10 lower", n, lambda c, _: c - 0.1, USUAL) for n in LEARNED[1:]),
    reply_stream("three times the errors for p ≥ 0.9", 250, lambda c, p: c - 2 * (1 - c) * (p >= 0.9), ABLE),
)


def risk_watch(stream: Labels) -> int | None:
    """The watch on the risk."""
    watch = PromiseWatch.of(risk=RISK)
    for outcome in stream.outcomes:
        watch.update(LabelledReply("", None, 0.5, False, not outcome, False))
        if watch.alarm:
            break
    return watch.tests["risk"].alarm_at


def with_labels(p: Floats, correct: Floats) -> Calibration:
    """Return a calibration whose map gives these probabilities (N,) to the answers of its labels."""
    columns = tuple(p.tolist()), tuple((correct == 1).tolist())
    return replace(ATLAS, threshold=None, labeled=LabeledAnswers(*columns, *columns))


def reply_watch(stream: Labels, *, exact: bool = False, notice: bool = False) -> int | None:
    """Return the alarm of the watch on probabilities, against the calibration's labels or as if exact."""
    assert stream.labeled is not None
    watch = PromiseWatch.of(None if exact else with_labels(*stream.labeled.T))
    test = watch.tests["calibration"]
    for outcome, probability in zip(stream.outcomes.tolist(), stream.means.tolist()):
        watch.update(LabelledReply("", probability, None, False, bool(outcome), False))
        if test.alarm or (notice and test.notice_at):
            break
    return test.notice_at if notice else test.alarm_at


def tolerant_bets(stream: Labels) -> int | None:
    """Bet without gains for errors of less than two standard errors of the accuracy.

    The watch was of this kind before it compared labels.
    """
    assert stream.labeled is not None
    share = stream.labeled[:, 1].mean()
    tolerance = 2 * math.sqrt(share * (1 - share) / len(stream.labeled))
    groups = {name: (EProcess(ABOVE), EProcess(BELOW)) for name in ("all", *BANDS)}
    for number, (outcome, p) in enumerate(zip(stream.outcomes.tolist(), stream.means.tolist()), 1):
        for name, (above, below) in groups.items():
            if is_within(p, *RANGES[name]):
                above.update(outcome, min(p + tolerance, 1.0))
                below.update(outcome, max(p - tolerance, 0.0))
        first, *bands = (
            np.logaddexp(above.log_e, below.log_e) - math.log(2) for above, below in groups.values()
        )
        if (math.exp(first) + np.exp(bands).mean()) / 2 >= 1 / ALPHA:
            return number
    return None


def ville_bets(side: str) -> Tool:
    """Bet on the difference between outcomes and probabilities."""
    import ville

    test = ville.BettingTest(0.0, bounds=(-1, 1), alternative=side, alpha=ALPHA)
    return lambda stream: test.fit(stream.outcomes - stream.means).stopping_time()


def ville_risk_bets() -> Tool:
    """Bet on outcomes against the promised risk."""
    import ville

    test = ville.BettingTest(RISK, alternative="greater", alpha=ALPHA)
    return lambda stream: test.fit(stream.outcomes).stopping_time()


def ville_mixture() -> Tool:
    """Return the two-sided mixture of beta distributions."""
    import ville

    test = ville.BernoulliTest(RISK, alpha=ALPHA)
    return lambda stream: test.fit(stream.outcomes).stopping_time()


def mapie() -> Tool:
    """Return the lower bound of the risk."""
    from mapie.exchangeability_testing import RiskMonitoring

    def alarm_at(stream: Labels) -> int | None:
        wrong = stream.outcomes
        monitor = RiskMonitoring("accuracy", test_level=2 * ALPHA, threshold=RISK, warn=False)
        monitor.update(wrong.astype(int), np.zeros(len(wrong), int))
        above = np.flatnonzero(monitor.online_risk_lower_bound_sequence_history > RISK)
        return int(above[0]) + 1 if len(above) else None

    return alarm_at


#: By stream: the name of a tool, its package, and its constructor.
RISK_TOOLS: tuple[tuple[str, str, Callable[[], Tool]], ...] = (
    ("semcal", "semcal", lambda: risk_watch),
    ("ville BettingTest", "ville", ville_risk_bets),
    ("ville BernoulliTest", "ville", ville_mixture),
    ("MAPIE RiskMonitoring", "mapie", mapie),
)
REPLY_TOOLS: tuple[tuple[str, str, Callable[[], Tool]], ...] = (
    ("semcal", "semcal", lambda: reply_watch),
    ("semcal, notice", "semcal", lambda: partial(reply_watch, notice=True)),
    ("bets, exact probabilities", "semcal", lambda: partial(reply_watch, exact=True)),
    ("bets, two standard errors tolerated", "semcal", lambda: tolerant_bets),
    ("ville BettingTest", "ville", lambda: ville_bets("two-sided")),
)


def is_there(package: str) -> bool:
    """Return whether a package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def row_of(
    watch: str, stream: str, tool: str, alarms: Sequence[int | None], after: int = 0
) -> dict[str, Any]:
    """Return a row of alarms in all streams: before the change, ever, and the delay in labels."""
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
        "90% of streams by label": None if np.isinf(most) else int(most),
    }


def labelled_rows(streams: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of both watches that read labels, each tool on the same streams."""
    for watch, kinds, tools in (
        ("risk", RISK_STREAMS, RISK_TOOLS),
        ("calibration", REPLY_STREAMS, REPLY_TOOLS),
    ):
        present = [(name, make()) for name, package, make in tools if is_there(package)]
        for place, kind in enumerate(kinds):
            for name, tool in present:
                drawn = (kind.draw(np.random.default_rng([place, seed])) for seed in range(streams))
                yield row_of(watch, kind.name, name, [tool(stream) for stream in drawn], kind.after)


def shaped_stream(name: str, shape: tuple[float, float]) -> Stream:
    """Return replies whose probabilities have this beta distribution, different from that of the labels."""

    def draw(rng: np.random.Generator) -> Labels:
        p = rng.beta(4, 2, LABELED)
        return Labels(np.empty(0), rng.beta(*shape, 1000), np.stack([p, p > 0.5], axis=1))

    return Stream(name, draw)


QUESTION_STREAMS = (
    shaped_stream("unchanged probabilities", (4, 2)),
    shaped_stream("mean 0.10 lower", (3.4, 2.6)),
    *(reply_stream("as before", n, lambda c, _: c, model) for model in (USUAL, WEAK) for n in (60, 250)),
)


def question_rows(streams: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the watch without labels, on 1,000 replies."""
    for place, kind in enumerate(QUESTION_STREAMS):
        alarms = []
        for seed in range(streams):
            _, means, labeled = kind.draw(np.random.default_rng([9, place, seed]))
            assert labeled is not None
            watch = PromiseWatch.of(with_labels(*labeled.T))
            if (test := watch.tests.get("questions")) is not None:  # else all have one probability
                for probability in means[:1000].tolist():
                    watch.observe(probability)
                    if test.alarm:
                        break
            alarms.append(None if test is None else test.alarm_at)
        yield row_of("questions", kind.name, "semcal", alarms)


def results(streams: int | None = None) -> list[dict[str, Any]]:
    """Return a row for each watch, stream and tool."""
    streams, packages = streams or STREAMS, ("ville", "mapie")
    print(*(f"{package} {version(package)}" for package in packages if is_there(package)), "", sep="\n")
    lacking = [
        {"watch": "risk", "tool": f"{name}: {not_run(name)}"} for name in packages if not is_there(name)
    ]
    return [*labelled_rows(streams), *question_rows(streams), *lacking]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table for a number of streams."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks monitor")
    parser.add_argument("--streams", type=int, default=None)
    print(table(results(parser.parse_args(arguments).streams)))


if __name__ == "__main__":
    main(sys.argv[1:])
