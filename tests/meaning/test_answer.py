"""The answer is read behind reasoning, channels, fences, tags, JSON and marks of a final answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semcal.errors import UsageError
from semcal.meaning.answer import AnswerFormat, AnswerSpan, first_answer, split_reasoning
from tests.tables import texts

AUTO = AnswerFormat()
MARKUP = [
    # fences
    ("```\nMirna\n```", "Mirna"),
    ("```Mirna```", "Mirna"),
    ("```text\nMirna\n```\nIt is a town.", "Mirna"),
    ("```python\nx = 1\ny = 2\n```", "x = 1\ny = 2"),
    ("~~~\nMirna", "Mirna"),
    # answer tags
    ("<answer>Mirna</answer>", "Mirna"),
    ("It is a town.\n<ANSWER>\nMirna\n</ANSWER>", "Mirna"),
    ("<final_answer>Mirna</final_answer>", "Mirna"),
    ("Mirna</answer>", "Mirna"),
    ("<answer>Mirna", "Mirna"),
    ("<answer>Orlin</answer> No.\n<answer>Mirna</answer>", "Mirna"),
    ("The answer is <|begin_of_box|>4<|end_of_box|>.", "4"),
    ("```xml\n<answer>Mirna</answer>\n```", "Mirna"),
    ('<answer>{"answer": "Mirna"}</answer>', "Mirna"),
    # special tokens
    ("<|im_start|>assistant\nMirna<|im_end|>\n<|im_start|>user\nThe answer is: Orlin", "Mirna"),
    ("Mirna<pad><pad>", "Mirna"),
    ("<|im_end|>", "<|im_end|>"),
]
REASONING = [
    ("<think>A lake?</think>Mirna", "Mirna"),
    ("<thinking>A lake?</thinking>\n\nMirna", "Mirna"),
    ("<thought>A lake?</thought>Mirna", "Mirna"),
    ("<reasoning>A lake?</reasoning>\n<answer>Mirna</answer>", "Mirna"),
    ("[THINK]A lake?[/THINK]Mirna", "Mirna"),
    ("◁think▷A lake?◁/think▷Mirna", "Mirna"),
    ("<seed:think>A lake?</seed:think>Mirna", "Mirna"),
    ("<|begin_of_thought|>A lake?<|end_of_thought|><|begin_of_solution|>Mirna<|end_of_solution|>", "Mirna"),
    ("<|START_THINKING|>A lake?<|END_THINKING|><|START_RESPONSE|>Mirna<|END_RESPONSE|>", "Mirna"),
    ("Here is my thought process: a lake.\n\nHere is my response:\nMirna", "Mirna"),
    ("A lake?</think>Mirna", "Mirna"),
    ("<think>a<think>b</think>c</think>Mirna", "Mirna"),
    ("<think>a</think>\n<think>b</think>\nMirna", "Mirna"),
    ("<think>Is it <think>?</think>Mirna", "Mirna"),
    ("Sure!\n<think>A lake?</think>\nMirna", "Mirna"),
    ("Write <think> before it", "Write <think> before it"),
    ("<think>The answer is 5. No, 6.</think>Six it is", "Six it is"),
]
CHANNELS = [
    (
        "<|channel|>analysis<|message|>A lake.<|end|><|start|>assistant<|channel|>final<|message|>Mirna",
        "Mirna",
    ),
    (
        "<|start|>assistant<|channel|>commentary<|message|>x<|end|>"
        "<|start|>assistant<|channel|>final <|constrain|>json<|message|>"
        '{"answer": "Mirna"}<|return|>',
        "Mirna",
    ),
    ("<|channel|>final<|message|>Orlin<|end|><|channel|>final<|message|>Mirna<|return|>", "Mirna"),
    ("analysisA lake.assistantfinalMirna", "Mirna"),
    ("analysis we see a lake.assistantcommentary x assistantfinal\nMirna.", "Mirna"),
    ("analysis of variance", "analysis of variance"),
    ("Analysis", "Analysis"),
]
VALUES = [
    ('{"answer": "Mirna"}', "Mirna"),
    ('```json\n{"answer": "Mirna"}\n```', "Mirna"),
    ('Here is the JSON:\n```json\n{\n "answer": "Mirna",\n "why": "a lake"\n}\n```\nDone.', "Mirna"),
    ('{"reasoning": "A lake. The answer is Orlin.", "answer": "Mirna"}', "Mirna"),
    ('{"Final Answer": "Mirna", "sure": 0.9}', "Mirna"),
    ('{"town": "Mirna"}', "Mirna"),
    ('{"town": "Mirna", "confidence": 0.9}', "Mirna"),
    ('{"answer": {"town": "Mirna"}}', "Mirna"),
    ('{"answer": "J. Velis. A poet."}', "J. Velis. A poet."),
    ('{"answer": 42}\n\nThat is all.', "42"),
    ('{"answer": [1, 2]}', "[1, 2]"),
    ('{"first": "Ana", "last": "Velis"}', '{"first": "Ana", "last": "Velis"}'),
    ('{"answer": "caf\\u00e9"}', "café"),
    ("[1] Mirna", "[1] Mirna"),
    ("{Mirna}", "{Mirna}"),
]
MARKED = [
    ("There are 15 trees at first. Then there are 21. The answer is 6.", "6"),
    ("There are 15. 21 + 15 = 36. So the answer is 36. I hope this helps!", "36"),
    ("We have 5 + 1 = 6, so the answer is 6.", "6"),
    ("Each cat has 4 legs. 3*4=12.\n#### 12", "12"),
    ("#### 1,200", "1,200"),
    ("It lies inland.\n\nANSWER: B", "B"),
    ("ANSWER: B", "B"),
    ("It lies inland and is small.\n\n**Final Answer:** Mirna", "Mirna"),
    ("It lies inland.\n\n**Final answer**\n\nMirna", "Mirna"),
    ("It lies inland and is small.\nAnswer: Mirna", "Mirna"),
    ("\\boxed{4}", "4"),
    ("Then $x = \\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
    ("So it is \\boxed{3}, no, \\boxed{\\text{Mirna}}, and \\boxed{", "Mirna"),
    ("## Step 1: We add.\n## Step 2: We see.\nThe final answer is: $\\boxed{4}$", "4"),
    ("She has 3 and gets 9 more. Therefore, the answer is $12$.", "12"),
    ("We count them all. The answer is 1. That is all.", "1"),
    ("We count them all. The answer is 5. No, wait. The answer is 6.", "6"),
    ("She gets 9 more.\nFinal Answer: The final answer is $12$. I hope it is correct.", "12"),
    ("Sie bekommt neun dazu. Die Antwort lautet 12.", "12"),
    ("Elle en reçoit neuf. La réponse est donc 12.", "12"),
    ("她又得到九个。所以答案是十二。", "十二"),
    # no mark, or no reasoning before it
    ("Die Antwort ist Mirna", "Die Antwort ist Mirna"),
    ("The answer is Mirna", "The answer is Mirna"),
    ("Mirna. The answer is well known.", "Mirna"),
    ("Mirna. Many believe the answer is Orlin, which is false.", "Mirna"),
    ("Mirna. It lies on a lake.\n\nQuestion: Who?\nThe answer is Ana", "Mirna"),
    ("#### Towns\nMirna", "#### Towns"),
]
SENTENCES = [
    ("9. November 1989", "9. November 1989"),
    ("20. Jahrhundert. Danach", "20. Jahrhundert"),
    ("23rd. May 1990", "23rd. May 1990"),
    ("XX. Jahrhundert", "XX. Jahrhundert"),
    ("1. ledna 1993", "1. ledna 1993"),
    ("am 3. Oktober 1990. Dann", "am 3. Oktober 1990"),
    ("6. The next", "6"),
    ("12. I hope so", "12"),
    ("Henry VIII. He was", "Henry VIII"),
    ("1987. Then", "1987"),
    ("東京。首都です。", "東京"),
    ("東京！首都です。", "東京！"),
    ("首都はどこですか？東京です。", "東京です"),
    ("答案：北京", "北京"),
    ("What is the capital of Orlin? Mirna.", "Mirna"),
    ("Who wrote Toreth? Ana Velis", "Ana Velis"),
    ("Who's Afraid of Virginia Woolf? Ana Velis", "Who's Afraid of Virginia Woolf?"),
    ("Who Framed Roger Rabbit? is a film", "Who Framed Roger Rabbit? is a film"),
    ("Mirna? I am not sure", "Mirna?"),
    ("Oh! Calcutta!", "Oh! Calcutta!"),
    ("Oh! Calcutta! It is a revue.", "Oh! Calcutta!"),
    ("Oh! What a Lovely War", "Oh! What a Lovely War"),
    ("Toreth! What a town!", "Toreth!"),
]


@pytest.mark.parametrize(
    ("raw", "text"),
    [*MARKUP, *REASONING, *CHANNELS, *VALUES, *MARKED, *SENTENCES],
    ids=lambda value: value[:30],
)
def test_auto_reads_the_answer(raw: str, text: str) -> None:
    found = AUTO.read(raw)
    assert found is not None
    assert found.text == text
    assert "\\u" in raw or text in raw[found.start : found.end]


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "<think>Is it Mirna?",
        "<think>Is it Mirna?</think>",
        "<think>a</think>\n<think>b",
        "Is it Mirna?</think>\n",
        "<|channel|>analysis<|message|>A lake",
        "<|channel|>analysis<|message|>A lake.<|end|><|start|>assistant<|channel|>final<|message|>",
        "analysisThe user asks",
        '{"answer": null}',
        "<answer></answer>",
    ],
)
def test_reasoning_that_never_closes_and_null_contents_are_no_answer(raw: str | None) -> None:
    assert AUTO.read(raw) is None


@pytest.mark.parametrize("name", ["auto", "first", "whole"])
def test_an_empty_generation_is_the_empty_answer(name: str) -> None:
    assert AnswerFormat(name).read(" \n") == AnswerSpan("", 0)


@pytest.mark.parametrize(
    ("name", "raw", "text"),
    [
        ("first", "Mirna. It is big.\nSo the answer is Orlin.", "Mirna"),
        ("first", "<think>Hm.</think>Mirna. And", "Mirna"),
        ("final", "Mirna. The answer is Orlin.", "Orlin"),
        ("final", "Answer: Mirna", "Mirna"),
        ("final", "<answer>Mirna</answer>", "Mirna"),
        ("final", "Mirna.", None),
        ("whole", "<think>Hm.</think>\ndef f():\n    return 1\n<|im_end|>", "def f():\n    return 1"),
        ("json", 'Sure: {"a": 1.50} is it', "1.50"),
        ("json", '{"why": "1.5, so", "answer": -2.00e3}', "-2.00e3"),
        ("auto", '{"answer": 12.0}', "12.0"),
        ("json:/a/0", '{"a": [1.50, 2]}', "1.50"),
        ("json", '"Mirna"', "Mirna"),
        ("json", "Mirna", None),
        ("json:/towns/1/name", '{"towns": [{"name": "Orlin"}, {"name": "Mirna"}]}', "Mirna"),
        ("json:/a~1b/~0", '{"a/b": {"~": true}}', "true"),
        ("json:/a", '{"a": [1, "x"]}', '[1, "x"]'),
        ("json:/a", '{"b": 1}', None),
        ("json:/0", '{"a": 1}', None),
        ("json:/a", '{"a": null}', None),
        (r"regex:Town: (\w+)", "<think>Town: Orlin</think>\nTown: Mirna, big", "Mirna"),
        (r"regex:(?:Town: (\w+)|none)", "none", None),
        (r"regex:Town: (\w+)", "Mirna", None),
    ],
)
def test_each_format_reads_by_its_own_rule(name: str, raw: str, text: str | None) -> None:
    found = AnswerFormat(name).read(raw)
    assert (found and found.text) == text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "last",
        "json:answer",
        "json:/a~2",
        "json:",
        "regex:",
        "regex:(",
        "regex:a",
        "regex:(a)(b)",
        "whole:",
    ],
)
def test_an_invalid_format_names_the_option(name: str) -> None:
    with pytest.raises(UsageError, match="--answer-format"):
        AnswerFormat(name)


@pytest.mark.parametrize(
    ("raw", "start", "end", "embedded"),
    [
        ('{"answer": "Mirna"}', 12, 19, True),  # nothing but markup follows
        ('{"answer": "Mirna", "why": "lake"}', 12, 18, True),  # the quote ends it
        ("<answer>Mirna</answer> So.", 8, 22, True),
        ("<answer>Mirna. A town</answer>", 8, 14, False),  # its sentence ends it
        ("We add all of these up. The answer is 6. I hope.", 38, 40, False),
        ("```\nMirna\n```\n", 4, 14, True),
    ],
)
def test_the_place_of_an_answer_holds_what_ends_it(raw: str, start: int, end: int, embedded: bool) -> None:
    found = AUTO.read(raw)
    assert found is not None
    assert (found.start, found.end, found.embedded, found.closed) == (start, end, embedded, True)


@pytest.mark.parametrize(
    ("raw", "closed"),
    [
        ("We add all of these up. The answer is 19", False),
        ('{"answer": "Mir', False),
        ("<answer>Mir", False),
        ("<think>Hm.</think>Mir", False),
        ("<think>Hm.</think>Mirna.", True),
    ],
)
def test_an_answer_that_was_cut_is_not_closed(raw: str, closed: bool) -> None:
    found = AUTO.read(raw)
    assert found is not None
    assert found.closed == closed


def test_reasoning_is_split_from_the_answer() -> None:
    assert split_reasoning("<thought>a</thought>\n<think>b</think> Mirna") == ("a\nb", "Mirna")
    assert split_reasoning("<think>a") == ("a", None)
    assert split_reasoning(" Mirna ") == ("", " Mirna ")


PIECES = texts(r"""
Mirna | 6 | . | ? | ! | 。 | \boxed{ | \text{ | } | { | <think> | </think> | <answer> | </answer> | ```
{"a": | [ | ] | 1. | ** | \ | $ | Sure! | <|channel|> | <|message|> | <|end|> | final | analysis
assistantfinal | Question: | The answer is | {"answer": "a"} | Final answer:
""")
PIECES += ['"', " ", "\n", "#### ", "ANSWER: ", "```json\n", "9. ", "XX. ", "Who is it? ", "Oh! "]
FORMATS = ["auto", "first", "final", "whole", "json", "json:/a/0", r"regex:(\S+)"]
TEXTS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=14).map("".join))


