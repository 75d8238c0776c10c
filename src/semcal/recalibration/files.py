"""Recalibrators on disk: one readable file with a checksum, `recalibrator.json`, and their origin.

The weights of modules are stored beside it in `model.safetensors`, whose checksum is in that file. Types and
ranges are checked here when a recalibrator is read.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, model_validator

from semcal.data.question import Role
from semcal.errors import SemcalWarning, StoreError, UsageError, naming_extra, shown
from semcal.files import dumps, json_checksum, read_object, writing
from semcal.hub_names import RECALIBRATOR, NamedKind, locate, snapshot
from semcal.recalibration.methods import SAVED
from semcal.recalibration.records import GradientSteps, Schedule, check_loss
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.recalibration.records import Fitted


_ADVICE = "make it again here, or use --force to apply it all the same"


@dataclass(frozen=True)
class Provenance:
    """What a recalibrator was fitted on; it is valid there and nowhere else."""

    model: str  # name of the language model
    revision: str  # of its weights
    prompt: Mapping[str, Any]  # system message and few-shot examples; sampling must use the same
    prompt_hash: str  # of the token ids before every question
    data: str  # source of the labelled questions
    data_hash: str  # of questions and answers
    n_questions: int
    seed: int = 0  # random seed of the fit (the exact solver uses none)
    versions: Mapping[str, str | None] = field(default_factory=dict)  # of packages
    #: The validation scores by which it was chosen; empty if there was no choice.
    validation: Mapping[str, Any] = field(default_factory=dict)
    #: Which one it was fitted over, how, T's error; other names of the model in its replies: "answered_as".
    server: Mapping[str, Any] = field(default_factory=dict)

    def check(
        self,
        *,
        model: str,
        revision: str,
        prompt_hash: str | None = None,
        what: str = "recalibrator",
        difference: str | None = None,
    ) -> None:
        """Raise UsageError unless it was fitted on these weights (and with this prompt, if given).

        `difference` is that of the prompts, as far as it is known.

        A server's weights are not seen: where server, model and what is sent are the same, and its version
        alone is another, that is warned about.
        """
        if self.revision != revision and _but_for_version(self.revision) == _but_for_version(revision):
            warnings.warn(
                f"the {what} was fitted with another version of the server ({self.revision}; now "
                f"{revision}): try it on a few labelled questions, or make it again",
                SemcalWarning,
                stacklevel=3,
            )
        elif self.revision != revision:
            raise UsageError(
                f"the {what} was fitted on {self.model} (revision {_short(self.revision)}), "
                f"not on {model} (revision {_short(revision)}); {_advice(self.revision, revision)}"
            )
        if prompt_hash is not None and self.prompt_hash != prompt_hash:
            raise UsageError(
                f"the {what} was fitted with another prompt "
                f"({difference or 'system message, few-shot examples or template'}); {_ADVICE}"
            )


def _but_for_version(revision: str) -> tuple[str, ...]:
    """A revision without the version of its server, if it has one.

    >>> _but_for_version("vLLM 0.32.0: small, messages"), _but_for_version("sha256:0a1b")
    (('vLLM', 'small, messages'), ('sha256:0a1b',))
    """
    match = re.fullmatch(r"(\S+) [^:]*: (.*)", revision)
    return (revision,) if match is None else match.groups()


def _advice(fitted: str, present: str) -> str:
    """What to do where revisions differ; those of servers say what prompts are sent as.

    >>> _advice("vLLM 0.32.0: small, token ids", "vLLM 0.32.0: small, messages")
    'prompts were token ids then: give --config server.tokenizer=DIR as then, or use --force ...'
    """
    for sent, instead, do in (
        ("token ids", "messages", "give --config server.tokenizer=DIR"),
        ("messages", "token ids", ""),
    ):
        if _but_for_version(fitted.replace(f", {sent}", f", {instead}", 1)) == _but_for_version(present):
            do = do or "leave server.tokenizer out"
            return f"prompts were {sent} then: {do} as then, or use --force to apply it all the same"
    return _ADVICE


def _short(revision: str) -> str:
    """The beginning of a hash; all of what describes a server."""
    return revision if " " in revision else revision[:12]


# ---- What their files hold

StoredCount = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """Strict: 1 is no text, true no number. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Message(Strict):
    role: Role
    content: Text


class _Example(Strict):
    question: str
    answer: Text
    context: str | None = None
    messages: list[_Message] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.question or self.messages):
            raise ValueError("an example holds a question or messages")
        return self


class _Prompt(Strict):
    few_shot: list[_Example] = []
    system: str | None = None
    user: str | None = None
    roles: list[Role] = []


class FitRecord(Strict):
    """What a recalibrator's provenance must hold so that the prompt in it can be asked with."""

    prompt: _Prompt
    n_questions: StoredCount
    seed: StoredCount = 0


class _Steps(Strict):
    schedule: Schedule
    steps: Annotated[int, Field(ge=1, lt=2**63)]
    drift_bound: Annotated[float, Field(ge=0)]
    losses: tuple[float, ...]
    exact_temperature: PositiveFloat | None = None


