"""Finished blocks of a run (design.md, store): named by what they are made of, whole or absent.

A block is a JSON Lines file whose last line holds the number of its rows and the checksum of them, of its
name and of what it is a part of. Its name is the hash of (stage, settings, inputs), so a block that exists is
done and one that no longer fits is simply not looked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.errors import StoreError
from semcal.qa.normal_form import TEXT_RULES
from semcal.records import canonical, dumps, writing

__all__ = ["Block", "Store", "digest", "read_block", "write_if_new"]

Rows = list[dict[str, Any]]
#: Stages that group or grade answers: their blocks are of one version of the rules for texts.
_OF_TEXTS = frozenset(
    ["cluster", "grade", "greedy", "nli", "plain", "select", "measure", "candidates", "temperatures"]
)


def digest(value: Any) -> str:
    """Return a hash (32 hex digits) of anything JSON can hold, the same on every machine."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


class Store:
    """The finished blocks of one run folder.

    Parameters
    ----------
    root : Path
        The run folder; blocks lie under `blocks/<stage>/`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, stage: str, key: Mapping[str, Any]) -> Path:
        """Where the block of `stage` made of `key` lies."""
        made_of = {"stage": stage, **key} | ({"text_rules": TEXT_RULES} if stage in _OF_TEXTS else {})
        return self.root / "blocks" / stage / f"{digest(made_of)}.jsonl"

    def rows(
        self, stage: str, key: Mapping[str, Any], compute: Callable[[], Sequence[Mapping[str, Any]]]
    ) -> Rows:
        """Return the rows of a block, computing and keeping them if they are not there yet.

        Parameters
        ----------
        stage : str
            Name of the stage.
        key : mapping
            Everything that the rows depend on: settings and inputs (or their hashes).
        compute : callable
            Makes the rows.

        Raises
        ------
        StoreError
            If the block is there but damaged.
        """
        found = self.find(stage, key)
        return self.keep(stage, key, compute()) if found is None else found

    def find(self, stage: str, key: Mapping[str, Any]) -> Rows | None:
        """Return the rows of a block, None if it is not there; StoreError if it is damaged."""
        found = self.find_lines(stage, key)
        return None if found is None else list(map(json.loads, found))

    def find_lines(self, stage: str, key: Mapping[str, Any]) -> list[str] | None:
        """Return the rows of a block as they are written; otherwise like `find`."""
        path = self.path(stage, key)
        return read_block(path).lines if path.exists() else None

    def keep(self, stage: str, key: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Rows:
        """Write the rows of a block, and return them as they will be read again."""
        return list(map(json.loads, self.keep_lines(stage, key, list(map(dumps, rows)))))

    def keep_lines(
        self, stage: str, key: Mapping[str, Any], lines: list[str], label: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Write a block of rows that are JSON already; `label` says what it is a part of."""
        path = self.path(stage, key)
        seal = {"block": _seal(path, lines, label or {})} | ({"of": label} if label else {})
        with writing(path) as handle:
            handle.writelines(line + "\n" for line in [*lines, dumps(seal)])
        return lines


@dataclass(frozen=True)
class Block:
    """A finished block.

    Attributes
    ----------
    lines : list of str
        Its rows as JSON.
    label : mapping
        What it is a part of, as it was told when it was written.
    """

    lines: list[str]
    label: Mapping[str, Any]


def read_block(path: Path) -> Block:
    """Read a block.

    Raises
    ------
    StoreError
        If it was cut short or edited, or is another block under this name.
    """
    *lines, last = path.read_bytes().removesuffix(b"\n").split(b"\n")
    try:
        texts, end = [line.decode() for line in lines], json.loads(last)
        whole = isinstance(end, dict) and end.get("block") == _seal(path, texts, end.get("of", {}))
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise StoreError(
            f"the block {path} is damaged or was edited; delete it and run the same command again"
        )
    return Block(texts, end.get("of", {}))


def _seal(path: Path, lines: Sequence[str], label: Any) -> dict[str, Any]:
    text = "\n".join([path.name, canonical(label), *lines])
    return {"rows": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it holds just this."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    with writing(path) as handle:
        handle.write(text)
