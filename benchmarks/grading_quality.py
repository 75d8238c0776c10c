"""Grading and clustering measured against human judgements, as Markdown tables.

    SEMCAL_DATA=<folder> python -m benchmarks.grading_quality [--verdicts FILE] [--against FILE] [--show]
    SEMCAL_DATA=<folder> python -m benchmarks.grading_quality --judged FILE --draws FILE [--show]

`--verdicts` stores the verdict on each answer, `--against` compares with verdicts of another version of
semcal (PYTHONPATH=<version>/src), and `--show` prints the answers with changed verdicts. `--judged` are
verdicts by hand on sampled answers (benchmarks/judged/answers.jsonl: set, id, answer_sha256, correct), whose
texts are in `--draws`; without them, the answers of the folder are used. The folder has judged answers as
JSON Lines (`evouna_a`, `nq301_human_a`, `contextsl_human_a`) and labeled pairs
(`equivalence_pairs_from_labels_a`). docs/meaning-evidence.md explains the tables.
"""

from __future__ import annotations

import argparse
import json
import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import data_folder
from semcal.errors import RowError
from semcal.files import read_rows, write_rows
from semcal.grading.rules import RULES, RuleGrader, squad_f1
from semcal.text.normal_form import normal_form
from semcal.text.values import values_differ

SOURCES = {
    "nq_open": "NQ",
    "triviaqa": "TriviaQA",
    "coqa_new": "CoQA",
    "nq_open_new": "NQ",
    "triviaqa_new": "TriviaQA",
}
SYSTEMS = {
    "fid": "FiD",
    "gpt35": "GPT-3.5",
    "chatgpt": "ChatGPT",
    "gpt4": "GPT-4",
    "newbing": "BingChat",
    "llama2-13b": "Llama-2-13B",
    "gemma-7b": "Gemma-7B",
    "mistralai/Mistral-7B-v0.1": "Mistral-7B",
}
_ARTICLES = re.compile(r"\b(a|an|the)\b")
QUICK: dict[str, Any] = {}
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Judged:
    """One system's answer to one question, and the verdict of a human."""

    group: str
    system: str
    question: str
    answer: str
    references: tuple[str, ...]
    correct: bool


Verdict = Callable[[Judged], bool]


@dataclass(frozen=True)
class Tally:
    """The agreement of a grader with the humans."""

    n: int
    false_positives: int
    false_negatives: int

    @property
    def agreement(self) -> float:
        return 1 - (self.false_positives + self.false_negatives) / self.n


def quick_runs(folder: Path) -> list[list[str]]:
    verdicts, judged, draws = (
        str(folder / name) for name in ("verdicts.json", "judged.jsonl", "draws.jsonl")
    )
    name = "nq_open_dev_sample"
    asked = list(islice(rows_of(data_folder() / f"{name}.jsonl.gz"), 3))
    write_rows(Path(draws), ({"id": row["id"], "samples": row["answers"][:1]} for row in asked))
    hashes = {row["id"]: sha256(row["answers"][0].encode()).hexdigest()[:16] for row in asked}
    by_hand = {"set": name, "model": "atlas", "correct": True}
    write_rows(Path(judged), (by_hand | {"id": id, "answer_sha256": text} for id, text in hashes.items()))
    by_draws = ["--judged", judged, "--draws", draws, "--show"]
    return [[], ["--verdicts", verdicts], ["--against", verdicts, "--show"], by_draws]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grading_quality")
    parser.add_argument("--verdicts", type=Path, help="file for the verdicts")
    parser.add_argument("--against", type=Path, help="file of verdicts for comparison")
    parser.add_argument("--show", action="store_true", help="print the answers with changed verdicts")
    parser.add_argument(
        "--judged", type=Path, help="file of answers judged by hand, by the hash of their text"
    )
    parser.add_argument("--draws", type=Path, action="append", help="file of samples with their texts")
    options = parser.parse_args(arguments)
    folder = data_folder()
    if options.judged:
        rows = list(hand_judged(folder, options.judged, options.draws or ()))
        print(f"{len(rows)} answers judged by hand\n", *question_table(rows), sep="\n")
        if options.show:
            print(*echoes(rows), sep="\n")
        return
    rows = list(judged_rows(folder))
    if options.verdicts or options.against:
        grader = RuleGrader()
        grades = [grader.grade(row.question, [row.answer], row.references) for row in rows]
        verdicts = [[grade.correct, grade.rule] for grade in grades]
        if options.verdicts:
            options.verdicts.write_text(json.dumps(verdicts), encoding="utf-8")
        if options.against:
            before = json.loads(options.against.read_text(encoding="utf-8"))
            print(*changes_table(rows, before, verdicts, show=options.show), sep="\n")
        return
    for title, lines in (
        ("Agreement with the humans", agreement_table(rows)),
        ("Grading with and without the question", question_table(rows)),
        ("Each rule alone, and one after another", rules_table(rows)),
        ("Labeled pairs: joined by normal form, separated by values", pairs_table(folder)),
    ):
        print(f"### {title}\n", *lines, "", sep="\n")


