"""Sampling and greedy answers: a walk down the trees of distinct token sequences of all questions of a call.

1. The prefix that all prompts share has run once; every forest holds it.
2. The rest of each prompt runs once per question. Its last token is the question's first node.
3. At every step each draw that is still going reads the logits of the node it stands at, under its own
   recalibrator, chooses a token and records its log-probability.
4. Draws that choose the same token at the same node walk on together: each distinct continuation runs once,
   all in one pass.
5. Draws that chose an end of turn stop; questions with no draw left leave, and others that wait enter.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from semcal.engine.admission import Queue
from semcal.engine.choosing import Rules
from semcal.engine.forest import Forest
from semcal.engine.standing import Asked, Standing
from semcal.engine.walked import Walk

__all__ = ["walk"]


@torch.no_grad()
def walk(trunk: Forest, asked: Asked, queue: Queue, rules: Rules) -> Iterator[tuple[int, Walk]]:
    """Let every draw of a call choose its tokens.

    Parameters
    ----------
    trunk : Forest
        A forest of the shared prefix.
    asked : Asked
        The questions.
    queue : Queue
        All of them, waiting.
    rules : Rules
        How draws choose.

    Yields
    ------
    tuple of int and Walk
        Each question and what its draws chose, as soon as all have ended.
    """
    standing = Standing(trunk, asked, queue, rules)
    while queue or standing:
        standing.admit()
        yield from standing.step()
