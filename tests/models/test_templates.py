"""Chat templates that fail, or would take for ever: one error each, and soon."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny_models

import semcal
from semcal.data.question import Turn
from semcal.errors import ModelError, SemcalWarning
from semcal.models import Prompt
from semcal.models import chat_format as chats
from semcal.models.chat_format import chat_format
from semcal.models.distribution import Temperature
from semcal.models.protocols import SampleRequest

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
        (tiny_models.TEMPLATE + "a" * 200_000, "200184"),
        (tiny_models.TEMPLATE + "{% if a %}\ud83d{% endif %}", "half a character"),
        (tiny_models.TEMPLATE + "{{ '\\ud83d' }}", "half a character"),
        ("{{ 'a' * 10**7 }}", "1000022"),
    ],
)
def test_a_template_that_fails_or_builds_too_much_is_refused_when_it_is_tried(
    template: str, reason: str
) -> None:
    if "Memory" in reason and not sys.platform.startswith("linux"):
        pytest.skip("the system does not bound memory")
    limits, trace = resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()
    with pytest.raises(ModelError, match=f"chat template.*{reason}"):
        chat_format(tiny_models.tokenizer(template=template), [2])
    assert (resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()) == (limits, trace)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{% if %}", "user"),
        ("{{ messages[7].content }}", "user"),
        ("{{ ''.__class__.__mro__ }}", "user"),
        ("{% for m in messages %}{{ m.content * m.content | length * 99 }}{% endfor %}", "1000400"),
    ],
)
def test_a_template_that_fails_only_later_is_refused_at_the_first_prompt(template: str, named: str) -> None:
    form = chat_format(tiny_models.tokenizer(template=template), [2])
    with pytest.raises(ModelError, match=f"chat template.*{named}"):
        form.encode([Turn("user", "a" * 200)])


def test_a_rendering_of_nearly_a_million_characters_is_read_in_linear_time() -> None:
    """It would take hours otherwise."""
    form = chat_format(tiny_models.tokenizer(template=tiny_models.TEMPLATE + "{{ 'ab ' * 10**5 }}"), [2])
    assert len(form.encode_answer([Turn("user", "a")], "b")) == 2


PARTS = tiny_models.TEMPLATE.replace(
    "{{ message['content'] | trim }}", "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"
)
PARTS_OF_USERS = tiny_models.TEMPLATE.replace(
    "{{ message['content'] | trim }}",
    "{% if message['role'] == 'user' %}{{ message['content'][0]['text'] }}"
    "{% else %}{{ message['content'] + '' }}{% endif %}",
)
CHAT = [
    Turn("system", "Be brief."),
    Turn("user", "Who?"),
    Turn("assistant", "Odo."),
    Turn("user", "Which <|end|>?"),
]


@pytest.mark.parametrize("template", [PARTS, PARTS_OF_USERS], ids=["all roles", "users alone"])
def test_a_template_that_reads_lists_of_parts_gets_them_and_loses_no_turn(template: str) -> None:
    form, plain = (
        chat_format(tiny_models.tokenizer(template=one), [2]) for one in (template, tiny_models.TEMPLATE)
    )
    assert form.takes_system
    assert form.encode(CHAT) == plain.encode(CHAT)
    assert form.encode_answer(CHAT, "Sull.") == plain.encode_answer(CHAT, "Sull.")
    assert form.stops == plain.stops


@pytest.mark.parametrize("said", ["", "{{ message['content']['words'] }}"])
def test_a_template_that_drops_the_question_in_any_form_is_refused(said: str) -> None:
    template = tiny_models.TEMPLATE.replace("{{ message['content'] | trim }}", said)
    with pytest.raises(ModelError, match="chat template"):
        chat_format(tiny_models.tokenizer(template=template), [2])


def test_a_template_that_ends_inside_thinking_is_named_and_thinking_alone_is_no_answer() -> None:
    inside = tiny_models.TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    with pytest.warns(SemcalWarning, match="<think>.*--max-new-tokens"):
        form = chat_format(tiny_models.tokenizer(template=inside), [2])
    assert [form.refusal(text) for text in ("It may be", "It is.</think>", "It is.\n</think>\nOdo")] == [
        "",
        None,
        None,
    ]
    closed = chat_format(tiny_models.tokenizer(template=tiny_models.TEMPLATES["cuts thoughts"]), [2])
    assert (closed.opened, closed.refusal("It may be")) == ("", None)


def test_a_model_that_is_cut_while_it_thinks_gives_no_answer(tmp_path: Path) -> None:
    inside = tiny_models.TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    with pytest.warns(SemcalWarning, match="<think>"):
        model = semcal.load_model(tiny_models.save(tmp_path / "tiny", template=inside))
    prompt = Prompt("q", model.encode([Turn("user", "Who?")]))
    (((draws,),),) = model.sample(SampleRequest([prompt], [Temperature(1.0)], m=3, max_new_tokens=4))
    assert isinstance(draws, list)
    assert [draw.refusal for draw in draws] == [""] * 3
    assert all(draw.text for draw in draws)


def test_templates_of_the_suite_take_few_steps_and_little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chats, "MOST_STEPS", 200)
    monkeypatch.setattr(chats, "MOST_CHARACTERS", 200)
    for template in filter(None, tiny_models.TEMPLATES.values()):
        assert chat_format(tiny_models.tokenizer(template=template), [2]).encode([Turn("user", "a")])
