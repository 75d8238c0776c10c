"""What recalibrators do to the tokens of reference answers: why the expressive ones lose (paper, section 5).

All of it is read from stored features in one pass over the logits, whatever the number of recalibrators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.experiment.token_classes import by_token_class
from semcal.models.language_model import LanguageModel
from semcal.recalibration.attentive import ATS, AnyRecalibrator, CalibrationFeatures, inverse_temperatures
from semcal.recalibration.temperature import temperature_of

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: Logits that exist at once, per recalibrator.
CHUNK = 4_000_000


@dataclass(frozen=True, eq=False)
class TokenEffects:
    """What one recalibrator does at the N tokens of the reference answers."""

    nll: Floats  # (N,) −log p of each token, nats
    temperature: Floats  # (N,) NaN where the method has none (Platt)
    top_changed: Bools  # (N,) whether another token is now the most likely
    order_changed: Bools  # (N,) whether the ten most likely tokens are others or in another order
    weights: Floats  # (N,) the references of a question count equally and add up to one

    @property
    def mean_nll(self) -> float:
        """Mean over tokens, as the fit weighs them."""
        return float(np.average(self.nll, weights=self.weights))

    def by_class(self, classes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Share of the tokens, mean NLL, share of its sum, and mean temperature, by token class (N,)."""
        losses, heats = by_token_class(classes, self.nll), by_token_class(classes, self.temperature)
        return {
            name: {
                "share": one.share,
                "nll": one.mean,
                "share_of_nll": one.share_of_sum,
                "temperature": heats[name].mean,
            }
            for name, one in losses.items()
        }


def order_changes(before: Tensor, after: Tensor, *, top: int = 10) -> tuple[Tensor, Tensor]:
    """Where a map of logits (or log-probabilities) (N, V) changes which tokens are the most likely.

    Returns (N,) bool twice: another token is the most likely; the `top` most likely are others or in another
    order. Ties are no change, neither new nor dissolved ones: an order is changed where two tokens stand the
    other way round.
    """
    count = min(top, before.shape[1])
    order = before.topk(count, dim=1).indices
    now = after.gather(1, order)
    rest = after.scatter(1, order, -torch.inf).amax(1)
    ties = before.gather(1, order).diff(dim=1) == 0
    swapped = ((now.diff(dim=1) > 0) & ~ties).any(1) | (rest > now.amin(1))
    return after.amax(1) > now[:, 0], swapped


@torch.no_grad()
def token_effects(
    model: LanguageModel, features: CalibrationFeatures, recalibrators: Mapping[str, AnyRecalibrator]
) -> dict[str, TokenEffects]:
    """What each recalibrator, by name, does to the reference answers' tokens.

    `features` are of whole sequences where there is an ATS among the recalibrators; of the model only its
    head is used.
    """
    rows, weights = features.predicting_rows(), features.token_weights().numpy()
    beta = {
        name: inverse_temperatures(r, features) for name, r in recalibrators.items() if isinstance(r, ATS)
    }
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in recalibrators}
    width = model.logits(features.states[rows[:1]]).shape[1]
    for part in torch.split(torch.arange(len(rows)), max(1, CHUNK // width)):
        logits = model.logits(features.states[rows[part]]).float()
        targets = features.targets[part, None].to(logits.device)
        for name, recalibrator in recalibrators.items():
            if isinstance(recalibrator, ATS):
                scored = recalibrator.log_probs(logits, beta[name][part].to(logits.device))
            else:
                scored = recalibrator.log_probs(logits)
            parts[name].append((-scored.gather(1, targets)[:, 0], *order_changes(logits, scored)))
    effects = {}
    for name, recalibrator in recalibrators.items():
        nll, top, order = (torch.cat(column).cpu().numpy() for column in zip(*parts[name]))
        heat = _temperatures(recalibrator, beta.get(name), len(nll))
        effects[name] = TokenEffects(nll.astype(np.float64), heat, top, order, weights)
    return effects


def _temperatures(recalibrator: AnyRecalibrator, beta: Tensor | None, count: int) -> Floats:
    if beta is not None:
        return np.asarray(1 / beta.double().numpy())
    one = temperature_of(recalibrator)
    return np.full(count, math.nan if one is None else one)
