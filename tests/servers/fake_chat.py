"""The fake server's model as semcal sees it: its chats as tokens, and a profile of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semcal.data.question import Turn
from semcal.models.chat_format import ChatFormat
from semcal.servers.client import ServerClient
from semcal.servers.protocol import ServerProfile
from semcal.servers.sampler import ServerModel
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer


class _Tokenizer:
    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return b"".join(fake_model.VOCABULARY[one] for one in ids).decode(errors="replace")


class _NoSpecialTokens:
    def find(self, text: str) -> tuple[str, ...]:
        return ()


class FakeChatFormat(ChatFormat):
    """What `chat_format` would make of the model's tokenizer."""

    def __init__(self) -> None:
        self.tokenizer = _Tokenizer()
        self.special_tokens = _NoSpecialTokens()  # type: ignore[assignment]

    stops = frozenset({fake_model.END})  # type: ignore[assignment]
    end_of_turn = (fake_model.END,)  # type: ignore[assignment]

    def encode(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        return tuple(fake_model.encode(fake_model.render(messages)))

    def encode_answer(self, turns: Sequence[Turn], answer: str) -> tuple[int, ...]:
        return (*fake_model.encode(answer), fake_model.END)

    def _closed(self, kept: tuple[int, ...], _: str, /) -> tuple[int, ...]:
        return (*kept, fake_model.END)

    def _plain(self, text: str) -> tuple[int, ...]:
        return tuple(fake_model.encode(text))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)


def profile_of(server: FakeServer, **more: Any) -> ServerProfile:
    """What a probe finds out about a server without quirks; `more` of it by hand."""
    found: dict[str, Any] = {
        "server": server.quirks.server,
        "version": server.quirks.version,
        "vocabulary": len(fake_model.VOCABULARY),
        "choices_differ": True,
        "log_probs": "raw",
        "top_log_probs": 20,
        "chosen_ids": True,
        "token_ids_in": True,
        "token_ids_out": True,
        "end_included": True,
    }
    return ServerProfile(server.url, "fake", **{**found, **more})


def model_of(
    server: FakeServer, *, token_ids: bool = False, settings: ServerSettings | None = None, **profile: Any
) -> ServerModel:
    """The model behind a server, without a probe."""
    client = ServerClient(Endpoint(server.url, "fake"), settings or ServerSettings(), first_wait=0.01)
    chat = FakeChatFormat() if token_ids else None
    return ServerModel(client, profile_of(server, **profile), chat=chat)
