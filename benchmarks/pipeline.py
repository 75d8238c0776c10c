"""The whole pipeline, compared with a plain implementation of the same definitions.

    python -m benchmarks.pipeline

Closed book: ten examples before every question, ten sampled answers of 5 tokens on average, a random Llama of
110M parameters with 32,000 tokens and peaked logits, a random BERT of base size. Answers of a random model
have no meaning, so the clustered answers are replaced in two ways:

- "simulated": answers and verdicts of the simulated questions of `nli_calls`, with few and many wordings in
  proportion, one method at each temperature;
- "as drawn": the random Llama's own answers; a third of a question's distinct answers mean the same, and 15%
  of the other ordered pairs are entailed in one direction.

The plain implementation, for each method and run: `generate(num_return_sequences=10, top_k=0)`, a second
forward pass over prompt and answer for the likelihoods, all 90 ordered pairs of a question through the NLI
model, and measures and grades question by question. It is timed on a few questions for one run of Base, of SE
and of Platt; TS counts as SE, and ATS as Base, although it costs more. CPU time of one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from time import process_time
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)

from benchmarks.nli_calls import SEEDS, simulated
from benchmarks.sampling import END, STEPS, VOCABULARY, M, network
from semcal.data.question import Question
from semcal.grading.rules import RuleGrader
from semcal.models import CausalLanguageModel
from semcal.models.distribution import temperature_of
from semcal.models.nli import CrossEncoder
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, TokenDistribution
from semcal.models.sample import Sampling, SamplingConfig, sample_runs
from semcal.recalibration import ATS, SE, Base, Platt, Temperature
from semcal.rows import Row
from tests.json_rows import cluster_rows, grade_row, measure_rows

SIZE, OURS, PLAIN, RUNS, WORDS, SHOTS = "110M", 24, 2, 4, 20, 10
#: Number of simulated questions, from which the asked ones are taken.
POOL = 2000
#: Shape of the cross-encoder; base size by default.
NLI: dict[str, int] = {}
#: Share of a question's answers that mean the same, and of other ordered pairs that are entailed.
ALIKE, ONE_WAY = 0.35, 0.15
NLI_BATCH = 32
METHODS = ("Base", "SE", "TS", "ATS", "Platt")
QUICK: dict[str, Any] = {"SIZE": "20M", "OURS": 2, "PLAIN": 1, "RUNS": 2, "SHOTS": 1, "POOL": 20}
QUICK["NLI"] = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def word(number: int) -> str:
    """Return a token as letters that are not a word, number or unit in any language of the meaning layer."""
    return "zq" + "".join("bcdfgjkpqvxz"[number // 12**place % 12] for place in range(5))


def questions(count: int, *, seed: int) -> list[Question]:
    """Return questions of random words, each with a random answer."""
    rng = random.Random(seed)

    def words(n: int) -> str:
        return " ".join(word(rng.randrange(100, VOCABULARY)) for _ in range(n))

    return [Question(f"{seed}-{i}", words(WORDS), (words(3),)) for i in range(count)]


def tokenizer() -> Any:
    vocabulary = {word(number): number for number in range(VOCABULARY)}
    level = Tokenizer(models.WordLevel(vocabulary, unk_token=word(0)))
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=level, bos_token=word(1), eos_token=word(END))


def judge(**shape: int) -> tuple[BertForSequenceClassification, Any]:
    """Return a random cross-encoder."""
    torch.manual_seed(2)
    labels = {0: "not_entailment", 1: "entailment"}
    numbers = {name: label for label, name in labels.items()}
    config = BertConfig(vocab_size=VOCABULARY, id2label=labels, label2id=numbers, **shape)
    model = BertForSequenceClassification(config).eval().requires_grad_(False)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocabulary |= {word(number): number for number in range(4, VOCABULARY)}
    level = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    level.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return model, PreTrainedTokenizerFast(tokenizer_object=level, pad_token="[PAD]", unk_token="[UNK]")


def pair_texts(question: str, first: str, second: str) -> tuple[str, str]:
    return tuple(f"Question: {question}\nAnswer: {answer}" for answer in (first, second))  # type: ignore[return-value]


class Answers(Protocol):
    """The answers for clustering instead of those of random models."""

    def texts(self, question: str, method: str, run: int, drawn: list[str]) -> list[str]:
        """Return the answers that replace the sampled ones."""

    def entailed(self, question: str, first: str, second: str) -> bool:
        """Return the verdict on two answers."""


class AsDrawn:
    """The random model's own answers, with random verdicts."""

    name = "as drawn"

    def texts(self, question: str, method: str, run: int, drawn: list[str]) -> list[str]:
        del question, method, run
        return drawn

    def entailed(self, question: str, first: str, second: str) -> bool:
        def chance(*of: str) -> float:
            return random.Random("|".join((question, *of))).random()

        alike = chance(first) < ALIKE and chance(second) < ALIKE
        return alike or chance(first, second) < ONE_WAY


