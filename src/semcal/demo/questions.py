"""The question sets of Atlas: trivia, rare and reading, each in parts with disjoint facts.

`tools/atlas` in the repository generates the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from semcal.data.question import Question
from semcal.errors import UsageError

SIZES = {"calibration_train": 2000, "validation": 500, "test": 500}
#: Set → the sizes of its parts, in the order of its file.
PARTS = {
    "atlas-trivia": {"few_shot": 10, **SIZES},
    "atlas-rare": {"few_shot": 10, **SIZES},
    "atlas-reading": {"few_shot": 4, **SIZES},
}
SETS = tuple(PARTS)


@dataclass(frozen=True)
class QuestionSet:
    """One set of questions; no two questions of all parts ask for the same fact.

    The form of the first reference is random. The `extra` of a question names the relation and, closed book,
    the frequency and the truth of the fact in the training text.
    """

    name: str
    open_book: bool  # whether every question has a passage
    few_shot: tuple[Question, ...]
    calibration_train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]


@cache
def load_set(name: str) -> QuestionSet:
    """Read a question set.

    Parameters
    ----------
    name : {"atlas-trivia", "atlas-rare", "atlas-reading"}

    Raises
    ------
    UsageError
        If the name is unknown.

    Examples
    --------
    >>> atlas = load_set("atlas-reading")
    >>> len(atlas.few_shot), len(atlas.calibration_train), len(atlas.validation), len(atlas.test)
    (4, 2000, 500, 500)
    """
    if name not in SETS:
        raise UsageError(f"unknown question set {name!r} of Atlas. Use one of {', '.join(SETS)}.")
    lines = Path(__file__).with_name(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    questions = map(_question, lines)
    parts = (tuple(islice(questions, size)) for size in PARTS[name].values())
    return QuestionSet(name, name == "atlas-reading", *parts)


def _question(line: str) -> Question:
    row = json.loads(line)
    fields = row.pop("id"), row.pop("question"), tuple(row.pop("answers")), row.pop("context", None)
    return Question(*fields, extra=row)
