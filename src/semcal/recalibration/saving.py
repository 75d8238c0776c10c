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
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from semcal.errors import StoreError, UsageError, shown
from semcal.files import canonical, dumps, part_folder, read_object, writing
from semcal.hub_names import CALIBRATION, RECALIBRATOR, RECALIBRATOR_FILES, NamedKind, locate, snapshot
from semcal.measures import MEASURES
from semcal.recalibration.attentive import ATS, BlockShape
from semcal.recalibration.attentive import Fitted as Fitted
from semcal.recalibration.losses import Certificate, check_loss
from semcal.recalibration.methods import SAVED
from semcal.recalibration.provenance import GradientSteps, Provenance, Schedule
from semcal.recalibration.temperature import GridTemperature, Platt, TemperatureScaling, TrainedModule

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


class Contents(_Strict):
    """What the file of a method holds; each method has a class of its own."""

    method: str
    provenance: Provenance
    fit: _Fit = Field(validation_alias="provenance")
    loss: str
    alpha: float | None
    sgd: _Steps | None = None

    @property
    def steps(self) -> GradientSteps | None:
        """The record of the training, if there was one."""
        return None if self.sgd is None else GradientSteps(**dict(self.sgd))

    @classmethod
    def described(cls, recalibrator: Any) -> dict[str, Any]:
        """The keys of a recalibrator's own in its file."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise UsageError for what types do not say."""
        check_loss(self.loss, self.alpha)

    def restored(self, weights: Path) -> Fitted:
        """The recalibrator; `weights` is the file of its tensors, if it has any."""
        raise NotImplementedError


class TSContents(Contents):
    """Temperature scaling."""

    temperature: Positive
    n_tokens: Count
    certificate: Certificate

    @classmethod
    def described(cls, recalibrator: TemperatureScaling) -> dict[str, Any]:
        """T, what it was fitted by, and its certificate."""
        return {
            "temperature": recalibrator.temperature_,
            "loss": recalibrator.loss,
            "alpha": recalibrator.alpha,
            "n_tokens": recalibrator.n_tokens_,
            "certificate": asdict(recalibrator.certificate_),
        }

    def check(self) -> None:
        """The loss with its α, and the optimum beside gradient steps."""
        check_loss(self.loss, self.alpha, exact=self.sgd is None)
        if self.sgd is not None and self.sgd.exact_temperature is None:
            raise UsageError("sgd.exact_temperature is missing")

    def restored(self, weights: Path) -> Fitted:  # noqa: ARG002
        """TS as it was fitted."""
        return TemperatureScaling.from_certificate(
            self.certificate,
            self.temperature,
            loss=self.loss,
            alpha=self.alpha,
            n_tokens=self.n_tokens,
            sgd=self.steps,
        )


class GridContents(Contents):
    """A temperature that was chosen from a grid."""

    temperature: Positive
    measure: str
    loss: Literal["Brier", "gain"]  # what it was chosen by
    alpha: None

    @classmethod
    def described(cls, recalibrator: GridTemperature) -> dict[str, Any]:
        """T, and what it was chosen for and by."""
        names = ("temperature", "measure", "loss", "alpha")
        return {name: getattr(recalibrator, name) for name in names}

    def check(self) -> None:
        """The measure."""
        if self.measure not in MEASURES:
            raise UsageError(f"measure: expected one of {', '.join(MEASURES)}, got {shown(self.measure)}")

    def restored(self, weights: Path) -> Fitted:  # noqa: ARG002
        """The temperature as it was chosen."""
        return GridTemperature(self.temperature, measure=self.measure, by=self.loss.lower())


class ModuleContents(Contents):
    """A module whose weights lie in a file of their own."""

    weights: _Weights

    def module(self) -> Any:
        """The module of these settings, its weights yet to be loaded."""
        raise NotImplementedError

    def restored(self, weights: Path) -> Fitted:
        """The module with its weights, which a wrong size costs no memory."""
        try:
            with torch.device("meta"):
                module = self.module()
        except (RuntimeError, TypeError, OverflowError) as error:
            shape = shown(getattr(self, "shape", None))
            raise StoreError(
                f"{weights.with_name(FILE)}: shape: no tensors are as large as {shape}; fit again"
            ) from error
        _load_weights(module, weights, self.weights.sha256)
        frozen: Fitted = module.freeze(self.steps)
        return frozen


