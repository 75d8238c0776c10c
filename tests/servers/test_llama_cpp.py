"""llama.cpp's server with the embedded language model: what it answers, and what to beware of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from semcal.demo.paths import language_model_dir
from semcal.servers.protocol import ServerProfile, parse_choices
from tools.gguf import write_gguf

pytestmark = pytest.mark.servers


def test_a_token_that_is_half_a_character_has_no_entry_and_the_reply_is_read_as_incomplete(
    llama_server: str,
) -> None:
    body = {"messages": [{"role": "user", "content": "Who?"}], "logprobs": True, "top_logprobs": 1}
    body |= {"max_tokens": 6, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "grammar": 'root ::= "é"'}
    reply = httpx.post(f"{llama_server}/chat/completions", json=body, timeout=60).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert reply["choices"][0]["message"]["content"] == "é"
    assert reply["usage"]["completion_tokens"] == 3  # two bytes and the end of turn
    assert [entry["bytes"] for entry in entries] == [[195, 169], []]
    (choice,) = parse_choices(reply)
    assert not choice.complete


def test_the_probe_finds_out_what_llama_cpp_does(llama_profile: ServerProfile) -> None:
    assert llama_profile == ServerProfile(
        llama_profile.url,
        "atlas",
        "llama.cpp",
        llama_profile.version,
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
