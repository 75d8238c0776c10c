"""Questions: data sets, columns, splits, prompts, and logs of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal.data.datasets import load_questions, read_questions
    from semcal.data.question import Question, Turn, chat, plain_text
    from semcal.data.splits import Splits, SplitSizes, split_questions

#: Name → the module that holds it, imported when the name is first used.
_ADDRESSES = {
    "Question": "question",
    "SplitSizes": "splits",
    "Splits": "splits",
    "Turn": "question",
    "chat": "question",
    "load_questions": "datasets",
    "plain_text": "question",
    "read_questions": "datasets",
    "split_questions": "splits",
}

__all__ = [
    "Question",
    "SplitSizes",
    "Splits",
    "Turn",
    "chat",
    "load_questions",
    "plain_text",
    "read_questions",
    "split_questions",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
