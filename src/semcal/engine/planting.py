"""Which kind of forest a model gets: three levels where these give its own logits, else the plain one.

Whether they do is no matter of an architecture's name. Body and head are compared with the plain model on two
small trees when the model is loaded.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from semcal.engine.forest import Forest, Growth, LevelForest
from semcal.engine.interface import copied_body
from semcal.engine.network import Network
from semcal.engine.plain import PlainForest
from semcal.errors import ModelError, SemcalWarning

__all__ = ["planted", "sound_network"]

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


def planted(network: Network, prefix: tuple[int, ...]) -> Forest:
    """A forest of the shared tokens, if there are any; they run here."""
    kind = PlainForest if network.copied is None else LevelForest
    return kind.planted(network, prefix)


def sound_network(model: Any) -> Network:
    """Body and head of a model, in the fastest way that is exact.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model.

    Raises
    ------
    ModelError
        If its logits are not reproduced in either way: it looks ahead, say, or takes no masks from outside.

    Warns
    -----
    SemcalWarning
        If it runs in the plain way; the reason is given.
    """
    network = Network(model)
    expected = _expected(network)
    try:
        _copy_body(network, expected)
        _check_windows(network)
    except (ModelError, *_FAILURES) as reason:
        network.copied = None
        _compare_plainly(network, expected)
        warnings.warn(
            f"{type(model).__name__} runs in the plain way, with more time and memory: {reason}",
            SemcalWarning,
            stacklevel=4,
        )
    return network


def _copy_body(network: Network, expected: Tensor) -> None:
    """Copy the body so that it gives the expected logits, if possible with a last layer that saves work."""
    body = network.model.base_model
    with suppress(ModelError, *_FAILURES):
        network.copied = copied_body(body)
        return _compare(network, expected)
    network.copied = copied_body(body, where_wanted=False)
    return _compare(network, expected)


def _compare_plainly(network: Network, expected: Tensor) -> None:
    try:
        _compare(network, expected)
    except _FAILURES as error:
        raise ModelError(
            f"{type(network.model).__name__} does not run with a shared prefix and attention masks of ours: "
            f"{error}"
        ) from error


def _compare(network: Network, expected: Tensor) -> None:
    """Measure what the network needs to know of itself; ModelError if its logits are not the expected."""
    forest, states = _as_trees(network)
    network.bytes_per_token, network.width = forest.bytes_per_token, states.shape[-1]
    got = network.logits(states).view_as(expected)
    if forest.bytes_per_token < 1:
        raise ModelError(f"{type(network.model).__name__} has no layers that keep keys and values")
    tolerance = 1e-4 if network.dtype in (torch.float32, torch.float64) else 0.1
    off = float((expected - got).abs().max() / expected.std().clamp_min(1e-6))
    if not off <= tolerance:
        raise ModelError(
            f"{type(network.model).__name__} cannot be used: with a shared prefix its logits differ from the "
            f"plain model's by {off:.1e} standard deviations, more than {tolerance:.0e}; ordinary causal "
            "attention is needed"
        )


def _check_windows(network: Network) -> None:
    """The trees are too small to show a wide window: what layers ask for is held against the config."""
    forest = LevelForest.planted(network, (0,))
    asked = [forest.layers[index].rule.window for index in range(len(forest.layers))]
    if asked != network.windows:
        raise ModelError(f"its layers attend in windows of {asked}, its configuration says {network.windows}")


#: Tokens 0 … 8 in three sequences: the first two share four tokens, the third three with both.
_PATHS = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 6, 7), (0, 1, 2, 8, 4, 5))


def _tokens(network: Network) -> list[int]:
    start = network.vocabulary // 2
    return [(start + i) % network.vocabulary for i in range(9)]


@torch.no_grad()
def _expected(network: Network) -> Tensor:
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


def _as_trees(network: Network) -> tuple[Forest, Tensor]:
    """The states (9, d) of the same: two questions behind a prefix of two tokens, the first with a fork."""
    tokens = _tokens(network)
    forest = planted(network, tuple(tokens[:2])).empty()
    own = forest.plant([tokens[:4], tokens[:3]]).states
    fork = _growth(tokens, [4, 6, 8], row=[0, 0, 1], path=[[0], [1], [2]])
    leaves = _growth(
        tokens, [5, 7, 4, 5], row=[0, 0, 1, 1], path=[[0, 3, -1], [1, 4, -1], [2, 5, -1], [2, 5, 6]]
    )
    first, second = forest.grow(fork).states, forest.grow(leaves).states
    states = [own[0], first[0], second[0], own[0], first[1], second[1], first[2], second[2], second[3]]
    return forest, torch.stack(states)


def _growth(tokens: list[int], which: list[int], *, row: list[int], path: list[list[int]]) -> Growth:
    return Growth(torch.tensor([tokens[i] for i in which]), torch.tensor(row), torch.tensor(path))
