"""What is left of an answer that is cut is scored by further requests."""

from __future__ import annotations

from typing import Any

import pytest

from semcal.data.question import chat
from semcal.errors import UsageError
from semcal.models.protocols import Prompt, SampleRequest
from semcal.recalibration import Base
from semcal.servers.sampler import check_tokenizer
from tests.servers import fake_model
from tests.servers.fake_chat import FakeChatFormat, model_of
from tests.servers.fake_server import FakeServer, Json

#: llama.cpp: all tokens are listed, but for those of a request whose drawn token is half a character.
LISTED: dict[str, Any] = {
    "top_log_probs": len(fake_model.VOCABULARY),
    "whole_vocabulary": True,
    "chosen_ids": False,
}


class _Losing(FakeServer):
    """Loses the entry of a single token to all seeds below `lost`."""

    def __init__(self, lost: int) -> None:
        super().__init__(server="llama.cpp", max_top_logprobs=-1)
        self.lost = lost

    def _route(self, method: str, path: str, body: Json) -> Json:
        reply = super()._route(method, path, body)
        if body.get("max_tokens") == 1 and body["seed"] < self.lost:
            reply["choices"][0]["logprobs"]["content"] = []
        return reply


def _scored(lost: int) -> tuple[tuple[float, ...] | None, int]:
    """The likelihood of an answer that is cut behind its first token, and the requests for its end."""
    with _Losing(lost) as server:
        model = model_of(server, token_ids=True, **LISTED)
        turns = chat("Which river runs through Sel?")
        prompt = Prompt("q", model.encode(turns), turns)
        how: Any = {"recalibrators": [Base()], "m": 1, "seeds": [0], "max_new_tokens": 3}
        (((drawn,),),) = model.sample(SampleRequest([prompt], cut=lambda *_: (0, len("the"), True), **how))[0]
        model.client.close()
        asked = [body for _, body in server.requests if body["max_tokens"] == 1]
    return drawn.rescored, len(asked)


def test_a_lost_entry_is_asked_for_again_and_is_unknown_only_if_it_is_always_lost() -> None:
    whole, requests = _scored(0)
    assert whole is not None
    for lost in (1, 2, 4):
        again, more = _scored(lost)
        assert again == pytest.approx(whole)
        assert more == requests + lost
    assert _scored(5) == ((), requests + 4)


@pytest.mark.parametrize(("lead_in", "entries"), [("the city of ", 3), ("the city of", 3), ("the ci", 0)])
def test_an_answer_behind_a_lead_in_keeps_its_likelihood_unless_a_token_has_a_part_of_both(
    lead_in: str, entries: int
) -> None:
    """Where the server encodes the prompt, by the texts of the entries."""
    turns = chat("What is the capital of Alvania?")
    how: Any = {"recalibrators": [Base()], "m": 20, "max_new_tokens": 8}
    with FakeServer(server="SGLang") as server:
        model = model_of(server)
        request = SampleRequest(
            [Prompt("q", (), turns)],
            cut=lambda _, draw: (len(lead_in) * draw.text.startswith(lead_in), len(draw.text), True),
            **how,
        )
        (((*draws,),),) = model.sample(request)[0]
        model.client.close()
    found = {(draw.lead, draw.rescored) for draw in draws if draw.text == "the city of Mirna"}
    assert found == {(entries, None if entries else ())}


def test_the_tokenizer_of_another_model_is_refused() -> None:
    class Other(FakeChatFormat):
        def __init__(self, shift: int) -> None:
            super().__init__()
            own = self.tokenizer
            moved = type("_Moved", (), {"decode": lambda _, ids, **__: own.decode([i + shift for i in ids])})
            self.tokenizer = moved()

    with FakeServer() as server:
        model = model_of(server, token_ids=True)
        check_tokenizer(model, Other(0), "DIR")
        with pytest.raises(UsageError, match=r"the tokenizer DIR.*server\.tokenizer"):
            check_tokenizer(model, Other(1), "DIR")
        model.client.close()
    with FakeServer(ids_out=False) as server:  # which tokens were drawn is not told
        model = model_of(server, token_ids=True)
        check_tokenizer(model, Other(1), "DIR")
        model.client.close()
