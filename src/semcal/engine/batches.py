"""From prompts to batches: the shared prefix, what a question holds of its own, and what fits into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semcal.engine.language_model import Prompt
from semcal.engine.network import Network
from semcal.errors import QuestionError

__all__ = ["batches", "common_prefix", "misfits", "overspent", "shared_length", "sizes", "strange_token"]


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
    network: Network, prompts: Sequence[Prompt], *, longest: Sequence[int]
) -> Iterator[QuestionError]:
    """Yield an error for each prompt that is empty or strange to the network, or that has no room for its
    longest answer (in tokens)."""
    limit = network.limit
    for prompt, most in zip(prompts, longest):
        length = len(prompt.token_ids)
        if length == 0:
            yield QuestionError(prompt.question_id, "its prompt has no tokens; one at least is needed")
        elif (strange := strange_token(network, prompt.token_ids)) is not None:
            yield QuestionError(prompt.question_id, f"its prompt has {strange}")
        elif limit is not None and length + most > limit:
            yield QuestionError(
                prompt.question_id,
                f"its prompt has {length} tokens and the answer may have {most}, but the model holds "
                f"{limit}{network.beyond}; shorten the passage, the examples or the answer",
            )


def strange_token(network: Network, token_ids: Sequence[int]) -> str | None:
    """What is amiss with tokens that are not all of the network's vocabulary."""
    least, most = min(token_ids, default=0), max(token_ids, default=0)
    if least >= 0 and most < network.vocabulary:
        return None
    return (
        f"the token {least if least < 0 else most}, but the model knows 0 to {network.vocabulary - 1} alone; "
        "give the tokenizer that it was trained with"
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


def sizes(network: Network, prompts: Sequence[Prompt], *, room: Sequence[int], shared: int) -> list[int]:
    """How many tokens each question holds for itself, behind a prefix of `shared` and with so much room."""
    own = shared if network.copied else 0  # the plain way holds a copy of the prefix for each question
    return [len(prompt.token_ids) - own + extra for prompt, extra in zip(prompts, room)]


def batches(costs: Sequence[int], *, budget: int) -> Iterator[list[int]]:
    """Cut questions into batches of like size.

    Parameters
    ----------
    costs : sequence of int
        Tokens that each may come to hold; in a batch all take as much as the largest.
    budget : int
        Tokens that a batch may hold; a question that may hold more is a batch by itself.

    Yields
    ------
    list of int
        Indices of the questions of a batch.

    Examples
    --------
    >>> list(batches([5, 9, 4, 30], budget=20))
    [[2, 0], [1], [3]]
    """
    batch: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], i)):
        if batch and (len(batch) + 1) * costs[i] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
