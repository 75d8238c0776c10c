"""Log-probabilities at the temperature of a draw, from those that a server gives; unknown is None.

A server gives them raw (at T = 1 whatever T is) or at T, by itself or on request. Raw ones of the whole
vocabulary can be turned into those at T: with β = 1/T, log p_T(i) = β s_i − log Σ_j exp(β s_j).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from semcal.engine.servers.profile import ServerProfile
from semcal.engine.servers.replies import TokenEntry

Reading = Literal["given", "on request", "of all"]
"""Log-probabilities at T are what is given, are given on request, or computed from the whole vocabulary."""

#: How far from 1 the probabilities of the whole vocabulary may add up.
_SUM = 1e-3


def reading_at(profile: ServerProfile, temperature: float) -> Reading | None:
    """Return how log-probabilities of draws at a temperature are had; None where they cannot be known."""
    bent = profile.log_probs == "masked" and profile.truncated_to is not None
    if profile.log_probs is None or bent:
        return None
    if temperature == 1 or profile.log_probs != "raw":
        return "given"
    if profile.scaled_on_request and profile.truncated_to is None:
        return "on request"
    return "of all" if profile.whole_vocabulary and profile.vocabulary else None


def log_prob_at(
    entry: TokenEntry,
    temperature: float,
    reading: Reading | None,
    *,
    token_id: int | None = None,
    vocabulary: int | None = None,
) -> float | None:
    """Return the log-probability of the token of an entry, or of `token_id` in its place; None if unknown.

    >>> raw = TokenEntry("a", math.log(0.2), 0, {0: math.log(0.2), 1: math.log(0.8)})
    >>> round(math.exp(log_prob_at(raw, 0.5, "of all", token_id=1, vocabulary=2)), 6)
    0.941176
    """
    own = entry.log_prob if token_id in (None, entry.token_id) else entry.top.get(token_id or 0)
    if reading is None or own is None or own == -math.inf:
        return None
    if reading != "of all":
        return own
    values = np.fromiter(entry.top.values(), dtype=np.float64)
    if vocabulary is None or len(values) < vocabulary - 1 or abs(np.exp(values).sum() - 1) > _SUM:
        return None  # one token may have given its place to the drawn one
    return min(0.0, float(own / temperature - np.logaddexp.reduce(values / temperature)))


def why_unknown(profile: ServerProfile, temperature: float) -> str:
    """Say why log-probabilities at a temperature are unknown, what that costs, and what helps."""
    where = f"{profile.server} at {profile.url}"
    cost = "so likelihoods are null, and E-SC alone can be measured"
    if profile.log_probs is None:
        return f"{where} gives no log-probabilities, {cost}"
    if profile.log_probs == "masked":
        cut = f"{where} gives log-probabilities of what its truncation leaves ({profile.truncated_to})"
        return f"{cut}, {cost}; switch that off at the server"
    flag = {"vLLM": "start vLLM with --logprobs-mode processed_logprobs"}.get(profile.server)
    helps = " or ".join(filter(None, (flag, "serve a checkpoint with T folded in (semcal export)")))
    return (
        f"{where} gives log-probabilities at T = 1 alone, and draws are at T = {temperature:g}, {cost}; to "
        f"have likelihoods, {helps}"
    )
