"""The chat that every question is asked through, the same for fitting and sampling (spec section 9)."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from semcal.data.question import SYSTEM_MESSAGE, Question, Turn, answer_turn, chat
from semcal.errors import InputError, QuestionError, SemcalWarning
from semcal.models.language_model import AnswerReader, Prompt, Sampler, common_prefix

LabelledPrompt = tuple[Question, Prompt, list[tuple[int, ...]]]
"""A question, its prompt, and the token ids of its distinct reference answers."""


@dataclass(frozen=True)
class PromptConfig:
    """How questions are put to a model: after few-shot examples, of which the first answer is shown."""

    few_shot: tuple[Question, ...] = ()  # fixed for all methods

    def chat(self, question: Question) -> tuple[Turn, ...]:
        """Return the turns that ask `question`."""
        return chat(question, few_shot=self.few_shot)

    def prompts(self, model: Sampler, questions: Sequence[Question]) -> list[Prompt]:
        """Encode the prompt of each question."""
        self._warn_of_examples(model)
        prompts = [self._prompt(model, question) for question in questions]
        if not self.few_shot:
            return prompts
        other = model.encode(self.chat(Question("", "Which?")))
        return [replace(one, examples=common_prefix([one.token_ids, other])) for one in prompts]

    def read(
        self, model: AnswerReader, questions: Sequence[Question]
    ) -> tuple[list[LabelledPrompt], list[QuestionError]]:
        """Encode labelled questions; and the errors of those that cannot be encoded."""
        found, bad = list[LabelledPrompt](), list[QuestionError]()
        self._warn_of_examples(model)
        for question in questions:
            try:
                found.append((question, self._prompt(model, question), self.answers(model, question)))
            except QuestionError as error:
                bad.append(error)
        return found, bad

    def _prompt(self, model: Sampler, question: Question) -> Prompt:
        _warn_of_special_tokens(model, question.id, question.question, question.context)
        asked = self.chat(question)
        ids = _named(question.id, model.encode, asked)
        return Prompt(question.id, ids, asked, question=question.question)

    def _warn_of_examples(self, model: Sampler) -> None:
        for example in self.few_shot:
            shown = (example.question, example.context, *example.answers[:1])
            _warn_of_special_tokens(model, example.id, *shown)

    def answers(self, model: AnswerReader, question: Question) -> list[tuple[int, ...]]:
        """Encode the distinct reference answers of `question` as answer turns, end of turn included."""
        _warn_of_special_tokens(model, question.id, *question.answers)
        asked = self.chat(question)
        turns = (
            _named(question.id, model.encode_answer, asked, answer_turn(answer).content)
            for answer in question.answers
        )
        return list(dict.fromkeys(turns))

    def hash(self, model: Sampler) -> str:
        """Hash of the token ids of one fixed question: system message, few-shot examples and template.

        Of its turns, where a server encodes them.
        """
        asked = self.chat(Question("", "Which?"))
        content = model.encode(asked) or [[turn.role, turn.content] for turn in asked]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

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
    def from_description(cls, description: Mapping[str, Any]) -> PromptConfig:
        """Return the few-shot examples that `describe` wrote."""
        return cls(
            tuple(
                Question(f"few-shot-{number}", item["question"], (item["answer"],), item.get("context"))
                for number, item in enumerate(description.get("few_shot", []))
            )
        )


def _named(question_id: str, encode: Callable[..., tuple[int, ...]], *texts: Any) -> tuple[int, ...]:
    """The token ids of texts; what cannot be encoded names its question."""
    try:
        return encode(*texts)
    except InputError as error:
        raise QuestionError(question_id, str(error)) from error


def _warn_of_special_tokens(model: Sampler, question_id: str, *texts: str | None) -> None:
    """Name a question whose texts spell special tokens of the model."""
    found = [token for text in texts if text is not None for token in model.special_tokens_in(text)]
    if found:
        tokens = ", ".join(map(repr, dict.fromkeys(found)))
        warnings.warn(
            f"question {question_id!r} spells {tokens}, a special token of {model.name}; it is encoded as "
            "plain text",
            SemcalWarning,
            stacklevel=3,
        )
