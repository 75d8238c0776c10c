"""What a process that works on questions holds."""

from __future__ import annotations

from dataclasses import dataclass

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel

__all__ = ["Models"]


@dataclass(frozen=True)
class Models:
    """What a process holds; jobs that need no model of a kind do without it."""

    language_model: LanguageModel | None = None
    equivalence: Equivalence | None = None

    @property
    def model(self) -> LanguageModel:
        """The language model, which must be there."""
        assert self.language_model is not None
        return self.language_model

    @property
    def judge(self) -> Equivalence:
        """The equivalence, which must be there."""
        assert self.equivalence is not None
        return self.equivalence
