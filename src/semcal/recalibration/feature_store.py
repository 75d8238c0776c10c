"""The features of reference answers on disk (spec section 6).

The frozen model reads the labeled questions once, and every later fit reads the states from a folder.
`states.bin` is written atomically and mapped into memory. `manifest.json` follows; it records the origin and
the checksum of the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from semcal.errors import StoreError, shown
from semcal.files import LOCK, atomic_write, dumps, file_checksum, file_lock, read_object, writing
from semcal.models.features import FitFeatures, row_counts
from semcal.models.prompting import shared_length
from semcal.models.protocols import LanguageModel, Prompt

SCHEMA = 3
STATES, MANIFEST, CHECKSUM = "states.bin", "manifest.json", "sha256"
#: Questions per call of the model.
BLOCK = 256
_Answers = Sequence[Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class Manifest:
    """The origin of the states in a store, and their shape."""

    model: str  # name of the frozen model
    revision: str
    data_hash: str  # hash of the questions with their answers
    prompt_hash: str  # hash of the prompt before them
    whole: bool  # True: states of all tokens; False: states that predict answer tokens
    shared: int  # tokens of the shared prefix
    rows: int  # number of states; the prefix is first if `whole`
    width: int  # size of a state
    dtype: str  # "float32", "bfloat16" or "float16"

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        answers: _Answers,
        *,
        data_hash: str,
        prompt_hash: str,
        whole: bool,
    ) -> Manifest:
        """Return the manifest of the features of these prompts and answers."""
        shared = shared_length(prompts)
        return cls(
            model=model.name,
            revision=model.revision,
            data_hash=data_hash,
            prompt_hash=prompt_hash,
            whole=whole,
            shared=shared,
            rows=shared * whole + sum(row_counts(_own_lengths(prompts, shared), answers, whole=whole)),
            width=model.width,
            dtype=model.dtype,
        )

    @property
    def bytes(self) -> int:
        """Size of `states.bin`."""
        return self.rows * self.width * _dtype(self.dtype).itemsize


def stored_features(
    folder: Path,
    manifest: Manifest,
    model: LanguageModel,
    prompts: Sequence[Prompt],
    answers: _Answers,
    *,
    progress: Callable[[int], None] | None = None,
) -> FitFeatures:
    """Return the features of `manifest` from a folder; if they are missing, the model reads the questions.

    StoreError if the folder has features of another origin, or a damaged file. UsageError if another process
    is writing them. QuestionError, before any computation, for a question that is too long for the model.
    """
    if not _is_there(folder, manifest):
        folder.mkdir(parents=True, exist_ok=True)
        busy = f"{folder}: another process is writing features. Wait until it has ended"
        with file_lock(folder / LOCK, busy):
            if not _is_there(folder, manifest):  # another process may have read them meanwhile
                _read(folder, manifest, model, prompts, answers, progress)
    if progress is not None:
        progress(len(prompts))
    states = torch.from_file(
        str(folder / STATES),
        shared=False,
        size=manifest.rows * manifest.width,
        dtype=_dtype(manifest.dtype),
    ).view(manifest.rows, manifest.width)
    before = manifest.shared * manifest.whole
    return FitFeatures.from_states(
        states[before:],
        _own_lengths(prompts, manifest.shared),
        answers,
        prefix=states[:before] if manifest.whole else None,
    )


def _read(
    folder: Path,
    manifest: Manifest,
    model: LanguageModel,
    prompts: Sequence[Prompt],
    answers: _Answers,
    progress: Callable[[int], None] | None,
) -> None:
    """Compute the states of all questions, and write them, then the manifest."""
    with atomic_write(folder / STATES) as handle:
        for start in range(0, len(prompts), BLOCK):
            part = slice(start, start + BLOCK)
            read = model.features(prompts[part], answers[part], whole=manifest.whole, shared=manifest.shared)
            if manifest.whole and start == 0:
                handle.write(_bytes(read.prefix, manifest.dtype))
            handle.write(_bytes(read.states, manifest.dtype))
            if progress is not None:
                progress(min(part.stop, len(prompts)))
    content = {"schema": SCHEMA, **asdict(manifest), CHECKSUM: file_checksum(folder / STATES)}
    with writing(folder / MANIFEST) as text:
        text.write(dumps(content, indent=2) + "\n")


def _is_there(folder: Path, manifest: Manifest) -> bool:
    """Return whether a folder has the features; StoreError for other or damaged features."""
    path, states = folder / MANIFEST, folder / STATES
    if not path.exists():
        return False
    content = read_object(path, remedy="delete its folder and run the same command again")
    differing = [
        f"{key} is {shown(content.get(key))}, expected {value!r}"
        for key, value in {"schema": SCHEMA, **asdict(manifest)}.items()
        if content.get(key) != value
    ]
    if differing:
        raise StoreError(
            f"{folder}: the features have another origin ({'; '.join(differing)}). Pass another folder, or "
            "delete this one"
        )
    if not states.exists():
        return False
    if states.stat().st_size != manifest.bytes or file_checksum(states) != content.get(CHECKSUM):
        raise StoreError(
            f"{states}: damaged (the checksum differs). Delete {folder} and run the same command again"
        )
    return True


def _own_lengths(prompts: Sequence[Prompt], shared: int) -> list[int]:
    """Return the number of tokens of each prompt after the shared prefix."""
    return [len(prompt.token_ids) - shared for prompt in prompts]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _bytes(states: Tensor, dtype: str) -> bytes:
    return states.to("cpu", _dtype(dtype)).contiguous().view(torch.uint8).numpy().tobytes()
