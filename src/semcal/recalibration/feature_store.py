"""The features of reference answers on disk (spec section 6).

The frozen model reads a calibration set once. A store on disk is a folder, from which every later fit reads:
`manifest.json` says what it is made of, `states.bin` holds the states, mapped into memory and never loaded
whole, and `blocks.jsonl` one line for each finished block of questions with its checksum; the prefix belongs
to the first. A block is read by the model in one piece, so an interrupted store ends up the same byte for
byte. The states of a passage that several questions ask about are stored once, as the first of them has them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from semcal.errors import StoreError, shown
from semcal.files import (
    LOCK,
    JsonLine,
    dumps,
    file_lock,
    read_object,
    read_rows,
    remove_leftovers,
    write_rows,
    writing,
)
from semcal.models.language_model import LanguageModel, Prompt, common_prefix, shared_length
from semcal.recalibration.attentive import CalibrationFeatures, row_counts

SCHEMA = 2
#: Questions that the model reads in one piece.
BLOCK = 256
#: Own tokens from which on two prompts that begin alike share the states of what they have in common.
PASSAGE = 64

_Answers = Sequence[Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class Manifest:
    """What the states of a store depend on, and their shape."""

    model: str  # the frozen model
    revision: str
    data_hash: str  # of the questions with their answers
    prompt_hash: str  # of the prompt before them
    whole: bool  # whether the states of all tokens are kept, or of those alone that predict answer tokens
    shared: int  # tokens of the shared prefix
    rows: int  # how many states there are; the prefix comes first if `whole`
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
        """What the features of these prompts and answers under this model will be."""
        shared = shared_length(prompts)
        lengths = _stored_lengths(prompts, shared, _borrowed(prompts, shared, whole=whole))
        return cls(
            model=model.name,
            revision=model.revision,
            data_hash=data_hash,
            prompt_hash=prompt_hash,
            whole=whole,
            shared=shared,
            rows=shared * whole + sum(row_counts(lengths, answers, whole=whole)),
            width=model.width,
            dtype=model.dtype,
        )

    @property
    def bytes(self) -> int:
        """Size of `states.bin`."""
        return self.rows * self.width * _dtype(self.dtype).itemsize


class FeatureStore:
    """The features of one calibration set under one model and prompt, in a folder made if it is not there.

    StoreError if the folder holds the features of something else than `manifest` says, or a damaged manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        path = folder / "manifest.json"
        if path.exists():
            _check_same(path, manifest)
            remove_leftovers(folder)
        else:
            with writing(path) as handle:
                handle.write(dumps({"schema": SCHEMA, **asdict(manifest)}, indent=2) + "\n")

    def fill(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        answers: _Answers,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> CalibrationFeatures:
        """Let the model read what is missing; return all features, mapped from the file.

        StoreError if the file is damaged. UsageError if another process is at it. QuestionError for a
        question that does not fit the model, before any is run.
        """
        if len(self._finished()) == len(list(_blocks(len(prompts)))):
            return self._filled(model, prompts, answers, progress)
        busy = f"another process is reading questions into {self.folder}; wait until it has ended"
        with file_lock(self.folder / LOCK, busy):
            return self._filled(model, prompts, answers, progress)

    def _filled(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        answers: _Answers,
        progress: Callable[[int], None] | None,
    ) -> CalibrationFeatures:
        states = self._mapped()
        whole, shared = self.manifest.whole, self.manifest.shared
        borrowed = _borrowed(prompts, shared, whole=whole)
        lengths = _stored_lengths(prompts, shared, borrowed)
        before = shared if whole else 0
        counts = row_counts(lengths, answers, whole=whole)
        rows = [before, *accumulate(counts, initial=before)][1:]
        finished = self._finished()
        for number, part in enumerate(_blocks(len(prompts))):
            place = slice(rows[part.start], rows[part.stop])
            sealed = slice(place.start if number else 0, place.stop)
            if number in finished:
                _check_block(self.folder, number, states[sealed], finished[number])
            else:
                features = model.features(prompts[part], answers[part], whole=whole, shared=shared)
                if number == 0:
                    states[:before] = features.prefix
                states[place] = features.states[_stored(counts[part], borrowed[part])]
                finished[number] = _checksum(states[sealed])
                self._write_finished(finished)
            if progress is not None:
                progress(part.stop)
        prefix = states[:before] if whole else None
        return CalibrationFeatures.from_states(
            states[before:], lengths, answers, prefix=prefix, borrowed=borrowed
        )

    def _mapped(self) -> Tensor:
        manifest, path = self.manifest, self.folder / "states.bin"
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise StoreError(f"{path} is a link or no file, so nothing is written to it; remove it")
        _reserve(path, manifest.bytes)
        try:
            flat = torch.from_file(
                str(path),
                shared=True,
                size=manifest.rows * manifest.width,
                dtype=_dtype(manifest.dtype),
            )
        except RuntimeError as error:
            raise StoreError(f"cannot map {path} into memory: {str(error).splitlines()[0]}") from error
        return flat.view(manifest.rows, manifest.width)

    def _finished(self) -> dict[int, str]:
        """Checksum of each finished block."""
        path = self.folder / "blocks.jsonl"
        checksums: dict[int, str] = {}
        for row in read_rows(path) if path.exists() else ():
            number, checksum = (
                (row.data.get("block"), row.data.get("blake2b"))
                if isinstance(row, JsonLine)
                else (None, None)
            )
            if type(number) is not int or not isinstance(checksum, str):
                raise StoreError(
                    f"{path} is damaged (line {row.line} names no block with its checksum); delete "
                    f"{self.folder} and run the same command again"
                )
            checksums[number] = checksum
        return checksums

    def _write_finished(self, finished: Mapping[int, str]) -> None:
        write_rows(
            self.folder / "blocks.jsonl",
            ({"block": number, "blake2b": checksum} for number, checksum in finished.items()),
        )


def _borrowed(prompts: Sequence[Prompt], shared: int, *, whole: bool) -> list[tuple[int, int]]:
    """For each prompt the first that begins alike behind the prefix, and how many tokens they share."""
    first: dict[tuple[int, ...], int] = {}
    borrowed = []
    for number, prompt in enumerate(prompts):
        tokens = prompt.token_ids[shared:]
        earlier = first.setdefault(tokens[:PASSAGE], number) if whole and len(tokens) > PASSAGE else number
        count = 0
        if earlier != number:
            count = min(common_prefix([tokens, prompts[earlier].token_ids[shared:]]), len(tokens) - 1)
        borrowed.append((earlier, count))
    return borrowed


def _stored_lengths(prompts: Sequence[Prompt], shared: int, borrowed: Sequence[tuple[int, int]]) -> list[int]:
    """How many tokens of each prompt are stored, if all of it is."""
    return [len(prompt.token_ids) - shared - count for prompt, (_, count) in zip(prompts, borrowed)]


def _stored(counts: Sequence[int], borrowed: Sequence[tuple[int, int]]) -> Tensor:
    """Which states (rows) of a block are stored: of each question all but those that it borrows."""
    return torch.cat(
        [torch.arange(skipped + count) >= skipped for count, (_, skipped) in zip(counts, borrowed)]
    )


def _reserve(path: Path, size: int) -> None:
    """Take a file's space on the disk now; what a mapping writes to a full one ends the process."""
    if not hasattr(os, "posix_fallocate") or (path.exists() and path.stat().st_blocks * 512 >= size):
        return
    with path.open("ab") as handle:
        try:
            os.posix_fallocate(handle.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # this system cannot do it
                error.filename = str(path)
                raise


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _checksum(states: Tensor) -> str:
    return hashlib.blake2b(states.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:32]


def _check_block(folder: Path, number: int, states: Tensor, expected: str) -> None:
    if _checksum(states) != expected:
        raise StoreError(
            f"{folder / 'states.bin'} is damaged (block {number} has another checksum); delete {folder} "
            "and run the same command again"
        )


def _check_same(path: Path, manifest: Manifest) -> None:
    content = read_object(path, remedy="delete its folder and run the same command again")
    differing = [
        f"{key} is {shown(content.get(key))}, wanted {value!r}"
        for key, value in {"schema": SCHEMA, **asdict(manifest)}.items()
        if content.get(key) != value
    ]
    if differing:
        raise StoreError(
            f"{path.parent} holds the features of something else ({'; '.join(differing)}); "
            "name another folder or delete it"
        )
