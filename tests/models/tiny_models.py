"""Tiny random checkpoints with a BPE tokenizer trained in code, for tests that need a real directory."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

FAMILIES = ("llama", "mistral", "qwen2", "gpt2")
SPECIAL = ["<pad>", "<s>", "</s>", "<|turn|>", "<|end|>"]

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
TEMPLATE_IN_BRACKETS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} {{ message['content'] }}</s>"
    "{% else %}[INST] {{ message['content'] }} [/INST]{% endif %}{% endfor %}"
)
TEMPLATE_WITHOUT_SYSTEM = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
TEMPLATES: dict[str, str | None] = {
    "plain text": None,
    "marks": TEMPLATE,
    "brackets": TEMPLATE_IN_BRACKETS,
    "refuses system": TEMPLATE_WITHOUT_SYSTEM,
    "drops system": TEMPLATE.replace(
        "{% for message in messages %}",
        "{% for message in messages %}{% if message['role'] != 'system' %}",
    ).replace("{% endfor %}", "{% endif %}{% endfor %}"),
    "doubles the BOS": "{{ bos_token }}" + TEMPLATE,
    "forgets the BOS": TEMPLATE.replace("{{ bos_token }}", ""),
    "ends turns with the end of text": (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}{% endfor %}"
    ),
    "ends turns with a newline": (
        "{% for m in messages %}### {{ m['role'] }}: {{ m['content'] }}\n\n{% endfor %}"
    ),
    "ends turns with nothing": "{% for m in messages %} {{ m['role'] }}: {{ m['content'] }}{% endfor %}",
    "renders answers elsewhere": TEMPLATE.replace(
        "<|turn|>assistant\n{% endif %}", "<|turn|>assistant: {% endif %}"
    ),
    "cuts thoughts": (
        "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'].split('</think>')[-1] }}<|end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n<think>\n</think>\n{% endif %}"
    ),
}
"""The habits of chat templates, and none."""

CORPUS = [
    "Answer each question with the bare answer only, ending in a full stop.",
    "Question: Who painted the lighthouse of Orvane?\nAnswer: Mira Talso.\n\nQuestion: When was it built?",
    "Question: Which river runs through Belmar?\nAnswer: The Sull.\n\nQuestion: How many arches has it?",
    "Context: The mill of Tarn was built by Odo in 1620.\n\nQuestion: Who built the mill?\nAnswer: 1875.",
    "user assistant system Tell me yes no one two three four five six seven eight nine ten",
]


@cache
def trained_bpe() -> str:
    """A byte-level BPE of some 400 tokens, as JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return str(bpe.to_str())


def tokenizer(*, template: str | None = TEMPLATE, adds_bos: bool = False, bos: bool = True) -> Any:
    """A tokenizer with or without a chat template, a BOS, and the habit of adding it."""
    bpe = Tokenizer.from_str(trained_bpe())
    if adds_bos:
        bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=["<|turn|>", "<|end|>"],
    )
    fast.chat_template = template
    return fast


def sentencepiece_tokenizer(*, template: str | None) -> Any:
    """A tokenizer as Llama 2 has it: blanks as "▁", unknown characters as bytes, BOS added by itself."""
    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    one_blank_less = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), *one_blank_less])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False
    )
    bpe.train_from_iterator([text.replace("\n", " ") for text in CORPUS], trainer)
    content = json.loads(bpe.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are tokens like any other
    bpe = Tokenizer.from_str(json.dumps(content))
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = template
    return fast


def model(
    family: str,
    *,
    vocabulary: int = 400,
    tied: bool | None = None,
    seed: int = 0,
    limit: int = 512,
    **options: Any,
) -> Any:
    """A small random model whose distributions are far from uniform; further options go to its config."""
    extra: dict[str, dict[str, Any]] = {
        "mistral": {"sliding_window": None},
        # Eager: transformers up to 5.17 lets fused attention drop the soft-capping, and says nothing.
        "gemma2": {"head_dim": 8, "sliding_window": 512, "attn_implementation": "eager"},
        "cohere": {"logit_scale": 0.3},
        "granite": {"logits_scaling": 4.0},
        "qwen3": {"head_dim": 8},
        "opt": {"word_embed_proj_dim": 32},
    }
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": limit,
        "initializer_range": 0.2,
    }
    if family == "gpt2":
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": limit, "initializer_range": 0.2}
    if family == "opt":
        shape = {
            **shape,
            "ffn_dim": shape.pop("intermediate_size"),
            "init_std": shape.pop("initializer_range"),
        }
        del shape["num_key_value_heads"]
    config = AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=(family == "gpt2") if tied is None else tied,
        **{**shape, **extra.get(family, {}), **options},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def save(directory: Path, family: str = "llama", *, template: str | None = TEMPLATE, **options: Any) -> Path:
    """Save a tiny checkpoint with its tokenizer as a plain Hugging Face directory."""
    fast = tokenizer(template=template)
    model(family, vocabulary=len(fast), **options).save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory
