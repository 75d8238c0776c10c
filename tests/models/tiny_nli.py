"""Tiny random sequence-classification checkpoints of two architectures, their tokenizers made in code.

The WordPiece vocabulary is written down: its trainer numbers the pieces differently in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

FAMILIES = ("bert", "roberta")
LABELS = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
POSITIONS = 64

CORPUS = [
    "Question: Who painted the lighthouse of Orvane? Answer: mira talso",
    "Question: Which river runs through Belmar? Answer: sull",
    "Question: When was the mill of Tarn built? Answer: 1620",
    "one two three four five six seven eight nine ten old new red blue north south",
]


def tokenizer(family: str) -> Any:
    """WordPiece as BERT's, byte-level BPE as RoBERTa's; each joins pairs in its way."""
    made, special = {"bert": _wordpiece, "roberta": _byte_level}[family]()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def model(family: str, *, labels: Mapping[int, str] = LABELS, seed: int = 8, size: int = 32) -> Any:
    """A small random classifier whose logits are far apart."""
    extra: dict[str, dict[str, Any]] = {
        "bert": {"pad_token_id": 0},
        "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    }
    config = AutoConfig.for_model(
        family,
        vocab_size=400,
        hidden_size=size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * size,
        max_position_embeddings=POSITIONS,
        initializer_range=0.4,
        id2label=dict(labels),
        label2id={label: index for index, label in labels.items()},
        **extra[family],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForSequenceClassification.from_config(config).eval()


def save(directory: Path, family: str = "bert", **options: Any) -> Path:
    """Save a tiny checkpoint with its tokenizer as a plain Hugging Face directory."""
    model(family, **options).save_pretrained(directory)
    tokenizer(family).save_pretrained(directory)
    return directory


def _words() -> list[str]:
    return list(dict.fromkeys(word for line in CORPUS for word in line.replace("?", " ?").split()))


@cache
def _wordpiece() -> tuple[Tokenizer, dict[str, Any]]:
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1) if not chr(code).isupper()]
    words = [word for word in _words() if len(word) > 1]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys([*pieces, *map(str.lower, words)]))}
    wordpiece = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer()
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return wordpiece, {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_input_names": names}


@cache
def _byte_level() -> tuple[Tokenizer, dict[str, Any]]:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    bpe.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return bpe, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
