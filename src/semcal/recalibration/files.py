"""Files of recalibrators: `recalibrator.json`, a readable file with a checksum and the provenance.

The weights of modules are in `model.safetensors` in the same folder, with their checksum in
`recalibrator.json`. Reading a recalibrator checks types and ranges.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from semcal.errors import SemcalWarning, StoreError, UsageError, naming_extra, shown
from semcal.files import dumps, json_checksum, read_object, writing
from semcal.hub_names import RECALIBRATOR, NamedKind, locate, snapshot
from semcal.recalibration.methods import SAVED
from semcal.recalibration.records import GradientSteps, check_loss
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.recalibration.records import Fitted


_ADVICE = "Fit it again here, or use --force to apply it anyway"


@dataclass(frozen=True)
class Provenance:
    """The origin of a recalibrator, which is valid only for the same model and prompt."""

    model: str  # name of the language model
    revision: str  # revision of its weights
    prompt: Mapping[str, Any]  # system message and few-shot examples, which samples must use, too
    prompt_hash: str  # hash of the token ids before every question
    data: str  # source of the labeled questions
    data_hash: str  # hash of questions and answers
    n_questions: int
    seed: int = 0  # random seed of the fit (the exact solver uses none)
    versions: Mapping[str, str | None] = field(default_factory=dict)  # versions of packages
    #: Validation scores of the selection; empty without a selection.
    validation: Mapping[str, Any] = field(default_factory=dict)
    #: The server of the fit, its route and the error of T; "answered_as": other model names in replies.
    server: Mapping[str, Any] = field(default_factory=dict)

    def check(
        self,
        *,
        model: str,
        revision: str,
        prompt_hash: str | None = None,
        what: str = "recalibrator",
        difference: str | None = None,
        advice: str = _ADVICE,
    ) -> None:
        """Raise UsageError unless the origin has these weights (and this prompt, if given).

        `difference` describes the difference of the prompts, if known. The weights behind a server are
        unknown: if only the version of the server differs, a warning follows instead.
        """
        if self.revision != revision and _but_for_version(self.revision) == _but_for_version(revision):
            warnings.warn(
                f"{what}: fitted with another version of the server ({self.revision}; now {revision}). Test "
                "it on a few labeled questions, or fit it again",
                SemcalWarning,
                stacklevel=3,
            )
        elif self.revision != revision:
            raise UsageError(
                f"{what}: fitted on {self.model} (revision {_short(self.revision)}), not on {model} "
                f"(revision {_short(revision)}). {advice}"
            )
        if prompt_hash is not None and self.prompt_hash != prompt_hash:
            raise UsageError(
                f"{what}: fitted with another prompt "
                f"({difference or 'system message, few-shot examples or template'}). {advice}"
            )


def _but_for_version(revision: str) -> tuple[str, ...]:
    """Return a revision without the version of its server, if any."""
    match = re.fullmatch(r"(\S+) [^:]*: (.*)", revision)
    return (revision,) if match is None else match.groups()


def _short(revision: str) -> str:
    """Shorten a hash, but not the description of a server."""
    return revision if " " in revision else revision[:12]


# ---- Contents of files

StoredCount = Annotated[int, Field(ge=0, lt=2**63)]


class Strict(BaseModel):
    """A strict model: 1 is not a text, true is not a number. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


class Contents(Strict):
    """The contents of the file of a method; each method has its own subclass."""

    keys: ClassVar[tuple[str, ...]] = ("loss", "alpha")  # keys of the recalibrator, in order

    method: str
    provenance: Provenance
    loss: str
    alpha: float | None
    sgd: GradientSteps | None = None

    @classmethod
    def described(cls, recalibrator: Any) -> Json:
        """Return `keys` with the attributes of a recalibrator; names of fitted attributes end in "_"."""
        values = {key: getattr(recalibrator, f"{key}_", getattr(recalibrator, key, None)) for key in cls.keys}
        return {
            key: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for key, value in values.items()
        }

    def check(self) -> None:
        """Raise UsageError for invalid values that the types allow."""
        check_loss(self.loss, self.alpha)

    @classmethod
    def write_weights(cls, recalibrator: Any, path: Path) -> Json:  # noqa: ARG003
        """Write the tensors of a recalibrator, and return the keys of its file about them."""
        path.unlink(missing_ok=True)  # may exist from another method that was saved here
        return {}

    def restored(self, weights: Path) -> Any:
        """Return the recalibrator; `weights` is the file of its tensors, if any."""
        raise NotImplementedError


#: File of the weights of a module.
WEIGHTS = "model.safetensors"
SCHEMA = 1
#: Largest number in a file; a JSON number may have any number of digits.
LARGEST = 1e300


def fitted_or_none(recalibrator: Any) -> Fitted | None:
    """Return the recalibrator if it can be saved, else None: a given temperature needs no file."""
    saved = getattr(recalibrator, "method", None) in SAVED and hasattr(recalibrator, "loss")
    return recalibrator if saved else None


def contents_of(method: str) -> type[Contents]:
    """Return the class of the contents of a method's file; UsageError if the method is not saved."""
    contents = SAVED[method].contents
    assert contents is not None
    with naming_extra(f"the recalibrator {method}"):
        return contents()


