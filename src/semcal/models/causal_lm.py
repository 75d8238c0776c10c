"""`CausalLanguageModel`: any causal checkpoint of transformers behind the `LanguageModel` protocol.

Given answers take two passes: one for the prompts, one for the trees of their answers, with each node once.

For a cut sample, its first tokens and an end of turn are scored (spec 5.2). Decoding reads the distribution
after each of these tokens, and records the log-probabilities of closing tokens. If a sample reached the token
limit, decoding runs its last token as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from semcal.data.question import Turn
from semcal.errors import ModelError, QuestionError
from semcal.models.chat_format import ChatFormat, chat_format
from semcal.models.distribution import check_at_least_one, uniforms
from semcal.models.engine.decoding import (
    BatchPlanner,
    DecodedSamples,
    DecodingRequest,
    answer_lengths,
    ats_among,
    beam_search,
    decode,
    unknown_token,
)
from semcal.models.engine.draw import check_not_nan, inverse_cdf, most_likely
from semcal.models.engine.tree_cache import (
    ModelOutputs,
    NewTokens,
    TreeCache,
    checked_network,
    log_probs,
    logits_in_parts,
)
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

    `load_model` loads one from a directory or a hub id. Use the constructor for a model in memory.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model. It is set to eval mode and its parameters are frozen.
    tokenizer : transformers.PreTrainedTokenizerBase
        The tokenizer of the model.
    name : str
        Name for records and messages.
    revision : str
        Revision for records.
    memory_budget : int, optional
        Maximum bytes of the keys and values of one batch, which limits its number of questions. Default: a
        quarter of the size of the weights, at least 64 MiB, so that it depends only on the model.
    refuse_larger : bool
        True rejects a single question that may exceed the budget; False runs it in its own batch.

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
    ) -> None:
        self.name = name
        self.revision = revision
        self.tokenizer = tokenizer
        self.network = checked_network(model)
        self.format = chat_format(tokenizer, self.network.end_of_text(tokenizer))
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self.memory_budget = memory_budget or max(_MIN_BUDGET, weights // 4)
        self._planner = BatchPlanner(self.network, budget=self.memory_budget, strict=refuse_larger)

    def __repr__(self) -> str:
        return f"CausalLanguageModel({self.name!r}, revision={self.revision!r}, attention={self.attention!r})"

    @property
    def attention(self) -> str:
        """The kind of cache of keys and values: "three levels", or "plain" for the fallback."""
        return "plain" if self.network.patched is None else "three levels"

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.network.width

    @property
    def dtype(self) -> str:
        """Type of the hidden states: "float32", "bfloat16" or "float16"."""
        return str(self.network.dtype).removeprefix("torch.")

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt; ModelError if the template rejects it."""
        return self.format.encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, with one end of turn: the ids after ``encode(chat)``."""
        return self.format.encode_answer(chat, answer)

    def complete(
        self, generation: Generation, end: int, start: int = 0, ended: bool = True
    ) -> tuple[int, ...]:
        """Return the token ids of ``generation.text[:end]`` to score; a token begins at `start`."""
        return self.format.complete(generation, end, start, ended)

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> list[list[list[list[Generation]]]]:
        """Return the samples of a request: ``[run][recalibrator][prompt][sample]``.

        The random numbers are those of `semcal.models.distribution.uniforms`: equal for every recalibrator,
        and independent of batches and other questions. If `request.cut` cuts a sample, decoding provides most
        values of its `rescored`. A second pass scores the others, for example tokens that were not sampled,
        after a cut inside a token.

        `progress` receives the number of finished questions. QuestionError, before any computation, for a
        prompt that is empty or too long for the model; ModelError if probabilities are not finite.
        """
        check_at_least_one(m=request.m, max_new_tokens=request.max_new_tokens)
        prompts, recalibrators, m = request.prompts, request.recalibrators, request.m
        if not request.seeds:
            return []
        rescoring = Rescoring(self.format, request.cut, prompts) if request.cut else None
        if rescoring and (unknown := unknown_token(self.network, rescoring.closing_tokens)):
            raise ModelError(f"tokenizer: the end of a turn has {unknown}")

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
                if request.schema is not None:
                    draws = [replace(one, token_texts=self.format.pieces(one.token_ids)) for one in draws]
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
        schema: Mapping[str, Any] | None = None,  # noqa: ARG002 - in the prompt
    ) -> list[Generation]:
        """Answer each prompt with the most likely token at every step; among ties the first.

        Parameters and errors are the same as in `sample`.
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
    ) -> list[Generation]:
        """Answer each prompt by beam search; the answer with the highest mean token log-probability wins.

        `num_beams` sequences continue at every step; other parameters and errors are the same as in `sample`.
        """
        check_at_least_one(num_beams=num_beams, max_new_tokens=max_new_tokens)
        answers: dict[int, Generation] = {}
        lengths = [(max_new_tokens, num_beams * max_new_tokens)] * len(prompts)
        for batch, cache in self._planner.batches(prompts, lengths, ats=ats_among([recalibrator])):
            token_ids, stops = [prompts[i].token_ids for i in batch], self.format.stops
            beams = beam_search(cache, token_ids, recalibrator, stops, num_beams, max_new_tokens)
            for i, beam in zip(batch, beams):
                answers[i] = self._generation(beam.tokens, beam.log_probs)
        return [answers[i] for i in range(len(prompts))]

    def score(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        recalibrator: AnyRecalibrator,
    ) -> list[list[tuple[float, ...]]]:
        """Return the log-probability of every token of given answers; answers to one prompt share its pass.

        `answers` has, by prompt, the token ids of answers from `encode_answer` or `complete`. The result is
        ``[prompt][answer]``: natural log-probabilities, one per token. QuestionError, before any computation,
        for a question that is too long for the model with its longest answer.
        """
        scores: list[list[tuple[float, ...]]] = [[] for _ in prompts]
        ats = ats_among([recalibrator])
        for batch, cache in self._planner.answer_batches(prompts, answers, ats=ats):
            outputs, _, predicting = _run(cache, [(prompts[i], answers[i]) for i in batch], all_tokens=False)
            rows = torch.tensor(list(chain.from_iterable(chain.from_iterable(predicting))), dtype=torch.long)
            tokens = chain.from_iterable(chain.from_iterable(answers[i] for i in batch))
            targets = torch.tensor(list(tokens), dtype=torch.long)
            distinct, row = torch.unique(rows, return_inverse=True)  # of those that predict a token
            found = torch.zeros(len(targets))
            read = outputs[distinct.to(outputs.states.device)]
            for start, part, logits in logits_in_parts(self.network, read):
                scored = log_probs(recalibrator, logits, part, cache.ats)
                inside = (row >= start) & (row < start + len(part))
                at = (row[inside] - start).to(scored.device), targets[inside].to(scored.device)
                found[inside] = check_not_nan(scored[at].float().cpu())
            values = iter(found.tolist())
            for i in batch:
                scores[i] = [tuple(next(values) for _ in answer) for answer in answers[i]]
        return scores

    def prompt_text(self, prompt: Prompt) -> str:
        """Return the text of a prompt's tokens, special tokens included."""
        return self.format.prompt_text(prompt.token_ids)

    def invalid_prompts_for_sampling(self, request: SampleRequest) -> list[QuestionError]:
        """Return the errors that `sample` would raise: prompts too long for an answer or for the budget."""
        return list(self._invalid(request.prompts, request.recalibrators, request.m, request.max_new_tokens))

    def invalid_prompts(self, prompts: Sequence[Prompt], answers: Answers) -> list[QuestionError]:
        """Return the errors that `score` and `features` would raise: prompts too long for an answer."""
        return list(self._planner.invalid_prompts(prompts, answer_lengths(answers)))

    @property
    def block_shape(self) -> BlockShape:
        """Shape of a LLaMA-style block with the dimensions of the model, for ATS."""
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
        """Return last hidden states of prompts and given answers, to which recalibrators are fitted.

        Parameters and errors are the same as in `score`. With `whole`, the result has states of all tokens,
        not only of those that predict answer tokens. `shared` is the length of the shared prefix, by default
        of the longest common prefix. The states are ordered by prompt, answer and position, in the dtype of
        the model, on the CPU.
        """
        before = shared if shared is not None or not prompts else shared_length(prompts)
        parts: dict[int, Tensor] = {}
        prefix = torch.zeros((0, 0), dtype=self.network.dtype)
        for batch, cache in self._planner.answer_batches(prompts, answers, progress, shared=before):
            prefix = cache.prefix_states.cpu() if whole else prefix
            outputs, of_prompts, predicting = _run(
                cache, [(prompts[i], answers[i]) for i in batch], all_tokens=whole
            )
            for i, of_prompt, of_answers in zip(batch, of_prompts, predicting):
                rows = [*of_prompt, *chain.from_iterable(of_answer[1:] for of_answer in of_answers)]
                parts[i] = outputs.states[torch.tensor(rows, device=outputs.states.device)].cpu()
        together = torch.cat([parts[i] for i in range(len(prompts))]) if prompts else prefix
        lengths = [len(prompt.token_ids) - (before or 0) for prompt in prompts]
        return FitFeatures.from_states(together, lengths, answers, prefix=prefix if whole else None)

    def prompt_states(self, prompts: Sequence[Prompt], depth: float) -> list[list[float]]:
        """Return the hidden state of the last token of each prompt after a share `depth` of the layers.

        The numbers have four significant digits. Each prompt runs alone.
        """
        states = (self.network.state_within(prompt.token_ids, depth) for prompt in prompts)
        return [[float(f"{number:.4g}") for number in state.tolist()] for state in states]

    def logits(self, states: Tensor) -> Tensor:
        """Compute logits (N, V), float32, of last hidden states (N, d) with the head of the model.

        Soft-capping and scaling are included.
        """
        return self.network.logits(states)

    def _invalid(
        self, prompts: Sequence[Prompt], recalibrators: Sequence[AnyRecalibrator], m: int, steps: int
    ) -> Iterator[QuestionError]:
        """Yield at most one error for each question that cannot have `m` samples of `steps` tokens."""
        lengths = [(steps, m * len(recalibrators) * steps)] * len(prompts)
        return self._planner.invalid_prompts(prompts, lengths, ats_among(recalibrators))

    def _decoded(
        self, prompts: Sequence[Prompt], request: DecodingRequest
    ) -> Iterator[tuple[int, DecodedSamples]]:
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
        missing = {i: tokens for i, draws in enumerate(answers) if (tokens := rescoring.missing(i, draws))}
        if not missing:
            return
        scores = self.score([prompts[i] for i in missing], list(missing.values()), recalibrator=recalibrator)
        for (i, tokens), token_scores in zip(missing.items(), scores):
            found = dict(zip(tokens, token_scores))
            answers[i] = [rescoring.with_score(i, draw, found.get) for draw in answers[i]]

    def _draw(self, samples: DecodedSamples, index: tuple[int, int]) -> Generation:
        """Return the generation of a sample with the index (recalibrator, sample)."""
        drawn = samples.tokens[index] >= 0
        tokens, log_probs = samples.tokens[index][drawn], samples.log_probs[index][drawn]
        return self._generation(tokens.tolist(), log_probs.tolist())

    def _generation(self, tokens: Sequence[int], log_probs: Sequence[float]) -> Generation:
        text, finished = self.format.text(tokens), tokens[-1] in self.format.stops
        refusal = self.format.refusal(text)
        return Generation(text, tuple(tokens), tuple(log_probs), finished, refusal=refusal)