class Contents(Strict):
    """What the file of a method holds; each method has a class of its own."""

    keys: ClassVar[tuple[str, ...]] = ("loss", "alpha")  # those of the recalibrator itself, in their order

    method: str
    provenance: Provenance
    fit: FitRecord = Field(validation_alias="provenance")
    loss: str
    alpha: float | None
    sgd: _Steps | None = None

    @property
    def steps(self) -> GradientSteps | None:
        """The record of the training, if there was one."""
        return None if self.sgd is None else GradientSteps(**dict(self.sgd))

    @classmethod
    def described(cls, recalibrator: Any) -> Json:
        """The keys of a recalibrator's own in its file, by its attributes of these names (learnt: with _)."""
        values = {key: getattr(recalibrator, f"{key}_", getattr(recalibrator, key, None)) for key in cls.keys}
        return {
            key: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for key, value in values.items()
        }

    def check(self) -> None:
        """Raise UsageError for what types do not say."""
        check_loss(self.loss, self.alpha)

    @classmethod
    def write_weights(cls, recalibrator: Any, path: Path) -> Json:  # noqa: ARG003
        """Write the tensors that a recalibrator has, and return what its file says of theirs."""
        path.unlink(missing_ok=True)  # of another method that was saved here before
        return {}

    def restored(self, weights: Path) -> Any:
        """The recalibrator; `weights` is the file of its tensors, if it has any."""
        raise NotImplementedError


#: The weights of a module, beside the file that describes it.
WEIGHTS = "model.safetensors"
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
    """Return the contents of a `recalibrator.json`, every value of the right type and in its range.

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
        wrong = [_mistake(detail) for detail in error.errors()]
    except UsageError as error:  # from the checks of the settings themselves
        wrong = [str(error)]
    more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
    raise StoreError(
        f"{path}: {'; '.join(wrong[:MOST])}{more}; it was not written by `semcal fit`, fit again"
    )


def check_provenance(provenance: Json) -> None:
    """Raise ValidationError unless the prompt in it can be asked with."""
    FitRecord.model_validate_json(dumps(provenance))


def _mistake(detail: Any) -> str:
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
    """Write `directory`/recalibrator.json, for modules with model.safetensors; return the former's path."""
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
    written = json.loads(dumps({"schema": SCHEMA, "kind": kind.what, **content}))
    path = folder / kind.file
    with writing(path) as handle:
        handle.write(dumps({**written, "sha256": json_checksum(written)}, indent=2) + "\n")
    return path


def read_contents(
    path_or_id: str | Path, kind: NamedKind, *, revision: str | None = None
) -> tuple[dict[str, Any], Path]:
    """Return what the file of a kind in a directory holds, its checksum checked, and its path.

    UsageError if there is no such file, or it is of another kind. StoreError if it is damaged, was edited, is
    a link to elsewhere or of another schema, or the hub cannot be reached.
    """
    directory = _located(path_or_id, kind, revision)
    path = directory / kind.file
    _refuse_links(directory, kind)
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
    if stored != kind.what:
        raise StoreError(
            f"{path} has kind {shown(stored)}, this version reads {kind.what}; {kind.made_by} again"
        )
    return content, path


def from_pretrained(path_or_id: str | Path, *, revision: str | None = None) -> tuple[Fitted, Provenance]:
    """Read what `save_pretrained` wrote; every type, range and shape is checked here.

    The checksums detect damage. They are no signature: whoever edits a file can compute a new one.

    Parameters
    ----------
    path_or_id : str or Path
        A directory (or recalibrator.json in it), an id owner/name on the Hugging Face hub (a string, and
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


def _refuse_links(directory: Path, kind: NamedKind) -> None:
    """Refuse files that are links to elsewhere: their targets could be read.

    In the hub client's cache files are links into the folder `blobs` of the same repository.
    """
    home = directory.resolve()
    homes = {home} | {
        folder.parents[1] / "blobs" for folder in (home, *home.parents) if folder.parent.name == "snapshots"
    }
    for name in (kind.file, WEIGHTS):
        path = directory / name
        if path.is_symlink() and (not path.exists() or path.resolve().parent not in homes):
            raise StoreError(
                f"{path} is a link out of its folder (to {path.readlink()}); put the file itself there"
            )


def _located(path_or_id: str | Path, kind: NamedKind, revision: str | None) -> Path:
    """The directory itself, or the one into which it has been fetched from the hub."""
    if isinstance(path_or_id, str | Path) and Path(path_or_id).name == kind.file:
        path_or_id = Path(path_or_id).parent
    location = locate(path_or_id, kind, revision=revision)
    if location.on_hub:
        only = kind.file, WEIGHTS
        return snapshot(location.source, revision=revision, only=only, cached=location.cached)
    if revision is not None:
        raise UsageError(f"{path_or_id} is a directory and has no revision {revision!r}; leave it out")
    return Path(location.source)
