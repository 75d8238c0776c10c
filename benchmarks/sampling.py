"""Sampling ten answers to a question, compared with `generate`, a copied prefix, vLLM and llama.cpp.

    python -m benchmarks.sampling [real|rate]    # only one part
    SEMCAL_VLLM_PYTHON=FOLDER/bin/python python -m benchmarks.sampling    # tools.vllm_server installs it
    SEMCAL_REAL_MODEL=smollm2.gguf SEMCAL_DATA=FOLDER python -m benchmarks.sampling

Random Llama-shaped models of 110M and 20M parameters with 32,000 tokens and peaked logits (standard deviation
24; "less peaked": 12). Closed book: prompts share 262 tokens and have 24 of their own; open book: 845 and
214. Answers end after 5 tokens on average, and after 10 at the latest. `generate` gets batches of 4
questions, `num_return_sequences=10, do_sample=True, top_k=0`. The 110M model is also sampled by transformers
with one computation of the shared prefix, copied to all rows (`_copied_prefix`), and by vLLM on the CPU, in a
separate process, with prefix caching and log-probabilities at T (`_vllm`; it does not support a bias of the
head, and gets a `logit_bias` instead). Log-probabilities and lengths of their answers are compared with ours
first. CPU time of one thread, programs in turn, medians with the smallest and the largest ratio. Open book
has a memory budget of 8 MiB. Memory is the peak increase in a new process with the model.

Real: SmolLM2-135M-Instruct, five-shot TriviaQA, with semcal and vLLM in float32 and llama.cpp's server in
Q4_1 (CPU time of that process), each with log-probabilities at T = 1. SEMCAL_REAL_MODEL is the GGUF; if a
folder of the same name without .gguf has the float32 weights, these are used.

Rate: operations of the 110M model for its rows (PyTorch's counter) per second, compared with a product of
two matrices of 2048 × 2048, in turn. Products of the model's weights alone show what its shapes allow.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from time import process_time
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch.utils.flop_counter import FlopCounterMode
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import semcal
from benchmarks import DATA, _copied_prefix, not_run
from benchmarks._llama import llama
from benchmarks._vllm import Answer, Vllm
from semcal.data import read_questions
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import SampleRequest
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


PLAIN, COPIED, VLLM, LLAMA = "generate", "transformers, prefix copied", "vLLM", "llama.cpp's server, Q4"
PRODUCT = "a product of matrices"
UNSTATED = float("nan")


@dataclass(frozen=True)
class Case:
    """A model, prompts, and the numbers of runs and temperatures that share a pass."""

    size: str
    book: str
    targets: Mapping[str, float]  # opponent → target ratio
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
        """The case for `generate`."""
        return self.size, self.book, self.peak

    @property
    def passes(self) -> int:
        return self.runs * len(self.temperatures)

    @property
    def rounds(self) -> int:
        """The number of rounds of other programs: many passes take long, and vary less."""
        return ROUNDS if self.passes == 1 else 1


TWELVE: Any = {"questions": 32, "runs": 4, "temperatures": (1.0, 0.5, 1.4)}
CASES = (
    Case("110M", "closed", {PLAIN: 40, COPIED: UNSTATED, VLLM: 10}),
    Case("110M", "closed", {PLAIN: 250, COPIED: UNSTATED, VLLM: 60}, **TWELVE),
    Case("20M", "open", {PLAIN: 40}, budget=2**23),
    Case("20M", "closed", {PLAIN: UNSTATED}),
    Case("110M", "closed", dict.fromkeys((PLAIN, COPIED, VLLM), UNSTATED), peak=12.0),
    Case("110M", "closed", {PLAIN: UNSTATED}, **TWELVE, peak=12.0),
)
MEMORY = Case("20M", "open", {PLAIN: 15}, budget=2**23)
SHOTS, REAL = 5, 16  # examples before a real question, and real questions
SIDE, TIMES, ROWS = 2048, 4, 300  # of a square matrix, products of it at a time, and rows of a typical pass
CHECKED, TOLERANCE, STANDARD_ERRORS = 2, 1e-3, 5.0  # questions; of log-probabilities; of the mean length
QUICK = {
    "CASES": (
        replace(CASES[0], size="20M", questions=2),
        replace(CASES[1], size="20M", questions=2, runs=2),
        replace(CASES[2], questions=2),
    ),
    "BOOKS": {"closed": (20, 8), "open": (30, 12)},
    "MEMORY": replace(MEMORY, book="closed", questions=1),
    "BATCH": 1,
    "ROUNDS": 1,
    "REAL": 1,
    "SIDE": 256,
}


def network(size: str, peak: float = PEAK) -> LlamaForCausalLM:
    """Return a random model with a bias of its head, so that answers end."""
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


def tokenizer(size: int | None = None) -> Any:
    words = {f"w{i}": i for i in range(size or VOCABULARY)}
    level = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=level, bos_token="w1", eos_token=f"w{END}")


def prompts(book: str, count: int) -> list[Prompt]:
    """Return random prompts of similar length."""
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
    """Sample with semcal: all answers to each question in each run, and the model."""
    model = CausalLanguageModel(net, tokenizer(), name=case.size, memory_budget=case.budget)
    asked = prompts(case.book, case.questions)
    recalibrators = [Temperature(t) for t in case.temperatures]
    seeds = range(case.runs)

    def sample() -> list[list[tuple[int, ...]]]:
        drawn = model.sample(
            SampleRequest(asked, recalibrators=recalibrators, m=M, seeds=seeds, max_new_tokens=STEPS)
        )
        return [[d.token_ids for d in draws] for run in drawn for one in run for draws in one]

    return sample, model


def forget(model: CausalLanguageModel) -> None:
    """Replace the shared prefix that the model keeps between calls."""
    model.greedy([Prompt("another", (3, 4))], recalibrator=Temperature(1.0), max_new_tokens=1)


def generate(net: LlamaForCausalLM, book: str, count: int) -> Callable[[], object]:
    """Sample with transformers for a number of questions."""
    asked = prompts(book, count)
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


def copied(net: LlamaForCausalLM, case: Case) -> list[list[Answer]]:
    """Sample with transformers and one prefix computation: ``[question][temperature, run and sample]``."""
    asked = [prompt.token_ids for prompt in prompts(case.book, case.questions)]
    return _copied_prefix.sample(
        net, asked, temperatures=case.temperatures, draws=M * case.runs, end=END, steps=STEPS
    )


def vllm_job(case: Case) -> dict[str, Any]:
    """Return the job for vLLM."""
    return {
        "prompts": [prompt.token_ids for prompt in prompts(case.book, case.questions)],
        "temperatures": case.temperatures,
        "draws": M * case.runs,
        "steps": STEPS,
        "end": END,
        "bias": END_LOGIT[case.peak],
    }


def start_vllm(net: LlamaForCausalLM, jobs: Sequence[dict[str, Any]], stack: ExitStack) -> Vllm | None:
    """Start vLLM with the model, if it is installed."""
    python = os.environ.get("SEMCAL_VLLM_PYTHON")
    if python is None:
        return None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    weights = {name: weight for name, weight in net.state_dict().items() if name != "lm_head.bias"}
    net.save_pretrained(folder, state_dict=weights)
    return stack.enter_context(Vllm(python, folder, jobs))


def check(model: CausalLanguageModel, case: Case, theirs: Sequence[Sequence[Answer]], length: float) -> None:
    """Compare log-probabilities at each temperature, and the mean length of answers, with ours."""
    asked, each = prompts(case.book, case.questions)[:CHECKED], M * case.runs
    for i, temperature in enumerate(case.temperatures):
        given = [drawn[i * each : (i + 1) * each] for drawn in theirs[:CHECKED]]
        answers = [[ids for ids, _ in drawn] for drawn in given]
        scored = model.score(asked, answers, recalibrator=Temperature(temperature))
        pairs = zip(chain.from_iterable(scored), chain.from_iterable(given), strict=True)
        apart = max(abs(a - b) for ours, (_, one) in pairs for a, b in zip(ours, one, strict=True))
        if apart > TOLERANCE:
            raise SystemExit(f"{case.name}: log-probabilities differ by {apart:.2g} at T = {temperature}")
    lengths = [statistics.mean(len(ids) for ids, _ in drawn) for drawn in theirs]
    mean, spread = statistics.mean(lengths), statistics.stdev(lengths) / len(lengths) ** 0.5
    if abs(mean - length) > STANDARD_ERRORS * spread:
        raise SystemExit(f"{case.name}: their answers have {mean:.2f} tokens, ours {length:.2f}")


def seconds(job: Callable[[], object]) -> float:
    start = process_time()
    job()
    return process_time() - start


def speeds(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield rows for cases of one model and book: CPU time per question and run, all programs in turn."""
    size, book, peak = cases[0].alternative
    net = network(size, peak)
    plain, jobs = generate(net, book, BATCH), [ours(net, case) for case in cases]
    answers = [job() for job, _ in jobs]
    rounds: list[list[dict[str, float]]] = [[] for _ in cases]
    with ExitStack() as stack:
        others = _others(net, cases, stack)
        for number in range(ROUNDS):
            of_plain = seconds(plain) / BATCH
            for case, (job, model), drawn, ways, times in zip(
                cases, jobs, answers, others, rounds, strict=True
            ):
                forget(model)
                took = {"semcal": seconds(job)}
                for name, way in ways.items() if number < case.rounds else ():
                    took[name], theirs = way()
                    check(model, case, theirs, _length(drawn))
                share = case.questions * case.passes
                times.append({PLAIN: of_plain, **{name: time / share for name, time in took.items()}})
    for case, drawn, times in zip(cases, answers, rounds, strict=True):
        what = f"{case.name}, ms per question and run ({_said(drawn)})"
        for name, target in case.targets.items():
            both = [(one["semcal"] * 1e3, one[name] * 1e3) for one in times if name in one]
            if both:
                mine, theirs = zip(*both, strict=True)
                yield _row(what, name, mine, theirs, target)
            else:
                how = "SEMCAL_VLLM_PYTHON=FOLDER/bin/python (python -m tools.vllm_server install FOLDER)"
                yield {"what": what, "against": f"{name}: {not_run(how)}"}


