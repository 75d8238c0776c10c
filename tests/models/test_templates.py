"""Chat templates that fail, drop the question, or open reasoning."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models

import semcal
from semcal.data.question import Turn
from semcal.errors import ModelError, SemcalWarning
from semcal.models import Prompt
from semcal.models.chat_format import chat_format
from semcal.models.distribution import Temperature
from semcal.models.protocols import SampleRequest


@pytest.mark.parametrize(
    "template",
    [
        *("{{ 1 / 0 }}", "{% include 'x' %}", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"),
        *("{% if %}", "{{ messages[7].content }}", "{{ ''.__class__.__mro__ }}"),
    ],
)
def test_a_template_that_fails_is_an_error_at_the_first_prompt(template: str) -> None:
    form = chat_format(tiny_models.tokenizer(template=template), [2])
    with pytest.raises(ModelError, match=r"chat template.*user"):
        form.encode([Turn("user", "a")])


LISTS_OF_PARTS = "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"


@pytest.mark.parametrize("content", ["", "{{ message['content']['words'] }}", LISTS_OF_PARTS])
def test_a_template_that_drops_the_question_is_refused(content: str) -> None:
    template = tiny_models.TEMPLATE.replace("{{ message['content'] | trim }}", content)
    with pytest.raises(ModelError, match="chat template"):
        chat_format(tiny_models.tokenizer(template=template), [2])


def test_a_template_that_ends_inside_thinking_is_named_and_thinking_alone_is_no_answer(
    tmp_path: Path,
) -> None:
    inside = tiny_models.TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    with pytest.warns(SemcalWarning, match="<think>.*--max-new-tokens"):
        model = semcal.load_model(tiny_models.save(tmp_path / "tiny", template=inside))
    texts = ("It may be", "It is.</think>", "It is.\n</think>\nOdo")
    assert [model.format.refusal(text) for text in texts] == ["", None, None]
    prompt = Prompt("q", model.encode([Turn("user", "Who?")]))
    (((draws,),),) = model.sample(SampleRequest([prompt], [Temperature(1.0)], m=3, max_new_tokens=4))
    assert [draw.refusal for draw in draws] == [""] * 3
    assert all(draw.text for draw in draws)
    closed = chat_format(tiny_models.tokenizer(template=tiny_models.TEMPLATES["cuts thoughts"]), [2])
    assert (closed.opened, closed.refusal("It may be")) == ("", None)
