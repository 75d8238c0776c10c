"""Time of the normal form and the first answer of a short text, as a Markdown table.

    python -m benchmarks.text

With SEMCAL_DATA, real answers are timed as well: references of NQ-Open and TriviaQA, and longer answers of
language models. CPU time of one thread, best of several rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks import NotRun, data_folder
from semcal.files import read_rows
from semcal.meaning.answer import first_answer
from semcal.text.normal_form import normal_form

ROUNDS, AT_LEAST = 7, 4000
QUICK = {"ROUNDS": 1, "AT_LEAST": 40}

MADE_UP = {
    "name": ["Ana Velis", "The Republic of Maldia", "Toreth-on-Sea", "the Battle of Orlin's Ford"],
    "name, not ASCII": ["Señor Ibáñez", "Łódź", "the “Blue” Danube", "Orlin’s Ford"],
    "figures": ["1984", "3.14", "1,234,567", "Apollo 11"],
    "number words": ["twenty-one", "nineteen eighty-four", "Seven and a half million", "the sixth century"],
    "date": ["July 4, 1776", "4 July 1776", "in March 1921", "19/12/1988"],
}


def microseconds(function: Callable[[str], object], texts: Sequence[str]) -> float:
    """Return the CPU time of one call, in microseconds."""
    texts = list(texts) * (1 + AT_LEAST // len(texts))
    best = float("inf")
    for _ in range(ROUNDS):
        start = process_time()
        for text in texts:
            function(text)
        best = min(best, process_time() - start)
    return best / len(texts) * 1e6


def real_answers(folder: Path) -> dict[str, list[str]]:
    """Return references and models' answers, at most 4,000 of each."""
    found = {}
    for name, file, key in (
        ("references, NQ-Open", "nq_open_dev_sample", "answers"),
        ("references, TriviaQA", "triviaqa_dev_sample", "answers"),
        ("answers of language models", "evouna_a", "answer"),
    ):
        rows = (row.data[key] for row in read_rows(folder / f"{file}.jsonl.gz"))
        texts = [text for value in rows for text in ([value] if isinstance(value, str) else value or [])]
        found[name] = texts[:AT_LEAST]
    return found


def results() -> list[dict[str, Any]]:
    """Return one row for each kind of texts."""
    texts, lacking = dict(MADE_UP), []
    try:
        texts |= real_answers(data_folder())
    except NotRun as needs:
        lacking.append({"texts": f"real answers: {needs}"})
    return [
        {
            "texts": name,
            "mean length": sum(map(len, some)) / len(some),
            "normal form (µs)": microseconds(normal_form, some),
            "first answer (µs)": microseconds(first_answer, some),
        }
        for name, some in texts.items()
    ] + lacking


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
