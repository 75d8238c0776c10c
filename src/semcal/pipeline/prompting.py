"""The chat that every question is asked through, the same for fitting and sampling (spec section 9)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.engine.language_model import LanguageModel, Prompt
from semcal.errors import UsageError
from semcal.qa.datasets import Question
from semcal.qa.prompts import SYSTEM_MESSAGE, Turn, answer_turn, chat

__all__ = ["Asking"]


@dataclass(frozen=True)
class Asking:
    """How questions are put to a model: the few-shot examples before them.

    Attributes
    ----------
    few_shot : tuple of Question
        Answered examples, the first answer of each is shown; fixed for all methods.
    """

    few_shot: tuple[Question, ...] = ()

    def chat(self, question: Question) -> tuple[Turn, ...]:
        """Return the turns that ask `question`."""
        return chat(question, few_shot=self.few_shot)

    def prompts(self, model: LanguageModel, questions: Sequence[Question]) -> list[Prompt]:
        """Encode the prompt of each question; UsageError for what is no language model of ours."""
        if not hasattr(model, "encode"):
            raise UsageError(
                f"expected a language model as semcal.load_model returns it, got {type(model).__name__}; a "
                "model in memory is wrapped by semcal.engine.CausalLanguageModel(model, tokenizer, name=...)"
            )
        return [Prompt(question.id, model.encode(self.chat(question))) for question in questions]

    def answers(self, model: LanguageModel, question: Question) -> list[tuple[int, ...]]:
        """Encode the distinct reference answers of `question` as answer turns, end of turn included."""
        asked = self.chat(question)
        turns = (model.encode_answer(asked, answer_turn(answer).content) for answer in question.answers)
        return list(dict.fromkeys(turns))

    def hash(self, model: LanguageModel) -> str:
        """Hash of the token ids of one fixed question: system message, few-shot examples and template."""
        token_ids = model.encode(self.chat(Question("", "Which?")))
        return hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        """Return the few-shot examples as plain data, for provenance."""
        return {
            "system": SYSTEM_MESSAGE,
            "few_shot": [
                {"question": q.question, "answer": q.answers[0]}
                | ({"context": q.context} if q.context else {})
                for q in self.few_shot
            ],
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Asking:
        """Return the few-shot examples that `describe` wrote."""
        return cls(
            tuple(
                Question(f"few-shot-{number}", item["question"], (item["answer"],), item.get("context"))
                for number, item in enumerate(description.get("few_shot", []))
            )
        )
