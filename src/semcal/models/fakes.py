"""Public test doubles of both models: deterministic, exact, and without weights.

An example from a question to a semantic confidence:

>>> from semcal.models.clustering import cluster_answers
>>> from semcal.models.protocols import Prompt
>>> from semcal.data.question import chat
>>> from semcal.models.distribution import Base
>>> from semcal.measures import confidence
>>> from semcal.text.normal_form import normal_form
>>> question = "Who wrote it?"
>>> model = FakeLanguageModel({question: {"Ana Velis": 0.5, "A. Velis": 0.25, "Bo Tarn": 0.25}})
>>> prompt = Prompt("q1", model.encode(chat(question)))
>>> (((draws,),),) = model.sample(SampleRequest([prompt], [Base()], m=4, seeds=[8]))
>>> answers = [draw.text for draw in draws]
>>> answers
['Bo Tarn', 'A. Velis', 'Ana Velis', 'Ana Velis']
>>> equivalence = FakeEquivalence([{"ana velis", normal_form("A. Velis")}])
>>> clusters = cluster_answers([question], [answers], equivalence).clusters
>>> clusters
[[[0], [1, 2, 3]]]
>>> confidence(clusters, measure="E-SC").probabilities
array([0.25, 0.75])
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal.data.question import Turn
from semcal.errors import InputError, QuestionError, UsageError, naming_extra
from semcal.models.distribution import check_at_least_one, temperature_of, uniforms
from semcal.models.equivalence import FakeEquivalence
from semcal.models.protocols import (
    Answers,
    Capabilities,
    Generation,
    GenerationCut,
    Prompt,
    SampleRequest,
    StateReader,
)
from semcal.workers import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from semcal.models.engine.draw import Truncation
    from semcal.models.features import BlockShape, FitFeatures
    from semcal.models.protocols import AnyRecalibrator

__all__ = ["FakeEquivalence", "FakeLanguageModel"]

BOS, END = 256, 257
ROLES = {"system": 258, "user": 259, "assistant": 260}
FIRST_WORD = 261
_Item = TypeVar("_Item")
_Floats = NDArray[np.float32]
#: Log-probabilities (F, V), row of each sample (n,), uniform of each sample (n,) → token of each sample (n,).
_Choose = Callable[[_Floats, NDArray[np.intp], NDArray[np.float64]], NDArray[np.intp]]


class FakeLanguageModel:
    """A language model from a table of the probability of every answer to every question.

    Each word of the answers in the table is one token; other text is encoded as bytes, and an answer ends
    with an end-of-turn token. The table has the probabilities at temperature 1. At temperature T the
    probabilities of each token are raised to the power 1/T and renormalized, as in any model. If answers
    differ in the first word, the result is p^(1/T) / Σ p^(1/T).

    Parameters
    ----------
    table : mapping of str to mapping of str to float
        question → {answer: probability}. The probabilities of a question must be positive and sum to 1;
        otherwise InputError. Answers are raw texts of the model, with full stops and line breaks.
    floor : float
        Logit of tokens outside the table; logits of tokens in the table are log-probabilities. The default is
        finite, so that any answer can be scored and any temperature fitted; the error of the closed form is
        then below 1e-8 up to T = 4. With `-math.inf` the closed form is exact for every T.

    Examples
    --------
    >>> from semcal.data.question import chat
    >>> from semcal.models.distribution import SE, Base
    >>> model = FakeLanguageModel({"How far?": {"seven miles": 0.8, "nine miles": 0.2}})
    >>> prompt = Prompt("q1", model.encode(chat("How far?")))
    >>> answer = model.encode_answer(chat("How far?"), "seven miles")
    >>> ((score,),) = model.score([prompt], [[answer]], recalibrator=Base())
    >>> round(math.exp(sum(score)), 6)
    0.8
    >>> ((score,),) = model.score([prompt], [[answer]], recalibrator=SE())  # .64 against .04
    >>> round(math.exp(sum(score)), 4)
    0.9412
    """

    capabilities = Capabilities()

    def __init__(
        self, table: Mapping[str, Mapping[str, float]], *, floor: float = -100.0, name: str = "fake"
    ) -> None:
        for question, answers in table.items():
            if not (all(p > 0 for p in answers.values()) and abs(math.fsum(answers.values()) - 1) <= 1e-6):
                raise InputError(
                    f"table: got {dict(answers)} for {question!r}. Pass positive probabilities with sum 1"
                )
        self.name = name
        self.floor = floor
        content = json.dumps([{q: dict(answers) for q, answers in table.items()}, floor], sort_keys=True)
        self.revision = hashlib.sha256(content.encode()).hexdigest()[:12]
        words = dict.fromkeys(word for row in table.values() for answer in row for word in _words(answer))
        self._ids = {word: FIRST_WORD + index for index, word in enumerate(words)}
        self._bytes = dict(enumerate(bytes([byte]) for byte in range(256)))
        self._bytes |= {token: word.encode() for word, token in self._ids.items()}
        self._answers = {q: [(*self._tokens(answer), END) for answer in row] for q, row in table.items()}
        self._next = {
            question: self._continuations(self._answers[question], row.values())
            for question, row in table.items()
        }

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn: BOS, then each turn between its role and its end."""
        if not chat or chat[-1].role != "user":
            raise InputError("messages: the last turn is not from the user. End the chat with a user turn")
        turns = [(ROLES[turn.role], *self._tokens(turn.content), END) for turn in chat]
        return (BOS, *(token for turn in turns for token in turn), ROLES["assistant"])

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:  # noqa: ARG002
        """Encode a given answer and its end of turn; the chat is ignored."""
        return (*self._tokens(answer), END)

    def complete(
        self, generation: Generation, end: int, start: int = 0, ended: bool = True
    ) -> tuple[int, ...]:
        """Return the token ids of ``generation.text[:end]`` to score; a token begins at `start`."""
        before = generation.text[:start].rstrip()
        tokens = (*self._tokens(before), *self._tokens(generation.text[len(before) : end]))
        return (*tokens, END) if ended or (generation.finished and end == len(generation.text)) else tokens

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> list[list[list[list[Generation]]]]:
        """Return the samples of a request: ``[run][recalibrator][prompt][sample]``."""
        check_at_least_one(m=request.m, max_new_tokens=request.max_new_tokens)
        recalibrators, cut = request.recalibrators, request.cut
        choose = _inverse_cdf if request.truncation is None else _truncated(request.truncation)
        runs: list[list[list[list[Generation]]]] = [[[] for _ in recalibrators] for _ in request.seeds]
        for prompt in _counted(request.prompts, progress):
            for answers, seed in zip(runs, request.seeds):
                u = uniforms(
                    seed, prompt.question_id, m=request.m, steps=request.max_new_tokens, first=request.first
                )
                for by_prompt, recalibrator in zip(answers, recalibrators):
                    draws = self._decode(prompt, recalibrator, u, choose)
                    if request.schema is not None:
                        texts = [tuple(self._text([token]) for token in one.token_ids) for one in draws]
                        draws = [replace(one, token_texts=of) for one, of in zip(draws, texts)]
                    by_prompt.append(self._rescored(prompt, draws, recalibrator, cut) if cut else draws)
        return runs

    def greedy(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
        schema: Mapping[str, Any] | None = None,  # noqa: ARG002 - in the prompt
    ) -> list[Generation]:
        """Answer each prompt with the most likely token at every step."""
        check_at_least_one(max_new_tokens=max_new_tokens)
        unused = np.zeros((1, max_new_tokens))
        answers = (
            self._decode(prompt, recalibrator, unused, _most_likely) for prompt in _counted(prompts, progress)
        )
        return [answer for (answer,) in answers]

    def beam(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        num_beams: int = 4,
        max_new_tokens: int = 10,
    ) -> list[Generation]:
        """Return for each prompt the answer in the table with the highest mean token log-probability."""
        check_at_least_one(num_beams=num_beams, max_new_tokens=max_new_tokens)
        best = []
        for prompt in prompts:
            question = self._question(prompt)
            answers = [tokens[:max_new_tokens] for tokens in self._answers[question]]
            scored = [(self._score(question, tokens, recalibrator), tokens) for tokens in answers]
            log_probs, tokens = max(scored, key=lambda pair: math.fsum(pair[0]) / len(pair[0]))
            best.append(self._generation(tokens, log_probs))
        return best

    def score(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        recalibrator: AnyRecalibrator,
    ) -> list[list[tuple[float, ...]]]:
        """Return the log-probability of every token of given answers: ``[prompt][answer]``."""
        return [
            [self._score(self._question(prompt), answer, recalibrator) for answer in question_answers]
            for prompt, question_answers in zip(prompts, answers, strict=True)
        ]

    @property
    def block_shape(self) -> BlockShape:
        """Raise UsageError, because this model has no block."""
        raise UsageError(
            "model: ATS needs hidden states, and the fake model has none. Use a small real model"
        )

    def prompt_text(self, prompt: Prompt) -> str:
        """Return the turns of a prompt with their roles."""
        return "\n".join(f"{turn.role}: {turn.content}" for turn in prompt.chat)

    def invalid_prompts_for_sampling(self, *_: object, **__: object) -> list[QuestionError]:
        """Return [], because a table has no maximum length."""
        return []

    def invalid_prompts(self, *_: object) -> list[QuestionError]:
        """Return [], because a table has no maximum length."""
        return []

    def features(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        whole: bool = False,
        shared: int | None = None,
        progress: Progress | None = None,
    ) -> FitFeatures:
        """Return last hidden states before the tokens of given answers; the states are the logits.

        States inside a prompt are zeros.
        """
        with naming_extra("features"):
            import torch

            from semcal.models.features import FitFeatures

        before = shared or 0
        lengths = [len(prompt.token_ids) - before for prompt in prompts]
        states = [np.empty((0, self.width), np.float32)]
        for prompt, question_answers in _counted(zip(prompts, answers, strict=True), progress):
            question = self._question(prompt)
            inside = len(prompt.token_ids) - before - 1 if whole else 0
            states.append(np.zeros((inside, self.width), np.float32))
            states.append(self._state(question, ())[None])
            states += [self._states(question, answer)[1:] for answer in question_answers]
        prefix = torch.zeros(before, self.width) if whole else None
        return FitFeatures.from_states(
            torch.from_numpy(np.concatenate(states)), lengths, answers, prefix=prefix
        )

    def prompt_states(self, prompts: Sequence[Prompt], depth: float) -> list[list[float]]:  # noqa: ARG002
        """Return the logits of the first token of each answer, which are the states."""
        return [self._state(self._question(prompt), ()).tolist() for prompt in prompts]

    def logits(self, states: Tensor) -> Tensor:
        """Return the states (N, V), which are the logits."""
        return states.float()

    @property
    def width(self) -> int:
        """Size of a state, equal to the size of the vocabulary."""
        return FIRST_WORD + len(self._ids)

    @property
    def dtype(self) -> str:
        """Type of the states."""
        return "float32"

    def _tokens(self, text: str) -> tuple[int, ...]:
        pieces = ((self._ids[w],) if w in self._ids else tuple(w.encode()) for w in _words(text))
        return tuple(token for piece in pieces for token in piece)

    def _text(self, tokens: Iterable[int]) -> str:
        return b"".join(self._bytes.get(token, b"") for token in tokens).decode(errors="replace")

    def _continuations(
        self, answers: Iterable[tuple[int, ...]], probabilities: Iterable[float]
    ) -> dict[tuple[int, ...], dict[int, float]]:
        mass: dict[tuple[int, ...], dict[int, float]] = {}
        for tokens, probability in zip(answers, probabilities):
            for place, token in enumerate(tokens):
                after = mass.setdefault(tokens[:place], {})
                after[token] = after.get(token, 0.0) + probability
        return mass

    def _question(self, prompt: Prompt) -> str:
        start = len(prompt.token_ids) - 1 - prompt.token_ids[::-1].index(ROLES["user"])
        content = self._text(prompt.token_ids[start:])
        question = content.rpartition("Question: ")[2]
        if question not in self._next:
            raise InputError(f"table: the question {question!r} is missing. Add it to the table")
        return question

    def _state(self, question: str, beginning: Sequence[int]) -> _Floats:
        """Return logits (V,) of the next token; after prefixes outside the table only the end is possible."""
        after = self._next[question].get(tuple(beginning), {END: 1.0})
        total = math.fsum(after.values())
        state = np.full(self.width, self.floor, np.float32)
        for token, mass in after.items():
            state[token] = math.log(mass / total)
        return state

    def _states(self, question: str, answer: Sequence[int]) -> _Floats:
        return np.stack([self._state(question, answer[:place]) for place in range(len(answer))])

    def _score(
        self, question: str, answer: Sequence[int], recalibrator: AnyRecalibrator
    ) -> tuple[float, ...]:
        log_probs = _recalibrated(recalibrator, self._states(question, answer))
        return tuple(log_probs[np.arange(len(answer)), np.array(answer)].tolist())

    def _decode(
        self, prompt: Prompt, recalibrator: AnyRecalibrator, u: NDArray[np.float64], choose: _Choose
    ) -> list[Generation]:
        """Choose tokens by each row of uniforms (m, steps) until the end of turn."""
        question = self._question(prompt)
        tokens: list[list[int]] = [[] for _ in u]
        log_probs: list[list[float]] = [[] for _ in u]
        for step in range(u.shape[1]):
            active = [draw for draw, sequence in enumerate(tokens) if sequence[-1:] != [END]]
            if not active:
                break
            nodes = list(dict.fromkeys(tuple(tokens[draw]) for draw in active))
            states = np.stack([self._state(question, node) for node in nodes])
            table = _recalibrated(recalibrator, states)
            rows = np.array([nodes.index(tuple(tokens[draw])) for draw in active])
            chosen = choose(table, rows, u[active, step])
            for draw, token, value in zip(active, chosen.tolist(), table[rows, chosen].tolist()):
                tokens[draw].append(token)
                log_probs[draw].append(value)
        return [self._generation(*sequence) for sequence in zip(tokens, log_probs)]

    def _rescored(
        self, prompt: Prompt, draws: list[Generation], recalibrator: AnyRecalibrator, cut: GenerationCut
    ) -> list[Generation]:
        question, rescored = self._question(prompt), list[Generation]()
        for draw in draws:
            start, end, ended = cut(prompt, draw)
            tokens = self.complete(draw, end, start, ended)
            lead = len(self._tokens(draw.text[:start].rstrip()))
            scores = None if tokens == draw.token_ids else self._score(question, tokens, recalibrator)
            rescored.append(replace(draw, rescored=scores, lead=lead))
        return rescored

    def _generation(self, tokens: Sequence[int], log_probs: Sequence[float]) -> Generation:
        finished = tokens[-1:] == [END]
        return Generation(self._text(tokens), tuple(tokens), tuple(log_probs), finished)