# The judged answers


def judged_rows(folder: Path) -> Iterator[Judged]:
    """Return every answer with a clear human verdict."""
    for row in rows_of(folder / "evouna_a.jsonl.gz"):
        if not row["improper"]:
            yield _judged(SOURCES[row["dataset"]], SYSTEMS[row["system"]], row, row["human_correct"])
    for row in rows_of(folder / "nq301_human_a.jsonl.gz"):
        yield _judged("NQ301", "12 systems", row, row["human_correct"])
    for row in rows_of(folder / "contextsl_human_a.jsonl.gz"):
        if row["human_label"] in (0, 1):
            group = f"ContextSL {SOURCES[row['dataset']]}"
            yield _judged(group, SYSTEMS[row["model"]], row, row["human_label"] == 1)


def _judged(group: str, system: str, row: dict[str, Any], correct: bool) -> Judged:
    return Judged(group, system, row["question"], row["answer"] or "", tuple(row["answers"]), correct)


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    for row in read_rows(path):
        if isinstance(row, RowError):
            raise row
        yield row.data


def hand_judged(folder: Path, judged: Path, draws: Sequence[Path]) -> Iterator[Judged]:
    """Return the answers of a file of verdicts whose texts are among the samples."""
    verdicts = {(row["id"], row["answer_sha256"]): row for row in rows_of(judged)}
    asked = {
        row["id"]: row
        for name in sorted({row["set"] for row in verdicts.values()})
        for row in rows_of(folder / f"{name}.jsonl.gz")
    }
    for row in (row for path in draws for row in rows_of(path)):
        for text in row["samples"]:
            one = verdicts.pop((row["id"], sha256(text.encode()).hexdigest()[:16]), None)
            if one is not None:
                known = asked[row["id"]]
                references = tuple(known["answers"])
                yield Judged("by hand", one["model"], known["question"], text, references, one["correct"])


# Compared rules


@lru_cache(maxsize=1 << 16)
def squad_normal_form(text: str) -> str:
    """Return SQuAD's normal form: no case, ASCII punctuation or articles; numbers and dates unchanged."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


@lru_cache(maxsize=1 << 16)
def without_numbers(text: str) -> str:
    """Return semcal's normal form without reading numbers and dates."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = "".join(c for c in folded if unicodedata.category(c)[0] != "P" and c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def plain_rule(row: Judged) -> bool:
    """Return whether a reference is inside the answer as whole words, or SQuAD F1 > 0.5."""
    answer = squad_normal_form(row.answer)
    forms = [form for form in map(squad_normal_form, row.references) if form]
    return any(
        f" {form} " in f" {answer} " or squad_f1(Counter(answer.split()), Counter(form.split())) > 0.5
        for form in forms
    )


def by_rules(*, question: bool = True, **options: Any) -> Verdict:
    grader = RuleGrader(**options)
    return lambda row: grader.grade(row.question * question, [row.answer], row.references).correct


def tally(rows: Sequence[Judged], verdict: Verdict) -> Tally:
    pairs = Counter((verdict(row), row.correct) for row in rows)
    return Tally(len(rows), pairs[True, False], pairs[False, True])


def groups(rows: Sequence[Judged]) -> dict[tuple[str, str], list[Judged]]:
    found: dict[tuple[str, str], list[Judged]] = {}
    for row in rows:
        found.setdefault((row.group, row.system), []).append(row)
    return found


# The tables


def _table(header: Sequence[str], body: Sequence[Sequence[object]]) -> list[str]:
    rule = ["---"] * 2 + ["---:"] * (len(header) - 2)
    return [f"| {' | '.join(map(str, cells))} |" for cells in (header, rule, *body)]


def agreements(
    rows: Sequence[Judged], before: Verdict, after: Verdict
) -> Iterator[tuple[str, str, int, float, float]]:
    """Yield data, system, number of answers and both agreements, for each system and for all together."""
    for (group, system), part in [*groups(rows).items(), (("all", ""), rows)]:
        yield group, system, len(part), tally(part, before).agreement, tally(part, after).agreement


