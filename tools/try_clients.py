"""Send requests to `semcal serve` with the installed clients, and compare with docs/serve-interface.md.

    semcal serve --abstain refusal &
    python -m tools.try_clients http://127.0.0.1:8000/v1

The server answers one question and abstains from another (by default, those of the embedded model). Run the
program once for each --abstain. Clients: openai, langchain-openai, litellm, pydantic-ai-slim[openai] and
llama-index-llms-openai-like, which may need an older openai and therefore its own environment. The exit code
is 1 if a result differs from the table "What each client sees", 2 if no client is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

PAGE = Path(__file__).parents[1] / "docs" / "serve-interface.md"
HEADING = "## What each client sees"
#: Cell of the table for an invisible part.
NOT_SEEN = "–"
PROBABILITY = "x-semcal-probability"


@dataclass(frozen=True)
class Server:
    """The server under test."""

    url: str  # with /v1 at the end
    key: str
    model: str


@dataclass(frozen=True)
class Seen:
    """The visible parts of a reply in a client: its text, its refusal, and the fields beside it."""

    text: str | None
    semcal: bool
    headers: bool
    refusal: str | None = None


def _messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _has_semcal(reply: Any) -> bool:
    return isinstance(getattr(reply, "semcal", None), Mapping)


# ---- Clients


def openai_client(server: Server, question: str) -> Seen:
    """`create` of the official client."""
    with import_module("openai").OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=server.model, messages=_messages(question)
        )
    reply = raw.parse()
    message = reply.choices[0].message
    return Seen(message.content, _has_semcal(reply), PROBABILITY in raw.headers, message.refusal)


def openai_async(server: Server, question: str) -> Seen:
    """`create` of the asynchronous client."""

    async def ask() -> Seen:
        client = import_module("openai").AsyncOpenAI(base_url=server.url, api_key=server.key, max_retries=0)
        async with client:
            raw = await client.chat.completions.with_raw_response.create(
                model=server.model, messages=_messages(question)
            )
        reply = raw.parse()
        message = reply.choices[0].message
        return Seen(message.content, _has_semcal(reply), PROBABILITY in raw.headers, message.refusal)

    return asyncio.run(ask())


def openai_stream(server: Server, question: str) -> Seen:
    """`create` with stream=True."""
    with import_module("openai").OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=server.model, messages=_messages(question), stream=True
        )
        chunks = list(raw.parse())
    return _of_chunks(chunks, headers=PROBABILITY in raw.headers)


def openai_helper(server: Server, question: str) -> Seen:
    """The helper `.stream()`."""
    with (
        import_module("openai").OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client,
        client.chat.completions.stream(model=server.model, messages=_messages(question)) as stream,
    ):
        reply = stream.get_final_completion()
    message = reply.choices[0].message
    return Seen(message.content, _has_semcal(reply), False, message.refusal)


def langchain(server: Server, question: str) -> Seen:
    """`ChatOpenAI.invoke`."""
    return _of_langchain(_langchain_model(server).invoke(question))


def langchain_stream(server: Server, question: str) -> Seen:
    """`ChatOpenAI.stream`."""
    first, *others = _langchain_model(server).stream(question)
    for chunk in others:
        first = first + chunk
    return _of_langchain(first)


def _langchain_model(server: Server) -> Any:
    return import_module("langchain_openai").ChatOpenAI(
        base_url=server.url,
        api_key=server.key,
        model=server.model,
        max_retries=0,
        include_response_headers=True,
    )


def _of_langchain(message: Any) -> Seen:
    metadata = message.response_metadata
    return Seen(
        message.content or None,
        "semcal" in (metadata.get("token_usage") or {}),
        PROBABILITY in metadata.get("headers", {}),
        message.additional_kwargs.get("refusal"),
    )


def litellm(server: Server, question: str) -> Seen:
    """`litellm.completion`."""
    reply = _litellm_reply(server, question)
    message = reply.choices[0].message
    return Seen(
        message.content, _has_semcal(reply), _litellm_headers(reply), getattr(message, "refusal", None)
    )


def litellm_stream(server: Server, question: str) -> Seen:
    """`litellm.completion` with stream=True."""
    reply = _litellm_reply(server, question, stream=True)
    return _of_chunks(list(reply), headers=_litellm_headers(reply))


def _litellm_reply(server: Server, question: str, **options: Any) -> Any:
    module: Any = import_module("litellm")
    module.suppress_debug_info = True
    return module.completion(
        model=f"openai/{server.model}",
        messages=_messages(question),
        api_base=server.url,
        api_key=server.key,
        max_retries=0,
        **options,
    )


def _litellm_headers(reply: Any) -> bool:
    return f"llm_provider-{PROBABILITY}" in reply._hidden_params.get("additional_headers", {})


def pydantic_ai(server: Server, question: str) -> Seen:
    """`Agent.run`, with an HTTP client whose event hook reads headers."""

    async def ask() -> Seen:
        models = import_module("pydantic_ai.models.openai")
        headers: list[bool] = []

        async def note(response: httpx.Response) -> None:
            headers.append(PROBABILITY in response.headers)

        async with httpx.AsyncClient(event_hooks={"response": [note]}, timeout=60) as client:
            provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(
                base_url=server.url, api_key=server.key, http_client=client
            )
            agent = import_module("pydantic_ai").Agent(
                models.OpenAIChatModel(server.model, provider=provider)
            )
            result = await agent.run(question)
        details = result.all_messages()[-1].provider_details or {}
        return Seen(result.output, "semcal" in details, any(headers))

    return asyncio.run(ask())


def llama_index(server: Server, question: str) -> Seen:
    """`OpenAILike.chat`."""
    return _of_llama_index(server, lambda model, messages: model.chat(messages), question)


def llama_index_stream(server: Server, question: str) -> Seen:
    """`OpenAILike.stream_chat`."""
    return _of_llama_index(server, lambda model, messages: list(model.stream_chat(messages))[-1], question)


def _of_llama_index(server: Server, ask: Callable[[Any, list[Any]], Any], question: str) -> Seen:
    """Ask with the calibration's temperature instead of the default 0.1; an event hook reads headers."""
    headers: list[bool] = []
    hooks = {"response": [lambda response: headers.append(PROBABILITY in response.headers)]}
    with httpx.Client(event_hooks=hooks, timeout=60) as client:
        model = import_module("llama_index.llms.openai_like").OpenAILike(
            model=server.model,
            api_base=server.url,
            api_key=server.key,
            is_chat_model=True,
            max_retries=0,
            temperature=1.0,
            http_client=client,
        )
        message = import_module("llama_index.core.llms").ChatMessage(role="user", content=question)
        reply = ask(model, [message])
    refusal = reply.message.additional_kwargs.get("refusal")
    return Seen(reply.message.content or None, _has_semcal(reply.raw), any(headers), refusal)


