"""llama.cpp's server with the embedded language model: what it answers, and what to beware of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from semcal.demo.paths import language_model_dir
from tools.gguf import write_gguf

httpx = pytest.importorskip("httpx")

pytestmark = pytest.mark.servers

QUESTION = "Who governed Ruvorkreth?"


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
    messages = [{"role": "user", "content": QUESTION}]
    text = ask(llama_server.removesuffix("/v1"), "/apply-template", messages=messages).json()["prompt"]
    ids = ask(llama_server.removesuffix("/v1"), "/tokenize", content=text, parse_special=True).json()
    assert ids["tokens"] == reference[0][:-3]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("architectures", ["Qwen2ForCausalLM"], "Qwen2ForCausalLM, expected LlamaForCausalLM"),
        ("attention_bias", True, "attention_bias"),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e5}, "rope_type 'llama3'"),
    ],
)
def test_a_checkpoint_that_would_be_written_wrongly_is_refused(
    tmp_path: Path, key: str, value: object, reason: str
) -> None:
    folder = shutil.copytree(language_model_dir(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(SystemExit, match=reason):
        write_gguf(folder, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_tokens_that_are_not_bytes_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(language_model_dir(), tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["type"] = "Unigram"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SystemExit, match="the tokens are Unigram, not byte-level BPE"):
        write_gguf(folder, tmp_path / "model.gguf")
