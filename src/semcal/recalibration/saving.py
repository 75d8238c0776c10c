"""A fitted recalibrator on disk: one readable file, `calibration.json`, that vouches for itself.

ATS and Platt have weights beside it, `model.safetensors`, whose checksum stands in the readable file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from semcal.errors import StoreError, UsageError, shown
from semcal.recalibration.attentive import ATS
from semcal.recalibration.contents import WEIGHTS, Contents, OfATS, OfGrid, OfPlatt, OfTS, check_contents
from semcal.recalibration.hub import FILES, snapshot
from semcal.recalibration.places import RECALIBRATOR, place_of
from semcal.recalibration.platt import Platt
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.temperature import GridTemperature, TemperatureScaling
from semcal.recalibration.tensor_files import file_checksum, write_tensors
from semcal.records import canonical, dumps, read_object, writing

__all__ = ["FILE", "WEIGHTS", "Fitted", "Provenance", "from_pretrained", "save_pretrained"]

Fitted = TemperatureScaling | GridTemperature | ATS | Platt

FILE = "calibration.json"
SCHEMA = 1


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


def _shape(recalibrator: ATS | Platt) -> dict[str, Any]:
    if isinstance(recalibrator, ATS):
        return asdict(recalibrator.shape)
    return {"vocabulary": len(recalibrator.weight)}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"no recalibrator there: {path} does not exist; make one with `semcal fit`")
    content = read_object(path, remedy="it is not the JSON that `semcal fit` writes; fit again")
    claimed, schema = content.pop("sha256", None), content.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise StoreError(f"{path} has schema {shown(schema)}, this version reads {SCHEMA}; fit again")
    try:
        unchanged = claimed == _checksum(content)
    except (ValueError, RecursionError):  # half a character, or nested too deep to be written
        unchanged = False
    if not unchanged:
        raise StoreError(f"{path} was changed after it was written (checksum differs); fit again")
    return content


def from_pretrained(path_or_id: str | Path, *, revision: str | None = None) -> tuple[Fitted, Provenance]:
    """Read what `save_pretrained` wrote; every type, range and shape is checked here, once for all users.

    The checksums find damage. They are no signature: whoever edits a file can make a right one.

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
        If a file is truncated, edited, missing, a link to elsewhere or of another schema, a value in it
        is wrong though its checksum is right, the method is unknown, or the hub cannot be reached.
    """
    directory = _located(path_or_id, revision)
    path = directory / FILE
    _refuse_links(directory)
    found = check_contents(_read(path), path)
    return _made(found, directory / WEIGHTS), found.provenance


def _made(found: Contents, weights: Path) -> Fitted:
    """The recalibrator that a file describes."""
    if isinstance(found, OfGrid):
        return GridTemperature(found.temperature, measure=found.measure)
    if isinstance(found, OfTS):
        ts = TemperatureScaling(loss=found.loss, alpha=found.alpha)
        ts.certificate_ = found.certificate
        ts.temperature_, ts.n_tokens_, ts.sgd_ = found.temperature, found.n_tokens, found.steps
        return ts
    module = _empty(found, weights)
    _load_weights(module, weights, found.weights.sha256)
    module.sgd_ = found.steps
    return module


def _empty(found: OfATS | OfPlatt, weights: Path) -> ATS | Platt:
    """The module without its weights, so that a wrong size costs no memory."""
    try:
        with torch.device("meta"):
            if isinstance(found, OfATS):
                return ATS(found.shape, loss=found.loss, alpha=found.alpha)
            return Platt(found.shape.vocabulary, loss=found.loss, alpha=found.alpha)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise StoreError(
            f"{weights.with_name(FILE)}: shape: no tensors are as large as {shown(found.shape)}; fit again"
        ) from error


def _refuse_links(directory: Path) -> None:
    """Refuse files that are links to elsewhere: what they lead to could be read, or sent to the hub.

    In the cache of the hub's client files are links into the folder `blobs` of the same repository.
    """
    home = directory.resolve()
    homes = {home} | {
        one.parents[1] / "blobs" for one in (home, *home.parents) if one.parent.name == "snapshots"
    }
    for name in FILES:
        path = directory / name
        if path.is_symlink() and (not path.exists() or path.resolve().parent not in homes):
            raise StoreError(
                f"{path} is a link out of its folder (to {path.readlink()}); put the file itself there"
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


def _load_weights(module: ATS | Platt, path: Path, checksum: str) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is missing, the weights that {FILE} beside it belongs to; fit again")
    if file_checksum(path) != checksum:
        raise StoreError(
            f"{path} is damaged or belongs to another fit (its checksum is not the one in {FILE}); fit again"
        )
    try:
        tensors = load_file(path)
    except (SafetensorError, RuntimeError) as error:
        raise StoreError(f"{path} is damaged: it holds no tensors; fit again") from error
    for problem in _misfits(tensors, module.state_dict()):
        raise StoreError(f"{path} does not hold the weights that {FILE} describes: {problem}; fit again")
    module.to_empty(device="cpu").load_state_dict(tensors)
    module.requires_grad_(False)


def _misfits(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[str]:
    """What is wrong with tensors: names, shapes, dtypes, numbers that are none."""
    for name in sorted(tensors.keys() ^ wanted.keys()):
        yield f"{shown(name)} is {'not expected' if name in tensors else 'missing'}"
    for name, tensor in wanted.items():
        found = tensors[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            size, expected = list(found.shape), list(tensor.shape)
            yield f"{name} is {found.dtype} of shape {size}, not {tensor.dtype} of {expected}"
        elif not bool(found.isfinite().all()):
            yield f"{name} holds NaN or infinite numbers"
