"""A start from which a small model of Llama's kind can copy: two circuits set by hand before training.

Answering from a passage is copying: find where the name of the question stood before, go on as the text
went on there. Large models find the two heads that do this by themselves after very many tokens (Olsson
et al., 2022, "In-context learning and induction heads"); a model of this size, in minutes, does not. So its
weights start with

1. a *previous-token head* in layer 0, which writes a code of the token before into every position: all
   queries and keys are one constant vector, turned by the rotary phases so that they fit at distance 1;
2. *induction heads* in layer 1, whose query is the code of the current token and whose key is the code of
   the token before, in the rotary dimensions too slow to blur them; they copy what they find.

All other branches start at zero. Everything is trained from there on.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["start_copying"]

#: Standard deviation of the embeddings, and their first entry, which is the same for all tokens.
SPREAD, CONSTANT = 0.05, 0.2
#: Rotary frequencies (radians a token) that tell neighbours apart, and that reach over a passage.
FAST, SLOW = 0.15, 1 / 250


@torch.no_grad()
def start_copying(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Set the weights of a fresh model with tied embeddings and four or more heads; return it.

    Parameters
    ----------
    model : PreTrainedModel
        A Llama, Qwen2 or Mistral with at least two layers, head size D and two key-value heads, each read
        by two query heads.
    seed : int
        Of the random codes; the global generator is not touched.
    """
    generator = torch.Generator().manual_seed(seed)
    body: Any = model.model
    body.embed_tokens.weight.normal_(0, SPREAD, generator=generator)[:, 0] = CONSTANT
    layers = body.layers
    for layer in layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    width = model.config.hidden_size
    size = width // model.config.num_attention_heads
    frequencies = body.rotary_emb.inv_freq
    code, place = _directions(width, size, generator), _directions(width, size, generator)
    _look_one_back(layers[0].self_attn, frequencies, code, place)
    _find_and_copy(layers[1].self_attn, frequencies, code, place, generator)
    return model


def _directions(width: int, count: int, generator: torch.Generator) -> Tensor:
    """Orthonormal rows (count, width) that leave the constant first entry alone."""
    rows: Tensor = torch.linalg.qr(torch.randn(width, count, generator=generator))[0].T
    rows[:, 0] = 0
    return rows


def _look_one_back(attention: Any, frequencies: Tensor, code: Tensor, place: Tensor) -> None:
    """Head 0 attends to the token before and writes its `code` into the directions `place`."""
    size, width = code.shape
    constant = CONSTANT / math.sqrt(SPREAD**2 + CONSTANT**2 / width)  # after the layer's norm
    fast = frequencies > FAST
    query, key = torch.zeros(size), torch.zeros(size)
    query[: size // 2][fast] = 1
    key[: size // 2][fast] = torch.cos(frequencies[fast])
    key[size // 2 :][fast] = torch.sin(frequencies[fast])
    gap = (1 - torch.cos(frequencies[fast])).sum()
    scale = torch.sqrt(7 * math.sqrt(size) / gap) / constant  # e⁷ times the weight of its neighbours
    for projection, vector in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[:size] = 0
        projection.weight[:size, 0] = vector * scale
    attention.v_proj.weight[:size] = code
    attention.o_proj.weight[:, :size] = 2 * SPREAD * place.T


def _find_and_copy(
    attention: Any,
    frequencies: Tensor,
    code: Tensor,
    place: Tensor,
    generator: torch.Generator,
) -> None:
    """Every head looks for the token after an earlier copy of this one; heads 0 and 2 copy what they find."""
    size, width = code.shape
    slow = (frequencies < SLOW).nonzero().squeeze(1)
    slow = torch.cat([slow, slow + size // 2])
    query, key = torch.zeros(size, width), torch.zeros(size, width)
    query[slow], key[slow] = 2.2 * code[: len(slow)], 2.2 * place[: len(slow)]
    heads = attention.q_proj.weight.shape[0] // size
    attention.q_proj.weight[:] = query.repeat(heads, 1)
    attention.k_proj.weight[:] = key.repeat(attention.k_proj.weight.shape[0] // size, 1)
    copied = _directions(width, 2 * size, generator)
    attention.v_proj.weight[: 2 * size] = copied
    for part, head in ((copied[:size], 0), (copied[size:], heads // 2)):
        attention.o_proj.weight[:, head * size : (head + 1) * size] = 6 * SPREAD * part.T
