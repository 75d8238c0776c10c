"""NLI calls of clustering, and their CPU time, compared with all ordered pairs of samples.

    SEMCAL_DATA=<folder> python -m benchmarks nli_calls

Three kinds of answers, 10 samples per question, 20 runs = four seeds at each of five temperatures, one cache:

- Atlas: the embedded language model's answers to 40 test questions of each set, and the embedded NLI model;
- simulated: a pool of wordings with Zipf weights, about a third of them further wordings of an earlier
  meaning; the simulated model entails between wordings of one meaning, and wrongly in one of seven other
  ordered pairs;
- with SEMCAL_DATA, answers of real systems (LLaMA-13B on TriviaQA, GPT-3.5 on HotpotQA and NQ), and the
  embedded NLI model, which was not made for them; only one or two runs exist.

"At least" is the minimum of any exact method for the resulting clusters: k - 1 pairs in both directions for a
meaning of k wordings, and one direction for each pair of meanings whose values do not already differ. "Values
met" counts the questions of that run in which answers with different values share a cluster through others.
Calls are counted. CPU time is for one thread and the embedded NLI model, compared with plain transformers on
the 90 ordered pairs of each question in one padded batch, in turn, median of three.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, permutations
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from benchmarks import NotRun, data_folder
from semcal import load_equivalence
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import SETS, load_set
from semcal.errors import SemcalWarning
from semcal.models import cluster_answers, load_model
from semcal.models.equivalence import CachedEquivalence, Equivalence, Triple
from semcal.models.prompting import PromptConfig
from semcal.recalibration import Temperature
from semcal.text.normal_form import normal_form
from semcal.text.values import values_differ
from tests.json_rows import sample_questions

QUESTIONS, ATLAS_QUESTIONS, M, POOL = 2000, 40, 10, 16
TEMPERATURES = (1.0, 0.5, 1.3, 1.2, 1.1)
SEEDS = 4
#: Numbers of timed questions, and of rounds.
TIMED, ROUNDS = 20, 3
#: Maximum number of rows of each public set; all by default.
ROWS: int | None = None
QUICK: dict[str, Any] = {
    "QUESTIONS": 40,
    "ATLAS_QUESTIONS": 2,
    "TEMPERATURES": (1.0, 0.5),
    "SEEDS": 1,
    "TIMED": 1,
    "ROUNDS": 1,
}
QUICK["ROWS"] = 4
#: Maximum number of tokens of the embedded NLI model.
LIMIT = {"max_length": 128}
REAL = {
    "LLaMA-13B, TriviaQA (real)": ("uqnlg_triviaqa_llama13b_a.jsonl.gz", 2),
    "GPT-3.5, HotpotQA and NQ (real)": ("sac3_gpt35_samples_a.jsonl.gz", 1),
}

#: Normal forms of the samples: [run][question][sample].
Runs = list[list[list[str]]]


@dataclass(frozen=True)
class Simulated:
    """A question: the probability of each wording at temperature 1, and its meaning."""

    name: str
    weights: NDArray[np.float64]
    meanings: dict[str, int]

    @classmethod
    def draw(cls, number: int, rng: Generator) -> Simulated:
        """Return a random question, from nearly one wording to a long tail."""
        steepness = rng.choice([6.0, 2.0, 1.5, 1.0], p=[0.25, 0.3, 0.3, 0.15])
        weights = np.arange(1, POOL + 1) ** -steepness
        meanings: list[int] = []
        for _ in range(POOL):
            further = meanings and rng.random() < 0.35
            meanings.append(int(rng.choice(meanings)) if further else max(meanings, default=-1) + 1)
        words = [f"{'y' * int(rng.integers(1, 12))}{chr(ord('a') + place)}" for place in range(POOL)]
        return cls(f"question {number}", weights, dict(zip(words, meanings)))

    def samples(self, temperature: float, rng: Generator) -> list[str]:
        weights = self.weights ** (1 / temperature)
        return [str(word) for word in rng.choice(list(self.meanings), size=M, p=weights / weights.sum())]


class SimulatedModel:
    """A model that entails within a meaning, and by a fixed coin of 1 in 7 elsewhere."""

    name, revision = "simulated", "1"

    def __init__(self, questions: Sequence[Simulated]) -> None:
        self.meanings = {question.name: question.meanings for question in questions}

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        return [self._entails(*triple) for triple in triples]

    def _entails(self, name: str, premise: str, hypothesis: str) -> bool:
        if self.meanings[name][premise] == self.meanings[name][hypothesis]:
            return True
        return hashlib.sha256(f"{name}|{premise}|{hypothesis}".encode()).digest()[0] < 256 / 7


def simulated(count: int | None = None) -> tuple[list[str], Runs, Equivalence]:
    """Return simulated questions, their samples, and the model that knows their meanings."""
    rng = np.random.default_rng(0)
    questions = [Simulated.draw(number, rng) for number in range(count or QUESTIONS)]
    runs = [
        [question.samples(temperature, rng) for question in questions]
        for temperature in TEMPERATURES
        for _ in range(SEEDS)
    ]
    return [question.name for question in questions], runs, SimulatedModel(questions)


def atlas(name: str) -> tuple[list[str], Runs]:
    """Return answers of the embedded language model to a set."""
    model, chosen = load_model(language_model_dir(), device="cpu"), load_set(name)
    questions = chosen.test[:ATLAS_QUESTIONS]
    drawn = [
        sample_questions(
            model,
            questions,
            recalibrators=[Temperature(value) for value in TEMPERATURES],
            asking=PromptConfig(chosen.few_shot),
            m=M,
            seed=seed,
            max_new_tokens=24,
        )
        for seed in range(SEEDS)
    ]
    runs = [run for at_seed in zip(*drawn) for run in at_seed]  # four seeds at T = 1 come first
    forms = [[[normal_form(draw.text) for draw in sampled.draws] for sampled in run] for run in runs]
    return [question.question for question in questions], forms


def real(path: Path, runs: int) -> tuple[list[str], Runs]:
    """Return samples of a public set."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, ROWS)]
    forms = [[normal_form(text) for text in row["samples"]] for row in rows]
    cut = [[of_question[M * run : M * (run + 1)] for of_question in forms] for run in range(runs)]
    return [row["question"] for row in rows], cut


