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
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from semcal.errors import StoreError, UsageError, shown
from semcal.hub_names import CALIBRATION, RECALIBRATOR, RECALIBRATOR_FILES, NamedKind, locate, snapshot
from semcal.recalibration.attentive import ATS, BlockShape
from semcal.recalibration.losses import Certificate, check_loss
from semcal.recalibration.provenance import GradientSteps, Provenance, Schedule
from semcal.recalibration.temperature import GridTemperature, Platt, TemperatureScaling
from semcal.records import canonical, dumps, part_folder, read_object, writing
from semcal.semantics import MEASURES

Fitted = TemperatureScaling | GridTemperature | ATS | Platt

FILE, WEIGHTS = RECALIBRATOR_FILES
SCHEMA = 1


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