class AsSimulated:
    """Answers of simulated questions of all kinds, each wording spelled as words of the vocabulary."""

    name = "simulated"

    def __init__(self, asked: Sequence[Question]) -> None:
        names, runs, self._judge = simulated(POOL)
        wordings = [
            (len(set(runs[0][i])), len({w for run in runs for w in run[i]})) for i in range(len(names))
        ]
        order = sorted(range(len(names)), key=wordings.__getitem__)
        places = np.linspace(0, len(order), len(asked), endpoint=False) + len(order) / len(asked) / 2
        chosen = [order[int(place)] for place in places]
        self._names = {one.question: names[i] for one, i in zip(asked, chosen)}
        self._runs = {one.question: [run[i] for run in runs] for one, i in zip(asked, chosen)}
        self._wordings: dict[str, str] = {}

    def texts(self, question: str, method: str, run: int, drawn: list[str]) -> list[str]:
        del drawn
        found = self._runs[question][METHODS.index(method) * SEEDS + run]
        return [self._spelt(question, wording) for wording in found]

    def _spelt(self, question: str, wording: str) -> str:
        rng = random.Random(f"{question}|{wording}")
        text = " ".join(word(rng.randrange(100, VOCABULARY)) for _ in range(rng.randint(1, 7)))
        self._wordings[text] = wording
        return text

    def entailed(self, question: str, first: str, second: str) -> bool:
        triple = self._names[question], self._wordings[first], self._wordings[second]
        return self._judge.entails([triple])[0]


class Judge(CrossEncoder):
    """A judge that runs the cross-encoder for every pair, and replaces its verdict."""

    def __init__(self, *model: Any, says: Callable[[str, str, str], bool], **named: str) -> None:
        super().__init__(*model, **named)
        self._says = says

    def entails(self, triples: Sequence[tuple[str, str, str]]) -> list[bool]:
        super().entails(triples)
        return [self._says(*triple) for triple in triples]


@dataclass(frozen=True)
class Parts:
    """The common parts of both implementations."""

    net: Any
    tokenizer: Any
    nli: Any
    nli_tokenizer: Any
    few_shot: tuple[Question, ...]

    @classmethod
    def made(cls) -> Parts:
        nli, nli_tokenizer = judge(**NLI)
        return cls(network(SIZE), tokenizer(), nli, nli_tokenizer, tuple(questions(SHOTS, seed=1)))


def recalibrators(net: Any) -> dict[str, AnyRecalibrator]:
    """Return the five methods; the fitted ones have arbitrary parameters."""
    model = CausalLanguageModel(net, tokenizer(), name=SIZE)
    platt = Platt(VOCABULARY)
    platt.weight.data.mul_(0.8)
    return {
        "Base": Base(),
        "SE": SE(),
        "TS": Temperature(1.4, method="TS"),
        "ATS": ATS(model.block_shape),
        "Platt": platt,
    }


def ours(
    parts: Parts, asked: Sequence[Question], under: dict[str, AnyRecalibrator], runs: int, answers: Answers
) -> Any:
    """Run all methods and runs in one pass; return seconds by stage."""
    model = CausalLanguageModel(parts.net, parts.tokenizer, name=SIZE)
    equivalence = Judge(parts.nli, parts.nli_tokenizer, name="base", revision="", says=answers.entailed)
    clock = Clock()
    asking, seeds = PromptConfig(parts.few_shot), tuple(range(runs))
    sampled = sample_runs(
        model, asked, Sampling(tuple(under.values()), asking, SamplingConfig(M, max_new_tokens=STEPS), seeds)
    )
    rows = [
        {**one.add_to(Row(q.row())).json, "method": method, "run": run}
        for run, of_run in enumerate(sampled)
        for method, of_method in zip(under, of_run)
        for q, one in zip(asked, of_method)
    ]
    clock.lap("sampling and likelihoods")
    for row in rows:
        row["samples"] = answers.texts(row["question"], row["method"], row["run"], row["samples"])
    clock.lap("")
    clustered, calls = cluster_rows(rows, equivalence=equivalence)
    clock.lap("clustering")
    measured = measure_rows(clustered)
    graded = [grade_row(row, grader=RuleGrader()) for row in measured]
    clock.lap("measures and grades")
    del clock.seconds[""]
    return clock.seconds, calls, graded


