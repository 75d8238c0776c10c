"""Chat templates that fail, or would take for ever: one error each, and soon."""

from __future__ import annotations

import sys

import pytest
import tiny_models

from semcal.data.question import Turn
from semcal.errors import ModelError
from semcal.models import tokenization
from semcal.models.tokenization import chat_format

resource = pytest.importorskip("resource")

DOUBLED = (
    "{% set n = namespace(a='aa') %}{% for i in range(40) %}{% set n.a = n.a ~ n.a %}{% endfor %}{{ n.a }}"
)
LONG = "{% for i in range(99999) %}{% for j in range(99999) %}LOOP{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% include 'x' %}", "TypeError: no loader"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
        ("{% for i in range(10**8) %}{% endfor %}", "OverflowError: Range too big"),
        (LONG.replace("LOOP", ""), "RuntimeError: more than 1000000 steps"),
        (LONG.replace("LOOP", "a"), "RuntimeError: more than 1000000 steps"),
        ("{{ 'a' * 10**9 }}", "MemoryError"),
        ("{{ 'a' | center(10**9) }}", "MemoryError"),
        (DOUBLED, "MemoryError"),
        ("{{ 'a' * 10**7 }}", "writes more than 1000002 characters"),
    ],
)
def test_a_template_that_fails_or_builds_too_much_is_refused_when_it_is_tried(
    template: str, reason: str
) -> None:
    if "Memory" in reason and not sys.platform.startswith("linux"):
        pytest.skip("the system does not bound memory")
    limits, trace = resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()
    with pytest.raises(ModelError, match=f"chat template.*{reason}.* use another checkpoint"):
        chat_format(tiny_models.tokenizer(template=template), [2])
    assert (resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()) == (limits, trace)


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages[7].content }}", "{{ ''.__class__.__mro__ }}"])
def test_a_template_that_jinja_refuses_says_so_at_the_first_prompt(template: str) -> None:
    form = chat_format(tiny_models.tokenizer(template=template), [2])
    with pytest.raises(ModelError, match="chat template refuses the turns user: "):
        form.encode([Turn("user", "a")])


def test_a_template_that_writes_much_only_later_is_refused_before_it_is_encoded() -> None:
    template = "{% for m in messages %}{{ m.content * m.content | length * 99 }}{% endfor %}"
    form = chat_format(tiny_models.tokenizer(template=template), [2])
    with pytest.raises(ModelError, match="writes more than 1000400 characters"):
        form.encode([Turn("user", "a" * 200)])


def test_templates_of_the_suite_take_few_steps_and_little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "MOST_STEPS", 200)
    monkeypatch.setattr(tokenization, "MOST_CHARACTERS", 200)
    for template in filter(None, tiny_models.TEMPLATES.values()):
        assert chat_format(tiny_models.tokenizer(template=template), [2]).encode([Turn("user", "a")])
