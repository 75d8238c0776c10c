"""The options of commands that ask servers, defined once; what such commands say of requests and spending."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.console import info, note_in_progress
from semcal.cli.options import ApiKeyFileOption, countable
from semcal.engine.equivalence import names_a_server
from semcal.errors import UsageError

if TYPE_CHECKING:
    from semcal.engine.servers.settings import ServerSettings

ServerOptions = Mapping[str, Any]
"""The options of servers that a command was given."""
NO_SERVER: ServerOptions = MappingProxyType({})


def _option(kind: Any, name: str, metavar: str, text: str) -> Any:
    callback = countable if kind is int else None
    return Annotated[kind | None, typer.Option(name, metavar=metavar, callback=callback, help=text)]


_OPTIONS: dict[str, Any] = {
    "tokenizer": _option(
        str, "--tokenizer", "DIR", "The server's model as a directory or hub id: token ids are sent."
    ),
    "api_key_file": ApiKeyFileOption,
    "concurrency": _option(int, "--concurrency", "N", "Requests to a server at a time: 16 by default."),
    "retries": _option(int, "--retries", "N", "How often a request that fails is tried again: 5 by default."),
    "timeout": _option(float, "--timeout", "SECONDS", "How long a try may take: 120 by default."),
    "allow_truncation": Annotated[
        bool,
        typer.Option("--allow-truncation", help="Sample although a server truncates; it is recorded."),
    ],
    "max_tokens_total": _option(
        int, "--max-tokens-total", "N", "Stop before servers have read and written more tokens, all together."
    ),
    "max_cost": _option(float, "--max-cost", "COST", "Stop before more is spent, by the prices."),
    "price_in": _option(float, "--price-in", "PRICE", "Of a million prompt tokens."),
    "price_out": _option(float, "--price-out", "PRICE", "Of a million completion tokens."),
}


def takes_server_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of servers, which it takes together as `server`."""
    own = inspect.signature(command, eval_str=True)
    kept = [one for one in own.parameters.values() if one.name != "server"]
    added = [
        inspect.Parameter(
            name, kept[0].kind, default=False if name == "allow_truncation" else None, annotation=one
        )
        for name, one in _OPTIONS.items()
    ]

    @wraps(command)
    def run(**options: Any) -> int:
        server = {name: options.pop(name, None) for name in _OPTIONS}
        return command(**options, server=server)

    run.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    return run


def server_settings(given: ServerOptions, *names: str | None) -> ServerSettings | None:
    """How servers are asked; without a server among the names None, and UsageError for an option of one."""
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    if not any(names_a_server(name) for name in names):
        for name in chosen:
            raise UsageError(
                f"--{name.replace('_', '-')} is for a model behind a server (openai:URL#NAME); leave it out"
            )
        return None
    from semcal.engine.servers.settings import ServerSettings, read_api_key

    key = read_api_key(chosen.pop("api_key_file", None))
    return ServerSettings(api_key=key, **chosen)


@contextmanager
def spending(model: object, label: str) -> Iterator[None]:
    """Show in progress what a model, equivalence or grader spends on a server, and say it at the end."""
    inner = model
    for part in ("judge", "equivalence", "inner"):
        inner = getattr(inner, part, inner)
    client = getattr(inner, "client", None)
    if client is None:
        yield
        return
    try:
        with note_in_progress(lambda: client.usage.text()):
            yield
    finally:
        if client.usage.requests:
            info(f"{label}: {client.usage.text()}")
        thinking = getattr(model, "thinking", None)
        if thinking is not None and thinking.answers:
            cut = f", {thinking.cut} of them cut off by the token limit" if thinking.cut else ""
            info(f"{label}: {thinking.answers} answers came after thinking, which is left out{cut}")