def _of_chunks(chunks: Sequence[Any], *, headers: bool) -> Seen:
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    text = "".join(delta.content or "" for delta in deltas)
    refusal = "".join(getattr(delta, "refusal", None) or "" for delta in deltas)
    return Seen(text or None, _has_semcal(chunks[0]), headers, refusal or None)


#: Rows of the table in docs/serve-interface.md: the required module, its distribution, and its functions.
CLIENTS: dict[str, tuple[str, str, Callable[[Server, str], Seen]]] = {
    "openai, sync": ("openai", "openai", openai_client),
    "openai, async": ("openai", "openai", openai_async),
    "openai, stream": ("openai", "openai", openai_stream),
    "openai, `.stream()`": ("openai", "openai", openai_helper),
    "LangChain": ("langchain_openai", "langchain-openai", langchain),
    "LangChain, stream": ("langchain_openai", "langchain-openai", langchain_stream),
    "LiteLLM": ("litellm", "litellm", litellm),
    "LiteLLM, stream": ("litellm", "litellm", litellm_stream),
    "pydantic-ai": ("pydantic_ai", "pydantic-ai-slim", pydantic_ai),
    "LlamaIndex": ("llama_index", "llama-index-llms-openai-like", llama_index),
    "LlamaIndex, stream": ("llama_index", "llama-index-llms-openai-like", llama_index_stream),
}

# ---- Expected results


