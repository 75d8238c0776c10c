"""Fits to stored features: the frozen model gives its head, and is not run (spec section 6)."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semcal.engine.language_model import LanguageModel
from semcal.errors import SemcalWarning, UsageError
from semcal.recalibration import (
    ATS,
    AnyRecalibrator,
    Base,
    CalibrationFeatures,
    Fitted,
    LogPartitionTable,
    Platt,
    TemperatureScaling,
    Training,
    TrainingCallbacks,
    fit_ats,
    fit_platt,
    fit_temperatures,
    fit_ts,
    inverse_temperatures,
    paper_schedule,
)
from semcal.recalibration.losses import check_loss, token_losses
from semcal.registry import check_name

__all__ = ["METHODS", "check_method", "fit_stored", "mean_loss_of", "train_stored"]

METHODS = ("TS", "ATS", "Platt")
SOLVERS = ("exact", "sgd")
#: Answer positions whose logits are held at once, and how many logits these may be.
POSITIONS, LOGITS = 2048, 2**26
#: Share of the loss below which a training is said to have changed nothing.
UNMOVED = 1e-3


def check_method(method: str, solver: str | None, loss: str, alpha: float | None) -> str:
    """Return the solver of a method: exact for TS by default, sgd for the others.

    Raises
    ------
    UsageError
        If there is no such method, solver or loss, or the method has no such solver.
    """
    check_name(method, METHODS, what="method")
    check_loss(loss, alpha)
    found = check_name(solver or ("exact" if method == "TS" else "sgd"), SOLVERS, what="solver")
    if method != "TS" and found == "exact":
        raise UsageError(f"{method} has no exact solver; leave --solver out or use sgd")
    return found


def fit_stored(
    model: LanguageModel,
    features: CalibrationFeatures,
    *,
    method: str = "TS",
    solver: str | None = None,
    loss: str = "NLL",
    alpha: float | None = None,
    weight_decay: float = 0.0,
    learning_rate: float | None = None,
    seed: int = 0,
    groups: NDArray[np.intp] | None = None,
    table: LogPartitionTable | None = None,
    callbacks: TrainingCallbacks | None = None,
) -> tuple[Fitted, dict[str, Any]]:
    """Fit a recalibrator to stored features; the frozen model gives its head alone.

    Parameters
    ----------
    learning_rate : float, optional
        Of sgd; the paper's by default.
    groups : ndarray of int, shape (Q,), optional
        The group of each question, for the standard error of the exact solution.
    table : LogPartitionTable, optional
        Of these features, where several fits by sgd share them.
    callbacks : TrainingCallbacks, optional
        Progress of sgd, and where the state of the training is stored.

    Returns
    -------
    recalibrator and dict
        Fitted, and what is known about the fit.
    """
    if check_method(method, solver, loss, alpha) == "exact":
        (exact,) = fit_temperatures(features, model.logits, losses=[(loss, alpha)], groups=groups, seed=seed)
        certificate = exact.certificate
        return TemperatureScaling.from_fit(exact), {
            "loss_before": certificate.loss_at_one,
            "loss_after": certificate.loss,
            "at_bound": certificate.at_bound,
            "standard_error": exact.standard_error,
            "interval": None if math.isnan(exact.standard_error) else list(exact.interval()),
            **({} if groups is None else {"n_groups": exact.n_clusters}),
        }
    training = train_stored(
        model,
        features,
        method=method,
        loss=loss,
        alpha=alpha,
        weight_decay=weight_decay,
        learning_rate=learning_rate,
        seed=seed,
        table=table,
        callbacks=callbacks,
    )
    before = mean_loss_of(model, features, Base(), loss=loss, alpha=alpha)
    after = mean_loss_of(model, features, training.recalibrator, loss=loss, alpha=alpha)
    if method != "TS" and abs(before - after) < UNMOVED * before:
        warnings.warn(
            f"{method} is hardly other than the model after {training.sgd.steps} steps, in which AdamW moves "
            f"a weight by about {training.sgd.drift_bound:.1e} at most; more questions make more steps",
            SemcalWarning,
            stacklevel=2,
        )
    return training.recalibrator, {
        "loss_before": before,
        "loss_after": after,
        "steps": training.sgd.steps,
        "losses": list(training.losses),
        "drift_bound": training.sgd.drift_bound,
        "exact_temperature": training.sgd.exact_temperature,
        "distance": training.distance,
    }


def train_stored(
    model: LanguageModel,
    features: CalibrationFeatures,
    *,
    method: str,
    loss: str = "NLL",
    alpha: float | None = None,
    weight_decay: float = 0.0,
    learning_rate: float | None = None,
    batch_size: int = 4,
    warm_up: float = 0.1,
    seed: int = 0,
    table: LogPartitionTable | None = None,
    callbacks: TrainingCallbacks | None = None,
) -> Training:
    """Take the paper's gradient steps on stored features; parameters as in `fit_stored` and `Schedule`.

    Unlike `fit_stored` it does not go through all tokens again to say what that has changed.
    """
    schedule = paper_schedule(method, weight_decay=weight_decay, seed=seed)
    schedule = replace(schedule, batch_size=batch_size, warm_up=warm_up)
    if learning_rate is not None:
        schedule = replace(schedule, learning_rate=learning_rate)
    how: dict[str, Any] = {"loss": loss, "alpha": alpha, "schedule": schedule, "callbacks": callbacks}
    if method == "TS":
        return fit_ts(features, model.logits, table=table, **how)
    if method == "ATS":
        return fit_ats(features, model.logits, shape=model.block_shape, table=table, **how)
    return fit_platt(features, model.logits, **how)


@torch.no_grad()
def mean_loss_of(
    model: LanguageModel,
    features: CalibrationFeatures,
    recalibrator: AnyRecalibrator | Platt,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
) -> float:
    """Mean loss per token (nats) of a recalibrator on stored features, references weighted equally."""
    rows, weights = features.predicting_rows(), features.token_weights()
    beta = inverse_temperatures(recalibrator, features) if isinstance(recalibrator, ATS) else None
    size = max(1, min(POSITIONS, LOGITS // model.logits(features.states[rows[:1]]).shape[1]))
    total = 0.0
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        logits = model.logits(features.states[rows[part]])
        if isinstance(recalibrator, ATS):
            assert beta is not None
            log_probs = recalibrator.log_probs(logits, beta[part].to(logits.device))
        else:
            log_probs = recalibrator.log_probs(logits)
        targets = features.targets[part].to(logits.device)
        losses = token_losses(log_probs, targets, loss=loss, alpha=alpha)
        total += float((losses.double().cpu() * weights[part]).sum())
    return total / float(weights.sum())
