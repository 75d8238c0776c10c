"""Fits from stored states, compared with running the language model at every training step.

    python -m benchmarks.recalibration

200 questions with 30 own tokens and an answer of 5 after a shared prefix of 262, a random Llama of 12 layers,
width 768 and 32,000 tokens. The plain method runs the whole model with logits at all positions in each step
of 4 questions; one such step is timed in each round and counted 50 times for an epoch. The pass that stores
the states is timed too; the fits use random states. CPU time of one thread, methods in turn, medians. Peak
memory is the increase of a fit in the process with the model and the states.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.sampling import forget, tokenizer
from semcal.models import CausalLanguageModel, Prompt
from semcal.recalibration import ATS, BlockShape, FitFeatures, Platt
from semcal.recalibration.exact_solver import fit_temperatures, mean_loss, tabulate
from semcal.recalibration.methods import paper_schedule
from semcal.recalibration.sgd_solver import fit_ats, fit_platt, fit_ts

QUESTIONS, BATCH, PREFIX, PROMPT, ANSWER, ROUNDS = 200, 4, 262, 30, 5, 3
WIDTH, INNER, LAYERS, HEADS, VOCABULARY = 768, 2048, 12, 12, 32_000
#: Targets: how many times faster than a plain epoch.
TARGETS = {
    "states, once": 10,
    "TS epoch from tables": 100,
    "Platt epoch": 100,
    "ATS epoch from tables": 50,
    "tables, once": None,
    "exact TS, five losses, tables included": 10,
}
SHAPE = BlockShape(WIDTH, INNER, HEADS, HEADS, WIDTH // HEADS)
QUICK: dict[str, Any] = {"QUESTIONS": 8, "PREFIX": 10, "PROMPT": 5, "ROUNDS": 1, "VOCABULARY": 400}
QUICK |= {"WIDTH": 32, "INNER": 64, "LAYERS": 1, "HEADS": 2, "SHAPE": BlockShape(32, 64, 2, 2, 16)}


def language_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.lm_head.weight.normal_(std=6 / WIDTH**0.5)
    return model


def stored(head: Callable[[Tensor], Tensor]) -> FitFeatures:
    """Return random states, and answers sampled from the head at T = 1.3."""
    g = torch.Generator().manual_seed(0)
    question = torch.arange(QUESTIONS)
    each = PROMPT + ANSWER - 1
    states = torch.randn(QUESTIONS * each, WIDTH, generator=g)
    features = FitFeatures(
        prefix=torch.randn(PREFIX, WIDTH, generator=g),
        states=states,
        whole=True,
        prompt_start=question * each,
        prompt_length=torch.full((QUESTIONS,), PROMPT),
        answer_question=question,
        answer_start=question * each + PROMPT,
        target_start=torch.arange(QUESTIONS + 1) * ANSWER,
        targets=torch.zeros(QUESTIONS * ANSWER, dtype=torch.long),
    )
    p = torch.softmax(head(states[features.predicting_rows()]) / 1.3, 1)
    features.targets[:] = torch.multinomial(p, 1, generator=g)[:, 0]
    return features


def plain_steps(model: LlamaForCausalLM) -> dict[str, Callable[[], object]]:
    """Return one training step of each method with the model in the loop."""
    length = PREFIX + PROMPT + ANSWER
    tokens = torch.randint(VOCABULARY, (BATCH, length))
    counted = (torch.arange(length - 1) >= PREFIX + PROMPT - 1).expand(BATCH, -1)
    where = torch.arange(length).expand(BATCH, -1)
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(BATCH, -1, -1)
    log_t, platt, ats = torch.zeros((), requires_grad=True), Platt(VOCABULARY), ATS(SHAPE)

    def step(parameters: list[Tensor], method: str) -> Callable[[], object]:
        optimiser = torch.optim.AdamW(parameters, paper_schedule(method).learning_rate)

        def once() -> None:
            with torch.no_grad():
                states = model.model(input_ids=tokens).last_hidden_state
                logits = model.lm_head(states)
            if method == "TS":
                log_probs = torch.log_softmax(logits / log_t.exp(), -1)
            elif method == "Platt":
                log_probs = platt.log_probs(logits)
            else:
                keys, values = ats.keys_values(states, where)
                beta = ats.inverse_temperature(states, where, keys, values, causal)
                log_probs = ats.log_probs(logits, beta)
            optimiser.zero_grad()
            mean_loss(log_probs[:, :-1][counted], tokens[:, 1:][counted], loss="NLL", alpha=None).backward()
            optimiser.step()

        return once

    return {
        "TS": step([log_t], "TS"),
        "Platt": step(list(platt.parameters()), "Platt"),
        "ATS": step(list(ats.parameters()), "ATS"),
    }


def reading(model: LlamaForCausalLM) -> Callable[[], object]:
    """Return the pass of the frozen model that stores the states of whole sequences."""
    g = torch.Generator().manual_seed(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, VOCABULARY, (count,), generator=g).tolist())

    shared = tokens(PREFIX)
    prompts = [Prompt(str(i), shared + tokens(PROMPT)) for i in range(QUESTIONS)]
    answers = [[tokens(ANSWER)] for _ in prompts]
    language_model = CausalLanguageModel(model, tokenizer(), name="110M")

    def read() -> object:
        forget(language_model)
        return language_model.features(prompts, answers, whole=True)

    return read


def peak_above(job: Callable[[], object]) -> float | None:
    """Return the peak increase of memory of a job in megabytes, None if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that was freed and kept would hide what the job needs
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    except (OSError, AttributeError):
        return None
    before = _resident("VmRSS")
    job()
    return (_resident("VmHWM") - before) / 1024