@given(TEXTS, st.sampled_from(FORMATS), st.sampled_from(["", "Who is it?"]))
@example("<|0|>0 **", "auto", "")
@settings(deadline=None, max_examples=600)
def test_every_text_is_read_and_the_answer_lies_in_it(raw: str, name: str, question: str) -> None:
    found = AnswerFormat(name).read(raw, question)
    if found is None:
        return
    assert 0 <= found.start <= found.end <= len(raw)
    assert found.text == found.text.strip()
    if "\\" not in raw and not name.startswith("json"):
        assert found.text in raw[found.start : found.end]


@given(st.text(min_size=1, max_size=40).filter(str.strip))
@settings(deadline=None)
def test_a_json_answer_is_its_value_whatever_it_says(value: str) -> None:
    for raw in (json.dumps({"answer": value}), json.dumps({"answer": value}, ensure_ascii=False)):
        for wrapped in (raw, f"```json\n{raw}\n```", f"<think>Hm.</think>{raw}"):
            found = AnswerFormat("json:/answer").read(wrapped)
            assert found is not None
            assert found.text == value.strip()


TOWNS = st.from_regex(r"\A[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?\Z").filter(
    lambda town: first_answer(town).text == town
)


@given(
    TOWNS,
    st.sampled_from(["{}", "{}.", '{{"answer": "{}"}}', "<answer>{}</answer>", "```\n{}\n```", "Answer: {}"]),
)
@settings(deadline=None)
def test_markup_around_an_answer_changes_nothing(town: str, form: str) -> None:
    for reasoning in (
        "",
        "<think>Is it so? The answer is 5.</think>\n",
        "[THINK]Hm[/THINK]",
        "analysisHm.assistantfinal",
    ):
        found = AUTO.read(reasoning + form.format(town))
        assert found is not None
        assert found.text == town


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "<answer>", "\\boxed{", '{"a":', "```json\n{", "[", "#### 1\n"]
)
@pytest.mark.parametrize("name", ["auto", "final", "json:/a"])
def test_long_markup_takes_no_more_than_linear_work(piece: str, name: str) -> None:
    """A quadratic rule would take hours on a million characters."""
    raw = piece * (1_000_000 // len(piece))
    found = AnswerFormat(name).read(raw + "x")
    assert found is None or found.end <= len(raw) + 1
