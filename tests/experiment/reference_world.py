"""A made-up open-book world under the rules of the paper's published code (docs/paper.md).

What is stored, and a model that does read passages.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import mill_grid as mills

from semcal.experiment.grid import Grid
from semcal.experiment.grid_settings import GridSettings, settings_of
from semcal.experiment.grid_steps import GridState
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.protocols import Prompt
from semcal.text.normal_form import normal_form
from semcal.workers import SerialExecutor

#: Sixty names, more than a top-k of 50 leaves.
NAMES = tuple(f"{a}{b}o".capitalize() for a in ("ba", "de", "ki", "lu", "mo", "sa") for b in "bdfgklmnrt")
LONG = "Up the hill and down the dale past every old mill."
GARDEN = {"Cy Ana.": 0.2, "Cy Eva.": 0.2, "Bo.": 0.35, "Di.": 0.25}
#: Names that the judge holds for one in pairs, so that three of them hang together by the second alone.
CHAIN = ({"babo", "bado"}, {"bado", "bafo"})
ONE_WAY = ("bago", "bako")
CALIBRATION = {"Babo.": 0.6, "Bado.": 0.3, "Bafo.": 0.1}
#: What the published code does otherwise than preset `sound`.
PUBLISHED: dict[str, dict[str, Any]] = {
    "sampling": {
        "max_new_tokens": {"closed_book": 10, "open_book": 10},
        "top_k": 50,
        "top_p": 0.9,
        "scored_in": "prompt without passage",
    },
    "fitting": {"solver": "sgd", "warm_up": 0.05},
    "selection": {"by": "brier"},
    "grading": {"numerals": False, "rouge_l": 0.3, "members": 2, "choice": "likeliest", "vanilla": "beam"},
    "evaluation": {"ace": "reference", "auroc_one_class": 0.5},
}
COUNTS = {"calibration_train": 80, "validation": 6, "few_shot": 1}
TEST = 20


def falling(number: int, *, read: bool) -> dict[str, float]:
    """Probabilities of all names: eight that fall at the question's own rate, and a tail of equal ones."""
    rate = 0.6 + 0.02 * number
    falls = [rate**place for place in (range(8) if read else reversed(range(8)))]
    weights = [*falls, *[0.01 + 0.0001 * place for place in range(8, len(NAMES))]]
    return {f"{name}.": weight / sum(weights) for name, weight in zip(NAMES, weights)}


def question(kind: str, number: int) -> str:
    return f"Who built {kind} {number}?"


def passage(kind: str, number: int) -> str:
    return f"Of {kind} {number} much is told."


def answers_of(kind: str, number: int, *, read: bool) -> Mapping[str, float]:
    """What the model answers, with the passage before it and without."""
    if kind == "mill":
        return CALIBRATION
    if number == 0:
        return GARDEN
    if number == 1:
        return {LONG: 0.7, "Bo.": 0.3} if read else {LONG: 0.2, "Bo.": 0.8}
    return falling(number, read=read)


def content(kind: str, number: int, *, read: bool) -> str:
    """The user's turn."""
    asked = f"Question: {question(kind, number)}"
    return f"Context: {passage(kind, number)}\n\n{asked}" if read else asked


class Reader(FakeLanguageModel):
    """A table of answers to whole turns, passage and question together."""

    def _question(self, prompt: Prompt) -> str:
        marks = [place for place, token in enumerate(prompt.token_ids) if token >= 256]
        return self._text(prompt.token_ids[marks[-3] + 1 : marks[-2]])


@cache
def model() -> Reader:
    which = [("mill", n) for n in range(sum(COUNTS.values()))] + [("barn", n) for n in range(TEST)]
    table = {
        content(kind, number, read=read): answers_of(kind, number, read=read)
        for kind, number in which
        for read in (True, False)
    }
    return Reader({"": falling(0, read=True), **table})  # all names come first, in the order of `NAMES`


def write_questions(path: Path, kind: str, count: int) -> str:
    rows = [
        {
            "id": f"{kind}{n}",
            "question": question(kind, n),
            "context": passage(kind, n),
            "answers": ["Babo"] if kind == "mill" else [NAMES[n % 3]],
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def settings(folder: Path, rules: str = "published") -> GridSettings:
    """What a preset or the published code resolves to, on two files of questions."""
    published = PUBLISHED if rules == "published" else {}
    given: dict[str, Any] = {
        **published,
        "preset": "sound" if published else rules,
        "models": [{"name": "one", "path": "one"}],
        "datasets": [
            {
                "name": "barn",
                "source": write_questions(folder / "mill.jsonl", "mill", sum(COUNTS.values())),
                "test_source": write_questions(folder / "barn.jsonl", "barn", TEST),
                "test": TEST,
                **COUNTS,
            }
        ],
        "equivalence": "fake",
        "methods": ["Base", "SE", "TS"],
        "sampling": {**published.get("sampling", {}), "counts": []},
        "evaluation": {**published.get("evaluation", {}), "resamples": 100},
        "block": 8,
    }
    return settings_of(given, ())


def run(folder: Path, rules: str = "published") -> GridSettings:
    """Run the world under the rules of a preset, or of the published code."""
    chosen = settings(folder, rules)
    state = GridState(folder, lambda _: model(), lambda _: FakeEquivalence(CHAIN, entailments=[ONE_WAY]))
    Grid(chosen, folder, SerialExecutor(state), mills.silent).run()
    return chosen


# ---- The rules of the authors' code, written down as plainly as can be -------------------------------------

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