Way = Callable[[], tuple[float, list[list[Answer]]]]


def _others(net: LlamaForCausalLM, cases: Sequence[Case], stack: ExitStack) -> list[dict[str, Way]]:
    """Return the programs besides `generate` by case; each returns CPU seconds and answers."""
    found: list[dict[str, Way]] = [{} for _ in cases]
    for case, ways in zip(cases, found, strict=True):
        if COPIED in case.targets:
            ways[COPIED] = partial(_timed, partial(copied, net, case))
    asked = [i for i, case in enumerate(cases) if VLLM in case.targets]
    if asked and (vllm := start_vllm(net, [vllm_job(cases[i]) for i in asked], stack)):
        for number, i in enumerate(asked):
            found[i][VLLM] = partial(vllm.run, number)
    return found


def _timed(job: Callable[[], list[list[Answer]]]) -> tuple[float, list[list[Answer]]]:
    start = process_time()
    answers = job()
    return process_time() - start, answers


def _length(answers: list[list[tuple[int, ...]]]) -> float:
    """Return the mean number of tokens."""
    return statistics.mean(len(ids) for draws in answers for ids in draws)


def _said(answers: list[list[tuple[int, ...]]]) -> str:
    """Return the length of answers and the number of distinct ones, as text."""
    distinct = statistics.mean(len(set(draws)) for draws in answers)
    return f"answers of {_length(answers):.1f} tokens, {distinct:.1f} of {M} distinct"


