"""Recalibrators on the Hugging Face hub. The network is used when a name asks for it, and only then."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from semcal.errors import SemcalError, StoreError

__all__ = ["is_hub_id", "is_kept", "snapshot", "unreachable", "upload"]

#: What a recalibrator consists of; nothing else is sent or fetched.
FILES = ("calibration.json", "model.safetensors")
#: Seconds to wait for the hub to take a connection; its own client tries for half a minute.
PATIENCE = 3.0


def is_hub_id(path_or_id: str | Path) -> bool:
    """True for a string owner/name that is no path: nothing of that name is here, and it is not a `Path`.

    Examples
    --------
    >>> is_hub_id("owner/name"), is_hub_id("./owner/name"), is_hub_id(Path("owner/name"))
    (True, False, False)
    """
    if isinstance(path_or_id, Path) or path_or_id.startswith((".", "~", "/")):
        return False
    return path_or_id.count("/") == 1 and all(path_or_id.split("/")) and not Path(path_or_id).exists()


def unreachable() -> str | None:
    """Say why the hub cannot be asked, in a few words; None if nothing speaks against it.

    HF_HUB_OFFLINE is heeded, and so is HF_ENDPOINT. Behind a proxy the hub counts as reachable.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so the hub is not asked"
    address = urlsplit(constants.ENDPOINT)
    host = address.hostname or ""
    if address.scheme in getproxies() and not proxy_bypass(host):
        return None
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        return f"the hub ({host}) cannot be reached ({error.strerror or error})"
    return None


def is_kept(repo_id: str, file: str, *, revision: str | None = None) -> bool:
    """Whether the hub's client has a file of a repository in its cache."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(repo_id, file, revision=revision), str)
    except errors.HFValidationError:
        return False


@contextmanager
def _in_words(what: str, advice: str, error_class: type[SemcalError]) -> Iterator[None]:
    """Put what the hub's client raises into one error of ours."""
    from huggingface_hub import errors

    network = getattr(errors, "HTTPError", OSError)  # httpx's or requests', as the client has it
    try:
        yield
    except (OSError, ValueError, network, errors.EntryNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise error_class(f"{what}: {reason[:300] or type(error).__name__} ({advice})") from error


def snapshot(
    repo_id: str,
    *,
    revision: str | None = None,
    only: tuple[str, ...] | None = None,
    without: tuple[str, ...] | None = None,
    cached: bool = False,
    error_class: type[SemcalError] = StoreError,
) -> Path:
    """Fetch the files of a hub repository, or find them in the client's cache, and return their folder.

    Parameters
    ----------
    repo_id : str
        owner/name.
    revision : str, optional
        Branch, tag or commit; the newest by default.
    only, without : tuple of str, optional
        Patterns of the files to take, or to leave.
    cached : bool
        Take what the client has kept and do not ask the hub.
    error_class : type
        What is raised when the hub cannot be reached or has no such repository.
    """
    from huggingface_hub import snapshot_download

    advice = "no directory here, so the hub was asked; if it cannot be reached, give the path of a directory"
    with _in_words(f"cannot fetch {repo_id!r} from the hub", advice, error_class):
        return Path(
            snapshot_download(
                repo_id,
                revision=revision,
                allow_patterns=list(only) if only else None,
                ignore_patterns=list(without) if without else None,
                local_files_only=cached,
            )
        )


def upload(directory: Path, repo_id: str, *, private: bool, token: str | None, message: str) -> str:
    """Send the files of a recalibrator to a repository, made if it is not there; return the commit.

    Raises
    ------
    StoreError
        If the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    advice = "log in with `hf auth login`, check the name owner/name and the connection"
    with _in_words(f"cannot push {directory} to {repo_id!r} on the hub", advice, StoreError):
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=directory, allow_patterns=list(FILES), commit_message=message
        )
    return str(commit.oid)
