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
from typing import Any, Literal, get_args

import numpy as np

from semcal.engine.language_model import Prompt
from semcal.engine.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.engine.servers.profile import ServerProfile
from semcal.engine.servers.replies import TokenEntry, parse_choices
from semcal.engine.servers.requests import Asked, request_for, request_seeds
from semcal.errors import ServerError

Route = Literal["one token", "whole vocabulary", "draws", "top-k"]
"""How T is fitted over a server, the best first."""

Row = dict[str, Any]
"""What the server says of one question, as JSON; {"failed": why} where a request failed for good."""

_Ids = tuple[int, ...]
#: Alternatives that are asked for where the whole vocabulary is not: most servers list 20 at most.
ALTERNATIVES = 20
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
        found = (answer[:i] for answer in self.answers for i in range(len(answer)))
        return tuple(dict.fromkeys(found))

    @cached_property
    def tokens(self) -> tuple[tuple[int, int], ...]:
        """The position and the id of each of the N answer tokens."""
        at = {beginning: i for i, beginning in enumerate(self.beginnings)}
        return tuple((at[answer[:i]], token) for answer in self.answers for i, token in enumerate(answer))


def choose_route(profile: ServerProfile, wanted: Route | None = None) -> Route:
    """Return the best route to T that a server allows, or the wanted one; ServerError says what it lacks."""
    where, whole = f"{profile.server} at {profile.url}", profile.truncated_to is None
    if not profile.token_ids_in:
        raise ServerError(f"{where} takes no prompts of token ids to continue an answer with; {_ELSE}")
    scores = profile.top_log_probs > 0 and (profile.scores_prompt is not None or profile.forced_raw)
    possible: dict[Route, bool] = {
        "one token": scores
        and whole
        and (profile.scaled_on_request or profile.log_probs in ("scaled", "masked")),
        "whole vocabulary": profile.whole_vocabulary and profile.vocabulary is not None,
        "draws": scores and whole and profile.log_probs == "raw" and profile.end_included,
        "top-k": scores and profile.scores_prompt != "echo",  # which names tokens by texts that others share
    }
    found = [route for route in get_args(Route) if possible[route]]
    if wanted is not None and wanted not in found:
        raise ServerError(f"{where} does not allow a fit by {wanted}, but by {', '.join(found) or 'nothing'}")
    if not found:
        cut = "" if whole else f" and cuts draws to {profile.truncated_to}"
        raise ServerError(
            f"{where} gives no log-probability of a given token{cut}: no T can be fitted; {_ELSE}"
        )
    return wanted or found[0]


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
            lambda i, found: row_of(questions[i], found),
        )

    def losses(self, questions: Sequence[GoldQuestion], raw: Sequence[Row], temperature: float) -> list[Row]:
        """The NLL of each token at a temperature: {"nll": [N]}, from the likeliest one raw and there."""

        def row_of(i: int, entries: Sequence[TokenEntry]) -> Row:
            at = [max(_listed(entry).values()) for entry in entries]
            rows = zip(questions[i].tokens, raw[i]["log_probs"], raw[i]["top"])
            return {"nll": [(max([own, *top]) - own) / temperature - at[p] for (p, _), own, top in rows]}

        asked = Asked(temperature, 1, alternatives=2, at_temperature=True)
        return self._rows(questions, lambda one: self._each(one, [asked]), _entry, row_of)

    def draws(self, questions: Sequence[GoldQuestion], temperature: float, *, n: int, seed: int) -> list[Row]:
        """Raw log-probabilities of n tokens drawn at a temperature: {"draws": [P] lists}."""

        def row_of(i: int, found: Sequence[Sequence[float]]) -> Row:
            values = [value for drawn in found for value in drawn]
            if len(values) != n * len(questions[i].beginnings) or not all(map(math.isfinite, values)):
                raise ValueError(f"a token drawn at T = {temperature:g} lacks its log-probability")
            return {"draws": [values[start : start + n] for start in range(0, len(values), n)]}

        asked = [Asked(temperature, 1, n=size) for size in self._sizes(n)]
        return self._rows(questions, lambda one: self._each(one, asked, seed=seed), _drawn, row_of)

    def whole(self, questions: Sequence[GoldQuestion]) -> list[Row]:
        """Raw log-probabilities of the whole vocabulary: {"log_probs": [P] base64 of float32 [V]}."""
        size = self.profile.vocabulary or 0
        asked = Asked(1.0, 1, alternatives=size)
        return self._rows(
            questions,
            lambda one: self._each(one, [asked]),
            _entry,
            lambda _, entries: {"log_probs": [_packed(_listed(entry), size) for entry in entries]},
        )

    def counts(self, questions: Sequence[GoldQuestion], route: Route, *, n: int) -> tuple[int, int]:
        """How many requests come first, and how many more at each temperature that is tried."""
        positions = sum(len(question.beginnings) for question in questions)
        if route == "whole vocabulary":
            return positions, 0
        each = {"one token": 1, "draws": len(self._sizes(n)), "top-k": 0}[route]
        return sum(len(self._scoring(question)) for question in questions), positions * each

    def _sizes(self, n: int) -> list[int]:
        """Draws of each request."""
        most = self.profile.together
        return [min(most, n - done) for done in range(0, n, most)]

    def _scoring(self, question: GoldQuestion) -> list[ServerRequest]:
        """One for each answer where the server scores prompts; else one forces each token."""
        k = max(1, min(self.profile.top_log_probs, ALTERNATIVES))
        if self.profile.scores_prompt is None:
            asked = Asked(1.0, 1, alternatives=k)
            return [self._at(question, i, replace(asked, forced=token)) for i, token in question.tokens]
        how = {"echo": {"echo": True, "logprobs": k}, "prompt_logprobs": {"prompt_logprobs": k}}
        further = how[self.profile.scores_prompt]
        wholes = [Prompt(question.id, question.prompt + answer) for answer in question.answers]
        found = [request_for(self.profile, whole, Asked(1.0, 1, log_probs=False)) for whole in wholes]
        return [replace(one, body={**one.body, **further}) for one in found]

    def _each(
        self, question: GoldQuestion, asked: Sequence[Asked], *, seed: int | None = None
    ) -> list[ServerRequest]:
        """The same requests at each position, with seeds of their own if there is one."""
        positions = range(len(question.beginnings))
        if seed is None:
            return [self._at(question, i, one) for i in positions for one in asked]
        own = request_seeds(seed, question.id, m=len(positions), steps=len(asked))
        return [
            self._at(question, i, replace(one, seed=number))
            for i in positions
            for one, number in zip(asked, own[i])
        ]

    def _at(self, question: GoldQuestion, position: int, asked: Asked) -> ServerRequest:
        ids = question.prompt + question.beginnings[position]
        return request_for(self.profile, Prompt(question.id, ids), asked)

    def _rows(
        self,
        questions: Sequence[GoldQuestion],
        requests_of: Callable[[GoldQuestion], Sequence[ServerRequest]],
        parse: Callable[[Mapping[str, Any]], Any],
        row_of: Callable[[int, list[Any]], Row],
    ) -> list[Row]:
        """Ask all requests of all questions at once, and make a row of the replies to each question."""
        requests = [requests_of(question) for question in questions]
        replies = iter(self.client.send_all([one for some in requests for one in some], parse))
        rows = list[Row]()
        for i, asked in enumerate(requests):
            found = list(islice(replies, len(asked)))
            reasons = [one.reason for one in found if isinstance(one, RequestFailed)]
            try:
                rows.append({"failed": reasons[0]} if reasons else row_of(i, found))
            except ValueError as error:
                rows.append({"failed": str(error)})
        return rows


