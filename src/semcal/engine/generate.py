"""The answers of a call: sampled, greedy or by beam search; and the scores of given answers.

Beam search follows `transformers` at its defaults (length_penalty 1.0, early_stopping False): the `num_beams`
best unfinished sequences continue. One that ends, or reaches the token limit, counts as an answer if it is
among the `num_beams` best of all; answers compare by their mean token log-probability. A search is over when
it has `num_beams` answers and the best unfinished sequence has no higher mean than the worst of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.decoding import DecodingOptions, Request, Samples, Uniforms, decode
from semcal.engine.drawing import Truncation, check_not_nan, inverse_cdf, most_likely, uniforms
from semcal.engine.language_model import Cut, Generation, Progress, Prompt
from semcal.engine.scheduling import Answers, BatchPlanner, ats_among, unknown_token
from semcal.engine.scoring import Rescoring, answer_log_probs, answer_states
from semcal.engine.tokenization import ChatFormat
from semcal.engine.tree_cache import ModelOutputs, TreeCache, advance, log_probs, start
from semcal.errors import ModelError
from semcal.recalibration.attentive import AnyRecalibrator

Scores = list[list[tuple[float, ...]]]


@dataclass(frozen=True)
class AnswerGenerator:
    """Answers to the questions of a call."""

    planner: BatchPlanner
    format: ChatFormat
    progress: Progress | None = None  # called with the number of questions finished so far

    def sample(
        self,
        prompts: Sequence[Prompt],
        recalibrators: Sequence[AnyRecalibrator],
        seeds: Sequence[int],
        *,
        m: int,
        steps: int,
        truncation: Truncation | None,
        cut: Cut | None,
        first: int = 0,
    ) -> list[list[list[Generation]]]:
        """The draws of all seeds, one seed after the other: ``[recalibrator][prompt][draw]``."""
        results: list[list[list[Generation]]] = [[[] for _ in prompts] for _ in recalibrators]
        if not seeds:
            return results
        options = DecodingOptions(recalibrators, self.format.stops, truncation or inverse_cdf)
        rescoring = Rescoring(self.format, cut, prompts) if cut else None
        if rescoring:
            if unknown := unknown_token(self.planner.network, rescoring.closing_tokens):
                raise ModelError(f"the end of a turn has {unknown}")
            options = replace(
                options,
                closing_tokens=rescoring.closing_tokens,
                run_last_token=rescoring.run_last_token,
            )

        def of_question(i: int) -> NDArray[np.float64]:
            name = prompts[i].question_id
            return np.concatenate([uniforms(seed, name, m=m, steps=steps, first=first) for seed in seeds])

        draws = m * len(seeds)
        for i, samples in self._decode(prompts, of_question, options, m=draws, steps=steps):
            for r, of_prompts in enumerate(results):
                drawn = [self._draw(samples, (r, j)) for j in range(draws)]
                of_prompts[i] = rescoring.rescored(i, drawn, samples, r) if rescoring else drawn
        if rescoring:
            for of_prompts, recalibrator in zip(results, recalibrators):
                self._score_missing(prompts, of_prompts, rescoring, recalibrator)
        return results

    def greedy(
        self, prompts: Sequence[Prompt], recalibrator: AnyRecalibrator, *, steps: int
    ) -> list[Generation]:
        """The most likely token at every step."""
        unused = np.zeros((1, steps))
        options = DecodingOptions([recalibrator], self.format.stops, most_likely)
        decoded = self._decode(prompts, lambda _: unused, options, m=1, steps=steps)
        results = {i: self._draw(samples, (0, 0)) for i, samples in decoded}
        return [results[i] for i in range(len(prompts))]

    def beam(
        self, prompts: Sequence[Prompt], recalibrator: AnyRecalibrator, *, num_beams: int, steps: int
    ) -> list[Generation]:
        """The best answers of a beam search."""
        results: dict[int, Generation] = {}
        batches = self.planner.batches(
            prompts,
            longest=[steps] * len(prompts),
            room=[num_beams * steps] * len(prompts),
            progress=self.progress,
            ats=ats_among([recalibrator]),
        )
        for batch, cache, ids in batches:
            best = beam_search(
                cache,
                ids,
                recalibrator=recalibrator,
                stops=self.format.stops,
                num_beams=num_beams,
                steps=steps,
            )
            results.update((i, self._generation(b.tokens, b.log_probs)) for i, b in zip(batch, best))
        return [results[i] for i in range(len(prompts))]

    def scores(self, prompts: Sequence[Prompt], answers: Answers, recalibrator: AnyRecalibrator) -> Scores:
        """Log-probability of every token of given answers: ``[prompt][answer]``."""
        results: Scores = [[] for _ in prompts]
        ats = ats_among([recalibrator])
        for batch, cache, ids in self.planner.answer_batches(prompts, answers, self.progress, ats=ats):
            given = [answers[i] for i in batch]
            targets = torch.tensor([t for some in given for ids in some for t in ids], dtype=torch.long)
            found = answer_states(cache, ids, given)
            scored = iter(answer_log_probs(cache, found, targets, recalibrator).tolist())
            for i in batch:
                results[i] = [tuple(next(scored) for _ in answer) for answer in answers[i]]
        return results

    def _decode(
        self,
        prompts: Sequence[Prompt],
        uniforms: Uniforms,
        options: DecodingOptions,
        *,
        m: int,
        steps: int,
    ) -> Iterator[tuple[int, Samples]]:
        """Each question and its samples, in the order in which the questions are finished."""
        for error in self.planner.invalid_for_decoding(prompts, options.recalibrators, m=m, steps=steps):
            raise error
        if not prompts or not options.recalibrators:
            return
        prefix, scheduler = self.planner.schedule(prompts, ats_among(options.recalibrators))
        request = Request([prompt.token_ids for prompt in prompts], uniforms, m, steps)
        for done, (i, samples) in enumerate(decode(prefix, request, scheduler, options), 1):
            yield i, samples
            if self.progress is not None:
                self.progress(done)

    def _score_missing(
        self,
        prompts: Sequence[Prompt],
        drawn: list[list[Generation]],
        rescoring: Rescoring,
        recalibrator: AnyRecalibrator,
    ) -> None:
        """Score in a second pass what draws need and decoding has not read."""
        missing = {i: tokens for i, draws in enumerate(drawn) if (tokens := rescoring.missing(i, draws))}
        if not missing:
            return
        silent = replace(self, progress=None)
        scores = silent.scores([prompts[i] for i in missing], list(missing.values()), recalibrator)
        for (i, tokens), found in zip(missing.items(), scores):
            drawn[i] = rescoring.with_scores(i, drawn[i], dict(zip(tokens, found)))

    def _draw(self, samples: Samples, at: tuple[int, int]) -> Generation:
        """The generation of one draw: recalibrator and number."""
        count = int((samples.tokens[at] >= 0).sum())
        return self._generation(samples.tokens[at][:count].tolist(), samples.log_probs[at][:count].tolist())

    def _generation(self, tokens: Sequence[int], log_probs: Sequence[float]) -> Generation:
        return Generation(
            text=self.format.text(tokens),
            token_ids=tuple(tokens),
            token_log_probs=tuple(log_probs),
            finished=tokens[-1] in self.format.stops,
        )


@dataclass(frozen=True)
class Beam:
    """A sequence of tokens, the log-probability of each, and the node that predicts its next token."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    node: int = 0

    @property
    def total(self) -> float:
        """Log-probability of the sequence."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """Mean token log-probability."""
        return self.total / len(self.tokens)


def beam_search(
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    *,
    recalibrator: AnyRecalibrator,
    stops: frozenset[int],
    num_beams: int,
    steps: int,
) -> list[Beam]:
    """The best answer, of at most `steps` tokens, to each prompt (all its tokens); the cache is used up."""
    searches = [_Search(num_beams, [Beam(node=row)]) for row in range(len(prompts))]
    frontier = start(cache, prompts)
    known = sorted(token for token in stops if token < cache.network.vocabulary)
    enders = torch.tensor(known, dtype=torch.long, device=cache.network.device)
    for step in range(steps):
        table = _candidates(cache, frontier.outputs, recalibrator, enders, num_beams)
        active = [search for search in searches if search.running]
        for search in active:
            search.step(table, stops, last=step == steps - 1)
        running = [beam for search in searches for beam in search.running]
        if not running:
            break
        node = torch.tensor([beam.node for beam in running])
        token = torch.tensor([beam.tokens[-1] for beam in running])
        frontier, reached = advance(cache, frontier, node, token)
        nodes = iter(reached.tolist())
        for search in searches:
            search.running = [Beam(beam.tokens, beam.log_probs, next(nodes)) for beam in search.running]
    return [search.answers[0] for search in searches]


@dataclass(frozen=True)
class _Candidates:
    """For each node the likeliest tokens, and the likeliest that end no turn: (F, k) each, best first."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class _Search:
    """The beams of one question: those still running and the best answers so far."""

    def __init__(self, width: int, running: list[Beam]) -> None:
        self.width = width
        self.running = running
        self.answers: list[Beam] = []

    def step(self, candidates: _Candidates, stops: frozenset[int], *, last: bool) -> None:
        """Extend the running beams by one token."""
        extended = [beam for running in self.running for beam in _extend(running, candidates)]
        extended.sort(key=lambda beam: -beam.total)
        ended = [beam for beam in extended[: self.width] if last or beam.tokens[-1] in stops]
        self.answers = sorted(self.answers + ended, key=lambda beam: -beam.mean)[: self.width]
        self.running = [beam for beam in extended if beam.tokens[-1] not in stops][: self.width]
        full = len(self.answers) == self.width
        if last or not self.running or (full and self.running[0].mean <= self.answers[-1].mean):
            self.running = []


