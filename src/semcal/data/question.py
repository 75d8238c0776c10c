"""A question with its answers and its group (a passage, or a value of `group`), and the chat that asks it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, QuestionError, RowError, shown
from semcal.files import dumps

#: The field of a row that names its group.
GROUP = "group"
Role = Literal["system", "user", "assistant"]
RowData = Mapping[str, Any]
"""The keys of a row of a file, with what JSON can hold."""
Ties = tuple[Any, ...]
"""Values that tie a question to others of its group; one common value is enough."""


@dataclass(frozen=True)
class Turn:
    """One message of a chat."""

    role: Role
    content: str


@dataclass(frozen=True)
class Question:
    """One question, its reference answers and, open book, its passage.

    `id` is unique in its data set. `answers` are the references without duplicates, in the order of the
    source; few-shot examples show the first. `context` is the passage, exactly as given. `extra` holds the
    other keys of the row. `messages` is the whole chat if the row has one; `question` may then be empty.

    >>> Question("q1", "Who wrote it?", ("Ana Velis",)).row()
    {'id': 'q1', 'question': 'Who wrote it?', 'answers': ['Ana Velis']}
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    context: str | None = None
    extra: RowData = field(default_factory=dict, hash=False)
    line: int | None = field(default=None, compare=False, repr=False)  # in its file, for messages
    numbered: bool = field(default=False, compare=False, repr=False)  # whether that line is its id
    messages: tuple[Turn, ...] = field(default=(), repr=False)  # the last is a user turn

    def row(self) -> dict[str, Any]:
        """Return the question as a row of a file. A missing passage or answer has no key."""
        context = {} if self.context is None else {"context": self.context}
        answers = {"answers": list(self.answers)} if self.answers else {}
        prompt: dict[str, Any] = {"question": self.question} if self.question or not self.messages else {}
        if self.messages:
            prompt["messages"] = [vars(turn) for turn in self.messages]
        return {"id": self.id, **prompt, **context, **answers, **self.extra}

    @property
    def text(self) -> str:
        """The text to compare questions by: all messages but the system message, or the question."""
        turns = [turn.content for turn in self.messages if turn.role != "system"]
        return "\n".join(turns) or self.question

    def error(self, reason: str) -> RowError | QuestionError:
        """Return the error for a question that no model can answer, with its id and its line if known."""
        if self.line is None:
            return QuestionError(self.id, reason)
        return RowError(self.line, reason, self.id)


def reference_text(value: Any) -> str:
    """Return a reference answer as text, a whole number in digits; InputError for any other value."""
    if isinstance(value, str):
        return value
    is_integer = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    if is_integer or (type(value) is int and abs(value) < 10**300):
        return str(int(value))
    raise InputError(f'"answers" must hold texts or whole numbers, got {shown(value)}: write it in quotes')


