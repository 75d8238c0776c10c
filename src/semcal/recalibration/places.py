"""What the name of a model or a recalibrator stands for: what comes with the package, a directory, a hub id.

What can be said without the network is said at once: a name that is none of these, with the nearest one that
is, and a hub id while the hub cannot be reached.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semcal.errors import ModelError, SemcalError, UsageError
from semcal.recalibration import hub
from semcal.registry import Registry

__all__ = ["LANGUAGE_MODEL", "NLI_MODEL", "RECALIBRATOR", "Kind", "Place", "place_of"]


@dataclass(frozen=True)
class Kind:
    """A kind of directory that users give by name.

    Attributes
    ----------
    what : str
        For messages: "language model".
    file : str
        The file by which such a directory is known.
    embedded : Registry
        Names of those that come with the package.
    advice : str
        What to give instead.
    error : type
        What is raised.
    others : tuple of str
        Further names that are known where this one is asked for.
    """

    what: str
    file: str
    embedded: Registry
    advice: str
    error: type[SemcalError] = ModelError
    others: tuple[str, ...] = ()


_CHECKPOINT = "give a checkpoint's directory or a hub id such as owner/model"
LANGUAGE_MODEL = Kind(
    "language model",
    "config.json",
    Registry(
        "language model",
        {
            "atlas": "semcal.demo.paths:language_model_dir",
            "atlas-qwen2": "semcal.demo.paths:qwen2_model_dir",
            "atlas-mistral": "semcal.demo.paths:mistral_model_dir",
        },
    ),
    _CHECKPOINT,
)
NLI_MODEL = Kind(
    "NLI model",
    "config.json",
    Registry("NLI model", {"atlas": "semcal.demo.paths:nli_model_dir"}),
    _CHECKPOINT,
    others=("exact",),
)
RECALIBRATOR = Kind(
    "recalibrator",
    "calibration.json",
    Registry("recalibrator", {"atlas": "semcal.demo.paths:recalibrator_dir"}),
    "give the directory that `semcal fit` wrote or a hub id such as owner/name",
    error=UsageError,
)


@dataclass(frozen=True)
class Place:
    """Where something is.

    Attributes
    ----------
    source : str
        A directory, or an id on the hub.
    name : str
        What it is called: the directory's name, or the id.
    on_hub : bool
        Whether `source` is an id.
    cached : bool
        Whether the hub is not to be asked, only what its client has kept.
    """

    source: str
    name: str
    on_hub: bool = False
    cached: bool = False


def place_of(name: str | Path, kind: Kind, *, revision: str | None = None) -> Place:
    """Find what a name stands for.

    Parameters
    ----------
    name : str or Path
        The name of one that comes with the package ("atlas"; a directory of that name is ./atlas), a
        directory, or an id owner/name on the hub. A `Path`, or what begins with ".", "~" or "/", is a
        directory.
    kind : Kind
        What is asked for.
    revision : str, optional
        Branch, tag or commit on the hub.

    Raises
    ------
    SemcalError
        Of the class that `kind` names: if there is nothing of that name, with the nearest name; or if it is
        an id that the hub's client has not kept, and the hub cannot be reached.

    Examples
    --------
    >>> place_of("atlas", LANGUAGE_MODEL).name
    'language_model'
    >>> place_of("atlsa", LANGUAGE_MODEL)
    Traceback (most recent call last):
    semcal.errors.ModelError: no such directory: atlsa; did you mean 'atlas'? Otherwise give a checkpoint's
    directory or a hub id such as owner/model
    """
    if isinstance(name, str) and name in kind.embedded.names():
        return _directory(kind.embedded.load(name)(), kind)
    path = Path(name).expanduser()
    if path.is_dir():
        return _directory(path, kind)
    if isinstance(name, Path) or not (hub.is_hub_id(name) or _kept(name, kind, revision)):
        raise kind.error(f"no such directory: {name}; {_hint(path, kind)}{kind.advice}")
    reason = hub.unreachable() if "/" in name else "its owner is not named"
    if reason is None:
        return Place(name, name, on_hub=True)
    if not _kept(name, kind, revision):
        raise kind.error(
            f"no {kind.what} {name!r}: it is no directory here, nor among what the hub's client has kept, "
            f"and {reason}; {_hint(path, kind)}give the path of a directory, or fetch it where there is a "
            f"network (hf download {name})"
        )
    return Place(name, name, on_hub=True, cached=True)


def _directory(path: Path, kind: Kind) -> Place:
    if not (path / kind.file).is_file():
        raise kind.error(
            f"no {kind.what} in {path}: it holds no {kind.file}; {_hint(path, kind)}{kind.advice}"
        )
    return Place(str(path), path.resolve().name)


def _kept(name: str, kind: Kind, revision: str | None) -> bool:
    """Whether the hub's client holds the file of an id already (the oldest ids have no owner: gpt2)."""
    return name.count("/") <= 1 and hub.is_kept(name, kind.file, revision=revision)


def _hint(path: Path, kind: Kind) -> str:
    """The nearest of the names that would do."""
    known = {*kind.embedded.names(), *kind.others, *(near.name for near in _around(path, kind))} - {path.name}
    match = difflib.get_close_matches(path.name, sorted(known), n=1)
    if not match:
        inside = sorted(one.name for one in _around(path / "_", kind))
        return f"{path / inside[0]} is one; " if inside else ""
    found = match[0] if (path.parent / match[0] / kind.file).is_file() else None
    return f"did you mean {str(path.parent / match[0]) if found else match[0]!r}? Otherwise "


def _around(path: Path, kind: Kind) -> Iterator[Path]:
    """Directories of this kind that lie beside a path."""
    try:
        yield from (one for one in path.parent.iterdir() if (one / kind.file).is_file())
    except OSError:
        return
