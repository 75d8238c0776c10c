"""Likelihoods of sampled answers, compared with a second forward pass of plain transformers.

    python -m benchmarks.likelihoods

A random Llama of 110M parameters with 32,000 tokens; all prompts share 262 tokens and have 24 of their own;
ten answers of 5 tokens on average. The plain method runs the ten sequences of each question, including
prompts, as one padded batch. For semcal, all work of sampling for likelihoods is counted: selecting the
log-probabilities of the sampled tokens and of an end of turn, cutting, looking up, and running the last
tokens of answers at the limit ("as drawn" has some, "whole" leaves them out). Its forward passes are those in
addition to sampling without likelihoods. CPU time of one thread, in turn, medians.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import thread_time
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.sampling import END, STEPS, VOCABULARY, M, network, prompts
from semcal.models import CausalLanguageModel, Generation, Prompt
from semcal.models.causal_lm import Rescoring
from semcal.models.engine import decoding, tree_cache
from semcal.models.engine.draw import Distributions
from semcal.models.protocols import GenerationCut, SampleRequest
from semcal.recalibration import Base

SIZE, QUESTIONS, ROUNDS = "110M", 32, 3
QUICK = {"SIZE": "20M", "QUESTIONS": 1, "ROUNDS": 1}
TEMPLATE = "{% for message in messages %} {{ message['content'] }} w2{% endfor %}"


def tokenizer() -> Any:
    """Return a tokenizer with words w0 … and an end of turn, w2."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    for i, word in enumerate(("Yes", "12", "no!"), 3):  # distinguished in the search for the end of a turn
        words[word] = words.pop(f"w{i}")
    level = Tokenizer(models.WordLevel(words, unk_token="w0"))
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=level, bos_token="w1", eos_token=f"w{END}")
    fast.chat_template = TEMPLATE
    return fast


def as_drawn(_: Prompt, draw: Generation) -> tuple[int, int, bool]:
    return 0, len(draw.text), True


def cut(_: Prompt, draw: Generation) -> tuple[int, int, bool]:
    """Return every answer up to its second word."""
    return 0, len(" ".join(draw.text.split(" ")[:2])), True


class Clock:
    """The time spent in some functions; nested calls count once."""

    def __init__(self) -> None:
        self.seconds, self.running = 0.0, False

    def timed(self, job: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.running:
                return job(*args, **kwargs)
            self.running, start = True, thread_time()
            try:
                return job(*args, **kwargs)
            finally:
                self.seconds, self.running = self.seconds + thread_time() - start, False

        return run

    def beyond(self, steps: int, job: Callable[..., Any]) -> Callable[..., Any]:
        """Drawing does it so often; once more is for the likelihoods."""
        calls = count()

        def run(*args: Any, **kwargs: Any) -> Any:
            return (self.timed(job) if next(calls) == steps else job)(*args, **kwargs)

        return run

    @contextmanager
    def around(self) -> Iterator[None]:
        kinds = [Distributions, *Distributions.__subclasses__()]
        places = [(kind, "log_probs_at") for kind in kinds if "log_probs_at" in vars(kind)]
        places += [(Rescoring, name) for name in ("rescored", "missing", "run_last_token")]
        patches = [patch.object(decoding, "advance", self.beyond(STEPS - 1, tree_cache.advance))]
        patches.append(patch.object(decoding, "choose_tokens", self.beyond(STEPS, decoding.choose_tokens)))
        patches += [patch.object(of, name, self.timed(getattr(of, name))) for of, name in places]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()


def mean(log_probs: tuple[float, ...]) -> float:
    return math.fsum(log_probs) / len(log_probs)


@torch.no_grad()
def plain(net: LlamaForCausalLM, prompt: Prompt, draws: list[Generation]) -> list[float]:
    """Return the mean log-probability of each answer from one forward pass over all of them."""
    start, longest = len(prompt.token_ids), max(len(d.token_ids) for d in draws)
    rows = [(*prompt.token_ids, *d.token_ids, *[END] * (longest - len(d.token_ids))) for d in draws]
    ids = torch.tensor(rows)
    log_probs = net(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.log_softmax(
        -1
    )
    scores = log_probs[:, start - 1 : -1].gather(2, ids[:, start:, None])[:, :, 0].tolist()
    return [math.fsum(row[: len(d.token_ids)]) / len(d.token_ids) for row, d in zip(scores, draws)]


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    net = network(SIZE)
    ran: list[int] = []
    net.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: ran.append(inputs[0].numel()))
    model = CausalLanguageModel(net, tokenizer(), name=SIZE)
    asked = prompts("closed", QUESTIONS)

    def sample(cutting: GenerationCut | None) -> tuple[list[list[Generation]], tuple[int, int]]:
        ran.clear()
        [draws] = model.sample(
            SampleRequest(asked, recalibrators=[Base()], m=M, max_new_tokens=STEPS, cut=cutting)
        )[0]
        return draws, (len(ran), sum(ran))

    sample(None)  # the shared prefix runs and is kept
    draws, before = sample(None)
    cases: dict[str, GenerationCut | None] = {
        "whole": None,
        "as drawn": as_drawn,
        "cut after the second word": cut,
    }
    spent: dict[str, list[float]] = {name: [] for name in (*cases, "plain")}
    forwards, worst = {}, 0.0
    for number in range(ROUNDS):
        for name, cutting in cases.items():
            clock = Clock()
            with clock.around():
                found, after = sample(cutting)
            start = thread_time()
            scores = [[mean(d.rescored or d.token_log_probs) for d in of] for of in found]
            spent[name].append((clock.seconds + thread_time() - start) / QUESTIONS)
            forwards[name] = (after[0] - before[0], after[1] - before[1])
            if name == "whole":
                drawn = scores
        start = thread_time()
        again = plain(net, asked[number], draws[number])
        spent["plain"].append(thread_time() - start)
        worst = max(worst, *(abs(a - b) for a, b in zip(again, drawn[number])))
    median = {name: statistics.median(times) for name, times in spent.items()}
    return [
        {
            "answers": name,
            "ms per question": median[name] * 1e3,
            "plain, ms": median["plain"] * 1e3,
            "times faster": median["plain"] / median[name],
            "additional forward passes": forwards[name][0],
            "tokens in them": forwards[name][1],
            "difference": worst if name == "whole" else float("nan"),
        }
        for name in cases
    ]


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
