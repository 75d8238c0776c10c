"""The small language model of Atlas: its tokenizer, its chat template, its shape, and how it is saved.

A Llama of about 3.5 million parameters (or a Qwen2 or Mistral of that size), with a byte-level BPE whose
words carry their leading blank. In a chat every message stands after one blank too, so that a name is the
same tokens in a statement, in a question and at the start of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from semcal.data.question import Turn
from tools.atlas.copying import start_copying

PAD, BOS, END = "<pad>", "<s>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
VOCABULARY = 3072
#: Architectures, and what their configs need so that all of the context is attended to.
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {"use_sliding_window": False}),
    "mistral": (MistralConfig, {"sliding_window": None}),
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message.role }}|> {{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Words and numbers take a leading blank; digits go in pairs, so that a year is a century and the rest.
_PIECES = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+"


def train_tokenizer(lines: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the byte-level BPE from lines of text, and dress it with special tokens and chat template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def render(turns: Sequence[Turn]) -> str:
    """Write a whole chat as the chat template does, answers included."""
    return BOS + "".join(f"<|{turn.role}|> {turn.content}{END}" for turn in turns)


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int, shape: str = "llama") -> PreTrainedModel:
    """Make the model with fresh weights drawn from a seed; the global generator is left as it was."""
    kind, more = SHAPES[shape]
    config = kind(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 200_000.0},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **more,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return start_copying(AutoModelForCausalLM.from_config(config, dtype=torch.float32), seed)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer as a plain Hugging Face directory in float16; the model stays as it is."""
    half = type(model)(model.config).half()
    half.load_state_dict({name: tensor.half() for name, tensor in model.state_dict().items()})
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    written = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(written, indent=2) + "\n")  # the name that all versions know


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Read what `save` wrote, the weights in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)
