"""Recalibrators on disk: one readable file with a checksum, `calibration.json`.

The weights of ATS and Platt are stored beside it in `model.safetensors`, whose checksum is in that file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from semcal.errors import StoreError, UsageError, shown
from semcal.hub_names import CALIBRATION, RECALIBRATOR, RECALIBRATOR_FILES, NamedKind, locate, snapshot
from semcal.recalibration.attentive import ATS
from semcal.recalibration.calibration_file import (
    ATSContents,
    Contents,
    GridContents,
    PlattContents,
    TSContents,
    parse_contents,
)
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.temperature import GridTemperature, Platt, TemperatureScaling
from semcal.records import canonical, dumps, part_folder, read_object, writing

Fitted = TemperatureScaling | GridTemperature | ATS | Platt

FILE, WEIGHTS = RECALIBRATOR_FILES
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
    if isinstance(recalibrator, ATS | Platt):
        own: dict[str, Any] = {
            "shape": asdict(recalibrator.shape)
            if isinstance(recalibrator, ATS)
            else {"vocabulary": len(recalibrator.weight)},
            "loss": recalibrator.loss,
            "alpha": recalibrator.alpha,
            "weights": {
                "file": WEIGHTS,
                "sha256": write_tensors(folder / WEIGHTS, recalibrator.state_dict()),
            },
        }
    else:
        (folder / WEIGHTS).unlink(missing_ok=True)  # of another method that was saved here before
        own = _temperature_contents(recalibrator)
    described = asdict(provenance)
    for name in ("validation", "server"):
        if not described[name]:
            del described[name]
    content = {"method": recalibrator.method, **own, **_training_contents(recalibrator)}
    return write_contents(folder, RECALIBRATOR, {**content, "provenance": described})


def write_contents(folder: Path, kind: NamedKind, content: Mapping[str, Any]) -> Path:
    """Write `folder`/calibration.json with its kind and checksum, and return its path."""
    written: dict[str, Any] = json.loads(dumps({"schema": SCHEMA, "kind": kind.what, **content}))
    path = folder / FILE
    with writing(path) as handle:
        handle.write(dumps({**written, "sha256": _checksum(written)}, indent=2) + "\n")
    return path


def _temperature_contents(recalibrator: TemperatureScaling | GridTemperature) -> dict[str, Any]:
    if isinstance(recalibrator, GridTemperature):
        return {
            "temperature": recalibrator.temperature,
            "measure": recalibrator.measure,
            "loss": recalibrator.loss,
            "alpha": recalibrator.alpha,
        }
    return {
        "temperature": recalibrator.temperature_,
        "loss": recalibrator.loss,
        "alpha": recalibrator.alpha,
        "n_tokens": recalibrator.n_tokens_,
        "certificate": asdict(recalibrator.certificate_),
    }


def _training_contents(recalibrator: Fitted) -> dict[str, Any]:
    """The record of the training, if there was one."""
    if isinstance(recalibrator, GridTemperature) or recalibrator.sgd_ is None:
        return {}
    return {"solver": "sgd", "sgd": asdict(recalibrator.sgd_)}


def read_contents(
    path_or_id: str | Path, kind: NamedKind, *, revision: str | None = None
) -> tuple[dict[str, Any], Path]:
    """Return what calibration.json of a directory holds, its checksum checked, and its path.

    UsageError if there is no such file, or it is of another kind. StoreError if it is damaged, was edited, is
    a link to elsewhere or of another schema, or the hub cannot be reached.
    """
    directory = _located(path_or_id, kind, revision)
    path = directory / FILE
    _refuse_links(directory)
    if not path.is_file():
        raise UsageError(
            f"no {kind.what} there: {path} does not exist; make one with `semcal {kind.made_by}`"
        )
    content = read_object(
        path, remedy=f"it is not the JSON that `semcal {kind.made_by}` writes; {kind.made_by} again"
    )
    claimed, schema = content.pop("sha256", None), content.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise StoreError(
            f"{path} has schema {shown(schema)}, this version reads {SCHEMA}; {kind.made_by} again"
        )
    try:
        unchanged = claimed == _checksum(content)
    except (ValueError, RecursionError):  # half a character, or nested too deep to be written
        unchanged = False
    if not unchanged:
        raise StoreError(f"{path} was changed after it was written (checksum differs); {kind.made_by} again")
    found = content.pop("kind", RECALIBRATOR.what)  # files of before there were calibrations do not say
    if found not in (RECALIBRATOR.what, CALIBRATION.what):
        raise StoreError(
            f"{path} has kind {shown(found)}, this version reads {kind.what}; {kind.made_by} again"
        )
    if found != kind.what:
        other = CALIBRATION if kind is RECALIBRATOR else RECALIBRATOR
        raise UsageError(
            f"{path} holds a {found}, not a {kind.what}; give it with --{other.what}, or make a "
            f"{kind.what} with `semcal {kind.made_by}`"
        )
    return content, path


def from_pretrained(path_or_id: str | Path, *, revision: str | None = None) -> tuple[Fitted, Provenance]:
    """Read what `save_pretrained` wrote; every type, range and shape is checked here.

    The checksums detect damage. They are no signature: whoever edits a file can compute a new one.

    Parameters
    ----------
    path_or_id : str or Path
        A directory (or calibration.json in it), an id owner/name on the Hugging Face hub (a string, and
        no directory of that name), or "atlas", that of the embedded language model.
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
    content, path = read_contents(path_or_id, RECALIBRATOR, revision=revision)
    contents = parse_contents(content, path)
    return _restored(contents, path.with_name(WEIGHTS)), contents.provenance


