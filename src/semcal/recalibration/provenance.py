"""What a recalibrator was fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semcal.errors import UsageError

__all__ = ["Provenance"]

_REMEDY = "fit it again here, or use --force to apply it all the same"


@dataclass(frozen=True)
class Provenance:
    """What a recalibrator was fitted on; it is valid there and nowhere else.

    Attributes
    ----------
    model, revision : str
        Name of the language model and the revision of its weights.
    prompt : mapping
        The system message and the few-shot examples; whoever samples must use the same.
    prompt_hash : str
        Hash of the token ids that stand before every question.
    data : str
        Where the labelled questions came from.
    data_hash : str
        Hash of the questions and answers.
    n_questions : int
        How many questions were used.
    seed : int
        Seed of the fit (the exact solver uses none).
    versions : mapping of str to str
        Package versions.
    validation : mapping
        The scores on validation by which it was chosen; empty for one that was not chosen among several.
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
        """Raise UsageError unless this is what was fitted on: these weights (and this prompt, if given)."""
        if self.revision != revision:
            raise UsageError(
                f"the recalibrator was fitted on {self.model} (revision {self.revision[:12]}), "
                f"not on {model} (revision {revision[:12]}); {_REMEDY}"
            )
        if prompt_hash is not None and self.prompt_hash != prompt_hash:
            raise UsageError(
                "the recalibrator was fitted with another prompt (system message, few-shot examples "
                f"or template); {_REMEDY}"
            )
