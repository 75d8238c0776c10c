"""Variants of a prompt that keep its meaning: other wordings of the instruction and orders of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from semcal.data.question import SYSTEM_MESSAGE
from semcal.data.template import Template, TemplateLike, as_template
from semcal.errors import UsageError, shown

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
