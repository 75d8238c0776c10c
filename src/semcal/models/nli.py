"""Entailment by a cross-encoder: any sequence-classification checkpoint with a label "entailment".

Both sides of a pair are "Question: x\\nAnswer: y" (spec section 5, point 4); the verdict is the argmax. All
devices use float32, because half precision changes logits by far more than `CLOSE`.

The classification heads of BERT and similar models read only the first token. Therefore the last layer
computes, beyond keys and values, only that token. Of L layers, this saves about 1/L of the work.

The answers to a question form many pairs of few sides. A fast tokenizer encodes each side once, and its
post-processor adds the special tokens and segment ids of a pair.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from semcal.errors import ModelError, SemcalWarning
from semcal.models.chat_format import SpecialTokens
from semcal.models.equivalence import Triple, rounded, side_of
from semcal.text import cache_texts

#: A pair with a smaller margin runs again in its own batch, so that batching cannot change a verdict.
CLOSE = 1e-4
#: Tokens in a batch, padding included.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}

#: One encoded pair: input_ids, attention_mask and other columns of the tokenizer, without padding.
Encoded = dict[str, list[int]]

_MAX_SIDES = 8192  # cached encodings
#: Columns that a tokenizer may return for a pair, and their names in its library.
_COLUMNS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
_TEST_PAIRS = (
    ("Question: who?\nAnswer: the 2nd man", "Question: who?\nAnswer: Ana-Lisa's"),
    ("", " a  b "),
    ("Ünïcode, 1.5 %\n", "x" * 40),
)
#: Maximum difference of logits, relative to the largest, of an equivalent shortened classifier.
_SAME = 1e-4
#: Length and number of the test inputs of that comparison; the second half of the last input is padding.
_TOKENS, _INPUTS = 12, 4
#: Getter of the attributes that a layer must have.
_LAYOUT = attrgetter(
    *(f"attention.self.{part}" for part in ("query", "key", "value", "num_attention_heads")),
    *("attention.self.attention_head_size", "attention.output", "intermediate", "output"),
)


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
        self.truncated = 0  # number of pairs that were too long and lost the beginning of their question
        self._entailment = entailment_index(model.config.id2label, name=name)
        self._model = first_token_only(model.eval().requires_grad_(False))
        self._tokenizer = tokenizer
        self._pair_encoder = pair_encoder_for(tokenizer)
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
        if long and not self.truncated:
            warnings.warn(
                f"{self.name} reads at most {self._longest} tokens: in longer pairs the beginning of the "
                f"question is cut ({len(long)} of {len(triples)} pairs here)",
                SemcalWarning,
                stacklevel=3,
            )
        self.truncated += len(long)
        shortened = self._tokenize([sides[i] for i in long], longest=self._longest) if long else []
        for index, pair in zip(long, shortened):
            encoded[index] = pair
        return encoded

    def _tokenize(self, sides: Sequence[tuple[str, str]], *, longest: int | None = None) -> list[Encoded]:
        if self._pair_encoder is not None:
            return self._pair_encoder.encode(sides, longest=longest)
        return encode_pairs(self._tokenizer, sides, longest=longest)

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


class FirstTokenLayer(nn.Module):
    """A BERT-style encoder layer that computes only the first token."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Tensor:
        """Map (B, L, d) to (B, 1, d); the mask may be bool or added to the scores, (B, 1, 1 or L, L)."""
        layer, attention = self.layer, self.layer.attention.self
        first = hidden_states[:, :1]
        split = (attention.num_attention_heads, attention.attention_head_size)
        query = attention.query(first).unflatten(2, split).transpose(1, 2)
        key = attention.key(hidden_states).unflatten(2, split).transpose(1, 2)
        value = attention.value(hidden_states).unflatten(2, split).transpose(1, 2)
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        output = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = layer.attention.output(output.transpose(1, 2).flatten(2), first)
        read: Tensor = layer.output(layer.intermediate(attended), attended)
        return read


def first_token_only(model: Any) -> Any:
    """Return the classifier with a `FirstTokenLayer` at the end, or `model` if that is not possible.

    Both must have equal logits for test inputs. A model with another layout, or with a head that reads other
    tokens, is returned unchanged. The weights are shared.
    """
    try:
        shortened = _shortened(model)
    except AttributeError:  # another layout
        return model
    expected = _test_logits(model)
    try:
        logits = _test_logits(shortened)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # layers have other arguments
        return model
    if logits.shape != expected.shape:
        return model
    agrees = bool((expected - logits).abs().max() <= _SAME * expected.abs().max())
    return shortened if agrees else model


def _shortened(model: Any) -> Any:
    classifier = copy.copy(model)
    classifier._modules = dict(model._modules)
    layers = _copy_part(_copy_part(_copy_part(classifier, model.base_model_prefix), "encoder"), "layer")
    _LAYOUT(layers[-1])
    layers._modules[str(len(layers) - 1)] = FirstTokenLayer(layers[-1])
    return classifier


def _copy_part(parent: Any, name: str) -> Any:
    part = copy.copy(getattr(parent, name))
    part._modules = dict(part._modules)
    parent._modules[name] = part
    return part


@torch.inference_mode()
def _test_logits(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (_INPUTS, _TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, _TOKENS // 2 :] = 0
    device = model.device
    logits: Tensor = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
    return logits.float()


def pair_encoder_for(tokenizer: Any) -> PairEncoder | None:
    """Return a pair encoder; None if its columns differ from those of the tokenizer."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    expected = encode_pairs(tokenizer, _TEST_PAIRS)
    if not set(expected[0]) <= set(_COLUMNS):
        return None
    encoder = PairEncoder(tokenizer, tuple(expected[0]))
    return encoder if encoder.encode(_TEST_PAIRS) == expected else None


def encode_pairs(
    tokenizer: Any, pairs: Sequence[tuple[str, str]], *, longest: int | None = None
) -> list[Encoded]:
    """Return the columns of the tokenizer for each pair, truncated to `longest` tokens."""
    sides = [a for a, _ in pairs], [b for _, b in pairs]
    truncation = None if longest is None else "longest_first"
    columns = tokenizer(
        *sides, verbose=False, split_special_tokens=True, truncation=truncation, max_length=longest
    )
    return [dict(zip(columns.keys(), values)) for values in zip(*columns.values())]


class PairEncoder:
    """An encoder of pairs with cached sides; `names` are the columns of the tokenizer."""

    def __init__(self, tokenizer: Any, names: tuple[str, ...]) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._names = names
        self._special_tokens = SpecialTokens(tokenizer)
        self._side = cache_texts(_MAX_SIDES)(self._encoded)

    def encode(self, pairs: Sequence[tuple[str, str]], *, longest: int | None = None) -> list[Encoded]:
        """Return the unpadded columns of each pair; beyond `longest` the longer side loses its beginning."""
        self._backend.no_truncation()
        self._backend.no_padding()
        sides = [(self._side(first), self._side(second)) for first, second in pairs]
        if longest is not None:
            self._backend.enable_truncation(longest, strategy="longest_first", direction="left")
        columns = []
        for first, second in sides:
            pair = self._backend.post_process(first, second)
            columns.append({name: getattr(pair, _COLUMNS[name]) for name in self._names})
        return columns

    def _encoded(self, text: str) -> Any:
        plain = self._special_tokens.encode(text)
        return self._backend.encode(text, add_special_tokens=False) if plain is None else plain
