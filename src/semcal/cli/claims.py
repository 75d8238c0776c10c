"""What a command writes to: refused where it is taken (--overwrite), and locked while it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.errors import UsageError
from semcal.records import LOCK, file_lock, is_stream, own_files

__all__ = ["Claim", "claim_file", "claimed", "kept_in_words", "refuse_existing", "unfinished"]

#: Folders of finished work in what a command keeps.
_WORK = ("blocks", "trainings", "recalibrators")


@dataclass(frozen=True)
class Claim:
    """What a command writes to.

    Attributes
    ----------
    path : Path
        Its --out.
    is_folder : bool
        Whether it writes a folder, or one file.
    inside : bool
        Whether it writes into the folder, or the folder appears as a whole.
    begun : bool
        Whether it began that folder itself, so that it goes on there or makes it anew.
    replaceable : bool
        Whether --overwrite may write to a folder that is not empty.
    holds : str
        What is in a folder that may be replaced.
    kept : Path, optional
        The folder in which it keeps work that is finished.
    shard : str
        The share of a run that it does, beside others in the same folder.
    """

    path: Path
    is_folder: bool = False
    inside: bool = True
    begun: bool = False
    replaceable: bool = True
    holds: str = "files already"
    kept: Path | None = None
    shard: str = ""

    def check(self, *, overwrite: bool) -> None:
        """Raise UsageError if it is taken."""
        if not self.is_folder:
            if self.path.is_dir():
                raise UsageError(f"--out {self.path} is a folder; name a file")
            if not overwrite:
                refuse_existing("--out", self.path)
            return
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UsageError(f"--out {self.path} is a file; name a folder")
        if self.begun or not self.path.is_dir() or not own_files(self.path):
            return
        if not self.replaceable:
            raise UsageError(
                f"--out {self.path} is not empty, and this command did not write what it holds; name another"
            )
        if not overwrite:
            raise UsageError(
                f"--out {self.path} holds {self.holds}; name another folder, or give --overwrite to "
                "write there"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing there while the block runs."""
        path = self.path.absolute()
        inside = self.is_folder and self.inside
        folder, name = (path, LOCK) if inside else (path.parent, f".{path.name}{LOCK}")
        busy = f"another process is writing to {self.path}; wait until it has ended, or name another --out"
        with ExitStack() as held:
            try:
                held.enter_context(_made(folder))
                held.enter_context(file_lock(folder / name, busy, shared=bool(self.shard)))
                if self.shard:
                    held.enter_context(file_lock(folder / f".shard {self.shard}{LOCK}", busy))
            except OSError as error:
                error.filename = str(self.path)
                raise
            yield


def claim_file(options: Mapping[str, Any]) -> Claim | None:
    """The claim of a command whose --out is one file."""
    return None if options.get("out") is None else Claim(options["out"])


def refuse_existing(option: str, path: Path) -> None:
    """Refuse a file that is there, but for devices and pipes."""
    if os.path.lexists(path) and not is_stream(path):
        raise UsageError(
            f"{option} {path} is there already; name another file, or give --overwrite to replace it"
        )


@contextmanager
def claimed(claim: Claim | None, *, overwrite: bool, dry_run: bool) -> Iterator[None]:
    """Refuse what is taken, before any work is done, and hold what is not while the block runs."""
    if claim is None or (is_stream(claim.path) and not claim.is_folder):
        yield
        return
    claim.check(overwrite=overwrite)
    if dry_run:
        yield
        return
    with claim.locked():
        claim.check(overwrite=overwrite)  # another process may have finished meanwhile
        yield


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder with those above it; what is empty when the block ends goes again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in missing:
            with suppress(OSError):  # what is not empty stays
                path.rmdir()


def unfinished(out: Path) -> Path:
    """The folder beside an --out that holds what is finished until the whole is there."""
    named = out if out.name else out.resolve()
    return named.with_name(named.name + ".unfinished")


def kept_in_words(claim: Claim | None, options: Mapping[str, Any]) -> str:
    """What a command that has not come to its end has kept, and how to go on; nothing is ""."""
    places = []
    if claim is not None and claim.kept is not None and _holds_work(claim.kept):
        places.append(claim.kept)
    for option, file in (("features", "blocks.jsonl"), ("cache", "")):
        if options.get(option) is not None and (options[option] / file).is_file():
            places.append(options[option])
    if not places:
        return ""
    again = {"fresh": "--fresh", "start": "--from"}
    without = " and ".join(name for option, name in again.items() if options.get(option))
    command = f"the same command without {without}" if without else "the same command"
    return f"what is finished is kept in {' and '.join(map(str, places))}; {command} goes on from there"


def _holds_work(folder: Path) -> bool:
    return any(path.is_file() for name in _WORK for path in (folder / name).rglob("*"))
