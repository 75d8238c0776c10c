"""Sampling with vLLM on a CPU, in a separate process and environment without modules of semcal.

A job is {prompts, temperatures, draws, steps, end, bias}. For each line with the number of a job, the process
does the job, writes the samples, and prints its CPU seconds. Prefix caching is on, and empty at the beginning
of a job; log-probabilities are those at T.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from time import process_time
from typing import Any

#: The sampled tokens of an answer, with log-probabilities.
Answer = tuple[tuple[int, ...], tuple[float, ...]]
DRAWN = ".drawn"
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Vllm:
    """The process from outside; leaving the context ends it."""

    def __init__(self, python: str, model: Path, jobs: Sequence[dict[str, Any]]) -> None:
        file = model / "jobs.json"
        file.write_text(json.dumps(jobs))
        self._drawn = file.with_suffix(DRAWN)
        self._process = subprocess.Popen(
            [python, "-P", __file__, str(model), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **SETTINGS},
        )

    def __enter__(self) -> Vllm:
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, job: int) -> tuple[float, list[list[Answer]]]:
        """Return CPU seconds, and tokens with log-probabilities: ``[question][temperature and sample]``."""
        assert self._process.stdin
        print(job, file=self._process.stdin, flush=True)
        seconds = float(self._read())
        found = json.loads(self._drawn.read_text())
        return seconds, [[(tuple(ids), tuple(log_probs)) for ids, log_probs in one] for one in found]

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"vLLM ended with exit code {self._process.wait()}")
        return line


def main(model: str, file: Path) -> None:
    """Run the process."""
    out, sys.stdout = sys.stdout, sys.stderr  # vLLM prints to stdout
    import torch
    from vllm import LLM

    torch.set_num_threads(1)
    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=256,
        block_size=32,  # the smallest; the cache holds whole blocks, and the default of 128 holds less
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        skip_tokenizer_init=True,
        seed=0,
    )
    jobs = json.loads(file.read_text())
    run(llm, {**jobs[0], "prompts": jobs[0]["prompts"][:2]})  # work of the first run only
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        start = process_time()
        outputs = run(llm, jobs[int(line)])
        seconds = process_time() - start
        file.with_suffix(DRAWN).write_text(json.dumps(drawn(outputs, jobs[int(line)])))
        print(seconds, file=out, flush=True)


def run(llm: Any, job: dict[str, Any]) -> Any:
    """Sample all answers of a job; one output for each question and temperature."""
    from vllm import SamplingParams

    how = [
        SamplingParams(
            n=job["draws"],
            temperature=temperature,
            max_tokens=job["steps"],
            stop_token_ids=[job["end"]],
            logit_bias={job["end"]: job["bias"]},
            logprobs=0,
            detokenize=False,
        )
        for temperature in job["temperatures"]
    ]
    llm.reset_prefix_cache()
    asked = [{"prompt_token_ids": prompt} for prompt in job["prompts"] for _ in how]
    return llm.generate(asked, how * len(job["prompts"]), use_tqdm=False)


def drawn(outputs: Sequence[Any], job: dict[str, Any]) -> list[Any]:
    """Return tokens and log-probabilities: ``[question][temperature and sample]``."""
    answers = [[_answer(one) for one in output.outputs] for output in outputs]
    each = len(job["temperatures"])
    return [list(chain(*answers[i : i + each])) for i in range(0, len(answers), each)]


def _answer(one: Any) -> tuple[list[int], list[float]]:
    pairs = zip(one.token_ids, one.logprobs, strict=True)
    return list(one.token_ids), [entry[token].logprob for token, entry in pairs]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
