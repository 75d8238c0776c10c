"""Entailment by a cross-encoder: any sequence-classification checkpoint with a label "entailment".

Both sides of a pair are "Question: x\\nAnswer: y" (spec section 5, point 4); the verdict is the argmax. All
devices use float32, because half precision changes logits by far more than `CLOSE`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from semcal.errors import ModelError, SemcalWarning
from semcal.models.equivalence import Triple, rounded, side_of

#: A pair with a smaller margin runs again in its own batch, so that batching cannot change a verdict.
CLOSE = 1e-4
#: Tokens in a batch, padding included.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}

#: One encoded pair: input_ids, attention_mask and other columns of the tokenizer, without padding.
Encoded = dict[str, list[int]]


class CrossEncoder:
    """Directed entailment by a sequence-classification model of transformers, in float32.

    ModelError unless exactly one label is "entailment", or if the padding token is missing.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str, revision: str) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError(
                f"{name}: the tokenizer has no padding token. Set pad_token in tokenizer_config.json"
            )
        tokenizer.truncation_side = "left"  # the answers are at the end and must stay whole
        self.name = self.address = name
        self.revision = revision
        self._truncated = False
        self._entailment = entailment_index(model.config.id2label, name=name)
        self._model = model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self._longest = _longest_input(model, tokenizer)

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each (question, premise, hypothesis) True if the premise entails the hypothesis."""
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return for each triple the logit of entailment minus the largest other logit, rounded.

        ModelError if the logits of the model are not finite.
        """
        encoded = self._encode(triples)
        margins = [0.0] * len(encoded)
        for batch in _batches(encoded, BATCH_TOKENS.get(self._model.device.type, 2048)):
            for index, margin in zip(batch, self._margins([encoded[i] for i in batch])):
                margins[index] = margin
        for index, margin in enumerate(margins):
            if abs(margin) < CLOSE:
                (margins[index],) = self._margins([encoded[index]])
        return [rounded(margin) for margin in margins]

    def _encode(self, triples: Sequence[Triple]) -> list[Encoded]:
        """Encode each pair, truncated to the maximum length of the model; warn at the first truncation."""
        if not triples:
            return []
        sides = [(side_of(q, a), side_of(q, b)) for q, a, b in triples]
        encoded = self._tokenize(sides)
        long = [i for i, pair in enumerate(encoded) if len(pair["input_ids"]) > self._longest]
        if long and not self._truncated:
            self._truncated = True
            warnings.warn(
                f"{self.name} reads at most {self._longest} tokens: in longer pairs the beginning of the "
                f"question is cut ({len(long)} of {len(triples)} pairs here)",
                SemcalWarning,
                stacklevel=3,
            )
        shortened = self._tokenize([sides[i] for i in long], longest=self._longest) if long else []
        for index, pair in zip(long, shortened):
            encoded[index] = pair
        return encoded

    def _tokenize(self, sides: Sequence[tuple[str, str]], *, longest: int | None = None) -> list[Encoded]:
        """Return the unpadded columns of each pair; beyond `longest` the longer side loses its beginning."""
        firsts, seconds = [first for first, _ in sides], [second for _, second in sides]
        columns = self._tokenizer(
            firsts,
            seconds,
            truncation=False if longest is None else "longest_first",
            max_length=longest,
            split_special_tokens=True,  # special tokens in answers are text
        )
        return [dict(zip(columns.keys(), values)) for values in zip(*columns.values())]

    @torch.inference_mode()
    def _margins(self, pairs: Sequence[Encoded]) -> list[float]:
        """Return the entailment logit minus the largest other logit of each pair in one batch."""
        logits = self._model(**self._padded(pairs)).logits.float().cpu()  # (B, labels)
        if not torch.isfinite(logits).all():
            raise ModelError(f"{self.name}: its logits are not finite. Check its weights")
        entailment = logits[:, self._entailment].clone()
        logits[:, self._entailment] = -torch.inf
        margins: list[float] = (entailment - logits.amax(dim=1)).tolist()
        return margins

    def _padded(self, pairs: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        fill = {
            "input_ids": self._tokenizer.pad_token_id,
            "token_type_ids": self._tokenizer.pad_token_type_id,
        }
        width = max(len(pair["input_ids"]) for pair in pairs)
        return {
            key: torch.tensor(
                [pair[key] + [fill.get(key, 0)] * (width - len(pair[key])) for pair in pairs],
                device=self._model.device,
            )
            for key in pairs[0]
        }


def entailment_index(id2label: dict[int, str], *, name: str) -> int:
    """Return the index of the label "entailment" in a checkpoint's id2label, in upper or lower case.

    ModelError unless exactly one label is "entailment" and other labels exist.

    >>> entailment_index({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}, name="some-mnli")
    2
    >>> entailment_index({0: "not_entailment", 1: "entailment"}, name="some-rte")
    1
    """
    indices = [int(index) for index, label in id2label.items() if label.strip().lower() == "entailment"]
    if len(indices) == 1 and len(id2label) > 1:
        return indices[0]
    raise ModelError(
        f"{name}: id2label is {dict(id2label)}, expected one label entailment among others. Set id2label in "
        'its config.json in the order of the training, for example {"0": "contradiction", "1": "neutral", '
        '"2": "entailment"}'
    )


def _batches(encoded: Sequence[Encoded], budget: int) -> Iterator[list[int]]:
    """Yield batches of indices of pairs, longest first; a batch has at most `budget` padded tokens."""
    lengths = [len(pair["input_ids"]) for pair in encoded]
    order = sorted(range(len(encoded)), key=lambda index: -lengths[index])
    while order:
        size = max(1, budget // lengths[order[0]])
        yield order[:size]
        order = order[size:]


def _longest_input(model: Any, tokenizer: Any) -> int:
    """Return the maximum tokens of the model: the minimum limit of tokenizer, config and position table."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return int(min(limit for limit in limits if limit and limit > 0))
