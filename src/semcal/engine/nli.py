"""Entailment by a cross-encoder: any sequence-classification checkpoint with a label "entailment".

Both sides of a pair read "Question: x\\nAnswer: y" (spec section 5, point 4); the verdict is the argmax.
Float32 throughout, on every device: half precision moves logits by far more than `CLOSE`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForSequenceClassification

from semcal.engine.equivalence import Triple
from semcal.engine.first_token import first_token_only
from semcal.engine.loading import choose_device, files_hash, in_words, read_checkpoint, read_config
from semcal.engine.pair_tokens import encoded_whole, pair_tokens_of
from semcal.errors import ModelError, SemcalWarning, shown
from semcal.hub_names import NLI_MODEL, locate

__all__ = ["CrossEncoder"]

#: A margin below this is decided by the pair run alone, so that no batch's company can flip a verdict.
CLOSE = 1e-4
#: Tokens in a batch, padding included.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}

#: One encoded pair: input_ids, attention_mask and whatever else the tokenizer gives, without padding.
Encoded = dict[str, list[int]]


class CrossEncoder:
    """Directed entailment as a sequence-classification model sees it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With a sequence-classification head, in float32.
    tokenizer : transformers.PreTrainedTokenizerBase
        Encodes the two sides as a pair, as the model was trained.
    name, revision : str
        What the verdicts are filed under.

    Attributes
    ----------
    truncated : int
        Pairs so far that were too long for the model and lost the beginning of their question.

    Raises
    ------
    ModelError
        If no label, or more than one, is called "entailment", or there is no padding token.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str, revision: str) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError(
                f"{name}: the tokenizer has no padding token; set pad_token in tokenizer_config.json"
            )
        tokenizer.truncation_side = "left"  # the answers stand at the end and must stay whole
        self.name = name
        self.revision = revision
        self.truncated = 0
        self._entailment = entailment_index(model.config.id2label, name=name)
        self._model = first_token_only(model.eval().requires_grad_(False))
        self._tokenizer = tokenizer
        self._pairs = pair_tokens_of(tokenizer)
        self._longest = _longest_input(model, tokenizer)

    @classmethod
    def from_pretrained(
        cls, name_or_dir: str | Path, *, device: str | None = None, revision: str | None = None
    ) -> Self:
        """Load a checkpoint from a directory or the hub.

        Parameters
        ----------
        name_or_dir : str or Path
            Directory or hub id; "atlas" is the one that comes with the package.
        device : str, optional
            "cpu", "cuda", …; by default a GPU if there is one.
        revision : str, optional
            Commit, tag or branch of a hub id.

        Raises
        ------
        ModelError
            If it cannot be loaded, has no trained classification head, or does not name its labels.
        """
        where = choose_device(device)
        place = locate(name_or_dir, NLI_MODEL, revision=revision)
        source, name = place.source, place.name
        what = f"cannot load the NLI model {name!r}"
        read_config(what, place, revision)
        tokenizer, model, report = read_checkpoint(
            what, place, revision, kind=AutoModelForSequenceClassification, dtype=torch.float32
        )
        if report["missing_keys"]:
            raise ModelError(
                f"{what}: the files lack {', '.join(sorted(report['missing_keys']))}; "
                "give a checkpoint that was fine-tuned as a sequence classifier on natural language inference"
            )
        found = files_hash(Path(source)) if Path(source).is_dir() else str(model.config._commit_hash)
        rows = model.get_input_embeddings().num_embeddings
        beyond = [token for token in tokenizer.all_special_tokens if tokenizer.vocab.get(token, 0) >= rows]
        if beyond:
            raise ModelError(
                f"{what}: its tokenizer has {shown(beyond[0])} beyond the {rows} tokens that the model "
                "knows; the two do not belong together"
            )
        with in_words(what, source):
            return cls(model.to(where), tokenizer, name=name, revision=found)

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each (question, premise, hypothesis) whether the premise entails the hypothesis.

        Raises
        ------
        ModelError
            If the model's logits are not finite.
        """
        encoded = self._encode(triples)
        margins = [0.0] * len(encoded)
        for batch in _batches(encoded, BATCH_TOKENS.get(self._model.device.type, 2048)):
            for index, margin in zip(batch, self._margins([encoded[i] for i in batch])):
                margins[index] = margin
        for index, margin in enumerate(margins):
            if abs(margin) < CLOSE:
                (margins[index],) = self._margins([encoded[index]])
        return [margin > 0 for margin in margins]

    def _encode(self, triples: Sequence[Triple]) -> list[Encoded]:
        """Token ids of each pair, cut to what the model can read; says once that it had to cut."""
        if not triples:
            return []
        sides = [(_side(q, a), _side(q, b)) for q, a, b in triples]
        encoded = self._tokenize(sides)
        long = [i for i, pair in enumerate(encoded) if len(pair["input_ids"]) > self._longest]
        if long and not self.truncated:
            warnings.warn(
                f"{self.name} reads at most {self._longest} tokens: of longer pairs the beginning of the "
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
        """Encode pairs by their sides, or by the model's own tokenizer where that is not the same."""
        if self._pairs is not None:
            return self._pairs.encode(sides, longest=longest)
        cut = {} if longest is None else {"truncation": "longest_first", "max_length": longest}
        return encoded_whole(self._tokenizer, sides, **cut)

    @torch.inference_mode()
    def _margins(self, pairs: Sequence[Encoded]) -> list[float]:
        """Entailment logit less the best other, of pairs run in one batch."""
        logits = self._model(**self._padded(pairs)).logits.float().cpu()  # (B, labels)
        if not torch.isfinite(logits).all():
            raise ModelError(f"{self.name} gives logits that are not finite; are its weights damaged?")
        entailment = logits[:, self._entailment].clone()
        logits[:, self._entailment] = -torch.inf
        margins: list[float] = (entailment - logits.amax(dim=1)).tolist()
        return margins

    def _padded(self, pairs: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        """Equal lengths by padding on the right, as tensors (B, longest) on the model's device."""
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
    """Return the index of the label "entailment", in whatever case it is written.

    Parameters
    ----------
    id2label : dict of int to str
        As in the checkpoint's config.json.
    name : str
        The model's name, for the message.

    Raises
    ------
    ModelError
        If there is not exactly one such label, or no other label beside it.

    Examples
    --------
    >>> entailment_index({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}, name="some-mnli")
    2
    >>> entailment_index({0: "not_entailment", 1: "entailment"}, name="some-rte")
    1
    """
    found = [int(index) for index, label in id2label.items() if label.strip().lower() == "entailment"]
    if len(found) == 1 and len(id2label) > 1:
        return found[0]
    raise ModelError(
        f"{name} does not say which of its labels is entailment: id2label is {dict(id2label)}. "
        'Set id2label in its config.json, for instance {"0": "contradiction", "1": "neutral", '
        '"2": "entailment"}, in the order in which it was trained.'
    )


def _side(question: str, answer: str) -> str:
    return f"Question: {question.strip()}\nAnswer: {answer}"


def _batches(encoded: Sequence[Encoded], budget: int) -> Iterator[list[int]]:
    """Indices of pairs of like length, longest first, each batch within a budget of padded tokens."""
    lengths = [len(pair["input_ids"]) for pair in encoded]
    order = sorted(range(len(encoded)), key=lambda index: -lengths[index])
    while order:
        size = max(1, budget // lengths[order[0]])
        yield order[:size]
        order = order[size:]


def _longest_input(model: Any, tokenizer: Any) -> int:
    """Tokens that the model can read: what tokenizer, config and position table all allow."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return int(min(limit for limit in limits if limit and limit > 0))
