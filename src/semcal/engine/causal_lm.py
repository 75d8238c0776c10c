"""`CausalLanguageModel`: any causal checkpoint of transformers behind the `LanguageModel` protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.batches import shared_length
from semcal.engine.beam import beam_search
from semcal.engine.chat import chat_format
from semcal.engine.choosing import Rules
from semcal.engine.closing import Closing
from semcal.engine.drawing import inverse_cdf, most_likely
from semcal.engine.language_model import Cut, Generation, Progress, Prompt
from semcal.engine.passes import Answers, Passes, longest
from semcal.engine.planting import sound_network
from semcal.engine.randomness import uniforms
from semcal.engine.riders import riders_of
from semcal.engine.scoring import answer_log_probs, answer_states, own_states
from semcal.engine.truncation import Truncation
from semcal.engine.walked import Walk
from semcal.errors import QuestionError, UsageError
from semcal.qa.prompts import Turn
from semcal.recalibration import AnyRecalibrator, BlockShape, Suffixes

__all__ = ["CausalLanguageModel"]

LEAST_MEMORY = 2**26
"""Bytes that the keys and values of a batch may take at least; by default a quarter of the weights."""


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
        Default: a quarter of the weights' size, but 64 MiB at least, so that it depends on the model alone.
    refuse_larger : bool
        Whether a question that may need more than the budget by itself is refused; else it is run by itself.

    Raises
    ------
    ModelError
        If the engine does not reproduce the model's logits.

    Warns
    -----
    SemcalWarning
        If the attention cannot be replaced, so that sampling takes more time and memory; see `attention`.
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
    ) -> None:
        self.name = name
        self.revision = revision
        self.tokenizer = tokenizer
        self.network = sound_network(model)
        self.format = chat_format(tokenizer, _end_of_text(model, tokenizer))
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self.memory_budget = memory_budget or max(LEAST_MEMORY, weights // 4)
        self._passes = Passes(self.network, budget=self.memory_budget, strict=refuse_larger)

    def __repr__(self) -> str:
        return f"CausalLanguageModel({self.name!r}, revision={self.revision!r}, attention={self.attention!r})"

    @property
    def attention(self) -> str:
        """How the prompts' keys and values are kept: "three levels", or "plain" where a model needs that."""
        return "plain" if self.network.copied is None else "three levels"

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.network.width

    @property
    def dtype(self) -> str:
        """Of the hidden states: "float32", "bfloat16" or "float16"."""
        return str(self.network.dtype).removeprefix("torch.")

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt that is ready for the answer.

        Parameters
        ----------
        chat : sequence of Turn
            The conversation.

        Returns
        -------
        tuple of int
            Token ids: the chat template's own (or plain text where there is none), with one BOS at most.

        Raises
        ------
        ModelError
            If the chat template refuses the turns.
        """
        return self.format.encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, its end of turn included once.

        Parameters
        ----------
        chat : sequence of Turn
            As for `encode`.
        answer : str
            The assistant's turn.

        Returns
        -------
        tuple of int
            The token ids that follow those of ``encode(chat)``.
        """
        return self.format.encode_answer(chat, answer)

    def complete(self, generation: Generation, end: int) -> tuple[int, ...]:
        """Token ids of ``generation.text[:end]`` and the end of turn, to be scored.

        Parameters
        ----------
        generation : Generation
            A sampled answer.
        end : int
            Where its raw text is cut.

        Returns
        -------
        tuple of int
            The sampled tokens as far as the cut leaves them whole; a remaining piece is encoded anew.
        """
        return self.format.complete(generation, end)

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrators: Sequence[AnyRecalibrator],
        m: int = 10,
        seed: int = 0,
        max_new_tokens: int = 10,
        truncation: Truncation | None = None,
        cut: Cut | None = None,
        progress: Progress | None = None,
    ) -> list[list[list[Generation]]]:
        """Draw `m` answers to each prompt under each recalibrator.

        Plain multinomial sampling, with the uniforms of `semcal.engine.randomness`: the same for every
        recalibrator, and independent of batches and of the other questions.

        Parameters
        ----------
        prompts : sequence of Prompt
            The questions. What all their prompts begin with runs once, the rest of each once.
        recalibrators : sequence of Recalibrator or ATS
            Each gets its own draws; the prompts run once for all.
        m : int
            Draws per question and recalibrator.
        seed : int
            The run. Several runs share a pass with `sample_runs`.
        max_new_tokens : int
            Limit of an answer's length, end of turn included.
        truncation : Truncation, optional
            Top-k and top-p; by default tokens are drawn from the whole vocabulary.
        cut : callable, optional
            Where the text of a draw is cut to be scored, None where it is scored as it was drawn: decided
            from its text and from whether it is finished. Such draws have `rescored`, read off the walk; of
            those that met the token limit the last token runs for it. What the walk does not know (a cut
            inside a token may ask for tokens that nobody drew) is scored in a second pass.
        progress : callable, optional
            Called with the number of questions finished so far.

        Returns
        -------
        list of list of list of Generation
            ``[recalibrator][prompt][draw]``.

        Raises
        ------
        QuestionError
            For a prompt that is empty or too long for the model, before any is run.
        ModelError
            If probabilities are not finite.
        """
        (found,) = self.sample_runs(
            prompts,
            recalibrators=recalibrators,
            m=m,
            seeds=[seed],
            max_new_tokens=max_new_tokens,
            truncation=truncation,
            cut=cut,
            progress=progress,
        )
        return found

    def sample_runs(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrators: Sequence[AnyRecalibrator],
        seeds: Sequence[int],
        m: int = 10,
        max_new_tokens: int = 10,
        truncation: Truncation | None = None,
        cut: Cut | None = None,
        progress: Progress | None = None,
    ) -> list[list[list[list[Generation]]]]:
        """Draw what `sample` draws with each of several seeds, in one pass over the prompts.

        Parameters and errors are those of `sample`, and

        Parameters
        ----------
        seeds : sequence of int
            The runs.

        Returns
        -------
        list of list of list of list of Generation
            ``[run][recalibrator][prompt][draw]``.
        """
        _at_least_one(m=m, max_new_tokens=max_new_tokens)
        together = self._sampled(prompts, recalibrators, seeds, m, max_new_tokens, truncation, cut, progress)
        runs = [slice(run * m, (run + 1) * m) for run in range(len(seeds))]
        return [[[draws[run] for draws in of_prompts] for of_prompts in together] for run in runs]

    def _sampled(
        self,
        prompts: Sequence[Prompt],
        recalibrators: Sequence[AnyRecalibrator],
        seeds: Sequence[int],
        m: int,
        max_new_tokens: int,
        truncation: Truncation | None,
        cut: Cut | None,
        progress: Progress | None,
    ) -> list[list[list[Generation]]]:
        """The draws of all runs, one run behind the other: ``[recalibrator][prompt][draw]``."""
        results: list[list[list[Generation]]] = [[[] for _ in prompts] for _ in recalibrators]
        if not seeds:
            return results
        closing = Closing(self.format, cut) if cut else None

        def numbers(i: int) -> NDArray[np.float64]:
            name = prompts[i].question_id
            return np.concatenate([uniforms(seed, name, m=m, steps=max_new_tokens) for seed in seeds])

        rules = Rules(
            recalibrators,
            self.format.stops,
            truncation or inverse_cdf,
            closers=closing.closers if closing else (),
            beyond=closing.beyond if closing else None,
        )
        walks = self._passes.walks(
            prompts, numbers, m=m * len(seeds), steps=max_new_tokens, rules=rules, progress=progress
        )
        for i, walked in walks:
            for r, of_prompts in enumerate(results):
                drawn = [self._walked(walked, (r, j)) for j in range(m * len(seeds))]
                of_prompts[i] = closing.rescored(drawn, walked, r) if closing else drawn
        if closing:
            for of_prompts, recalibrator in zip(results, recalibrators):
                self._score_lacking(prompts, of_prompts, closing, recalibrator)
        return results

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

        Returns
        -------
        list of Generation
            One per prompt.
        """
        _at_least_one(max_new_tokens=max_new_tokens)
        unused = np.zeros((1, max_new_tokens))
        rules = Rules([recalibrator], self.format.stops, most_likely)
        walks = self._passes.walks(
            prompts, lambda _: unused, m=1, steps=max_new_tokens, rules=rules, progress=progress
        )
        results = {i: self._walked(walked, (0, 0)) for i, walked in walks}
        return [results[i] for i in range(len(prompts))]

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

        Parameters and errors are those of `sample`, and

        Parameters
        ----------
        num_beams : int
            How many sequences go on at every step.

        Returns
        -------
        list of Generation
            The best answer to each prompt.
        """
        _at_least_one(num_beams=num_beams, max_new_tokens=max_new_tokens)
        results: dict[int, Generation] = {}
        count = len(prompts)
        batches = self._passes.batches(
            prompts,
            longest=[max_new_tokens] * count,
            room=[num_beams * max_new_tokens] * count,
            progress=progress,
            riders=riders_of([recalibrator]),
        )
        for batch, forest, ids in batches:
            best = beam_search(
                forest,
                ids,
                recalibrator=recalibrator,
                stops=self.format.stops,
                num_beams=num_beams,
                steps=max_new_tokens,
            )
            results.update((i, self._generation(b.tokens, b.log_probs)) for i, b in zip(batch, best))
        return [results[i] for i in range(len(prompts))]

    def score(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        recalibrator: AnyRecalibrator,
        progress: Progress | None = None,
    ) -> list[list[tuple[float, ...]]]:
        """Log-probability of every token of given answers; answers to one prompt share its pass.

        Parameters
        ----------
        prompts : sequence of Prompt
            The questions.
        answers : sequence of sequence of tuple of int
            Per prompt the token ids of its answers, as `encode_answer` and `complete` give them.
        recalibrator : Recalibrator or ATS
            The distribution.
        progress : callable, optional
            Called with the number of questions finished so far.

        Returns
        -------
        list of list of tuple of float
            ``[prompt][answer]``: natural log-probabilities, one per token.

        Raises
        ------
        QuestionError
            For a question that with its longest answer does not fit the model, before any is run.
        """
        results: list[list[tuple[float, ...]]] = [[] for _ in prompts]
        riders = riders_of([recalibrator])
        for batch, forest, ids in self._passes.answering(prompts, answers, progress, riders=riders):
            given = [answers[i] for i in batch]
            targets = torch.tensor([t for some in given for ids in some for t in ids], dtype=torch.long)
            found = answer_states(forest, ids, given)
            scored = iter(answer_log_probs(forest, found, targets, recalibrator).tolist())
            for i in batch:
                results[i] = [tuple(next(scored) for _ in answer) for answer in answers[i]]
        return results

    def misfits(self, prompts: Sequence[Prompt], answers: Answers) -> list[QuestionError]:
        """What `score` and `features` would refuse: questions too long for the model with an answer."""
        room = [sum(map(len, given)) for given in answers]
        return list(self._passes.refusals(prompts, longest=longest(answers), room=room))

    @property
    def block_shape(self) -> BlockShape:
        """Measures of a LLaMA-style block like the model's own, for ATS."""
        config = self.network.model.config.get_text_config()
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        return BlockShape(
            hidden_size=self.width,
            intermediate_size=getattr(config, "intermediate_size", None) or 4 * self.width,
            heads=heads,
            key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or self.width // heads,
            rope_theta=getattr(config, "rope_theta", None) or rope.get("rope_theta") or 10_000.0,
            rms_eps=getattr(config, "rms_norm_eps", None) or 1e-5,
        )

    def features(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        whole: bool = False,
        shared: int | None = None,
        progress: Progress | None = None,
    ) -> Suffixes:
        """Last hidden states of prompts and given answers, as the fits read them.

        Parameters and errors are those of `score`, and

        Parameters
        ----------
        whole : bool
            Whether the states of all tokens are kept, or of those alone that predict answer tokens.
        shared : int, optional
            How many tokens the shared prefix has; by default all that the prompts begin with in common.

        Returns
        -------
        Suffixes
            By prompt, answer and position, in the model's dtype, on the CPU.
        """
        before = shared if shared is not None or not prompts else shared_length(prompts)
        parts: dict[int, Tensor] = {}
        prefix = torch.zeros((0, 0), dtype=self.network.dtype)
        for batch, forest, ids in self._passes.answering(prompts, answers, progress, shared=before):
            prefix = forest.prefix_states.cpu() if whole else prefix
            found = own_states(forest, ids, [answers[i] for i in batch], whole=whole)
            parts.update(zip(batch, (states.cpu() for states in found)))
        states = torch.cat([parts[i] for i in range(len(prompts))]) if prompts else prefix
        own = [len(prompt.token_ids) - (before or 0) for prompt in prompts]
        return Suffixes.of(states, own, answers, prefix=prefix if whole else None)

    def logits(self, states: Tensor) -> Tensor:
        """Turn last hidden states into logits with the model's own head, soft-capping and scaling included.

        Parameters
        ----------
        states : torch.Tensor
            (N, d), as `features` gives them.

        Returns
        -------
        torch.Tensor
            (N, V) float32, on the model's device.
        """
        return self.network.logits(states)

    def _score_lacking(
        self,
        prompts: Sequence[Prompt],
        drawn: list[list[Generation]],
        closing: Closing,
        recalibrator: AnyRecalibrator,
    ) -> None:
        """Score in a second pass what draws need and the walk did not know."""
        lacking = {i: tokens for i, draws in enumerate(drawn) if (tokens := closing.lacking(draws))}
        if not lacking:
            return
        scores = self.score([prompts[i] for i in lacking], list(lacking.values()), recalibrator=recalibrator)
        for (i, tokens), found in zip(lacking.items(), scores):
            drawn[i] = closing.filled(drawn[i], dict(zip(tokens, found)))

    def _walked(self, walked: Walk, at: tuple[int, int]) -> Generation:
        """The generation of one draw."""
        count = int((walked.tokens[at] >= 0).sum())
        return self._generation(walked.tokens[at][:count].tolist(), walked.log_probs[at][:count].tolist())

    def _generation(self, tokens: Sequence[int], log_probs: Sequence[float]) -> Generation:
        return Generation(
            text=self.format.text(tokens),
            token_ids=tuple(tokens),
            token_log_probs=tuple(log_probs),
            finished=tokens[-1] in self.format.stops,
        )


def _at_least_one(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1")


def _end_of_text(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end a text: of the generation config, the config and the tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        eos = getattr(source, "eos_token_id", None)
        found.update(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
    return found
