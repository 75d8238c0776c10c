"""Sampling with transformers and one computation of the shared prefix, whose cache is copied to all rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from transformers import DynamicCache, LlamaForCausalLM

from benchmarks._vllm import Answer

Tokens = tuple[int, ...]
ROWS = 40  # maximum in a forward pass on a CPU; more are slower


def sample(
    net: LlamaForCausalLM,
    asked: Sequence[Tokens],
    *,
    temperatures: Sequence[float],
    draws: int,
    end: int,
    steps: int,
    rows: int = ROWS,
) -> list[list[Answer]]:
    """Sample answers at each temperature: ``[question][temperature and sample]``."""
    shared = next(i for i, column in enumerate(zip(*asked, strict=False)) if len(set(column)) > 1)
    prefix = DynamicCache(config=net.config)
    net.model(torch.tensor([asked[0][:shared]], device=net.device), past_key_values=prefix, use_cache=True)
    scale = torch.tensor(temperatures, device=net.device).repeat_interleave(draws)
    batch = max(1, rows // len(scale))
    answers = []
    for first in range(0, len(asked), batch):
        rest = [tokens[shared:] for tokens in asked[first : first + batch]]
        answers += _batch(net, deepcopy(prefix), rest, scale, end, steps)
    return answers


def _batch(
    net: LlamaForCausalLM,
    cache: DynamicCache,
    rest: Sequence[Tokens],
    scale: torch.Tensor,
    end: int,
    steps: int,
) -> list[list[Answer]]:
    """Sample for a few questions at once; finished rows are removed."""
    shared, longest = cache.get_seq_length(), max(map(len, rest))
    ids = torch.tensor([(0,) * (longest - len(tokens)) + tokens for tokens in rest], device=net.device)
    mask = torch.tensor(
        [[1] * shared + [0] * (longest - len(tokens)) + [1] * len(tokens) for tokens in rest],
        device=net.device,
    )
    cache.batch_repeat_interleave(len(rest))
    logits = _forward(net, cache, ids, mask)
    cache.batch_repeat_interleave(len(scale))
    logits, mask = (one.repeat_interleave(len(scale), dim=0) for one in (logits, mask))
    scale = scale.repeat(len(rest))[:, None]
    rows = torch.arange(len(scale), device=net.device)
    drawn: list[list[tuple[int, float]]] = [[] for _ in rows]
    for _ in range(steps):
        log_probs = torch.log_softmax(logits.float() / scale[rows], dim=-1)
        token = torch.multinomial(log_probs.exp(), 1)
        chosen = log_probs.gather(1, token)[:, 0]
        for row, *one in zip(rows.tolist(), token[:, 0].tolist(), chosen.tolist(), strict=True):
            drawn[row].append((one[0], one[1]))
        left = (token[:, 0] != end).nonzero()[:, 0]
        if len(left) == 0 or len(drawn[rows[left[0]]]) == steps:
            break
        if len(left) < len(rows):
            cache.batch_select_indices(left)
        rows, token, mask = rows[left], token[left], mask[left]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        logits = _forward(net, cache, token, mask)
    answers = [_answer(tokens) for tokens in drawn]
    each = len(answers) // len(rest)
    return [answers[i : i + each] for i in range(0, len(answers), each)]


def _forward(
    net: LlamaForCausalLM, cache: DynamicCache, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the logits after the last token of each row (N, V)."""
    positions = (mask.cumsum(dim=1) - 1)[:, -ids.shape[1] :].clamp(min=0)
    out = net(
        ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return out.logits[:, -1]


def _answer(drawn: Sequence[tuple[int, float]]) -> Answer:
    return tuple(token for token, _ in drawn), tuple(log_prob for _, log_prob in drawn)
