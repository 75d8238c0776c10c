"""Likelihoods of answers that were cut, or met the token limit, from the walk that drew them (spec 5.2).

What is scored of such a draw are its first tokens and an end of turn. A walk has read the distribution behind
each of these tokens already, so it notes there what closes answers cost. Only behind the last token of a draw
that met the limit has nothing been read; that one token then runs while the forest still stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semcal.engine.chat import ChatFormat
from semcal.engine.language_model import Cut, Generation
from semcal.engine.walked import Walk

__all__ = ["Closing"]
_Ids = tuple[int, ...]
_Scores = tuple[float, ...]
_Known = dict[_Ids, dict[int, float]]


class Closing:
    """Which tokens are scored of each draw, and what a walk says of them.

    Parameters
    ----------
    chat_format : ChatFormat
        What ends a turn.
    cut : callable
        Decided from the draw's text and from whether it is finished.
    """

    def __init__(self, chat_format: ChatFormat, cut: Cut) -> None:
        self._format = chat_format
        self._cut = cut
        self._completions: dict[_Ids, _Ids | None] = {}
        self.closers = _closers(chat_format)

    def completion(self, generation: Generation) -> _Ids | None:
        """Tokens that are scored of a draw in place of its own; None where its own are."""
        key = generation.token_ids
        if key not in self._completions:
            end = self._cut(generation)
            self._completions[key] = None if end is None else self._format.complete(generation, end)
        return self._completions[key]

    def beyond(self, token_ids: _Ids) -> bool:
        """Whether of an unfinished draw all tokens are scored, so that the last of them has to run."""
        wanted = self.completion(Generation(self._format.text(token_ids), token_ids, (), finished=False))
        return wanted is not None and wanted[:-1] == token_ids

    def rescored(self, draws: Sequence[Generation], walked: Walk, which: int) -> list[Generation]:
        """The draws of a question with what the walk knows of them.

        Parameters
        ----------
        draws : sequence of Generation
            The draws of one question under one recalibrator.
        walked : Walk
            Of the question, with this closing's closers.
        which : int
            The recalibrator.
        """
        if not any(map(self.completion, draws)):
            return list(draws)
        known = _known(draws, walked.closers[which], self.closers)
        return [self._with(draw, lambda tokens: _looked_up(known, tokens)) for draw in draws]

    def lacking(self, draws: Sequence[Generation]) -> list[_Ids]:
        """Distinct token sequences that have to be scored for the draws still."""
        wanted = (self.completion(draw) for draw in draws if draw.rescored is None)
        return list(dict.fromkeys(tokens for tokens in wanted if tokens is not None))

    def filled(self, draws: Sequence[Generation], scores: Mapping[_Ids, _Scores]) -> list[Generation]:
        """The draws with the scores of what was lacking."""
        return [self._with(draw, scores.get) for draw in draws]

    def _with(self, draw: Generation, find: Callable[[_Ids], _Scores | None]) -> Generation:
        tokens = self.completion(draw)
        if tokens is None or draw.rescored is not None:
            return draw
        return replace(draw, rescored=find(tokens))


def _known(draws: Sequence[Generation], closing: NDArray[np.float32], closers: Sequence[int]) -> _Known:
    """What is known behind each beginning of the draws; `closing` (m, steps + 1, W) is NaN if not read."""
    known: _Known = {}
    for draw, of_steps in zip(draws, closing.tolist(), strict=True):
        for step, values in enumerate(of_steps[: len(draw.token_ids) + 1]):
            after = known.setdefault(draw.token_ids[:step], {})
            after.update((token, x) for token, x in zip(closers, values, strict=True) if x == x)
            if step < len(draw.token_ids):
                after[draw.token_ids[step]] = draw.token_log_probs[step]
    return known


def _looked_up(known: _Known, tokens: _Ids) -> _Scores | None:
    found = [known.get(tokens[:place], {}).get(token) for place, token in enumerate(tokens)]
    return None if None in found else tuple(x for x in found if x is not None)


def _closers(chat_format: ChatFormat) -> _Ids:
    """The tokens that may end a scored answer: the end of turn, alone and merged with a full stop."""
    sentence = tuple(chat_format.tokenizer("a.", add_special_tokens=False)["input_ids"])
    merged = chat_format.complete(Generation("a.", sentence, (), finished=False), len("a."))
    return tuple(dict.fromkeys((*chat_format.end_of_turn[:1], *merged[-1:])))
