"""A made-up open-book world under the rules of the paper's published code (docs/paper.md).

What is stored, and a model that does read passages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mill_grid as mills

from semcal.experiment.fit_steps import GridState
from semcal.experiment.grid import Grid
from semcal.experiment.grid_settings import GridSettings, settings_of
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.protocols import Prompt
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
