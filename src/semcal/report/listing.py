"""The tables and figures of a report, listed beside it, so that a later one can remove what is stale.

A file is removed only if the list names it, this report has not written it, and it still holds the bytes that
were written: what a user put there or edited stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from semcal.errors import StoreError
from semcal.records import dumps, read_object, writing

__all__ = ["LISTING", "renew_listing"]

LISTING = "report-files.json"
_FOLDERS = ("tables", "figures")


def renew_listing(folder: Path, written: Iterable[Path]) -> list[Path]:
    """Remove what an older report wrote and this one did not, and list what this one wrote.

    Parameters
    ----------
    folder : Path
        Where the report lies.
    written : iterable of Path
        The tables and figures of this report, all of them below `folder`.

    Returns
    -------
    list of Path
        What was removed.

    Raises
    ------
    StoreError
        If the list of the older report is damaged.
    """
    listed = {path.relative_to(folder).as_posix(): _digest(path) for path in written}
    removed = [
        folder / name
        for name, digest in _older(folder).items()
        if name not in listed and (folder / name).is_file() and _digest(folder / name) == digest
    ]
    for path in removed:
        path.unlink()
    with writing(folder / LISTING) as handle:
        handle.write(dumps({"schema": 1, "files": listed}, indent=1) + "\n")
    return removed


def _older(folder: Path) -> dict[str, str]:
    """Name → checksum of what the last report listed; nothing where there was none."""
    path = folder / LISTING
    if not path.is_file():
        return {}
    remedy = "delete it and make the report again"
    files = read_object(path, remedy=remedy).get("files")
    if not isinstance(files, dict) or not all(map(_is_ours, files)):
        raise StoreError(f"{path} names files outside of {' and '.join(_FOLDERS)}: {remedy}")
    return files


def _is_ours(name: str) -> bool:
    """Whether a name is that of a file right below one of the report's folders."""
    parts = PurePosixPath(name).parts
    return len(parts) == 2 and parts[0] in _FOLDERS and parts[1] != ".."


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
