"""Questions and answers as text: data sets, splits, prompts, normal form, grading."""

from semcal.qa.datasets import load_questions, read_questions
from semcal.qa.grading import Grade, Grader, RuleGrader
from semcal.qa.questions import Question, Turn, chat, plain_text
from semcal.qa.splits import Splits, SplitSizes, split_questions

__all__ = [
    "Grade",
    "Grader",
    "Question",
    "RuleGrader",
    "SplitSizes",
    "Splits",
    "Turn",
    "chat",
    "load_questions",
    "plain_text",
    "read_questions",
    "split_questions",
]
