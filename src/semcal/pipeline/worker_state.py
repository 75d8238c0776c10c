"""What a worker holds: its models, and the recalibrators of a run folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.errors import StoreError

if TYPE_CHECKING:
    from semcal.engine.equivalence import Equivalence
    from semcal.engine.language_model import LanguageModel, Sampler
    from semcal.recalibration.attentive import AnyRecalibrator


@dataclass(frozen=True)
class RecalibratorSource:
    """Where a recalibrator comes from: its name (Base, SE), a temperature, or a fit in the run folder."""

    name: str
    temperature: float | None = None
    folder: str | None = None  # relative to the run folder
    fingerprint: str | None = None

    def key(self) -> dict[str, Any]:
        """What it is, as it names blocks."""
        return {name: value for name, value in vars(self).items() if value is not None}


class WorkerState:
    """The models of a worker, and the run folder that recalibrators are read from.

    Jobs that need no model of a kind do without it.
    """

    def __init__(
        self,
        language_model: Sampler | None = None,
        equivalence: Equivalence | None = None,
        *,
        folder: Path = Path(),
    ) -> None:
        self.folder = folder
        self._language_model = language_model
        self._equivalence = equivalence
        self._fitted: dict[str, AnyRecalibrator] = {}
        self.costs: Counter[str] = Counter()  # what the job under way has spent: calls, draws, …

    @property
    def model(self) -> Sampler:
        """What answers are drawn from; it must be there."""
        assert self._language_model is not None
        return self._language_model

    @property
    def language_model(self) -> LanguageModel:
        """The language model, which must be there; UsageError if it is a server."""
        from semcal.engine.language_model import with_states

        return with_states(self.model, "this needs hidden states or logits")

    @property
    def equivalence(self) -> Equivalence:
        """What decides which answers mean the same; it must be there."""
        assert self._equivalence is not None
        return self._equivalence

    def recalibrator(self, source: RecalibratorSource | AnyRecalibrator) -> AnyRecalibrator:
        """What a source stands for.

        StoreError if what lies in the run folder is damaged or another one.
        """
        from semcal.recalibration.attentive import fingerprint
        from semcal.recalibration.saving import from_pretrained
        from semcal.recalibration.temperature import SE, Base, Temperature

        if not isinstance(source, RecalibratorSource):
            return source
        if source.temperature is not None:
            return Temperature(source.temperature)
        if source.folder is None or source.fingerprint is None:
            return {"Base": Base, "SE": SE}[source.name]()
        if source.fingerprint not in self._fitted:
            recalibrator, _ = from_pretrained(self.folder / source.folder)
            if fingerprint(recalibrator) != source.fingerprint:
                raise StoreError(
                    f"{self.folder / source.folder} holds another recalibrator than the one that this run "
                    "was made with; delete the folder blocks/fit and run the same command again"
                )
            self._fitted[source.fingerprint] = recalibrator
        return self._fitted[source.fingerprint]
