"""llama.cpp's server with the embedded language model: what it answers, and what to beware of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llama_fixtures import own_llama_server
from semcal.demo.paths import language_model_dir
from semcal.servers.client import ServerClient
from semcal.servers.probing import probe
from semcal.servers.protocol import ServerProfile, parse_choices
from semcal.servers.settings import Endpoint, ServerSettings
from tools.gguf import write_gguf

httpx = pytest.importorskip("httpx")

pytestmark = pytest.mark.servers

QUESTION = "Who governed Ruvorkreth?"


@pytest.fixture(scope="module")
def llama_server(language_model_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of this module alone, which is asked for several answers at a time."""
    with own_llama_server(language_model_gguf, tmp_path_factory) as url:
        yield url


@pytest.fixture(scope="module")
def reference() -> tuple[list[int], np.ndarray]:
    """Token ids of a prompt and three tokens, and transformers' log-probabilities of what follows each."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = language_model_dir()
    chat = [{"role": "user", "content": QUESTION}]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        ids = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=3)[0]
        logits = model(ids[None]).logits[0, len(prompt) - 1 :].double()
    return ids.tolist(), torch.log_softmax(logits, -1).numpy()


def ask(url: str, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, timeout=60)


def test_log_probabilities_of_the_whole_vocabulary_are_those_of_transformers(
    llama_server: str, reference: tuple[list[int], np.ndarray]
) -> None:
    ids, expected = reference
    prompt = len(ids) - 3
    for drawn in range(4):
        body = {"prompt": ids[: prompt + drawn], "max_tokens": 1, "temperature": 0, "logprobs": 3072}
        entry = ask(llama_server, "/completions", **body).json()["choices"][0]["logprobs"]["content"][0]
        got = {token["id"]: token["logprob"] for token in entry["top_logprobs"]}
        assert [got[i] for i in range(3072)] == pytest.approx(expected[drawn], abs=1e-3)


def test_the_chat_is_encoded_as_transformers_does(
    llama_server: str, reference: tuple[list[int], np.ndarray]
) -> None:
    host, messages = llama_server.removesuffix("/v1"), [{"role": "user", "content": QUESTION}]
    text = ask(host, "/apply-template", messages=messages).json()["prompt"]
    ids = ask(host, "/tokenize", content=text, parse_special=True).json()
    assert ids["tokens"] == reference[0][:-3]


#: Every request states that nothing is cut.
WHOLE = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def chat_reply(url: str, **body: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    reply = ask(url, "/chat/completions", messages=messages, logprobs=True, **{**WHOLE, **body})
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    return found


def test_a_token_that_is_half_a_character_has_no_entry_and_the_reply_is_read_as_incomplete(
    llama_server: str,
) -> None:
    reply = chat_reply(llama_server, max_tokens=6, top_logprobs=1, grammar='root ::= "é"')
    entries = reply["choices"][0]["logprobs"]["content"]
    assert reply["choices"][0]["message"]["content"] == "é"
    assert reply["usage"]["completion_tokens"] == 3  # two bytes and the end of turn
    assert [entry["bytes"] for entry in entries] == [[195, 169], []]
    (choice,) = parse_choices(reply)
    assert not choice.complete


def test_the_probe_finds_out_what_llama_cpp_does(llama_server: str) -> None:
    with ServerClient(Endpoint(llama_server), ServerSettings()) as client:
        found = probe(client)
        assert client.usage.requests < 300
    assert found == ServerProfile(
        llama_server,
        "atlas",
        "llama.cpp",
        found.version,
        max_length=1024,
        vocabulary=3072,
        total_slots=4,
        max_n=4,
        choices_differ=True,
        log_probs="raw",
        scaled_on_request=True,
        top_log_probs=3072,
        whole_vocabulary=True,
        forced_raw=True,
        token_ids_in=True,
        token_ids_out=True,
        end_included=True,
        prefix_cached=True,
    )


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("config.json", {"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ("config.json", {"attention_bias": True}, "attention_bias"),
        ("config.json", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e5}}, "llama3"),
        ("tokenizer.json", {"model": {"type": "Unigram"}}, "Unigram"),
    ],
)
def test_a_checkpoint_that_would_be_written_wrongly_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], named: str
) -> None:
    folder = shutil.copytree(language_model_dir(), tmp_path / "model")
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **change}))
    with pytest.raises(SystemExit, match=named):
        write_gguf(folder, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