def _row(
    what: str, against: str, mine: Sequence[float], theirs: Sequence[float], target: float
) -> dict[str, Any]:
    """Return medians over the rounds."""
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    return {
        "what": what,
        "against": against,
        "semcal": statistics.median(mine),
        "theirs": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
        "to reach": "" if target != target else f">= {target:g}",
    }


def rate() -> list[dict[str, Any]]:
    """Compare operations per second of sampling, and of the layers alone, with those of a large product."""
    case = CASES[0]
    net = network(case.size)
    job, model = ours(net, case)
    job()
    forget(model)
    with FlopCounterMode(display=False) as counted:
        job()
    weights = [module.weight.T for module in net.modules() if isinstance(module, torch.nn.Linear)]
    states = {weight.shape[0]: torch.randn(ROWS, weight.shape[0]) for weight in weights}
    square = torch.randn(SIDE, SIDE)
    jobs: dict[str, tuple[Callable[[], object], float]] = {
        f"{case.name}, ms for 10⁹ operations": (job, counted.get_total_flops()),
        f"{case.size}, its layers alone with {ROWS} rows": (
            lambda: [states[weight.shape[0]] @ weight for weight in weights],
            2.0 * ROWS * sum(weight.numel() for weight in weights),
        ),
        PRODUCT: (lambda: [square @ square for _ in range(TIMES)], 2.0 * TIMES * SIDE**3),
    }
    took: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        forget(model)
        for name, (run, operations) in jobs.items():
            took[name].append(seconds(run) / operations * 1e12)
    product = took.pop(PRODUCT)
    targets = (0.75, UNSTATED)
    return [_row(name, PRODUCT, mine, product, goal) for (name, mine), goal in zip(took.items(), targets)]


