"""The template of a prompt (its system message, and its user turn or messages), and variants of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from semcal.data.question import SYSTEM_MESSAGE, Question, Role, Turn, user_turn
from semcal.errors import InputError, UsageError, shown

PLACEHOLDERS = ("question", "context")
_PLACEHOLDER = re.compile(r"\{([^\W\d]\w*)\}")
_EXAMPLE = "such as 'user: \"{context}\\n\\n{question}\"'"


@dataclass(frozen=True)
class Template:
    """The common part of all prompts of one kind, without the few-shot examples.

    {question} and {context} are replaced in `user`; other braces stay as they are. None means the built-in
    form.

    >>> Template.of(Question("1", "", messages=(Turn("system", "Be brief."), Turn("user", "Who?"))))
    Template(system='Be brief.', user=None, roles=('user',))
    """

    system: str | None = SYSTEM_MESSAGE
    user: str | None = None
    roles: tuple[Role, ...] = ()  # of messages, without the system message; empty if rows have a question

    def __post_init__(self) -> None:
        if self.user is None:
            return
        names = _PLACEHOLDER.findall(self.user)
        if unknown := [name for name in names if name not in PLACEHOLDERS]:
            raise UsageError(
                f"the template has the placeholder {{{unknown[0]}}}; expected {{question}} or {{context}}. "
                f"Write {{ {unknown[0]} }} for literal text."
            )
        if "question" not in names:
            raise UsageError(f"'user' in the template has no {{question}}. Add it, {_EXAMPLE}.")

    @classmethod
    def of(cls, question: Question) -> Template:
        """Return the template of a question's messages, or the built-in template without messages."""
        if not question.messages:
            return cls()
        first, *_ = question.messages
        system = first.content if first.role == "system" else None
        return cls(system, None, tuple(turn.role for turn in question.messages if turn.role != "system"))

    @property
    def probe(self) -> Question:
        """The question that compares templates by their prompts."""
        if not self.roles:
            return Question("", "Which?", context="That." if "{context}" in (self.user or "") else None)
        system = [] if self.system is None else [Turn("system", self.system)]
        return Question("", "Which?", messages=(*system, *(Turn(role, "Which?") for role in self.roles)))

    def check(self, question: Question) -> None:
        """Raise an InputError that names the difference if a question has another template."""
        if question.messages and (difference := self.difference(Template.of(question), question)):
            raise InputError(f"its messages are of another template: {difference}")
        if self.roles and not question.messages:
            turns = ", ".join(self.roles)
            raise InputError(
                f"it has no 'messages', but the prompt expects the turns {turns}. Give it 'messages'."
            )

    def difference(self, other: Template, question: Question | None = None) -> str | None:
        """Return the difference to another template, or to a question of it; None if they are alike."""
        if other.system != self.system:
            return f"the system message is {_quoted(other.system)}, expected {_quoted(self.system)}"
        turns, expected = (", ".join(template.roles or ("user",)) for template in (other, self))
        if turns != expected:
            return f"the turns are {turns}, expected {expected}"
        content = None if question is None else question.messages[-1].content
        if self.roles:
            is_alike = bool(other.roles)
        else:
            is_alike = other == self if content is None else self.read(content) is not None
        form = f"expected the form {shown(self._form)}"
        return None if is_alike else f"the user's turn is {shown(content or other._form)}, {form}"

    @property
    def _form(self) -> str:
        return "messages" if self.roles else self.user or user_turn(_CLOSED).content

    def read(self, content: str) -> dict[str, str] | None:
        """Return the texts for {question} and {context} in a user turn; None if the turn has another form.

        >>> Template().read("Question: Who built it?"), Template().read("Who built it?")
        ({'question': 'Who built it?'}, None)
        """
        forms = [self.user] if self.user else [user_turn(_OPEN).content, user_turn(_CLOSED).content]
        for form in forms:
            if (match := _pattern(form).fullmatch(content)) is not None:
                return match.groupdict()
        return None


@lru_cache(64)
def _pattern(form: str) -> re.Pattern[str]:
    """Return the pattern of user turns with a form."""
    literal, *rest = re.split(r"\{(question|context)\}", form)
    pattern, names = re.escape(literal), set[str]()
    for name, literal in zip(rest[::2], rest[1::2]):
        pattern += f"(?P={name})" if name in names else f"(?P<{name}>.+)"
        pattern += re.escape(literal)
        names.add(name)
    return re.compile(pattern, re.DOTALL)


_OPEN, _CLOSED = Question("", "{question}", context="{context}"), Question("", "{question}")


def _quoted(text: str | None) -> str:
    return "none" if text is None else shown(text)


TemplateLike: TypeAlias = "Template | Mapping[str, str | None] | str | Path"
"""A template, a mapping of its `system` and `user` texts, or a YAML file with these keys."""


