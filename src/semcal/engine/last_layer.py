"""The last layer of a body, run beyond keys and values only where somebody wants its states.

Of a prompt that is planted, the last token's state alone is wanted: it predicts the answer's first token.
What the others gather, and what the layer does to each token by itself after that, is left out: of L layers,
nearly 1/L of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import Tensor

from semcal.engine.levels import Pass

__all__ = ["current", "is_last", "run_where_wanted"]

#: The pass that runs.
current: ContextVar[Pass] = ContextVar("pass")
_MARK = "semcal_last"


def run_where_wanted(body: Any) -> None:
    """Change a body, which must be a copy, so that its last layer runs where the pass wants it.

    The layer is the last module with a part named `mlp`; a body without one stays as it is.
    """
    layers = [module for module in body.modules() if "mlp" in module._modules]
    if layers:
        for module in layers[-1].modules():
            setattr(module, _MARK, True)
        layers[-1].mlp.forward = partial(_by_token, layers[-1].mlp.forward)


def is_last(module: Any) -> bool:
    """Whether a module is of a layer that runs where the pass wants it."""
    return getattr(module, _MARK, False)


def _by_token(forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """What is done to each token (1, N, d) by itself; zeros where nobody wants it."""
    wanted = current.get().wanted
    if wanted is None:
        return forward(states)
    found = states.new_zeros(states.shape)
    found[:, wanted] = forward(states[:, wanted])
    return found
