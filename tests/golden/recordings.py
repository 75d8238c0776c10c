"""`semcal import` of what lm-eval, inspect and OpenAI's batch service record, with rows that are refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.golden.invoking import store_output
from tests.golden.questions import write_rows

#: Id → question, reference answers and what a model said at T = 1.
ASKED: Mapping[str, tuple[str, list[str], list[str]]] = {
    "0": (
        "Who wrote The Amber Gate?",
        ["Ilka Soren", "I. Soren"],
        ["Ilka Soren.", "Ilka Soren", "Bo Tarn. He also wrote The Mill.", "I. Soren."],
    ),
    "1": ("Which river runs through Belmar?", ["Orre"], ["The Sull.", "Sull\nQuestion:", "Sull.", "Tarn."]),
    "2": ("How many lakes are in Torvik?", ["7"], ["seven.", "7.", "Seven.", "8."]),
}


def write_imports() -> None:
    """Import a small file of every format, and go on with the rows of one."""
    rows = ({"id": name, "question": q, "answers": answers[:1]} for name, (q, answers, _) in ASKED.items())
    questions = write_rows("questions.jsonl", rows)
    lines = write_rows("samples_made.jsonl", _lm_eval_lines())
    store_output("lm-eval", "import", "lm-eval", lines, exit_code=1)
    store_output("lm-eval-with-questions", "import", "lm-eval", lines, "--questions", questions, exit_code=1)
    for log in _inspect_logs():
        name = f"inspect-{log.suffix[1:]}"
        recorded = store_output(name, "import", "inspect", log, exit_code=1)
    store_output("clustered", "cluster", "-", "--equivalence", "exact", stdin=recorded)
    requests = write_rows("requests.jsonl", _batch_requests())
    replies = write_rows("replies.jsonl", _batch_replies())
    batch = ("import", "openai-batch", replies)
    store_output("openai-batch", *batch, "--requests", requests, exit_code=1)
    store_output("openai-batch-with-questions", *batch, "--questions", questions)
    store_output("openai-batch-alone", *batch, exit_code=1)


def _entries(text: str) -> dict[str, Any]:
    """Log-probabilities of each letter and of the end of turn."""
    return {"content": [{"token": token, "logprob": -0.5} for token in (*text, "<|end|>")]}


def _lm_eval_lines() -> Iterator[dict[str, Any]]:
    """All questions under two filters, and one that was decoded greedily."""
    settings = {"until": ["\n"], "do_sample": True, "temperature": 0.7}
    for name, (question, answers, texts) in ASKED.items():
        for kind in ("take_first", "remove_whitespace"):
            yield {
                "doc_id": int(name),
                "doc": {"question": question},
                "target": str(answers),
                "arguments": {"gen_args_0": {"arg_0": f"Question: {question}\nAnswer:", "arg_1": settings}},
                "resps": [texts],
                "filter": kind,
                "doc_hash": f"d{name}",
            }
    yield {
        "doc_id": 3,
        "doc": {"question": "Who?"},
        "target": "Ana",
        "arguments": {"gen_args_0": {"arg_0": "Who?", "arg_1": {"do_sample": False}}},
        "resps": [["Ana"]],
        "filter": "take_first",
        "doc_hash": "d3",
    }


def _inspect_logs() -> Iterator[Path]:
    """Four epochs of all questions with log-likelihoods, and a question that failed, in either form."""
    config = {"temperature": 1.0, "top_p": 1.0}
    header = {"version": 2, "eval": {"task": "made", "model_generate_config": config}, "plan": {"config": {}}}
    samples = [
        _inspect_sample(name, epoch, texts[epoch])
        for epoch in range(4)
        for name, (_, _, texts) in ASKED.items()
    ]
    samples.append({**_inspect_sample("0", 0, "Ana"), "id": 3, "error": {"message": "out of memory"}})
    plain = Path("log.json")
    plain.write_text(json.dumps(header | {"samples": samples}))
    yield plain
    packed = Path("log.eval")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("header.json", json.dumps(header))
        for sample in samples:
            log.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    yield packed


def _inspect_sample(name: str, epoch: int, text: str) -> dict[str, Any]:
    question, answers, _ = ASKED[name]
    content: Any = text
    stored: dict[str, str] = {}
    if epoch == 1:
        content = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": text}]
    if epoch == 2:
        content, stored = "attachment://ab12", {"ab12": text}
    choice = {"message": {"role": "assistant", "content": content}, "stop_reason": "stop"}
    return {
        "id": int(name),
        "epoch": epoch + 1,
        "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        "target": answers,
        "output": {"choices": [{**choice, "logprobs": _entries(text)}]},
        "attachments": stored,
        "error": None,
    }


def _batch_requests() -> Iterator[dict[str, Any]]:
    """Four draws of the first question, of the others in one request each; one that got no answer."""
    names = [*(f"0#{draw}" for draw in range(4)), "1", "2", "3"]
    questions = {name: question for name, (question, *_) in ASKED.items()} | {"3": "Who built it?"}
    for name in names:
        messages = [{"role": "user", "content": questions[name[0]]}]
        body = {"model": "small", "messages": messages, "temperature": 1, "top_p": 1}
        yield {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _batch_replies() -> list[dict[str, Any]]:
    """The replies, out of order."""
    first, *others = (texts for *_, texts in ASKED.values())
    replies = [_reply(str(number), texts) for number, texts in enumerate(others, start=1)]
    replies += [_reply(f"0#{draw}", [text]) for draw, text in enumerate(first)]
    return replies[::-1]


def _reply(request: str, texts: list[str]) -> dict[str, Any]:
    choices = [
        {"message": {"content": text}, "finish_reason": "stop", "logprobs": _entries(text)} for text in texts
    ]
    response = {"status_code": 200, "body": {"choices": choices}}
    return {"custom_id": request, "response": response, "error": None}
