"""Damaged logs of other programs for `semcal import`: lines, JSON values, bytes, zip members and headers."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._damage import Ended, faults_of, semcal
from benchmarks._mutations import changed_bytes, changed_json, changed_line

QUESTIONS = {f"q/{i}": f"Where was person number {i} born?" for i in range(5)}
ANSWERS = ["town 1", "Town 1.", "Question: why?", "<think>Hm</think>town 2"]
SIGNATURES = (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06")
Case = Callable[[Random], tuple[Ended, str, list[str]]]


def import_cases(folder: Path) -> Case:
    """Cases that damage a log, its requests or its questions, and import it."""
    folder.mkdir()
    files = _written(folder)
    arguments = {
        "lm-eval": [files["lm-eval"]],
        "inspect": [files["inspect"]],
        "inspect, JSON": [files["inspect, JSON"]],
        "openai-batch": [files["openai-batch"], "--requests", files["requests"]],
    }
    damaged = {name: [given[0]] for name, given in arguments.items()}
    damaged["openai-batch"].append(files["requests"])
    for name in list(arguments):
        for joined in ("questions", "texts"):  # by id, and without ids by text
            arguments[f"{name}, {joined}"] = [*arguments[name], "--questions", files[joined]]
            damaged[f"{name}, {joined}"] = [*damaged[name], files[joined]]
    undamaged: dict[str, list[dict[str, Any]]] = {}

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        name = random.choice(list(arguments))
        command = ("import", name.partition(",")[0], *arguments[name])
        if name not in undamaged:
            undamaged[name] = _rows_of(semcal(*command))
        file = random.choice(damaged[name])
        before = file.read_bytes()
        after, words, ids = _damaged(file, before, random)
        file.write_bytes(after)
        try:
            ended = semcal(*command)
        finally:
            file.write_bytes(before)
        faults = faults_of(ended)
        if not faults and not ended.refused and ids is not None:
            faults = _row_faults(undamaged[name], ended, ids)
        return ended, f"{name}: {file.name}: {words}", faults

    return case


def _rows_of(ended: Ended) -> list[dict[str, Any]]:
    if ended.code or ended.fault or len(ended.rows) != len(QUESTIONS):
        raise SystemExit(f"an undamaged log is not imported: {ended.fault or ended.stderr[-500:]}")
    return ended.rows


def _row_faults(whole: list[dict[str, Any]], ended: Ended, ids: set[str]) -> list[str]:
    """Check that undamaged lines give equal rows, and that other lines give rows or reports."""
    written = {row["id"]: row for row in ended.rows}
    changed = [row["id"] for row in whole if row["id"] not in ids and written.get(row["id"]) != row]
    lost = not ended.reported and len(ended.rows) < len(whole)
    return [f"rows {changed} changed with another"] * bool(changed) + ["a row vanished"] * lost


def _damaged(file: Path, data: bytes, random: Random) -> tuple[bytes, str, set[str] | None]:
    """Return the damaged file, a description, and the affected ids if only some are affected."""
    if file.suffix == ".eval":
        return (*damaged_zip(data, random), None)
    if file.suffix == ".json":
        return (*changed_json(data, random), None)
    lines = data.splitlines()
    at = random.randrange(len(lines))
    line, words = changed_line(lines[at], random)
    ids = {f"q/{at % len(QUESTIONS)}"} if file.name == "lm-eval.jsonl" else None
    if ids and (b"doc_id" not in line or not line.strip()):
        ids = None
    return b"\n".join([*lines[:at], line, *lines[at + 1 :]]) + b"\n", f"line {at + 1}: {words}", ids


def damaged_zip(data: bytes, random: Random) -> tuple[bytes, str]:
    """Change bytes, a header, all flags and methods, or the JSON of a member."""
    how = random.randrange(4)
    if how == 0:
        return changed_bytes(data, random)
    if how == 1:  # in one of the headers, which have methods, flags, sizes and offsets
        places = [at for sign in SIGNATURES for at in _places(data, sign)]
        at, noise = (
            random.choice(places) + random.randrange(4, 46),
            random.randbytes(random.choice((1, 2, 4))),
        )
        return data[:at] + noise + data[at + len(noise) :], f"{len(noise)} bytes of a header at {at}"
    if how == 2:
        flag = random.choice((0x1, 0x20, 0x40, 0x800, 0x2000))
        method = random.choice((0, 8, 9, 12, 14, 93, 95, 99))
        return _with_headers(data, flag, method), f"flags {flag:#x}, method {method}"
    with zipfile.ZipFile(io.BytesIO(data)) as log:
        members = {name: log.read(name) for name in log.namelist()}
    name = random.choice([name for name, content in members.items() if content.startswith(b"{")])
    members[name], words = changed_json(members[name], random)
    with zipfile.ZipFile(
        made := io.BytesIO(), "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_LZMA))
    ) as log:
        for member, content in members.items():
            log.writestr(member, content)
    return made.getvalue(), f"{name}: {words}"


def _places(data: bytes, sign: bytes) -> list[int]:
    return [at for at in range(len(data)) if data.startswith(sign, at)]


def _with_headers(data: bytes, flag: int, method: int) -> bytes:
    """Set the flag and the method in both headers of every member."""
    raw = bytearray(data)
    for sign, start in zip(SIGNATURES, (6, 8)):
        for at in _places(data, sign):
            struct.pack_into("<HH", raw, at + start, flag, method)
    return bytes(raw)


# Undamaged files


def _written(folder: Path) -> dict[str, Path]:
    contents: dict[str, list[Any]] = {
        "lm-eval.jsonl": [_lm_eval(name) for name in QUESTIONS],
        "openai-batch.jsonl": [_reply(f"{name}#{i}", i) for name in QUESTIONS for i in range(2)],
        "requests.jsonl": [_request(f"{name}#{i}", name) for name in QUESTIONS for i in range(2)],
        "questions.jsonl": [{"id": k, "question": v, "answers": ["town 1"]} for k, v in QUESTIONS.items()],
        "texts.jsonl": [{"question": text, "answers": ["town 1"]} for text in QUESTIONS.values()],
    }
    for name, rows in contents.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    header = {"eval": {"model_generate_config": {"temperature": 1, "top_p": 1}}, "plan": {"config": {}}}
    samples = [_sample(name, epoch) for name in QUESTIONS for epoch in (1, 2)]
    (folder / "log.json").write_text(json.dumps(header | {"samples": samples}))
    with zipfile.ZipFile(folder / "log.eval", "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("header.json", json.dumps(header))
        for sample in samples:
            log.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    files = {name.removesuffix(".jsonl"): folder / name for name in contents}
    return files | {"inspect": folder / "log.eval", "inspect, JSON": folder / "log.json"}


def _entries(text: str) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -0.5} for token in (*text, "<|end|>")]}


def _lm_eval(name: str) -> dict[str, Any]:
    prompt = f"Question: Who?\nAnswer: Ana\n\nQuestion: {QUESTIONS[name]}\nAnswer:"
    settings = {"until": ["\n"], "do_sample": True, "temperature": 0.7}
    return {
        "doc_id": name,
        "doc": {"text": QUESTIONS[name]},
        "target": "['town 1', 'the town']",
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": settings}},
        "resps": [ANSWERS],
        "filter": "none",
        "doc_hash": name,
    }


def _sample(name: str, epoch: int) -> dict[str, Any]:
    text = ANSWERS[epoch]
    choice = {"message": {"content": text}, "stop_reason": "stop", "logprobs": _entries(text)}
    asked = [{"role": "user", "content": [{"type": "text", "text": QUESTIONS[name]}]}]
    return {
        "id": name,
        "epoch": epoch,
        "input": asked,
        "target": ["town 1"],
        "output": {"choices": [choice]},
        "attachments": {},
        "error": None,
    }


def _reply(request: str, number: int) -> dict[str, Any]:
    text = ANSWERS[number]
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": _entries(text)}
    body = {"model": "small", "choices": [choice]}
    return {"custom_id": request, "response": {"status_code": 200, "body": body}, "error": None}


def _request(request: str, name: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTIONS[name]}]
    return {"custom_id": request, "body": {"messages": messages, "temperature": 1, "top_p": 1}}