def _recalibrated(recalibrator: AnyRecalibrator, logits: _Floats) -> _Floats:
    if (temperature := temperature_of(recalibrator)) is not None:
        z = (logits / np.float32(temperature)).astype(np.float64)
        z -= z.max(-1, keepdims=True)
        normalised: _Floats = (z - np.log(np.exp(z).sum(-1, keepdims=True))).astype(np.float32)
        return normalised
    if isinstance(recalibrator, StateReader):
        raise UsageError(
            "model: ATS needs hidden states, and the fake model has none. Use a small real model"
        )
    with naming_extra(f"the recalibrator {recalibrator.method}"):
        import torch
    log_probs: _Floats = recalibrator.log_probs(torch.from_numpy(logits)).detach().numpy()
    return log_probs


def _inverse_cdf(log_probs: _Floats, rows: NDArray[np.intp], u: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the first token whose cumulative probability exceeds the uniform (see `engine.draw`)."""
    cumulative = np.exp(log_probs[rows]).cumsum(1, dtype=np.float64)
    chosen: NDArray[np.intp] = (cumulative <= (u * cumulative[:, -1])[:, None]).sum(1)
    return chosen


def _most_likely(log_probs: _Floats, rows: NDArray[np.intp], _: NDArray[np.float64]) -> NDArray[np.intp]:
    top: NDArray[np.intp] = log_probs.argmax(1)
    return top[rows]


def _truncated(truncation: Truncation) -> _Choose:
    import torch

    def choose(log_probs: _Floats, *rows_and_u: NDArray[Any]) -> NDArray[np.intp]:
        chosen: NDArray[np.intp] = truncation(*map(torch.from_numpy, (log_probs, *rows_and_u))).numpy()
        return chosen

    return choose


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+\Z", text)


def _counted(items: Iterable[_Item], progress: Progress | None) -> Iterator[_Item]:
    """Yield the items, and after each call `progress` with the number of finished items."""
    for count, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(count)