def _compared(cells: tuple[str, str, int, float, float]) -> tuple[object, ...]:
    *head, before, after = cells
    return *head, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"


def agreement_table(rows: Sequence[Judged]) -> list[str]:
    header = ("data", "system", "answers", "plain rule", "semcal", "difference")
    return _table(header, [_compared(cells) for cells in agreements(rows, plain_rule, by_rules())])


def question_table(rows: Sequence[Judged]) -> list[str]:
    """Return agreement without and with the question, and the number of changed verdicts."""
    before, after, body = by_rules(question=False), by_rules(), []
    for (group, system), part in [*groups(rows).items(), (("all", ""), rows)]:
        moved = [after(row) == row.correct for row in part if before(row) != after(row)]
        cells = _compared(
            (group, system, len(part), tally(part, before).agreement, tally(part, after).agreement)
        )
        body.append((*cells, sum(moved), len(moved) - sum(moved)))
    header = ("data", "system", "answers", "without", "with", "difference", "newly agree", "newly disagree")
    return _table(header, body)


def echoes(rows: Sequence[Judged]) -> Iterator[str]:
    """Yield the answers on which grader and humans differ, with the rule that decided."""
    grader = RuleGrader()
    for row in rows:
        found = grader.grade(row.question, [row.answer], row.references)
        if found.correct != row.correct:
            said = f"{row.question[:90]!r}, {row.answer[:80]!r}, {row.references[:3]}"
            yield f"graded {found.correct} ({found.rule}), judged {row.correct}: {said}"


def rules_table(rows: Sequence[Judged]) -> list[str]:
    every = (*RULES, "ROUGE-L")
    asked = [("alone", rule, [rule]) for rule in every]
    asked += [("up to", rule, list(every[: index + 1])) for index, rule in enumerate(every)]
    body = [_counted(how, rule, tally(rows, by_rules(rules=rules))) for how, rule, rules in asked]
    body.append(_counted("", "plain rule", tally(rows, plain_rule)))
    header = ("asked", "rule", "agreement", "false positives", "false negatives")
    return _table(header, body)


def _counted(how: str, rule: str, found: Tally) -> tuple[object, ...]:
    return how, rule, f"{found.agreement:.3f}", found.false_positives, found.false_negatives


def changes_table(
    rows: Sequence[Judged], before: Sequence[Any], after: Sequence[Any], *, show: bool
) -> Iterator[str]:
    """Return agreement by system with two sets of rules, and the numbers of changed verdicts."""
    changed = [(row, old, new) for row, old, new in zip(rows, before, after, strict=True) if old[0] != new[0]]
    body = []
    for (group, system), part in [*groups(rows).items(), (("all", ""), list(rows))]:
        mine = [k for k, row in enumerate(rows) if not system or (row.group, row.system) == (group, system)]
        shares = [sum(of[k][0] == rows[k].correct for k in mine) / len(part) for of in (before, after)]
        moved = [after[k][0] == rows[k].correct for k in mine if before[k][0] != after[k][0]]
        cells = (f"{shares[0]:.4f}", f"{shares[1]:.4f}", f"{shares[1] - shares[0]:+.4f}")
        body.append((group, system, len(part), *cells, sum(moved), len(moved) - sum(moved)))
    header = ("data", "system", "answers", "before", "after", "difference", "newly agree", "newly disagree")
    yield from _table(header, body)
    if show:
        for row, old, new in changed:
            side = "newly agree" if new[0] == row.correct else "newly disagree"
            yield f"{side}: {old[1]} -> {new[1]}: {row.answer[:80]!r}, {list(row.references)[:4]}"


def pairs_table(folder: Path) -> list[str]:
    """Return a table of pairs for questions with one reference: both correct (same), or only one of them."""
    pairs = [
        row for row in rows_of(folder / "equivalence_pairs_from_labels_a.jsonl.gz") if row["n_refs"] == 1
    ]
    body = []
    for name, form in (("without", without_numbers), ("with", normal_form)):
        forms = [(form(row["a"]), form(row["b"]), row["same"]) for row in pairs]
        joined = Counter(same for a, b, same in forms if a == b)
        apart = Counter(same for a, b, same in forms if values_differ(a, b))
        body.append((name, len(pairs), joined[True], joined[False], apart[False], apart[True]))
    header = ("normal forms", "pairs", "joined rightly", "joined wrongly", "apart rightly", "apart wrongly")
    return _table(header, body)


if __name__ == "__main__":
    main(sys.argv[1:])
