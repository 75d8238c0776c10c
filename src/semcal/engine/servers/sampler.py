"""`ServerModel`: a model behind a server as a `Sampler`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from semcal.engine.drawing import Truncation, check_at_least_one
from semcal.engine.language_model import Cut, Draws, Generation, Progress, Prompt, with_states
from semcal.engine.servers.client import RequestFailed, ServerClient
from semcal.engine.servers.probe import stored_profile
from semcal.engine.servers.profile import ServerProfile
from semcal.engine.servers.replies import Choice, ThinkingCount, parse_choices
from semcal.engine.servers.requests import Asked, request_for, request_seeds
from semcal.engine.servers.rescoring import (
    Drawn,
    DrawnOf,
    Way,
    log_prob_at,
    reading_at,
    rescored,
    why_unknown,
)
from semcal.engine.servers.settings import Endpoint, ServerSettings, read_api_key
from semcal.engine.tokenization import ChatFormat, chat_format
from semcal.errors import InputError, QuestionError, SemcalWarning, ServerError, UsageError, shown
from semcal.qa.questions import Turn
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.temperature import Greedy, single_temperature

#: What recalibrators other than a temperature need of a model.
_NEEDS = {"ATS": "ATS reads hidden states", "Platt": "Platt scales the logit of every token"}
#: Servers that draw at this T where a lower one is asked for, and do not say so.
_RAISED_TO = {"vLLM": 0.01}
#: Enough to keep a server busy, and few to ask again after a stop.
REQUESTS_A_BLOCK = 128


class ServerModel:
    """A model behind a server (`semcal.engine.language_model.Sampler`).

    `profile` is what a probe found that it does. With `chat`, the form of the model's chats, prompts are
    token ids, which the server must take, and the likelihoods of answers that are cut can be known; without
    it they are messages. `thinking` counts how many answers so far came after thinking.
    """

    def __init__(
        self, client: ServerClient, profile: ServerProfile, *, chat: ChatFormat | None = None
    ) -> None:
        self.client, self.profile, self.format = client, profile, chat
        self.thinking = ThinkingCount()
        if chat is not None and not profile.token_ids_in:
            raise ServerError(f"{profile.url} takes no token ids; leave the tokenizer out (--tokenizer)")

    @property
    def name(self) -> str:
        """What the server calls the model."""
        return self.profile.model

    @property
    def revision(self) -> str:
        """The server with its version, the model, what prompts are sent as, and how draws are truncated."""
        one = self.profile
        sent = "messages" if self.format is None else "token ids"
        cut = f", truncated to {one.truncated_to}" if one.truncated_to else ""
        return f"{one.server} {one.version or '(version unknown)'}: {one.model}, {sent}{cut}"

    @property
    def truncated_to(self) -> str | None:
        """How the server truncates the distribution that is drawn from; None if it does not."""
        return self.profile.truncated_to

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt; empty without a tokenizer."""
        if not chat or chat[-1].role != "user":
            raise InputError("a chat must end with a user turn for the model to answer")
        return () if self.format is None else self.format.encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, its end of turn included once; UsageError without a tokenizer."""
        if self.format is None:
            raise UsageError("answers become tokens by the model's tokenizer; give it with --tokenizer DIR")
        return self.format.encode_answer(chat, answer)

    def invalid_prompts(
        self, prompts: Sequence[Prompt], answers: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[QuestionError]:
        """The prompts known to be too long for the server with their longest answers."""
        return self._too_long(prompts, [max(map(len, given), default=0) for given in answers])

    def special_tokens_in(self, text: str) -> tuple[str, ...]:
        """The special tokens that a text spells; none without a tokenizer, for then the server knows."""
        return () if self.format is None else self.format.special_tokens.find(text)

    def invalid_prompts_for_sampling(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrators: Sequence[AnyRecalibrator],
        m: int = 10,
        max_new_tokens: int = 10,
    ) -> list[QuestionError]:
        """The prompts known to be too long for the server; errors are those of `sample`."""
        del m
        self._check(recalibrators)
        return self._too_long(prompts, [max_new_tokens] * len(prompts))

    def _too_long(self, prompts: Sequence[Prompt], answers: Sequence[int]) -> list[QuestionError]:
        most = self.profile.max_length or math.inf
        return [
            QuestionError(
                prompt.question_id,
                f"its prompt has {len(prompt.token_ids)} tokens, and with {answer} of an answer the server "
                f"takes {most}; shorten the passage or the examples, or the answer (--max-new-tokens)",
            )
            for prompt, answer in zip(prompts, answers)
            if len(prompt.token_ids) + answer > most
        ]

    def requests_a_question(self, m: int, ways: int) -> int:
        """How many requests `m` answers in each of several ways take."""
        return ways * math.ceil(m / self.profile.together)

    def questions_a_block(self, m: int, ways: int, usual: int) -> int:
        """How many questions make about 128 requests, `usual` at most: what a stop may lose."""
        return max(1, min(usual, REQUESTS_A_BLOCK // self.requests_a_question(m, ways)))

    def sample(
        self, prompts: Sequence[Prompt], *, seed: int = 0, m: int = 10, **options: Any
    ) -> list[list[Draws]]:
        """Draw `m` answers to each prompt under each recalibrator: ``[recalibrator][prompt]``.

        `options` and errors are those of `sample_runs`.
        """
        (found,) = self.sample_runs(prompts, seeds=[seed], m=m, **options)
        return found

    def sample_runs(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrators: Sequence[AnyRecalibrator],
        seeds: Sequence[int],
        m: int = 10,
        max_new_tokens: int = 10,
        truncation: Truncation | None = None,
        cut: Cut | None = None,
        progress: Progress | None = None,
        first: int = 0,
    ) -> list[list[list[Draws]]]:
        """What `sample` draws with each of several seeds: ``[run][recalibrator][prompt]``.

        Every request has a seed of its own, derived from the run's, the question and the number of its first
        draw. The requests of a question stand together. A question of which a request failed has the reason
        in place of its draws. UsageError for a recalibrator that is no temperature, a T that the server
        refuses, or a `truncation`; ServerError if it truncates by itself (but for `allow_truncation`).
        """
        check_at_least_one(m=m, max_new_tokens=max_new_tokens)
        if truncation is not None:
            raise UsageError(
                "answers of a server are drawn from its whole distribution; leave truncation out"
            )
        self._check(recalibrators)
        runs = [[self._way(recalibrator, seed) for recalibrator in recalibrators] for seed in seeds]
        ways = dict.fromkeys(way for run in runs for way in run)
        for way in ways:
            if way.reading is None and way.asked:
                reason = why_unknown(self.profile, way.temperature)
                warnings.warn(reason, SemcalWarning, stacklevel=3)
        found = self._draw(prompts, list(ways), range(first, first + m), max_new_tokens, progress)
        drawn = rescored(self.client, self.profile, self.format, prompts, found, cut)
        return [[[_m(drawn[i, way], m) for i in range(len(prompts))] for way in run] for run in runs]

    def greedy(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
    ) -> list[Generation | QuestionError]:
        """Answer each prompt with the most likely token at every step, whatever the temperature."""
        self._way(recalibrator, 0)
        how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "progress": progress}
        (found,) = self.sample(prompts, recalibrators=[Greedy()], m=1, **how)
        return [one if isinstance(one, QuestionError) else one[0] for one in found]

    def check_likelihoods(self, recalibrator: AnyRecalibrator, measure: str) -> None:
        """Raise UsageError, with the remedy, if a measure reads likelihoods and they cannot be known."""
        way = self._way(recalibrator, 0)
        if way.reading is None and way.asked:
            raise UsageError(f"{measure} reads likelihoods: {why_unknown(self.profile, way.temperature)}")

    def _check(self, recalibrators: Sequence[AnyRecalibrator]) -> None:
        """Refuse what cannot be drawn from, and a server that truncates."""
        for recalibrator in recalibrators:
            self._way(recalibrator, 0)
        cut = self.profile.truncated_to
        if cut is not None and not self.client.settings.allow_truncation:
            raise ServerError(
                f"{self.profile.url} draws from a truncated distribution ({cut}) although every request asks "
                "for the whole one; switch that off at the server, or accept it with --allow-truncation, "
                "which is recorded"
            )

    def _way(self, recalibrator: AnyRecalibrator, seed: int) -> Way:
        if isinstance(recalibrator, Greedy):
            return Way(0.0, 1.0, None, None)
        if recalibrator.method in _NEEDS:
            with_states(self, _NEEDS[recalibrator.method])
        temperature = single_temperature(recalibrator)
        most = self.profile.max_temperature
        if most is not None and temperature > most:
            raise UsageError(
                f"T = {temperature:g} is above {most:g}, the highest that {self.profile.url} takes"
            )
        if temperature < (least := _RAISED_TO.get(self.profile.server, 0.0)):
            raise UsageError(
                f"T = {temperature:g} is below {least:g}, to which {self.profile.server} raises it silently; "
                f"give {least:g} or more"
            )
        return Way(temperature, temperature, reading_at(self.profile, temperature), seed)

    def _draw(
        self,
        prompts: Sequence[Prompt],
        ways: Sequence[Way],
        numbers: range,
        max_new_tokens: int,
        progress: Progress | None,
    ) -> DrawnOf:
        """Ask for all draws at once, and gather them by prompt and way."""
        places, requests = [], []
        for i, prompt in enumerate(prompts):
            for way in ways:
                asked = [replace(one, max_tokens=max_new_tokens) for one in self._asked(prompt, way, numbers)]
                requests += [request_for(self.profile, prompt, one) for one in asked]
                places += [(i, way, one.n) for one in asked]
        told = len(requests) / max(1, len(prompts))
        shown = None if progress is None else lambda done: progress(int(done / told))
        replies = self.client.send_all(requests, parse_choices, progress=shown)
        found: DrawnOf = {(i, way): [] for i in range(len(prompts)) for way in ways}
        thought: list[bool] = []
        for (i, way, n), reply in zip(places, replies):
            so_far = found[i, way]
            if isinstance(reply, list) and len(reply) < n:
                reply = RequestFailed(
                    f"the server gave {len(reply)} of {n} answers that one request asked for"
                )
            if isinstance(reply, RequestFailed):
                found[i, way] = QuestionError(prompts[i].question_id, reply.reason)
            elif isinstance(so_far, list):
                so_far += [self._read(choice, way) for choice in reply[:n]]
                thought += [bool(one.text) or one.finished for one in reply[:n] if one.reasoning]
        self.thinking.add(thought, max_new_tokens)
        return found

    def _asked(self, prompt: Prompt, way: Way, numbers: range) -> list[Asked]:
        """The requests for the draws of these numbers; one for greedy answers, which are all the same."""
        if way.seed is None:
            return [Asked(way.asked, 0, log_probs=False)]
        most = self.profile.together
        seeds = request_seeds(way.seed, prompt.question_id, m=len(numbers), first=numbers.start)
        known = way.reading is not None
        listed = (self.profile.vocabulary or 1) if way.reading == "of all" else 1
        return [
            Asked(
                way.asked,
                0,
                n=min(most, len(numbers) - start),
                seed=seeds[start][0],
                log_probs=known,
                alternatives=listed,
                at_temperature=way.reading == "on request",
            )
            for start in range(0, len(numbers), most)
        ]

    def _read(self, choice: Choice, way: Way) -> Drawn:
        """The draw of a choice: with a tokenizer up to the end of turn, its text that of its tokens."""
        entries, text, finished = choice.entries or (), choice.text, choice.finished
        own = tuple(entry.token_id for entry in entries if entry.token_id is not None)
        ids, whole = own if choice.token_ids is None else choice.token_ids, choice.whole
        ended = finished and self.profile.end_included
        if self.format is not None and ids:
            said = self.format.tokenizer.decode(list(ids), skip_special_tokens=True)
            whole = whole or (ids == own and _same(said, text))
            end = next((k for k, token in enumerate(ids, 1) if token in self.format.stops), len(ids))
            ended = ids[end - 1] in self.format.stops or ended
            ids, entries, finished = ids[:end], entries[:end], ended or finished
            text = self.format.text(ids) if whole or choice.token_ids else text
        found = [
            log_prob_at(one, way.temperature, way.reading, vocabulary=self.profile.vocabulary)
            for one in entries
        ]
        known = whole and (ended or not finished) and None not in found
        log_probs = tuple(one for one in found if one is not None) if known else ()
        told = ids if whole or choice.token_ids else ()
        return Drawn(Generation(text, told, log_probs, finished), entries)


def _m(draws: Draws, m: int) -> Draws:
    """As many draws as are wanted: a greedy answer stands for all."""
    return draws * m if isinstance(draws, list) and len(draws) == 1 else draws


def _same(one: str, other: str) -> bool:
    return "".join(one.split()) == "".join(other.split())


def load_server(name: str, settings: ServerSettings | None = None, **options: Any) -> ServerModel:
    """Connect to a model behind an OpenAI-style server, and probe what the server does.

    Parameters
    ----------
    name : str
        openai:URL#MODEL, such as "openai:http://127.0.0.1:8000/v1#qwen"; the first model that the server
        lists without #MODEL.
    settings : ServerSettings, optional
        How it is asked; the API key is SEMCAL_API_KEY by default. `options` are fields of it: `tokenizer`,
        `concurrency`, `max_tokens_total`, …

    Returns
    -------
    ServerModel
        For `semcal.SemanticUQ`, `semcal.ask_many` and `semcal.calibrate`.

    Raises
    ------
    UsageError
        If the name is none of a server, or the tokenizer is another model's.
    ServerError
        If the server cannot be reached, refuses the key, or takes no token ids where there is a tokenizer.

    Examples
    --------
    >>> model = load_server("openai:http://127.0.0.1:8000/v1#qwen", concurrency=32)  # doctest: +SKIP
    >>> semcal.ask_many(["Who wrote it?"], model)  # doctest: +SKIP
    """
    settings = replace(settings or ServerSettings(api_key=read_api_key()), **options)
    client = ServerClient(Endpoint.parse(name), settings)
    chat = None if settings.tokenizer is None else _chat_of(settings.tokenizer)
    model = ServerModel(client, stored_profile(client), chat=chat)
    if chat is not None:
        check_tokenizer(model, chat, settings.tokenizer or "")
    return model


def check_tokenizer(model: ServerModel, chat: ChatFormat, name: str) -> None:
    """Refuse with UsageError a tokenizer that makes another text of a drawn answer than the server.

    By one request. Nothing can be told where the server does not tell ids, or the model thinks first.
    """
    turns = (Turn("user", "Count from one to ten."),)
    asked = Asked(1.0, 16, seed=1, log_probs=model.profile.log_probs is not None)
    prompt = Prompt("tokenizer", chat.encode(turns), turns)
    (reply,) = model.client.send_all([request_for(model.profile, prompt, asked)], parse_choices)
    if isinstance(reply, RequestFailed) or not reply[0].whole:
        return
    choice = reply[0]
    ids = choice.token_ids or [one.token_id for one in choice.entries or () if one.token_id is not None]
    said = chat.tokenizer.decode(list(ids), skip_special_tokens=True)
    if ids and "�" not in choice.text + said and not _same(said, choice.text):
        raise UsageError(
            f"the tokenizer {name} is not that of {model.name}: the tokens {shown(list(ids))} are "
            f"{shown(said)} to it and {shown(choice.text)} to the server; give the tokenizer of the model "
            "that is served, or leave --tokenizer out"
        )


def _chat_of(name: str) -> ChatFormat:
    """The form of a model's chats, from its tokenizer alone."""
    from semcal.engine.loading import read_tokenizer, unpacked
    from semcal.hub_names import LANGUAGE_MODEL, locate

    location = locate(name, LANGUAGE_MODEL)
    what = f"cannot load the tokenizer {location.name!r}"
    tokenizer, ends = read_tokenizer(what, unpacked(what, location, None) if location.gguf else location)
    return chat_format(tokenizer, ends)