def real() -> list[dict[str, Any]]:
    """Yield rows of SmolLM2 on TriviaQA: CPU seconds per question with ten samples, all programs in turn."""
    file, data = (os.environ.get(name, "") for name in ("SEMCAL_REAL_MODEL", DATA))
    needed: dict[str, Any] = {"SEMCAL_REAL_MODEL, SmolLM2's GGUF (python -m tools.real_model FOLDER)": file}
    needed |= {f"{DATA}, the folder of public data": data, "xllamacpp": find_spec("xllamacpp")}
    if missing := [name for name, there in needed.items() if not there]:
        return [{"what": "SmolLM2", "against": f"{LLAMA}: {not_run(' and '.join(missing))}"}]
    gguf = Path(file)
    model = semcal.load_model(gguf.with_suffix("") if gguf.with_suffix("").is_dir() else gguf)
    assert isinstance(model, CausalLanguageModel)
    source = Path(data) / "triviaqa_train_sample.jsonl.gz"
    questions: Any = list(islice(read_questions(source), SHOTS + REAL))
    asked = [
        prompt for _, prompt, _ in PromptConfig(tuple(questions[:SHOTS])).read(model, questions[SHOTS:])[0]
    ]
    tokens = [prompt.token_ids for prompt in asked]

    def sample() -> list[list[tuple[int, ...]]]:
        forget(model)
        drawn = model.sample(
            SampleRequest(asked, recalibrators=[Temperature(1.0)], m=M, seeds=[0], max_new_tokens=STEPS)
        )
        return [[d.token_ids for d in draws] for draws in drawn[0][0]]

    answers, times = sample(), list[dict[str, float]]()
    with ExitStack() as stack:
        server = stack.enter_context(llama(gguf))
        server.sample(tokens[:2], draws=1, steps=1)
        for _ in range(ROUNDS):
            spent, drawn = server.sample(tokens, draws=M, steps=STEPS)
            times.append({"semcal": seconds(sample) / REAL, LLAMA: spent / REAL})
    what = f"SmolLM2, {SHOTS}-shot TriviaQA, s per question ({_said(answers)}; llama.cpp: {_said(drawn)})"
    mine, theirs = ([one[way] for one in times] for way in ("semcal", LLAMA))
    return [_row(what, LLAMA, mine, theirs, 5)]


def memory() -> dict[str, Any]:
    """Return one row: the peak increase of memory by sampling, in MB."""
    mine, theirs = (_peak(way) for way in ("ours", "generate"))
    what = f"{MEMORY.name}, peak memory, MB ({MEMORY.questions} questions; generate: {BATCH})"
    return _row(what, PLAIN, [mine], [theirs], MEMORY.targets[PLAIN])


def _peak(way: str) -> float:
    """Return the peak of a new process that samples with one program."""
    command = [sys.executable, "-m", "benchmarks.sampling", "--peak", way, MEMORY.book, str(MEMORY.questions)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _measure_peak(way: str, book: str, questions: int) -> float:
    """Return the increase of this process's memory in MB (Linux: the high-water mark is reset before)."""
    net = network(MEMORY.size)
    case = replace(MEMORY, book=book, questions=questions)
    job = ours(net, case)[0] if way == "ours" else generate(net, book, min(BATCH, questions))
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
    yield from real()
    yield from rate()
    for alternative in dict.fromkeys(case.alternative for case in CASES):
        yield from speeds([case for case in CASES if case.alternative == alternative])
    yield memory()


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table of all parts, or of one part."""
    from benchmarks.__main__ import table

    torch.set_num_threads(1)
    if arguments[:1] == ["--peak"]:
        print(_measure_peak(arguments[1], arguments[2], int(arguments[3])))
        return
    parts = {"real": real, "rate": rate, "": results}
    print(table(parts[arguments[0] if arguments else ""]()))


if __name__ == "__main__":
    main(sys.argv[1:])
