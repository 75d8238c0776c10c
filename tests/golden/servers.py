"""Commands over the fake server: what kinds of servers give, and faults on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.golden.invoking import store_output
from tests.golden.questions import mill_questions, served_questions, write_rows
from tests.servers.fake_server import LLAMA, OPENAI, FakeServer
from tests.servers.fault_proxy import FaultProxy

#: Kind of server → its switches in the fake server.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"drawn_takes_a_place": True},
    "vllm-processed": {"log_probs": "scaled", "max_top_logprobs": -1},
    "llama.cpp": {**LLAMA, "halves_lost": True},
    "openai": OPENAI,
    "one-choice": {"n_ignored": True, "log_probs": None, "no_usage": True},
    "busy": {"busy": 1, "retry_after": "0"},
    "thinking": {"reasons": "field"},
    "truncating": {"truncates": "always", "log_probs": "masked"},
}
#: Options beside those of all kinds.
OPTIONS: Mapping[str, Sequence[object]] = {
    "llama.cpp": ("--temperature", 0.7),
    "openai": ("--temperature", 0.7),
    "thinking": ("--max-new-tokens", 60),
    "truncating": ("--config", "server.allow_truncation=true"),
}
#: What happens to replies; not what is noticed or not as the next request comes sooner or later.
FAULTS = (
    "refuse",
    "lose",
    "cut",
    "too many",
    "broken",
    "busy",
    "truncated",
    "html",
    "types",
    "error",
    "garbage",
)
#: One request at a time, so that notes and counts come in one order.
IN_TURN = ("--config", "server.concurrency=1")


def write_served() -> None:
    """Ask servers of all kinds; calibrate, fit and ask over one; lose replies and questions."""
    questions = write_rows("questions.jsonl", served_questions())
    for kind, switches in KINDS.items():
        with FakeServer(**switches) as server:
            _probe_and_sample(kind, questions, server)
    with FakeServer(log_probs="scaled", refused=("mill 3?",)) as server:
        _learn_and_ask(questions, server)
    _sample_with_faults()


def _probe_and_sample(kind: str, questions: str, server: FakeServer) -> None:
    store_output(f"probe-{kind}", "probe", server.url, "--json")
    sampling = ("--model", server.name, "--m", 3, "--seed", 3, *IN_TURN, *OPTIONS.get(kind, ()))
    store_output(f"sample-{kind}", "sample", questions, *sampling)


def _learn_and_ask(questions: str, server: FakeServer) -> None:
    """A question that the server refuses is left out of what is learnt."""
    labelled = write_rows("labelled.jsonl", mill_questions(24))
    served = ("--model", server.name, "--equivalence", "exact", *IN_TURN)
    learning = (labelled, *served, "--m", 4)
    store_output("calibrate", "calibrate", *learning, "--risk", 0.6, "--out", "calibration", exit_code=1)
    store_output("fit", "fit", *learning, "--method", "TS-grid", "--out", "fitted", exit_code=1)
    calibrated = ("--model", server.name, "--calibration", "calibration", *IN_TURN)
    store_output("ask-calibrated", "ask", questions, *calibrated)
    store_output("ask-recalibrated", "ask", questions, *served, "--recalibrator", "fitted", "--m", 5)


def _sample_with_faults() -> None:
    """Replies that are damaged or never come are asked for again; some questions the server refuses."""
    questions = write_rows("mills.jsonl", mill_questions(16))
    switches: dict[str, Any] = {"log_probs": "scaled", "refused": ("mill 5?", "mill 6?")}
    faults: dict[str, Any] = {"share": 0.3, "seed": 2, "faults": FAULTS, "at_most": 2}
    with FakeServer(**switches) as server, FaultProxy(server.port, **faults) as proxy:
        sampling = ("sample", questions, "--model", f"openai:{proxy.url}#fake", "--m", 4, *IN_TURN)
        store_output("sample-with-faults", *sampling, exit_code=1)
        Path("faults.txt").write_text("".join(f"{name} {n}\n" for name, n in sorted(proxy.faults.items())))