def parse_contents(content: Json, path: Path) -> Contents:
    """Return the contents of a `recalibrator.json` after a check of all types and ranges.

    StoreError for an invalid value; the message has the file, the key, the value and the expected value.
    """
    method = content.get("method")
    if method not in list(SAVED):
        raise StoreError(
            f"{path}: method is {shown(method)}, expected one of {', '.join(SAVED)}. Use the version of "
            "semcal that wrote the file"
        )
    wrong = [f"{where}: expected a finite number, got {shown(value)}" for where, value in not_finite(content)]
    try:
        if not wrong:
            contents: Contents = contents_of(method).model_validate_json(dumps(content))
            contents.check()
            return contents
    except ValidationError as error:
        wrong = [_mistake(detail) for detail in error.errors()]
    except UsageError as error:  # from `check`
        wrong = [str(error)]
    raise StoreError(f"{path}: {wrong[0]}; the file is not from `semcal fit`. Fit again")


def _mistake(detail: Any) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {detail['msg']}, got {shown(detail['input'])}"


def not_finite(content: Json) -> Iterator[tuple[str, Any]]:
    """Yield every number that is NaN, infinite, or too large for a float; without recursion."""
    values: list[tuple[str, Any]] = [(str(key), value) for key, value in content.items()]
    for where, value in values:
        if isinstance(value, dict):
            values += [(f"{where}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            values += [(f"{where}.{number}", item) for number, item in enumerate(value)]
        elif isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            yield where, value


def save_pretrained(recalibrator: Fitted, directory: str | Path, *, provenance: Provenance) -> Path:
    """Write `directory`/recalibrator.json (for modules also model.safetensors) and return its path."""
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
    """Write the file of a kind with its kind and checksum, and return its path."""
    written, path = {"schema": SCHEMA, "kind": kind.what, **content}, folder / kind.file
    with writing(path) as handle:
        handle.write(dumps({**written, "sha256": json_checksum(written)}, indent=2) + "\n")
    return path


def read_contents(
    path_or_id: str | Path, kind: NamedKind, *, revision: str | None = None
) -> tuple[dict[str, Any], Path]:
    """Return the contents of the file of a kind in a directory, after a check of its checksum, and its path.

    UsageError if the file is missing. StoreError if it is damaged, edited, of another kind or schema, or if
    the hub cannot be reached.
    """
    directory = _located(path_or_id, kind, revision)
    path = directory / kind.file
    if not path.is_file():
        raise UsageError(
            f"{path}: does not exist, expected a {kind.what}. Create one with `semcal {kind.made_by}`"
        )
    content = read_object(path, remedy=f"run `semcal {kind.made_by}` again")
    claimed, schema = content.pop("sha256", None), content.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise StoreError(
            f"{path}: schema is {shown(schema)}, expected {SCHEMA}. Run `semcal {kind.made_by}` again"
        )
    try:
        unchanged = claimed == json_checksum(content)
    except (ValueError, RecursionError):  # half a character, or too deeply nested
        unchanged = False
    if not unchanged:
        raise StoreError(
            f"{path}: changed after it was written (the checksum differs). Run `semcal {kind.made_by}` again"
        )
    stored = content.pop("kind", None)
    if stored != kind.what:
        raise StoreError(
            f"{path}: kind is {shown(stored)}, expected {kind.what}. Run `semcal {kind.made_by}` again"
        )
    return content, path


def from_pretrained(path_or_id: str | Path, *, revision: str | None = None) -> tuple[Fitted, Provenance]:
    """Read a recalibrator that `save_pretrained` wrote, and check every type, range and shape.

    The checksums detect damage. They are not signatures: the author of an edit can compute a new checksum.

    Parameters
    ----------
    path_or_id : str or Path
        A directory (or recalibrator.json in it), an id owner/name on the Hugging Face hub (a string, if no
        directory has that name), or "atlas" for the embedded language model.
    revision : str, optional
        Branch, tag or commit on the hub.

    Returns
    -------
    (Fitted, Provenance)
        The recalibrator and its origin. Modules are on the CPU, with frozen weights.

    Raises
    ------
    UsageError, StoreError
        As in `read_contents`; StoreError also for an invalid value or an unknown method.
    """
    content, path = read_contents(path_or_id, RECALIBRATOR, revision=revision)
    contents = parse_contents(content, path)
    return contents.restored(path.with_name(WEIGHTS)), contents.provenance


def _located(path_or_id: str | Path, kind: NamedKind, revision: str | None) -> Path:
    if isinstance(path_or_id, str | Path) and Path(path_or_id).name == kind.file:
        path_or_id = Path(path_or_id).parent
    location = locate(path_or_id, kind, revision=revision)
    if location.on_hub:
        only = kind.file, WEIGHTS
        return snapshot(location.source, revision=revision, only=only, cached=location.cached)
    if revision is not None:
        raise UsageError(f"revision: {path_or_id} is a directory and has no revisions. Omit {revision!r}")
    return Path(location.source)
