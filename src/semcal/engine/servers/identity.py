"""Which server answers at a URL, its version and its model, by calls that generate nothing."""

from __future__ import annotations

import warnings
from typing import Any

from semcal.engine.servers.client import ServerClient
from semcal.engine.servers.profile import ServerProfile
from semcal.errors import SemcalWarning, ServerError

#: What /models calls the owner, and where each server tells its version.
OWNERS = {
    "llamacpp": "llama.cpp",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "library": "Ollama",
    "me": "llama-cpp-python",
}
VERSIONS = {
    "llama.cpp": ("//props", "build_info"),
    "vLLM": ("//version", "version"),
    "SGLang": ("//get_server_info", "version"),
    "Ollama": ("//api/version", "version"),
    "TGI": ("//info", "version"),
    "LiteLLM": ("//health/readiness", "litellm_version"),
}


def identify(client: ServerClient) -> ServerProfile:
    """Which server and model this is, by two or three calls that generate nothing.

    Warns with SemcalWarning if the server does not list the model. ServerError if it lists none and none is
    named.
    """
    url, model = client.endpoint.url, client.endpoint.model
    listed = _models(client)
    _check_path(client)
    if model is None and not listed:
        raise ServerError(f"{url} lists no models; name one: {url}#NAME")
    name = model or listed[0]["id"]
    entry = next((one for one in listed if name in (one["id"], *(one.get("aliases") or ()))), None)
    if entry is None and listed:
        known = ", ".join(one["id"] for one in listed[:10])
        warnings.warn(f"{url} does not list the model {name}; it lists {known}", SemcalWarning, stacklevel=2)
    entry = entry or (listed[0] if listed else {})
    server, told = _server(client, str(entry.get("owned_by", "")))
    version = told.get(VERSIONS.get(server, ("", ""))[1])
    sizes = {**told, **_object(entry.get("meta")), **entry}
    lengths = [_count(sizes.get(key)) for key in ("max_model_len", "n_ctx", "max_total_tokens")]
    return ServerProfile(
        url,
        name,
        server,
        None if version is None else str(version),
        next(filter(None, lengths), None),
        _count(sizes.get("n_vocab")),
    )


def _check_path(client: ServerClient) -> None:
    """Refuse the address of a host whose /v1 answers: what else it answers is no OpenAI's (llama.cpp)."""
    host = client.endpoint.host
    if client.endpoint.url == host:
        try:
            client.get("/v1/models")
        except ServerError:
            return
        raise ServerError(f"{host} speaks as OpenAI does below /v1 alone; give {host}/v1")


def _models(client: ServerClient) -> list[dict[str, Any]]:
    try:
        listed = _object(client.get("/models")).get("data")
    except ServerError:
        if client.endpoint.model is None:
            raise
        return []  # some proxies have no list
    entries = listed if isinstance(listed, list) else []
    return [entry for entry in entries if isinstance(_object(entry).get("id"), str)]


def _server(client: ServerClient, owner: str) -> tuple[str, dict[str, Any]]:
    """The server, and what the address that tells its version says."""
    of_openai = owner in ("openai", "system", "openai-internal")
    named = [OWNERS[owner]] if owner in OWNERS else []
    for server in named or (["LiteLLM"] if of_openai else ["TGI", "Ollama"]):
        path, key = VERSIONS.get(server, ("", ""))
        try:
            told = _object(client.get(path)) if path else {}
        except ServerError:
            told = {}
        if named or key in told:
            return server, told
    return "OpenAI" if of_openai else "unknown", {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
