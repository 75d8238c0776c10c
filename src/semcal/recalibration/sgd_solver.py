"""The paper's training of TS, ATS and Platt on stored states (spec section 6, solver `sgd`).

The training uses AdamW with a cosine schedule after a linear warm-up. TS and ATS read their losses from a
`LogPartitionTable`, so that no step reads the whole vocabulary. Platt needs the logits of each step, which
the head computes again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semcal.errors import SemcalWarning
from semcal.models.features import BlockShape, FitFeatures, Head
from semcal.recalibration.exact_solver import (
    LogPartitionTable,
    batch_inverse_temperatures,
    mean_loss,
    tabulate,
    tabulated_loss,
)
from semcal.recalibration.methods import FitResult, FitTask, StepProgress, paper_schedule
from semcal.recalibration.modules import ATS, Platt
from semcal.recalibration.recalibrators import TemperatureScaling
from semcal.recalibration.records import (
    T_MAX,
    T_MIN,
    Fitted,
    GradientSteps,
    Schedule,
    block_means,
    certify,
    check_enough,
    check_loss,
    learning_rates,
)

#: Maximum logits per call of the head, for several steps of Platt.
CHUNK = 8_000_000


def drawn_answers(features: FitFeatures, *, seed: int, epoch: int) -> Tensor:
    """Return one random answer of each question with answers, for an epoch, in the order of the questions."""
    count = torch.bincount(features.answer_question, minlength=len(features.prompt_start))
    first = count.cumsum(0) - count
    u = np.random.default_rng([seed, epoch, 0]).random(len(count))
    return (first + (torch.as_tensor(u) * count).long())[count > 0]


def training_plan(features: FitFeatures, schedule: Schedule) -> list[Tensor]:
    """Return the answers of each step: questions in a new random order in each epoch."""
    check_enough(features.labelled_questions())
    steps: list[Tensor] = []
    for epoch in range(schedule.epochs):
        answers = drawn_answers(features, seed=schedule.seed, epoch=epoch)
        order = np.random.default_rng([schedule.seed, epoch, 1]).permutation(len(answers))
        steps += torch.split(answers[torch.from_numpy(order)], schedule.batch_size)
    return steps


def _train(
    parameters: Sequence[Tensor],
    plan: Sequence[Tensor],
    loss_of: Callable[[Tensor], Tensor],
    schedule: Schedule,
    progress: StepProgress | None,
) -> tuple[GradientSteps, list[float]]:
    """Take a step for each entry of the plan; return the record and the loss before each step."""
    optimiser = torch.optim.AdamW(parameters, weight_decay=schedule.weight_decay, fused=True)
    rates = learning_rates(schedule, len(plan))
    losses: list[float] = []
    for rate, answers in zip(rates, plan):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        loss = loss_of(answers)
        loss.backward()  # type: ignore[no-untyped-call]
        if schedule.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, schedule.max_norm)
        optimiser.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(len(losses), len(plan))
    return GradientSteps(schedule, len(plan), sum(rates), block_means(losses)), losses


def _result(
    recalibrator: Fitted, record: GradientSteps, losses: list[float], distance: float | None = None
) -> FitResult:
    report = {
        "steps": record.steps,
        "losses": losses,
        "drift_bound": record.drift_bound,
        "exact_temperature": record.exact_temperature,
        "distance": distance,
    }
    return FitResult(recalibrator, report)


def _loss_of_tokens(
    table: LogPartitionTable, *, loss: str, alpha: float | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function (tokens (n,), β (n,)) → mean loss."""
    weight, centre = table.terms(loss=loss, alpha=alpha)

    def mean(tokens: Tensor, beta: Tensor) -> Tensor:
        log_partition = table.log_partition(table.position[tokens], beta)
        return (weight[tokens] * (log_partition - beta.double() * centre[tokens])).mean()

    return mean


