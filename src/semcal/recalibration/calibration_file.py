"""The contents of `calibration.json`: types and ranges, checked in one place when a recalibrator is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from semcal.errors import StoreError, UsageError, shown
from semcal.recalibration.attentive import BlockShape
from semcal.recalibration.losses import Certificate, check_loss
from semcal.recalibration.provenance import GradientSteps, Provenance, Schedule
from semcal.records import dumps
from semcal.semantics import MEASURES

#: No number in the file is larger; a JSON number may have any number of digits.
LARGEST = 1e300
#: Mistakes that are named at once.
MOST = 5

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    """Strict: 1 is no text, true no number. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Example(_Strict):
    question: Text
    answer: Text
    context: str | None = None


class _Prompt(_Strict):
    few_shot: list[_Example] = []


class _Fit(_Strict):
    prompt: _Prompt
    n_questions: Count
    seed: Count = 0


class _Steps(_Strict):
    schedule: Schedule
    steps: Annotated[int, Field(ge=1, lt=2**63)]
    drift_bound: Annotated[float, Field(ge=0)]
    losses: tuple[float, ...]
    exact_temperature: Positive | None = None


class _Weights(_Strict):
    file: Literal["model.safetensors"]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Common(_Strict):
    """What the files of all methods hold."""

    provenance: Provenance
    fit: _Fit = Field(validation_alias="provenance")
    loss: str
    alpha: float | None
    sgd: _Steps | None = None

    @property
    def steps(self) -> GradientSteps | None:
        """The record of the training, if there was one."""
        return None if self.sgd is None else GradientSteps(**dict(self.sgd))


class TSContents(_Common):
    """Temperature scaling."""

    method: Literal["TS"]
    temperature: Positive
    n_tokens: Count
    certificate: Certificate


class GridContents(_Common):
    """A temperature that was chosen from a grid."""

    method: Literal["TS-grid"]
    temperature: Positive
    measure: str
    loss: Literal["Brier", "gain"]  # what it was chosen by
    alpha: None


class ATSContents(_Common):
    """Attentive temperature scaling."""

    method: Literal["ATS"]
    shape: BlockShape
    weights: _Weights


class _Vocabulary(_Strict):
    vocabulary: Annotated[int, Field(ge=1, lt=2**31)]


class PlattContents(_Common):
    """Platt scaling."""

    method: Literal["Platt"]
    shape: _Vocabulary
    weights: _Weights


Contents = TSContents | GridContents | ATSContents | PlattContents
_KINDS = {get_args(kind.model_fields["method"].annotation)[0]: kind for kind in get_args(Contents)}


def parse_contents(content: Mapping[str, Any], path: Path) -> Contents:
    """Return the contents of a `calibration.json`, every value of the right type and in its range.

    StoreError otherwise; the message names file, key, value and what is expected.
    """
    method = content.get("method")
    if method not in list(_KINDS):
        raise StoreError(
            f"{path} holds the method {shown(method)}, this version knows {', '.join(_KINDS)}; use the "
            "version that wrote it"
        )
    wrong = [
        f"{where}: a finite number is expected, got {shown(value)}" for where, value in not_finite(content)
    ]
    try:
        if not wrong:
            found: Contents = TypeAdapter(_KINDS[method]).validate_json(dumps(content))
            _check_choices(found)
            return found
    except ValidationError as error:
        wrong = [_message(one) for one in error.errors()]
    except UsageError as error:  # from the checks of the settings themselves
        wrong = [str(error)]
    more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
    raise StoreError(
        f"{path}: {'; '.join(wrong[:MOST])}{more}; it was not written by `semcal fit`, fit again"
    )


def check_provenance(provenance: Mapping[str, Any]) -> None:
    """Raise ValidationError unless the prompt in it can be asked with."""
    TypeAdapter(_Fit).validate_json(dumps(provenance))


def _message(one: Any) -> str:
    where = ".".join(str(part) for part in one["loc"])
    if one["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {one['msg']}, got {shown(one['input'])}"


def _check_choices(found: Contents) -> None:
    """Check what types cannot: the loss with its α, the measure of a grid, the optimum of trained TS."""
    if isinstance(found, GridContents):
        if found.measure not in MEASURES:
            raise UsageError(f"measure: expected one of {', '.join(MEASURES)}, got {shown(found.measure)}")
        return
    check_loss(found.loss, found.alpha, exact=isinstance(found, TSContents) and found.sgd is None)
    if isinstance(found, TSContents) and found.sgd is not None and found.sgd.exact_temperature is None:
        raise UsageError("sgd.exact_temperature is missing")


def not_finite(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number that is NaN, infinite, or larger than a float can hold; without recursion."""
    left: list[tuple[str, Any]] = [(str(key), value) for key, value in content.items()]
    for where, value in left:
        if isinstance(value, dict):
            left += [(f"{where}.{key}", one) for key, one in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}.{number}", one) for number, one in enumerate(value)]
        elif isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            yield where, value
