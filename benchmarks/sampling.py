"""Sampling ten answers to a question, against `generate(num_return_sequences=10)` of transformers.

    python -m benchmarks.sampling

Random Llama-shaped models of 110M and 20M parameters with 32 000 tokens and peaked logits (standard deviation
24; "less peaked": 12). Closed book: 262 tokens that all prompts share and 24 of the question's own; open
book: 845 and 214. Answers end by themselves after 5 tokens on average, at 10 at the latest. `generate` gets
batches of 4 questions, `do_sample=True, top_k=0`. CPU time of one thread, the ways in turn, medians with the
least and greatest ratio. Open book has a memory budget of 8 MiB. Memory is what each way adds to a fresh
process that holds the model, at its peak.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from semcal.engine import CausalLanguageModel, Prompt
from semcal.recalibration import Temperature

VOCABULARY, END, M, STEPS, BATCH, ROUNDS = 32_000, 2, 10, 10, 4, 3
PEAK = 24.0  # standard deviation of the logits
END_LOGIT = {24.0: 92.6, 12.0: 46.5}  # by peak: answers of 5 tokens on average
SHAPES = {
    "110M": {
        "hidden_size": 640,
        "intermediate_size": 1920,
        "num_hidden_layers": 14,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
    },
    "20M": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
}
BOOKS = {"closed": (262, 24), "open": (845, 214)}


@dataclass(frozen=True)
class Case:
    """A model, prompts, and how many runs and temperatures share a pass."""

    size: str
    book: str
    target: float = float("nan")
    questions: int = 64
    runs: int = 1
    temperatures: tuple[float, ...] = (1.0,)
    peak: float = PEAK
    budget: int | None = None

    @property
    def name(self) -> str:
        several = f", {len(self.temperatures)} temperatures x {self.runs} runs" if self.passes > 1 else ""
        less = "" if self.peak == PEAK else ", less peaked"
        return f"{self.size}, {self.book} book{several}{less}"

    @property
    def alternative(self) -> tuple[str, str, float]:
        """What `generate` is measured on."""
        return self.size, self.book, self.peak

    @property
    def passes(self) -> int:
        return self.runs * len(self.temperatures)


CASES = (
    Case("110M", "closed", 40),
    Case("110M", "closed", 250, questions=32, runs=4, temperatures=(1.0, 0.5, 1.4)),
    Case("20M", "open", 40, budget=2**23),
    Case("20M", "closed"),
    Case("110M", "closed", peak=12.0),
    Case("110M", "closed", questions=32, runs=4, temperatures=(1.0, 0.5, 1.4), peak=12.0),
)
MEMORY = Case("20M", "open", 15, budget=2**23)


def network(size: str, peak: float = PEAK) -> LlamaForCausalLM:
    """A random model; its head has a bias so that answers end."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=END,
        initializer_range=0.05,
        **SHAPES[size],
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.lm_head = torch.nn.Linear(config.hidden_size, VOCABULARY).requires_grad_(False)
    model.lm_head.weight.normal_(std=peak / config.hidden_size**0.5)
    model.lm_head.bias.zero_()
    model.lm_head.weight[END] = 0
    model.lm_head.bias[END] = END_LOGIT[peak]
    return model


def tokenizer(size: int = VOCABULARY) -> Any:
    words = {f"w{i}": i for i in range(size)}
    level = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=level, bos_token="w1", eos_token=f"w{END}")


