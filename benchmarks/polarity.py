"""Meanings that hold both yes and no, for yes/no questions of a real model and of a simulation.

    python -m benchmarks polarity [--model DIR] [--questions 200] [--samples FILE]

The questions are made from the facts of facts.txt, half of them with the answer yes. `--model` samples ten
answers to each question twice: without examples, so that many answers are sentences, and after four labeled
questions, so that most answers are a label. `--samples` stores rows in FILE and FILE.labels, or reads them
from there. Without a model, only simulated samples are used: 300 questions whose ten samples are wordings of
two opposite answers, and sometimes of neither.

*mixed* counts the meanings that hold an answer of each polarity. The polarity of a sample is that of its
first word, or of its phrase in the simulation; it does not depend on the measured rules. *Calibrated* figures
are out of fold.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import semcal
from semcal.errors import SemcalWarning
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import Equivalence, ExactMatch

SIMULATIONS = 300
QUICK = {"SIMULATIONS": 10}
FACTS = Path(__file__).with_name("facts.txt")
YES, NO = r"(?:yes|yeah|yep|true|correct|indeed)\b", r"(?:no|nope|false|incorrect|not)\b"
#: The simulation: a question, wordings of one answer, of the opposite one, and of neither.
SIMULATED = """
Is {} a planet? | Yes; Yes.; yes, it is; It is.; Yes, {} is a planet. | No; No.; no, it is not; It is not.; No, {} is not a planet. | It depends; A planet
True or false: {} is a mammal. | True; true.; This is true; The statement is true. | False; false.; This is false; The statement is false. | Mammals are animals
Was {} convicted? | guilty; Guilty.; found guilty | not guilty; Not guilty.; found not guilty | There was a trial
Is the message from {} spam? | spam; Spam.; It is spam | not spam; Not spam.; It is not spam | A message
Did the vote on {} pass? | Yes, it passed; Passed.; It passed | No, it failed; Failed.; It did not pass | There was a vote
"""  # noqa: E501


def facts() -> list[tuple[str, dict[str, str]]]:
    """Return the forms of questions, each with its facts: subject and answer."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in FACTS.read_text(encoding="utf-8").splitlines()[1:]:
        if line.endswith("?"):
            found.append((line, {}))
        else:
            subject, _, answer = line.partition(": ")
            found[-1][1][subject] = answer
    return found


def questions(count: int) -> list[dict[str, Any]]:
    """Return labeled yes/no questions, alternately with the correct and with another answer."""
    random = Random(0)
    asked = []
    for form, of_form in facts():
        answers = list(of_form.values())
        for subject, answer in of_form.items():
            other = random.choice([one for one in answers if one != answer])
            asked += [(form.format(subject, answer), "Yes"), (form.format(subject, other), "No")]
            other = random.choice([one for one in answers if one not in (answer, other)])
            asked.append((form.format(subject, other), "No"))
            asked.append((form.format(subject, answer).replace("?", ", or not?"), "Yes"))
    chosen = random.sample(asked, count)
    return [{"id": f"q{i}", "question": text, "answers": [label]} for i, (text, label) in enumerate(chosen)]


def polarity(text: str | None) -> bool | None:
    """Return whether a sample begins with a yes (True) or a no (False)."""
    start = (text or "").strip().lower()
    return True if re.match(YES, start) else False if re.match(NO, start) else None


def simulated() -> tuple[list[str], list[list[str]], list[dict[str, bool]]]:
    """Return questions, ten samples of each, and the polarity of each wording."""
    random, names = Random(1), list(facts()[0][1])
    kinds = [[part.strip() for part in line.split("|")] for line in SIMULATED.strip().splitlines()]
    asked, samples, said = [], [], []
    for number in range(SIMULATIONS):
        question, *wordings = kinds[number % len(kinds)]
        name = names[number % len(names)]
        yes, no, neither = (texts.format(*[name] * texts.count("{}")).split("; ") for texts in wordings)
        known = dict.fromkeys(yes, True) | dict.fromkeys(no, False)
        pool = [*known, *neither]
        asked.append(question.format(name))
        samples.append([random.choice(pool) for _ in range(10)])
        said.append(known)
    return asked, samples, said