def as_template(template: TemplateLike | None, system: str | None = None) -> Template | None:
    """Return a template from a mapping or a file, or from a system message alone ("" for none).

    UsageError if both are given, a file cannot be read, or a key or the `user` text is invalid.

    >>> as_template({"system": "Be brief.", "user": "{question} Reply as {\\"name\\": …}."}).system
    'Be brief.'
    """
    if template is not None and system is not None:
        raise UsageError("system and template are both given. Put the system message in the template.")
    if system is not None:
        return Template(system or None)
    if template is None or isinstance(template, Template):
        return template
    source = "the template"
    if isinstance(template, str | Path):
        from semcal.yaml_files import read_yaml  # only now, as most commands read none

        path, source = Path(template), f"the template {template}"
        template = read_yaml(path, "the template")
    if not isinstance(template, Mapping):
        raise UsageError(f"{source} must have the key 'user', {_EXAMPLE}; got {shown(template)}")
    if unknown := [key for key in template if key not in ("system", "user")]:
        raise UsageError(f"{source} has the key {shown(unknown[0])}; its keys are 'system' and 'user'")
    user, system = template.get("user"), template.get("system")
    if not isinstance(user, str):
        raise UsageError(f"{source}: 'user' must be a text with {{question}}, {_EXAMPLE}, got {shown(user)}")
    if not isinstance(system, str | None):
        raise UsageError(f"{source}: 'system' must be a text, or null for none, got {shown(system)}")
    try:
        return Template(system or None, user)
    except UsageError as error:
        raise UsageError(str(error).replace("the template", source, 1)) from None


# ---- Variants of a prompt that keep its meaning ------------------------------------------------------------

#: Other wordings of `SYSTEM_MESSAGE`.
WORDINGS = (
    "Reply to every question with the answer alone, in as few words as you can. Do not explain. End with a "
    "full stop.",
    "You answer questions. Give nothing but the short answer itself, without a sentence around it, and put a "
    "full stop at the end.",
    "State only the answer to each question: a name, number or short phrase, no reasons, then a full stop.",
    "For each question, write the shortest correct answer and a full stop. Leave out explanations.",
)
#: Other forms of the user turn, without and with a passage.
FORMS = ("{question}", "Q: {question}", "Please answer: {question}", "Question:\n{question}")
FORMS_WITH_PASSAGE = (
    "Question: {question}\n\nContext: {context}",
    "{context}\n\n{question}",
    "Text: {context}\n\nQ: {question}",
    "Please answer: {question}\n\nUse this text: {context}",
)
#: The largest number of built-in variants, with the prompt itself.
MOST = 1 + len(WORDINGS)

VaryLike: TypeAlias = "int | str | Path | Sequence[TemplateLike] | None"
"""A number of built-in variants, or templates: a list of them, or a YAML file with a list."""


def as_variants(vary: VaryLike) -> int | tuple[Template, ...]:
    """Return the number of built-in variants, the prompt itself included, or the templates of others.

    UsageError if the number is not in 1 … `MOST`, or the templates are not a list of at least one.

    >>> as_variants(3), as_variants("3"), as_variants(None)
    (3, 3, 1)
    """
    if vary is None:
        return 1
    if isinstance(vary, str) and vary.strip().isdecimal():
        vary = int(vary)
    if isinstance(vary, int) and not isinstance(vary, bool):
        if not 1 <= vary <= MOST:
            raise UsageError(
                f"vary: there are 1 to {MOST} built-in variants of a prompt, got {vary}. Pass templates of "
                "your own for more"
            )
        return vary
    source = "vary"
    if isinstance(vary, str | Path):
        from semcal.yaml_files import read_yaml

        source = f"vary: {vary}"
        vary = read_yaml(Path(vary), "vary")
    if isinstance(vary, Mapping | str | bool) or not isinstance(vary, Sequence) or not vary:
        raise UsageError(
            f"{source}: expected a number, or a list of templates such as [{{user: '{{question}}'}}], got "
            f"{shown(vary)}. Write a list with one entry for each variant"
        )
    found = (as_template(one) for one in vary)
    return tuple(one for one in found if one is not None)


def variant_of(template: Template, number: int, *, open_book: bool) -> Template:
    """Return the built-in variant of a template: 0 is the template itself.

    Only built-in texts change: a system message or a form of your own stays as it is.

    >>> variant_of(Template(system="Be brief."), 1, open_book=False)
    Template(system='Be brief.', user='{question}', roles=())
    """
    if number == 0 or template.roles:
        return template
    system = WORDINGS[number - 1] if template.system == SYSTEM_MESSAGE else template.system
    forms = FORMS_WITH_PASSAGE if open_book else FORMS
    return replace(
        template, system=system, user=forms[number - 1] if template.user is None else template.user
    )


def describe_variants(vary: int | tuple[Template, ...]) -> dict[str, Any]:
    """Return the variants as plain data, nothing if there are none; `as_variants` reads the value again."""
    if isinstance(vary, int):
        return {"vary": vary} if vary > 1 else {}
    return {"vary": [{"system": one.system, "user": one.user} for one in vary]}
