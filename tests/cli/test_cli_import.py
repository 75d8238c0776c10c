"""`semcal import` of odd and damaged files of lm-eval, inspect and OpenAI; tests.golden has whole ones."""

from __future__ import annotations

import json
import math
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest
from invoking import semcal, write

from benchmarks._damaged_logs import damaged_zip
from semcal.data.recorded import read_recorded
from semcal.errors import InputError, RowError
from semcal.files import JsonLine
from semcal.meaning.answer import first_answer

pytestmark = pytest.mark.filterwarnings("always:.* samples have no answer")

# What was asked, and what three models said at T = 1
ASKED: dict[str, tuple[str, list[str], list[str]]] = {
    "0": (
        "Who wrote The Amber Gate?",
        ["Ilka Soren", "I. Soren"],
        ["Ilka Soren.", "Ilka Soren", "Bo Tarn. He also wrote The Mill.", "I. Soren."],
    ),
    "1": ("Which river runs through Belmar?", ["Orre"], ["The Sull.", "Sull\nQuestion:", "Sull.", "Tarn."]),
}


Imports = Callable[..., tuple[int, list[dict], str]]


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    """Import lines or samples in a format; `requests` and `questions` are rows of further files."""

    def run(format: str, content: Any, *options: Any, **further: Any) -> tuple[int, list[dict], str]:
        if not isinstance(content, Path):
            of_inspect = format == "inspect"
            content = (json_file if of_inspect else write)(
                tmp_path / f"log.json{'l' * (not of_inspect)}", content
            )
        files = {name: write(tmp_path / f"{name}.jsonl", rows) for name, rows in further.items()}
        return semcal(
            "import",
            format,
            content,
            *options,
            *(word for name in files for word in (f"--{name}", files[name])),
        )

    return run


def first_answers(texts: Sequence[str]) -> list[str]:
    return [first_answer(text).text for text in texts]


# lm-eval: as evaluator.py makes a sample and evaluation_tracker.py writes it


def lm_eval_line(doc_id: str, filter: str = "take_first", **changed: Any) -> dict[str, Any]:
    question, aliases, texts = ASKED[doc_id]
    prompt = f"Question: Who built it?\nAnswer: Ana Velis\n\nQuestion: {question}\nAnswer:"
    kwargs = {"until": ["\n"], "do_sample": True, "temperature": 0.7}
    line = {
        "doc_id": int(doc_id),
        "doc": {"question": question, "answer": {"aliases": aliases}},
        "target": str(aliases),
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": kwargs}},
        "resps": [texts],
        "filtered_resps": [texts[0]],
        "filter": filter,
        "metrics": ["exact_match"],
        "doc_hash": f"d{doc_id}",
        "prompt_hash": "p",
        "target_hash": "t",
        "exact_match": 1.0,
    }
    return line | changed


@pytest.mark.parametrize(
    ("target", "answers"),
    [
        ("Paris", ["Paris"]),
        ("['Paris', \"Paris' centre\"]", ["Paris", "Paris' centre"]),
        ('["a", "b"]', ["a", "b"]),
        ("[1970]", ["[1970]"]),
        ("[1, 2]", ["[1, 2]"]),
        ("['a', 2]", ["['a', 2]"]),
        ("['1', '2']", ["1", "2"]),
        ("[0x" + "f" * 5000 + "]", ["[0x" + "f" * 5000 + "]"]),
        ("[sic]", ["[sic]"]),
        (3, ["3"]),
    ],
)
def test_a_target_that_was_printed_is_read_back(imports, target, answers):
    assert imports("lm-eval", [lm_eval_line("0", target=target)])[1][0]["answers"] == answers


def test_two_tasks_in_one_file_of_lm_eval_are_told_apart(imports):
    lines = [lm_eval_line("0"), lm_eval_line("0"), lm_eval_line("0", filter="other", doc_hash="d9")]
    code, rows, stderr = imports("lm-eval", lines)
    assert (code, len(rows)) == (1, 1)
    assert "2 rows, ids '0', '0'): another line has this doc_id" in stderr


# inspect: as the recorders write a log


def entries(text: str, *, end: bool) -> list[dict[str, Any]]:
    """Log-probabilities of each letter and, perhaps, the end of turn."""
    tokens = [*text, *(["<|end|>"] if end else [])]
    return [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]


