"""Find out what a server does, by a few small requests; keep it with the URL, the model and the version."""

from __future__ import annotations

from semcal.engine.servers.client import ServerClient
from semcal.engine.servers.profile import ServerProfile

__all__ = ["probe", "stored_profile"]


def probe(client: ServerClient) -> ServerProfile:
    """Ask the server what it does; the model is the endpoint's, or the first that the server lists."""
    raise NotImplementedError


def stored_profile(client: ServerClient, *, fresh: bool = False) -> ServerProfile:
    """The profile of an earlier probe, if the server's version is still the same; else a new one."""
    raise NotImplementedError
