"""Synthetic calibration sets: random states, a random head, answers drawn from it at a known temperature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.models.features import Head
from semcal.recalibration import FitFeatures


@dataclass(frozen=True)
class Made:
    """A calibration set, the head that reads it, and the logits of its tokens."""

    features: FitFeatures
    head: Head
    logits: Tensor


def made(
    seed: int = 0,
    *,
    questions: int = 12,
    references: int = 1,
    tokens: int = 4,
    vocabulary: int = 40,
    width: int = 16,
    prefix: int = 5,
    prompt: int = 3,
    temperature: float = 1.5,
    spread: float = 3.0,
    whole: bool = True,
) -> Made:
    """Answers of 1 to `tokens` tokens, 1 to `references` for each question, own prompts of 1 to `prompt`."""
    g = torch.Generator().manual_seed(seed)

    def up_to(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=g))

    prompt_start, prompt_length, answer_question, answer_start, counts = [], [], [], [], []
    at = 0
    for question in range(questions):
        prompt_start.append(at)
        prompt_length.append(up_to(prompt) if whole else 1)
        at += prompt_length[-1]
        for _ in range(up_to(references)):
            answer_question.append(question)
            answer_start.append(at)
            counts.append(up_to(tokens))
            at += counts[-1] - 1
    weight = torch.randn(vocabulary, width, generator=g) * spread / width**0.5
    target_start = torch.tensor([0, *counts]).cumsum(0)
    blank = FitFeatures(
        prefix=torch.randn(prefix if whole else 0, width, generator=g),
        states=torch.randn(at, width, generator=g),
        whole=whole,
        prompt_start=torch.tensor(prompt_start),
        prompt_length=torch.tensor(prompt_length),
        answer_question=torch.tensor(answer_question),
        answer_start=torch.tensor(answer_start),
        target_start=target_start,
        targets=torch.zeros(int(target_start[-1]), dtype=torch.long),
    )
    logits = blank.states[blank.predicting_rows()] @ weight.T
    p = torch.softmax(logits / temperature, 1)
    blank.targets[:] = torch.multinomial(p, 1, generator=g)[:, 0]
    return Made(blank, lambda states: states.float() @ weight.T, logits)


def flat(logits: Tensor, targets: list[int], tokens: int = 1) -> Made:
    """One question for each `tokens` rows of logits, which are their own states."""
    n, index = len(logits) // tokens, torch.arange(len(logits) // tokens)
    features = FitFeatures(
        prefix=logits[:0],
        states=logits,
        whole=False,
        prompt_start=index * tokens,
        prompt_length=torch.ones(n, dtype=torch.long),
        answer_question=index,
        answer_start=index * tokens + 1,
        target_start=torch.arange(n + 1) * tokens,
        targets=torch.tensor(targets),
    )
    return Made(features, lambda states: states.float(), logits)