def _extend(beam: Beam, candidates: _Candidates) -> list[Beam]:
    tokens, log_probs = candidates.tokens[beam.node].tolist(), candidates.log_probs[beam.node].tolist()
    return [
        Beam((*beam.tokens, token), (*beam.log_probs, log_prob), beam.node)
        for token, log_prob in zip(tokens, log_probs, strict=True)
        if log_prob > -np.inf
    ]


def _candidates(
    cache: TreeCache, outputs: ModelOutputs, recalibrator: AnyRecalibrator, enders: Tensor, width: int
) -> _Candidates:
    """The `width` likeliest tokens of each node, and more until `width` of them end no turn."""
    tokens, values = [], []
    rows = cache.network.rows_at_a_time
    for first in range(0, len(outputs), rows):
        part = outputs[first : first + rows]
        scored = log_probs(recalibrator, cache.network.logits(part.states), part, cache.ats)
        best = scored.topk(min(width, scored.shape[1]))
        check_not_nan(best.values)
        ending = torch.isin(best.indices, enders)
        others = scored.scatter(1, enders.expand(len(scored), -1), -torch.inf).topk(
            min(width, scored.shape[1])
        )
        ends_only = best.values.masked_fill(~ending, -torch.inf)  # the rest are among the others
        tokens.append(torch.cat([best.indices, others.indices], 1).cpu())
        values.append(torch.cat([ends_only, others.values], 1).cpu())
    return _Candidates(torch.cat(tokens).numpy(), torch.cat(values).numpy())