class Clock:
    """Processor seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = process_time()

    def lap(self, stage: str) -> None:
        now = process_time()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


class PlattProcessor(LogitsProcessor):  # type: ignore[misc]
    """Platt as a logits processor for `generate`."""

    def __init__(self, platt: Platt) -> None:
        self.platt = platt

    def __call__(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.platt.log_probs(scores)


@torch.no_grad()
def plain(
    parts: Parts, asked: Sequence[Question], method: str, recalibrator: TokenDistribution, answers: Answers
) -> dict[str, float]:
    """Run one method once in the usual way; return seconds by stage."""
    model = CausalLanguageModel(parts.net, parts.tokenizer, name=SIZE)
    prompts = [list(p.token_ids) for p in PromptConfig(parts.few_shot).prompts(model, asked)]
    clock = Clock()
    drawn = _generated(parts, prompts, recalibrator)
    clock.lap("sampling")
    likelihoods = [_scored(parts, prompt, answers, recalibrator) for prompt, answers in zip(prompts, drawn)]
    clock.lap("likelihoods")
    spelt = [[parts.tokenizer.decode(answer, skip_special_tokens=True) for answer in one] for one in drawn]
    texts = [answers.texts(q.question, method, 0, one) for q, one in zip(asked, spelt)]
    clusters = [_clustered(parts, q.question, one, answers) for q, one in zip(asked, texts)]
    clock.lap("clustering")
    for question, one, scores, found in zip(asked, texts, likelihoods, clusters):
        row = {**question.row(), "samples": one, "log_likelihoods": scores, "clusters": found}
        (measured,) = measure_rows([row])
        grade_row(measured, grader=RuleGrader())
    clock.lap("measures and grades")
    return clock.seconds


def _generated(
    parts: Parts, prompts: list[list[int]], recalibrator: AnyRecalibrator
) -> list[list[list[int]]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    processor = [PlattProcessor(recalibrator)] if isinstance(recalibrator, Platt) else []
    found = parts.net.generate(
        ids,
        attention_mask=mask,
        generation_config=GenerationConfig(
            do_sample=True,
            top_k=0,
            temperature=temperature_of(recalibrator) or 1.0,
            num_return_sequences=M,
            max_new_tokens=STEPS,
            pad_token_id=0,
            eos_token_id=END,
        ),
        logits_processor=LogitsProcessorList(processor),
    )
    answers = [[token for token in row if token] for row in found[:, width:].tolist()]
    return [answers[start : start + M] for start in range(0, len(answers), M)]


def _scored(
    parts: Parts, prompt: list[int], answers: list[list[int]], recalibrator: TokenDistribution
) -> list[float]:
    longest = max(map(len, answers))
    ids = torch.tensor([prompt + answer + [0] * (longest - len(answer)) for answer in answers])
    logits = parts.net(input_ids=ids).logits[:, len(prompt) - 1 : -1]
    log_probs = recalibrator.log_probs(logits).gather(2, ids[:, len(prompt) :, None])[..., 0]
    return [float(row[: len(answer)].mean()) for row, answer in zip(log_probs, answers)]


def _clustered(parts: Parts, question: str, texts: list[str], answers: Answers) -> list[list[int]]:
    pairs = list(permutations(range(len(texts)), 2))
    for start in range(0, len(pairs), NLI_BATCH):
        batch = pairs[start : start + NLI_BATCH]
        sides = [pair_texts(question, texts[i], texts[j]) for i, j in batch]
        inputs = parts.nli_tokenizer(
            [a for a, _ in sides], [b for _, b in sides], padding=True, return_tensors="pt"
        )
        parts.nli(**inputs).logits.argmax(1).tolist()
    found = {(i, j) for i, j in pairs if answers.entailed(question, texts[i], texts[j])}
    same = [[texts[i] == texts[j] or {(i, j), (j, i)} <= found for j in range(M)] for i in range(M)]
    _, label = connected_components(np.array(same), directed=False)
    return [np.flatnonzero(label == number).tolist() for number in np.unique(label)]


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    parts = Parts.made()
    asked = questions(OURS, seed=3)
    return [row for answers in (AsSimulated(asked), AsDrawn()) for row in _rows(parts, asked, answers)]


def _rows(
    parts: Parts, asked: Sequence[Question], answers: AsSimulated | AsDrawn
) -> Iterator[dict[str, Any]]:
    every = recalibrators(parts.net)
    slow = {name: plain(parts, asked[:PLAIN], name, every[name], answers) for name in ("Base", "SE", "Platt")}
    slow |= {"TS": slow["SE"], "ATS": slow["Base"]}
    for label, methods, runs, target in (
        ("one run of Base", ("Base",), 1, 25),
        ("one run of TS", ("TS",), 1, None),
        ("5 methods x 4 runs", METHODS, RUNS, 75),
    ):
        seconds, calls, _ = ours(parts, asked, {name: every[name] for name in methods}, runs, answers)
        plain_total = sum(sum(slow[name].values()) for name in methods) * runs / PLAIN
        plain_nli = sum(slow[name]["clustering"] for name in methods) * runs / PLAIN
        total = sum(seconds.values())
        yield {
            "job": label,
            "answers": answers.name,
            "seconds per question": total / OURS,
            "plain way": plain_total,
            "times faster": plain_total / total * OURS,
            "target": target if isinstance(answers, AsSimulated) else None,
            "NLI calls per question": calls / OURS,
            **{f"share of {stage}": spent / total for stage, spent in seconds.items()},
            "NLI share of the plain implementation": plain_nli / plain_total,
        }


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
