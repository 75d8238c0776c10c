"""A fitted recalibrator on disk: one readable file, `calibration.json`, that vouches for itself.

ATS and Platt have weights beside it, `model.safetensors`, whose checksum stands in the readable file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from semcal.errors import StoreError, UsageError
from semcal.recalibration.attentive import ATS, BlockShape
from semcal.recalibration.exact import Certificate
from semcal.recalibration.hub import FILES, snapshot
from semcal.recalibration.places import RECALIBRATOR, place_of
from semcal.recalibration.platt import Platt
from semcal.recalibration.schedule import GradientSteps, Schedule
from semcal.recalibration.temperature import GridTemperature, TemperatureScaling
from semcal.recalibration.tensor_files import file_checksum, write_tensors
from semcal.records import canonical, dumps, writing

__all__ = ["FILE", "WEIGHTS", "Fitted", "Provenance", "from_pretrained", "save_pretrained"]

Fitted = TemperatureScaling | GridTemperature | ATS | Platt

FILE = "calibration.json"
WEIGHTS = "model.safetensors"
SCHEMA = 1
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


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def save_pretrained(recalibrator: Fitted, directory: str | Path, *, provenance: Provenance) -> Path:
    """Write `directory`/calibration.json, for ATS and Platt with model.safetensors; return the former's path.

    Parameters
    ----------
    recalibrator : TemperatureScaling, GridTemperature, ATS or Platt
        Fitted.
    directory : str or Path
        Made if it is not there.
    provenance : Provenance
        What it was fitted on.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(recalibrator, TemperatureScaling):
        (folder / WEIGHTS).unlink(missing_ok=True)  # of another method that was kept here before
        own: dict[str, Any] = {
            "temperature": recalibrator.temperature_,
            "loss": recalibrator.loss,
            "alpha": recalibrator.alpha,
            "n_tokens": recalibrator.n_tokens_,
            "certificate": asdict(recalibrator.certificate_),
        }
    elif isinstance(recalibrator, GridTemperature):
        (folder / WEIGHTS).unlink(missing_ok=True)
        own = {
            "temperature": recalibrator.temperature,
            "measure": recalibrator.measure,
            "loss": recalibrator.loss,
            "alpha": recalibrator.alpha,
        }
    else:
        own = {
            "shape": _shape(recalibrator),
            "loss": recalibrator.loss,
            "alpha": recalibrator.alpha,
            "weights": {
                "file": WEIGHTS,
                "sha256": write_tensors(folder / WEIGHTS, recalibrator.state_dict()),
            },
        }
    content: dict[str, Any] = json.loads(
        dumps(
            {
                "schema": SCHEMA,
                "method": recalibrator.method,
                **own,
                **_trained(recalibrator),
                "provenance": _described(provenance),
            }
        )
    )
    path = folder / FILE
    with writing(path) as handle:
        handle.write(dumps({**content, "sha256": _checksum(content)}, indent=2) + "\n")
    return path


def _described(provenance: Provenance) -> dict[str, Any]:
    known = asdict(provenance)
    return known if provenance.validation else {key: known[key] for key in known if key != "validation"}


def _trained(recalibrator: Fitted) -> dict[str, Any]:
    """What is kept of the gradient steps, where there were any."""
    if isinstance(recalibrator, GridTemperature) or recalibrator.sgd_ is None:
        return {}
    return {"solver": "sgd", "sgd": asdict(recalibrator.sgd_)}


def _steps(content: Mapping[str, Any]) -> GradientSteps | None:
    """Read what `_trained` wrote; older files have no such entry."""
    kept = content.get("sgd")
    if kept is None:
        return None
    schedule = Schedule(**kept["schedule"])
    return GradientSteps(**{**kept, "schedule": schedule, "losses": tuple(kept["losses"])})


def _shape(recalibrator: ATS | Platt) -> dict[str, Any]:
    if isinstance(recalibrator, ATS):
        return asdict(recalibrator.shape)
    return {"vocabulary": len(recalibrator.weight)}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"no recalibrator there: {path} does not exist; make one with `semcal fit`")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        claimed = content.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is damaged (not the JSON that `semcal fit` writes); fit again") from error
    if content.get("schema") != SCHEMA:
        raise StoreError(
            f"{path} has schema {content.get('schema')!r}, this version reads {SCHEMA}; fit again"
        )
    if claimed != _checksum(content):
        raise StoreError(f"{path} was changed after it was written (checksum differs); fit again")
    return dict(content)


def from_pretrained(path_or_id: str | Path, *, revision: str | None = None) -> tuple[Fitted, Provenance]:
    """Read what `save_pretrained` wrote.

    Parameters
    ----------
    path_or_id : str or Path
        A directory (or calibration.json in it), an id owner/name on the Hugging Face hub (a string, and
        no directory of that name), or "atlas", the one of the embedded language model.
    revision : str, optional
        Branch, tag or commit on the hub.

    Returns
    -------
    (TemperatureScaling, ATS or Platt, Provenance)
        ATS and Platt on the CPU, their weights frozen.

    Raises
    ------
    UsageError
        If there is no such file.
    StoreError
        If a file is truncated, edited, missing or of another schema, the method is unknown, or the hub
        cannot be reached.
    """
    directory = _located(path_or_id, revision)
    path = directory / FILE
    content = _read(path)
    provenance = Provenance(**content["provenance"])
    loss, alpha = content["loss"], content["alpha"]
    if content["method"] == "TS":
        ts = TemperatureScaling(loss=loss, alpha=alpha)
        ts.certificate_ = Certificate(**content["certificate"])
        ts.temperature_, ts.n_tokens_ = content["temperature"], content["n_tokens"]
        ts.sgd_ = _steps(content)
        return ts, provenance
    if content["method"] == "TS-grid":
        return GridTemperature(content["temperature"], measure=content["measure"]), provenance
    weights = directory / WEIGHTS
    if content["method"] == "ATS":
        ats = ATS(BlockShape(**content["shape"]), loss=loss, alpha=alpha)
        _load_weights(ats, weights, content["weights"]["sha256"])
        ats.sgd_ = _steps(content)
        return ats, provenance
    if content["method"] == "Platt":
        platt = Platt(content["shape"]["vocabulary"], loss=loss, alpha=alpha)
        _load_weights(platt, weights, content["weights"]["sha256"])
        platt.sgd_ = _steps(content)
        return platt, provenance
    raise StoreError(
        f"{path} holds the method {content['method']!r}, this version knows TS, TS-grid, ATS and "
        "Platt; use the version that wrote it"
    )


def _located(path_or_id: str | Path, revision: str | None) -> Path:
    """The directory itself, or the one into which a recalibrator has been fetched from the hub."""
    if Path(path_or_id).name == FILE:
        path_or_id = Path(path_or_id).parent
    place = place_of(path_or_id, RECALIBRATOR, revision=revision)
    if place.on_hub:
        return snapshot(place.source, revision=revision, only=FILES, cached=place.cached)
    if revision is not None:
        raise UsageError(f"{path_or_id} is a directory and has no revision {revision!r}; leave it out")
    return Path(place.source)


def _load_weights(module: nn.Module, path: Path, checksum: str) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is missing, the weights that {FILE} beside it belongs to; fit again")
    if file_checksum(path) != checksum:
        raise StoreError(
            f"{path} is damaged or belongs to another fit (its checksum is not the one in {FILE}); fit again"
        )
    try:
        module.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise StoreError(f"{path} does not hold the weights that {FILE} describes; fit again") from error
    module.requires_grad_(False)
