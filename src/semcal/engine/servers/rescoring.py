"""Likelihoods of answers that are cut (spec 5.2): of the first answer and an end of turn behind it.

Tokens before the cut have the log-probabilities that they were drawn with. What follows them, mostly the end
of turn alone, was not drawn: its log-probability is among the alternatives listed there, or is asked for, one
token a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from semcal.engine.language_model import Prompt
from semcal.engine.servers.client import RequestFailed, ServerClient
from semcal.engine.servers.likelihoods import Reading, log_prob_at
from semcal.engine.servers.profile import ServerProfile
from semcal.engine.servers.replies import TokenEntry, parse_choices
from semcal.engine.servers.requests import Asked, request_for

__all__ = ["Missing", "ask_missing", "known_and_missing"]

#: Alternatives that are asked for before all of them are.
_SOME = 200


@dataclass(frozen=True)
class Missing:
    """A token behind a beginning, whose log-probability at a temperature is to be asked for."""

    beginning: tuple[int, ...]  # the prompt, and the answer so far
    token_id: int
    temperature: float
    reading: Reading


def known_and_missing(
    prompt: Prompt,
    completed: Sequence[int],
    drawn: Sequence[int],
    entries: Sequence[TokenEntry],
    *,
    temperature: float,
    reading: Reading,
    vocabulary: int | None,
) -> list[float | Missing]:
    """The log-probability of each token of `completed` where that is known from a draw, else what to ask."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(completed, drawn))))
    found: list[float | Missing] = []
    for place, token_id in enumerate(completed):
        known = None
        if place <= same and place < len(entries):
            own = None if place < same else token_id
            known = log_prob_at(entries[place], temperature, reading, token_id=own, vocabulary=vocabulary)
        beginning = (*prompt.token_ids, *completed[:place])
        found.append(Missing(beginning, token_id, temperature, reading) if known is None else known)
    return found


def ask_missing(
    client: ServerClient, profile: ServerProfile, wanted: Iterable[Missing]
) -> dict[Missing, float | RequestFailed | None]:
    """Ask for log-probabilities, each once; None where the server does not list the token."""
    found: dict[Missing, float | RequestFailed | None] = dict.fromkeys(wanted)
    for whole in (False, True) if profile.whole_vocabulary and profile.vocabulary else (False,):
        left = [one for one, value in found.items() if value is None]
        requests = [
            request_for(profile, Prompt("", one.beginning), _asked(profile, one, whole=whole)) for one in left
        ]
        for one, reply in zip(left, client.send_all(requests, parse_choices) if left else []):
            if isinstance(reply, RequestFailed):
                found[one] = reply
            else:
                entries = reply[0].entries or ()
                how = {"token_id": one.token_id, "vocabulary": profile.vocabulary}
                known = (log_prob_at(entry, one.temperature, one.reading, **how) for entry in entries[:1])
                found[one] = next(known, None)
    return found


def _asked(profile: ServerProfile, one: Missing, *, whole: bool) -> Asked:
    """The cheapest request that gives it; `whole` where another did not."""
    asked = Asked(one.temperature, 1, at_temperature=one.reading == "on request")
    if whole or one.reading == "of all":
        return replace(asked, alternatives=profile.vocabulary or 1)
    if one.temperature == 1 and profile.forced_raw:
        return replace(asked, forced=one.token_id)
    if profile.chosen_ids:
        return replace(asked, token_ids=(one.token_id,))
    return replace(asked, alternatives=min(profile.top_log_probs, _SOME))
