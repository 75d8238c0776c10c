"""How a recalibrator was fitted: the labelled questions, and the settings and record of a training.

Trainings go by gradient steps; the exact solver has no settings.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.registry import check_name

#: Fewer labelled questions are refused; fewer than FEW raise a warning.
FEWEST, FEW = 5, 50
#: What the best of several candidates is found by: the highest gain, or the lowest Brier score.
CHOSEN_BY = ("gain", "brier")
Loss = tuple[str, float | None]
"""A loss and its α: ("NLL", None), ("SS", 0.25) or ("any", None)."""
#: The losses that the paper tries.
PAPER_LOSSES: tuple[Loss, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
_ADVICE = "make it again here, or use --force to apply it all the same"


@dataclass(frozen=True)
class Provenance:
    """What a recalibrator was fitted on; it is valid there and nowhere else."""

    model: str  # name of the language model
    revision: str  # of its weights
    prompt: Mapping[str, Any]  # system message and few-shot examples; sampling must use the same
    prompt_hash: str  # of the token ids before every question
    data: str  # source of the labelled questions
    data_hash: str  # of questions and answers
    n_questions: int
    seed: int = 0  # random seed of the fit (the exact solver uses none)
    versions: Mapping[str, str | None] = field(default_factory=dict)  # of packages
    #: The validation scores by which it was chosen; empty if there was no choice.
    validation: Mapping[str, Any] = field(default_factory=dict)
    #: Which one it was fitted over, how, T's error; other names of the model in its replies: "answered_as".
    server: Mapping[str, Any] = field(default_factory=dict)

    def check(
        self,
        *,
        model: str,
        revision: str,
        prompt_hash: str | None = None,
        what: str = "recalibrator",
        difference: str | None = None,
    ) -> None:
        """Raise UsageError unless it was fitted on these weights (and with this prompt, if given).

        `difference` is that of the prompts, as far as it is known.

        A server's weights are not seen: where server, model and what is sent are the same, and its version
        alone is another, that is warned about.
        """
        if self.revision != revision and _but_for_version(self.revision) == _but_for_version(revision):
            warnings.warn(
                f"the {what} was fitted with another version of the server ({self.revision}; now "
                f"{revision}): try it on a few labelled questions, or make it again",
                SemcalWarning,
                stacklevel=3,
            )
        elif self.revision != revision:
            raise UsageError(
                f"the {what} was fitted on {self.model} (revision {_short(self.revision)}), "
                f"not on {model} (revision {_short(revision)}); {_advice(self.revision, revision)}"
            )
        if prompt_hash is not None and self.prompt_hash != prompt_hash:
            raise UsageError(
                f"the {what} was fitted with another prompt "
                f"({difference or 'system message, few-shot examples or template'}); {_ADVICE}"
            )


def _but_for_version(revision: str) -> tuple[str, ...]:
    """A revision without the version of its server, if it has one.

    >>> _but_for_version("vLLM 0.32.0: small, messages"), _but_for_version("sha256:0a1b")
    (('vLLM', 'small, messages'), ('sha256:0a1b',))
    """
    match = re.fullmatch(r"(\S+) [^:]*: (.*)", revision)
    return (revision,) if match is None else match.groups()


def _advice(fitted: str, present: str) -> str:
    """What to do where revisions differ; those of servers say what prompts are sent as.

    >>> _advice("vLLM 0.32.0: small, token ids", "vLLM 0.32.0: small, messages")
    'prompts were token ids then: give --config server.tokenizer=DIR as then, or use --force ...'
    """
    for sent, instead, do in (
        ("token ids", "messages", "give --config server.tokenizer=DIR"),
        ("messages", "token ids", ""),
    ):
        if _but_for_version(fitted.replace(f", {sent}", f", {instead}", 1)) == _but_for_version(present):
            do = do or "leave server.tokenizer out"
            return f"prompts were {sent} then: {do} as then, or use --force to apply it all the same"
    return _ADVICE


def _short(revision: str) -> str:
    """The beginning of a hash; all of what describes a server."""
    return revision if " " in revision else revision[:12]


def check_enough(questions: int, *, of: str = "to fit to") -> None:
    """Raise FitError below 5 labelled questions; `of` says what they are for.

    Examples
    --------
    >>> check_enough(2)
    Traceback (most recent call last):
    semcal.errors.FitError: there are 2 labelled questions to fit to, and at least 5 are needed: ...
    """
    if questions < FEWEST:
        raise FitError(
            f"there {'is' if questions == 1 else 'are'} {questions or 'no'} labelled "
            f"question{'' if questions == 1 else 's'} {of}, and at least {FEWEST} are needed: label more "
            f"({FEW} give a usable fit, a few hundred a reliable one)"
        )


def warn_if_few(questions: int, *, of: str = "to fit to", stacklevel: int = 3) -> None:
    """Warn below 50 labelled questions."""
    if questions < FEW:
        warnings.warn(
            f"there are only {questions} labelled questions {of}: {questions} others may give a very "
            f"different result; label {FEW} or more, better a few hundred",
            SemcalWarning,
            stacklevel=stacklevel,
        )


REFERENCES = ("drawn", "all")
#: Points of a loss curve that are kept.
LOSSES_KEPT = 200


@dataclass(frozen=True)
class Schedule:
    """Settings of a training by gradient steps."""

    learning_rate: float  # highest learning rate, reached at the end of the warm-up
    weight_decay: float = 0.0  # of AdamW, decoupled
    max_norm: float | None = None  # gradients are clipped to this norm; None leaves them as they are
    epochs: int = 2  # passes over the calibration set
    batch_size: int = 4  # questions per step; the paper does not state it
    warm_up: float = 0.1  # share of the first epoch in which the learning rate rises linearly
    #: One reference answer of each question, drawn anew in each epoch, or all of them with equal weights.
    references: Literal["drawn", "all"] = "drawn"
    seed: int = 0  # of the order of questions, the drawn references and the initial weights of ATS

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


def learning_rates(schedule: Schedule, steps: int) -> list[float]:
    """Return the learning rate of each step: a linear rise, then half a cosine down towards 0."""
    rising = math.ceil(schedule.warm_up * steps / schedule.epochs)
    falling = steps - rising
    return [
        schedule.learning_rate
        * ((step + 1) / rising if step < rising else (1 + math.cos(math.pi * (step - rising) / falling)) / 2)
        for step in range(steps)
    ]


def block_means(losses: Sequence[float], count: int = LOSSES_KEPT) -> tuple[float, ...]:
    """Return at most `count` means of consecutive losses, in blocks as equal as can be.

    >>> block_means([4.0, 2.0, 3.0, 1.0, 1.0], count=2)
    (3.0, 1.6666666666666667)
    """
    count = min(count, len(losses))
    edges = [len(losses) * i // count for i in range(count + 1)] if count else [0]
    return tuple(math.fsum(losses[a:b]) / (b - a) for a, b in pairwise(edges))


@dataclass(frozen=True)
class GradientSteps:
    """The record of a training, which is saved with the recalibrator."""

    schedule: Schedule
    steps: int
    drift_bound: float  # sum of the learning rates: about how far AdamW can have moved a parameter
    losses: tuple[float, ...] = field(repr=False)  # mean nats per token of equal shares of steps
    exact_temperature: float | None = None  # TS: optimum of the same loss over all references

    @classmethod
    def from_losses(
        cls, schedule: Schedule, losses: Sequence[float], exact_temperature: float | None = None
    ) -> GradientSteps:
        """Return the record of a training with these losses (nats), one for each step."""
        bound = sum(learning_rates(schedule, len(losses)))
        return cls(schedule, len(losses), bound, block_means(losses), exact_temperature)

    def distance(self, temperature: float) -> float | None:
        """Return how far log T is from that of the exact solution; None where there is none."""
        if self.exact_temperature is None:
            return None
        return abs(math.log(temperature / self.exact_temperature))
