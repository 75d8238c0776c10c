"""Ten sampled answers and their log-probabilities, compared with other installed programs.

    python -m benchmarks.peers

The model and prompts of `sampling` (110M, closed book, peaked logits). lm-polygraph: its sampling calculator,
on texts of the same tokens in batches of 4 questions, `top_k=0` (its minimum is two tokens); CPU time of one
thread. vLLM, with a CUDA device: `n=10` on the same prompts with prefix caching, wall time; it does not
support a bias of the head, which ends our answers, so all its answers have their mean length. Neither program
is a dependency; a missing program has a row that says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from benchmarks import not_run
from benchmarks.sampling import BATCH, CASES, END, STEPS, M, forget, network, ours, prompts, tokenizer

CASE = CASES[0]
QUICK = {"CASE": replace(CASE, size="20M", questions=1), "BATCH": 1}


def lm_polygraph(net: Any) -> Callable[[], object]:
    """Sample a batch with lm-polygraph."""
    from lm_polygraph.stat_calculators import SamplingGenerationCalculator
    from lm_polygraph.utils.generation_parameters import GenerationParameters
    from lm_polygraph.utils.model import WhiteboxModel

    words = tokenizer()
    words.pad_token, words.padding_side = "w0", "left"
    settings = GenerationParameters(top_k=0, allow_newlines=True)  # else it decodes all tokens in every call
    model = WhiteboxModel(net, words, generation_parameters=settings)
    texts = [words.decode(prompt.token_ids) for prompt in prompts(CASE.book, BATCH)]
    calculator = SamplingGenerationCalculator(samples_n=M)
    return lambda: calculator({}, texts, model, max_new_tokens=STEPS)


def vllm(net: Any, length: int) -> Callable[[], object]:
    """Sample all questions with vLLM."""
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        weights = {name: weight for name, weight in net.state_dict().items() if name != "lm_head.bias"}
        net.save_pretrained(Path(folder), state_dict=weights)
        server = LLM(model=folder, skip_tokenizer_init=True, enable_prefix_caching=True, dtype="float32")
    asked = [{"prompt_token_ids": list(p.token_ids)} for p in prompts(CASE.book, CASE.questions)]
    settings = SamplingParams(n=M, max_tokens=length, logprobs=0, stop_token_ids=[END], detokenize=False)
    return lambda: server.generate(asked, settings, use_tqdm=False)


def _timed(job: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the seconds of the second call."""
    job()
    start = clock()
    job()
    return clock() - start


def _rows(with_polygraph: bool, with_vllm: bool) -> Iterator[dict[str, Any]]:
    net = network(CASE.size)
    sample, model = ours(net, CASE)

    def row(name: str, theirs: float | None, clock: Callable[[], float]) -> dict[str, Any]:
        forget(model)
        start = clock()
        sample()
        mine = (clock() - start) / CASE.questions
        if theirs is None:
            return {"against": name, "semcal, ms per question": mine * 1e3}
        figures = {"semcal, ms per question": mine * 1e3, "theirs, ms": theirs * 1e3}
        return {"against": name, **figures, "ratio": theirs / mine}

    if with_polygraph:
        yield row("lm-polygraph", _timed(lm_polygraph(net), process_time) / BATCH, process_time)
    else:
        yield row(f"lm-polygraph: {not_run('lm-polygraph')}", None, process_time)
    if with_vllm:
        lengths = [len(answer) for draws in sample() for answer in draws]
        theirs = _timed(vllm(net, round(sum(lengths) / len(lengths))), perf_counter) / CASE.questions
        net.to("cuda")
        sample, model = ours(net, CASE)
        yield row("vLLM", theirs, perf_counter)
    else:
        yield {"against": f"vLLM: {not_run('vLLM and a CUDA device')}"}


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    found = find_spec("lm_polygraph") is not None, find_spec("vllm") is not None and torch.cuda.is_available()
    return list(_rows(*found))


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
