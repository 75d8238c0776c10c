"""Questions and answers as text: data sets, splits, prompts, normal form, grading."""

from semcal.qa.datasets import Question, load_questions, read_questions
from semcal.qa.prompts import Turn, chat, plain_text
from semcal.qa.splits import Splits, SplitSizes, split_questions

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
