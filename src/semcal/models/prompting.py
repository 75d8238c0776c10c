"""Prompts of questions: template, few-shot examples, and the token ids of answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semcal.data.datasets import Questions, as_questions
from semcal.data.question import Question, Turn, answer_turn, chat, turns_of
from semcal.data.template import (
    Template,
    TemplateLike,
    VaryLike,
    as_template,
    as_variants,
    describe_variants,
    variant_of,
)
from semcal.errors import InputError, ModelError, QuestionError, UsageError
from semcal.models.protocols import AnswerReader, Prompt, Sampler

if TYPE_CHECKING:
    from semcal.rows import Row


LabelledPrompt = tuple[Question, Prompt, list[tuple[int, ...]]]
"""A question, its prompt, and the token ids of its distinct reference answers."""


def common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Return the length of the longest common prefix."""
    first, last = min(sequences), max(sequences)  # the extremes of the lexical order differ first
    for position, (a, b) in enumerate(zip(first, last)):
        if a != b:
            return position
    return min(len(first), len(last))


def shared_length(prompts: Sequence[Prompt]) -> int:
    """Return the length of the common prefix of all prompts, without the last token of any prompt."""
    shortest = min(len(prompt.token_ids) for prompt in prompts)
    return min(common_prefix([prompt.token_ids for prompt in prompts]), shortest - 1)


