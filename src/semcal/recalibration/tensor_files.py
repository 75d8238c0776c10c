"""Tensors in a safetensors file that appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from semcal.errors import StoreError
from semcal.records import part_folder

__all__ = ["file_checksum", "write_tensors"]


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors under a temporary name, flush them to disk, rename the file, and return its checksum.

    Raises
    ------
    StoreError
        If it cannot be written: the disk is full, say.
    """
    try:
        with part_folder(
            path
        ) as folder:  # the library writes to a name of its own, readable by its owner alone
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
    """The SHA-256 of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