def _resident(field: str) -> int:
    """Return kilobytes from Linux's account of the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def seconds(job: Callable[[], object]) -> float:
    start = thread_time()
    job()
    return thread_time() - start


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    model = language_model()
    features = stored(model.lm_head)
    tables = tabulate(features, model.lm_head)
    plain = plain_steps(model)

    def of_paper(method: str) -> Any:
        schedule = paper_schedule(method)
        return {"schedule": type(schedule)(**{**vars(schedule), "epochs": 1, "batch_size": BATCH})}

    def ts() -> object:
        from warnings import catch_warnings, simplefilter

        with catch_warnings():
            simplefilter("ignore")  # one epoch is too short, which does not matter for times
            return fit_ts(features, model.lm_head, table=tables, **of_paper("TS"))

    ours: dict[str, tuple[str, Callable[[], object]]] = {
        "states, once": ("TS", reading(model)),
        "TS epoch from tables": ("TS", ts),
        "Platt epoch": ("Platt", lambda: fit_platt(features, model.lm_head, **of_paper("Platt"))),
        "ATS epoch from tables": (
            "ATS",
            lambda: fit_ats(features, model.lm_head, shape=SHAPE, table=tables, **of_paper("ATS")),
        ),
        "tables, once": ("TS", lambda: tabulate(features, model.lm_head)),
        "exact TS, five losses, tables included": ("TS", lambda: fit_temperatures(features, model.lm_head)),
    }
    return list(_rows(ours, plain))


def _rows(
    ours: dict[str, tuple[str, Callable[[], object]]], plain: dict[str, Callable[[], object]]
) -> Iterator[dict[str, Any]]:
    spent: dict[str, list[float]] = {name: [] for name in [*ours, *plain]}
    for _ in range(ROUNDS):
        for name, job in plain.items():
            spent[name].append(seconds(job) * QUESTIONS / BATCH)
        for name, (_, job) in ours.items():
            spent[name].append(seconds(job))
    median = {name: statistics.median(times) for name, times in spent.items()}
    for name, (method, job) in ours.items():
        yield {
            "fit": name,
            "seconds": median[name],
            "plain epoch, seconds": median[method],
            "times faster": median[method] / median[name],
            "target": TARGETS[name],
            "peak memory, MB": peak_above(job),
        }


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
