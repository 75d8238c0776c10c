"""Write a Llama checkpoint with byte-level BPE as a GGUF of float32, which llama.cpp reads.

    python -m tools.gguf DIR OUT.gguf            # DIR: a Hugging Face directory, such as the embedded model
    python -m tools.gguf src/semcal/demo/language_model atlas.gguf

llama.cpp splits a text into pieces before BPE by named patterns, none of which takes digits in pairs as the
embedded model does. With `--pre gpt-2`, words have the same tokens as in transformers, but long numbers may
have others; send token ids if that matters.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

#: Names in a checkpoint and in a GGUF.
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(folder: Path, out: Path, *, pre: str = "gpt-2") -> None:
    """Write the checkpoint in a folder as a GGUF of float32.

    Parameters
    ----------
    folder : Path
        Folder with config.json, tokenizer.json, model.safetensors and optionally chat_template.jinja.
    out : Path
        The file, which is replaced.
    pre : str
        llama.cpp's name of the pattern that splits a text before BPE.

    Raises
    ------
    SystemExit
        If the model is not a Llama, or its tokens are not byte-level BPE; the message names the type.
    """
    config, tokenizer = (_read(folder / name) for name in ("config.json", "tokenizer.json"))
    _check(folder, config, tokenizer)
    writer = gguf.GGUFWriter(out, "llama")
    _add_shape(writer, folder.name, config)
    _add_tokens(writer, config, tokenizer, pre)
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))
    for name, values in _tensors(folder, config):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SystemExit(f"{path}: missing. Pass the folder of a Hugging Face checkpoint.")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _check(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Reject checkpoints that are not supported."""
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture != "LlamaForCausalLM":
        raise SystemExit(
            f"{folder}: the architecture is {architecture}, expected LlamaForCausalLM. For others, use "
            "convert_hf_to_gguf.py of llama.cpp."
        )
    biased = [name for name in ("attention_bias", "mlp_bias") if config.get(name)]
    rope = _rope(config)
    if biased or rope.get("rope_type", "default") != "default":
        what = biased[0] if biased else f"rope_type {rope['rope_type']!r}"
        raise SystemExit(f"{folder}: {what} is not supported. Use convert_hf_to_gguf.py of llama.cpp.")
    kind = tokenizer["model"]["type"]
    if (
        kind != "BPE"
        or tokenizer["model"].get("byte_fallback")
        or (tokenizer["decoder"] or {}).get("type") != "ByteLevel"
    ):
        raise SystemExit(
            f"{folder}: the tokens are {kind}, not byte-level BPE. Use convert_hf_to_gguf.py of llama.cpp."
        )


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions, as transformers 5 or 4 writes them."""
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_theta": config.get("rope_theta", 10000.0), **rope}


def _add_shape(writer: Any, name: str, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(_rope(config)["rope_theta"]))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_tokens(writer: Any, config: dict[str, Any], tokenizer: dict[str, Any], pre: str) -> None:
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    control = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    text_of = {number: text for text, number in {**tokenizer["model"]["vocab"], **added}.items()}
    numbers = range(config["vocab_size"])
    kinds = gguf.TokenType
    types = [
        kinds.CONTROL if i in control else kinds.NORMAL if i in text_of else kinds.UNUSED for i in numbers
    ]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([text_of.get(i, f"[unused {i}]") for i in numbers])
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for key in ("bos", "eos", "pad"):
        number = config.get(f"{key}_token_id")
        if number is not None:
            getattr(writer, f"add_{key}_token_id")(number[0] if isinstance(number, list) else number)
    writer.add_add_bos_token(False)  # the chat template writes it
    writer.add_add_eos_token(False)


def _tensors(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each tensor with its name in a GGUF; a tied head is left out."""
    heads = config["num_attention_heads"]
    rows = {"attn_q": heads, "attn_k": config.get("num_key_value_heads") or heads}
    for name, stored in load_file(folder / "model.safetensors").items():
        values = stored.astype(np.float32)
        if name in WHOLE:
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            yield WHOLE[name], values
            continue
        _, _, layer, rest = name.split(".", 3)
        kind = LAYER[rest.removesuffix(".weight")]
        yield f"blk.{layer}.{kind}.weight", _interleaved(values, rows[kind]) if kind in rows else values


def _interleaved(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return the rows of each head, (first half, second half), in pairs, as llama.cpp rotates them."""
    halves = values.reshape(heads, 2, -1, values.shape[1])  # (head, half, row, column)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tools.gguf", description="Write a checkpoint as a GGUF.")
    parser.add_argument("folder", type=Path, help="Hugging Face directory of a Llama with byte-level BPE")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--pre", default="gpt-2", help="name of the pattern that splits a text before BPE")
    options = parser.parse_args()
    write_gguf(options.folder, options.out, pre=options.pre)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