def mixed(
    clusters: Sequence[Sequence[Sequence[int]]], said: Sequence[Sequence[bool | None]]
) -> dict[str, int]:
    """Count the questions with samples of both polarities, and the meanings that hold both."""
    both = [{True, False} <= set(of_question) for of_question in said]
    meanings = [
        {True, False} <= {of_question[i] for i in cluster}
        for of_clusters, of_question in zip(clusters, said)
        for cluster in of_clusters
    ]
    return {"questions": len(said), "with both": sum(both), "mixed": sum(meanings)}


def of_simulation(equivalence: Equivalence) -> dict[str, Any]:
    """Count mixed meanings of the simulated samples."""
    asked, samples, said = simulated()
    found = cluster_answers(asked, samples, equivalence)
    known = [[of_words.get(text) for text in texts] for texts, of_words in zip(samples, said)]
    return {"samples": "simulated"} | mixed(found.clusters, known)


def of_model(kind: str, rows: Sequence[Mapping[str, Any]], equivalence: Equivalence) -> dict[str, Any]:
    """Count mixed meanings of a model's samples, and calibrate on them."""
    scored = semcal.score(list(rows), equivalence=equivalence, progress=False)
    said = [[polarity(text) for text in row["samples"]] for row in scored.rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        report = scored.calibrate().report
    base, calibrated = report.base, report.calibrated
    return (
        {"samples": kind}
        | mixed([row["clusters"] for row in scored.rows], said)
        | {"accuracy": base["accuracy"], "confidence": base["mean_confidence"], "ACE": base["ace"]}
        | {"Calibrated: ACE": calibrated["ace"], "Calibrated: gain": calibrated["gain"]}
    )


def sampled(model: str | None, count: int, file: Path | None, *, labels: bool) -> list[Mapping[str, Any]]:
    """Read the stored samples, or sample and store them; none without a model."""
    if file is not None and file.exists():
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if model is None:
        return []
    *asked, first, second, third, fourth = questions(count + 4)
    shown = [first, second, third, fourth] if labels else None
    options = {"equivalence": "exact", "max_new_tokens": 24, "progress": False, "few_shot": shown}
    rows = [
        {"id": row["id"], "question": row["question"], "answers": row["answers"], "samples": row["samples"]}
        for row in semcal.ask_many(model, asked, **options).rows
    ]
    if file is not None:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def results(model: str | None = None, count: int = 200, file: Path | None = None) -> list[dict[str, Any]]:
    """Return one row for each equivalence on each kind of samples."""
    equivalences = {"default": semcal.load_equivalence("default"), "exact": semcal.load_equivalence("exact")}
    found = [{"equivalence": name} | of_simulation(one) for name, one in equivalences.items()]
    for kind, labels in (("model, sentences", False), ("model, labels", True)):
        kept = None if file is None else file.with_name(file.name + ".labels" * labels)
        if labels:
            equivalences["among:Yes,No"] = ExactMatch.among("among:Yes,No")
        if rows := sampled(model, count, kept, labels=labels):
            found += [{"equivalence": name} | of_model(kind, rows, one) for name, one in equivalences.items()]
        else:
            found.append({"samples": f"{kind}: not run: needs --model DIR"})
    return found


def quick_runs(_: Path) -> list[list[str]]:
    return [[], ["--model", "atlas", "--questions", "30"]]


def main(arguments: Sequence[str] = ()) -> None:
    """Read the command line and print the table."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--samples", type=Path)
    options = parser.parse_args(arguments)
    print(table(results(options.model, options.questions, options.samples)))


if __name__ == "__main__":
    main(sys.argv[1:])