def fit_ts(
    features: FitFeatures,
    head: Head,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
    table: LogPartitionTable | None = None,
    progress: StepProgress | None = None,
) -> FitResult:
    """Train TS on log T from T = 1, and record the exact solution for comparison.

    The default `schedule` is the paper's. The certificate describes the final T, with sums from the `table`
    of all T, which is computed if missing. A warning follows if the steps cannot move log T to the exact
    solution. The bound is the sum of the learning rates: a step of AdamW is about one learning rate long if
    gradients keep their sign.
    """
    check_loss(loss, alpha)
    schedule = schedule or paper_schedule("TS")
    table = table or tabulate(features, head)
    mean = _loss_of_tokens(table, loss=loss, alpha=alpha)
    plan = training_plan(features, schedule)
    log_temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def loss_of(answers: Tensor) -> Tensor:
        tokens = features.tokens_of(answers)
        return mean(tokens, torch.exp(-log_temperature).expand(len(tokens)))

    record, losses = _train([log_temperature], plan, loss_of, schedule, progress)
    tabulated: Any = tabulated_loss(features, table, loss=loss, alpha=alpha)
    optimum = 1 / float(tabulated.minimum())
    record = replace(record, exact_temperature=optimum)
    beta = min(max(math.exp(-float(log_temperature.detach())), 1 / T_MAX), 1 / T_MIN)
    at_bound = beta in (1 / T_MAX, 1 / T_MIN)
    certificate = certify(beta, tabulated.sums(beta), tabulated.sums(1.0), at_bound=at_bound, steps=len(plan))
    ts = TemperatureScaling.from_certificate(
        certificate, 1 / beta, loss=loss, alpha=alpha, n_tokens=len(features.targets), sgd=record
    )
    needed, distance = abs(math.log(optimum)), record.distance(ts.temperature_)
    if needed > record.drift_bound:
        warnings.warn(
            f"{record.steps} steps move log T by at most about {record.drift_bound:.3g}, but the optimum of "
            f"this loss, T = {optimum:.4g}, is {needed:.3g} away from T = 1; the training ended "
            f"{distance:.3g} before the optimum. Use the exact solver, more questions or more epochs",
            SemcalWarning,
            stacklevel=2,
        )
    return _result(ts, record, losses, distance)


def fit_ats(
    features: FitFeatures,
    head: Head,
    *,
    shape: BlockShape,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
    table: LogPartitionTable | None = None,
    progress: StepProgress | None = None,
) -> FitResult:
    """Train ATS with a block of a shape, on the CPU; otherwise like `fit_ts`.

    FitError also if the states of whole sequences were not stored.
    """
    schedule = schedule or paper_schedule("ATS")
    ats = ATS(shape, loss=loss, alpha=alpha, seed=schedule.seed)
    plan = training_plan(features, schedule)
    features.check_whole()  # before the table is made
    table = table or tabulate(features, head)
    mean = _loss_of_tokens(table, loss=loss, alpha=alpha)

    def loss_of(answers: Tensor) -> Tensor:
        beta = batch_inverse_temperatures(ats, features.sequences(answers), features.prefix)
        return mean(features.tokens_of(answers), beta)

    record, losses = _train(list(ats.parameters()), plan, loss_of, schedule, progress)
    return _result(ats.freeze(record), record, losses)


def fit_platt(
    features: FitFeatures,
    head: Head,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
    progress: StepProgress | None = None,
) -> FitResult:
    """Train Platt on the device of the head's logits; otherwise like `fit_ts`."""
    schedule = schedule or paper_schedule("Platt")
    plan = training_plan(features, schedule)
    rows = features.predicting_rows()
    first = head(features.states[rows[:1]])
    platt = Platt(first.shape[1], loss=loss, alpha=alpha).to(first.device)
    streamed = _with_logits(features, head, rows, plan, at_once=max(1, CHUNK // first.shape[1]))

    def loss_of(_: Tensor) -> Tensor:
        tokens, logits = next(streamed)
        targets = features.targets[tokens].to(logits.device)
        return mean_loss(platt.log_probs(logits), targets, loss=loss, alpha=alpha)

    record, losses = _train(list(platt.parameters()), plan, loss_of, schedule, progress)
    return _result(platt.freeze(record), record, losses)


def _with_logits(
    features: FitFeatures, head: Head, rows: Tensor, plan: list[Tensor], *, at_once: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tokens and the logits of each step; one call of the head serves several steps."""
    waiting: list[Tensor] = []
    for number, answers in enumerate(plan, start=1):
        waiting.append(features.tokens_of(answers))
        following = len(features.tokens_of(plan[number])) if number < len(plan) else at_once
        if sum(map(len, waiting)) + following > at_once:
            with torch.no_grad():
                logits = head(features.states[rows[torch.cat(waiting)]])
            yield from zip(waiting, torch.split(logits, [len(tokens) for tokens in waiting]))
            waiting = []


def fit_all(task: FitTask, method: str) -> list[FitResult]:
    """Train "TS", "ATS" (with the block shape of the model) or "Platt" by each loss of a task."""
    how: dict[str, Any] = {} if method == "Platt" else {"table": task.table}
    if method == "ATS":
        how["shape"] = task.model.block_shape
    fits: dict[str, Callable[..., FitResult]] = {"TS": fit_ts, "ATS": fit_ats, "Platt": fit_platt}
    how |= {"schedule": task.schedule, "progress": task.progress}
    return [
        fits[method](task.features, task.model.logits, loss=loss, alpha=alpha, **how)
        for loss, alpha in task.losses
    ]