def prompts(book: str, count: int) -> list[Prompt]:
    """Random prompts of like, not equal length."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()

    shared, own = BOOKS[book]
    head = tokens(shared)
    spread = own // 4
    lengths = torch.randint(own - spread, own + spread + 1, (count,), generator=generator).tolist()
    return [Prompt(f"q{i}", (*head, *tokens(length))) for i, length in enumerate(lengths)]


Job = Callable[[], list[list[tuple[int, ...]]]]


def ours(net: LlamaForCausalLM, case: Case) -> tuple[Job, CausalLanguageModel]:
    """Sampling with semcal: all answers to each question in each run; and the model that samples."""
    model = CausalLanguageModel(net, tokenizer(), name=case.size, memory_budget=case.budget)
    asked = prompts(case.book, case.questions)
    recalibrators = [Temperature(t) for t in case.temperatures]
    seeds = range(case.runs)

    def sample() -> list[list[tuple[int, ...]]]:
        drawn = model.sample_runs(asked, recalibrators=recalibrators, m=M, seeds=seeds, max_new_tokens=STEPS)
        return [[d.token_ids for d in draws] for run in drawn for one in run for draws in one]

    return sample, model


def forget(model: CausalLanguageModel) -> None:
    """Let another prefix take the place of the shared one, which the model keeps from call to call."""
    model.greedy([Prompt("another", (3, 4))], recalibrator=Temperature(1.0), max_new_tokens=1)


def generate(net: LlamaForCausalLM, book: str) -> Callable[[], object]:
    """Sampling with transformers."""
    asked = prompts(book, BATCH)
    longest = max(len(prompt.token_ids) for prompt in asked)
    rows = [(0,) * (longest - len(prompt.token_ids)) + prompt.token_ids for prompt in asked]
    ids = torch.tensor(rows)
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        num_return_sequences=M,
        max_new_tokens=STEPS,
        eos_token_id=END,
        pad_token_id=0,
    )
    mask = (ids != 0).long()
    return lambda: net.generate(ids, attention_mask=mask, generation_config=config)


def seconds(job: Callable[[], object]) -> float:
    start = process_time()
    job()
    return process_time() - start


def speeds(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Rows for cases with one alternative: CPU time of a question and run, all ways in turn."""
    size, book, peak = cases[0].alternative
    net = network(size, peak)
    plain, jobs = generate(net, book), [ours(net, case) for case in cases]
    answers = [job() for job, _ in jobs]
    theirs: list[float] = []
    mine: list[list[float]] = [[] for _ in cases]
    for _ in range(ROUNDS):
        theirs.append(seconds(plain) / BATCH)
        for case, (job, model), times in zip(cases, jobs, mine, strict=True):
            forget(model)
            times.append(seconds(job) / case.questions / case.passes)
    for case, drawn, times in zip(cases, answers, mine, strict=True):
        ratios = [b / a for a, b in zip(times, theirs, strict=True)]
        medians = statistics.median(times) * 1e3, statistics.median(theirs) * 1e3
        yield _row(f"{case.name}, ms a question and run ({_said(drawn)})", *medians, ratios, case.target)


def _said(answers: list[list[tuple[int, ...]]]) -> str:
    """How long the answers are, and how many of them differ."""
    tokens = statistics.mean(len(ids) for draws in answers for ids in draws)
    distinct = statistics.mean(len(set(draws)) for draws in answers)
    return f"answers of {tokens:.1f} tokens, {distinct:.1f} of {M} distinct"


def _row(what: str, mine: float, theirs: float, ratios: list[float], target: float) -> dict[str, Any]:
    return {
        "what": what,
        "semcal": mine,
        "generate": theirs,
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
        "to reach": "" if target != target else f">= {target:g}",
    }


def memory() -> dict[str, Any]:
    """One row: what sampling adds to a process at its peak, MB."""
    mine, theirs = (_peak(way) for way in ("ours", "generate"))
    what = f"{MEMORY.name}, peak memory, MB ({MEMORY.questions} questions; generate: {BATCH})"
    return _row(what, mine, theirs, [theirs / mine], MEMORY.target)


def _peak(way: str) -> float:
    """The peak of a fresh process that samples one way."""
    command = [sys.executable, "-m", "benchmarks.sampling", "--peak", way]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _measure_peak(way: str) -> float:
    """Of this process: MB that one way adds (Linux: the high-water mark is reset before)."""
    net = network(MEMORY.size)
    job = ours(net, MEMORY)[0] if way == "ours" else generate(net, MEMORY.book)
    Path("/proc/self/clear_refs").write_text("5")
    before = _high_water()
    job()
    return (_high_water() - before) / 1024


def _high_water() -> float:
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0])


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return list(_rows())


def _rows() -> Iterator[dict[str, Any]]:
    for alternative in dict.fromkeys(case.alternative for case in CASES):
        yield from speeds([case for case in CASES if case.alternative == alternative])
    yield memory()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        torch.set_num_threads(1)
        print(_measure_peak(sys.argv[2]))
    else:
        from benchmarks.__main__ import table

        print(table(results()))
