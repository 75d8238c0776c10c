"""What the commands are asked: questions of the embedded sets, of the fake server, and made-up samples."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from semcal.demo.questions import load_set
from tests.servers.fake_model import ANSWERS

Row = Mapping[str, Any]


def write_rows(name: str, rows: Iterable[Row]) -> str:
    """Write rows as JSON Lines into the working directory, and return the name of the file."""
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def write_questions(name: str, part: str, count: int, dataset: str = "atlas-rare") -> str:
    """Write questions of a part of an embedded set, by default those that the model knows badly."""
    return write_rows(name, questions_of(part, count, dataset))


def questions_of(part: str, count: int, dataset: str = "atlas-rare") -> list[dict[str, Any]]:
    """The first questions of a part of an embedded set, as rows."""
    questions = map(dataclasses.asdict, getattr(load_set(dataset), part)[:count])
    rows = [{k: v for k, v in row.items() if v not in (None, {}, False)} for row in questions]
    return [{**row, **row.pop("extra", {})} for row in rows]


def served_questions() -> list[dict[str, Any]]:
    """The questions that the fake server's model was made for, with its likeliest answer as reference."""
    return [
        {"id": f"q{number}", "question": question, "answers": [max(answers, key=lambda text: answers[text])]}
        for number, (question, answers) in enumerate(ANSWERS.items())
    ]


def mill_questions(count: int) -> list[dict[str, Any]]:
    """Questions that the fake server answers by their hash; right are the likeliest of its answers."""
    right = [answer for row in served_questions() for answer in row["answers"]]
    asked = (f"Who built mill {number}?" for number in range(count))
    return [{"id": f"mill{i}", "question": text, "answers": right} for i, text in enumerate(asked)]


def made_up_samples(count: int, *, draws: int = 6) -> Iterator[dict[str, Any]]:
    """Samples of a system that is right less often than its answers agree; two questions are a group."""
    rng = Random(5)
    for number in range(count):
        share = rng.betavariate(1, 0.5)
        answers = [
            "Ana Velis" if rng.random() < share else f"Bo Tarn {rng.randrange(4)}" for _ in range(draws)
        ]
        yield {
            "id": f"q{number}",
            "question": f"Who built mill {number}?",
            "samples": answers,
            "log_likelihoods": [round(-rng.expovariate(3), 4) for _ in answers],
            "answers": ["Ana Velis" if rng.random() < share**3 else "Nobody"],
            "group": f"g{number // 2}",
        }
