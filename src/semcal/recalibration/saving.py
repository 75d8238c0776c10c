"""Recalibrators on disk: one readable file with a checksum, `calibration.json`.

The weights of modules are stored beside it in `model.safetensors`, whose checksum is in that file. Types and
ranges are checked here when a recalibrator is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from semcal.errors import StoreError, UsageError, naming_extra, shown
from semcal.files import dumps, json_checksum, read_object, writing
from semcal.hub_names import CALIBRATION, RECALIBRATOR, RECALIBRATOR_FILES, NamedKind, locate, snapshot
from semcal.recalibration.methods import SAVED
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.temperature import Contents, FitRecord
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.recalibration.attentive import Fitted

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
    with naming_extra(f"the recalibrator {method}"):
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
    contents, folder = contents_of(recalibrator.method), Path(directory)
    content = {"method": recalibrator.method, **contents.described(recalibrator)}
    folder.mkdir(parents=True, exist_ok=True)
    content |= contents.write_weights(recalibrator, folder / WEIGHTS)
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
    stored = content.pop("kind", None)
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
    contents = parse_contents(content, path)
    return contents.restored(path.with_name(WEIGHTS)), contents.provenance


def _refuse_links(directory: Path) -> None:
    """Refuse files that are links to elsewhere: their targets could be read.

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
