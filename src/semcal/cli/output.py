"""Where a command writes: refused where something is already (--overwrite), and locked while it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.errors import UsageError
from semcal.records import LOCK, file_lock, is_stream, own_files

__all__ = ["Output", "kept_message", "output_file", "refuse_existing", "reserved", "unfinished"]

#: Folders of finished work in what a command keeps.
_WORK = ("blocks", "trainings", "recalibrators")


@dataclass(frozen=True)
class Output:
    """What a command writes to: the path of its --out, and what may happen there."""

    path: Path
    is_folder: bool = False  # a folder, or one file
    inside: bool = True  # files are written into the folder; False: the folder appears as a whole
    begun: bool = False  # this command began the folder, so it resumes there or replaces it
    replaceable: bool = True  # --overwrite may write to a folder that is not empty
    holds: str = "files already"  # what is in a folder that may be replaced
    kept: Path | None = None  # the folder in which finished work is kept
    shard: str = ""  # the share of a run that is done, beside others in the same folder

    def check(self, *, overwrite: bool) -> None:
        """Raise UsageError if something else is there."""
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


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder with its parents; remove those that are empty when the block ends."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in missing:
            with suppress(OSError):  # not empty
                path.rmdir()


@contextmanager
def reserved(output: Output | None, *, overwrite: bool, dry_run: bool) -> Iterator[None]:
    """Check the output before any work is done, and lock it while the block runs."""
    if output is None or (is_stream(output.path) and not output.is_folder):
        yield
        return
    output.check(overwrite=overwrite)
    if dry_run:
        yield
        return
    with output.locked():
        output.check(overwrite=overwrite)  # another process may have finished meanwhile
        yield


def output_file(options: Mapping[str, Any]) -> Output | None:
    """The output of a command whose --out is one file."""
    return None if options.get("out") is None else Output(options["out"])


def refuse_existing(option: str, path: Path) -> None:
    """Refuse a file that exists; devices and pipes are accepted."""
    if os.path.lexists(path) and not is_stream(path):
        raise UsageError(
            f"{option} {path} is there already; name another file, or give --overwrite to replace it"
        )


def unfinished(out: Path) -> Path:
    """The folder beside an --out that keeps finished work until the whole is there."""
    named = out if out.name else out.resolve()
    return named.with_name(named.name + ".unfinished")


def kept_message(output: Output | None, options: Mapping[str, Any]) -> str:
    """Which finished work a command that was stopped has kept, and how to resume; "" if none."""
    places = []
    if output is not None and output.kept is not None and _holds_work(output.kept):
        places.append(output.kept)
    for option, file in (("features", "blocks.jsonl"), ("cache", "")):
        if options.get(option) is not None and (options[option] / file).is_file():
            places.append(options[option])
    if not places:
        return ""
    again = {"fresh": "--fresh", "start": "--from"}
    without = " and ".join(name for option, name in again.items() if options.get(option))
    command = f"the same command without {without}" if without else "the same command"
    return f"what is finished is kept in {' and '.join(map(str, places))}; {command} resumes from there"


def _holds_work(folder: Path) -> bool:
    return any(path.is_file() for name in _WORK for path in (folder / name).rglob("*"))