@dataclass(frozen=True, init=False)
class PromptConfig:
    """The prompt: a template, and answered examples before every question.

    Attributes
    ----------
    few_shot : tuple of Question
        Answered examples, with their first answers; from a file, a DataFrame, dicts or Questions. The default
        is the examples of the recalibrator or the calibration, or none.
    system : str, optional
        A system message in place of the built-in one, "" for none; it becomes part of the template.
    template : Template, optional
        `system` and `user` with {question} and {context}; from a file, a dict or a Template. None: each
        question has its own template, or the built-in one.
    vary : int or tuple of Template
        Variants of the prompt, over which the samples of a question are spread: a number of built-in ones
        with the prompt itself (1 to 5; 1 by default), or further templates. The prompt itself is variant 0.
    force : bool
        Accept messages of another template.
    open_book : bool, optional
        True if all questions have a passage, False if none has one; other questions are rejected.

    Raises
    ------
    InputError
        If an example has no answer.
    UsageError
        If both `system` and `template` are given, or the template has no {question}.

    Examples
    --------
    >>> prompt = PromptConfig([{"question": "Who built it?", "answers": "Ana"}], system="Answer briefly.")
    >>> len(prompt.few_shot), prompt.template.system
    (1, 'Answer briefly.')
    """

    few_shot: tuple[Question, ...]
    template: Template | None
    vary: int | tuple[Template, ...]
    force: bool = field(compare=False)
    open_book: bool | None = field(compare=False)

    def __init__(
        self,
        few_shot: Questions = (),
        system: str | None = None,
        template: TemplateLike | None = None,
        vary: VaryLike = None,
        *,
        force: bool = False,
        open_book: bool | None = None,
    ) -> None:
        is_none = isinstance(few_shot, tuple) and not few_shot
        examples = () if is_none else as_questions(few_shot, "few_shot", labelled=True)
        object.__setattr__(self, "few_shot", tuple(examples))
        object.__setattr__(self, "template", as_template(template, system))
        object.__setattr__(self, "vary", as_variants(vary))
        object.__setattr__(self, "force", force)
        object.__setattr__(self, "open_book", open_book)

    def variants(self, question: Question) -> list[PromptConfig]:
        """Return the variants of the prompt for questions like this one: each a prompt without variants.

        Variant 0 is the prompt itself. Built-in variant k rotates the few-shot examples by k, and words the
        instruction and the user turn in another way where those are built in. UsageError if nothing of the
        prompt can change, or templates are given to a question with messages.
        """
        alone = replace(self, vary=1)
        if self.vary == 1:
            return [alone]
        if not isinstance(self.vary, int):
            if question.messages:
                raise UsageError(
                    "vary: templates cannot change 'messages', which the row itself words. Pass a number to "
                    "vary the order of the few-shot examples, or give the rows a 'question' instead"
                )
            return [alone, *(replace(alone, template=one) for one in self.vary)]
        template, open_book = self.template_of(question), question.context is not None
        found = []
        for number in range(self.vary):
            turned = number % max(1, len(self.few_shot))
            few_shot = self.few_shot[turned:] + self.few_shot[:turned]
            one = template if question.messages else variant_of(template, number, open_book=open_book)
            found.append(
                replace(alone, few_shot=few_shot, template=one if one != template else self.template)
            )
        if any(one == alone for one in found[1:]):
            raise UsageError(
                f"vary: the prompt has fewer than {self.vary} variants, since its wording is your own and it "
                f"has {len(self.few_shot)} few-shot examples. Pass templates: vary=[{{'user': …}}, …]"
            )
        return found

    def template_of(self, question: Question) -> Template:
        """Return the template of a question; InputError if its messages have another template."""
        if self.template is None or (self.force and (question.messages or self.template.roles)):
            return Template.of(question)
        self.template.check(question)
        return self.template

    def differs_in_passage(self, asked: Question | Row) -> bool:
        """Return whether only one of a question and the others has a passage; False for messages."""
        is_known = self.open_book is not None and not asked.messages
        return is_known and self.open_book != (asked.context is not None)

    def passage_difference(self, question: Question | Row) -> str | None:
        """Return a message if only one of the calibration and the question has passages; None otherwise."""
        if not self.differs_in_passage(question):
            return None
        if self.open_book:
            return "'context' is missing, but the calibration was learned with it. Add a context"
        return "'context' is present, but the calibration was learned without it. Remove it"

    def settled(
        self, questions: Sequence[Question], on_bad_question: Callable[[QuestionError], None] | None = None
    ) -> tuple[PromptConfig, list[Question]]:
        """Return this prompt with one template, by default of the first question, and the matching questions.

        QuestionErrors of other questions are passed to `on_bad_question`; without it the first is raised.
        """
        asking, alike = self, list[Question]()
        if self.template is None and questions:
            asking = replace(self, template=Template.of(questions[0]))
        for question in questions:
            try:
                asking.template_of(question)
            except InputError as error:
                if on_bad_question is None:
                    raise question.error(str(error)) from None
                on_bad_question(QuestionError(question.id, str(error)))
            else:
                alike.append(question)
        return asking, alike

    def chat(self, question: Question) -> tuple[Turn, ...]:
        """Return the turns that ask `question`."""
        template = self.template_of(question)
        return chat(question, few_shot=self.few_shot, system=template.system, user=template.user)

    def prompts(self, model: Sampler, questions: Sequence[Question]) -> list[Prompt]:
        """Encode the prompt of each question."""
        prompts = [self._prompt(model, question) for question in questions]
        if not self.few_shot:
            return prompts
        templates = list(map(self.template_of, questions))
        others = {template: model.encode(self.chat(template.probe)) for template in dict.fromkeys(templates)}
        return [
            replace(prompt, examples=common_prefix([prompt.token_ids, others[template]]))
            for prompt, template in zip(prompts, templates)
        ]

    def read(
        self, model: AnswerReader, questions: Sequence[Question]
    ) -> tuple[list[LabelledPrompt], list[QuestionError]]:
        """Encode labeled questions; return them, and the errors of questions that cannot be encoded."""
        labelled, errors = list[LabelledPrompt](), list[QuestionError]()
        for question in questions:
            try:
                labelled.append((question, self._prompt(model, question), self.answers(model, question)))
            except QuestionError as error:
                errors.append(error)
        return labelled, errors

    def _prompt(self, model: Sampler, question: Question) -> Prompt:
        if (difference := self.passage_difference(question)) and not self.force:
            raise QuestionError(question.id, f"{difference}, or calibrate with such questions")
        turns = self._turns(question)
        ids = _named(question, model.encode, turns)
        return Prompt(question.id, ids, turns, question=question.question)

    def _turns(self, question: Question) -> tuple[Turn, ...]:
        try:
            return self.chat(question)
        except InputError as error:
            raise QuestionError(question.id, str(error)) from None

    def answers(self, model: AnswerReader, question: Question) -> list[tuple[int, ...]]:
        """Encode the distinct reference answers of `question` as answer turns, with the end of turn."""
        turns = self._turns(question)
        answers = (
            _named(question, model.encode_answer, turns, answer_turn(answer).content)
            for answer in question.answers
        )
        return list(dict.fromkeys(answers))

    def hash(self, model: Sampler, question: Question | None = None) -> str:
        """Return a hash of system message, few-shot examples and template: of the tokens of a fixed question.

        If a server encodes prompts, it is a hash of the turns. The default template is that of `question`.
        """
        template = self.template or Template() if question is None else self.template_of(question)
        turns = replace(self, template=template).chat(template.probe)
        content: Any = model.encode(turns) or [[turn.role, turn.content] for turn in turns]
        if self.vary != 1:
            content = [content, describe_variants(self.vary)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def difference(self, other: PromptConfig) -> str | None:
        """Return a description of the difference from another prompt; None if they are equal."""
        template, other_template = self.template or Template(), other.template or Template()
        examples = [[turn.content for turn in chat("", few_shot=each.few_shot)] for each in (self, other)]
        if difference := template.difference(other_template):
            return difference
        if examples[0] != examples[1]:
            return "the few-shot examples are others"
        return None if self.vary == other.vary else "the variants of the prompt are others"

    def describe(self) -> dict[str, Any]:
        """Return template and few-shot examples as plain data, for provenance."""
        template = self.template or Template()
        return {
            "system": template.system,
            "few_shot": [
                {"question": q.question, "answer": q.answers[0]}
                | ({"context": q.context} if q.context else {})
                | ({"messages": [vars(turn) for turn in q.messages]} if q.messages else {})
                for q in self.few_shot
            ],
            **({} if template.user is None else {"user": template.user}),
            **({"roles": list(template.roles)} if template.roles else {}),
            **describe_variants(self.vary),
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> PromptConfig:
        """Return the prompt that `describe` wrote; an empty description yields no template."""
        if not description:
            return cls()
        template = Template(
            description.get("system", Template.system),
            description.get("user"),
            tuple(description.get("roles", ())),
        )
        examples = (
            Question(
                *(f"few-shot-{number}", item["question"], (item["answer"],), item.get("context")),
                messages=turns_of(item.get("messages")),
            )
            for number, item in enumerate(description.get("few_shot", []))
        )
        return cls(tuple(examples), template=template, vary=description.get("vary"))


def _named(question: Question, encode: Callable[..., tuple[int, ...]], *texts: Any) -> tuple[int, ...]:
    try:
        return encode(*texts)
    except (InputError, ModelError) as error:
        if isinstance(error, ModelError) and not question.messages:
            raise
        raise QuestionError(question.id, str(error)) from error
