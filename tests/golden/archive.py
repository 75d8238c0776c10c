"""The stored files: one archive beside this module, the same bytes for the same files."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

ARCHIVE = Path(__file__).with_name("golden.tar.gz")


def write_archive(files: Mapping[str, str], archive: Path = ARCHIVE) -> None:
    """Store texts by their names, without times and owners."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, text in sorted(files.items()):
            content = text.encode("utf-8")
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(gzip.compress(raw.getvalue(), mtime=0))


def read_archive(archive: Path = ARCHIVE) -> dict[str, str]:
    """The stored texts by their names."""
    with tarfile.open(archive, mode="r:gz") as tar:
        return {one.name: _text(tar, one) for one in tar.getmembers() if one.isfile()}


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = tar.extractfile(member)
    assert content is not None
    return content.read().decode("utf-8")