def counted(
    what: str, names: list[str], runs: Runs, model: Equivalence, linkage: str
) -> Iterator[dict[str, Any]]:
    """Return calls of the first run, and of all runs with one cache."""
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedEquivalence(model, Path(folder) / "verdicts.sqlite")
        for number, run in enumerate(runs, 1):
            clusters = cluster_answers(names, run, cached, linkage=linkage).clusters
            if number in (1, len(runs)):
                plain, calls = number * M * (M - 1), cached.calls / len(names)
                least = np.mean([least_calls(*pair) for pair in zip(run, clusters)]) if number == 1 else ""
                yield {
                    "answers": what,
                    "linkage": linkage,
                    "runs": number,
                    "wordings": float(np.mean([len(set(forms)) for forms in run])),
                    "all pairs": plain,
                    "calls per question": calls,
                    "at least": least if linkage == "components" else "",
                    "times fewer": plain / calls if calls else None,
                    "to reach": {1: 10, 20: 25}.get(number, ""),
                    "values met": sum(hold_different(*pair) for pair in zip(run, clusters)),
                }


def hold_different(forms: list[str], clusters: list[list[int]]) -> bool:
    """Return whether a cluster holds answers with different values."""
    return any(values_differ(forms[i], forms[j]) for cluster in clusters for i, j in combinations(cluster, 2))


def least_calls(forms: list[str], clusters: list[list[int]]) -> float:
    """Return the minimum number of calls of an exact method for an equivalence with these clusters."""
    meanings = [{forms[i] for i in cluster} - {""} for cluster in clusters]
    inside = sum(2 * (len(meaning) - 1) for meaning in meanings if meaning)
    apart = sum(
        not values_differ(a, b) for first, second in combinations(meanings, 2) for a in first for b in second
    )
    return float(inside + apart)


def plain_verdicts(names: Sequence[str], run: list[list[str]]) -> Callable[[], object]:
    """Judge all ordered pairs of samples of each question in one batch, with plain transformers."""
    tokenizer = AutoTokenizer.from_pretrained(nli_model_dir())
    model = AutoModelForSequenceClassification.from_pretrained(nli_model_dir()).eval()

    def verdicts() -> None:
        for name, forms in zip(names, run):
            sides = [f"Question: {name}\nAnswer: {form}" for form in forms]
            first, second = map(list, zip(*permutations(sides, 2)))
            batch = tokenizer(first, second, padding=True, truncation=True, return_tensors="pt", **LIMIT)
            with torch.inference_mode():
                model(**batch).logits.argmax(1)

    return verdicts


def timed(names: list[str], runs: Runs, model: Equivalence) -> dict[str, Any]:
    """Return CPU time of clustering the first run, and of all ordered pairs of a few of its questions."""
    many, some = (np.linspace(0, len(names) - 1, n).astype(int) for n in (ATLAS_QUESTIONS, TIMED))
    clustered = [names[i] for i in many], [runs[0][i] for i in many]
    plain = plain_verdicts([names[i] for i in some], [runs[0][i] for i in some])
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for job, times in zip((lambda: cluster_answers(*clustered, model), plain), spent):
            start = process_time()
            job()
            times.append(process_time() - start)
    ours, theirs = statistics.median(spent[0]) / len(many), statistics.median(spent[1]) / len(some)
    return {"CPU ms per question": ours * 1000, "all pairs, ms": theirs * 1000, "times faster": theirs / ours}


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    disable_progress_bar()
    warnings.simplefilter("ignore", SemcalWarning)  # of pairs too long for the embedded NLI model
    judge = load_equivalence(nli_model_dir(), device="cpu")
    kinds = {f"{name} (generated)": atlas(name) for name in SETS}
    rows = []
    try:
        folder = data_folder()
        kinds |= {what: real(folder / file, runs) for what, (file, runs) in REAL.items()}
    except NotRun as needs:
        rows += [{"answers": f"{what}: {needs}"} for what in REAL]
    for what, (names, runs) in kinds.items():
        seconds = timed(names, runs, judge)
        rows += [{**row, **seconds} for row in counted(what, names, runs, judge, "components")]
    names, runs, model = simulated()
    unknown = dict.fromkeys(seconds, "")
    for linkage in ("components", "greedy"):
        rows += [{**row, **unknown} for row in counted("simulated", names, runs, model, linkage)]
    return rows


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
