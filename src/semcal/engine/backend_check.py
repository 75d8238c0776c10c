"""Which tree cache a model gets: three levels if these give its own logits, else the fallback.

No architecture is known by its name. Body and head are compared with the plain model on two small trees when
the model is loaded.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from semcal.engine.fallback import FallbackCache
from semcal.engine.network import Network
from semcal.engine.tree_cache import NewTokens, ThreeLevelCache, TreeCache
from semcal.errors import ModelError, SemcalWarning

__all__ = ["checked_network", "prefill_prefix"]

_FAILURES = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def prefill_prefix(network: Network, prefix: tuple[int, ...]) -> TreeCache:
    """Run the shared tokens, if there are any, in the kind of cache that the network gets."""
    kind = FallbackCache if network.patched is None else ThreeLevelCache
    return kind.of_prefix(network, prefix)


def checked_network(model: Any) -> Network:
    """Body and head of a causal language model of transformers, with the fastest attention that is exact.

    Warns (SemcalWarning) if it needs the fallback, and why; raises ModelError if neither way reproduces its
    logits: it looks ahead, for example, or takes no masks from outside.
    """
    network = Network(model)
    expected = _expected_logits(network)
    try:
        _patch(network, expected)
        _check_windows(network)
    except (ModelError, *_FAILURES) as reason:
        network.patched = None
        _check_fallback(network, expected)
        warnings.warn(
            f"{type(model).__name__} runs in the plain way, with more time and memory: {reason}",
            SemcalWarning,
            stacklevel=4,
        )
    return network


def _patch(network: Network, expected: Tensor) -> None:
    """Patch the body so that it gives the expected logits, if possible with a last layer that saves work."""
    with suppress(ModelError, *_FAILURES):
        network.patch(skip_unwanted=True)
        return _check(network, expected)
    network.patch(skip_unwanted=False)
    return _check(network, expected)


def _check_fallback(network: Network, expected: Tensor) -> None:
    try:
        _check(network, expected)
    except _FAILURES as error:
        raise ModelError(
            f"{type(network.model).__name__} does not run with a shared prefix and our attention masks: "
            f"{error}"
        ) from error


def _check(network: Network, expected: Tensor) -> None:
    """Compare logits with the expected ones, and measure the network's sizes."""
    cache, states = _run_trees(network)
    network.bytes_per_token, network.width = cache.bytes_per_token, states.shape[-1]
    got = network.logits(states).view_as(expected)
    if cache.bytes_per_token < 1:
        raise ModelError(f"{type(network.model).__name__} has no layers that keep keys and values")
    tolerance = 1e-4 if network.dtype in (torch.float32, torch.float64) else 0.1
    error = float((expected - got).abs().max() / expected.std().clamp_min(1e-6))
    if not error <= tolerance:
        raise ModelError(
            f"{type(network.model).__name__} cannot be used: with a shared prefix its logits differ from the "
            f"plain model's by {error:.1e} standard deviations, more than {tolerance:.0e}; ordinary causal "
            "attention is needed"
        )


def _check_windows(network: Network) -> None:
    """Compare the layers' windows with the config's: the trees are too small to show a wide window."""
    cache = ThreeLevelCache.of_prefix(network, (0,))
    found = [cache.layers[index].config.window for index in range(len(cache.layers))]
    if found != network.windows:
        raise ModelError(f"its layers attend in windows of {found}, its configuration says {network.windows}")


#: Tokens 0 … 8 in three sequences: the first two share four tokens, the third shares three with both.
_PATHS = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 6, 7), (0, 1, 2, 8, 4, 5))


def _tokens(network: Network) -> list[int]:
    start = network.vocabulary // 2
    return [(start + i) % network.vocabulary for i in range(9)]


@torch.no_grad()
def _expected_logits(network: Network) -> Tensor:
    """The plain model's logits (3, 3, V) of the last three tokens of the sequences."""
    tokens = _tokens(network)
    kind = type(network.model).__name__
    try:
        ids = torch.tensor([[tokens[i] for i in path] for path in _PATHS], device=network.device)
        output = network.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except _FAILURES as error:
        raise ModelError(f"{kind} does not run on plain sequences of tokens: {error}") from error
    logits: Tensor = output.logits[:, 3:]
    return logits.float()


def _run_trees(network: Network) -> tuple[TreeCache, Tensor]:
    """The states (9, d) of the same: two questions behind a prefix of two tokens, the first with a fork."""
    tokens = _tokens(network)
    cache = prefill_prefix(network, tuple(tokens[:2])).empty()
    own = cache.prefill([tokens[:4], tokens[:3]]).states
    fork = _new(tokens, [4, 6, 8], row=[0, 0, 1], path=[[0], [1], [2]])
    leaves = _new(
        tokens, [5, 7, 4, 5], row=[0, 0, 1, 1], path=[[0, 3, -1], [1, 4, -1], [2, 5, -1], [2, 5, 6]]
    )
    first, second = cache.extend(fork).states, cache.extend(leaves).states
    states = [own[0], first[0], second[0], own[0], first[1], second[1], first[2], second[2], second[3]]
    return cache, torch.stack(states)


def _new(tokens: list[int], which: list[int], *, row: list[int], path: list[list[int]]) -> NewTokens:
    return NewTokens(torch.tensor([tokens[i] for i in which]), torch.tensor(row), torch.tensor(path))
