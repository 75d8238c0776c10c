"""Recalibrators on disk: one readable file with a checksum, `calibration.json`.

The weights of modules are stored beside it in `model.safetensors`, whose checksum is in that file. Types and
ranges are checked here when a recalibrator is read.
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
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from semcal.errors import StoreError, UsageError, shown
from semcal.files import dumps, json_checksum, part_folder, read_object, writing
from semcal.hub_names import CALIBRATION, RECALIBRATOR, RECALIBRATOR_FILES, NamedKind, locate, snapshot
from semcal.recalibration.attentive import Fitted as Fitted
from semcal.recalibration.methods import SAVED
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.temperature import Contents, FitRecord, ModuleContents, TrainedModule
from semcal.rows import Json

FILE, WEIGHTS = RECALIBRATOR_FILES
SCHEMA = 1
#: No number in the file is larger; a JSON number may have any number of digits.
LARGEST = 1e300
#: Mistakes that are named at once.
MOST = 5


def fitted_or_none(recalibrator: Any) -> Fitted | None:
    """The recalibrator if it can be saved, or None: a temperature that was given needs no file."""
    saved = getattr(recalibrator, "method", None) in SAVED and hasattr(recalibrator, "loss")
    return recalibrator if saved else None


def contents_of(method: str) -> type[Contents]:
    """What the files of a method hold; UsageError if it is not saved."""
    contents = SAVED[method].contents
    assert contents is not None
    return contents()


def parse_contents(content: Json, path: Path) -> Contents:
    """Return the contents of a `calibration.json`, every value of the right type and in its range.

    StoreError otherwise; the message names file, key, value and what is expected.
    """
    method = content.get("method")
    if method not in list(SAVED):
        raise StoreError(
            f"{path} holds the method {shown(method)}, this version knows {', '.join(SAVED)}; use the "
            "version that wrote it"
        )
    wrong = [
        f"{where}: a finite number is expected, got {shown(value)}" for where, value in not_finite(content)
    ]
    try:
        if not wrong:
            contents: Contents = contents_of(method).model_validate_json(dumps(content))
            contents.check()
            return contents
    except ValidationError as error:
        wrong = [_message(detail) for detail in error.errors()]
    except UsageError as error:  # from the checks of the settings themselves
        wrong = [str(error)]
    more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
    raise StoreError(
        f"{path}: {'; '.join(wrong[:MOST])}{more}; it was not written by `semcal fit`, fit again"
    )


def check_provenance(provenance: Json) -> None:
    """Raise ValidationError unless the prompt in it can be asked with."""
    FitRecord.model_validate_json(dumps(provenance))


def _message(detail: Any) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {detail['msg']}, got {shown(detail['input'])}"


def not_finite(content: Json) -> Iterator[tuple[str, Any]]:
    """Every number that is NaN, infinite, or larger than a float can hold; without recursion."""
    values: list[tuple[str, Any]] = [(str(key), value) for key, value in content.items()]
    for where, value in values:
        if isinstance(value, dict):
            values += [(f"{where}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            values += [(f"{where}.{number}", item) for number, item in enumerate(value)]
        elif isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            yield where, value


def save_pretrained(recalibrator: Fitted, directory: str | Path, *, provenance: Provenance) -> Path:
    """Write `directory`/calibration.json, for modules with model.safetensors; return the former's path."""
    content = {"method": recalibrator.method, **contents_of(recalibrator.method).described(recalibrator)}
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(recalibrator, TrainedModule):
        checksum = write_tensors(folder / WEIGHTS, recalibrator.state_dict())
        content["weights"] = {"file": WEIGHTS, "sha256": checksum}
    else:
        (folder / WEIGHTS).unlink(missing_ok=True)  # of another method that was saved here before
    if (steps := getattr(recalibrator, "sgd_", None)) is not None:
        content |= {"solver": "sgd", "sgd": asdict(steps)}
    empty = {name for name in ("validation", "server") if not getattr(provenance, name)}
    described = {key: value for key, value in asdict(provenance).items() if key not in empty}
    return write_contents(folder, RECALIBRATOR, {**content, "provenance": described})


def write_contents(folder: Path, kind: NamedKind, content: Json) -> Path:
    """Write `folder`/calibration.json with its kind and checksum, and return its path."""
    written = json.loads(dumps({"schema": SCHEMA, "kind": kind.what, **content}))
    path = folder / FILE
    with writing(path) as handle:
        handle.write(dumps({**written, "sha256": json_checksum(written)}, indent=2) + "\n")
    return path


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
        unchanged = claimed == json_checksum(content)
    except (ValueError, RecursionError):  # half a character, or nested too deep to be written
        unchanged = False
    if not unchanged:
        raise StoreError(f"{path} was changed after it was written (checksum differs); {kind.made_by} again")
    stored = content.pop("kind", RECALIBRATOR.what)  # files of before there were calibrations do not say
    if stored not in (RECALIBRATOR.what, CALIBRATION.what):
        raise StoreError(
            f"{path} has kind {shown(stored)}, this version reads {kind.what}; {kind.made_by} again"
        )
    if stored != kind.what:
        instead = CALIBRATION if kind is RECALIBRATOR else RECALIBRATOR
        raise UsageError(
            f"{path} holds a {stored}, not a {kind.what}; give it with --{instead.what}, or make a "
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
    (Fitted, Provenance)
        Modules on the CPU, their weights frozen.

    Raises
    ------
    UsageError, StoreError
        As `read_contents`; StoreError also if a value in the file is wrong though its checksum is right, or
        the method is unknown.
    """
    content, path = read_contents(path_or_id, RECALIBRATOR, revision=revision)
    contents, weights = parse_contents(content, path), path.with_name(WEIGHTS)
    if isinstance(contents, ModuleContents):
        return _module(contents, weights), contents.provenance
    return contents.restored(weights), contents.provenance


def _refuse_links(directory: Path) -> None:
    """Refuse files that are links to elsewhere: their targets could be read, or sent to the hub.

    In the hub client's cache files are links into the folder `blobs` of the same repository.
    """
    home = directory.resolve()
    homes = {home} | {
        folder.parents[1] / "blobs" for folder in (home, *home.parents) if folder.parent.name == "snapshots"
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


def _module(contents: ModuleContents, path: Path) -> Fitted:
    """The module with its weights, which a wrong size costs no memory."""
    try:
        with torch.device("meta"):
            module = contents.module()
    except (RuntimeError, TypeError, OverflowError) as error:
        shape = shown(getattr(contents, "shape", None))
        raise StoreError(
            f"{path.with_name(FILE)}: shape: no tensors are as large as {shape}; fit again"
        ) from error
    if not path.is_file():
        raise StoreError(f"{path} is missing, the weights that {FILE} beside it belongs to; fit again")
    if file_checksum(path) != contents.weights.sha256:
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
    frozen: Fitted = module.freeze(contents.steps)
    return frozen


def _problems(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[str]:
    """What is wrong with tensors: names, shapes, dtypes, NaN or infinite values."""
    for name in sorted(tensors.keys() ^ expected.keys()):
        yield f"{shown(name)} is {'not expected' if name in tensors else 'missing'}"
    for name, model in expected.items():
        tensor = tensors[name]
        if (tensor.shape, tensor.dtype) != (model.shape, model.dtype):
            sizes = list(tensor.shape), list(model.shape)
            yield f"{name} is {tensor.dtype} of shape {sizes[0]}, not {model.dtype} of {sizes[1]}"
        elif not bool(tensor.isfinite().all()):
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
