"""Questions: data sets, columns, splits, prompts, and logs of other programs."""

from semcal.data.datasets import load_questions, read_questions
from semcal.data.question import Question, Turn, chat, plain_text
from semcal.data.splits import Splits, SplitSizes, split_questions

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
