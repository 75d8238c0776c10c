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

__all__ = ["current", "run_where_wanted", "wanted_here"]

#: The pass that runs, and whether it is in the last layer.
current: ContextVar[Pass] = ContextVar("pass")
_in_last: ContextVar[bool] = ContextVar("in_last", default=False)


def wanted_here() -> Tensor | None:
    """(R,) the tokens of the pass that the layer under way has to run; None for all."""
    return current.get().wanted if _in_last.get() else None


def run_where_wanted(body: Any) -> None:
    """Change a body, which must be a copy, so that its last layer knows that it is the last.

    The layer is the last module with a part named `mlp`; a body without one stays as it is.
    """
    layers = [module for module in body.modules() if "mlp" in module._modules]
    if layers:
        layers[-1].forward = partial(_last, layers[-1].forward)
        layers[-1].mlp.forward = partial(_by_token, layers[-1].mlp.forward)


def _last(forward: Callable[..., Any], *args: Any, **others: Any) -> Any:
    token = _in_last.set(True)
    try:
        return forward(*args, **others)
    finally:
        _in_last.reset(token)


def _by_token(forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """What is done to each token (1, N, d) by itself; zeros where nobody wants it."""
    wanted = wanted_here()
    if wanted is None:
        return forward(states)
    found = states.new_zeros(states.shape)
    found[:, wanted] = forward(states[:, wanted])
    return found
