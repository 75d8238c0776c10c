"""Cluster the same samples by meaning: semcal, uqlm, lm-polygraph, TruthTorchLM and the original code.

    SEMCAL_COMPARE_PYTHON=<a Python with these packages> SEMCAL_COMPARE_ORIGINAL=<jlko/semantic_uncertainty>
    \\
        python -m benchmarks compare

40 test questions of each set of Atlas, ten answers sampled at T = 1, and the embedded NLI model with labels
in the order and the letters of microsoft/deberta-large-mnli. Each program makes its own texts of question and
answer; "same texts" are those of semcal, on which the model was trained. Batches of 32 if the program has
batches, no gradients, one thread, CPU time without loading. "Wide": the feed-forward layers of the NLI model
are filled with zeros, so its verdicts are the same and a token costs 25 million multiplications (a BERT base:
85 million). Missing programs have a row that says so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from benchmarks import not_run
from benchmarks._compare_tools import ODD, TOOLS, Partition, ask
from benchmarks.nli_calls import ATLAS_QUESTIONS, M
from semcal import __version__, load_equivalence, score
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import SETS, load_set
from semcal.errors import SemcalError
from semcal.models import cluster_answers, load_model
from semcal.models.equivalence import side_of
from semcal.models.prompting import PromptConfig
from semcal.recalibration import Temperature
from semcal.text.normal_form import normal_form
from tests.json_rows import sample_questions

WIDTH = 32768
EVERY = 3  # of the questions, with the wide model
QUICK = {"ATLAS_QUESTIONS": 3, "WIDTH": 2048}
LABELS = ("contradiction", "neutral", "entailment")


def widened(folder: Path) -> None:
    """Write the NLI model to three folders: with usual labels, unchanged, and wide."""
    tokenizer = [nli_model_dir() / name for name in ("tokenizer.json", "tokenizer_config.json")]
    for name in ("usual", "wide", "entailment first", "small letters"):
        model = AutoModelForSequenceClassification.from_pretrained(nli_model_dir(), dtype=torch.float32)
        labels = [model.config.id2label[number] for number in range(3)]
        if name in ("usual", "wide"):
            order = [labels.index(label) for label in LABELS]
            model.classifier.weight.data = model.classifier.weight.data[order]
            model.classifier.bias.data = model.classifier.bias.data[order]
            labels = list(LABELS)
        if name != "small letters":
            labels = [label.upper() for label in labels]
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: number for number, label in enumerate(labels)}
        if name == "wide":
            model.config.intermediate_size = WIDTH
            wide = AutoModelForSequenceClassification.from_config(model.config)
            weights = wide.state_dict()
            for key, weight in model.state_dict().items():
                weights[key].zero_()
                weights[key][tuple(slice(length) for length in weight.shape)] = weight
            model = wide
        model.save_pretrained(folder / name)
        for file in tokenizer:
            (folder / name / file.name).write_bytes(file.read_bytes())


def stored_samples() -> tuple[list[str], list[list[str]]]:
    """Return questions, and ten answers to each."""
    model = load_model(language_model_dir(), device="cpu")
    questions: list[str] = []
    samples: list[list[str]] = []
    for name in SETS:
        chosen = load_set(name)
        asked = chosen.test[:ATLAS_QUESTIONS]
        how: Any = {"recalibrators": [Temperature(1.0)], "m": M, "max_new_tokens": 24}
        (drawn,) = sample_questions(model, asked, asking=PromptConfig(chosen.few_shot), **how)
        questions += [question.question for question in asked]
        samples += [[draw.text for draw in sampled.draws] for sampled in drawn]
    return questions, samples


def same(ours: Sequence[Partition], theirs: Any) -> float | str:
    """Return the share of questions with the same partition, or the error that was raised instead."""
    if isinstance(theirs, str):
        return theirs.split(":")[0]
    agree = [_sets(a) == _sets(b) for a, b in zip(ours, theirs, strict=True)]
    return sum(agree) / len(agree)


def _sets(partition: Partition) -> set[frozenset[int]]:
    return {frozenset(meaning) for meaning in partition}


def depends_on_order(forward: Sequence[Partition], reverse: Sequence[Partition]) -> float:
    """Return the share of questions whose clusters change if the samples are reversed."""
    turned = [[[M - 1 - i for i in meaning] for meaning in partition] for partition in reverse]
    return 1 - float(same(forward, turned))


def column(found: dict[str, Any], ours: Sequence[Partition], timed: Sequence[int]) -> dict[str, Any]:
    """Return the printed column of one program; `ours` are the partitions for comparison."""
    cases = found["cases"]
    twice = [sum(map(len, partition)) > M for partition in cases["own"]]
    labels = {name: same(cases["same"], cases[name]) for name in ("entailment first", "small letters")}
    assert same([cases["own"][i] for i in timed], cases["wide"]) == 1, "the wide model decides differently"
    return {
        "version": found["version"],
        "pairs per question": found["pairs"],
        "CPU ms per question": found["CPU"] * 1000,
        "CPU ms per question, wide": found["CPU wide"] * 1000,
        "same partition as semcal": same(ours, cases["own"]),
        "same partition as semcal, same texts": same(ours, cases["same"]),
        "partition depends on the order of samples": depends_on_order(cases["same"], cases["reversed"]),
        "questions with an answer in two meanings": sum(twice),
        "entropy of log-likelihoods -1, NaN, -2": found["NaN"],
        "its evaluation reads NaN as": found["evaluated"],
        "entropy of one sample": found["one"].split(":")[0],
        "same partitions, entailment as label 0": labels["entailment first"],
        "same partitions, labels in lower case": labels["small letters"],
        "partition of velis, nothing, ana velis, nothing": str(found["empty"]),
    }


def semcal(folder: Path, job: dict[str, Any], linkage: str) -> dict[str, Any]:
    """Return semcal's result of a job, in the form of `_compare_tools`."""
    names, timed = job["questions"], job["timed"]
    judges = {name: load_equivalence(folder / name, device="cpu") for name in job["models"]}

    def run(name: str, chosen: Sequence[int], reverse: bool = False) -> tuple[list[Partition], float, int]:
        start, step = process_time(), -1 if reverse else 1
        answers = [[normal_form(text) for text in job["samples"][i][::step]] for i in chosen]
        done = cluster_answers([names[i] for i in chosen], answers, judges[name], linkage=linkage)
        return done.clusters, process_time() - start, done.calls

    every = range(len(names))
    run("usual", every[:2]), run("wide", every[:2])
    own, seconds, pairs = run("usual", every)
    wide, seconds_wide, _ = run("wide", timed)
    odd = [normal_form(text) for text in ODD["samples"]]
    others = {name: run(name, every)[0] for name in ("entailment first", "small letters")}
    return {
        "version": __version__,
        "cases": {"own": own, "same": own, "reversed": run("usual", every, True)[0], "wide": wide, **others},
        "pairs": pairs / len(names),
        "CPU": seconds / len(names),
        "CPU wide": seconds_wide / len(timed),
        "NaN": entropy(["velis", "velis", "tarn"], [-1.0, float("nan"), -2.0]),
        "evaluated": None,
        "one": entropy(["velis"], [-1.0]),
        "empty": cluster_answers([ODD["question"]], [odd], judges["usual"], linkage=linkage).clusters[0],
    }


