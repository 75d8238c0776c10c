"""A fitted recalibrator on disk: one readable file, `calibration.json`, that vouches for itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semcal.errors import StoreError, UsageError
from semcal.recalibration.exact import Certificate
from semcal.recalibration.hub import local_directory
from semcal.recalibration.temperature import TemperatureScaling
from semcal.records import dumps, writing

__all__ = ["FILE", "Provenance", "from_pretrained", "save_pretrained"]

FILE = "calibration.json"
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
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def save_pretrained(
    recalibrator: TemperatureScaling, directory: str | Path, *, provenance: Provenance
) -> Path:
    """Write `directory`/calibration.json and return its path.

    Parameters
    ----------
    recalibrator : TemperatureScaling
        Fitted.
    directory : str or Path
        Made if it is not there.
    provenance : Provenance
        What it was fitted on.
    """
    content: dict[str, Any] = json.loads(
        dumps(
            {
                "schema": SCHEMA,
                "method": recalibrator.method,
                "temperature": recalibrator.temperature_,
                "loss": recalibrator.loss,
                "alpha": recalibrator.alpha,
                "n_tokens": recalibrator.n_tokens_,
                "certificate": asdict(recalibrator.certificate_),
                "provenance": asdict(provenance),
            }
        )
    )
    path = Path(directory) / FILE
    with writing(path) as handle:
        handle.write(dumps({**content, "sha256": _checksum(content)}, indent=2) + "\n")
    return path


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


def from_pretrained(
    path_or_id: str | Path, *, revision: str | None = None
) -> tuple[TemperatureScaling, Provenance]:
    """Read what `save_pretrained` wrote.

    Parameters
    ----------
    path_or_id : str or Path
        A directory, or an id owner/name on the Hugging Face hub (a string, and no directory of that name).
    revision : str, optional
        Branch, tag or commit on the hub.

    Raises
    ------
    UsageError
        If there is no such file.
    StoreError
        If the file is truncated, edited or of another schema, or the hub cannot be reached.
    """
    content = _read(local_directory(path_or_id, revision=revision) / FILE)
    recalibrator = TemperatureScaling(loss=content["loss"], alpha=content["alpha"])
    recalibrator.certificate_ = Certificate(**content["certificate"])
    recalibrator.temperature_ = content["temperature"]
    recalibrator.n_tokens_ = content["n_tokens"]
    return recalibrator, Provenance(**content["provenance"])
