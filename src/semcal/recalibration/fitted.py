"""What `semcal.fit` returns, and what stands for a recalibrator: that, a saved one, or a temperature."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from semcal.errors import UsageError, shown
from semcal.models.distribution import Base, Temperature, temperature_of
from semcal.models.language_model import PromptConfig, Sampler
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.saving import from_pretrained, save_pretrained
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.models.distribution import AnyRecalibrator
    from semcal.recalibration.attentive import Fitted


@dataclass(frozen=True)
class Fit:
    """A fitted recalibrator with the model and the prompt that it was fitted with.

    Attributes
    ----------
    recalibrator : Fitted
        Such as TemperatureScaling, ATS or Platt.
    provenance : Provenance
        Model, prompt, data and versions; `provenance.check` refuses another model or prompt.
    asking : PromptConfig
        The template of the prompt, and the few-shot examples before every question.
    report : mapping
        Losses before and after, standard error of T, steps; empty for a fit that was loaded.

    Examples
    --------
    >>> import semcal
    >>> from tempfile import mkdtemp
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana." if i % 3 else "Bo."} for i, q in enumerate(table)]
    >>> fitted = semcal.fit(FakeLanguageModel(table), labelled)
    >>> again = Fit.from_pretrained(fitted.save_pretrained(mkdtemp()))
    >>> again.temperature == fitted.temperature, again.asking == fitted.asking
    (True, True)
    """

    recalibrator: Fitted
    provenance: Provenance
    asking: PromptConfig
    report: Json = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """The temperature of TS or TS-grid; UsageError for a method that has no single one."""
        temperature = temperature_of(self.recalibrator)
        if temperature is None:
            raise UsageError(f"{self.recalibrator.method} has no single temperature")
        return temperature

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/calibration.json and return its path."""
        return save_pretrained(self.recalibrator, directory, provenance=self.provenance)

    @classmethod
    def from_pretrained(cls, path_or_id: str | Path, *, revision: str | None = None) -> Fit:
        """Load what `save_pretrained` or `semcal fit` wrote, with its prompt and the check of its model.

        Parameters
        ----------
        path_or_id : str or Path
            A directory, an id on the Hugging Face hub, or "atlas", the embedded model's.
        revision : str, optional
            Branch, tag or commit on the hub.

        Raises
        ------
        UsageError
            If there is no recalibrator.
        StoreError
            If it is damaged, or the hub cannot be reached.
        """
        recalibrator, provenance = from_pretrained(path_or_id, revision=revision)
        return cls(recalibrator, provenance, PromptConfig.from_description(provenance.prompt))


RecalibratorLike: TypeAlias = "Fit | AnyRecalibrator | float | str | Path"
"""What `semcal.fit` returns or has saved, a recalibrator, or a temperature."""


def as_recalibrator(recalibrator: RecalibratorLike | None) -> Fit | AnyRecalibrator:
    """Return a recalibrator: Base for None, a temperature, what `semcal.fit` has saved, or as it is."""
    if recalibrator is None:
        return Base()
    if isinstance(recalibrator, str | Path):
        return Fit.from_pretrained(recalibrator)
    if isinstance(recalibrator, Real) and not isinstance(recalibrator, bool):
        return Temperature(float(recalibrator))
    is_one = isinstance(recalibrator, Fit) or hasattr(recalibrator, "log_probs")
    if is_one and not isinstance(recalibrator, type):
        return cast("Fit | AnyRecalibrator", recalibrator)
    raise UsageError(
        f"the recalibrator is {shown(recalibrator)}; give a temperature such as 0.7, what semcal.fit "
        "returns, or the directory that it was saved in"
    )


def recalibrator_and_prompt(
    model: Sampler,
    recalibrator: RecalibratorLike | None,
    prompt: PromptConfig | None = None,
) -> tuple[AnyRecalibrator, PromptConfig]:
    """Return the recalibrator, and the prompt with the examples and the template of its fit if it has none.

    UsageError if the fit is of another model or prompt, unless the prompt says `force`.
    """
    asking, fit = prompt or PromptConfig(), as_recalibrator(recalibrator)
    if not isinstance(fit, Fit):
        return fit, asking
    asking = replace(
        asking,
        template=asking.template or fit.asking.template,
        few_shot=asking.few_shot or fit.asking.few_shot,
    )
    if not asking.force:
        fit.provenance.check(
            model=model.name,
            revision=model.revision,
            prompt_hash=asking.hash(model),
            difference=fit.asking.difference(asking),
        )
    return fit.recalibrator, asking