def entropy(samples: list[str], log_likelihoods: list[float]) -> str:
    """Return the semantic entropy of one question, from likelihoods and from counts."""
    row = {"id": "a", "question": "Who?", "samples": samples, "log_likelihoods": log_likelihoods}
    try:
        found = score([row], equivalence="exact").rows[0]["semantic_entropy"]
    except SemcalError as error:
        return f"refused ({type(error).__name__})"
    return f"{found['L-SC']:.2f}; by counts {found['E-SC']:.2f}"


def results() -> list[dict[str, Any]]:
    python, original = os.environ.get("SEMCAL_COMPARE_PYTHON"), os.environ.get("SEMCAL_COMPARE_ORIGINAL", "")
    torch.set_num_threads(1)
    disable_progress_bar()
    questions, samples = stored_samples()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        widened(folder)
        job = {
            "original": original,
            "models": {path.name: str(path) for path in sorted(folder.iterdir())},
            "questions": questions,
            "samples": samples,
            "sides": [[side_of(q, normal_form(t)) for t in texts] for q, texts in zip(questions, samples)],
            "timed": list(range(0, len(questions), EVERY)),
        }
        found: dict[str, Any] = {"semcal": semcal(folder, job, "components")}
        found["semcal, greedy"] = semcal(folder, job, "greedy")
        found |= {tool: ask(python, {"tool": tool, **job}) for tool in TOOLS} if python else {}
    ours = found["semcal"]["cases"]["own"]
    columns = {name: column(of_it, ours, job["timed"]) for name, of_it in found.items() if of_it}
    lacking = [tool for tool in TOOLS if not found.get(tool)]
    needs = "SEMCAL_COMPARE_PYTHON, a Python that has it, and for the original code SEMCAL_COMPARE_ORIGINAL"
    return [
        {"": what, **{name: of_it[what] for name, of_it in columns.items()}} for what in columns["semcal"]
    ] + [{"": f"{tool}: {not_run(needs)}"} for tool in lacking]


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
