"""The rules of the authors' code, as spec.md and analyses.md list them, written down as plainly as can be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from semcal.text.normal_form import normal_form

Same = Callable[[str, str], bool]


def at(temperature: float, answers: Mapping[str, float]) -> dict[str, float]:
    """Whole answers that part at their first word, at a temperature."""
    powers = {answer: p ** (1 / temperature) for answer, p in answers.items()}
    return {answer: power / sum(powers.values()) for answer, power in powers.items()}


def kept_by_top_k_and_top_p(distribution: Mapping[str, float]) -> dict[str, float]:
    """The 50 likeliest; of these, renormalised, all before which less than 0.9 stands."""
    likeliest = sorted(distribution, key=lambda answer: -distribution[answer])[:50]
    total = sum(distribution[answer] for answer in likeliest)
    kept, before = [], 0.0
    for answer in likeliest:
        if before < 0.9:
            kept.append(answer)
        before += distribution[answer] / total
    return {answer: p for answer, p in distribution.items() if answer in kept}


def components(forms: Sequence[str], same: Same) -> list[list[int]]:
    """Everything that can be reached by steps between answers that entail each other."""
    found: list[list[int]] = []
    for start in range(len(forms)):
        if any(start in cluster for cluster in found):
            continue
        reached, waiting = {start}, [start]
        while waiting:
            here = waiting.pop()
            for other in range(len(forms)):
                if same(forms[here], forms[other]) and other not in reached:
                    reached.add(other)
                    waiting.append(other)
        found.append(sorted(reached))
    return found


def greedy(forms: Sequence[str], same: Same) -> list[list[int]]:
    """Each answer joins the first cluster whose first member it is equivalent to (Kuhn et al.)."""
    found: list[list[int]] = []
    for here, form in enumerate(forms):
        cluster = next((one for one in found if same(forms[one[0]], form)), None)
        if cluster is None:
            found.append([here])
        else:
            cluster.append(here)
    return found


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best[i + 1][j + 1] = best[i][j] + 1 if x == y else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


def rule_of(prediction: str, reference: str) -> str:
    """The authors' rules on normal forms, with nothing that guards numerals."""
    a, b = normal_form(prediction), normal_form(reference)
    if not a or not b:
        return "empty"
    words = a.split(), b.split()
    total = len(words[0]) + len(words[1])
    if a == b:
        return "equality"
    if f" {b} " in f" {a} ":
        return "containment"
    if 100 * 2 * common(a, b) >= 90 * (len(a) + len(b)):
        return "fuzzy"
    if 2 * (Counter(words[0]) & Counter(words[1])).total() > 0.5 * total:
        return "F1"
    return "ROUGE-L" if 20 * common(*words) > 3 * total else "none"


def graded_members(
    cluster: Sequence[int], likelihoods: Sequence[float], seed: int, id: str
) -> tuple[int, ...]:
    """The most likely member and one more, drawn by its hash."""

    def rank(member: int) -> bytes:
        return blake2b(repr((seed, id, None, member)).encode(), digest_size=16).digest()

    likeliest = max(cluster, key=likelihoods.__getitem__)
    return (likeliest, *sorted((one for one in cluster if one != likeliest), key=rank)[:1])


def trained(answers: Mapping[str, float], right: str, *, steps: int, rising: int) -> float:
    """T after AdamW on log T by NLL of one answer and its end of turn, cosine after a linear rise."""
    log_t, first, second = 0.0, 0.0, 0.0
    logits = {answer: math.log(p) for answer, p in answers.items()}
    for step in range(1, steps + 1):
        t = math.exp(log_t)
        p = at(t, answers)
        mean = sum(p[answer] * logit for answer, logit in logits.items())
        slope = (logits[right] - mean) / t / 2  # d NLL / d log T; the end of turn is certain
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        done = step - 1
        rate = 1e-4 * (
            step / rising
            if done < rising
            else (1 + math.cos(math.pi * (done - rising) / (steps - rising))) / 2
        )
        log_t -= rate * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return math.exp(log_t)


def ace_as_the_rows_come(pairs: Sequence[tuple[float, bool]]) -> float:
    """Fifteen bins of sorted rows, ties as they come, every bin counting the same."""
    ordered = sorted(pairs, key=lambda pair: pair[0])
    sizes = [len(ordered) // 15 + (k < len(ordered) % 15) for k in range(min(15, len(ordered)))]
    edges = np.cumsum([0, *sizes]).tolist()
    parts = [ordered[a:b] for a, b in pairwise(edges)]
    gaps = [abs(sum(c for _, c in part) - sum(p for p, _ in part)) / len(part) for part in parts]
    return sum(gaps) / len(gaps)


def auroc_or_a_half(pairs: Sequence[tuple[float, bool]]) -> float:
    right = [p for p, correct in pairs if correct]
    wrong = [p for p, correct in pairs if not correct]
    won = [(a > b) + (a == b) / 2 for a in right for b in wrong]
    return sum(won) / len(won) if won else 0.5
