"""The share of time of each stage, and its growth with the number and the length of answers.

    python -m benchmarks.stages

One run of Base, closed book, with ten examples before every question: a random Llama of 20M parameters with
32,000 tokens and peaked logits, whose answers end by themselves, and a random BERT of four layers, whose
verdicts are replaced as in `pipeline`. The growth is the exponent b of a power m^b or L^b, fitted to the
logarithms of the times by least squares: m of 5, 10, 20 and 40 with answers of about 6 tokens on average; ten
answers of about 3, 6 and 12 tokens, of which L is the actual length. The exponents of the paper ("Evaluation
Computational Complexity") are given for comparison. Tokens and pairs are counts, equal on all machines. CPU
time of one thread, medians.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.likelihoods import tokenizer
from benchmarks.pipeline import AsDrawn, Judge, judge, questions
from benchmarks.sampling import END, network
from semcal.grading.rules import RuleGrader
from semcal.metrics import summaries
from semcal.models import CausalLanguageModel, sample
from semcal.models.causal_lm import Rescoring
from semcal.models.engine import decoding
from semcal.models.engine.decoding import BatchPlanner
from semcal.models.engine.draw import Distributions
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import SampleRequest
from semcal.models.sample import Sampling, SamplingConfig
from semcal.recalibration import Base
from semcal.rows import Row
from tests.json_rows import cluster_rows, grade_row, measure_rows

QUESTIONS, ROUNDS = 16, 2
M, LENGTH, LIMIT = 10, 6, 4  # answers are cut at four times that length
MS, LENGTHS = (5, 10, 20, 40), (3, 6, 12)
ASKING = PromptConfig(tuple(questions(10, seed=1)))
NEVER = -200.0  # a logit among others with standard deviation 24
NLI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
QUICK: dict[str, Any] = {"QUESTIONS": 2, "ROUNDS": 1, "M": 3, "MS": (3, 6), "LENGTH": 3, "LENGTHS": (3, 6)}
QUICK["ASKING"] = PromptConfig(tuple(questions(1, seed=1)))
QUICK["NLI"] = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
#: Exponents of m and L in the paper; it calls the other stages negligible or does not name them.
PAPER = {
    "prompt": ("", ""),
    "decoding": (1, 1),
    "first answers": ("negligible", ""),
    "likelihoods": (1, 1),
    "clustering": (2, ""),
    "measures": ("negligible", ""),
    "grading": ("", ""),
    "metrics": ("", ""),
    "all": (1, 1),
    "tokens of the answers": (1, 1),
    "tokens decoded": (1, 1),
    "pairs for the NLI model": (2, ""),
}


class Stages:
    """Processor seconds by stage; in nested stages, the innermost counts."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open, self._last = ["outside"], process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._lap()
        self._open.append(name)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def of(self, name: str, job: Callable[..., Any], *, after: int = 0) -> Callable[..., Any]:
        """Return the job as a part of a stage, from its call number `after` on."""
        calls = count()

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name if next(calls) >= after else self._open[-1]):
                return job(*args, **kwargs)

        return run

    def _lap(self) -> None:
        now = process_time()
        self.seconds[self._open[-1]] += now - self._last
        self._last = now


@contextmanager
def inside_sampling(stages: Stages, steps: int) -> Iterator[None]:
    """Count the work of sampling besides decoding as a separate stage during the block.

    With all questions in one pass, the additional step after the last token is only for likelihoods.
    """
    kinds = [Distributions, *Distributions.__subclasses__()]
    places: list[tuple[Any, str, str, int]] = [
        (kind, "log_probs_at", "likelihoods", 0) for kind in kinds if "log_probs_at" in vars(kind)
    ]
    places += [(Rescoring, name, "likelihoods", 0) for name in ("rescored", "missing", "run_last_token")]
    places += [(CausalLanguageModel, "score", "likelihoods", 0)]
    places += [
        (decoding, "advance", "likelihoods", steps - 1),
        (decoding, "choose_tokens", "likelihoods", steps),
    ]
    places += [
        (decoding, "start", "prompt", 0),
        (BatchPlanner, "prefix", "prompt", 0),
        (PromptConfig, "prompts", "prompt", 0),
    ]
    places += [(sample, "read_answer", "first answers", 0)]
    with ExitStack() as stack:
        for of, name, stage, after in places:
            stack.enter_context(patch.object(of, name, stages.of(stage, getattr(of, name), after=after)))
        yield


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the b of the power size^b that fits values best, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def let_end(net: Any, length: int, at: Tensor) -> None:
    """Let answers end after a mean number of tokens, by the states (n, d) at which they may."""
    net.lm_head.bias[END] = NEVER
    others = net.lm_head(at).logsumexp(-1)
    low, high = -100.0, 300.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if torch.sigmoid(middle - others).mean() > 1 / length else (middle, high)
    net.lm_head.bias[END] = low