def _restored(contents: Contents, weights: Path) -> Fitted:
    """The recalibrator that a file describes."""
    if isinstance(contents, GridContents):
        return GridTemperature(contents.temperature, measure=contents.measure, by=contents.loss.lower())
    if isinstance(contents, TSContents):
        return TemperatureScaling.from_certificate(
            contents.certificate,
            contents.temperature,
            loss=contents.loss,
            alpha=contents.alpha,
            n_tokens=contents.n_tokens,
            sgd=contents.steps,
        )
    module = _without_weights(contents, weights)
    _load_weights(module, weights, contents.weights.sha256)
    return module.freeze(contents.steps)


def _without_weights(contents: ATSContents | PlattContents, weights: Path) -> ATS | Platt:
    """The module without its weights, so that a wrong size costs no memory."""
    try:
        with torch.device("meta"):
            if isinstance(contents, ATSContents):
                return ATS(contents.shape, loss=contents.loss, alpha=contents.alpha)
            return Platt(contents.shape.vocabulary, loss=contents.loss, alpha=contents.alpha)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise StoreError(
            f"{weights.with_name(FILE)}: shape: no tensors are as large as {shown(contents.shape)}; fit again"
        ) from error


def _refuse_links(directory: Path) -> None:
    """Refuse files that are links to elsewhere: their targets could be read, or sent to the hub.

    In the hub client's cache files are links into the folder `blobs` of the same repository.
    """
    home = directory.resolve()
    homes = {home} | {
        one.parents[1] / "blobs" for one in (home, *home.parents) if one.parent.name == "snapshots"
    }
    for name in RECALIBRATOR_FILES:
        path = directory / name
        if path.is_symlink() and (not path.exists() or path.resolve().parent not in homes):
            raise StoreError(
                f"{path} is a link out of its folder (to {path.readlink()}); put the file itself there"
            )


def _located(path_or_id: str | Path, kind: NamedKind, revision: str | None) -> Path:
    """The directory itself, or the one into which it has been fetched from the hub."""
    if isinstance(path_or_id, str | Path) and Path(path_or_id).name == FILE:
        path_or_id = Path(path_or_id).parent
    location = locate(path_or_id, kind, revision=revision)
    if location.on_hub:
        return snapshot(location.source, revision=revision, only=RECALIBRATOR_FILES, cached=location.cached)
    if revision is not None:
        raise UsageError(f"{path_or_id} is a directory and has no revision {revision!r}; leave it out")
    return Path(location.source)


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
    for problem in _problems(tensors, module.state_dict()):
        raise StoreError(f"{path} does not hold the weights that {FILE} describes: {problem}; fit again")
    module.to_empty(device="cpu").load_state_dict(tensors)


def _problems(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[str]:
    """What is wrong with tensors: names, shapes, dtypes, NaN or infinite values."""
    for name in sorted(tensors.keys() ^ wanted.keys()):
        yield f"{shown(name)} is {'not expected' if name in tensors else 'missing'}"
    for name, tensor in wanted.items():
        found = tensors[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            size, expected = list(found.shape), list(tensor.shape)
            yield f"{name} is {found.dtype} of shape {size}, not {tensor.dtype} of {expected}"
        elif not bool(found.isfinite().all()):
            yield f"{name} holds NaN or infinite numbers"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file under a temporary name, flush it, rename it; return its checksum.

    StoreError if it cannot be written: the disk is full, say.
    """
    try:
        with part_folder(path) as folder:  # the library makes files that only their owner may read
            written = folder / path.name
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, written)
            written.chmod(folder.stat().st_mode & 0o666)
            with written.open("rb+") as handle:
                os.fsync(handle.fileno())
            checksum = file_checksum(written)
            written.replace(path)
    except SafetensorError as error:
        raise StoreError(
            f"cannot write {path} ({error}); see that there is space, and run the same command again"
        ) from error
    return checksum


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
