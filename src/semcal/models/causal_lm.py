"""`CausalLanguageModel`: any causal checkpoint of transformers behind the `LanguageModel` protocol.

Given answers take two passes: the prompts, then the trees of their answers, every node once.

Of a draw that was cut, its first tokens and an end of turn are scored (spec 5.2). Decoding has read the
distribution after each of these tokens already, so it records there what closing tokens cost. Only after the
last token of a draw that reached the limit nothing has been read; that token then runs within decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.data.question import Turn
from semcal.errors import ModelError, QuestionError
from semcal.models.chat_format import ChatFormat, chat_format
from semcal.models.distribution import check_at_least_one, uniforms
from semcal.models.engine.decoding import (
    AnswerLengths,
    BatchPlanner,
    DecodedSamples,
    DecodingRequest,
    ats_among,
    beam_search,
    decode,
    unknown_token,
)
from semcal.models.engine.draw import check_not_nan, inverse_cdf, most_likely
from semcal.models.engine.tree_cache import ModelOutputs, NewTokens, TreeCache, checked_network, log_probs
from semcal.models.features import BlockShape, FitFeatures
from semcal.models.prompting import shared_length
from semcal.models.protocols import (
    Answers,
    AnyRecalibrator,
    Capabilities,
    Generation,
    GenerationCut,
    Prompt,
    SampleRequest,
)
from semcal.workers import Progress

_MIN_BUDGET = 2**26  # bytes of keys and values of a batch


class CausalLanguageModel:
    """A causal language model with its tokenizer.

    `load_model` makes one from a directory or a hub id; make it yourself from a model in memory.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model. It is put into eval mode and its parameters are frozen.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.
    name : str
        For records and messages.
    revision : str
        For records.
    memory_budget : int, optional
        Bytes that the keys and values of one batch may take, which decides how many questions it holds.
        Default: a quarter of the weights' size, but at least 64 MiB, so that it depends on the model alone.
    refuse_larger : bool
        Whether a question that may exceed the budget by itself is refused; otherwise it runs by itself.
    checkpoint : str
        A hash of the weights and the configuration, if `model` is just that: the comparison of the engine's
        logits with the model's is then made once, and its verdict kept in the user's cache.

    Raises
    ------
    ModelError
        If the engine does not reproduce the model's logits.

    Warns
    -----
    SemcalWarning
        If the attention cannot be replaced, so that sampling takes more time and memory (see `attention`).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        revision: str = "",
        memory_budget: int | None = None,
        refuse_larger: bool = False,
        checkpoint: str = "",
    ) -> None:
        self.name = name
        self.revision = revision
        self.tokenizer = tokenizer
        self.network = checked_network(model, checkpoint)
        self.format = chat_format(tokenizer, self.network.end_of_text(tokenizer))
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self.memory_budget = memory_budget or max(_MIN_BUDGET, weights // 4)
        self._planner = BatchPlanner(self.network, budget=self.memory_budget, strict=refuse_larger)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What its tokenizer's chat template allows."""
        return Capabilities(messages=self.format.takes_messages, system=self.format.takes_system)

    def __repr__(self) -> str:
        return f"CausalLanguageModel({self.name!r}, revision={self.revision!r}, attention={self.attention!r})"

    @property
    def attention(self) -> str:
        """How keys and values are cached: "three levels", or "plain" where a model needs the fallback."""
        return "plain" if self.network.patched is None else "three levels"

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.network.width

    @property
    def dtype(self) -> str:
        """Of the hidden states: "float32", "bfloat16" or "float16"."""
        return str(self.network.dtype).removeprefix("torch.")

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt; ModelError if the template refuses it."""
        return self.format.encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, its end of turn included once: the ids after ``encode(chat)``."""
        return self.format.encode_answer(chat, answer)

    def complete(
        self, generation: Generation, end: int, start: int = 0, ended: bool = True
    ) -> tuple[int, ...]:
        """Token ids of ``generation.text[:end]`` and the end of turn, to be scored; some begin at `start`."""
        return self.format.complete(generation, end, start, ended)

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> list[list[list[list[Generation]]]]:
        """Draw what a request asks for: ``[run][recalibrator][prompt][draw]``.

        With the random numbers of `semcal.models.engine.draw.uniforms`: the same for every recalibrator, and
        independent of batches and of the other questions. Where `request.cut` cuts a draw, its `rescored` is
        mostly read while decoding; what decoding does not read (a cut inside a token may ask for tokens that
        were never drawn) is scored in a second pass.

        `progress` is called with the number of questions finished so far. QuestionError for a prompt that is
        empty or too long for the model, before any is run; ModelError if probabilities are not finite.
        """
        check_at_least_one(m=request.m, max_new_tokens=request.max_new_tokens)
        prompts, recalibrators, m = request.prompts, request.recalibrators, request.m
        if not request.seeds:
            return []
        rescoring = Rescoring(self.format, request.cut, prompts) if request.cut else None
        if rescoring and (unknown := unknown_token(self.network, rescoring.closing_tokens)):
            raise ModelError(f"the end of a turn has {unknown}")

        def uniforms_of(i: int) -> NDArray[np.float64]:
            name, steps, first = prompts[i].question_id, request.max_new_tokens, request.first
            return np.concatenate(
                [uniforms(seed, name, m=m, steps=steps, first=first) for seed in request.seeds]
            )

        decoding = DecodingRequest(
            [prompt.token_ids for prompt in prompts],
            uniforms_of,
            m=m * len(request.seeds),
            steps=request.max_new_tokens,
            recalibrators=recalibrators,
            stops=self.format.stops,
            choose=request.truncation or inverse_cdf,
            closing_tokens=rescoring.closing_tokens if rescoring else (),
            run_last_token=rescoring.run_last_token if rescoring else None,
        )
        answers: list[list[list[Generation]]] = [[[] for _ in prompts] for _ in recalibrators]
        for finished, (i, samples) in enumerate(self._decoded(prompts, decoding), 1):
            for r, answers_by_prompt in enumerate(answers):
                draws = [self._draw(samples, (r, j)) for j in range(decoding.m)]
                answers_by_prompt[i] = rescoring.rescored(i, draws, samples, r) if rescoring else draws
            if progress is not None:
                progress(finished)
        if rescoring:
            for answers_by_prompt, recalibrator in zip(answers, recalibrators):
                self._score_missing(prompts, answers_by_prompt, rescoring, recalibrator)
        runs = [slice(run * m, (run + 1) * m) for run in range(len(request.seeds))]
        return [
            [[draws[run] for draws in answers_by_prompt] for answers_by_prompt in answers] for run in runs
        ]

    def greedy(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Answer each prompt with the most likely token at every step; of equal ones the first.

        Parameters and errors are those of `sample`.
        """
        check_at_least_one(max_new_tokens=max_new_tokens)
        unused = np.zeros((1, max_new_tokens))
        decoding = DecodingRequest(
            [prompt.token_ids for prompt in prompts],
            lambda _: unused,
            m=1,
            steps=max_new_tokens,
            recalibrators=[recalibrator],
            stops=self.format.stops,
            choose=most_likely,
        )
        answers: dict[int, Generation] = {}
        for i, samples in self._decoded(prompts, decoding):
            answers[i] = self._draw(samples, (0, 0))
            if progress is not None:
                progress(len(answers))
        return [answers[i] for i in range(len(prompts))]

    def beam(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        num_beams: int = 4,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Answer each prompt by beam search, answers compared by their mean token log-probability.

        `num_beams` sequences continue at every step; parameters and errors are those of `sample` otherwise.
        """
        check_at_least_one(num_beams=num_beams, max_new_tokens=max_new_tokens)
        answers: dict[int, Generation] = {}
        lengths = AnswerLengths.limits(len(prompts), draws=num_beams, steps=max_new_tokens)
        for batch in self._planner.batches(prompts, lengths, progress, ats=ats_among([recalibrator])):
            beams = beam_search(batch, recalibrator, self.format.stops, num_beams, max_new_tokens)
            for i, beam in zip(batch.questions, beams):
                answers[i] = self._generation(beam.tokens, beam.log_probs)
        return [answers[i] for i in range(len(prompts))]

    def score(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        recalibrator: AnyRecalibrator,
        progress: Progress | None = None,
    ) -> list[list[tuple[float, ...]]]:
        """Log-probability of every token of given answers; answers to one prompt share its pass.

        `answers` are per prompt the token ids of its answers, as `encode_answer` and `complete` give them.
        Returns ``[prompt][answer]``: natural log-probabilities, one per token. QuestionError for a question
        that with its longest answer does not fit the model, before any is run.
        """
        scores: list[list[tuple[float, ...]]] = [[] for _ in prompts]
        ats = ats_among([recalibrator])
        for batch in self._planner.answer_batches(prompts, answers, progress, ats=ats):
            batch_answers = [answers[i] for i in batch.questions]
            scored = answer_log_probs(batch.cache, batch.token_ids, batch_answers, recalibrator)
            values = iter(scored.tolist())
            for i in batch.questions:
                scores[i] = [tuple(next(values) for _ in answer) for answer in answers[i]]
        return scores

    def prompt_text(self, prompt: Prompt) -> str:
        """The text of a prompt's tokens, special ones included."""
        return self.format.prompt_text(prompt.token_ids)

    def special_tokens_in(self, text: str) -> tuple[str, ...]:
        """The special tokens that a text spells; `encode` and `encode_answer` encode them as plain text."""
        return self.format.special_tokens.find(text)

    def invalid_prompts_for_sampling(self, request: SampleRequest) -> list[QuestionError]:
        """The errors that `sample` would raise: prompts with no room for an answer, or over the budget."""
        return list(self._invalid(request.prompts, request.recalibrators, request.m, request.max_new_tokens))

    def invalid_prompts(self, prompts: Sequence[Prompt], answers: Answers) -> list[QuestionError]:
        """The errors that `score` and `features` would raise: prompts with no room for an answer."""
        return list(self._planner.invalid_prompts(prompts, AnswerLengths.of(answers)))

    @property
    def block_shape(self) -> BlockShape:
        """Shape of a LLaMA-style block like the model's own, for ATS."""
        return self.network.block_shape

    def features(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        whole: bool = False,
        shared: int | None = None,
        progress: Progress | None = None,
    ) -> FitFeatures:
        """Last hidden states of prompts and given answers, which recalibrators are fitted to.

        With the parameters and errors of `score`. `whole`: the states of all tokens, not only of those that
        predict answer tokens; `shared`: length of the shared prefix, by default the prompts' longest common
        one. Returned by prompt, answer and position, in the model's dtype, on the CPU.
        """
        before = shared if shared is not None or not prompts else shared_length(prompts)
        parts: dict[int, Tensor] = {}
        prefix = torch.zeros((0, 0), dtype=self.network.dtype)
        for batch in self._planner.answer_batches(prompts, answers, progress, shared=before):
            prefix = batch.cache.prefix_states.cpu() if whole else prefix
            batch_answers = [answers[i] for i in batch.questions]
            states = question_states(batch.cache, batch.token_ids, batch_answers, all_tokens=whole)
            parts.update(zip(batch.questions, (part.cpu() for part in states)))
        together = torch.cat([parts[i] for i in range(len(prompts))]) if prompts else prefix
        lengths = [len(prompt.token_ids) - (before or 0) for prompt in prompts]
        return FitFeatures.from_states(together, lengths, answers, prefix=prefix if whole else None)

    def logits(self, states: Tensor) -> Tensor:
        """Turn last hidden states (N, d) into logits (N, V), float32, on the model's device.

        With the model's own head, soft-capping and scaling included.
        """
        return self.network.logits(states)

    def _invalid(
        self, prompts: Sequence[Prompt], recalibrators: Sequence[AnyRecalibrator], m: int, steps: int
    ) -> Iterator[QuestionError]:
        """At most one error for each question that cannot have `m` draws of up to `steps` tokens."""
        lengths = AnswerLengths.limits(len(prompts), draws=m * len(recalibrators), steps=steps)
        return self._planner.invalid_prompts(prompts, lengths, ats_among(recalibrators))

    def _decoded(
        self, prompts: Sequence[Prompt], request: DecodingRequest
    ) -> Iterator[tuple[int, DecodedSamples]]:
        """Each question and its samples, in the order in which the questions are finished."""
        for error in self._invalid(prompts, request.recalibrators, request.m, request.steps):
            raise error
        if not prompts or not request.recalibrators:
            return iter(())
        return decode(request, *self._planner.schedule(prompts, ats_among(request.recalibrators)))

    def _score_missing(
        self,
        prompts: Sequence[Prompt],
        answers: list[list[Generation]],
        rescoring: Rescoring,
        recalibrator: AnyRecalibrator,
    ) -> None:
        """Score in a second pass what draws need and decoding has not read."""
        missing = {i: tokens for i, draws in enumerate(answers) if (tokens := rescoring.missing(i, draws))}
        if not missing:
            return
        scores = self.score([prompts[i] for i in missing], list(missing.values()), recalibrator=recalibrator)
        for (i, tokens), token_scores in zip(missing.items(), scores):
            answers[i] = rescoring.with_scores(i, answers[i], dict(zip(tokens, token_scores)))

    def _draw(self, samples: DecodedSamples, index: tuple[int, int]) -> Generation:
        """The generation of one draw: recalibrator and number."""
        count = int((samples.tokens[index] >= 0).sum())
        return self._generation(
            samples.tokens[index][:count].tolist(), samples.log_probs[index][:count].tolist()
        )

    def _generation(self, tokens: Sequence[int], log_probs: Sequence[float]) -> Generation:
        text, finished = self.format.text(tokens), tokens[-1] in self.format.stops
        refusal = self.format.refusal(text)
        return Generation(text, tuple(tokens), tuple(log_probs), finished, refusal=refusal)


_Ids = tuple[int, ...]
_Scores = tuple[float, ...]


def answer_log_probs(
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    recalibrator: AnyRecalibrator,
) -> Tensor:
    """Log-probability (N,) of the tokens of given answers, by question, answer and position.

    `prompts` are all tokens of each prompt, `answers` those of each of its answers; the cache is used up.
    Logits exist for a limited number of outputs at a time. ModelError if some are no distribution.
    """
    ends, predicts, extended = _run(cache, prompts, answers, all_tokens=False)
    places = [
        row if place < 0 else len(prompts) + place
        for row, paths in enumerate(predicts)
        for place in chain.from_iterable(paths)
    ]
    distinct, node = torch.unique(torch.tensor(places, dtype=torch.long), return_inverse=True)
    outputs = ModelOutputs.concatenate([ends, *extended])[distinct.to(ends.states.device)]
    tokens = chain.from_iterable(chain.from_iterable(answers))
    targets = torch.tensor(list(tokens), dtype=torch.long)
    result = torch.zeros(len(targets))
    rows = cache.network.rows_at_a_time
    for start in range(0, len(outputs), rows):
        part = outputs[start : start + rows]
        scored = log_probs(recalibrator, cache.network.logits(part.states), part, cache.ats)
        inside = (node >= start) & (node < start + rows)
        at = (node[inside] - start).to(scored.device), targets[inside].to(scored.device)
        result[inside] = check_not_nan(scored[at].float().cpu())
    return result


def question_states(
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    all_tokens: bool,
) -> list[Tensor]:
    """States (n, d) of each question's own prompt tokens, then of each answer's tokens but the last.

    Parameters are those of `answer_log_probs`, and `all_tokens`: whether all tokens of the prompt after the
    shared prefix count, or only the last, which predicts the first token of an answer.
    """
    prompt_outputs, predicts, extended = _run(cache, prompts, answers, all_tokens=all_tokens)
    states = ModelOutputs.concatenate([prompt_outputs, *extended]).states
    question_parts, start, behind = [], 0, len(prompt_outputs)
    for prompt, paths in zip(prompts, predicts, strict=True):
        end = start + (len(prompt) - cache.prefix_length if all_tokens else 1)
        nodes = [behind + place for path in paths for place in path[1:]]
        question_parts.append(states[torch.tensor([*range(start, end), *nodes], device=states.device)])
        start = end
    return question_parts


def _run(
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    all_tokens: bool,
) -> tuple[ModelOutputs, list[list[list[int]]], list[ModelOutputs]]:
    """Outputs of the prompts; the nodes that predict the tokens of answers; outputs of these, if any.

    The answers' common beginnings are merged to trees; an answer's last token predicts nothing and need not
    run. By question and answer, the node that predicts each token is -1 for the end of the prompt, else the
    place of a token of the trees.
    """
    prompt_outputs = cache.prefill(prompts, all_tokens=all_tokens)
    tokens: list[int] = []
    rows: list[int] = []
    paths: list[list[int]] = []
    predicts = []
    for row, question_answers in enumerate(answers):
        children: dict[tuple[int, int], int] = {}
        predicts.append(answer_nodes := list[list[int]]())
        for answer in question_answers:
            node = -1
            answer_nodes.append([node] if answer else [])
            for token in answer[:-1]:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    paths.append([*(paths[node] if node >= 0 else ()), cache.slots + len(tokens)])
                    tokens.append(token)
                    rows.append(row)
                node = children[node, token]
                answer_nodes[-1].append(node)
    if not tokens:
        return prompt_outputs, predicts, []
    width = max(map(len, paths))
    path = torch.tensor([[*path, *[-1] * (width - len(path))] for path in paths], dtype=torch.long)
    return prompt_outputs, predicts, [cache.extend(NewTokens(torch.tensor(tokens), torch.tensor(rows), path))]


class Rescoring:
    """Which tokens of each draw are scored, and their log-probabilities as far as decoding has read them."""

    def __init__(self, chat_format: ChatFormat, cut: GenerationCut, prompts: Sequence[Prompt]) -> None:
        self._format, self._cut, self._prompts = chat_format, cut, prompts
        self._completions: dict[tuple[int, _Ids], tuple[_Ids | None, int]] = {}
        self.closing_tokens = _closing_tokens(chat_format)

    def completion(self, i: int, generation: Generation) -> tuple[_Ids | None, int]:
        """The tokens that are scored in place of a draw's own (None: its own are), and how many lead."""
        key = i, generation.token_ids
        if key not in self._completions:
            start, end, ended = self._cut(self._prompts[i], generation)
            tokens = self._format.complete(generation, end, start, ended)
            lead = len(self._format.lead(generation, start))
            self._completions[key] = None if tokens == generation.token_ids else tokens, lead
        return self._completions[key]

    def run_last_token(self, i: int, token_ids: _Ids) -> bool:
        """Whether all tokens of an unfinished draw are scored, so that the last of them must run."""
        text = self._format.text(token_ids)
        refusal = self._format.refusal(text)
        generation = Generation(text, token_ids, (), finished=False, refusal=refusal)
        completion, _ = self.completion(i, generation)
        return completion is not None and completion[:-1] == token_ids

    def rescored(
        self, i: int, draws: Sequence[Generation], samples: DecodedSamples, recalibrator: int
    ) -> list[Generation]:
        """The draws of a question under a recalibrator (its number), with the scores that its samples hold.

        The samples were decoded with this object's closing tokens.
        """
        if not any(any(self.completion(i, draw)) for draw in draws):
            return list(draws)
        after = _scores_after(draws, samples.closing_log_probs[recalibrator], self.closing_tokens)

        def look_up(tokens: _Ids) -> _Scores | None:
            scores = [after.get(tokens[:place], {}).get(token) for place, token in enumerate(tokens)]
            return None if None in scores else tuple(score for score in scores if score is not None)

        return [self._with_score(i, draw, look_up) for draw in draws]

    def missing(self, i: int, draws: Sequence[Generation]) -> list[_Ids]:
        """Distinct token sequences that still have to be scored for the draws."""
        completions = (self.completion(i, draw)[0] for draw in draws if draw.rescored is None)
        return list(dict.fromkeys(tokens for tokens in completions if tokens is not None))

    def with_scores(
        self, i: int, draws: Sequence[Generation], scores: Mapping[_Ids, _Scores]
    ) -> list[Generation]:
        """The draws with the missing scores."""
        return [self._with_score(i, draw, scores.get) for draw in draws]

    def _with_score(self, i: int, draw: Generation, find: Callable[[_Ids], _Scores | None]) -> Generation:
        tokens, lead = self.completion(i, draw)
        scores = draw.rescored if tokens is None or draw.rescored is not None else find(tokens)
        return replace(draw, rescored=scores, lead=lead)


def _scores_after(
    draws: Sequence[Generation], closing: NDArray[np.float32], closing_tokens: Sequence[int]
) -> dict[_Ids, dict[int, float]]:
    """Known log-probabilities after each beginning of the draws; `closing` (m, steps + 1, W) may be NaN."""
    after_prefix: dict[_Ids, dict[int, float]] = {}
    for draw, of_steps in zip(draws, closing.tolist(), strict=True):
        for step, values in enumerate(of_steps[: len(draw.token_ids) + 1]):
            log_probs = after_prefix.setdefault(draw.token_ids[:step], {})
            log_probs.update((token, x) for token, x in zip(closing_tokens, values, strict=True) if x == x)
            if step < len(draw.token_ids):
                log_probs[draw.token_ids[step]] = draw.token_log_probs[step]
    return after_prefix


def _closing_tokens(chat_format: ChatFormat) -> _Ids:
    """The tokens that may end a scored answer: the end of turn, alone and merged with a full stop."""
    sentence = tuple(chat_format.tokenizer("a.", add_special_tokens=False)["input_ids"])
    merged = chat_format.complete(Generation("a.", sentence, (), finished=False), len("a."))
    return tuple(dict.fromkeys((*chat_format.end_of_turn[:1], *merged[-1:])))
