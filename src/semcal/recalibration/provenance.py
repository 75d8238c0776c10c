"""The labelled questions behind a fit: how many it needs, and the record of what it was fitted on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semcal.errors import FitError, SemcalWarning, UsageError

__all__ = ["FEW", "FEWEST", "Provenance", "check_enough", "warn_if_few"]

#: Fewer labelled questions are refused; fewer than FEW raise a warning.
FEWEST, FEW = 5, 50
_ADVICE = "fit it again here, or use --force to apply it all the same"


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

    def check(self, *, model: str, revision: str, prompt_hash: str | None = None) -> None:
        """Raise UsageError unless it was fitted on these weights (and with this prompt, if given)."""
        if self.revision != revision:
            raise UsageError(
                f"the recalibrator was fitted on {self.model} (revision {self.revision[:12]}), "
                f"not on {model} (revision {revision[:12]}); {_ADVICE}"
            )
        if prompt_hash is not None and self.prompt_hash != prompt_hash:
            raise UsageError(
                "the recalibrator was fitted with another prompt (system message, few-shot examples "
                f"or template); {_ADVICE}"
            )


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
