"""What every Sampler promises: a fake, a small checkpoint, and a server, with messages and with token ids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from semcal.data.question import chat
from semcal.errors import UsageError
from semcal.meaning.answer import first_answer
from semcal.models.distribution import Greedy
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import Generation, Prompt, Sampler, SampleRequest
from semcal.recalibration import SE, Base, Temperature
from semcal.servers.sampler import check_tokenizer
from tests.servers import fake_model
from tests.servers.fake_chat import FakeChatFormat, model_of
from tests.servers.fake_server import FakeServer, Json

ANSWERS = {name: fake_model.ANSWERS[name] for name in list(fake_model.ANSWERS)[:3]}
SERVERS = ("server, messages", "server, token ids", "server, one answer a request")


@dataclass(frozen=True)
class Case:
    """A sampler, and what it knows."""

    sampler: Sampler
    #: Whether the answers come with the probabilities of `ANSWERS`.
    known: bool = True
    #: Whether the tokens of an answer that is cut can be scored.
    cuts: bool = True
    #: Whether a number of draws is the beginning of any larger one.
    nested: bool = True
    #: Draws that are enough to compare how often answers come.
    many: int = 400


@pytest.fixture(scope="module", params=["fake", "checkpoint", *SERVERS])
def case(request: Any) -> Iterator[Case]:
    if request.param == "fake":
        yield Case(FakeLanguageModel(ANSWERS))
    elif request.param == "checkpoint":
        from semcal.models import load_model

        yield Case(load_model("atlas", device="cpu"), known=False)
    else:
        ids = "ids" in request.param
        n = 1 if "one" in request.param else 4
        with FakeServer(log_probs="scaled") as server:
            model = model_of(server, token_ids=ids, log_probs="scaled", max_n=n)
            yield Case(model, cuts=ids, nested=n == 1, many=400 if n > 1 else 100)
            model.client.close()


@pytest.fixture(scope="module")
def prompts(case: Case) -> list[Prompt]:
    chats = [chat(question) for question in ANSWERS]
    return [Prompt(f"id-{i}", case.sampler.encode(one), one) for i, one in enumerate(chats)]


def cut(_: Prompt, generation: Generation) -> tuple[int, int, bool]:
    """As `semcal.models.sample` cuts."""
    end = first_answer(generation.text).end
    uncut = generation.finished and not generation.text[end:].strip()
    return 0, len(generation.text) if uncut else end, True


def sample(case: Case, prompts: list[Prompt], ways: list[Any], m: int, seed: int, **how: Any) -> Any:
    """The draws of one run: [recalibrator][prompt]."""
    how = {"max_new_tokens": 6, **how}  # enough for draws that differ to be seen to
    return case.sampler.sample(SampleRequest(prompts, ways, m=m, seeds=[seed], **how))[0]


def texts(drawn: Any) -> list[list[str]]:
    return [[one.text for one in draws] for draws in drawn]


def test_draws_have_the_promised_shape(case: Case, prompts: list[Prompt]) -> None:
    assert case.sampler.name
    assert case.sampler.revision
    drawn = sample(case, prompts, [Base(), SE()], 7, 3, max_new_tokens=4)
    assert [[len(draws) for draws in per_prompt] for per_prompt in drawn] == [[7] * 3] * 2
    for one in (g for per_prompt in drawn for draws in per_prompt for g in draws):
        assert 1 <= len(one.token_log_probs) <= 4
        assert one.finished or len(one.token_log_probs) == 4
        assert max(one.token_log_probs) <= 1e-6
        assert one.token_ids == () or len(one.token_ids) == len(one.token_log_probs)
        assert one.rescored is None
    assert case.sampler.sample(SampleRequest([], recalibrators=[Base(), SE()]))[0] == [[], []]
    assert case.sampler.greedy([], recalibrator=Base()) == []


def test_draws_depend_on_seed_and_question_and_not_on_other_questions_temperatures_or_runs(
    case: Case, prompts: list[Prompt]
) -> None:
    (several,) = sample(case, prompts, [Base()], 6, 5)
    assert texts(several) == texts([sample(case, [prompt], [Base()], 6, 5)[0][0] for prompt in prompts])
    assert texts(sample(case, prompts[::-1], [Base()], 6, 5)[0])[::-1] == texts(several)
    assert texts(sample(case, prompts, [SE(), Base()], 6, 5)[1]) == texts(several)
    assert texts(sample(case, prompts, [Base()], 6, 6)[0]) != texts(several)
    together = SampleRequest(prompts, [SE(), Base()], seeds=[5, 0, 5], m=6, max_new_tokens=6)
    for seed, run in zip([5, 0, 5], case.sampler.sample(together), strict=True):
        assert list(map(texts, run)) == list(map(texts, sample(case, prompts, [SE(), Base()], 6, seed)))
    assert list(case.sampler.sample(SampleRequest(prompts, recalibrators=[Base()], seeds=[]))) == []


def test_further_draws_change_none(case: Case, prompts: list[Prompt]) -> None:
    if not case.nested:
        pytest.skip("the answers of one request of a server depend on how many it asks for")
    (few,), (more,) = (sample(case, prompts, [Base()], m, 2) for m in (3, 8))
    assert [row[:3] for row in texts(more)] == texts(few)
    (rest,) = sample(case, prompts, [Base()], 5, 2, first=3)
    assert texts(rest) == [row[3:] for row in texts(more)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_answers_come_as_often_as_the_temperature_says(
    case: Case, prompts: list[Prompt], temperature: float
) -> None:
    if not case.known:
        pytest.skip("its probabilities are not known in closed form")
    m = case.many
    ((draws,),) = sample(case, prompts[:1], [Temperature(temperature)], m, 1, max_new_tokens=10)
    ((likeliest, count),) = Counter(one.text for one in draws).most_common(1)
    draw = next(one for one in draws if one.text == likeliest and one.finished)
    p = math.exp(sum(draw.token_log_probs))
    assert abs(count - m * p) < 4 * math.sqrt(m * p * (1 - p)) + 1


def test_the_greedy_answer_is_what_every_draw_becomes_as_the_temperature_falls(
    case: Case, prompts: list[Prompt]
) -> None:
    greedy = case.sampler.greedy(prompts, recalibrator=Base(), max_new_tokens=6)
    for drawn in sample(case, prompts, [Temperature(1e-2), Greedy()], 3, 0):
        assert texts(drawn) == [[one.text] * 3 for one in greedy]


def test_a_draw_that_is_cut_is_scored_as_its_first_answer_and_an_end_of_turn(
    case: Case, prompts: list[Prompt]
) -> None:
    for drawn in sample(case, prompts, [Base(), SE()], 8, 2, max_new_tokens=2, cut=cut):
        for one in (one for draws in drawn for one in draws):
            whole = cut(prompts[0], one)[1] == len(one.text)
            assert (one.rescored is None) == (one.finished and whole)
            if one.rescored is not None and case.cuts and whole:
                assert one.rescored[:2] == pytest.approx(one.token_log_probs, abs=1e-4)
                assert len(one.rescored) == 3
            elif one.rescored is not None and not case.cuts:
                assert one.rescored == ()


def test_less_than_one_draw_or_token_is_a_wrong_option(case: Case, prompts: list[Prompt]) -> None:
    with pytest.raises(UsageError, match="m: got 0"):
        case.sampler.sample(SampleRequest(prompts, recalibrators=[Base()], m=0))[0]
    with pytest.raises(UsageError, match="max_new_tokens"):
        case.sampler.greedy(prompts, recalibrator=Base(), max_new_tokens=0)


def test_progress_ends_at_the_number_of_valid_questions(case: Case, prompts: list[Prompt]) -> None:
    seen: list[int] = []
    request = SampleRequest(prompts, recalibrators=[Base()], m=2, max_new_tokens=6)
    case.sampler.sample(request, progress=seen.append)[0]
    assert seen == sorted(seen)
    assert seen[-1] == len(prompts)
    assert case.sampler.invalid_prompts_for_sampling(request) == []


@pytest.mark.parametrize("token_ids", [False, True])
def test_a_server_lists_the_tokens_that_an_answer_may_begin_with(token_ids: bool) -> None:
    """By their text, with the probabilities of the model at T = 1, whichever way prompts are sent."""
    with FakeServer(log_probs="scaled") as server:
        model = model_of(server, token_ids=token_ids, log_probs="scaled")
        chats = [chat(question) for question in ANSWERS]
        asked = [Prompt(f"id-{i}", model.encode(turns), turns) for i, turns in enumerate(chats)]
        for turns, tokens in zip(chats, model.next_tokens(asked)):
            assert isinstance(tokens, dict)
            rendered = fake_model.render([{"role": turn.role, "content": turn.content} for turn in turns])
            exact = np.exp(fake_model.next_log_probs(rendered))
            likeliest = np.argsort(-exact)[:2]
            found = [math.exp(tokens[fake_model.decode([int(k)])]) for k in likeliest]
            assert found == pytest.approx(exact[likeliest].tolist(), abs=1e-3)
        model.client.close()


# ---- Servers alone: what is left of an answer that is cut is scored by further requests

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
    assert _scored(4) == (pytest.approx(whole), requests + 4)
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
