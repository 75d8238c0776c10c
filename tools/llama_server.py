"""Serve a GGUF with llama.cpp's HTTP server, in float32, for tests and trials.

    python -m tools.llama_server atlas.gguf --port 8191        # until Ctrl-C
    python -m tools.llama_server qwen-1.5b.gguf --name qwen --threads 2 --slots 5 --tokens 2048

Keys, values and attention are float32, so log-probabilities equal those of transformers within 1e-4 (with
llama.cpp's flash attention, which rounds to float16, within 2e-2). By default it has one thread, answers four
requests at a time, and a prompt with its answer may have 1,024 tokens. The package xllamacpp is needed, which
contains llama.cpp as a wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOTS = 4
TOKENS = 1024
#: The code of float32 in ggml.
FLOAT32 = 0


@contextmanager
def llama_server(model: Path, *, name: str = "atlas", log: Path, patience: float = 60.0) -> Iterator[str]:
    """Serve a GGUF in a new process during the block, and yield its URL, http://127.0.0.1:PORT/v1.

    Parameters
    ----------
    model : Path
        The GGUF.
    name : str
        The name of the model in requests.
    log : Path
        File for the messages of the server.
    patience : float
        Maximum number of seconds until the server is ready.

    Raises
    ------
    RuntimeError
        If the server ended or was not ready in time; the message has the end of its log.
    """
    program = [sys.executable, "-m", "tools.llama_server"]
    command = [*program, str(model.resolve()), "--name", name, "--with-parent"]
    with log.open("wb") as said:
        server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address or not _ready(address, patience):
            raise RuntimeError(
                f"llama.cpp's server did not start:\n{log.read_text(errors='replace')[-2000:]}"
            )
        yield f"{address}/v1"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        if server.stdout is not None:
            server.stdout.close()


def _ready(address: str, patience: float) -> bool:
    """Return whether /health reports "ok" within `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as reply:
                if json.load(reply).get("status") == "ok":
                    return True
        except OSError:  # 503 during the load of the model
            pass
        time.sleep(0.05)
    return False


def serve(
    model: Path, *, port: int, name: str, threads: int, slots: int, tokens: int, with_parent: bool
) -> None:
    """Serve a GGUF until the process ends, and print the address as one line on stdout."""
    import xllamacpp

    how = xllamacpp.CommonParams()
    how.model.path = str(model)
    how.model_alias = {name}
    how.hostnames, how.port = ["127.0.0.1"], port
    how.n_ctx, how.n_parallel = tokens * slots, slots
    how.cache_type_k = how.cache_type_v = FLOAT32
    how.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    how.cpuparams.n_threads = how.cpuparams_batch.n_threads = threads
    how.warmup = False
    server = xllamacpp.Server(how)
    print(server.listening_address, flush=True)
    parent = os.getppid()
    while not with_parent or os.getppid() == parent:
        time.sleep(0.5)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tools.llama_server", description="Serve a GGUF.")
    parser.add_argument("model", type=Path, help="GGUF file, such as that of python -m tools.gguf")
    parser.add_argument("--port", type=int, default=0, help="port; 0 (default) for a free one")
    parser.add_argument("--name", default="atlas", help="name of the model in requests")
    parser.add_argument("--threads", type=int, default=1, help="threads of the processor; 1 by default")
    parser.add_argument("--slots", type=int, default=SLOTS, help=f"requests at a time; {SLOTS} by default")
    parser.add_argument(
        "--tokens", type=int, default=TOKENS, help=f"tokens of a prompt and its answer; {TOKENS} by default"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when the parent process ends")
    options = parser.parse_args()
    try:
        serve(**vars(options))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