class ATSContents(ModuleContents):
    """Attentive temperature scaling."""

    shape: BlockShape

    @classmethod
    def described(cls, recalibrator: ATS) -> dict[str, Any]:
        """The shape of the block, and what it was fitted by."""
        shape = asdict(recalibrator.shape)
        return {"shape": shape, "loss": recalibrator.loss, "alpha": recalibrator.alpha}

    def module(self) -> ATS:
        """The block."""
        return ATS(self.shape, loss=self.loss, alpha=self.alpha)


class _Vocabulary(_Strict):
    vocabulary: Annotated[int, Field(ge=1, lt=2**31)]


class PlattContents(ModuleContents):
    """Platt scaling."""

    shape: _Vocabulary

    @classmethod
    def described(cls, recalibrator: Platt) -> dict[str, Any]:
        """The size of the vocabulary, and what it was fitted by."""
        shape = {"vocabulary": len(recalibrator.weight)}
        return {"shape": shape, "loss": recalibrator.loss, "alpha": recalibrator.alpha}

    def module(self) -> Platt:
        """The affine map."""
        return Platt(self.shape.vocabulary, loss=self.loss, alpha=self.alpha)


def fitted_or_none(recalibrator: Any) -> Fitted | None:
    """The recalibrator if it can be saved, or None: a temperature that was given needs no file."""
    saved = getattr(recalibrator, "method", None) in SAVED and hasattr(recalibrator, "loss")
    return recalibrator if saved else None


def contents_of(method: str) -> type[Contents]:
    """What the files of a method hold; UsageError if it is not saved."""
    contents = SAVED[method].contents
    assert contents is not None
    return contents()


def parse_contents(content: Mapping[str, Any], path: Path) -> Contents:
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


def check_provenance(provenance: Mapping[str, Any]) -> None:
    """Raise ValidationError unless the prompt in it can be asked with."""
    TypeAdapter(_Fit).validate_json(dumps(provenance))


def _message(detail: Any) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {detail['msg']}, got {shown(detail['input'])}"


def not_finite(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number that is NaN, infinite, or larger than a float can hold; without recursion."""
    values: list[tuple[str, Any]] = [(str(key), value) for key, value in content.items()]
    for where, value in values:
        if isinstance(value, dict):
            values += [(f"{where}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            values += [(f"{where}.{number}", item) for number, item in enumerate(value)]
        elif isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            yield where, value


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def save_pretrained(recalibrator: Fitted, directory: str | Path, *, provenance: Provenance) -> Path:
    """Write `directory`/calibration.json, for modules with model.safetensors; return the former's path.

    Parameters
    ----------
    recalibrator : Fitted
        Of a method that can be saved.
    directory : str or Path
        Made if it is not there.
    provenance : Provenance
        What it was fitted on.
    """
    contents = contents_of(recalibrator.method).described(recalibrator)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(recalibrator, TrainedModule):
        checksum = write_tensors(folder / WEIGHTS, recalibrator.state_dict())
        contents["weights"] = {"file": WEIGHTS, "sha256": checksum}
    else:
        (folder / WEIGHTS).unlink(missing_ok=True)  # of another method that was saved here before
    described = asdict(provenance)
    for name in ("validation", "server"):
        if not described[name]:
            del described[name]
    steps = getattr(recalibrator, "sgd_", None)
    training = {} if steps is None else {"solver": "sgd", "sgd": asdict(steps)}
    content = {"method": recalibrator.method, **contents, **training, "provenance": described}
    return write_contents(folder, RECALIBRATOR, content)


def write_contents(folder: Path, kind: NamedKind, content: Mapping[str, Any]) -> Path:
    """Write `folder`/calibration.json with its kind and checksum, and return its path."""
    written: dict[str, Any] = json.loads(dumps({"schema": SCHEMA, "kind": kind.what, **content}))
    path = folder / FILE
    with writing(path) as handle:
        handle.write(dumps({**written, "sha256": _checksum(written)}, indent=2) + "\n")
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
        unchanged = claimed == _checksum(content)
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
    UsageError
        If there is no such file.
    StoreError
        If a file is truncated, edited, missing, a link to elsewhere or of another schema, a value in it
        is wrong though its checksum is right, the method is unknown, or the hub cannot be reached.
    """
    content, path = read_contents(path_or_id, RECALIBRATOR, revision=revision)
    contents = parse_contents(content, path)
    return contents.restored(path.with_name(WEIGHTS)), contents.provenance


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


def _load_weights(module: nn.Module, path: Path, checksum: str) -> None:
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