def turns_of(value: Any) -> tuple[Turn, ...]:
    """Return the turns of a row, none for null; InputError unless they end in a user turn.

    >>> turns_of([{"role": "user", "content": "Who built it?"}])
    (Turn(role='user', content='Who built it?'),)
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f'"messages" must be a list like {_MESSAGES}, got {shown(value)}')
    turns = [_turn(item, f'"messages"[{place}]') for place, item in enumerate(value)]
    if any(turn.role == "system" for turn in turns[1:]):
        raise InputError('"messages": only the first turn may be a system message. Move it to the front.')
    if turns[-1].role != "user":
        raise InputError(f'"messages": the last turn has the role {turns[-1].role}. End with a user turn.')
    return tuple(turns)


_MESSAGES = '[{"role": "user", "content": "Who?"}]'


def _turn(item: Any, place: str) -> Turn:
    if not isinstance(item, Mapping) or not {"role", "content"} <= item.keys():
        raise InputError(f"{place} must be an object of role and content, got {shown(item)}")
    if further := [name for name in item if name not in ("role", "content") and item[name] is not None]:
        raise InputError(f"{place} has the key {shown(further[0])}, which is not supported. Leave it out.")
    role, content = item["role"], item["content"]
    if role not in (roles := get_args(Role)):
        raise InputError(f"the role of {place} is {shown(role)}; expected one of {', '.join(roles)}")
    if not isinstance(content, str) or not content.strip():
        raise InputError(f"the content of {place} must be a non-empty text, got {shown(content)}")
    return Turn(role, content)


def data_hash(questions: Sequence[Question]) -> str:
    """Hash ids, questions, passages, answers, groups and messages in the order of the questions."""
    content = [
        [
            *(q.id, q.question, q.context, list(q.answers)),
            *([q.extra[GROUP]] if GROUP in q.extra else []),
            *([[[turn.role, turn.content] for turn in q.messages]] if q.messages else []),
        ]
        for q in questions
    ]
    return hashlib.sha256(dumps(content).encode()).hexdigest()[:32]


@lru_cache(maxsize=4096)  # the rows of all candidates and runs share one copy
def passage_key(context: str | None) -> str:
    """Return a key that is equal for passages that differ only in case and white space; "" for none."""
    return "" if context is None else " ".join(context.casefold().split())


def group_of(row: RowData) -> str | float | None:
    """Return the value of the field `group` of a row, None if missing; InputError for an invalid value."""
    value = row.get(GROUP)
    if value is None or isinstance(value, str) or (isinstance(value, (int, float)) and not math.isnan(value)):
        return value
    raise InputError(f"'{GROUP}' must be a text or a number that questions share, got {shown(value)}")


def ties_of(row: RowData) -> Ties:
    """Return the ties of a row, from its keys `context` and `group`."""
    context, group = row.get("context"), group_of(row)
    passage = passage_key(context) if isinstance(context, str) else ""
    return tuple((kind, tie) for kind, tie in (("passage", passage), (GROUP, group)) if tie not in ("", None))


def group_ties(question: Question) -> Ties:
    """Return the ties of a question."""
    return ties_of({"context": question.context, GROUP: question.extra.get(GROUP)})


def group_labels(ties: Iterable[Ties]) -> NDArray[np.intp]:
    """Number the groups 0, 1, … in order of first appearance. Ties are transitive.

    >>> group_labels([("a",), ("b",), (), ("b", "c"), ("c",), ()])
    array([0, 1, 2, 1, 1, 3])
    """
    above: list[int] = []
    first: dict[Any, int] = {}

    def root(place: int) -> int:
        while above[place] != place:
            above[place] = place = above[above[place]]
        return place

    for place, values in enumerate(ties):
        above.append(place)
        for tie in values:
            low, high = sorted((root(first.setdefault(tie, place)), root(place)))
            above[high] = low
    roots = [root(place) for place in range(len(above))]
    return np.unique(roots, return_inverse=True)[1].astype(np.intp) if roots else np.zeros(0, np.intp)


def several(ties: Iterable[Ties]) -> NDArray[np.intp] | None:
    """Return `group_labels`, or None if every question is a group of its own."""
    labels = group_labels(ties)
    return labels if len(labels) > len(np.unique(labels)) else None


SYSTEM_MESSAGE = (
    "Answer each question with the bare answer only: as few words as possible, no explanation, "
    "ending in a full stop."
)
"""The default system message."""


def user_turn(question: Question, form: str | None = None) -> Turn:
    """Return the user turn of `question`, with its passage if it has one.

    `form` is a text with {question} and, for questions with passages, {context}. InputError if only one of
    form and question has a passage.

    >>> user_turn(Question("1", "Who built it?")).content
    'Question: Who built it?'
    >>> user_turn(Question("1", "Who built it?", context="Ada built it.")).content
    'Context: Ada built it.\\n\\nQuestion: Who built it?'
    """
    open_book = question.context is not None
    if form is None:
        form = "Context: {context}\n\nQuestion: {question}" if open_book else "Question: {question}"
    if open_book != ("{context}" in form):
        raise InputError(
            f"'context': the question has {'a' if open_book else 'no'} passage, and the template has "
            f"{'no ' * open_book}{{context}}. Give both a passage, or neither."
        )
    texts = {"question": question.question, "context": question.context or ""}
    return Turn("user", re.sub(r"\{(question|context)\}", lambda match: texts[match[1]], form))


def answer_turn(answer: str) -> Turn:
    """Return the assistant turn of `answer`, with one full stop at its end."""
    return Turn("assistant", answer if answer.endswith(".") else f"{answer}.")


def chat(
    question: Question | str,
    *,
    few_shot: Sequence[Question] = (),
    system: str | None = SYSTEM_MESSAGE,
    user: str | None = None,
) -> tuple[Turn, ...]:
    """Return the chat of one question, which ends in a user turn.

    Each of the `few_shot` examples is answered with its first reference. If `system` is None, the chat has no
    system turn. `user` is the form of the user turn (:func:`user_turn`). A question with messages keeps them;
    the examples go before its last turn. An example with messages shows its last. InputError if an example
    has no answer.

    >>> example = Question("7", "Who found radium?", ("Marie Curie",))
    >>> for turn in chat("Who built it?", few_shot=[example], system="Be brief."):
    ...     print(f"{turn.role}: {turn.content}")
    system: Be brief.
    user: Question: Who found radium?
    assistant: Marie Curie.
    user: Question: Who built it?
    """
    if isinstance(question, str):
        question = Question("", question)
    turns = [] if system is None else [Turn("system", system)]
    if question.messages:
        *turns, last = question.messages
    else:
        last = user_turn(question, user)
    for example in few_shot:
        if not example.answers:
            raise InputError(f"few-shot example {example.id!r} has no answer. Give it one, or leave it out.")
        form = user
        if question.messages:
            form = "{question}" if example.context is None else "{context}\n\n{question}"
        example_turn = example.messages[-1] if example.messages else user_turn(example, form)
        turns += [example_turn, answer_turn(example.answers[0])]
    return (*turns, last)


def plain_text(turns: Sequence[Turn]) -> str:
    """Return a chat as plain text, for models without a chat template.

    The text of a chat that ends in a user turn ends in "Answer:". A blank and the answer continue it: the
    text of a chat that ends in an answer begins with the text of the chat before that answer.

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
    forms = {"user": "{}\nAnswer:", "assistant": " {}\n\n", "system": "{}\n\n"}
    return "".join(forms[turn.role].format(turn.content) for turn in turns).removesuffix("\n\n")
