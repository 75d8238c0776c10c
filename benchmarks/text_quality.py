"""The normal form measured on public answers, as Markdown tables.

    SEMCAL_DATA=<folder> python -m benchmarks.text_quality [--show N] [--seed S]

The folder holds golden strings (`golden_text.json`), number pairs and groups of written forms, and samples
of SQuAD, NQ-Open and TriviaQA. `--show N` prints N random answers that became a date, and N that number words
changed, for a reader. docs/meaning-evidence.md explains the tables.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import data_folder
from semcal.files import read_rows
from semcal.text.normal_form import normal_form
from semcal.text.numbers import read_numbers

SAMPLES = {"squad": "SQuAD", "nq_open": "NQ-Open", "triviaqa": "TriviaQA"}
QUICK: dict[str, Any] = {}

_NUMBER = re.compile(r"(?<![0-9])-?[0-9]+(?:\.[0-9]+)?")
_ISO = re.compile(r"(?<![0-9-])[0-9]{4}-[0-9]{2}(?:-[0-9]{2})?(?![0-9-])")
_MONTH = r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\.?"
_WRITTEN = {
    "already in this form": re.compile(r"[0-9]{4}-[0-9]{2}"),
    "figures": re.compile(r"[0-9]+[/.-][0-9]+[/.-][0-9]+"),
    "month day, year": re.compile(rf"{_MONTH},? (?:the )?[0-9a-z]{{1,6}},? (?:of )?[0-9]{{4}}"),
    "day month year": re.compile(rf"[0-9a-z]{{1,6}} (?:of )?{_MONTH},? (?:of )?[0-9]{{4}}"),
    "year month day": re.compile(rf"[0-9]{{4}},? {_MONTH} [0-9]+"),
    "month year": re.compile(rf"{_MONTH},? (?:of )?[0-9]{{4}}"),
}


def quick_runs(_: Path) -> list[list[str]]:
    return [["--show", "1"]]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_quality")
    parser.add_argument("--show", type=int, default=0, help="number of changed answers to print")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    folder = data_folder()
    answers = [(name, answer) for name in SAMPLES for answer in sample_answers(folder, name)]
    for title, lines in (
        ("Written forms of one value", targets_table(folder)),
        ("Answers that became a date", dates_table(answers)),
        ("Answers that changed by reading numbers", numbers_table(answers)),
    ):
        print(f"### {title}\n", *lines, "", sep="\n")
    show([answer for _, answer in answers if became_date(answer)], options.show, options.seed)
    show([answer for _, answer in answers if number_kind(answer)], options.show, options.seed)


def show(answers: list[str], n: int, seed: int) -> None:
    for answer in random.Random(seed).sample(answers, min(n, len(answers))):
        print(repr(answer), "->", normal_form(answer))


def _table(head: list[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return a Markdown table with words in the first column and numbers in the others."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


# Written forms of one value


def targets_table(folder: Path) -> list[str]:
    rows = []
    for name, right in (
        ("golden strings: one normal form, every number in it", golden_verdicts(folder)),
        ("number pairs: equal or not", pair_verdicts(folder)),
        ("groups: every form in words is one in digits", group_verdicts(folder)),
    ):
        rows.append([name, len(right), sum(right), f"{sum(right) / len(right):.4f}"])
    return _table(["what", "n", "right", "share"], rows)


def golden_verdicts(folder: Path) -> list[bool]:
    cases = json.loads((folder / "golden_text.json").read_text(encoding="utf-8"))["cases"]
    return [_is_golden(case) for case in cases]


def _is_golden(case: dict[str, Any]) -> bool:
    form = normal_form(case["text"])
    stands = all(number in form for number in _NUMBER.findall(case["canonical"]))
    return form == normal_form(case["canonical"]) and stands and (case["iso"] or "") in form


def pair_verdicts(folder: Path) -> list[bool]:
    rows = _rows(folder / "number_pairs_a.jsonl.gz")
    return [(normal_form(row["a"]) == normal_form(row["b"])) == row["equal"] for row in rows]


def group_verdicts(folder: Path) -> list[bool]:
    rows = [row for row in _rows(folder / "date_number_groups_a.jsonl.gz") if row["kind"] == "digits=words"]
    return [set(map(normal_form, row["words"])) <= set(map(normal_form, row["digits"])) for row in rows]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for row in read_rows(path):
        yield row.data


# Answers that change


def sample_answers(folder: Path, name: str) -> Iterator[str]:
    """Return the distinct answers of all questions in the training and development samples of a data set."""
    for split in ("train", "dev"):
        for row in _rows(folder / f"{name}_{split}_sample.jsonl.gz"):
            yield from dict.fromkeys(row["answers"])


def became_date(answer: str) -> str | None:
    """Return the first date in the normal form of an answer, if there is one."""
    found = _ISO.search(normal_form(answer))
    return found[0] if found else None


def date_kind(answer: str) -> tuple[str, str]:
    """Return the written form of the date in an answer, and whether it is the whole answer."""
    text = " ".join(answer.casefold().split())
    kind = next((name for name, pattern in _WRITTEN.items() if pattern.search(text)), "other")
    return kind, "alone" if _ISO.fullmatch(normal_form(answer)) else "among other words"


def dates_table(answers: list[tuple[str, str]]) -> list[str]:
    counts = Counter((name, *date_kind(answer)) for name, answer in answers if became_date(answer))
    return _counts_table(counts, [*_WRITTEN, "other"], Counter(name for name, _ in answers))


def number_kind(answer: str) -> tuple[str, str] | None:
    """Return the change by the reading of numbers in an answer, if any, and whether that is all of it."""
    folded = " ".join(answer.casefold().split())
    if read_numbers(folded) == folded:
        return None
    form = normal_form(answer)
    alone = "alone" if re.fullmatch(r"[$£€]?-?[0-9./:-]+(?:st|nd|rd|th|s|%)?", form) else "among other words"
    if re.search(r"[0-9]", folded):
        scale = re.search(r"[0-9 -](thousand|million|billion|trillion|quintillion|bn|mn)\b|[0-9]m\b", folded)
        return ("quantity" if scale else "digits: separator, per cent, mixed fraction"), alone
    return (
        "ordinal or decade" if re.search(r"[0-9](?:st|nd|rd|th|s)\b", form) else "cardinal or year"
    ), alone


def numbers_table(answers: list[tuple[str, str]]) -> list[str]:
    kinds = ((name, number_kind(answer)) for name, answer in answers)
    counts = Counter((name, *kind) for name, kind in kinds if kind)
    order = [
        "cardinal or year",
        "ordinal or decade",
        "quantity",
        "digits: separator, per cent, mixed fraction",
    ]
    return _counts_table(counts, order, Counter(name for name, _ in answers))


def _counts_table(counts: Counter[tuple[str, str, str]], kinds: list[str], totals: Counter[str]) -> list[str]:
    """Return counts by kind, for each data set "alone + among other words"."""
    rows = [
        [
            kind,
            *(
                f"{counts[name, kind, 'alone']} + {counts[name, kind, 'among other words']}"
                for name in SAMPLES
            ),
        ]
        for kind in kinds
        if any((name, kind, place) in counts for name in SAMPLES for place in ("alone", "among other words"))
    ]
    rows.append(["all", *(sum(n for key, n in counts.items() if key[0] == name) for name in SAMPLES)])
    rows.append(["of answers", *(totals[name] for name in SAMPLES)])
    return _table(["written as (alone + among other words)", *SAMPLES.values()], rows)


if __name__ == "__main__":
    main(sys.argv[1:])
