"""Names of models and recalibrators: a name in the package, a directory, or an id on the Hugging Face hub.

Only a hub id uses the network. A hub id fails at once if the hub cannot be reached.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from urllib.parse import urlsplit

from semcal.errors import ModelError, SemcalError, StoreError, UsageError, shown

#: Seconds to wait for a connection to the hub; the hub's client would wait for half a minute.
TIMEOUT = 3.0


@dataclass(frozen=True)
class NamedKind:
    """A kind of directory that users name: a language model, an NLI model, a recalibrator."""

    what: str  # for messages: "language model"
    file: str  # file that identifies such a directory
    embedded: Mapping[str, str]  # name in the package → address of the function that returns its directory
    advice: str  # remedy in messages
    error: type[SemcalError] = ModelError
    made_by: str = ""  # command that makes such a directory


_CHECKPOINT = "give a checkpoint's directory, a hub id such as owner/model, "
LANGUAGE_MODEL = NamedKind(
    "language model",
    "config.json",
    {
        "atlas": "semcal.demo.paths:language_model_dir",
        "atlas-qwen2": "semcal.demo.paths:qwen2_model_dir",
        "atlas-mistral": "semcal.demo.paths:mistral_model_dir",
    },
    f"{_CHECKPOINT}'atlas', or openai:URL#NAME for the model of a server",
)
NLI_MODEL = NamedKind(
    "NLI model",
    "config.json",
    {"default": "semcal.demo.paths:equivalence_model_dir", "atlas": "semcal.demo.paths:nli_model_dir"},
    f"{_CHECKPOINT}'default', 'exact' or 'atlas', as the equivalence",
)
RECALIBRATOR = NamedKind(
    "recalibrator",
    "recalibrator.json",
    {"atlas": "semcal.demo.paths:recalibrator_dir"},
    "give the directory that `semcal fit` wrote or a hub id such as owner/name",
    error=UsageError,
    made_by="fit",
)
CALIBRATION = NamedKind(
    "calibration",
    "calibration.json",
    {"atlas": "semcal.demo.paths:calibration_dir"},
    "give the directory that `semcal calibrate` wrote or a hub id such as owner/name",
    error=UsageError,
    made_by="calibrate",
)
FIELD_CALIBRATION = NamedKind(
    "field-calibration",
    "field-calibration.json",
    {},
    "give the directory that `semcal calibrate --schema` wrote",
    error=UsageError,
    made_by="calibrate",
)


@dataclass(frozen=True)
class Location:
    """The location of a named model or recalibrator."""

    source: str  # a directory, or an id on the hub
    name: str  # the directory's name, or the id
    on_hub: bool = False  # whether `source` is an id
    cached: bool = False  # whether to use only the hub client's cache
    gguf: bool = False  # whether `source` is a GGUF file
    revision: str = ""  # of a directory, if known without hashing


def locate(name: str | Path, kind: NamedKind, *, revision: str | None = None) -> Location:
    """Find the model, recalibrator or calibration of a name, according to `kind`.

    The name is a name in the package ("atlas"; ./atlas is a directory), a directory, a GGUF of a language
    model, or an id owner/name on the hub, with a branch, tag or commit as `revision`. A `Path`, or a string
    that begins with ".", "~" or "/", is never an id. Raise `kind.error` if the name is unknown, or if an id
    is not in the hub client's cache and the hub cannot be reached.

    >>> locate("atlas", LANGUAGE_MODEL).name
    'language_model'
    """
    if not isinstance(name, str | Path):
        raise kind.error(f"the {kind.what} is {shown(name)}; {kind.advice}")
    if isinstance(name, str) and name in kind.embedded:
        return _directory(resolve_name(kind.embedded[name])(), kind)
    path = Path(name).expanduser()
    if path.is_dir():
        return _directory(path, kind)
    if path.suffix.lower() == ".gguf":
        if kind is LANGUAGE_MODEL and path.is_file():
            return Location(str(path), path.name, gguf=True)
        wrong = "a GGUF holds a language model" if path.is_file() else "the file does not exist"
        raise kind.error(f"{name}: {wrong}; {kind.advice}")
    if isinstance(name, Path) or not is_hub_id(name):
        raise kind.error(f"{kind.what} {str(name)!r}: the directory does not exist; {kind.advice}")
    reason = unreachable()
    if reason is not None and not is_cached(name, kind.file, revision=revision):
        raise kind.error(
            f"{kind.what} {name!r}: found neither as a directory nor in the cache of the hub's client, "
            f"and {reason}; give the path of a directory, or fetch it on a machine with a network "
            f"(hf download {name})"
        )
    return Location(name, name, on_hub=True, cached=reason is not None)


def llama_cpp_line(path: Path) -> str:
    """Return the command that serves a GGUF, and the option for its server."""
    server = "pass the model openai:http://127.0.0.1:8080/v1"
    return f"llama-server -m {path} -c 8192 --port 8080 serves it; {server}"


def _directory(path: Path, kind: NamedKind) -> Location:
    if not (path / kind.file).is_file():
        for other in (RECALIBRATOR, CALIBRATION) if kind.made_by else ():
            if (path / other.file).is_file():
                raise kind.error(
                    f"{path} holds a {other.what}, not a {kind.what}; give it with --{other.what}, or make a "
                    f"{kind.what} with `semcal {kind.made_by}`"
                )
        raise kind.error(f"no {kind.what} in {path}: it holds no {kind.file}; {kind.advice}")
    return Location(str(path), path.resolve().name)


# ---- The hub ----------------------------------------------------------------------------------------------


def is_hub_id(path_or_id: str | Path) -> bool:
    """Return whether a string is an id owner/name and not an existing path."""
    if isinstance(path_or_id, Path) or path_or_id.startswith((".", "~", "/")):
        return False
    return path_or_id.count("/") == 1 and all(path_or_id.split("/")) and not Path(path_or_id).exists()


def unreachable() -> str | None:
    """Return the reason why the hub cannot be reached, or None.

    HF_HUB_OFFLINE and HF_ENDPOINT are respected. With a proxy, the hub counts as reachable.
    """
    from urllib.request import getproxies, proxy_bypass

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so the hub is not used"
    address = urlsplit(constants.ENDPOINT)
    host = address.hostname or ""
    if address.scheme in getproxies() and not proxy_bypass(host):
        return None
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((host, port), timeout=TIMEOUT).close()
    except OSError as error:
        return f"the hub ({host}) cannot be reached ({error.strerror or error})"
    return None


def is_cached(repo_id: str, file: str, *, revision: str | None = None) -> bool:
    """Return whether the hub client's cache has a file of a repository."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(repo_id, file, revision=revision), str)
    except errors.HFValidationError:
        return False


def snapshot(
    repo_id: str,
    *,
    revision: str | None = None,
    only: tuple[str, ...] | None = None,
    cached: bool = False,
) -> Path:
    """Fetch the files of a hub repository, or find them in the client's cache, and return their folder.

    `revision` is a branch, tag or commit, by default the newest. `only` are patterns of the files to fetch.
    With `cached`, only the client's cache is used. StoreError if the hub cannot be reached or has no such
    repository.
    """
    from huggingface_hub import errors, snapshot_download

    network = getattr(errors, "HTTPError", OSError)  # of httpx or requests, depending on the client's version
    patterns = list(only) if only else None
    try:
        return Path(
            snapshot_download(repo_id, revision=revision, allow_patterns=patterns, local_files_only=cached)
        )
    except (OSError, ValueError, network, errors.EntryNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"cannot fetch {repo_id!r} from the hub: {reason[:300] or type(error).__name__} (no directory "
            "here, so the hub was asked; if it cannot be reached, give the path of a directory)"
        ) from error
