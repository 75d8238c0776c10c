"""A model behind a server as a `Sampler`, and the requests about reference answers for a fit of T.

All requests about one question are sent together, so that the server finds their common prefix in its cache.
"""

from __future__ import annotations

import json
import math
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, count, islice, takewhile
from typing import Any, Literal, TypeAlias

import numpy as np

from semcal.data.question import Turn
from semcal.errors import (
    InputError,
    QuestionError,
    SemcalWarning,
    ServerError,
    UsageError,
    naming_extra,
    shown,
)
from semcal.models.chat_format import ChatFormat, chat_format
from semcal.models.distribution import Greedy, check_at_least_one, temperature_of, uniforms
from semcal.models.protocols import (
    AnyRecalibrator,
    Capabilities,
    Generation,
    GenerationCut,
    GenerationsOrError,
    Prompt,
    SampleRequest,
    with_states,
)
from semcal.rows import Json
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.servers.probing import stored_profile
from semcal.servers.protocol import (
    AnswerRequest,
    ReplyChoice,
    ReplyCount,
    ServerProfile,
    TokenEntry,
    listed_tokens,
    parse_choices,
    request_for,
    squeezed,
    without_ids,
)
from semcal.servers.settings import Endpoint, ServerSettings, read_api_key
from semcal.workers import Progress

#: Maximum difference from 1 of the sum of probabilities of the whole vocabulary.
_SUM = 1e-3


def knows_log_probs(profile: ServerProfile, temperature: float) -> bool:
    """Return whether the server reports the log-probabilities of samples at a temperature."""
    if temperature == 1 or profile.log_probs != "raw":
        return profile.log_probs not in (None, "masked")
    return profile.scaled_on_request and profile.truncated_to is None


def _log_prob(entry: TokenEntry, token_id: int) -> float | None:
    """Return the log-probability of a token, sampled or among the alternatives; None if unknown."""
    log_prob = entry.log_prob if token_id == entry.token_id else entry.top.get(token_id)
    return None if log_prob == -math.inf else log_prob


def why_unknown(profile: ServerProfile, temperature: float) -> str:
    """Return a message why log-probabilities at a temperature are unknown, with the effect and the remedy."""
    where = f"{profile.server} at {profile.url}"
    cost = "so likelihoods are null and only E-SC can be measured"
    if profile.log_probs is None:
        return f"{where} returns no log-probabilities, {cost}"
    if profile.log_probs == "masked":
        cut = f"{where} returns log-probabilities of a truncated distribution ({profile.truncated_to})"
        return f"{cut}, {cost}. Switch truncation off at the server"
    flag = {"vLLM": "Start vLLM with --logprobs-mode processed_logprobs"}.get(profile.server)
    alone = f"{where} returns log-probabilities only at T = 1, and samples are at T = {temperature:g}, {cost}"
    return f"{alone}. {flag} to get likelihoods" if flag else alone


#: Requested alternatives before all are requested, and of the first token of an answer.
_SOME, _LISTED = 200, 20
#: Attempts with all alternatives: an entry is lost if the sampled token is half a character (llama.cpp).
_TRIES = 4


@dataclass(frozen=True)
class Way:
    """Settings of the requests for some samples."""

    temperature: float  # 0 is greedy
    log_probs: bool = False  # whether log-probabilities at the temperature are known
    seed: int | None = None


@dataclass(frozen=True)
class _Missing:
    beginning: tuple[int, ...]  # the prompt and the answer so far
    token_id: int
    temperature: float


@dataclass(frozen=True)
class PendingSample:
    """A sample in progress: log-probabilities in `rescored` may still be missing."""

    generation: Generation
    entries: tuple[TokenEntry, ...]
    rescored: tuple[float | _Missing, ...] | None = None


SamplesByWay: TypeAlias = "dict[tuple[int, Way], list[PendingSample] | QuestionError]"
"""Samples, or the error of the prompt, by the index of the prompt and the `Way`."""