def _drawn(reply: Mapping[str, Any]) -> list[float]:
    """The log-probability of the token of each choice; NaN where it has none."""
    found = [choice.entries for choice in parse_choices(reply)]
    return [one[0].log_prob if one is not None and len(one) == 1 else math.nan for one in found]


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
            return [(None, one and {token: of["logprob"] for token, of in one.items()}) for one in by_id]
        found = choice["logprobs"]
        tops = found.get("top_logprobs") or [{}] * len(found["tokens"])
        rows = zip(found["tokens"], found["token_logprobs"], tops)
        return [(text, None if own is None else {**(top or {}), text: own}) for text, own, top in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the scores of a prompt are not what they should be ({error!r})") from None


def _scored_row(question: GoldQuestion, replies: Sequence[Any]) -> Row:
    found = []
    for answer, positions in zip(question.answers, replies):
        start, stop = len(question.prompt), len(question.prompt) + len(answer)
        if len(positions) < stop:
            raise ValueError(f"{len(positions)} of {stop} tokens of a prompt were scored")
        of_answer = positions[start:stop]
        found += [
            (str(token) if own is None else own, listed) for token, (own, listed) in zip(answer, of_answer)
        ]
    return _raw_row(found)


def _raw_row(found: Sequence[tuple[Any, Mapping[Any, Any] | None]]) -> Row:
    """From the token at each position and what is listed there."""
    own = [(listed or {}).get(token) for token, listed in found]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in own):
        raise ValueError("an answer's token has no log-probability")
    return {
        "log_probs": own,
        "top": [[value for other, value in (of or {}).items() if other != token] for token, of in found],
    }
