"""What only leads to an answer is passed over; answers that look like it stand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.meaning.answer import AnswerFormat, AnswerSpan, first_answer, is_refusal
from tests.tables import texts

QUESTION = "What is the capital of France?"

LED = [
    # interjections
    ("Sure! Paris.", "Paris"),
    ("Sure! The capital is Paris.", "The capital is Paris"),
    ("Sure!\n\nParis", "Paris"),
    ("sure! paris", "paris"),
    ("Sure thing! Paris", "Paris"),
    ("Sure. Paris.", "Paris"),
    ("Sure! 😊 Paris", "Paris"),
    ("Certainly! Paris.", "Paris"),
    ("Certainly. Paris is the capital.", "Paris is the capital"),
    ("Certainly, the answer is: Paris", "Paris"),
    ("Of course! Paris", "Paris"),
    ("Of course, it's Paris.", "it's Paris"),
    ("Absolutely! Paris.", "Paris"),
    ("Definitely! Paris.", "Paris"),
    ("OK! Paris.", "Paris"),
    ("Okay, here is the answer: Paris.", "Paris"),
    ("Alright! Paris", "Paris"),
    ("Great question! Paris.", "Paris"),
    ("That's a great question! Paris.", "Paris"),
    ("What an interesting question! Paris.", "Paris"),
    ("Good question. Paris.", "Paris"),
    ("Thank you for asking! Paris.", "Paris"),
    ("Great! Paris.", "Paris"),
    ("Correct! Paris is right.", "Paris is right"),
    ("Excellent! Great question! Sure! Paris.", "Paris"),
    ("Sure, I'd be happy to help! Paris.", "Paris"),
    ("Sure, I can help with that. Paris.", "Paris"),
    ("I would be glad to help you. Paris.", "Paris"),
    # labels
    ("A: Paris", "Paris"),
    ("A:\nParis", "Paris"),
    ("Answer: Paris.", "Paris"),
    ("answer: paris", "paris"),
    ("ANSWER: Paris", "Paris"),
    ("Answer:\n\nParis", "Paris"),
    ("Answer\nParis", "Paris"),
    ("Ans: Paris", "Paris"),
    ("Final answer: Paris", "Paris"),
    ("The final answer is: Paris.", "Paris"),
    ("The answer is: Paris", "Paris"),
    ("The answer is\nParis", "Paris"),
    ("The correct answer is: Paris", "Paris"),
    ("The answer to your question is: Paris", "Paris"),
    ("Here is the answer: Paris", "Paris"),
    ("Here's the answer to your question:\nParis", "Paris"),
    ("My answer: Paris", "Paris"),
    ("Short answer: Paris", "Paris"),
    ("Response: Paris", "Paris"),
    ("Assistant: Paris", "Paris"),
    ("Assistant: Answer: Paris", "Paris"),
    ("Answer：Paris", "Answer：Paris"),  # no blank: it may be one name
    ("Answer： Paris", "Paris"),
    # markdown
    ("**Answer:** Paris", "Paris"),
    ("assistant\n\nParis", "Paris"),
    ("**Answer**: Paris", "Paris"),
    ("__Answer:__ Paris", "Paris"),
    ("*Answer:* Paris", "Paris"),
    ("**Answer: Paris**", "Paris"),
    ("**Answer: Paris.**", "Paris"),
    ("**A:** Paris", "Paris"),
    ("### Answer\nParis", "Paris"),
    ("### Answer: Paris", "Paris"),
    ("## Final Answer\n\nParis.", "Paris"),
    ("**Final Answer**\nParis.", "Paris"),
    ("> Answer: Paris", "Paris"),
    ("Answer: **Paris**", "**Paris**"),
    # a list's first mark
    ("1. Paris\n2. London", "Paris"),
    ("1. Paris", "Paris"),
    ("1) Paris", "Paris"),
    ("(1) Paris", "Paris"),
    ("- Paris\n- London", "Paris"),
    ("* Paris", "Paris"),
    ("• Paris", "Paris"),
    ("- **Answer:** Paris", "Paris"),
    # the question
    ("What is the capital of France? Paris.", "Paris"),
    ("What is the capital of France?\nParis", "Paris"),
    ("what is the capital of france\nParis", "Paris"),
    ('"What is the capital of France?" Paris', "Paris"),
    ("Question: What is the capital of France?\nAnswer: Paris", "Paris"),
    ("Q: What is the capital of France? A: Paris", "Paris"),
    ("**Question:** What is the capital of France?\n\n**Answer:** Paris", "Paris"),
    ("User: What is the capital of France?\nAssistant: Paris", "Paris"),
    ("Question: Which city is France's capital?\nAnswer: Paris", "Paris"),
    ("Sure! What is the capital of France? Paris", "Paris"),
    # thinking and special tokens
    ("<think>France. London? No.</think>\n\nParis.", "Paris"),
    ("<think>\nHm.\n</think>Sure! The answer is: Paris", "Paris"),
    ("Hm, France.</think>Paris", "Paris"),
    ("<|im_start|>assistant\nParis", "Paris"),
    ("<|start_header_id|>assistant<|end_header_id|>\n\nParis", "Paris"),
    ("<s> Paris", "Paris"),
    ("[/INST] Paris", "Paris"),
    ("<start_of_turn>model\nParis", "Paris"),
    ("Paris<|im_end|>\n<|im_start|>user", "Paris"),
    ("Paris</s>", "Paris"),
]

STANDS = texts("""
Sure Thing | The Sure Thing | Sure | Sure! | Absolutely Fabulous | Absolutely | Certainly
Certainly, Maybe | Definitely Maybe | Alright, Still | All Right Now | Right Said Fred | Right
Of Mice and Men | Of Course | OK Computer | OK! Magazine | OK! magazine | Okay | OK | Ok Go
Great Expectations | Great | Great Question | Good Morning, Vietnam | Good Omens | Good
Excellent | The Good, the Bad and the Ugly | Good Question | Perfect | A Perfect Circle | Nice
Correct | Thank U, Next | Thank you, next | Thank You | Indeed | Exactly | Wonderful
Wonderful Tonight | Yes | No | Yes, Minister | Yes! It is | No Problem | No, No, Nanette
Yes Man | No. 5 | True | A | A Answer | A Star Is Born | A-ha | A+ | A: | Plan A | Hepatitis A
A1 | B | Q | Q-Tip | The Answer | Answer Me! | Answer | Answer: | The Answer Is You | My Answer
Answering Machine | The answer is Paris | Answered Prayers | Final Answer | Final Fantasy
Assistant | The Assistant | Assistant Professor | Response | Reply 1988 | Short Circuit | Best
Best in Show | Question Time | Question | Questions | Question Mark and the Mysterians | Q & A
Q: The Winged | 1. FC Köln | 1. FC Nürnberg | 1. FFC Frankfurt | 1. Bundesliga | 1. FSV Mainz 05
1. e4 | 1. Nf3 | 1. 000 000 | 1. | 1 | 1.5 | 1st | 1984 | 1,000 | 2. Bundesliga
100 Years of Solitude | -5 | - 5 | -5 °C | - 0.5 | - $5 | –5 | - .5 | - | * | *NSYNC
*batteries not included | + 5 | Who's Afraid of Virginia Woolf? | What?
What's Love Got to Do with It | France | Capital of France | What is the capital of France
What is the capital of France? | What is the capital of France is Paris | <b>Paris</b> | <3
<think> | x < y | #1 | # 1 Crush | **Paris** | _Paris_ | `Paris` | Here Comes the Sun
Here is Paris | I Can Help | Happy | Human | User | Human: Nature | Ok, Boomer
""")
STANDS += ["Sure!\n"]


@pytest.mark.parametrize(("raw", "text"), LED)
def test_what_only_leads_to_an_answer_is_passed_over(raw: str, text: str) -> None:
    found = first_answer(raw, QUESTION)
    assert found.text == text
    assert raw[found.start :].lstrip().startswith(text)


@pytest.mark.parametrize("answer", STANDS)
def test_an_answer_that_looks_like_a_lead_in_stands(answer: str) -> None:
    said = answer.strip()
    assert first_answer(answer, QUESTION).start == 0
    assert first_answer(answer, QUESTION).text in (said, said.removesuffix("."), "Yes!")
    assert first_answer(f"Answer: {said}", QUESTION).text in (
        said,
        said.removesuffix("."),
        "Yes!",
        f"Answer: {said}",
    )


@pytest.mark.parametrize("raw", ["Sure!", "Answer:", "**Answer:**", "<|im_end|>", "A:", "### Answer\n", "- "])
def test_lead_ins_alone_are_the_answer_and_not_at_its_end(raw: str) -> None:
    found = first_answer(raw)
    assert (found.text, found.start) == (raw.strip(), 0)
    assert not found.closed


def test_after_a_lead_in_another_question_is_no_answer() -> None:
    assert first_answer("Certainly!\nQuestion: Who wrote it?\nAnswer: Ana", QUESTION).text == "Certainly!"


@pytest.mark.parametrize(
    ("raw", "closed"),
    [
        *(("Paris", False), ("Paris ", False), ("Paris\n", True), ("Paris.", True), ("Paris. It", True)),
        *(
            ("December 194", False),
            ("in 1946.", True),
            ("J. R.", False),
            ("Washington D.", False),
            ("", False),
        ),
        *(("and so on ...", False), ("Sure! Par", False), ("Sure! Paris.", True), ("Paris<|im_end|>", True)),
        *(("<think>Well", False), ("Velis Inc.", False), ("Yahoo!", True)),
    ],
)
def test_an_answer_is_closed_where_its_end_was_seen(raw: str, closed: bool) -> None:
    assert first_answer(raw).closed == closed


PIECES = texts("""
Sure! | Certainly. | Answer: | ** | A: | 1. | - | Paris | Question: | Who? | <think> | </think> | <|im_end|>
No. | 5 | ? | Great | , | the answer is
""")
PIECES += ["\n", " "]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.sampled_from(["", "Who?", "Paris"]))
@settings(deadline=None, max_examples=300)
def test_the_answer_lies_in_the_text_behind_what_is_passed_over(raw: str, question: str) -> None:
    found = first_answer(raw, question)
    assert 0 <= found.start <= found.end <= len(raw)
    assert found.text in raw[found.start : found.end]
    assert found.text or not raw.strip(" \n.")  # something said is never nothing
    assert found == AnswerSpan(found.text, found.end, found.start)


LONG = ["Sure! ", "Answer: ", "1. ", "- ", "Who? ", "<think>", "</think>", "J. ", "!!", "a.)", "**", "Q: "]


@pytest.mark.parametrize("piece", [*LONG, "<|a|>", "### "])
def test_long_texts_take_no_more_than_linear_work(piece: str) -> None:
    """A quadratic rule would take hours on a million characters."""
    raw = piece * (1_000_000 // len(piece))
    assert first_answer(raw + "x", "Who?").end <= len(raw) + 1


# ---- Refusals


REFUSALS = texts("""
I don't know. | I do not know who built the mill | dont know how many | Honestly, I don't know
I'm not sure. | im not sure | I’m really not certain about that | I'm not sure, but
I am not sure but i think | I'm not sure, but I don't know | I'm not sure of the answer, probably
No idea | I have no idea. | I'm sorry, I don't have enough information to answer
As an AI language model, I do not have access to that | Unfortunately, I cannot answer that question
Sorry, I can't help with that | It cannot be determined from the passage. | It is not known
Not specified in the passage | There is no information about that | I'm not familiar with that mill
""")


@pytest.mark.parametrize("text", REFUSALS)
def test_an_answer_that_only_says_it_has_none_is_a_refusal(text):
    assert is_refusal(text)


ANSWERS = texts("""
Odo Brand | I'm not sure, but it was Odo Brand | I'm not sure. Maybe 1875
I don't know, probably the Sull | not sure Belmar | I Don't Know How to Love Him | I Don't Know Why
I Can't Tell You Why | I Am Not a Number | I am Legend | No Country for Old Men | Not Fade Away
Information Society | Unknown | Nobody | No
""")


@pytest.mark.parametrize(
    "text",
    [*ANSWERS, ""],
)
def test_what_may_be_an_answer_is_none(text):
    assert not is_refusal(text)


INTRODUCED = [
    ("Where is it?", "The lake lies near this town:\n\nMirna\n\nIt is small.", "Mirna"),
    (
        "Which lakes are deep?",
        "Sure! The deep lakes are:\n\n1. Mirna\n2. Tolva\n\nAsk me more.",
        "1. Mirna\n2. Tolva",
    ),
    ("Which lakes are deep?", "- Mirna\n- Tolva", "- Mirna\n- Tolva"),
    ("Name all three lakes.", "1. Mirna\n\n2. Tolva\n\n3. Orlin", "1. Mirna\n\n2. Tolva\n\n3. Orlin"),
    ("Which lake is deep?", "- Mirna\n- Tolva", "Mirna"),
    ("Which query is it?", "You can use this query:\n\n```sql\nSELECT 7;\n```\nThat is it.", "SELECT 7;"),
    ("Where is it?", "The lake lies here:\nQuestion: Who?\nAnswer: Ada", "The lake lies here:"),
]


@pytest.mark.parametrize(("question", "text", "answer"), INTRODUCED)
def test_a_line_with_a_colon_introduces_its_answer(question: str, text: str, answer: str) -> None:
    found = AnswerFormat().read(text, question)
    assert found is not None
    assert found.text == answer
    assert text[: found.end].rstrip().endswith(answer)
