"""Answers of a call: drawn, most likely, or found by beam search; and what given ones cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from semcal.engine.batches import strange_token
from semcal.engine.beam import beam_search
from semcal.engine.chat import ChatFormat
from semcal.engine.choosing import Rules
from semcal.engine.closing import Closing
from semcal.engine.drawing import inverse_cdf, most_likely
from semcal.engine.language_model import Cut, Generation, Progress, Prompt
from semcal.engine.passes import Answers, Passes
from semcal.engine.randomness import uniforms
from semcal.engine.riders import riders_of
from semcal.engine.scoring import answer_log_probs, answer_states
from semcal.engine.truncation import Truncation
from semcal.engine.walked import Walk
from semcal.errors import ModelError
from semcal.recalibration import AnyRecalibrator

__all__ = ["Generating"]

Scores = list[list[tuple[float, ...]]]


@dataclass(frozen=True)
class Generating:
    """Ways to answer a call's questions.

    Attributes
    ----------
    passes : Passes
        What runs.
    format : ChatFormat
        Text of tokens, and what ends a turn.
    progress : callable, optional
        Called with the number of questions finished so far.
    """

    passes: Passes
    format: ChatFormat
    progress: Progress | None = None

    def draws(
        self,
        prompts: Sequence[Prompt],
        recalibrators: Sequence[AnyRecalibrator],
        seeds: Sequence[int],
        *,
        m: int,
        steps: int,
        truncation: Truncation | None,
        cut: Cut | None,
    ) -> list[list[list[Generation]]]:
        """The draws of all runs, one run behind the other: ``[recalibrator][prompt][draw]``."""
        results: list[list[list[Generation]]] = [[[] for _ in prompts] for _ in recalibrators]
        if not seeds:
            return results
        closing = Closing(self.format, cut) if cut else None
        if closing and (strange := strange_token(self.passes.network, closing.closers)):
            raise ModelError(f"the end of a turn has {strange}")
        rules = Rules(recalibrators, self.format.stops, truncation or inverse_cdf)
        if closing:
            rules = replace(rules, closers=closing.closers, beyond=closing.beyond)

        def numbers(i: int) -> NDArray[np.float64]:
            name = prompts[i].question_id
            return np.concatenate([uniforms(seed, name, m=m, steps=steps) for seed in seeds])

        walks = self.passes.walks(
            prompts, numbers, m=m * len(seeds), steps=steps, rules=rules, progress=self.progress
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
        self, prompts: Sequence[Prompt], recalibrator: AnyRecalibrator, *, steps: int
    ) -> list[Generation]:
        """The most likely token at every step."""
        unused = np.zeros((1, steps))
        rules = Rules([recalibrator], self.format.stops, most_likely)
        walks = self.passes.walks(
            prompts, lambda _: unused, m=1, steps=steps, rules=rules, progress=self.progress
        )
        results = {i: self._walked(walked, (0, 0)) for i, walked in walks}
        return [results[i] for i in range(len(prompts))]

    def beam(
        self, prompts: Sequence[Prompt], recalibrator: AnyRecalibrator, *, num_beams: int, steps: int
    ) -> list[Generation]:
        """The best answers of a beam search."""
        results: dict[int, Generation] = {}
        batches = self.passes.batches(
            prompts,
            longest=[steps] * len(prompts),
            room=[num_beams * steps] * len(prompts),
            progress=self.progress,
            riders=riders_of([recalibrator]),
        )
        for batch, forest, ids in batches:
            best = beam_search(
                forest,
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
        riders = riders_of([recalibrator])
        for batch, forest, ids in self.passes.answering(prompts, answers, self.progress, riders=riders):
            given = [answers[i] for i in batch]
            targets = torch.tensor([t for some in given for ids in some for t in ids], dtype=torch.long)
            found = answer_states(forest, ids, given)
            scored = iter(answer_log_probs(forest, found, targets, recalibrator).tolist())
            for i in batch:
                results[i] = [tuple(next(scored) for _ in answer) for answer in answers[i]]
        return results

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
        silent = replace(self, progress=None)
        scores = silent.scores([prompts[i] for i in lacking], list(lacking.values()), recalibrator)
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