class ServerModel:
    """A model behind a server (`semcal.models.protocols.Sampler`).

    `profile` is the result of a probe. With `chat`, the chat format of the model, prompts are token ids,
    which the server must accept, and likelihoods of cut answers can be known. Without it, prompts are
    messages. `replies` counts replies with reasoning but without an answer, and replies with an unknown end.
    """

    def __init__(
        self, client: ServerClient, profile: ServerProfile, *, chat: ChatFormat | None = None
    ) -> None:
        self.client, self.profile, self.format = client, profile, chat
        self.replies = ReplyCount()
        if chat is not None and not profile.token_ids_in:
            raise ServerError(f"server.tokenizer: {profile.url} accepts no token ids. Omit server.tokenizer")

    @property
    def name(self) -> str:
        """The name of the model at the server."""
        return self.profile.model

    @property
    def revision(self) -> str:
        """The server with its version, the model, the form of prompts, and the truncation of samples."""
        profile = self.profile
        sent = "messages" if self.format is None else "token ids"
        cut = f", truncated to {profile.truncated_to}" if profile.truncated_to else ""
        return f"{profile.server} {profile.version or '(version unknown)'}: {profile.model}, {sent}{cut}"

    @property
    def capabilities(self) -> Capabilities:
        """The findings of the probe about sampling."""
        profile = self.profile
        return Capabilities(
            states=False,
            likelihoods=all(knows_log_probs(profile, temperature) for temperature in (1.0, 2.0)),
            max_temperature=profile.max_temperature,
            truncated_to=profile.truncated_to,
            answers_a_request=profile.together,
            may_charge=Endpoint(profile.url).may_charge,
            next_tokens=profile.log_probs is not None and profile.top_log_probs > 1,
        )

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt; empty without a tokenizer."""
        if not chat or chat[-1].role != "user":
            raise InputError("messages: the last turn is not from the user. End the chat with a user turn")
        return () if self.format is None else self.format.encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, with one end of turn; UsageError without a tokenizer."""
        if self.format is None:
            raise UsageError(
                "server.tokenizer: missing. Pass --config server.tokenizer=DIR to encode answers"
            )
        return self.format.encode_answer(chat, answer)

    def invalid_prompts(self, *_: object) -> list[QuestionError]:
        """Return no errors: the server itself rejects the prompts that are too long."""
        return []

    def prompt_text(self, prompt: Prompt) -> str:
        """Return the sent messages as JSON, or with a tokenizer the text of the sent token ids."""
        if self.format is not None:
            return self.format.prompt_text(prompt.token_ids)
        return json.dumps([vars(turn) for turn in prompt.chat], ensure_ascii=False, indent=2)

    def invalid_prompts_for_sampling(self, request: SampleRequest) -> list[QuestionError]:
        """Return no errors, as `invalid_prompts`; raises the errors of `sample`."""
        self._check(request.recalibrators)
        return []

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> list[list[list[GenerationsOrError]]]:
        """Return the samples of a request: ``[run][recalibrator][prompt]``.

        Every HTTP request has its own seed, derived from the seed of the run, the question and the index of
        its first sample. The requests of a question are sent together. If a request fails, the question has
        an error in place of its samples. UsageError for a recalibrator that is not a temperature, a T that
        the server rejects, or a `truncation`; ServerError if the server truncates, unless `allow_truncation`.
        """
        prompts, m = request.prompts, request.m
        check_at_least_one(m=m, max_new_tokens=request.max_new_tokens)
        if request.truncation is not None:
            raise UsageError("truncation: servers sample from the whole distribution. Omit truncation")
        self._check(request.recalibrators)
        runs = [[self._way(r, seed) for r in request.recalibrators] for seed in request.seeds]
        ways = dict.fromkeys(way for run in runs for way in run)
        for way in ways:
            if way.temperature and not way.log_probs:
                reason = why_unknown(self.profile, way.temperature)
                warnings.warn(reason, SemcalWarning, stacklevel=2)
        numbers = range(request.first, request.first + m)
        draws = self._rescored(prompts, self._draw(request, list(ways), numbers, progress))
        return [[[_m(draws[i, way], m) for i in range(len(prompts))] for way in run] for run in runs]

    def greedy(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> list[Generation | QuestionError]:
        """Answer each prompt with the most likely token at every step, independent of the temperature."""
        self._way(recalibrator, 0)
        request = SampleRequest(prompts, [Greedy()], m=1, max_new_tokens=max_new_tokens, schema=schema)
        ((answers,),) = self.sample(request, progress)
        return [draws if isinstance(draws, QuestionError) else draws[0] for draws in answers]

    def next_tokens(self, prompts: Sequence[Prompt]) -> list[dict[str, float] | QuestionError]:
        """Return log-probabilities (nats, T = 1) of the most likely first tokens of an answer, by text.

        Prompts are sent as messages. If the request fails or the reply lists no tokens, the prompt has an
        error.
        """
        answer = AnswerRequest(1.0, 1, seed=1, alternatives=min(self.profile.top_log_probs, _LISTED))
        requests = [
            without_ids(request_for(self.profile, replace(prompt, token_ids=()), answer))
            for prompt in prompts
        ]
        replies = self.client.send_all(requests, listed_tokens)
        return [
            QuestionError(prompt.question_id, reply.reason) if isinstance(reply, RequestFailed) else reply
            for prompt, reply in zip(prompts, replies)
        ]

    def check_likelihoods(self, recalibrator: AnyRecalibrator, measure: str) -> None:
        """Raise UsageError if a measure needs likelihoods and they cannot be known."""
        way = self._way(recalibrator, 0)
        if way.temperature and not way.log_probs:
            raise UsageError(f"{measure} needs likelihoods: {why_unknown(self.profile, way.temperature)}")

    def _check(self, recalibrators: Sequence[AnyRecalibrator]) -> None:
        """Reject recalibrators that the server cannot apply, and a server that truncates."""
        for recalibrator in recalibrators:
            self._way(recalibrator, 0)
        cut = self.profile.truncated_to
        if cut is not None and not self.client.settings.allow_truncation:
            raise ServerError(
                f"{self.profile.url} samples from a truncated distribution ({cut}), although every request "
                "asks for the whole distribution. Switch truncation off at the server, or accept and record "
                "it with --config server.allow_truncation=true"
            )

    def _way(self, recalibrator: AnyRecalibrator, seed: int) -> Way:
        if isinstance(recalibrator, Greedy):
            return Way(0.0)
        temperature = temperature_of(recalibrator)
        if temperature is None:
            with_states(self, f"{recalibrator.method} reads hidden states or logits")
            raise AssertionError
        most = self.profile.max_temperature
        if most is not None and temperature > most:
            raise UsageError(
                f"temperature: {temperature:g} exceeds {most:g}, the maximum of {self.profile.url}. "
                f"Pass at most {most:g}"
            )
        return Way(temperature, knows_log_probs(self.profile, temperature), seed)

    def _draw(
        self,
        request: SampleRequest,
        ways: Sequence[Way],
        numbers: range,
        progress: Progress | None,
    ) -> SamplesByWay:
        """Request all samples at once, and collect them by prompt and way.

        A schema is sent with the messages of a chat, because servers apply it only there.
        """
        prompts, schema = request.prompts, request.schema
        if schema is not None:
            prompts = [replace(prompt, token_ids=()) for prompt in prompts]
        places, requests = list[tuple[int, Way, int]](), list[ServerRequest]()
        for i, prompt in enumerate(prompts):
            for way in ways:
                answers = self._answer_requests(prompt, way, numbers, request)
                of_way = [request_for(self.profile, prompt, answer) for answer in answers]
                requests += of_way if schema is None else map(without_ids, of_way)
                places += [(i, way, answer.n) for answer in answers]
        requests_each, answered = len(requests) / max(1, len(prompts)), count(1)

        def advance(*_: object) -> None:
            if progress is not None:
                progress(int(next(answered) / requests_each))

        slots, in_turn = self.profile.slots, 1
        if slots is not None:  # one slot reads a prompt for all its samples, and no slot is idle
            in_turn = max(1, min(int(requests_each), math.ceil(len(requests) / slots)))
        replies = self.client.send_all(
            requests, parse_choices, on_reply=advance, in_turn=in_turn, at_once=slots
        )
        samples_by_way: SamplesByWay = {(i, way): [] for i in range(len(prompts)) for way in ways}
        for (i, way, n), reply in zip(places, replies):
            so_far = samples_by_way[i, way]
            if isinstance(reply, list) and len(reply) < n:
                shortfall = f"the server returned {len(reply)} answers, expected {n}"
                reply = RequestFailed(shortfall)
            if isinstance(reply, RequestFailed):
                samples_by_way[i, way] = QuestionError(prompts[i].question_id, reply.reason)
            elif isinstance(so_far, list):
                for choice in reply[:n]:
                    self.replies.add(choice)
                    draw = self._read(choice, way)
                    if schema is not None:
                        draw = _of_document(draw)
                    elif request.cut is not None:
                        draw = self._cut(prompts[i], draw, way, request.cut)
                    so_far.append(draw)
        return samples_by_way

    def _answer_requests(
        self, prompt: Prompt, way: Way, numbers: range, request: SampleRequest
    ) -> list[AnswerRequest]:
        """Return the requests for the samples with these indices; a single request for greedy answers."""
        answer = AnswerRequest(
            way.temperature, request.max_new_tokens, log_probs=way.log_probs, schema=request.schema
        )
        if way.seed is None:
            return [answer]
        most = self.profile.together
        u = uniforms(way.seed, prompt.question_id, m=len(numbers), steps=1, first=numbers.start)
        seeds: list[int] = (u[:, 0] * 2**31).astype(int).tolist()
        return [
            replace(answer, n=min(most, len(numbers) - start), seed=seeds[start])
            for start in range(0, len(numbers), most)
        ]

    def _read(self, choice: ReplyChoice, way: Way) -> PendingSample:
        """Return the sample of a choice; with a tokenizer it ends at the end of turn, with decoded text."""
        entries, text, finished = choice.entries or (), choice.text, choice.finished
        entry_ids = tuple(entry.token_id for entry in entries if entry.token_id is not None)
        ids, complete = entry_ids if choice.token_ids is None else choice.token_ids, choice.complete
        ended = finished and self.profile.end_included
        if self.format is not None and ids:
            decoded = self.format.tokenizer.decode(list(ids), skip_special_tokens=True)
            complete = complete or (ids == entry_ids and squeezed(decoded) == squeezed(text))
            end = next((k for k, token in enumerate(ids, 1) if token in self.format.stops), len(ids))
            ended = ids[end - 1] in self.format.stops or ended
            ids, entries, finished = ids[:end], entries[:end], ended or finished
            text = self.format.text(ids) if complete or choice.token_ids else text
        log_probs = tuple(entry.log_prob for entry in entries)
        if not (way.log_probs and complete and (ended or finished is False)) or -math.inf in log_probs:
            log_probs = ()
        token_ids = ids if complete or choice.token_ids else ()
        refusal = choice.refusal
        if refusal is None and self.format is not None and not choice.reasoning:
            refusal = self.format.refusal(text)
        return PendingSample(Generation(text, token_ids, log_probs, finished, refusal=refusal), entries)

    def _rescored(
        self, prompts: Sequence[Prompt], samples_by_way: SamplesByWay
    ) -> dict[tuple[int, Way], GenerationsOrError]:
        """Return the samples; a cut sample has the log-probabilities of its rest, () if one is unknown."""
        known = [draw for draws in samples_by_way.values() if isinstance(draws, list) for draw in draws]
        tokens = [token for draw in known for token in draw.rescored or ()]
        missing = dict.fromkeys(token for token in tokens if isinstance(token, _Missing))
        answers = self._ask(sorted(missing, key=lambda token: token.beginning))
        return {key: _finished(prompts[key[0]], draws, answers) for key, draws in samples_by_way.items()}

    def _cut(self, prompt: Prompt, draw: PendingSample, way: Way, cut: GenerationCut) -> PendingSample:
        """Cut a sample; its log-probabilities are known from sampling or marked as missing.

        Without the chat format the tokens of the remaining text are unknown, and so is its likelihood.
        """
        generation, entries, (start, end, ended) = draw.generation, draw.entries, cut(prompt, draw.generation)
        uncut = (generation.finished or not ended) and end == len(generation.text)
        if uncut and not start:
            return draw
        if not generation.token_log_probs:
            return replace(draw, rescored=())
        if self.format is None:
            lead = _entries_before(generation.text[:start], entries)
            scores: tuple[float, ...] | None = None if uncut else ()
            if not (uncut or ended):
                texts = accumulate(entry.text for entry in entries)
                length = next((k for k, text in enumerate(texts, 1) if len(text) >= end), 0)
                scores = generation.token_log_probs[:length]
            scores = scores if lead or not start else ()
            return replace(draw, generation=replace(generation, lead=lead), rescored=scores)
        completed = self.format.complete(generation, end, start, ended)
        lead = len(self.format.lead(generation, start))
        draw = replace(draw, generation=replace(generation, lead=lead))
        if completed == generation.token_ids:
            return draw
        pairs = zip(completed, generation.token_ids)
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        values: list[float | _Missing] = list(generation.token_log_probs[:shared])
        for place in range(shared, len(completed)):
            beginning = (*prompt.token_ids, *completed[:place])
            missing = _Missing(beginning, completed[place], way.temperature)
            # At the first difference another token was sampled, but this token may be among its alternatives.
            is_listed = place == shared < len(entries)
            log_prob = _log_prob(entries[shared], completed[place]) if is_listed else None
            values.append(missing if log_prob is None else log_prob)
        return replace(draw, rescored=tuple(values))

    def _ask(self, missing: Iterable[_Missing]) -> dict[_Missing, float | RequestFailed | None]:
        """Request missing log-probabilities; None if the server does not list the token."""
        answers: dict[_Missing, float | RequestFailed | None] = dict.fromkeys(missing)
        tries = _TRIES if self.profile.whole_vocabulary and self.profile.vocabulary else 0
        for seed in range(1 + tries):
            unanswered = [token for token, value in answers.items() if value is None]
            requests = [
                request_for(self.profile, Prompt("", token.beginning), self._token_request(token, seed))
                for token in unanswered
            ]
            replies = self.client.send_all(requests, parse_choices)
            for token, reply in zip(unanswered, replies):
                if isinstance(reply, RequestFailed):
                    answers[token] = reply
                elif entries := reply[0].entries:
                    answers[token] = _log_prob(entries[0], token.token_id)
        return answers

    def _token_request(self, token: _Missing, seed: int) -> AnswerRequest:
        """Return the cheapest request for the log-probability of a token; after seed 0, of all tokens."""
        profile = self.profile
        answer = AnswerRequest(token.temperature, 1, seed=seed)
        if seed:
            return replace(answer, alternatives=profile.vocabulary or 1)
        if token.temperature == 1 and profile.forced_raw:
            return replace(answer, forced=token.token_id)
        if profile.chosen_ids:
            return replace(answer, token_ids=(token.token_id,))
        return replace(answer, alternatives=min(profile.top_log_probs, _SOME))


def _of_document(draw: PendingSample) -> PendingSample:
    """Return a sample under a schema: with texts of tokens, and without a likelihood, which is unknown."""
    texts = tuple(entry.text for entry in draw.entries)
    return replace(draw, generation=replace(draw.generation, token_texts=texts, rescored=()))


def _entries_before(text: str, entries: Sequence[TokenEntry]) -> int:
    """Return the number of entries of a text before an answer; 0 if an entry spans both."""
    texts = accumulate(entry.text for entry in entries)
    at = (k for k, lead in enumerate(texts, 1) if text.startswith(lead) and not text[len(lead) :].strip())
    return max(at, default=0)


def _finished(
    prompt: Prompt,
    draws: list[PendingSample] | QuestionError,
    answers: Mapping[_Missing, float | RequestFailed | None],
) -> GenerationsOrError:
    """Return the samples with requested log-probabilities; an unknown token makes the likelihood unknown."""
    if isinstance(draws, QuestionError):
        return draws
    finished = []
    for draw in draws:
        if draw.rescored is None:
            finished.append(draw.generation)
            continue
        values = [answers[value] if isinstance(value, _Missing) else value for value in draw.rescored]
        for value in values:
            if isinstance(value, RequestFailed):
                return QuestionError(prompt.question_id, value.reason)
        log_probs = tuple(value for value in values if isinstance(value, float))
        finished.append(replace(draw.generation, rescored=log_probs if len(log_probs) == len(values) else ()))
    return finished


def _m(draws: GenerationsOrError, m: int) -> GenerationsOrError:
    return draws * m if isinstance(draws, list) and len(draws) == 1 else draws


def load_server(name: str, settings: ServerSettings | None = None, **options: Any) -> ServerModel:
    """Connect to a model behind an OpenAI-style server, and probe what the server does.

    Parameters
    ----------
    name : str
        openai:URL#MODEL, such as "openai:http://127.0.0.1:8000/v1#qwen". Without #MODEL, the first model that
        the server lists.
    settings : ServerSettings, optional
        Settings of the requests; the API key is SEMCAL_API_KEY by default. `options` are fields of the
        settings: `tokenizer`, `concurrency`, `max_tokens_total`, …

    Returns
    -------
    ServerModel
        For `semcal.SemanticUQ`, `semcal.ask_many` and `semcal.calibrate`.

    Raises
    ------
    UsageError
        If the name is not valid, or the tokenizer belongs to another model.
    ServerError
        If the server cannot be reached, rejects the key, or accepts no token ids although a tokenizer is set.

    Examples
    --------
    >>> model = load_server("openai:http://127.0.0.1:8000/v1#qwen", concurrency=32)  # doctest: +SKIP
    >>> semcal.ask_many(model, ["Who wrote it?"])  # doctest: +SKIP
    """
    settings = replace(settings or ServerSettings(api_key=read_api_key()), **options)
    client = ServerClient(Endpoint.parse(name), settings)
    chat = None if settings.tokenizer is None else _chat_of(settings.tokenizer)
    model = ServerModel(client, stored_profile(client), chat=chat)
    if chat is not None:
        check_tokenizer(model, chat, settings.tokenizer or "")
    return model


def check_tokenizer(model: ServerModel, chat: ChatFormat, name: str) -> None:
    """Raise UsageError if the tokenizer decodes a sampled answer differently from the server.

    The check takes one request. It passes if the server returns no ids, or the model reasons first.
    """
    turns = (Turn("user", "Count from one to ten."),)
    answer = AnswerRequest(1.0, 16, seed=1, log_probs=model.profile.log_probs is not None)
    prompt = Prompt("tokenizer", chat.encode(turns), turns)
    (reply,) = model.client.send_all([request_for(model.profile, prompt, answer)], parse_choices)
    if isinstance(reply, RequestFailed) or not reply[0].complete:
        return
    choice = reply[0]
    ids = choice.token_ids or [entry.token_id for entry in choice.entries or () if entry.token_id is not None]
    decoded = chat.tokenizer.decode(list(ids), skip_special_tokens=True)
    if ids and "�" not in choice.text + decoded and squeezed(decoded) != squeezed(choice.text):
        raise UsageError(
            f"server.tokenizer: the tokenizer {name} does not match {model.name}: it decodes the tokens "
            f"{shown(list(ids))} as {shown(decoded)}, the server as {shown(choice.text)}. Pass the tokenizer "
            "of the served model, or omit server.tokenizer"
        )


def _chat_of(name: str) -> ChatFormat:
    from semcal.hub_names import LANGUAGE_MODEL, locate
    from semcal.models.checkpoint import read_tokenizer
    from semcal.models.gguf import unpacked

    location = locate(name, LANGUAGE_MODEL)
    fault = f"cannot load the tokenizer {location.name!r}"
    with naming_extra(f"the tokenizer {location.name!r}"):
        files = unpacked(fault, location, None) if location.gguf else location
        tokenizer, ends = read_tokenizer(fault, files)
    return chat_format(tokenizer, ends)


# ---- Reference answers, with one requested token at each position

Route = Literal["one token", "whole vocabulary"]
"""Method to fit T over a server: by one token known raw and at T, or by all tokens at T = 1."""

ReplyRow = dict[str, Any]
"""Replies about one question, as JSON; {"failed": reason} if a request failed."""

_Ids = tuple[int, ...]
_ELSE = "Use semcal fit --method TS-grid or semcal calibrate, which need only samples"


@dataclass(frozen=True)
class GoldQuestion:
    """A prompt and its reference answers in token ids, ends of turn included."""

    id: str
    prompt: _Ids
    answers: tuple[_Ids, ...]

    @cached_property
    def beginnings(self) -> tuple[_Ids, ...]:
        """The distinct prefixes of the answers that predict a token: P positions."""
        beginnings = (answer[:i] for answer in self.answers for i in range(len(answer)))
        return tuple(dict.fromkeys(beginnings))

    @cached_property
    def tokens(self) -> tuple[tuple[int, int], ...]:
        """The position and the id of each of the N answer tokens."""
        at = {beginning: i for i, beginning in enumerate(self.beginnings)}
        return tuple((at[answer[:i]], token) for answer in self.answers for i, token in enumerate(answer))


def choose_route(profile: ServerProfile, route: Route | None = None) -> Route:
    """Return the cheapest exact route to T, or `route` if it is possible; else ServerError."""
    scores = profile.top_log_probs > 0 and (profile.scores_prompt or profile.forced_raw)
    at_temperature = profile.scaled_on_request or profile.log_probs == "scaled"
    routes: list[Route] = []
    if profile.token_ids_in and scores and profile.truncated_to is None and at_temperature:
        routes.append("one token")
    if profile.token_ids_in and profile.whole_vocabulary and profile.vocabulary is not None:
        routes.append("whole vocabulary")
    chosen = next((one for one in routes if route in (None, one)), None)
    if chosen is None:
        flags = " Start vLLM with --logprobs-mode processed_logprobs." if profile.server == "vLLM" else ""
        raise ServerError(
            f"{profile.server} at {profile.url} does not allow an exact fit of T by "
            f"{route or 'any route'}: it needs prompts of token ids, log-probabilities of given tokens, and "
            f"log-probabilities at T without truncation, or of the whole vocabulary.{flags} {_ELSE}"
        )
    return chosen


@dataclass(frozen=True)
class PartitionRequests:
    """The requests of all routes to one server, with one `ReplyRow` per question."""

    client: ServerClient
    profile: ServerProfile

    def raw(self, questions: Sequence[GoldQuestion]) -> list[ReplyRow]:
        """Request raw log-probabilities of the answers' tokens, and of the most likely tokens at each place.

        The rows are {"log_probs": [N], "top": [N] lists without the token itself}.
        """
        forced = not self.profile.scores_prompt
        row_of: Callable[[GoldQuestion, list[Any]], ReplyRow] = _forced_row if forced else _scored_row
        parse: Callable[[Json], Any] = _entry if forced else _scored
        return self._rows(questions, self._scoring, parse, lambda i, replies: row_of(questions[i], replies))

    def losses(
        self, questions: Sequence[GoldQuestion], raw: Sequence[ReplyRow], temperature: float
    ) -> list[ReplyRow]:
        """Compute the NLL of each token at T: {"nll": [N]}, from the most likely token raw and at T."""

        def row_of(i: int, entries: Sequence[TokenEntry]) -> ReplyRow:
            at = [max(_listed(entry).values()) for entry in entries]
            rows = zip(questions[i].tokens, raw[i]["log_probs"], raw[i]["top"])
            nll = [(max([gold, *top]) - gold) / temperature - at[p] for (p, _), gold, top in rows]
            return {"nll": nll}

        answer = AnswerRequest(temperature, 1, alternatives=2)
        return self._rows(questions, lambda question: self._each(question, answer), _entry, row_of)

    def whole(self, questions: Sequence[GoldQuestion]) -> list[ReplyRow]:
        """Request raw log-probabilities of the vocabulary: {"log_probs": [P] base64 of float32 [V]}."""
        size = self.profile.vocabulary or 0

        def row_of(_: int, entries: Sequence[TokenEntry]) -> ReplyRow:
            return {"log_probs": [_packed(_listed(entry), size) for entry in entries]}

        answer = AnswerRequest(1.0, 1, alternatives=size)
        return self._rows(questions, lambda question: self._each(question, answer), _entry, row_of)

    def counts(self, questions: Sequence[GoldQuestion], route: Route) -> tuple[int, int]:
        """Return the number of initial requests, and of further requests per temperature."""
        positions = sum(len(question.beginnings) for question in questions)
        if route == "whole vocabulary":
            return positions, 0
        return sum(len(self._scoring(question)) for question in questions), positions

    def _scoring(self, question: GoldQuestion) -> list[ServerRequest]:
        """Return one request per answer if the server scores prompts; else one that forces each token."""
        k = min(self.profile.top_log_probs, 2)  # includes the most likely token, although the token is listed
        if not self.profile.scores_prompt:
            answer = AnswerRequest(1.0, 1, alternatives=k)
            return [self._at(question, i, replace(answer, forced=token)) for i, token in question.tokens]
        generation, fields = AnswerRequest(1.0, 1, log_probs=False), {"prompt_logprobs": k}
        prompts = [Prompt(question.id, question.prompt + answer) for answer in question.answers]
        return [request_for(self.profile, prompt, generation).with_fields(fields) for prompt in prompts]

    def _each(self, question: GoldQuestion, answer: AnswerRequest) -> list[ServerRequest]:
        return [self._at(question, i, answer) for i in range(len(question.beginnings))]

    def _at(self, question: GoldQuestion, position: int, answer: AnswerRequest) -> ServerRequest:
        ids = question.prompt + question.beginnings[position]
        return request_for(self.profile, Prompt(question.id, ids), answer)

    def _rows(
        self,
        questions: Sequence[GoldQuestion],
        requests_of: Callable[[GoldQuestion], Sequence[ServerRequest]],
        parse: Callable[[Json], Any],
        row_of: Callable[[int, list[Any]], ReplyRow],
    ) -> list[ReplyRow]:
        """Send all requests of all questions at once, and build one row per question."""
        requests = [requests_of(question) for question in questions]
        replies = iter(self.client.send_all([request for group in requests for request in group], parse))
        rows = list[ReplyRow]()
        for i, group in enumerate(requests):
            replies_to_one = list(islice(replies, len(group)))
            reasons = [reply.reason for reply in replies_to_one if isinstance(reply, RequestFailed)]
            try:
                rows.append({"failed": reasons[0]} if reasons else row_of(i, replies_to_one))
            except ValueError as error:
                rows.append({"failed": str(error)})
        return rows


def _entry(reply: Json) -> TokenEntry:
    entries = [choice.entries for choice in parse_choices(reply)]
    if len(entries) != 1 or entries[0] is None or len(entries[0]) != 1:
        raise ValueError("the reply does not have exactly one token with a log-probability")
    return entries[0][0]


def _listed(entry: TokenEntry) -> dict[int | str, float]:
    return {entry.key: entry.log_prob, **entry.top}


def _packed(listed: Mapping[int | str, float], size: int) -> str:
    """Encode log-probabilities by token id (V,) as base64 of float32; ValueError if tokens are missing."""
    values = np.full(size, -np.inf, dtype=np.float32)
    for token, log_prob in listed.items():
        if not isinstance(token, int) or not 0 <= token < size:
            raise ValueError(f"a token of the whole vocabulary is {token!r}, expected an id below {size}")
        values[token] = log_prob
    total = float(np.exp(values.astype(np.float64)).sum())
    if abs(total - 1) > _SUM:
        raise ValueError(f"the probabilities of the whole vocabulary add up to {total:.4f}")
    return b64encode(values.tobytes()).decode()


def _forced_row(question: GoldQuestion, entries: Sequence[TokenEntry]) -> ReplyRow:
    for (_, token), entry in zip(question.tokens, entries):
        if entry.token_id != token:
            raise ValueError(f"logit_bias forced token {token}, but the reply has {entry.token_id}")
    return _raw_row([(entry.token_id, _listed(entry)) for entry in entries])


def _scored(reply: Json) -> list[dict[str, float] | None]:
    """Return the log-probabilities of listed tokens, by id, at each position of a prompt."""
    try:
        (choice,) = reply["choices"]
        return [
            entries and {token: entry["logprob"] for token, entry in entries.items()}
            for entries in choice["prompt_logprobs"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the scores of a prompt are damaged ({error!r})") from None


def _scored_row(question: GoldQuestion, replies: Sequence[Any]) -> ReplyRow:
    scored = list[tuple[str, Mapping[str, float] | None]]()
    for answer, positions in zip(question.answers, replies):
        start, stop = len(question.prompt), len(question.prompt) + len(answer)
        if len(positions) < stop:
            raise ValueError(f"the reply scores {len(positions)} tokens of a prompt, expected {stop}")
        scored += zip(map(str, answer), positions[start:stop])
    return _raw_row(scored)


def _raw_row(scored: Sequence[tuple[Any, Mapping[Any, Any] | None]]) -> ReplyRow:
    log_probs = [(listed or {}).get(token) for token, listed in scored]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in log_probs):
        raise ValueError("an answer's token has no log-probability")
    return {
        "log_probs": log_probs,
        "top": [[value for key, value in (listed or {}).items() if key != token] for token, listed in scored],
    }