_Ids = tuple[int, ...]
_Scores = tuple[float, ...]


def _run(
    cache: TreeCache, questions: Sequence[tuple[Prompt, Sequence[_Ids]]], *, all_tokens: bool
) -> tuple[ModelOutputs, list[range], list[list[list[int]]]]:
    """Run prompts and their answers; return outputs, and rows of the outputs by question and by answer.

    The rows of a question are those of its prompt's tokens after the shared prefix with `all_tokens`, and
    otherwise of the last. The rows of an answer are those that predict each of its tokens. Common prefixes of
    answers are merged to trees, and the last token of an answer does not run, because it predicts no token.
    """
    outputs = [cache.prefill([prompt.token_ids for prompt, _ in questions], all_tokens=all_tokens)]
    of_prompts, predicting = list[range](), list[list[list[int]]]()
    tokens, rows, paths = list[int](), list[int](), list[list[int]]()
    end, behind = 0, len(outputs[0])
    for question, (prompt, answers) in enumerate(questions):
        start, end = end, end + (len(prompt.token_ids) - cache.prefix_length if all_tokens else 1)
        of_prompts.append(range(start, end))
        predicting.append([])
        children: dict[tuple[int, int], int] = {}
        for answer in answers:
            node = -1  # the end of the prompt
            predicting[-1].append([end - 1] if answer else [])
            for token in answer[:-1]:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    paths.append([*(paths[node] if node >= 0 else ()), cache.slots + len(tokens)])
                    tokens.append(token)
                    rows.append(question)
                node = children[node, token]
                predicting[-1][-1].append(behind + node)
    if tokens:
        path = pad_sequence(list(map(torch.tensor, paths)), batch_first=True, padding_value=-1)
        outputs.append(cache.extend(NewTokens(torch.tensor(tokens), torch.tensor(rows), path)))
    return ModelOutputs.concatenate(outputs), of_prompts, predicting


