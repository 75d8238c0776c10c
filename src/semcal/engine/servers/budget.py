"""What requests use of tokens and money, and the limits that are kept to beforehand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semcal.engine.servers.settings import ServerSettings
from semcal.errors import BudgetError, shown


@dataclass
class Usage:
    """What was asked and spent so far.

    Tokens of replies that were lost on the way, which a server may have made all the same, are counted as if
    they were as long as they may be.
    """

    requests: int = 0  # answered
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_lost: int = 0  # of those, in replies that were lost
    cost: float | None = None  # None without prices
    seconds: float = 0.0  # while requests were under way

    def text(self) -> str:
        """Return one line for people.

        >>> Usage(1200, 3, 56000, 7800, 40, 0.0712, 60.0).text()
        '1200 requests (20/s, 3 retried), 56000 tokens in, 7800 out (up to 40 of these ...), cost 0.0712'
        """
        rate = [f"{self.requests / self.seconds:.3g}/s"] if self.seconds else []
        retried = [f"{self.retries} retried"] if self.retries else []
        known = f" ({', '.join([*rate, *retried])})" if rate or retried else ""
        lost = f" (up to {self.tokens_lost} of these for replies that never came)" if self.tokens_lost else ""
        cost = "" if self.cost is None else f", cost {self.cost:.4g}"
        return (
            f"{self.requests} requests{known}, {self.tokens_in} tokens in, {self.tokens_out} out{lost}{cost}"
        )


class Budget:
    """Counts what is spent, and holds back requests that might pass a limit. Used in one event loop.

    What others of the same settings have spent counts, and what they have reserved as if it were spent.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._reserved = (0, 0)  # prompt and completion tokens of requests under way, at the worst
        self._under_way = 0
        self._clock = 0.0  # up to when `usage.seconds` counts
        self._settled = asyncio.Event()
        self.usage = Usage(cost=None if settings.price_in is None else 0.0)
        settings.ledger.append(self)

    async def reserve(self, worst: tuple[int, int]) -> None:
        """Set apart what a request may take at the worst: prompt and completion tokens.

        Waits while only what others have reserved stands in the way; BudgetError if what is spent does.
        """
        while (passed := self._passed(worst, self._reserved)) is not None:
            if self._passed(worst, (0, 0)) is not None:
                raise BudgetError(passed)
            await self._settled.wait()
        self._reserved = (self._reserved[0] + worst[0], self._reserved[1] + worst[1])
        self._clock = self._clock if self._under_way else time.monotonic()
        self._under_way += 1

    def settle(self, worst: tuple[int, int], spent: tuple[int, int], *, lost: bool = False) -> None:
        """Put what a try took in the place of what was set apart for it."""
        self._reserved = (self._reserved[0] - worst[0], self._reserved[1] - worst[1])
        usage, now = self.usage, time.monotonic()
        usage.seconds += now - self._clock
        self._clock, self._under_way = now, self._under_way - 1
        usage.tokens_in += spent[0]
        usage.tokens_out += spent[1]
        usage.tokens_lost += sum(spent) if lost else 0
        if usage.cost is not None:
            usage.cost = self._price((usage.tokens_in, usage.tokens_out))
        self._settled.set()
        self._settled = asyncio.Event()

    def _price(self, tokens: tuple[int, int]) -> float:
        prices = (self._settings.price_in or 0.0, self._settings.price_out or 0.0)
        return (tokens[0] * prices[0] + tokens[1] * prices[1]) / 1e6

    def _passed(self, worst: tuple[int, int], reserved: tuple[int, int]) -> str | None:
        """Say which limit a request might pass beside what is spent and reserved; None if none."""
        settings, usage = self._settings, self.usage
        others = [(one.usage, *one._reserved) for one in settings.ledger if one is not self]
        spent = (
            usage.tokens_in + sum(of.tokens_in + held for of, held, _ in others),
            usage.tokens_out + sum(of.tokens_out + held for of, _, held in others),
        )
        then = (spent[0] + reserved[0] + worst[0], spent[1] + reserved[1] + worst[1])
        if settings.max_tokens_total is not None and sum(then) > settings.max_tokens_total:
            limit = f"--max-tokens-total {settings.max_tokens_total}"
            return _message(limit, f"{sum(spent)} tokens", f"{sum(worst)}", usage)
        if settings.max_cost is not None and self._price(then) > settings.max_cost:
            limit = f"--max-cost {settings.max_cost:g}"
            return _message(limit, f"{self._price(spent):.6g}", f"{self._price(worst):.6g}", usage)
        return None


def _message(limit: str, spent: str, worst: str, usage: Usage) -> str:
    return (
        f"stopped before {limit} is passed: {spent} spent, and the next request may take {worst} more "
        f"({usage.text()}); with --out, finished blocks are kept, and the same command with a higher limit "
        "goes on from there (it counts from 0 again)"
    )


def tokens_of_reply(reply: Any, worst: tuple[int, int], *, echo: bool = False) -> tuple[int, int]:
    """Return the prompt and completion tokens of a reply.

    Completion tokens are those that have a log-probability, or those of `usage` if there are more: some
    servers' `usage` counts one choice of n, and some give a part of the tokens no entry. Without either, and
    for prompt tokens without `usage`, what the request may take at the worst; a count of 0 is none.
    """
    usage = reply.get("usage") if isinstance(reply, Mapping) else None
    found = [_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
    tokens_in = found[0] or worst[0]
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    entries = sum(_entries(choice) for choice in choices) if isinstance(choices, list) else 0
    if echo and entries:
        entries = max(entries - tokens_in * len(choices or ()), 0)
    return tokens_in, max(entries, found[1]) or worst[1]


def _count(usage: Any, name: str) -> int:
    """A count that stands in `usage`; 0 if it is none, and ValueError if it is beyond all requests."""
    found = usage.get(name) if isinstance(usage, Mapping) else None
    if isinstance(found, int | float) and found > 10**12:
        raise ValueError(f"{name} is {shown(found)}")
    return max(found, 0) if isinstance(found, int) and not isinstance(found, bool) else 0


def _entries(choice: Any) -> int:
    """How many tokens of a choice have a log-probability."""
    log_probs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(log_probs, Mapping):
        return 0
    found = log_probs.get("content") or log_probs.get("tokens")
    return len(found) if isinstance(found, list) else 0
