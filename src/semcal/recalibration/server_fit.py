"""Fit T over a server without logits, from a few log-probabilities per answer token (spec section 6).

With raw log-probabilities s, β = 1/T and A(β) = log Σ exp(β s), the NLL of a token y is A(β) − β s_y, convex
in β. If the log-probability of one token i is known raw and at β, then A(β) = β s_i − log p_β(i).
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebder, chebfit, chebroots, chebval
from numpy.typing import NDArray

from semcal.errors import FitError, QuestionError, ServerError, UsageError
from semcal.models.features import FitFeatures
from semcal.recalibration.exact_solver import clustered_error, clusters_of, fit_temperatures
from semcal.recalibration.fit_data import FitData
from semcal.recalibration.records import (
    T_MAX,
    T_MIN,
    Loss,
    LossSums,
    TemperatureFit,
    certify,
    check_enough,
)
from semcal.rows import Json
from semcal.servers.sampler import GoldQuestion, PartitionRequests, ReplyRow, Route, ServerModel, choose_route
from semcal.store import Store

Array = NDArray[np.float64]
#: Number of questions whose requests are sent together, and whose replies are stored together.
BLOCK = 8
#: Maximum log-probabilities of whole vocabularies in memory (2 GB).
MOST_NUMBERS = 2**29
#: Chebyshev nodes of a window of temperatures, its half width in log T, and the inner part for the optimum.
NODES, HALF, INSIDE = np.cos(np.pi * (2 * np.arange(5) + 1) / 10), 0.2, 0.9
MOST_WINDOWS = 8


@dataclass(frozen=True)
class ServerFit:
    """A temperature with its numerical error, and the route over the server."""

    fit: TemperatureFit
    route_error: float  # numerical error of T
    route: Route = "one token"
    url: str = ""
    questions: tuple[int, ...] = ()  # indices of the questions with replies

    @property
    def report(self) -> Json:
        """Losses, error and interval of T, and the route with its error."""
        error = {"route": self.route, "route_error": self.route_error}
        return {**self.fit.report(), **error, "n_tokens": self.fit.n_tokens}

    @property
    def origin(self) -> Json:
        """The record of the server and of the error of T for the file."""
        names = ("route", "route_error", "standard_error", "interval")
        return {"url": self.url, **{name: self.report[name] for name in names}}


def choose_route_by(model: ServerModel, loss: str, route: Route | None = None) -> Route:
    """Return the route to T for a loss, by default the first possible route.

    UsageError without a tokenizer, or for SS without the whole vocabulary; ServerError if the server allows
    no route.
    """
    if model.format is None:
        raise UsageError(
            "server.tokenizer: missing, but a fit of T needs the tokens of answers. Pass the model's "
            "tokenizer: --config server.tokenizer=DIR"
        )
    if loss == "NLL":
        return choose_route(model.profile, route)
    try:
        return choose_route(model.profile, "whole vocabulary")
    except ServerError as error:
        raise UsageError(f"--loss: SS requires all logits: {error}. Omit --loss") from error


def plan_over_server(model: ServerModel, labelled: FitData, *, loss: str = "NLL") -> str:
    """Return a description of `fit_over_server` for these questions: route, requests and prompt tokens."""
    route, gold = choose_route_by(model, loss), _gold(labelled)
    first, later = PartitionRequests(model.client, model.profile).counts(gold, route)
    more = f", then {later:,} at each of at least five temperatures" if later else ""
    tokens = sum(
        len(question.prompt) + len(beginning) for question in gold for beginning in question.beginnings
    )
    return f"fit T by {route}: {first:,} requests{more} (all positions: {tokens:,} prompt tokens)"


def fit_over_server(
    model: ServerModel,
    labelled: FitData,
    loss: Loss = ("NLL", None),
    *,
    route: Route | None = None,
    seed: int = 0,
    keep: Path | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ServerFit:
    """Fit T to labeled questions from log-probabilities of a server for the tokens of reference answers.

    `route` and errors are those of `choose_route_by`; also ServerError if the server cannot be reached, and
    FitError if fewer than 5 questions are left, or T exceeds the maximum of the server. `keep` is a folder
    for replies of the server, from which the same call resumes.
    """
    chosen, groups = choose_route_by(model, loss[0], route), labelled.groups()
    settings = {"model": model.revision, "url": model.profile.url}
    store = None if keep is None else Store(keep)
    requests = PartitionRequests(model.client, model.profile)
    rows_of = _RowsOfQuestions(requests, _gold(labelled), store, settings, progress, on_bad_question)
    if chosen == "whole vocabulary":
        fitted = _by_whole_vocabulary(rows_of, loss, groups=groups, seed=seed)
    else:  # from the most likely token at each position, raw and at some temperatures
        raw = rows_of.rows(lambda numbers: requests.raw(rows_of.numbered(numbers)), key=["raw"])
        check_enough(len(raw), of="that the server answered for")

        def losses(beta: float) -> Array:
            def ask(numbers: list[int]) -> list[ReplyRow]:
                return requests.losses(rows_of.numbered(numbers), [raw[i] for i in numbers], 1 / beta)

            return rows_of.by_token(rows_of.rows(ask, key=["losses", beta]), "nll")

        hottest = min(model.profile.max_temperature or T_MAX, T_MAX)
        fitted = fit_by_losses(losses, rows_of.gold(raw, groups), hottest=hottest)
    most = model.profile.max_temperature
    if fitted.fit.certificate.at_bound and most is not None and math.isclose(fitted.fit.temperature, most):
        raise FitError(
            f"temperature: the optimum exceeds {most:g}, the maximum of {model.profile.url}. Check that the "
            "reference answers belong to the questions"
        )
    return replace(fitted, route=chosen, url=model.profile.url, questions=tuple(rows_of.answered))


def _gold(labelled: FitData) -> list[GoldQuestion]:
    rows = zip(labelled.questions, labelled.prompts, labelled.answers)
    return [GoldQuestion(question.id, prompt.token_ids, tuple(answers)) for question, prompt, answers in rows]


@dataclass(frozen=True)
class GoldTokens:
    """The N tokens of the reference answers to Q questions."""

    question: NDArray[np.intp]  # (N,)
    weight: Array  # (N,), equal weights of the references of a question, with sum 1
    log_probs: Array  # (N,), raw log-probabilities s_y; NaN for an omitted question
    groups: NDArray[np.intp] | None = None  # (Q,), as in `fit_temperatures`

    def by_question(self, values: Array) -> Array:
        """Sum weighted values (..., N) of the tokens of each question (..., Q)."""
        sums = np.zeros((*values.shape[:-1], int(self.question.max()) + 1))
        np.add.at(sums.T, self.question, (self.weight * values).T)
        return sums


@dataclass
class _RowsOfQuestions:
    """Rows of all questions from the server or the store, and the questions that failed so far."""

    requests: PartitionRequests
    questions: Sequence[GoldQuestion]
    store: Store | None
    settings: Json  # settings of the server
    progress: Callable[[int], None] | None
    on_bad_question: Callable[[QuestionError], None] | None
    failed: set[int] = field(default_factory=set)

    @property
    def answered(self) -> list[int]:
        """Indices of the questions that did not fail."""
        return [i for i in range(len(self.questions)) if i not in self.failed]

    def rows(
        self, ask: Callable[[list[int]], Sequence[ReplyRow]], *, key: Sequence[Any]
    ) -> dict[int, ReplyRow]:
        """Return the rows of all questions that have not failed, by index; `ask` receives some indices."""
        numbers, rows = self.answered, dict[int, ReplyRow]()
        for start in range(0, len(numbers), BLOCK):
            block = numbers[start : start + BLOCK]
            if self.store is None:
                rows |= zip(block, ask(block))
            else:
                inputs = [asdict(self.questions[i]) for i in block]
                names = {**self.settings, "asked": list(key), "inputs": inputs}
                rows |= zip(block, self.store.rows("partitions", names, partial(ask, block)))
            if self.progress is not None:
                self.progress(start + len(block))
        for i in [i for i, row in rows.items() if "failed" in row]:
            error = QuestionError(self.questions[i].id, rows.pop(i)["failed"])
            if self.on_bad_question is None:
                raise error
            self.on_bad_question(error)
            self.failed.add(i)
        return rows

    def numbered(self, numbers: Sequence[int]) -> list[GoldQuestion]:
        return [self.questions[i] for i in numbers]

    def by_token(self, rows: Mapping[int, ReplyRow], key: str) -> NDArray[np.float64]:
        """Return the values of the tokens of all questions (N,); NaN for failed questions."""
        values = [
            value
            for i, question in enumerate(self.questions)
            for value in (rows[i][key] if i in rows else [math.nan] * len(question.tokens))
        ]
        return np.array(values)

    def gold(self, raw: Mapping[int, ReplyRow], groups: NDArray[np.intp] | None) -> GoldTokens:
        """Return the tokens of all questions."""
        counts = [len(question.tokens) for question in self.questions]
        return GoldTokens(
            question=np.repeat(np.arange(len(counts)), counts),
            weight=np.repeat([1 / len(question.answers) for question in self.questions], counts),
            log_probs=self.by_token(raw, "log_probs"),
            groups=groups,
        )


def _by_whole_vocabulary(
    rows_of: _RowsOfQuestions, loss: Loss, *, groups: NDArray[np.intp] | None, seed: int
) -> ServerFit:
    """Fit T exactly, with log-probabilities of the whole vocabulary as logits."""
    size = rows_of.requests.profile.vocabulary or 0
    positions = sum(len(question.beginnings) for question in rows_of.questions)
    if positions * size > MOST_NUMBERS:
        raise FitError(
            f"--limit: {size:,} log-probabilities at {positions:,} positions exceed the memory limit. Fit to "
            f"at most {MOST_NUMBERS // size * len(rows_of.questions) // positions} questions"
        )
    rows = rows_of.rows(lambda numbers: rows_of.requests.whole(rows_of.numbered(numbers)), key=["whole"])
    check_enough(len(rows), of="that the server answered for")
    questions = rows_of.numbered(list(rows))
    states = []
    for question, row in zip(questions, rows.values()):
        listed = dict(zip(question.beginnings, row["log_probs"]))
        beginnings = [(), *(answer[:i] for answer in question.answers for i in range(1, len(answer)))]
        states += [np.frombuffer(b64decode(listed[beginning]), dtype=np.float32) for beginning in beginnings]
    features = FitFeatures.from_states(
        torch.from_numpy(np.stack(states)), [1] * len(questions), [question.answers for question in questions]
    )
    (exact,) = fit_temperatures(
        features,
        lambda log_probs: log_probs,
        losses=[loss],
        groups=None if groups is None else groups[list(rows)],
        seed=seed,
    )
    return ServerFit(exact, 0.0)


def fit_by_losses(
    evaluate: Callable[[float], Array], gold: GoldTokens, *, hottest: float = T_MAX
) -> ServerFit:
    """Fit T from the NLL of each token at five temperatures near the optimum.

    `evaluate` maps β to the NLL (N,) of each token in nats; a NaN omits the question of the token. `hottest`
    is the maximum T of requests. The first window of temperatures is around 1. While a window does not
    contain the optimum, a Newton step leads to the next window. The result is the minimum of the polynomial
    through five losses; `route_error` is the change by its last order. FitError if fewer than 5 questions are
    left, or if eight windows do not contain the optimum.
    """
    low, high, centre = -math.log(hottest), -math.log(T_MIN), 0.0
    for number in range(1, MOST_WINDOWS + 1):
        centre = min(max(centre, low + HALF), high - HALF)
        nll = np.stack([gold.by_question(evaluate(math.exp(centre + HALF * x))) for x in NODES])
        complete = np.isfinite(nll).all(0) & np.isfinite(gold.by_question(gold.log_probs))
        check_enough(int(complete.sum()), of="that the server answered for")
        series = chebfit(NODES, nll[:, complete], len(NODES) - 1)
        x, before = _vertex(series.sum(1)), _vertex(series.sum(1)[:-1])
        beta, slope, curvature = math.exp(centre + HALF * x), chebder(series), chebder(series, 2)
        first, second = chebval(x, slope) / HALF, chebval(x, curvature) / HALF**2
        at_bound = abs(x) == 1 and any(math.isclose(centre + HALF * x, end) for end in (low, high))
        if abs(x) < INSIDE or at_bound:
            steps = 5 * number
            break
        centre += HALF * x + _newton_step(float(first.sum()), float(second.sum()))
    else:
        raise FitError(
            f"temperature: the loss has no minimum in {MOST_WINDOWS} windows (the last one near "
            f"{math.exp(-centre):.3g}), so the server's log-probabilities are inconsistent. Run `semcal "
            "probe` to check the server"
        )
    error = abs(x - before) * HALF / beta
    # loss, slope and curvature in β of each complete question
    terms = np.stack([chebval(x, series), first / beta, (second - first) / beta**2])
    n, at_one = gold.by_question(np.stack([np.ones_like(gold.weight), -gold.log_probs]))[:, complete].sum(1)
    sums = LossSums(float(n), *(float(value) for value in terms.sum(1)))
    at_one_sums = LossSums(float(n), float(at_one), 0.0, 0.0)
    questions = terms.shape[1]
    groups = None if gold.groups is None else gold.groups[complete]
    cluster = clusters_of(groups, questions, torch.arange(questions))
    fit = TemperatureFit(
        "NLL",
        None,
        certificate=certify(beta, sums, at_one_sums, at_bound=at_bound, steps=steps),
        standard_error=math.nan if at_bound else clustered_error(beta, torch.from_numpy(terms[1:]), cluster),
        n_tokens=int(complete[gold.question].sum()),
        n_questions=questions,
        n_clusters=int(cluster.max()) + 1,
    )
    return ServerFit(fit, error)


def _newton_step(first: float, second: float) -> float:
    """Return the step in log β, at most 1, of Newton's method in β, in which the loss is convex."""
    ratio = 1 - first / (second - first) if second > first else -1.0
    return min(max(math.log(ratio), -1.0), 1.0) if ratio > 0 else -math.copysign(1.0, first)


def _vertex(series: Array) -> float:
    """Return the minimizer of a Chebyshev series on [−1, 1]."""
    roots = [float(root.real) for root in chebroots(chebder(series)) if abs(root.imag) < 1e-9]
    inside = [0.0, *(root for root in roots if abs(root) < 1), -1.0, 1.0]
    return min(inside, key=lambda x: float(chebval(x, series)))