@dataclass(frozen=True)
class Row:
    """A row of the table: the places of `semcal`, headers and a refusal in a client, and its exceptions."""

    semcal: str
    headers: str
    refusal: str
    error: str


def documented(page: str) -> dict[str, Row]:
    """Return the rows of the table "What each client sees", each for one client or one package."""
    section = page.partition(HEADING)[2].partition("\n## ")[0]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("|")]
    rows = {name: Row(*others) for name, *others in cells[2:]}
    return {name: rows.get(name) or rows[name.partition(",")[0]] for name in CLIENTS}


def abstention(server: Server, question: str) -> tuple[str, str]:
    """Return the --abstain of this server, and the sentence; SystemExit if it does not abstain."""
    body = {"model": server.model, "messages": _messages(question)}
    headers = {"authorization": f"Bearer {server.key}"}
    reply = httpx.post(f"{server.url}/chat/completions", json=body, headers=headers, timeout=120)
    content = reply.json()
    if reply.status_code == 422:
        return "error", content["error"]["message"].removeprefix("abstained: ")
    if reply.status_code != 200 or not content["semcal"]["abstained"]:
        sys.exit(f"the server should abstain from {question!r}; it replied: {reply.text[:500]}")
    message = content["choices"][0]["message"]
    return ("refusal", message["refusal"]) if message["refusal"] else ("sentence", message["content"])


def differences(
    row: Row, answered: Seen | str, abstained: Seen | str, style: str, sentence: str
) -> list[str]:
    """Return the differences of a client from its row; a name means a raised exception."""
    semcal, headers = row.semcal != NOT_SEEN, row.headers != NOT_SEEN
    cell = {"refusal": row.refusal, "error": row.error}.get(style, "")
    raised = re.fullmatch(r"`(\w+Error)`", cell)
    expected: Seen | str
    if raised:
        expected = raised[1]
    elif style == "sentence":
        expected = Seen(sentence, semcal, headers)
    else:
        expected = Seen(None, semcal, headers, None if cell == NOT_SEEN else sentence)
    wrong = []
    text = None if isinstance(answered, str) else answered.text
    if text is None or answered != Seen(text, semcal, headers):
        wrong.append(f"an answer is {answered}")
    if abstained != expected:
        wrong.append(f"an abstention is {abstained}, not {expected}")
    return wrong


def _tried(client: Callable[[Server, str], Seen], server: Server, question: str) -> Seen | str:
    try:
        return client(server, question)
    except Exception as error:  # noqa: BLE001 - each framework has exceptions of its own
        return type(error).__name__


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all installed clients."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.try_clients", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("url", help="base URL of the server, with /v1")
    parser.add_argument("--model", default="atlas")
    parser.add_argument("--key", default="none")
    parser.add_argument("--answered", default="When was Trunbranlon founded?", metavar="QUESTION")
    parser.add_argument("--abstained", default="Who taught Gedrel Delbrulel?", metavar="QUESTION")
    options = parser.parse_args(arguments)
    server = Server(options.url, options.key, options.model)
    style, sentence = abstention(server, options.abstained)
    rows = documented(PAGE.read_text(encoding="utf-8"))
    print(f"--abstain {style}\n\n| client | version | semcal | headers | abstention | as documented |")
    print("| --- | --- | --- | --- | --- | --- |")
    found = []
    for name, (module, package, client) in CLIENTS.items():
        if find_spec(module) is None:
            print(f"| {name} | not installed | | | | |")
            continue
        answered, abstained = (_tried(client, server, text) for text in (options.answered, options.abstained))
        wrong = differences(rows[name], answered, abstained, style, sentence)
        found.append(not wrong)
        beside = [_word(answered, "semcal"), _word(answered, "headers"), _said(abstained)]
        print("|", " | ".join([name, version(package), *beside, "; ".join(wrong) or "yes"]), "|", flush=True)
    return int(not all(found)) if found else 2


def _word(seen: Seen | str, name: str) -> str:
    return "yes" if getattr(seen, name, False) else "no"


def _said(seen: Seen | str) -> str:
    return seen if isinstance(seen, str) else seen.refusal or seen.text or "nothing"


if __name__ == "__main__":
    sys.exit(main())
