"""Tiny random language models in the engine, and the log-probabilities that plain transformers gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import tiny_models
import torch

from semcal.models import CausalLanguageModel, Generation, Prompt
from semcal.models.protocols import SampleRequest
from semcal.recalibration import ATS, BlockShape

#: Family and options of its configuration: heads that do more than multiply, and local attention, among them.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tied": True}),
    "mistral sliding": ("mistral", {"sliding_window": 3}),
    "qwen2 partly sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tied": False}),
    "opt": ("opt", {}),
    "gemma2 soft-capped": (
        "gemma2",
        {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0, "sliding_window": 9},
    ),
    "cohere scaled": ("cohere", {}),
    "granite scaled": ("granite", {}),
}
#: Prompts that begin alike and have tails of several lengths.
PROMPTS = [Prompt(f"q{i}", (*range(20, 45), *range(100 + 7 * i, 104 + 9 * i))) for i in range(6)]


@cache
def network(variant: str = "llama") -> Any:
    family, options = VARIANTS[variant]
    return tiny_models.model(family, **options)


@cache
def language_model(
    variant: str = "llama", *, plain: bool = False, budget: int | None = None
) -> CausalLanguageModel:
    """A model of a variant; `plain` runs without the engine's attention."""
    model = CausalLanguageModel(network(variant), tiny_models.tokenizer(), name=variant, memory_budget=budget)
    if plain:
        model.network.patched = None
    return model


def sample(
    model: CausalLanguageModel, methods: Sequence[Any], prompts: Sequence[Prompt] = PROMPTS, **how: Any
) -> list[list[list[Generation]]]:
    """The draws of one run: [recalibrator][prompt][number]."""
    return model.sample(SampleRequest(prompts, recalibrators=methods, **how))[0]


def flat(draws: Any) -> list[Generation]:
    """All draws of lists of lists."""
    return [draws] if isinstance(draws, Generation) else [one for inner in draws for one in flat(inner)]


def token_ids(draws: Any) -> list[tuple[int, ...]]:
    return [draw.token_ids for draw in flat(draws)]


def assert_same(found: Any, expected: Any, within: float = 1e-4) -> None:
    """The same draws, whose log-probabilities differ by rounding at most."""
    assert token_ids(found) == token_ids(expected)
    for one, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, rtol=0, atol=within)


def plain_log_probs(
    variant: str, before: Sequence[int], answer: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Each answer token's log-probability from one full forward pass of plain transformers."""
    ids = torch.tensor([[*before, *answer]])
    with torch.no_grad():
        logits = network(variant)(ids, attention_mask=torch.ones_like(ids)).logits[0]
    log_probs = (logits.double() / temperature).log_softmax(-1)[len(before) - 1 :]
    return [float(log_probs[i, token]) for i, token in enumerate(answer)]


def assert_plain(variant: str, prompts: Sequence[Prompt], draws: Any, temperature: float = 1.0) -> None:
    """The draws of each prompt have the log-probabilities of a plain forward pass."""
    for prompt, of_prompt in zip(prompts, draws, strict=True):
        for draw in set(of_prompt):
            expected = plain_log_probs(variant, prompt.token_ids, draw.token_ids, temperature)
            np.testing.assert_allclose(draw.token_log_probs, expected, rtol=0, atol=1e-4)


@cache
def ats(variant: str = "llama", seed: int = 0) -> ATS:
    """An ATS whose temperatures differ from position to position."""
    shape = BlockShape(language_model(variant).width, 48, heads=4, key_value_heads=2, head_dim=8)
    found, generator = ATS(shape, seed=seed).requires_grad_(False), torch.Generator().manual_seed(seed)
    for weight in found.parameters():
        if weight.ndim == 2:
            weight.normal_(0, 0.1, generator=generator)
    found.readout.bias.fill_(0.2)
    return found


class Counted:
    """A tiny model, and how often its body ran on how many tokens."""

    def __init__(
        self,
        family: str = "llama",
        *,
        template: str | None = tiny_models.TEMPLATE,
        plain: bool = False,
        budget: int | None = None,
    ) -> None:
        model, tokenizer = tiny_models.model(family), tiny_models.tokenizer(template=template)
        self.calls = self.tokens = 0
        self.model = CausalLanguageModel(model, tokenizer, name="tiny", memory_budget=budget)
        if plain:
            self.model.network.patched = None
        model.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, _: object, inputs: tuple[Any]) -> None:
        self.calls += 1
        self.tokens += inputs[0].numel()

    def of(self, job: Callable[[CausalLanguageModel], Any]) -> tuple[int, int, Any]:
        """Calls and tokens of a job, and what it returns."""
        calls, tokens = self.calls, self.tokens
        found = job(self.model)
        return self.calls - calls, self.tokens - tokens, found
