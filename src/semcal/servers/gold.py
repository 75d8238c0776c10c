"""What a fit of T asks a server about reference answers: log-probabilities, position by position.

A position is a prompt of token ids that ends within an answer; one token is generated there. All positions of
an answer stand together, so that the server finds their common beginning in its cache.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import numpy as np

from semcal.errors import ServerError
from semcal.models.language_model import Prompt
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.servers.protocol import AnswerRequest, ServerProfile, TokenEntry, parse_choices, request_for

Route = Literal["one token", "whole vocabulary"]
"""How T is fitted over a server: by one token known raw and at T, or by all tokens at T = 1."""

Row = dict[str, Any]
"""What the server says of one question, as JSON; {"failed": why} where a request failed for good."""

_Ids = tuple[int, ...]
#: How far from 1 the probabilities of a whole vocabulary may add up.
SUM = 1e-3
_ELSE = "semcal fit --method TS-grid and semcal calibrate need samples alone"


@dataclass(frozen=True)
class GoldQuestion:
    """A prompt and its reference answers in token ids, ends of turn included."""

    id: str
    prompt: _Ids
    answers: tuple[_Ids, ...]

    @cached_property
    def beginnings(self) -> tuple[_Ids, ...]:
        """The distinct beginnings of the answers that predict a token: P positions."""
        beginnings = (answer[:i] for answer in self.answers for i in range(len(answer)))
        return tuple(dict.fromkeys(beginnings))

    @cached_property
    def tokens(self) -> tuple[tuple[int, int], ...]:
        """The position and the id of each of the N answer tokens."""
        at = {beginning: i for i, beginning in enumerate(self.beginnings)}
        return tuple((at[answer[:i]], token) for answer in self.answers for i, token in enumerate(answer))


def choose_route(profile: ServerProfile, route: Route | None = None) -> Route:
    """Return the cheapest exact route to T, or `route` if it is allowed; ServerError says what is lacking."""
    where, cut = f"{profile.server} at {profile.url}", profile.truncated_to
    if not profile.token_ids_in:
        raise ServerError(f"{where} takes no prompts of token ids to continue an answer with; {_ELSE}")
    scores = profile.top_log_probs > 0 and (profile.scores_prompt is not None or profile.forced_raw)
    at_temperature = profile.scaled_on_request or profile.log_probs in ("scaled", "masked")
    routes: list[Route] = []
    if scores and cut is None and at_temperature:
        routes.append("one token")
    if profile.whole_vocabulary and profile.vocabulary is not None:
        routes.append("whole vocabulary")
    if route is not None and route not in routes:
        raise ServerError(f"{where} does not allow a fit by {route}, but by {', '.join(routes) or 'nothing'}")
    if not routes:
        raise ServerError(f"{where} {_lack(profile, scores=scores)}: T cannot be fitted exactly; {_ELSE}")
    return route or routes[0]


def _lack(profile: ServerProfile, *, scores: bool) -> str:
    """What keeps a server from an exact fit, with what helps."""
    if not scores:
        cut = f" and cuts draws to {profile.truncated_to}" if profile.truncated_to else ""
        return f"gives no log-probability of a given token{cut}"
    if profile.truncated_to:
        return f"cuts draws to {profile.truncated_to}"
    flags = " (start vLLM with --logprobs-mode processed_logprobs or --max-logprobs -1)"
    listed = f"gives log-probabilities at T = 1 alone, of {profile.top_log_probs} tokens at most"
    return listed + flags * (profile.server == "vLLM")


@dataclass(frozen=True)
class PartitionRequests:
    """The requests of all routes to one server; each method returns a `Row` for each question."""

    client: ServerClient
    profile: ServerProfile

    def raw(self, questions: Sequence[GoldQuestion]) -> list[Row]:
        """Raw log-probabilities of the answers' tokens, and of the likeliest tokens beside each.

        {"log_probs": [N], "top": [N] lists, without the token itself}
        """
        forced = self.profile.scores_prompt is None
        row_of = _forced_row if forced else _scored_row
        return self._rows(
            questions,
            self._scoring,
            _entry if forced else _scored,
            lambda i, replies: row_of(questions[i], replies),
        )

    def losses(self, questions: Sequence[GoldQuestion], raw: Sequence[Row], temperature: float) -> list[Row]:
        """The NLL of each token at a temperature: {"nll": [N]}, from the likeliest one raw and there."""

        def row_of(i: int, entries: Sequence[TokenEntry]) -> Row:
            at = [max(_listed(entry).values()) for entry in entries]
            rows = zip(questions[i].tokens, raw[i]["log_probs"], raw[i]["top"])
            return {
                "nll": [
                    (max([own_raw, *top]) - own_raw) / temperature - at[p] for (p, _), own_raw, top in rows
                ]
            }

        answer = AnswerRequest(temperature, 1, alternatives=2, at_temperature=True)
        return self._rows(questions, lambda question: self._each(question, answer), _entry, row_of)

    def whole(self, questions: Sequence[GoldQuestion]) -> list[Row]:
        """Raw log-probabilities of the whole vocabulary: {"log_probs": [P] base64 of float32 [V]}."""
        size = self.profile.vocabulary or 0
        answer = AnswerRequest(1.0, 1, alternatives=size)
        return self._rows(
            questions,
            lambda question: self._each(question, answer),
            _entry,
            lambda _, entries: {"log_probs": [_packed(_listed(entry), size) for entry in entries]},
        )

    def counts(self, questions: Sequence[GoldQuestion], route: Route) -> tuple[int, int]:
        """How many requests come first, and how many more at each temperature that is tried."""
        positions = sum(len(question.beginnings) for question in questions)
        if route == "whole vocabulary":
            return positions, 0
        return sum(len(self._scoring(question)) for question in questions), positions

    def _scoring(self, question: GoldQuestion) -> list[ServerRequest]:
        """One for each answer where the server scores prompts; else one forces each token."""
        k = min(self.profile.top_log_probs, 2)  # the likeliest is among them though the token takes a place
        if self.profile.scores_prompt is None:
            answer = AnswerRequest(1.0, 1, alternatives=k)
            return [self._at(question, i, replace(answer, forced=token)) for i, token in question.tokens]
        fields_of = {"echo": {"echo": True, "logprobs": k}, "prompt_logprobs": {"prompt_logprobs": k}}
        further = fields_of[self.profile.scores_prompt]
        prompts = [Prompt(question.id, question.prompt + answer) for answer in question.answers]
        requests = [
            request_for(self.profile, prompt, AnswerRequest(1.0, 1, log_probs=False)) for prompt in prompts
        ]
        return [replace(request, body={**request.body, **further}) for request in requests]

    def _each(self, question: GoldQuestion, answer: AnswerRequest) -> list[ServerRequest]:
        """The same request at each position."""
        return [self._at(question, i, answer) for i in range(len(question.beginnings))]

    def _at(self, question: GoldQuestion, position: int, answer: AnswerRequest) -> ServerRequest:
        ids = question.prompt + question.beginnings[position]
        return request_for(self.profile, Prompt(question.id, ids), answer)

    def _rows(
        self,
        questions: Sequence[GoldQuestion],
        requests_of: Callable[[GoldQuestion], Sequence[ServerRequest]],
        parse: Callable[[Mapping[str, Any]], Any],
        row_of: Callable[[int, list[Any]], Row],
    ) -> list[Row]:
        """Ask all requests of all questions at once, and make a row of the replies to each question."""
        requests = [requests_of(question) for question in questions]
        replies = iter(self.client.send_all([request for group in requests for request in group], parse))
        rows = list[Row]()
        for i, group in enumerate(requests):
            of_row = list(islice(replies, len(group)))
            reasons = [request.reason for request in of_row if isinstance(request, RequestFailed)]
            try:
                rows.append({"failed": reasons[0]} if reasons else row_of(i, of_row))
            except ValueError as error:
                rows.append({"failed": str(error)})
        return rows


def _entry(reply: Mapping[str, Any]) -> TokenEntry:
    """The one token of a reply."""
    entries = [choice.entries for choice in parse_choices(reply)]
    if len(entries) != 1 or entries[0] is None or len(entries[0]) != 1:
        raise ValueError("one token was asked for, and its log-probability is not alone in the reply")
    return entries[0][0]


def _listed(entry: TokenEntry) -> dict[int | str, float]:
    """All tokens of an entry with their log-probabilities."""
    return {entry.key: entry.log_prob, **entry.top}


def _packed(listed: Mapping[int | str, float], size: int) -> str:
    """Log-probabilities by token id (V,), as base64 of float32; ValueError unless they are all there."""
    values = np.full(size, -np.inf, dtype=np.float32)
    for token, log_prob in listed.items():
        if not isinstance(token, int) or not 0 <= token < size:
            raise ValueError(f"a token of the whole vocabulary is {token!r}, no id below {size}")
        values[token] = log_prob
    total = float(np.exp(values.astype(np.float64)).sum())
    if abs(total - 1) > SUM:
        raise ValueError(f"the probabilities of the whole vocabulary add up to {total:.4f}")
    return b64encode(values.tobytes()).decode()


def _forced_row(question: GoldQuestion, entries: Sequence[TokenEntry]) -> Row:
    for (_, token), entry in zip(question.tokens, entries):
        if entry.token_id != token:
            raise ValueError(f"token {token} was forced by logit_bias and {entry.token_id} came")
    return _raw_row([(entry.token_id, _listed(entry)) for entry in entries])


def _scored(reply: Mapping[str, Any]) -> list[tuple[str | None, Mapping[str, float] | None]]:
    """The tokens that are listed at each position of a prompt, and which of them stands there, if it is told.

    By id (vLLM's prompt_logprobs), or by text (echo).
    """
    try:
        (choice,) = reply["choices"]
        if "prompt_logprobs" in choice:
            by_id = choice["prompt_logprobs"]
            return [
                (None, entries and {token: entry["logprob"] for token, entry in entries.items()})
                for entries in by_id
            ]
        logprobs = choice["logprobs"]
        tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
        rows = zip(logprobs["tokens"], logprobs["token_logprobs"], tops)
        return [
            (text, None if log_prob is None else {**(top or {}), text: log_prob})
            for text, log_prob, top in rows
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the scores of a prompt are not what they should be ({error!r})") from None


def _scored_row(question: GoldQuestion, replies: Sequence[Any]) -> Row:
    scored = []
    for answer, positions in zip(question.answers, replies):
        start, stop = len(question.prompt), len(question.prompt) + len(answer)
        if len(positions) < stop:
            raise ValueError(f"{len(positions)} of {stop} tokens of a prompt were scored")
        of_answer = positions[start:stop]
        scored += [
            (str(token) if name is None else name, listed) for token, (name, listed) in zip(answer, of_answer)
        ]
    return _raw_row(scored)


def _raw_row(scored: Sequence[tuple[Any, Mapping[Any, Any] | None]]) -> Row:
    """From the token at each position and what is listed there."""
    log_probs = [(listed or {}).get(token) for token, listed in scored]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in log_probs):
        raise ValueError("an answer's token has no log-probability")
    return {
        "log_probs": log_probs,
        "top": [[value for key, value in (listed or {}).items() if key != token] for token, listed in scored],
    }
