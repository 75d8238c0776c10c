"""The chat that asks a question, and its plain text (spec.md, section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semcal.errors import InputError
from semcal.qa.questions import Question

__all__ = ["SYSTEM_MESSAGE", "Turn", "answer_turn", "chat", "plain_text", "user_turn"]

SYSTEM_MESSAGE = (
    "Answer each question with the bare answer only: as few words as possible, no explanation, "
    "ending in a full stop."
)
"""The default system message."""


@dataclass(frozen=True)
class Turn:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


def user_turn(question: Question) -> Turn:
    """Return the turn that asks `question`, with its passage where it has one.

    Examples
    --------
    >>> user_turn(Question("1", "Who built it?")).content
    'Question: Who built it?'
    >>> user_turn(Question("1", "Who built it?", context="Ada built it.")).content
    'Context: Ada built it.\\n\\nQuestion: Who built it?'
    """
    passage = "" if question.context is None else f"Context: {question.context}\n\n"
    return Turn("user", f"{passage}Question: {question.question}")


def answer_turn(answer: str) -> Turn:
    """Return the turn that gives `answer`, with one full stop at its end.

    Examples
    --------
    >>> answer_turn("Ada").content, answer_turn("Washington, D.C.").content
    ('Ada.', 'Washington, D.C.')
    """
    return Turn("assistant", answer if answer.endswith(".") else f"{answer}.")


def chat(
    question: Question | str,
    *,
    few_shot: Sequence[Question] = (),
    context: str | None = None,
    system: str | None = SYSTEM_MESSAGE,
) -> tuple[Turn, ...]:
    """Return the whole chat that asks one question, ending in the user's turn.

    Each of the `few_shot` examples is answered with its first reference. `context` is the passage of a
    question given as a text. Without a `system` message (None) there is no such turn.

    Raises
    ------
    InputError
        If an example has no answer, or a passage is given twice.

    Examples
    --------
    >>> example = Question("7", "Who found radium?", ("Marie Curie",))
    >>> for turn in chat("Who built it?", few_shot=[example], system="Be brief."):
    ...     print(f"{turn.role}: {turn.content}")
    system: Be brief.
    user: Question: Who found radium?
    assistant: Marie Curie.
    user: Question: Who built it?
    """
    if isinstance(question, str):
        question = Question("", question, context=context)
    elif context is not None:
        raise InputError(f"question {question.id!r} brings its own passage: leave `context` out")
    turns = [] if system is None else [Turn("system", system)]
    for example in few_shot:
        if not example.answers:
            raise InputError(f"few-shot example {example.id!r} has no answer: give it one, or leave it out")
        turns += [user_turn(example), answer_turn(example.answers[0])]
    return (*turns, user_turn(question))


def plain_text(turns: Sequence[Turn]) -> str:
    """Return a chat as plain text, for models without a chat template.

    A chat that ends in the user's turn ends in "Answer:", to be continued by a blank and the answer; the text
    of a chat that ends in an answer begins with the text of the chat before it.

    Examples
    --------
    >>> example = Question("7", "Who found radium?", ("Marie Curie",))
    >>> print(plain_text(chat("Who built it?", few_shot=[example], system="Be brief.")))
    Be brief.
    <BLANKLINE>
    Question: Who found radium?
    Answer: Marie Curie.
    <BLANKLINE>
    Question: Who built it?
    Answer:
    """
    parts = []
    for turn in turns:
        if turn.role == "user":
            parts.append(f"{turn.content}\nAnswer:")
        elif turn.role == "assistant":
            parts.append(f" {turn.content}\n\n")
        else:
            parts.append(f"{turn.content}\n\n")
    return "".join(parts).removesuffix("\n\n")