class Rescoring:
    """The tokens of each sample to score, and their log-probabilities if decoding has read them."""

    def __init__(self, chat_format: ChatFormat, cut: GenerationCut, prompts: Sequence[Prompt]) -> None:
        self._format, self._cut, self._prompts = chat_format, cut, prompts
        self._completions: dict[tuple[int, _Ids], tuple[_Ids | None, int]] = {}
        self.closing_tokens = _closing_tokens(chat_format)

    def completion(self, i: int, generation: Generation) -> tuple[_Ids | None, int]:
        """Return the tokens to score (None: the sampled tokens), and the number of tokens of the lead-in."""
        key = i, generation.token_ids
        if key not in self._completions:
            start, end, ended = self._cut(self._prompts[i], generation)
            tokens = self._format.complete(generation, end, start, ended)
            lead = len(self._format.lead(generation, start))
            self._completions[key] = None if tokens == generation.token_ids else tokens, lead
        return self._completions[key]

    def run_last_token(self, i: int, token_ids: _Ids) -> bool:
        """Return whether all tokens of an unfinished sample are scored, so that the last of them must run."""
        text = self._format.text(token_ids)
        refusal = self._format.refusal(text)
        generation = Generation(text, token_ids, (), finished=False, refusal=refusal)
        completion, _ = self.completion(i, generation)
        return completion is not None and completion[:-1] == token_ids

    def rescored(
        self, i: int, draws: Sequence[Generation], samples: DecodedSamples, recalibrator: int
    ) -> list[Generation]:
        """Return the samples of a question with a recalibrator (an index), with scores from decoding.

        The samples must be decoded with the closing tokens of this object.
        """
        if not any(any(self.completion(i, draw)) for draw in draws):
            return list(draws)
        after = _scores_after(draws, samples.closing_log_probs[recalibrator], self.closing_tokens)

        def look_up(tokens: _Ids) -> _Scores | None:
            scores = [after.get(tokens[:place], {}).get(token) for place, token in enumerate(tokens)]
            return None if None in scores else tuple(score for score in scores if score is not None)

        return [self.with_score(i, draw, look_up) for draw in draws]

    def missing(self, i: int, draws: Sequence[Generation]) -> list[_Ids]:
        """Return distinct token sequences that are still without scores."""
        completions = (self.completion(i, draw)[0] for draw in draws if draw.rescored is None)
        return list(dict.fromkeys(tokens for tokens in completions if tokens is not None))

    def with_score(self, i: int, draw: Generation, find: Callable[[_Ids], _Scores | None]) -> Generation:
        """Return a sample with its missing scores, if `find` knows them."""
        tokens, lead = self.completion(i, draw)
        scores = draw.rescored if tokens is None or draw.rescored is not None else find(tokens)
        return replace(draw, rescored=scores, lead=lead)


def _scores_after(
    draws: Sequence[Generation], closing: NDArray[np.float32], closing_tokens: Sequence[int]
) -> dict[_Ids, dict[int, float]]:
    """Return known log-probabilities after each prefix of samples; `closing` (m, steps + 1, W) may be NaN."""
    after_prefix: dict[_Ids, dict[int, float]] = {}
    for draw, of_steps in zip(draws, closing.tolist(), strict=True):
        for step, values in enumerate(of_steps[: len(draw.token_ids) + 1]):
            log_probs = after_prefix.setdefault(draw.token_ids[:step], {})
            log_probs.update((token, x) for token, x in zip(closing_tokens, values, strict=True) if x == x)
            if step < len(draw.token_ids):
                log_probs[draw.token_ids[step]] = draw.token_log_probs[step]
    return after_prefix


def _closing_tokens(chat_format: ChatFormat) -> _Ids:
    """Return the tokens that may end a scored answer: the end of turn, alone and merged with a full stop."""
    sentence = tuple(chat_format.tokenizer("a.", add_special_tokens=False)["input_ids"])
    merged = chat_format.complete(Generation("a.", sentence, (), finished=False), len("a."))
    return tuple(dict.fromkeys((*chat_format.end_of_turn[:1], *merged[-1:])))
