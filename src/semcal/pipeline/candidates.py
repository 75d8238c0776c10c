"""Candidates to choose from: what can be fitted by each method, with each loss, α and weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MEASURE_ALPHAS",
    "WEIGHT_DECAYS",
    "WITH_ALPHA",
    "Candidate",
    "CandidateFit",
    "candidate_fits",
    "candidate_of",
]

#: The weight decays of ATS and Platt that the paper tries.
WEIGHT_DECAYS = (0.0, 0.01)
#: The a of T-SC and G-SC that the paper tries.
MEASURE_ALPHAS = (0.5, 0.75, 1.25)
#: Measures that have an a.
WITH_ALPHA = ("T-SC", "G-SC")

Loss = tuple[str, float | None]


@dataclass(frozen=True)
class Candidate:
    """One way to recalibrate."""

    name: str  # unique: "Base", "TS NLL", "ATS SS 0.25"
    loss: str | None = None  # "NLL" or "SS"; None where nothing was fitted (Base, SE)
    alpha: float | None = None  # the α of selective smoothing
    weight_decay: float | None = None  # None where the method has none (TS)

    def complexity(self) -> tuple[Any, ...]:
        """What ties are settled by; lower is simpler."""
        return (
            self.loss is not None,
            self.loss != "NLL",
            self.alpha or 0.0,
            -1.0 if self.weight_decay is None else self.weight_decay,
        )


def candidate_of(method: str, loss: str, alpha: float | None, decay: float | None) -> Candidate:
    """The candidate of a method with a loss, its α and a weight decay, named as in tables."""
    parts = [method, loss, None if alpha is None else f"{alpha:g}", f"decay {decay:g}" if decay else None]
    return Candidate(" ".join(part for part in parts if part), loss, alpha, decay)


@dataclass(frozen=True)
class CandidateFit:
    """One fit: all losses of TS together, or one candidate of another method."""

    method: str
    solver: str  # "exact" or "sgd"
    losses: tuple[Loss, ...]
    weight_decay: float | None
    run: int = 0  # whose seed it has; 0 where all runs share one fit

    @property
    def candidates(self) -> list[Candidate]:
        """What is fitted, in the order of the losses."""
        return [candidate_of(self.method, *loss, self.weight_decay) for loss in self.losses]

    @property
    def names(self) -> list[str]:
        """The names of the candidates."""
        return [candidate.name for candidate in self.candidates]


def candidate_fits(
    methods: Sequence[str],
    *,
    losses: Sequence[Loss],
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    solver: str = "exact",
) -> list[CandidateFit]:
    """The fits of methods; `solver` is that of TS, the others have none but sgd."""
    return [
        CandidateFit(method, solver if method == "TS" else "sgd", tuple(group), decay)
        for method in methods
        for decay in ((None,) if method == "TS" else weight_decays)
        for group in ([losses] if method == "TS" else [(loss,) for loss in losses])
    ]
