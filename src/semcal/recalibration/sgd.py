"""The paper's training schedule for TS, ATS and Platt over stored states (spec section 6, solver `sgd`).

AdamW with a cosine schedule after a linear warm-up. TS and ATS read their losses from `Tables`, so that no
step touches the vocabulary; Platt needs the logits of each step, which the head makes again from the states.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.recalibration.attentive import ATS, BlockShape
from semcal.recalibration.exact import T_MAX, T_MIN, certify
from semcal.recalibration.losses import check_loss, mean_loss, token_losses
from semcal.recalibration.one_pass import curve_of
from semcal.recalibration.platt import Platt
from semcal.recalibration.sequences import inverse_temperatures_of, sequences, tokens_of
from semcal.recalibration.suffixes import Head, Suffixes
from semcal.recalibration.tables import Tables, tabulate
from semcal.recalibration.temperature import TemperatureScaling
from semcal.registry import check_name

__all__ = [
    "Schedule",
    "Training",
    "drawn_answers",
    "fit_ats",
    "fit_platt",
    "fit_ts",
    "learning_rates",
    "paper_schedule",
]

#: Logits made at once for several steps of Platt.
CHUNK = 8_000_000
REFERENCES = ("drawn", "all")
_Step = TypeVar("_Step")


@dataclass(frozen=True)
class Schedule:
    """Settings of a training by gradient steps.

    Attributes
    ----------
    learning_rate : float
        Greatest learning rate, reached at the end of the warm-up.
    weight_decay : float
        Of AdamW, decoupled.
    max_norm : float or None
        The gradient is shortened to this norm; None leaves it as it is.
    epochs : int
        How often the calibration set is gone through.
    batch_size : int
        Questions for each step. The paper does not state it.
    warm_up : float
        Share of the first epoch in which the learning rate rises linearly.
    references : {"drawn", "all"}
        One reference answer of each question, drawn anew in each epoch, or all of them with equal weights.
    seed : int
        Of the order of questions, the drawn references and the start of ATS.
    """

    learning_rate: float
    weight_decay: float = 0.0
    max_norm: float | None = None
    epochs: int = 2
    batch_size: int = 4
    warm_up: float = 0.1
    references: Literal["drawn", "all"] = "drawn"
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.references, REFERENCES, what="choice of references")
        if self.epochs < 1 or self.batch_size < 1 or self.seed < 0:
            raise UsageError(
                "a schedule has at least one epoch, one question for each step and a seed of 0 or more, got "
                f"epochs={self.epochs}, batch_size={self.batch_size}, seed={self.seed}"
            )
        rate, decay, norm = self.learning_rate, self.weight_decay, self.max_norm
        if not (0 < rate < math.inf and 0 <= decay < math.inf and 0 <= self.warm_up <= 1):
            raise UsageError(
                "a schedule has a positive learning rate, a weight decay of 0 or more and a warm-up share in "
                f"[0, 1], got {rate}, {decay} and {self.warm_up}"
            )
        if norm is not None and not norm > 0:
            raise UsageError(f"max_norm is a positive number or None, got {norm}")


def paper_schedule(method: str, *, weight_decay: float = 0.0, seed: int = 0) -> Schedule:
    """Return the paper's settings of "TS", "ATS" or "Platt".

    Examples
    --------
    >>> paper_schedule("TS").learning_rate, paper_schedule("Platt").max_norm
    (0.0001, 1.0)
    """
    check_name(method, ("TS", "ATS", "Platt"), what="method")
    if method == "TS":
        return Schedule(1e-4, weight_decay, seed=seed)
    return Schedule(1e-5, weight_decay, max_norm=1.0, seed=seed)


@dataclass(frozen=True)
class Training:
    """A training that was run.

    Attributes
    ----------
    recalibrator : TemperatureScaling, ATS or Platt
        Fitted.
    schedule : Schedule
        The settings.
    losses : tuple of float
        Mean loss of each step's tokens before the step, nats.
    steps : int
        How many steps there were.
    drift_bound : float
        Sum of the learning rates: about how far AdamW can have moved a parameter.
    exact_temperature : float or None
        TS: the optimum of the same loss with all references weighted equally, from the tables.
    """

    recalibrator: TemperatureScaling | ATS | Platt
    schedule: Schedule
    losses: tuple[float, ...]
    steps: int
    drift_bound: float
    exact_temperature: float | None = None

    @property
    def distance(self) -> float | None:
        """TS: |log T − log T of the exact solution|; None for other methods."""
        if not isinstance(self.recalibrator, TemperatureScaling) or self.exact_temperature is None:
            return None
        return abs(math.log(self.recalibrator.temperature_ / self.exact_temperature))


def learning_rates(schedule: Schedule, steps: int) -> list[float]:
    """Return the learning rate of each step: a linear rise, then half a cosine down towards 0.

    Examples
    --------
    >>> [round(rate, 2) for rate in learning_rates(Schedule(1.0, epochs=1, warm_up=0.5), 6)]
    [0.33, 0.67, 1.0, 1.0, 0.75, 0.25]
    """
    rising = math.ceil(schedule.warm_up * steps / schedule.epochs)
    falling = steps - rising
    return [
        schedule.learning_rate
        * ((step + 1) / rising if step < rising else (1 + math.cos(math.pi * (step - rising) / falling)) / 2)
        for step in range(steps)
    ]


def drawn_answers(suffixes: Suffixes, *, seed: int, epoch: int) -> Tensor:
    """Return one answer of each question that has any, drawn for an epoch, in the order of the questions."""
    count = torch.bincount(suffixes.answer_question, minlength=len(suffixes.prompt_start))
    first = count.cumsum(0) - count
    u = np.random.default_rng([seed, epoch, 0]).random(len(count))
    return (first + (torch.as_tensor(u) * count).long())[count > 0]


def _plan(suffixes: Suffixes, schedule: Schedule) -> list[Tensor]:
    """The answers of each step: questions in a new random order in each epoch."""
    if not len(suffixes.targets):
        raise FitError("there is no answer token to fit to; give labelled questions")
    steps: list[Tensor] = []
    for epoch in range(schedule.epochs):
        drawn = drawn_answers(suffixes, seed=schedule.seed, epoch=epoch)
        groups = drawn[:, None].unbind()
        if schedule.references == "all":
            count = torch.bincount(suffixes.answer_question)
            groups = torch.split(torch.arange(len(suffixes.answer_question)), count[count > 0].tolist())
        order = np.random.default_rng([schedule.seed, epoch, 1]).permutation(len(groups))
        for start in range(0, len(order), schedule.batch_size):
            steps.append(torch.cat([groups[i] for i in order[start : start + schedule.batch_size]]))
    return steps


def _train(
    parameters: list[Tensor],
    steps: Iterable[_Step],
    rates: list[float],
    loss_of: Callable[[_Step], Tensor],
    schedule: Schedule,
) -> tuple[float, ...]:
    """Go through the steps once and return their losses."""
    optimiser = torch.optim.AdamW(parameters, weight_decay=schedule.weight_decay, fused=True)
    losses = []
    for rate, step in zip(rates, steps):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        loss = loss_of(step)
        loss.backward()  # type: ignore[no-untyped-call]
        if schedule.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, schedule.max_norm)
        optimiser.step()
        losses.append(float(loss.detach()))
    return tuple(losses)


@dataclass(frozen=True)
class _Losses:
    """The mean loss of a step's tokens at given inverse temperatures."""

    suffixes: Suffixes
    head: Head
    tables: Tables
    rows: Tensor
    weight: Tensor
    centre: Tensor
    sample: Tensor
    loss: str
    alpha: float | None

    def __call__(self, tokens: Tensor, beta: Tensor) -> Tensor:
        """Mean over tokens (n,) at β (n,); from the tables, or from the logits where β leaves their range."""
        if self.tables.covers(beta.detach()):
            log_partition = self.tables.log_partition(self.tables.position[tokens], beta.cpu())
            losses = self.weight[tokens] * (log_partition - beta.cpu().double() * self.centre[tokens])
        else:
            losses = self._exact(tokens, beta).cpu()
        w = self.sample[tokens]
        return (w * losses).sum() / w.sum()

    def _exact(self, tokens: Tensor, beta: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.head(self.suffixes.states[self.rows[tokens]])
        log_probs = torch.log_softmax(logits * beta.to(logits.device, logits.dtype)[:, None], 1)
        targets = self.suffixes.targets[tokens].to(logits.device)
        return token_losses(log_probs, targets, loss=self.loss, alpha=self.alpha).double()


def _losses(
    suffixes: Suffixes,
    head: Head,
    tables: Tables,
    schedule: Schedule,
    *,
    loss: str,
    alpha: float | None,
) -> _Losses:
    weight, centre = tables.terms(loss=loss, alpha=alpha)
    sample = suffixes.token_weights() if schedule.references == "all" else torch.ones_like(centre)
    rows = tables.rows[tables.position]
    return _Losses(suffixes, head, tables, rows, weight, centre, sample, loss, alpha)


def fit_ts(
    suffixes: Suffixes,
    head: Head,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
    tables: Tables | None = None,
) -> Training:
    """Train TS on log T, from T = 1.

    Parameters
    ----------
    suffixes : Suffixes
        The calibration set.
    head : callable
        States (n, d) → logits (n, V).
    loss : {"NLL", "SS"}
        Which loss.
    alpha : float, optional
        The α of selective smoothing.
    schedule : Schedule, optional
        The paper's by default.
    tables : Tables, optional
        From `tabulate`, where they are there already; made otherwise.

    Returns
    -------
    Training
        With the exact solution beside it. The certificate of the recalibrator is that of the T reached, with
        sums from the tables.

    Raises
    ------
    FitError
        If there is no answer token.
    UsageError
        If loss and α make no sense.

    Warns
    -----
    SemcalWarning
        If so many steps cannot carry log T to the exact solution. The bound is the sum of the learning
        rates: a step of AdamW is about one learning rate long when gradients keep their sign.
    """
    check_loss(loss, alpha)
    schedule = schedule or paper_schedule("TS")
    tables = tables or tabulate(suffixes, head)
    losses = _losses(suffixes, head, tables, schedule, loss=loss, alpha=alpha)
    steps = _plan(suffixes, schedule)
    rates = learning_rates(schedule, len(steps))
    log_temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def loss_of(answers: Tensor) -> Tensor:
        tokens = tokens_of(suffixes, answers)
        return losses(tokens, torch.exp(-log_temperature).expand(len(tokens)))

    kept = _train([log_temperature], steps, rates, loss_of, schedule)
    curve = curve_of(suffixes, tables, loss=loss, alpha=alpha)
    exact = 1 / float(curve.minimum())
    beta = min(max(math.exp(-float(log_temperature.detach())), 1 / T_MAX), 1 / T_MIN)
    ts = TemperatureScaling(loss, alpha)
    ts.certificate_ = certify(
        beta, curve.sums(beta), curve.sums(1.0), at_bound=beta in (1 / T_MAX, 1 / T_MIN), steps=len(steps)
    )
    ts.temperature_, ts.n_tokens_ = 1 / beta, len(suffixes.targets)
    training = Training(ts, schedule, kept, len(steps), sum(rates), exact)
    _warn_of_distance(training)
    return training


def _warn_of_distance(training: Training) -> None:
    assert training.exact_temperature is not None
    needed = abs(math.log(training.exact_temperature))
    if needed > training.drift_bound:
        warnings.warn(
            f"{training.steps} steps move log T by about {training.drift_bound:.3g} at most, but the optimum "
            f"of this loss, T = {training.exact_temperature:.4g}, is {needed:.3g} away from T = 1; the "
            f"training stopped {training.distance:.3g} short of it. Use the exact solver, more questions or "
            "more epochs",
            SemcalWarning,
            stacklevel=3,
        )


def fit_ats(
    suffixes: Suffixes,
    head: Head,
    *,
    shape: BlockShape,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
    tables: Tables | None = None,
    device: torch.device | str | None = None,
) -> Training:
    """Train ATS; parameters, errors and `Training` as in `fit_ts`.

    Parameters
    ----------
    shape : BlockShape
        Of the decoder block; its hidden size is that of the states.
    device : torch.device or str, optional
        Where the block is trained; the CPU by default.

    Raises
    ------
    FitError
        Also if the states of whole sequences were not kept.
    UsageError
        Also if the block has another hidden size than the states.
    """
    schedule = schedule or paper_schedule("ATS")
    width = suffixes.states.shape[1]
    if shape.hidden_size != width:
        raise UsageError(f"the block has hidden_size {shape.hidden_size}, but the states are {width} wide")
    ats = ATS(shape, loss=loss, alpha=alpha, seed=schedule.seed).to(device)
    place = ats.readout.weight.device
    steps = _plan(suffixes, schedule)
    sequences(suffixes, steps[0])  # refuses a set without whole sequences before the tables are made
    losses = _losses(suffixes, head, tables or tabulate(suffixes, head), schedule, loss=loss, alpha=alpha)
    prefix = suffixes.prefix.to(place)
    rates = learning_rates(schedule, len(steps))

    def loss_of(answers: Tensor) -> Tensor:
        beta = inverse_temperatures_of(ats, sequences(suffixes, answers, device=place), prefix)
        return losses(tokens_of(suffixes, answers), beta)

    kept = _train(list(ats.parameters()), steps, rates, loss_of, schedule)
    return Training(ats.requires_grad_(False).cpu(), schedule, kept, len(steps), sum(rates))


def fit_platt(
    suffixes: Suffixes,
    head: Head,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
) -> Training:
    """Train Platt where the head puts its logits; parameters, errors and `Training` as in `fit_ts`."""
    schedule = schedule or paper_schedule("Platt")
    steps = _plan(suffixes, schedule)
    rows, sample = suffixes.predicting_rows(), suffixes.token_weights()
    if schedule.references == "drawn":
        sample = torch.ones_like(sample)
    first = head(suffixes.states[rows[:1]])
    platt = Platt(first.shape[1], loss=loss, alpha=alpha).to(first.device)
    rates = learning_rates(schedule, len(steps))

    def loss_of(step: tuple[Tensor, Tensor]) -> Tensor:
        tokens, logits = step
        targets, weights = suffixes.targets[tokens], sample[tokens]
        log_probs = platt.log_probs(logits)
        place = logits.device
        return mean_loss(log_probs, targets.to(place), weights.to(place), loss=loss, alpha=alpha)

    at_once = max(1, CHUNK // first.shape[1])
    batches = _with_logits(suffixes, head, rows, steps, at_once)
    kept = _train(list(platt.parameters()), batches, rates, loss_of, schedule)
    return Training(platt.requires_grad_(False).cpu(), schedule, kept, len(steps), sum(rates))


def _with_logits(
    suffixes: Suffixes, head: Head, rows: Tensor, steps: list[Tensor], at_once: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(tokens, their logits) of each step; the head runs for as many steps together as memory allows."""
    waiting: list[Tensor] = []
    for number, answers in enumerate(steps, start=1):
        waiting.append(tokens_of(suffixes, answers))
        following = len(tokens_of(suffixes, steps[number])) if number < len(steps) else at_once
        if sum(map(len, waiting)) + following > at_once:
            with torch.no_grad():
                logits = head(suffixes.states[rows[torch.cat(waiting)]])
            yield from zip(waiting, torch.split(logits, [len(tokens) for tokens in waiting]))
            waiting = []
