"""From prompts to batches: the shared prefix, what a question holds of its own, and what fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from semcal.engine.forest import Forest
from semcal.engine.language_model import Prompt
from semcal.engine.network import Network
from semcal.engine.planting import planted
from semcal.errors import QuestionError
from semcal.recalibration import ATS

__all__ = ["batches", "common_prefix", "misfits", "overspent", "shared_length"]


def common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the longest common prefix.

    Examples
    --------
    >>> common_prefix([(1, 2, 3), (1, 2, 4, 5)])
    2
    """
    first, last = min(sequences), max(sequences)  # the two that part first, in lexical order
    for position, (a, b) in enumerate(zip(first, last)):
        if a != b:
            return position
    return min(len(first), len(last))


def shared_length(prompts: Sequence[Prompt]) -> int:
    """How many tokens all prompts begin with in common, at least one of each being left over."""
    shortest = min(len(prompt.token_ids) for prompt in prompts)
    return min(common_prefix([prompt.token_ids for prompt in prompts]), shortest - 1)


def misfits(
    prompts: Sequence[Prompt], *, longest: Sequence[int], limit: int | None
) -> Iterator[QuestionError]:
    """Yield an error for each prompt that is empty or has no room for its longest answer (in tokens)."""
    for prompt, most in zip(prompts, longest):
        length = len(prompt.token_ids)
        if length == 0:
            yield QuestionError(prompt.question_id, "its prompt has no tokens; one at least is needed")
        elif limit is not None and length + most > limit:
            yield QuestionError(
                prompt.question_id,
                f"its prompt has {length} tokens and the answer may have {most}, but the model holds "
                f"{limit}; shorten the passage, the examples or the answer",
            )


def overspent(
    prompts: Sequence[Prompt], *, room: Sequence[int], bytes_per_token: int, budget: int
) -> Iterator[QuestionError]:
    """Yield an error for each prompt that, with `room` tokens beyond it, is over the budget by itself."""
    for prompt, extra in zip(prompts, room):
        need = (len(prompt.token_ids) + extra) * bytes_per_token
        if need > budget:
            yield QuestionError(
                prompt.question_id,
                f"its prompt of {len(prompt.token_ids)} tokens and up to {extra} of its answers may take "
                f"{need} bytes of keys and values, more than the {budget} of the memory budget; give more "
                "memory, or ask for fewer or shorter answers",
            )


def batches(
    network: Network,
    prompts: Sequence[Prompt],
    *,
    room: Sequence[int],
    budget: int,
    shared: int | None = None,
    riders: Sequence[ATS] = (),
) -> Iterator[tuple[list[int], Forest]]:
    """Cut prompts into batches of like length; each comes with a forest that holds the prefix of all.

    Parameters
    ----------
    network : Network
        The model.
    prompts : sequence of Prompt
        All prompts of a call; they are checked.
    room : sequence of int
        For each prompt, how many tokens beyond the prompt its row may come to hold.
    budget : int
        Bytes that the keys and values of a batch may take.
    shared : int, optional
        How many tokens the shared prefix has; by default all that the prompts begin with in common.
    riders : sequence of ATS
        Recalibrators that read hidden states.

    Yields
    ------
    tuple of list of int and Forest
        Indices of the prompts of the batch, and a forest for them.
    """
    if not prompts:
        return
    if shared is None:
        shared = shared_length(prompts)
    trunk = planted(network, prompts[0].token_ids[:shared], riders)
    copied = 0 if network.copied else shared
    sizes = [len(prompt.token_ids) - shared + copied + extra for prompt, extra in zip(prompts, room)]
    order = sorted(range(len(prompts)), key=lambda i: (sizes[i], i))
    for batch in _cut(order, cost=lambda i: sizes[i] * network.bytes_per_token, budget=budget):
        yield batch, trunk.empty()


def _cut(order: Sequence[int], *, cost: Callable[[int], int], budget: int) -> Iterator[list[int]]:
    """Cut an order of ascending cost into runs whose size times largest cost stays within the budget."""
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * cost(i) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