def inspect_sample(name: str, epoch: int, content: Any, **changed: Any) -> dict[str, Any]:
    question, answers, _ = ASKED[name]
    choice = {"message": {"role": "assistant", "content": content}, "stop_reason": "stop", "logprobs": None}
    sample = {
        "id": int(name),
        "epoch": epoch,
        "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        "target": answers if len(answers) > 1 else answers[0],
        "messages": [],
        "output": {"model": "mock", "choices": [choice]},
        "scores": {"match": {"value": "C", "answer": math.nan}},
        "attachments": {},
        "error": None,
    }
    return sample | changed


def inspect_samples() -> list[dict[str, Any]]:
    """Both questions, an epoch after the other, with a reasoning part and an attachment."""
    samples = []
    for epoch in range(4):
        for name, (_, _, texts) in ASKED.items():
            content: Any = texts[epoch]
            stored = {}
            if epoch == 1:
                content = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": content}]
            if epoch == 2:
                content, stored = "attachment://ab12", {"ab12": content}
            samples.append(inspect_sample(name, epoch + 1, content, attachments=stored))
    return samples


def header(**config: Any) -> dict[str, Any]:
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": "made", "model_generate_config": config},
        "plan": {"config": {"max_tokens": 20}},
    }


def eval_file(path: Path, samples: Iterable[Mapping[str, Any]], **config: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("_journal/start.json", json.dumps(header(**config)))
        for sample in samples:
            log.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        log.writestr("summaries.json", "[]")
        log.writestr("header.json", json.dumps(header(**config)))
    return path


def json_file(path: Path, samples: Iterable[Mapping[str, Any]], **config: Any) -> Path:
    path.write_text(json.dumps(header(**config) | {"samples": list(samples)}))
    return path


def test_choices_of_each_epoch_are_draws_too(imports):
    choices = [{"message": {"content": text}, "stop_reason": "stop"} for text in ("Ilka Soren.", "Bo Tarn.")]
    samples = [inspect_sample("0", epoch, "", output={"choices": choices}) for epoch in (2, 1)]
    code, (row,), stderr = imports("inspect", samples)
    assert (code, row["samples"]) == (0, ["Ilka Soren", "Bo Tarn"] * 2)
    assert "temperatures" not in row
    assert "the file does not state T = 1 and top_p = 1" in stderr


AT_ONE = {"temperature": 1, "top_p": 1}
NO_NUMBERS = [-(10**400), -1e301, math.nan, False, "-0.5"]


@pytest.mark.parametrize(
    ("config", "text", "listed", "expected"),
    [
        (AT_ONE, "Sull.", entries("Sull.", end=True), -0.5),
        (AT_ONE | {"top_k": 0}, "<b>", entries("<b>", end=True), -0.5),
        (AT_ONE | {"temperature": 0.7}, "Sull.", entries("Sull.", end=True), None),  # raw or at T: not said
        ({"temperature": 1}, "Sull.", entries("Sull.", end=True), None),  # top_p: whatever the server has
        (AT_ONE | {"top_k": 40}, "Sull.", entries("Sull.", end=True), None),
        (AT_ONE | {"frequency_penalty": 0.5}, "Sull.", entries("Sull.", end=True), None),
        ({"top_p": 1}, "Sull.", entries("Sull.", end=True), None),
        (AT_ONE, "Sull.", entries("Sull.", end=False), None),  # no end of turn
        (AT_ONE, "Sull. It is long.", entries("Sull. It is long.", end=True), None),  # that was cut
        (AT_ONE, "<think>Hm</think>Sull.", entries("<think>Hm</think>Sull.", end=True), -0.5),
        (AT_ONE, '{"answer": "Sull"}', entries('{"answer": "Sull"}', end=True), -0.5),
        *(
            (AT_ONE, "Sull.", [*entries("Sull.", end=False), {"token": "<|end|>", "logprob": none}], None)
            for none in NO_NUMBERS
        ),
    ],
)
def test_likelihoods_are_taken_over_only_where_the_file_says_what_they_are(
    tmp_path, imports, config, text, listed, expected
):
    sample = inspect_sample("1", 1, text)
    sample["output"]["choices"][0]["logprobs"] = {"content": listed}
    code, (row,), _ = imports("inspect", json_file(tmp_path / "log.json", [sample], **config))
    assert code == 0
    assert row.get("log_likelihoods") == (None if expected is None else [expected])


def test_a_log_in_a_compression_that_python_cannot_read_names_the_ways_out(tmp_path):
    log = eval_file(tmp_path / "log.eval", inspect_samples())
    deflated, zstd = (struct.pack("<HH", 0, method) for method in (8, 93))
    log.write_bytes(log.read_bytes().replace(deflated, zstd))
    code, rows, stderr = semcal("import", "inspect", log)
    assert (code, rows) == (1, [])
    assert "inspect log convert FILE --to json" in stderr
    assert "zipfile-zstd" in stderr


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("log.eval", b"no zip", "is not an inspect log"),
        ("log.json", b"{", "not JSON"),
        ("log.json", b'{"status": "success"}', "no samples"),
        ("log.json", "é".encode("latin-1"), "utf-8"),
    ],
)
def test_a_file_that_is_no_inspect_log_is_one_clear_error(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    code, rows, stderr = semcal("import", "inspect", tmp_path / name)
    assert (code, rows) == (1, [])
    assert reason in stderr


# OpenAI's batch files


def reply(request: str, *texts: str, **changed: Any) -> dict[str, Any]:
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    body = {"id": "chatcmpl-1", "object": "chat.completion", "model": "small", "choices": choices}
    response = {"status_code": 200, "request_id": "r1", "body": body}
    return {"id": "batch_req_1", "custom_id": request, "response": response, "error": None} | changed


def request(name: str, question: str, **settings: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    body = {"model": "small", "messages": messages, **settings}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


QUESTIONS = [{"id": name, "question": q, "answers": answers} for name, (q, answers, _) in ASKED.items()]


def test_a_reply_without_a_question_in_the_file_of_questions_is_a_bad_row(imports):
    lines = [reply(name, *texts) for name, (*_, texts) in ASKED.items()]
    code, (row,), stderr = imports("openai-batch", lines, questions=QUESTIONS[:1])
    assert (code, row["samples"]) == (1, first_answers(ASKED["0"][2]))
    assert "line 2 (id '1'): no question with this id in" in stderr


def test_likelihoods_of_a_batch_need_its_requests(imports):
    line = reply("1", "Sull.")
    line["response"]["body"]["choices"][0]["logprobs"] = {"content": entries("Sull.", end=True)}
    for settings, expected in ((AT_ONE, [-0.5]), ({"temperature": 1}, None)):
        (row,) = imports("openai-batch", [line], requests=[request("1", "Which river?", **settings)])[1]
        assert row.get("log_likelihoods") == expected


def bad_epoch(**changed: Any) -> list[dict[str, Any]]:
    """Two epochs of both questions, of which the second one of question 0 is bad."""
    samples = [inspect_sample(name, epoch, "Sull.") for epoch in (1, 2) for name in ASKED]
    samples[2] |= changed
    return samples


DRAWN = [reply(f"{name}#{i}", "Sull.") for name in ASKED for i in range(2)]
TWO_EACH = [request(f"{name}#{i}", ASKED[name][0]) for name in ASKED for i in range(2)]
NESTED = reduce(lambda inner, _: [{"type": "text", "text": inner}], range(400), "Sull.")
AT_ZERO = {"gen_args_0": {"arg_0": "?", "arg_1": {"temperature": 0.0}}}
GREEDY = {"gen_args_0": {"arg_0": "?", "arg_1": {"do_sample": False}}}
#: What is wrong with question 0, and what is said of it.
BAD_LINES = [
    ({"resps": [[["-1.5", "False"]], [["-0.2", "True"]]]}, "multiple choice"),
    ({"resps": None}, "no 'doc_id' or 'resps'"),
    ({"arguments": GREEDY}, "decoded greedily"),
    ({"arguments": AT_ZERO}, "decoded greedily"),
    ({"arguments": [["?", {"do_sample": False}]]}, "decoded greedily"),  # before lm-eval 0.4.3
    ({"doc": {}, "arguments": {}}, "expected a text, got None"),
]
BAD_EPOCHS = [
    ({"error": {"message": "timed out"}}, "epoch 2: the run failed: 'timed out'"),
    ({"output": {"choices": None}}, "no answer"),
    ({"output": None}, "no answer"),
    ({"output": {"choices": ["x"]}}, "expected a choice with a message or a text, got 'x'"),
    ({"output": {"choices": [{"message": {"content": NESTED}}]}}, "expected a text"),
    ({"input": "Another question?"}, "its input differs from that of other epochs"),
    ({"input": [3]}, "expected a text, got None"),
    ({"epoch": 1}, "sample 1 occurs twice"),
    ({"target": 3}, "expected a text, got 3"),
    ({"input": "attachment://ff"}, "expected a text, got 'attachment://ff'"),
]
BAD_REPLIES: list[tuple[dict[str, Any], str]] = [
    ({"response": None, "error": {"code": "expired", "message": "too late"}}, "it failed ('too late')"),
    ({"response": {"status_code": 429, "body": {"error": {"message": "slow down"}}}}, "('slow down')"),
    ({"response": {"status_code": 200, "body": {"output": []}}}, "no answer"),
    ({"response": {"status_code": 200, "body": {"choices": [{"message": {"content": 3}}]}}}, "got 3"),
]


@pytest.mark.parametrize(
    ("form", "lines", "asked", "reason"),
    [
        *(("lm-eval", [lm_eval_line("0", **bad), lm_eval_line("1")], (), why) for bad, why in BAD_LINES),
        *(("inspect", bad_epoch(**bad), (), why) for bad, why in BAD_EPOCHS),
        *(("openai-batch", [DRAWN[0] | bad, *DRAWN[1:]], TWO_EACH, why) for bad, why in BAD_REPLIES),
        ("openai-batch", DRAWN[1:], TWO_EACH, "no reply to request"),
        ("openai-batch", [*DRAWN, DRAWN[0]], TWO_EACH, "occurs twice"),
        ("openai-batch", DRAWN, [request("0#0", "Who?"), *TWO_EACH[1:]], "differs from the other samples"),
        ("openai-batch", DRAWN, TWO_EACH[2:], "its question is unknown. Give --requests or --questions"),
        ("openai-batch", [reply("0#4", "a"), *DRAWN[1:]], TWO_EACH[2:], "numbers [1, 4]"),
    ],
)
def test_a_question_with_a_bad_line_epoch_or_reply_is_a_bad_row_and_the_others_go_on(
    imports, form, lines, asked, reason
):
    code, rows, stderr = imports(form, lines, **({"requests": asked} if asked else {}))
    assert (code, [row["id"] for row in rows]) == (1, ["1"]), stderr
    assert "(id '0')" in stderr
    assert reason in stderr


# The answer in a reply


REPLIES = [
    ('```json\n{"answer": "Mirna"}\n```', "Mirna"),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Mirna", "Mirna"),
    ("analysisHm.assistantfinalMirna", "Mirna"),
    ("<reasoning>Hm.</reasoning>\n<answer>Mirna</answer>", "Mirna"),
    ("3. Oktober 1990", "3. Oktober 1990"),
    ("There are 3 mills first. Then there are 9. The answer is 6.", "6"),
    ("There are 3 mills. 3 + 3 = 6.\n#### 6", "6"),
    ("<think>Is it", None),
    (None, None),
    ("", ""),
]


def test_the_answer_is_found_in_each_reply_of_a_batch(imports):
    replies = [reply(f"q#{i}", text) for i, (text, _) in enumerate(REPLIES)]
    asked = [request(f"q#{i}", "Where?", temperature=1) for i in range(len(REPLIES))]
    code, (row,), _ = imports("openai-batch", replies, requests=asked)
    assert (code, row["samples"]) == (0, [answer for _, answer in REPLIES])
    assert row["generations"] == [text or "" for text, _ in REPLIES]
    assert (row["answer_format"], "refusals" in row) == ("auto", False)
    format = r"regex:(?:^|\W)(Mirna)\b"
    code, (row,), _ = imports("openai-batch", replies, "--answer-format", format, requests=asked)
    assert (code, row["samples"].count("Mirna"), row["samples"].count(None)) == (0, 4, 6)
    assert row["answer_format"] == format
    code, _, stderr = imports("openai-batch", replies, "--answer-format", "regex:Mirna", requests=asked)
    assert (code, "--answer-format" in stderr) == (2, True)


def refused(number: int, message: dict[str, Any], **changed: Any) -> dict[str, Any]:
    line = reply(f"q#{number}", None)
    line["response"]["body"]["choices"][0] |= {"message": {"role": "assistant", **message}, **changed}
    return line


REFUSAL = {"type": "refusal", "refusal": "I can't help."}
EMPTY = [
    (refused(1, {"content": None}), None),
    (refused(1, {}), None),
    (refused(1, {"content": []}), None),
    (refused(1, {"content": [REFUSAL]}), "I can't help."),
    (refused(1, {"content": "", "refusal": "I can't help."}), "I can't help."),
    (refused(1, {"content": ""}, finish_reason="content_filter"), None),
    (reply("q#1"), None),
    (
        reply("q#1", response={"status_code": 400, "body": {"error": {"code": "content_filter"}}}),
        None,
    ),
    (
        reply("q#1", response=None, error={"code": "content_filter", "message": "I can't help."}),
        "I can't help.",
    ),
]


@pytest.mark.parametrize(("line", "refusal"), EMPTY)
def test_one_empty_or_refused_reply_of_a_batch_leaves_its_question_in(imports, line, refusal):
    asked = [request(f"q#{number}", "Where?", temperature=1) for number in range(3)]
    replies = [reply("q#0", "Mirna."), line, reply("q#2", "Orlin.")]
    code, (row,), _ = imports("openai-batch", replies, requests=asked)
    assert (code, row["samples"]) == (0, ["Mirna", None, "Orlin"])
    assert row.get("refusals") == ([None, refusal, None] if refusal else None)


def test_one_empty_or_refused_epoch_of_inspect_leaves_its_question_in(imports):
    refusal = [{"type": "text", "text": "I can't help.", "refusal": True}]
    contents = ["Sull.", None, refusal, [{"type": "reasoning", "reasoning": "Hm."}], "", ""]
    epochs = [inspect_sample("1", epoch, content) for epoch, content in enumerate(contents, 1)]
    epochs[4] |= {"output": {"choices": []}}
    epochs[5]["output"]["choices"][0]["stop_reason"] = "content_filter"
    code, (row,), _ = imports("inspect", epochs)
    assert (code, row["samples"]) == (0, ["Sull"] + [None] * 5)
    assert row["refusals"] == [None, None, "I can't help.", None, None, None]


def test_flat_responses_of_lm_eval_are_samples(imports):
    assert imports("lm-eval", [lm_eval_line("0", resps=["Ilka."])])[1][0]["generations"] == ["Ilka."]


def test_one_empty_reply_of_lm_eval_leaves_its_question_in(imports):
    line = lm_eval_line("0", resps=[["Ilka.", None]], filtered_resps=["Ilka.", None])
    code, (row,), _ = imports("lm-eval", [line])
    assert (code, row["samples"], row["generations"]) == (0, ["Ilka", None], ["Ilka.", ""])


def test_a_batch_with_many_empty_replies_is_warned_of(imports):
    texts, asked = [f"Ana {number}" for number in range(9)], [request("q", "Who?")]
    told = imports("openai-batch", [reply("q", *texts, None)], requests=asked)[2]
    assert "have no answer" not in told
    told = imports("openai-batch", [reply("q", *texts[:8], None, None)], requests=asked)[2]
    assert "2 of 10 samples have no answer; " in told
    assert "--answer-format" in told


def test_the_answer_that_a_log_has_extracted_counts(imports):
    long = "Mirna lies inland and Orlin does not. It is Mirna, as I said."
    epochs = [
        inspect_sample("0", epoch, long, scores={"m": {"value": "C", "answer": answer}})
        for epoch, answer in ((1, "Mirna"), (2, long), (3, None))
    ]
    first = first_answer(long).text
    assert imports("inspect", epochs)[1][0]["samples"] == ["Mirna", first, first]
    assert imports("inspect", epochs, "--answer-format", "whole")[1][0]["samples"] == [long] * 3
    code, (row,), _ = imports("inspect", epochs, "--answer", "given")
    assert (code, row["answer"], row["correct"]) == (0, "Mirna", True)
    later = {"f1": {"value": 0.5}, "includes": {"value": 1, "answer": long}}
    later |= {"match": {"value": "I", "answer": "Mirna"}, "last": {"value": "C", "answer": "Orlin"}}
    code, (row,), _ = imports("inspect", [inspect_sample("0", 1, long, scores=later)], "--answer", "given")
    assert (code, row["answer"], row["correct"]) == (0, "Mirna", False)
    line = lm_eval_line("0", resps=[[long] * 3], filtered_resps=["Mirna", "[invalid]", long])
    code, (row,), _ = imports("lm-eval", [line])
    assert (code, row["samples"]) == (0, ["Mirna", None, first])


def test_a_chat_and_a_worked_solution_of_lm_eval_are_read(imports):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which mill?"}]
    chat = json.dumps(turns)
    line = lm_eval_line("0", target="Each mill has 4.\n3*4=<<3*4=12>>12\n#### 12", doc={})
    for prompt in (chat, [chat], json.dumps(turns, indent=1), turns):
        line["arguments"]["gen_args_0"]["arg_0"] = prompt
        code, (row,), _ = imports("lm-eval", [line])
        assert (code, row["question"], row["answers"]) == (0, "Which mill?", ["12"])


@pytest.mark.parametrize(
    ("changed", "question"),
    [
        ({"doc": {"text": "?"}}, ASKED["0"][0]),  # that of the prompt
        *(({"doc": {"question": other}}, ASKED["0"][0]) for other in ({"id": 3}, ["Which mill?"], "")),
        *(
            ({"doc": {}, "arguments": {"gen_args_0": {"arg_0": prompt}}}, question)
            for prompt, question in [
                ("Question: Who?\nAnswer:", "Who?"),
                ("Q:\n\n  Who built it? \n\nA: \n", "Who built it?"),
                ("Question: Who?\nAnswer: Ana\n\nQuestion: When?\nAnswer:", "When?"),
                ("Who?\nAnswer:", "Who?\nAnswer:"),
                ("Question: Who?", "Question: Who?"),
                ("Question:\nAnswer:", "Question:\nAnswer:"),
            ]
        ),
    ],
)
def test_the_question_of_lm_eval_is_that_of_the_document_or_between_the_last_labels_of_the_prompt(
    imports, changed, question
):
    code, (row,), _ = imports("lm-eval", [lm_eval_line("0", **changed)])
    assert (code, row["question"]) == (0, question)


# --answer: the log's own answer


def test_what_a_filter_of_lm_eval_leaves_is_the_given_answer_with_the_first_metric_as_verdict(imports):
    lines = [lm_eval_line("0", filtered_resps=["Ilka Soren. He"]), lm_eval_line("1", exact_match=0.0)]
    code, rows, _ = imports("lm-eval", lines, "--answer", "given")
    found = [(row.pop("answer"), row.pop("correct")) for row in rows]
    assert (code, found) == (0, [("Ilka Soren", True), ("The Sull", False)])
    assert rows == imports("lm-eval", lines)[1]
    (row,) = imports("lm-eval", [lm_eval_line("0", metrics=["f1"], f1=0.4)], "--answer", "given")[1]
    assert "correct" not in row  # neither 0 nor 1


@pytest.mark.parametrize("texts", [None, [], ["a", "b"], [["a", "b"]], [3]])
def test_a_filter_that_leaves_no_one_text_is_a_bad_row(imports, texts):
    lines = [lm_eval_line("0", filtered_resps=texts), lm_eval_line("1")]
    code, rows, stderr = imports("lm-eval", lines, "--answer", "given")
    assert (code, [row["id"] for row in rows]) == (1, ["1"])
    assert "'filtered_resps' must be one text" in stderr


@pytest.mark.parametrize(
    "changed",
    [{"resps": [["Bo."]]}, {"arguments": {"gen_args_0": {"arg_0": "?", "arg_1": {"temperature": 0}}}}],
)
@pytest.mark.filterwarnings("ignore:all 20 answers have the same share")
def test_an_answer_alone_or_at_0_comes_without_draws_and_can_be_calibrated(tmp_path, imports, changed):
    lines = [
        lm_eval_line("0", doc={"question": f"Who built mill {n}?"}, exact_match=float(n % 3 > 0), **changed)
        | {"doc_id": n, "filtered_resps": ["Ana" if n % 3 else "Bo"]}
        for n in range(20)
    ]
    code, read, _ = imports("lm-eval", lines, "--answer", "given")
    assert (code, set(read[0])) == (0, {"id", "question", "answers", "answer", "correct"})
    rows = write(tmp_path / "rows.jsonl", read)
    drawn = ("--model", "atlas", "--m", 2, "--config", "sampling.temperatures=1")
    compared = ("--answer", "given", "--equivalence", "exact")
    code, (report,), stderr = semcal("calibrate", rows, *drawn, *compared, "--out", tmp_path / "made")
    assert (code, report["n"]) == (0, 20), stderr
    assert report["base"]["accuracy"] == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("value", "correct"),
    [
        ("C", True),
        ("I", False),
        ("N", False),
        ("P", None),
        (1, True),
        (0.0, False),
        (0.5, None),
        ({"a": 1}, None),
    ],
)
def test_the_first_epoch_of_inspect_is_the_given_answer_and_its_first_score_the_verdict(
    tmp_path, imports, value, correct
):
    samples = inspect_samples()
    for sample in samples:
        sample["scores"] = {"match": {"value": value if sample["epoch"] == 1 else "P"}, "f1": {"value": 1}}
    log = json_file(tmp_path / "log.json", samples[::-1], temperature=1.0)
    code, rows, _ = imports("inspect", log, "--answer", "given")
    assert code == 0
    assert {row["id"]: row["answer"] for row in rows} == {"0": "Ilka Soren", "1": "The Sull"}
    assert [row.get("correct") for row in rows] == [correct] * 2
    assert [len(row["samples"]) for row in rows] == [4, 4]


@pytest.mark.parametrize("scores", [None, {}, {"match": None}, []])
def test_an_epoch_without_a_score_has_no_verdict(tmp_path, scores):
    log = json_file(tmp_path / "log.json", [inspect_sample("0", 1, "Bo.", scores=scores)], temperature=0)
    code, rows, _ = semcal("import", "inspect", log, "--answer", "given")
    question, answers, _ = ASKED["0"]
    assert (code, rows) == (0, [{"id": "0", "question": question, "answers": answers, "answer": "Bo"}])


def test_the_only_reply_to_a_question_of_a_batch_is_the_given_answer(imports):
    lines = [reply("0", "Ilka Soren. She"), reply("1#0", "Orre"), reply("1#1", "Sull")]
    asked = [request(name, ASKED[name[0]][0]) for name in ("0", "1#0", "1#1")]
    code, (row,), stderr = imports("openai-batch", lines, "--answer", "given", requests=asked)
    assert (code, row) == (1, {"id": "0", "question": ASKED["0"][0], "answer": "Ilka Soren"})
    assert "(id '1')" in stderr
    code, _, stderr = imports("openai-batch", lines, "--answer", "greedy", requests=asked)
    assert (code, "--answer" in stderr) == (2, True)


# --questions: by id


BOTH = [lm_eval_line("0"), lm_eval_line("1")]
LINES = [{"question": question, "answers": [answers[0]]} for question, answers, _ in ASKED.values()]


def test_a_question_of_the_same_id_that_asks_something_else_is_a_bad_row_that_quotes_both(imports):
    shifted = [{"id": number, **line} for number, line in enumerate(LINES, start=1)]
    code, rows, err = imports("lm-eval", BOTH, questions=shifted)
    assert (code, rows) == (1, [])
    assert "line 1 (id '0'): no question with this id in" in err
    own = "line 2 (id '1'): its question is 'Which river runs through Belmar?'"
    assert f"{own}, but the question with this id" in err
    assert "is 'Who wrote The Amber Gate?'" in err
    assert imports("lm-eval", BOTH, questions=LINES)[:2] == (1, [])  # without ids


@pytest.mark.parametrize(
    ("prompt", "agrees"),
    [
        ("Who wrote The Amber Gate?", True),
        ("Question: WHO wrote  The Amber Gate?\nAnswer:", True),
        ("Who wrote The Amber Gates?", False),
        ("", False),
    ],
)
def test_a_prompt_that_holds_the_question_agrees_with_it_and_stays_in_the_row(imports, prompt, agrees):
    samples = [inspect_sample("0", 1, "Ilka Soren.", input=[{"role": "user", "content": prompt}])]
    amber = {"question": "Who wrote The Amber Gate?", "answers": ["Ilka"], "level": 2, "samples": ["x"]}
    code, rows, err = imports("inspect", samples, questions=[{"id": 0, **amber}])
    assert code == (0 if agrees else 1), err
    assert len(rows) == agrees
    for row in rows:
        assert (row["question"], row["answers"], row["level"]) == (amber["question"], ["Ilka"], 2)
        assert row["samples"] == ["Ilka Soren"]
        assert row.get("prompt") == (None if prompt == amber["question"] else prompt)


def test_the_time_for_a_prompt_of_blanks_grows_with_its_length_alone(tmp_path):
    """A cubic pattern took 20 s for 4,000 blanks; 25 times as many are no more work a blank."""
    questions = write(tmp_path / "questions.jsonl", [{"id": "0", "question": "Question:"}])
    for filler in ("\n", " ", "Question:", "Question: ", "\nQ:", "Answer:\n"):
        prompt = {"gen_args_0": {"arg_0": f"Question:{filler * 100_000}"}}
        file = write(tmp_path / "samples.jsonl", [lm_eval_line("0", doc={}, arguments=prompt)])
        assert len(list(read_recorded(file, "lm-eval", requests=None, questions=questions))) == 1


# Zip files that are damaged, encrypted, or far larger than they look


def outcome(log: Path, format: str) -> list[JsonLine | RowError] | str:
    """The rows of a log, or the error that it is none."""
    try:
        return list(read_recorded(str(log), format, requests=None, questions=None))
    except InputError as error:
        return str(error)


def test_a_damaged_zip_file_is_rows_or_one_clear_error(tmp_path):
    whole = eval_file(tmp_path / "log.eval", inspect_samples(), temperature=1.0).read_bytes()
    log, refused = tmp_path / "damaged.eval", 0
    for number in range(100):
        damaged, words = damaged_zip(whole, Random(number))
        log.write_bytes(damaged)
        found = outcome(log, "inspect")
        if isinstance(found, str):
            refused += 1
            assert found.startswith(str(log)), words
        else:
            assert all(isinstance(row, JsonLine | RowError) for row in found), words
    assert refused >= 30


def bomb(path: Path, size: int, *, declared: int | None = None) -> Path:
    """A log whose first sample unpacks to `size` bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("samples/1_epoch_1.json", b" " * size + b"{}")
    if declared is not None:
        raw = bytearray(path.read_bytes())
        for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            struct.pack_into("<I", raw, raw.find(signature) + offset, declared)
        path.write_bytes(raw)
    return path


@pytest.mark.parametrize("declared", [None, 1000, 2**31])
def test_a_member_is_unpacked_up_to_a_bound_whatever_its_header_says(tmp_path, monkeypatch, declared):
    monkeypatch.setattr("semcal.data.recorded.LONGEST", 1_000_000)
    log = bomb(tmp_path / "log.eval", 30_000_000, declared=declared)
    assert log.stat().st_size < 40_000
    tracemalloc.start()
    code, rows, stderr = semcal("import", "inspect", log)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (code, rows) == (1, [])
    expected = "Bad CRC-32" if declared == 1000 else "'samples/1_epoch_1.json' in it to more than 1,000,000."
    assert expected in stderr
    assert peak < 10_000_000


def test_all_members_together_are_bounded_too(tmp_path, monkeypatch):
    log = eval_file(tmp_path / "log.eval", inspect_samples())
    monkeypatch.setattr("semcal.data.recorded.LARGEST", 3000)
    code, rows, stderr = semcal("import", "inspect", log)
    assert (code, rows) == (1, [])
    assert "unpacks to more than 3,000 bytes" in stderr


# all formats


def test_a_pickle_is_refused_with_the_reason(tmp_path):
    for name in ("results.man", "samples.jsonl"):
        (tmp_path / name).write_bytes(pickle.dumps({"stats": [1]}, protocol=4))
    (tmp_path / "empty.man").write_bytes(b"")
    for name in ("results.man", "samples.jsonl", "empty.man"):
        for kind in ("lm-eval", "inspect", "openai-batch"):
            code, rows, stderr = semcal("import", kind, tmp_path / name)
            assert (code, rows) == (1, [])
            assert "is a pickle" in stderr
            assert "can run any code" in stderr


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(one for key, item in items for one in paths(item, (*at, key)))] if at or items else [at]


def with_junk(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copy = value.copy()
    copy[path[0]] = with_junk(value[path[0]], path[1:], junk)
    return copy


LIKELY = {"logprobs": {"content": entries("Sull.", end=True)}}
VALID: dict[str, list[Any]] = {
    "lm-eval": [lm_eval_line("0")],
    "inspect": [header(temperature=1, top_p=1) | {"samples": [inspect_sample("1", 1, "Sull.")]}],
    "openai-batch": [reply("1", "Sull.")],
}


@pytest.mark.parametrize("kind", list(VALID))
@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, [3], {"a": 3}, -1.5], ids=repr)
def test_whatever_stands_anywhere_in_a_file_it_is_a_row_a_bad_row_or_one_error(tmp_path, kind, junk):
    ending = "json" if kind == "inspect" else "jsonl"
    whole = VALID[kind][0]
    choices = whole["samples"][0]["output"]["choices"] if kind == "inspect" else []
    choices = whole["response"]["body"]["choices"] if kind == "openai-batch" else choices
    for choice in choices:
        choice |= LIKELY
    asked = write(tmp_path / "requests.jsonl", [request("1", "Which river?", temperature=1, top_p=1)])
    for number, path in enumerate(paths(whole)[1:]):
        file = tmp_path / f"{number}.{ending}"
        file.write_text(json.dumps(with_junk(whole, path, junk)) + "\n")
        requests = asked if kind == "openai-batch" else None
        try:
            rows = list(read_recorded(str(file), kind, requests=requests, questions=None))
        except InputError:
            continue
        assert all(isinstance(row, JsonLine | RowError) for row in rows)
