"""What draws have chosen so far, and where those that are going stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Draws", "Index", "Walk"]

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Draws:
    """The draws that are going, n arrays of int64.

    Attributes
    ----------
    row : ndarray
        Of the question.
    which : ndarray
        The recalibrator.
    draw : ndarray
        Number of the draw.
    step : ndarray
        How many tokens it has.
    node : torch.Tensor
        Where it stands.
    """

    row: Index
    which: Index
    draw: Index
    step: Index
    node: Tensor

    @classmethod
    def first(cls, rows: range, recalibrators: int, m: int, *, node: int = 0) -> Draws:
        """All draws of questions just planted, which stand at the nodes from `node` on."""
        row, which, draw = (i.ravel() for i in np.indices((len(rows), recalibrators, m), dtype=np.int64))
        return cls(rows.start + row, which, draw, np.zeros_like(row), torch.from_numpy(node + row))

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, some: NDArray[np.bool_]) -> Draws:
        node = self.node[torch.from_numpy(some)]
        return Draws(self.row[some], self.which[some], self.draw[some], self.step[some], node)

    def beside(self, others: Draws) -> Draws:
        """These and others."""
        pairs = [(self.row, others.row), (self.which, others.which)]
        pairs += [(self.draw, others.draw), (self.step, others.step)]
        row, which, draw, step = map(np.concatenate, pairs)
        return Draws(row, which, draw, step, torch.cat([self.node, others.node]))


@dataclass(frozen=True)
class Walk:
    """What the draws of a question chose, or those of several with an axis in front.

    Attributes
    ----------
    tokens : ndarray of int64, shape (R, m, steps)
        By recalibrator, draw and step; -1 behind the end.
    log_probs : ndarray of float32, shape (R, m, steps)
        Of each token at its recalibrated distribution.
    closers : ndarray of float32, shape (R, m, steps + 1, W)
        Log-probability of each closer behind the first 0, 1, … tokens; NaN where none was read.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    closers: NDArray[np.float32]

    @classmethod
    def unknown(cls, *shape: int, closers: int) -> Walk:
        """Nothing chosen yet, in a shape (questions, R, m, steps)."""
        return cls(
            np.full(shape, -1, dtype=np.int64),
            np.zeros(shape, dtype=np.float32),
            np.full((*shape[:-1], shape[-1] + 1, closers), np.nan, dtype=np.float32),
        )

    def __getitem__(self, questions: int | Index) -> Walk:
        return Walk(self.tokens[questions], self.log_probs[questions], self.closers[questions])

    def beside(self, others: Walk) -> Walk:
        """These questions and others behind them."""
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Walk(*(np.concatenate(pair) for pair in pairs))

    def record(self, draws: Draws, tokens: Index, log_probs: NDArray[np.float32]) -> None:
        """Write down what draws (n,) have chosen (n,)."""
        at = draws.row, draws.which, draws.draw, draws.step
        self.tokens[at], self.log_probs[at] = tokens, log_probs

    def note(self, draws: Draws, closers: NDArray[np.float32]) -> None:
        """Write down the log-probabilities (n, W) of the closers where draws (n,) stand."""
        self.closers[draws.row, draws.which, draws.draw, draws.step] = closers
