"""Log-probabilities of chosen tokens at 20 temperatures, against reading them at one.

    python -m benchmarks.temperatures

320 rows of 32 000 random logits of standard deviation 6 (a step of 64 questions with 5 nodes each) and one
token of each row. The plain way normalises the whole row, `log_softmax(logits / T)`, and picks the token.
Temperatures go from 0.5 to 2.5, evenly in T or in 1/T, or from 0.1 to 5, too far apart to share exponentials.
CPU time of one thread, the ways in turn, medians. The error is the largest against float64.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from time import thread_time
from typing import Any

import torch
from torch import Tensor

from semcal.recalibration import Temperature, log_probs_at

ROWS, VOCABULARY, ROUNDS = 320, 32_000, 7
ONE = torch.tensor([1 / 1.3], dtype=torch.float64)
EVEN_T = 1 / torch.linspace(0.5, 2.5, 20, dtype=torch.float64)
WIDE = 1 / torch.logspace(math.log10(0.1), math.log10(5), 20, dtype=torch.float64)
EVEN_BETA = torch.linspace(0.4, 2.0, 20, dtype=torch.float64)


def plain(logits: Tensor, tokens: Tensor, beta: Tensor) -> Tensor:
    return torch.stack([Temperature(float(1 / b)).log_probs(logits).gather(1, tokens) for b in beta], 2)


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(ROWS, VOCABULARY, generator=generator)
    tokens = torch.randint(VOCABULARY, (ROWS, 1), generator=generator)
    ways: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Tensor]] = {
        "1, plain": (plain, ONE),
        "1": (log_probs_at, ONE),
        "20, even in T": (log_probs_at, EVEN_T),
        "20, even in 1/T": (log_probs_at, EVEN_BETA),
        "20, from 0.1 to 5": (log_probs_at, WIDE),
        "20, plain": (plain, EVEN_T),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (way, beta) in ways.items():
            start = thread_time()
            way(logits, tokens, beta)
            spent[name].append(thread_time() - start)
    median = {name: statistics.median(times) for name, times in spent.items()}
    return [
        {
            "temperatures": name,
            "ns for a logit": median[name] / logits.numel() * 1e9,
            "times one, plain": median[name] / median["1, plain"],
            "times one of the same way": median[name] / median["1, plain" if way is plain else "1"],
            "error": error(way(logits, tokens, beta), logits, tokens, beta),
        }
        for name, (way, beta) in ways.items()
    ]


def error(found: Tensor, logits: Tensor, tokens: Tensor, beta: Tensor) -> float:
    exact = [(logits.double() * b).log_softmax(1).gather(1, tokens) for b in beta]
    return float((found.double() - torch.stack(exact, 2)).abs().max())


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
