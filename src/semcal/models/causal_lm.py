"""`CausalLanguageModel`: any causal checkpoint of transformers behind the `LanguageModel` protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semcal.data.question import Turn
from semcal.errors import ModelError, QuestionError
from semcal.models.decoding import DecodingOptions, Request, Samples, beam_search, decode
from semcal.models.drawing import check_at_least_one, inverse_cdf, most_likely, uniforms
from semcal.models.language_model import Capabilities, Generation, Progress, Prompt, SampleRequest
from semcal.models.scheduling import (
    Answers,
    BatchPlanner,
    answer_lengths,
    ats_among,
    shared_length,
    unknown_token,
)
from semcal.models.scoring import Rescoring, answer_log_probs, answer_states, question_states
from semcal.models.tokenization import chat_format
from semcal.models.tree_cache import checked_network
from semcal.recalibration.attentive import AnyRecalibrator, BlockShape, CalibrationFeatures

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

    capabilities = Capabilities()

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
        """Encode a chat that ends with a user turn as a prompt, ready for the answer.

        In the chat template (or plain text where there is none), with one BOS at most. ModelError if the
        template refuses the turns.
        """
        return self.format.encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, its end of turn included once: the ids after ``encode(chat)``."""
        return self.format.encode_answer(chat, answer)

    def complete(self, generation: Generation, end: int, start: int = 0) -> tuple[int, ...]:
        """Token ids of ``generation.text[:end]`` and the end of turn, to be scored; some begin at `start`.

        The sampled tokens that lie before the cut are kept; a remaining piece of a token is encoded again.
        """
        return self.format.complete(generation, end, start)

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> list[list[list[list[Generation]]]]:
        """Draw what a request asks for: ``[run][recalibrator][prompt][draw]``.

        With the random numbers of `semcal.models.drawing.uniforms`: the same for every recalibrator, and
        independent of batches and of the other questions. Where `request.cut` cuts a draw, its `rescored` is
        mostly read while decoding; what decoding does not read (a cut inside a token may ask for tokens that
        were never drawn) is scored in a second pass.

        Parameters
        ----------
        request : SampleRequest
            Prompts, recalibrators, seeds and limits.
        progress : callable, optional
            Called with the number of questions finished so far.

        Raises
        ------
        QuestionError
            For a prompt that is empty or too long for the model, before any is run.
        ModelError
            If probabilities are not finite.
        """
        check_at_least_one(m=request.m, max_new_tokens=request.max_new_tokens)
        prompts, recalibrators, m = request.prompts, request.recalibrators, request.m
        if not request.seeds:
            return []
        rescoring = Rescoring(self.format, request.cut, prompts) if request.cut else None
        if rescoring and (unknown := unknown_token(self.network, rescoring.closing_tokens)):
            raise ModelError(f"the end of a turn has {unknown}")
        options = DecodingOptions(
            recalibrators,
            self.format.stops,
            request.truncation or inverse_cdf,
            closing_tokens=rescoring.closing_tokens if rescoring else (),
            run_last_token=rescoring.run_last_token if rescoring else None,
        )
        decoding = Request(
            [prompt.token_ids for prompt in prompts],
            lambda i: np.concatenate(
                [
                    uniforms(
                        seed, prompts[i].question_id, m=m, steps=request.max_new_tokens, first=request.first
                    )
                    for seed in request.seeds
                ]
            ),
            m=m * len(request.seeds),
            steps=request.max_new_tokens,
        )
        answers: list[list[list[Generation]]] = [[[] for _ in prompts] for _ in recalibrators]
        for finished, (i, samples) in enumerate(self._decoded(prompts, decoding, options), 1):
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
        request = Request([prompt.token_ids for prompt in prompts], lambda _: unused, 1, max_new_tokens)
        options = DecodingOptions([recalibrator], self.format.stops, most_likely)
        answers: dict[int, Generation] = {}
        for i, samples in self._decoded(prompts, request, options):
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
        batches = self._planner.batches(
            prompts,
            longest=[max_new_tokens] * len(prompts),
            room=[num_beams * max_new_tokens] * len(prompts),
            progress=progress,
            ats=ats_among([recalibrator]),
        )
        for batch in batches:
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
            tokens = chain.from_iterable(chain.from_iterable(batch_answers))
            targets = torch.tensor(list(tokens), dtype=torch.long)
            states = answer_states(batch.cache, batch.token_ids, batch_answers)
            log_probs = iter(answer_log_probs(batch.cache, states, targets, recalibrator).tolist())
            for i in batch.questions:
                scores[i] = [tuple(next(log_probs) for _ in answer) for answer in answers[i]]
        return scores

    def special_tokens_in(self, text: str) -> tuple[str, ...]:
        """The special tokens that a text spells; `encode` and `encode_answer` encode them as plain text."""
        return self.format.special_tokens.find(text)

    def invalid_prompts_for_sampling(self, request: SampleRequest) -> list[QuestionError]:
        """The errors that `sample` would raise: prompts with no room for an answer, or over the budget."""
        prompts, recalibrators, steps = request.prompts, request.recalibrators, request.max_new_tokens
        return list(self._planner.invalid_for_decoding(prompts, recalibrators, m=request.m, steps=steps))

    def invalid_prompts(self, prompts: Sequence[Prompt], answers: Answers) -> list[QuestionError]:
        """The errors that `score` and `features` would raise: prompts with no room for an answer."""
        longest, room = answer_lengths(answers)
        return list(self._planner.invalid_prompts(prompts, longest=longest, room=room))

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
    ) -> CalibrationFeatures:
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
        return CalibrationFeatures.from_states(together, lengths, answers, prefix=prefix if whole else None)

    def logits(self, states: Tensor) -> Tensor:
        """Turn last hidden states (N, d) into logits (N, V), float32, on the model's device.

        With the model's own head, soft-capping and scaling included.
        """
        return self.network.logits(states)

    def _decoded(
        self, prompts: Sequence[Prompt], request: Request, options: DecodingOptions
    ) -> Iterator[tuple[int, Samples]]:
        """Each question and its samples, in the order in which the questions are finished."""
        recalibrators = options.recalibrators
        for error in self._planner.invalid_for_decoding(
            prompts, recalibrators, m=request.m, steps=request.steps
        ):
            raise error
        if not prompts or not recalibrators:
            return iter(())
        prefix, scheduler = self._planner.schedule(prompts, ats_among(recalibrators))
        return decode(prefix, request, scheduler, options)

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

    def _draw(self, samples: Samples, index: tuple[int, int]) -> Generation:
        """The generation of one draw: recalibrator and number."""
        count = int((samples.tokens[index] >= 0).sum())
        return self._generation(
            samples.tokens[index][:count].tolist(), samples.log_probs[index][:count].tolist()
        )

    def _generation(self, tokens: Sequence[int], log_probs: Sequence[float]) -> Generation:
        finished = tokens[-1] in self.format.stops
        return Generation(self.format.text(tokens), tuple(tokens), tuple(log_probs), finished)
