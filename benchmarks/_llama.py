"""Sampling over llama.cpp's server with a quantized model, as `tools.llama_server` starts it."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks import NotRun
from semcal.demo.paths import language_model_dir
from tools.llama_server import SLOTS, llama_server

Tokens = tuple[int, ...]


@contextmanager
def llama(model: Path) -> Iterator[Llama]:
    """Serve this GGUF during the block."""
    with tempfile.TemporaryDirectory() as folder, llama_server(model, log=Path(folder) / "log") as url:
        yield Llama(url.removesuffix("/v1"))


@contextmanager
def embedded_server() -> Iterator[str]:
    """Serve the embedded model in float32 during the block, and yield the URL."""
    if find_spec("xllamacpp") is None or find_spec("gguf") is None:
        raise NotRun("xllamacpp and gguf")
    from tools.gguf import write_gguf

    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "atlas.gguf"
        write_gguf(language_model_dir(), model)
        with llama_server(model, log=Path(place) / "log") as url:
            yield url


class Llama:
    """A server; requests run in parallel in its slots, and each slot keeps its last prompt."""

    def __init__(self, host: str) -> None:
        self._host, self._seed = host, 0

    def sample(self, asked: Sequence[Tokens], *, draws: int, steps: int) -> tuple[float, list[list[Tokens]]]:
        """Return CPU seconds of the server, and tokens ``[question][sample]`` with log-probabilities."""
        before = _seconds_of_children()
        with ThreadPoolExecutor(SLOTS) as threads:
            drawn = list(
                threads.map(
                    lambda prompt: self._draw(prompt, steps), [p for p in asked for _ in range(draws)]
                )
            )
        spent = _seconds_of_children() - before
        return spent, [drawn[i : i + draws] for i in range(0, len(drawn), draws)]

    def _draw(self, prompt: Tokens, steps: int) -> Tokens:
        self._seed += 1
        body = {
            "prompt": prompt,
            "n_predict": steps,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "samplers": ["temperature"],
            "seed": self._seed,
            "cache_prompt": True,
            "n_probs": 1,
            "return_tokens": True,
        }
        request = urllib.request.Request(
            f"{self._host}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            found = json.load(reply)
        assert found["completion_probabilities"]
        return tuple(found["tokens"])


def _seconds_of_children() -> float:
    """Return the CPU seconds of this process's living children (Linux)."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")
