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
    """What a recalibrator was fitted on; it is valid there and nowhere else.

    Attributes
    ----------
    model, revision : str
        Name of the language model and the revision of its weights.
    prompt : mapping
        The system message and the few-shot examples; sampling must use the same.
    prompt_hash : str
        Hash of the token ids before every question.
    data, data_hash : str
        Source of the labelled questions, and the hash of questions and answers.
    n_questions : int
        How many questions were used.
    seed : int
        Random seed of the fit (the exact solver uses none).
    versions : mapping of str to str
        Package versions.
    validation : mapping
        The validation scores by which it was chosen; empty if there was no choice.
    """

    model: str
    revision: str
    prompt: Mapping[str, Any]
    prompt_hash: str
    data: str
    data_hash: str
    n_questions: int
    seed: int = 0
    versions: Mapping[str, str | None] = field(default_factory=dict)
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
            f"(from {FEW} on a fit is worth something, with a few hundred it is reliable)"
        )


def warn_if_few(questions: int, *, of: str = "to fit to", stacklevel: int = 3) -> None:
    """Warn below 50 labelled questions."""
    if questions < FEW:
        warnings.warn(
            f"there are only {questions} labelled questions {of}: another {questions} may give quite another "
            f"result; label {FEW} or more, better a few hundred",
            SemcalWarning,
            stacklevel=stacklevel,
        )
