"""The paper's training schedule for TS, ATS and Platt over stored states (spec section 6, solver `sgd`).

AdamW with a cosine schedule after a linear warm-up. TS and ATS read their losses from `Tables`, so that no
step touches the vocabulary; Platt needs the logits of each step, which the head makes again from the states.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.recalibration.attentive import ATS, BlockShape
from semcal.recalibration.enough import check_enough
from semcal.recalibration.exact import T_MAX, T_MIN, certify
from semcal.recalibration.losses import check_loss, mean_loss, token_losses
from semcal.recalibration.one_pass import curve_of
from semcal.recalibration.platt import Platt
from semcal.recalibration.schedule import (
    GradientSteps,
    Schedule,
    learning_rates,
    paper_schedule,
    thinned,
)
from semcal.recalibration.sequences import inverse_temperatures_of, sequences, tokens_of
from semcal.recalibration.suffixes import Head, Suffixes
from semcal.recalibration.tables import Tables, tabulate
from semcal.recalibration.temperature import TemperatureScaling
from semcal.recalibration.training_store import TrainingState, TrainingStore

__all__ = ["Training", "Watch", "drawn_answers", "fit_ats", "fit_platt", "fit_ts"]

#: Logits made at once for several steps of Platt.
CHUNK = 8_000_000
_Step = TypeVar("_Step")
_Trained = TemperatureScaling | ATS | Platt


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
        Mean loss of each step's tokens before the step, nats; `recalibrator.sgd_` holds them thinned.
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

    def __post_init__(self) -> None:
        self.recalibrator.sgd_ = GradientSteps(
            self.schedule, self.steps, self.drift_bound, thinned(self.losses), self.exact_temperature
        )

    @property
    def distance(self) -> float | None:
        """TS: |log T − log T of the exact solution|; None for other methods."""
        if not isinstance(self.recalibrator, TemperatureScaling) or self.recalibrator.sgd_ is None:
            return None
        return self.recalibrator.sgd_.distance(self.recalibrator.temperature_)


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
    check_enough(suffixes.labelled_questions())
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


@dataclass(frozen=True)
class Watch:
    """Who follows a training, and where its state is kept.

    Attributes
    ----------
    progress : callable, optional
        Called with the number of finished steps and of all steps.
    store : TrainingStore, optional
        An interrupted training goes on from the state that lies there.
    """

    progress: Callable[[int, int], None] | None = None
    store: TrainingStore | None = None

    def state(self, method: str, loss: str, alpha: float | None, schedule: Schedule) -> TrainingState | None:
        """Where the state of this training is kept."""
        settings = {"method": method, "loss": loss, "alpha": alpha, **asdict(schedule)}
        return None if self.store is None else self.store.state(settings)

    def tell(self, done: int, total: int) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(done, total)


def _train(
    recalibrator: _Trained,
    parameters: list[Tensor],
    steps: Callable[[int], Iterable[_Step]],
    rates: list[float],
    loss_of: Callable[[_Step], Tensor],
    schedule: Schedule,
    watch: Watch | None,
) -> tuple[float, ...]:
    """Go through the steps once and return their losses; `steps(n)` are those after the first n."""
    watch = watch or Watch()
    state = watch.state(recalibrator.method, recalibrator.loss, recalibrator.alpha, schedule)
    optimiser = torch.optim.AdamW(parameters, weight_decay=schedule.weight_decay, fused=True)
    losses = state.restore(parameters, optimiser) if state else []
    for rate, step in zip(rates[len(losses) :], steps(len(losses))):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        loss = loss_of(step)
        loss.backward()  # type: ignore[no-untyped-call]
        if schedule.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, schedule.max_norm)
        optimiser.step()
        losses.append(float(loss.detach()))
        if state is not None:
            state.keep(parameters, optimiser, losses, finished=len(losses) == len(rates))
        watch.tell(len(losses), len(rates))
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
    watch: Watch | None = None,
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
    watch : Watch, optional
        Who is told of the steps, and where the state is kept.

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

    ts = TemperatureScaling(loss, alpha)
    kept = _train(ts, [log_temperature], partial(_after, steps), rates, loss_of, schedule, watch)
    curve = curve_of(suffixes, tables, loss=loss, alpha=alpha)
    exact = 1 / float(curve.minimum())
    beta = min(max(math.exp(-float(log_temperature.detach())), 1 / T_MAX), 1 / T_MIN)
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
    watch: Watch | None = None,
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

    after = partial(_after, steps)
    kept = _train(ats, list(ats.parameters()), after, rates, loss_of, schedule, watch)
    return Training(ats.requires_grad_(False).cpu(), schedule, kept, len(steps), sum(rates))


def fit_platt(
    suffixes: Suffixes,
    head: Head,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
    schedule: Schedule | None = None,
    watch: Watch | None = None,
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
    batches = partial(_with_logits, suffixes, head, rows, steps, at_once)
    kept = _train(platt, list(platt.parameters()), batches, rates, loss_of, schedule, watch)
    return Training(platt.requires_grad_(False).cpu(), schedule, kept, len(steps), sum(rates))


def _after(steps: list[_Step], finished: int) -> list[_Step]:
    return steps[finished:]


def _with_logits(
    suffixes: Suffixes, head: Head, rows: Tensor, steps: list[Tensor], at_once: int, finished: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(tokens, their logits) of each step after the finished ones.

    The head runs for as many steps together as memory allows, the same ones together wherever it begins.
    """
    waiting: list[Tensor] = []
    for number, answers in enumerate(steps, start=1):
        waiting.append(tokens_of(suffixes, answers))
        following = len(tokens_of(suffixes, steps[number])) if number < len(steps) else at_once
        if sum(map(len, waiting)) + following > at_once:
            if number > finished:
                with torch.no_grad():
                    logits = head(suffixes.states[rows[torch.cat(waiting)]])
                made = zip(waiting, torch.split(logits, [len(tokens) for tokens in waiting]))
                yield from islice(made, max(0, finished - (number - len(waiting))), None)
            waiting = []
