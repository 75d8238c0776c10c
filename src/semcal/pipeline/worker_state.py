"""What a worker holds while it does jobs: the models."""

from __future__ import annotations

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel

__all__ = ["WorkerState"]


class WorkerState:
    """The models of a worker; jobs that need no model of a kind do without it."""

    def __init__(
        self, language_model: LanguageModel | None = None, equivalence: Equivalence | None = None
    ) -> None:
        self._language_model = language_model
        self._equivalence = equivalence

    @property
    def model(self) -> LanguageModel:
        """The language model, which must be there."""
        assert self._language_model is not None
        return self._language_model

    @property
    def equivalence(self) -> Equivalence:
        """What decides which answers mean the same; it must be there."""
        assert self._equivalence is not None
        return self._equivalence
