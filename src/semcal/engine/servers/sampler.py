"""`ServerModel`: a model behind a server as a `Sampler`."""

from __future__ import annotations

from collections.abc import Sequence

from semcal.engine.servers.client import ServerClient
from semcal.engine.servers.profile import ServerProfile
from semcal.engine.servers.settings import Endpoint, ServerSettings
from semcal.qa.questions import Turn

__all__ = ["ServerModel", "load_server"]


class ServerModel:
    """A model behind a server (`semcal.engine.language_model.Sampler`)."""

    client: ServerClient
    profile: ServerProfile

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, its end of turn included once; UsageError without a tokenizer."""
        raise NotImplementedError


def load_server(name: str, settings: ServerSettings | None = None) -> ServerModel:
    """Connect to openai:URL#MODEL, probing the server where no profile of it is stored."""
    del settings
    Endpoint.parse(name)
    raise NotImplementedError
