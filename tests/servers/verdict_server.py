"""A fake server that decides by a table: what follows, and what is right.

    with VerdictServer({("nyc", "new york"): "entailment"}) as server:
        ...  # server.name for --equivalence openai:...

What the table does not hold is neutral, or incorrect. `asked` lists the pairs that it was asked about, in the
order in which they came; `odd` maps pairs to what takes the place of the label in a reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.servers.fake_server import FakeServer, Json

Pair = tuple[str, str]
_ENTAILMENT = re.compile(r"Answer A: (.*?)\nAnswer B: (.*)\n\nReply", re.DOTALL)
_JUDGEMENT = re.compile(r"Reference answers:\n((?:- .*\n)+)Answer: (.*)\n")


class VerdictServer(FakeServer):
    def __init__(
        self,
        table: Mapping[Pair, str] | None = None,
        *,
        odd: Mapping[Pair, Any] | None = None,
        **quirks: Any,
    ) -> None:
        super().__init__(**quirks)
        self.table, self.odd = dict(table or {}), dict(odd or {})
        self.asked: list[Pair] = []

    def _route(self, method: str, path: str, body: Json) -> Any:
        if (method, path) == ("POST", "/v1/chat/completions"):
            prompt = body["messages"][-1]["content"]
            if (found := _ENTAILMENT.search(prompt)) is not None:
                return self._labelled((found[1], found[2]), "neutral", body)
            if (found := _JUDGEMENT.search(prompt)) is not None:
                return self._labelled((found[2], found[1].strip()), "incorrect", body)
        return super()._route(method, path, body)

    def _decide(self, pair: Pair, otherwise: str) -> Any:
        self.asked.append(pair)
        return self.odd.get(pair, self.table.get(pair, otherwise))

    def _labelled(self, pair: Pair, otherwise: str, body: Json) -> Json:
        label = self._decide(pair, otherwise)
        if isinstance(label, Exception):
            raise label
        return label(body) if callable(label) else reply_of(label)


def reply_of(text: str) -> Json:
    """A reply of /chat/completions."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"prompt_tokens": 90, "completion_tokens": 3}}
