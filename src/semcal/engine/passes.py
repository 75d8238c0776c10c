"""What a call of the language model runs: the shared prefix, then its questions, as memory allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semcal.engine.admission import Queue
from semcal.engine.batches import batches, misfits, overspent, shared_length, sizes, strange_token
from semcal.engine.choosing import Rules
from semcal.engine.forest import Forest, at_once
from semcal.engine.language_model import Progress, Prompt
from semcal.engine.network import Network
from semcal.engine.riders import bytes_per_token, riders_of
from semcal.engine.sampling import walk
from semcal.engine.standing import Asked, Uniforms
from semcal.engine.trunks import Trunks
from semcal.engine.walked import Walk
from semcal.errors import InputError, QuestionError
from semcal.recalibration import ATS, AnyRecalibrator

__all__ = ["Answers", "Passes", "longest"]

Answers = Sequence[Sequence[tuple[int, ...]]]
Batch = tuple[list[int], Forest, list[tuple[int, ...]]]


class Passes:
    """Passes of a network within a budget.

    Parameters
    ----------
    network : Network
        The model.
    budget : int
        Bytes that the keys and values of the questions in a pass may take, those of riders included.
    strict : bool
        Whether a question that may need more by itself is refused; else it runs by itself.
    """

    def __init__(self, network: Network, *, budget: int, strict: bool) -> None:
        self.network, self.budget, self._strict = network, budget, strict
        self._trunks = Trunks(network, budget=budget)

    def refusals(
        self,
        prompts: Sequence[Prompt],
        *,
        longest: Sequence[int],
        room: Sequence[int],
        riders: Sequence[ATS] = (),
    ) -> Iterator[QuestionError]:
        """An error for each question that cannot run beside riders, one at most.

        For each `longest` is the length of its longest answer, `room` what all take together.
        """
        refused = set()
        for error in misfits(self.network, prompts, longest=longest):
            refused.add(error.question_id)
            yield error
        if self._strict:
            token = self._bytes_per_token(riders)
            for error in overspent(prompts, room=room, bytes_per_token=token, budget=self.budget):
                if error.question_id not in refused:
                    yield error

    def walk_refusals(
        self, prompts: Sequence[Prompt], recalibrators: Sequence[AnyRecalibrator], *, m: int, steps: int
    ) -> Iterator[QuestionError]:
        """What `walks` would raise."""
        return self.refusals(
            prompts,
            longest=[steps] * len(prompts),
            room=[steps * m * len(recalibrators)] * len(prompts),
            riders=riders_of(recalibrators),
        )

    def walks(
        self,
        prompts: Sequence[Prompt],
        uniforms: Uniforms,
        *,
        m: int,
        steps: int,
        rules: Rules,
        progress: Progress | None,
    ) -> Iterator[tuple[int, Walk]]:
        """Each question and what its draws chose, in the order in which they end."""
        riders = riders_of(rules.recalibrators)
        for error in self.walk_refusals(prompts, rules.recalibrators, m=m, steps=steps):
            raise error
        if not prompts or not rules.recalibrators:
            return
        shared = shared_length(prompts)
        trunk = self._trunks.planted(prompts[0].token_ids[:shared], riders)
        held = sizes(self.network, prompts, room=[0] * len(prompts), shared=shared)
        tokens = self._tokens(riders)
        queue = Queue(held, budget=tokens, lump=min(at_once(self.network) // 2, tokens // 8))
        asked = Asked([prompt.token_ids for prompt in prompts], uniforms, m, steps)
        for done, (i, walked) in enumerate(walk(trunk, asked, queue, rules), 1):
            yield i, walked
            if progress is not None:
                progress(done)

    def batches(
        self,
        prompts: Sequence[Prompt],
        *,
        longest: Sequence[int],
        room: Sequence[int],
        progress: Progress | None,
        shared: int | None = None,
        riders: Sequence[ATS] = (),
    ) -> Iterator[Batch]:
        """Indices, forest and token ids of batches of questions with room for their answers.

        Parameters
        ----------
        prompts : sequence of Prompt
            All prompts of a call.
        longest, room : sequence of int
            For each the length of its longest answer, and what all its answers take together.
        progress : callable, optional
            Called with the number of questions finished so far.
        shared : int, optional
            How many tokens the shared prefix has; by default all that the prompts begin with in common.
        riders : sequence of ATS
            Recalibrators that read hidden states.
        """
        self._check(prompts, longest=longest, room=room, riders=riders)
        if not prompts:
            return
        shared = shared_length(prompts) if shared is None else shared
        trunk, done = self._trunks.planted(prompts[0].token_ids[:shared], riders), 0
        held = sizes(self.network, prompts, room=room, shared=shared)
        for batch in batches(held, budget=self._tokens(riders)):
            yield batch, trunk.empty(), [prompts[i].token_ids for i in batch]
            done += len(batch)
            if progress is not None:
                progress(done)

    def answering(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        progress: Progress | None,
        *,
        shared: int | None = None,
        riders: Sequence[ATS] = (),
    ) -> Iterator[Batch]:
        """As `batches`, for given answers to each prompt."""
        if len(answers) != len(prompts):
            raise InputError(
                f"{len(prompts)} prompts, but {len(answers)} lists of answers; give one per prompt"
            )
        for prompt, given in zip(prompts, answers, strict=True):
            strange = strange_token(self.network, [token for answer in given for token in answer])
            if strange is not None:
                raise QuestionError(prompt.question_id, f"an answer to it has {strange}")
        room = [sum(map(len, given)) for given in answers]
        yield from self.batches(
            prompts, longest=longest(answers), room=room, progress=progress, shared=shared, riders=riders
        )

    def _bytes_per_token(self, riders: Sequence[ATS]) -> int:
        return self.network.bytes_per_token + bytes_per_token(riders)

    def _tokens(self, riders: Sequence[ATS]) -> int:
        return self.budget // self._bytes_per_token(riders)

    def _check(
        self,
        prompts: Sequence[Prompt],
        *,
        longest: Sequence[int],
        room: Sequence[int],
        riders: Sequence[ATS],
    ) -> None:
        for error in self.refusals(prompts, longest=longest, room=room, riders=riders):
            raise error


def longest(answers: Answers) -> list[int]:
    """Tokens of the longest answer to each prompt."""
    return [max(map(len, given), default=0) for given in answers]
