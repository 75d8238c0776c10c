"""An 8B-shaped random model on a GPU: sampling against `generate`, features, and an exact fit of TS.

    python -m benchmarks.gpu

A random Llama in the shape of Llama 3 8B in bfloat16; closed book as in `sampling`. `generate` gets batches
of 16 and 64 questions, `do_sample=True, top_k=0, num_return_sequences=10`; transformers with a single
computation of the shared prefix (`_copied_prefix`) gets all questions, 320 or 1,280 rows at a time. TS is
fitted to one answer per question, sampled at T = 1.3. Seconds are wall time including the device; the first
round of each is not counted. Memory is the peak of the device's allocator without the weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks import NotRun, _copied_prefix
from benchmarks.sampling import END, END_LOGIT, PEAK, STEPS, VOCABULARY, M, forget, prompts, tokenizer
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.protocols import SampleRequest
from semcal.recalibration import Temperature
from semcal.recalibration.exact_solver import fit_temperatures

ROUNDS, T = 3, 1.3
SEVERAL = (Temperature(1.0), Temperature(0.5), Temperature(1.4))


@dataclass(frozen=True)
class Setting:
    """The shape of a model, its device, and the number of questions."""

    config: dict[str, int]
    device: str
    dtype: torch.dtype
    questions: int
    batches: tuple[int, ...]  # questions per batch for `generate`
    rows: tuple[int, ...]  # answers per batch with a copied prefix
    budget: int | None = None


LLAMA_8B = Setting(
    {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    device="cuda",
    dtype=torch.bfloat16,
    questions=512,
    batches=(16, 64),
    rows=(320, 1280),
)
TINY = {
    "vocab_size": 2_000,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QUICK = {"ROUNDS": 1, "LLAMA_8B": replace(LLAMA_8B, config=TINY, questions=6, batches=(2,), rows=(40,))}


def network(setting: Setting) -> LlamaForCausalLM:
    """Return a random model on its device, with peaked logits and answers that end."""
    torch.manual_seed(1)
    config = LlamaConfig(
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=END,
        initializer_range=0.02,
        dtype=setting.dtype,
        **setting.config,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with torch.device(setting.device):
            model = LlamaForCausalLM(config).eval().requires_grad_(False)
            model.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size).requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    model.lm_head.weight.normal_(std=PEAK / config.hidden_size**0.5)
    model.lm_head.bias.zero_()
    model.lm_head.weight[END] = 0
    more = (2 * log(config.vocab_size)) ** 0.5 - (
        2 * log(VOCABULARY)
    ) ** 0.5  # the maximum of so many is larger
    model.lm_head.bias[END] = END_LOGIT[PEAK] + PEAK * more
    return model


@dataclass(frozen=True)
class Measured:
    """The result of a job, its seconds, and its peak memory in MB (None without a GPU)."""

    found: Any
    seconds: float
    memory: float | None


def measured(job: Callable[[], Any], device: str, *, before: Callable[[], object] = lambda: None) -> Measured:
    """Run a job several times; `before` prepares each round and is not counted."""
    times = []
    for _ in range(1 + ROUNDS):
        before()
        start_memory = _settled(device)
        start = perf_counter()
        found = job()
        _settled(device, fresh=False)
        times.append(perf_counter() - start)
    peak = (torch.cuda.max_memory_allocated() - start_memory) / 2**20 if device == "cuda" else None
    return Measured(found, statistics.median(times[1:]), peak)


def _settled(device: str, *, fresh: bool = True) -> int:
    """Wait for the device, and return its used bytes."""
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    if fresh:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield one row for each job."""
    net = network(setting)
    vocabulary = setting.config["vocab_size"]
    model = CausalLanguageModel(net, tokenizer(vocabulary), name="random", memory_budget=setting.budget)
    asked = _within(prompts("closed", setting.questions), vocabulary)

    def row(what: str, one: Measured, questions: int, samples: int) -> dict[str, Any]:
        return {
            "what": what,
            "seconds": one.seconds,
            "questions per second": questions / one.seconds,
            "samples per second": samples / one.seconds if samples else None,
            "memory, MB": one.memory,
        }

    def sample(recalibrators: Sequence[Temperature], runs: int) -> Any:
        return model.sample(
            SampleRequest(asked, recalibrators=recalibrators, seeds=range(runs), m=M, max_new_tokens=STEPS)
        )

    for under, runs in ((SEVERAL[:1], 1), (SEVERAL, 4)):
        one = measured(lambda: sample(under, runs), setting.device, before=lambda: forget(model))  # noqa: B023
        lengths = [len(draw.token_ids) for run in one.found for of in run for draws in of for draw in draws]
        mean = statistics.mean(lengths)
        what = f"sampling, {len(under)} temperatures x {runs} runs ({model.attention}; {mean:.1f} tokens)"
        yield row(what, one, len(asked), len(asked) * M * runs * len(under))
    tokens = [prompt.token_ids for prompt in asked]
    for at_once in setting.rows:
        options: dict[str, Any] = {"temperatures": (1.0,), "draws": M, "end": END, "steps": STEPS}
        theirs = measured(
            lambda: _copied_prefix.sample(net, tokens, **options, rows=at_once),  # noqa: B023
            setting.device,
        )
        what = f"transformers, prefix copied to {at_once} rows, one temperature and run"
        yield row(what, theirs, len(asked), len(asked) * M)
    for batch in setting.batches:
        theirs = measured(generate(net, asked[:batch]), setting.device)
        yield row(f"generate, {batch} questions, one temperature and run", theirs, batch, batch * M)
    [drawn] = model.sample(SampleRequest(asked, recalibrators=[Temperature(T)], m=1, max_new_tokens=STEPS))[0]
    answers = [[draw.token_ids for draw in draws] for draws in drawn]
    features = measured(lambda: model.features(asked, answers), setting.device, before=lambda: forget(model))
    yield row("features, one answer each", features, len(asked), 0)
    fit = measured(
        lambda: fit_temperatures(features.found, model.logits, losses=[("NLL", None)]), setting.device
    )
    fitted = fit.found[0].certificate.temperature
    yield row(f"exact TS on them: {fitted:.2f} for answers sampled at T = {T}", fit, len(asked), 0)


def _within(asked: Sequence[Prompt], vocabulary: int) -> list[Prompt]:
    return [Prompt(p.question_id, tuple(3 + t % (vocabulary - 3) for t in p.token_ids)) for p in asked]


def generate(net: LlamaForCausalLM, asked: Sequence[Prompt]) -> Callable[[], object]:
    """Sample with transformers."""
    longest = max(len(prompt.token_ids) for prompt in asked)
    padded = [(0,) * (longest - len(prompt.token_ids)) + prompt.token_ids for prompt in asked]
    ids = torch.tensor(padded, device=net.device)
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        num_return_sequences=M,
        max_new_tokens=STEPS,
        eos_token_id=END,
        pad_token_id=0,
    )
    return lambda: net.generate(ids, attention_mask=(ids != 0).long(), generation_config=config)


def results() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        raise NotRun("a CUDA device")
    return list(rows(LLAMA_8B))


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