def answer_states(net: Any) -> Tensor:
    """Return states of answers that do not end."""
    net.lm_head.bias[END] = NEVER
    model = CausalLanguageModel(net, tokenizer(), name="20M")
    asked = ASKING.prompts(model, questions(QUESTIONS, seed=4))
    [drawn] = model.sample(SampleRequest(asked, recalibrators=[Base()], m=4, max_new_tokens=max(LENGTHS)))[0]
    return model.features(asked, [[draw.token_ids for draw in draws] for draws in drawn]).states


def run(net: Any, nli: Sequence[Any], m: int, length: int) -> dict[str, float]:
    """Run once; return seconds of every stage, and the numbers of decoded tokens and judged pairs."""
    limit = LIMIT * length
    model = CausalLanguageModel(net, tokenizer(), name="20M")
    equivalence = Judge(*nli, name="small", revision="", says=AsDrawn().entailed)
    asked = questions(QUESTIONS, seed=3)
    stages = Stages()
    with inside_sampling(stages, limit), stages.stage("decoding"):
        [[sampled]] = sample.sample_runs(
            model, asked, Sampling((Base(),), ASKING, SamplingConfig(m, max_new_tokens=limit))
        )
    rows = [one.add_to(Row(question.row())).json for question, one in zip(asked, sampled)]
    with stages.stage("clustering"):
        clustered, pairs = cluster_rows(rows, equivalence=equivalence)
    with stages.stage("measures"):
        measured = measure_rows(clustered)
    with stages.stage("grading"):
        graded = [grade_row(row, grader=RuleGrader()) for row in measured]
    with stages.stage("metrics"):
        confidence, correct = (
            np.array([list(row[name].values()) for row in graded]).T for name in ("confidence", "correct")
        )
        summaries(confidence, correct)
    found = {stage: stages.seconds[stage] for stage in PAPER if stage in stages.seconds}
    beginnings = ((i, draw.generation.token_ids) for i, one in enumerate(sampled) for draw in one.draws)
    tokens = len({(i, ids[:n]) for i, ids in beginnings for n in range(1, len(ids))})
    drawn = sum(len(draw.generation.token_ids) for one in sampled for draw in one.draws)
    counts = {"tokens of the answers": drawn, "tokens decoded": tokens, "pairs for the NLI model": pairs}
    return {**found, "all": sum(found.values()), **counts}


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    net, nli = network("20M"), judge(**NLI)
    states = answer_states(net)
    shapes = dict.fromkeys([*((m, LENGTH) for m in MS), *((M, length) for length in LENGTHS)])
    spent: dict[tuple[int, int], list[dict[str, float]]] = {shape: [] for shape in shapes}
    for _ in range(ROUNDS):
        for (m, length), found in spent.items():
            let_end(net, length, states)
            found.append(run(net, nli, m, length))
    median = {
        shape: {stage: statistics.median(one[stage] for one in found) for stage in PAPER}
        for shape, found in spent.items()
    }
    return list(_rows(median))


def _rows(median: dict[tuple[int, int], dict[str, float]]) -> Iterator[dict[str, Any]]:
    typical = median[M, LENGTH]
    lengths = [median[M, length]["tokens of the answers"] for length in LENGTHS]
    for stage, (by_m, by_length) in PAPER.items():
        counted = stage.startswith(("tokens", "pairs"))
        yield {
            "stage": stage,
            "a question": typical[stage] / QUESTIONS if counted else typical[stage] / QUESTIONS * 1e3,
            "unit": "" if counted else "ms",
            "share": None if counted else typical[stage] / typical["all"],
            "growth with m": exponent(MS, [median[m, LENGTH][stage] for m in MS]),
            "paper": by_m,
            "growth with L": exponent(lengths, [median[M, length][stage] for length in LENGTHS]),
            "paper ": by_length,
        }


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
