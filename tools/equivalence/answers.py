"""Train the encoder of answers: `python -m tools.equivalence.answers DATA OUT MINILM [--steps N] [--seed N]`.

A small network maps an answer alone to a vector. Answers without a common word whose vectors are far apart
are taken to differ, and the pair is not read. It begins with MiniLM's embeddings of words in fewer
dimensions, and learns from the pairs without a common word and from answers of other pairs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize
from transformers import BertConfig, BertModel

from semcal.models.equivalence import share_no_word
from tools.equivalence import train
from tools.equivalence.pairs import Pair, Pairs

WIDTH, LAYERS, HEADS, INNER = 128, 2, 4, 512
#: Tokens of an answer that are read.
LONGEST = 62
BATCH = 128
RATE = 1e-3
WARM_UP = 100
#: How much more a pair that means the same counts than one that does not, and than answers of other pairs.
SAME, OTHER = 3.0, 0.5
TELL = 200


class Answers(torch.nn.Module):
    """Tokens of answers to vectors of length one, the mean of the last states."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=LONGEST + 2,
            attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.05,
        )
        self.encoder = BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map ids and mask, each (B, L), to vectors (B, d)."""
        mask = torch.ones_like(ids) if mask is None else mask
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return normalize((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)


def begin(words: Tensor) -> Answers:
    """Return a network whose embeddings of words are the first principal components of MiniLM's (V, d)."""
    network = Answers()
    centered = words - words.mean(0)
    _, _, components = torch.pca_lowrank(centered, q=WIDTH, niter=4)
    table = centered @ components
    embeddings = network.encoder.embeddings
    embeddings.word_embeddings.weight.data = table / table.std() * 0.05
    embeddings.token_type_embeddings.weight.data.zero_()
    return network


def load(path: Path) -> Answers:
    """Return the network that `train_answers` wrote."""
    network = Answers()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tensor]:
    """Return the ids (1, L) of each text."""
    start, end = tokenizer.encode("").ids  # [CLS] and [SEP]
    found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [torch.tensor([[start, *one.ids[:LONGEST], end]]) for one in found]


@torch.inference_mode()
def cosines(network: Answers, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """Return the cosine of the two answers of each pair."""
    sides = (
        [network(ids)[0] for ids in encode(tokenizer, texts)]
        for texts in zip(*((p.first, p.second) for p in pairs))
    )
    one, other = (torch.stack(side) for side in sides)
    return (one * other).sum(1).double().numpy()


def train_answers(data: Path, out: Path, minilm: Path, *, steps: int, seed: int) -> None:
    """Write answers.pt into `out`."""
    torch.manual_seed(seed)
    large, tokenizer = train.load(minilm)
    pairs = Pairs(data, lambda texts: train.embed(large.encoder, tokenizer, texts))
    network = begin(large.encoder.embeddings.word_embeddings.weight.detach())
    line = torch.nn.Parameter(torch.tensor([8.0, -3.0]))  # a logit from a cosine
    trained = [*network.parameters(), line]
    optimizer = torch.optim.AdamW(
        [{"params": trained[:-1], "rate": RATE}, {"params": [line], "rate": 10 * RATE}], weight_decay=0.01
    )
    found: list[Pair] = []
    part, losses, begun = 0, [], time.monotonic()
    for step in range(steps):
        while len(found) < BATCH:
            stream = pairs.stream(seed + 77, part, 8 * BATCH)
            found += [pair for pair in stream if share_no_word(pair.first, pair.second)]
            part += 1
        batch, found = found[:BATCH], found[BATCH:]
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
        ids = encode(tokenizer, [text for pair in batch for text in (pair.first, pair.second)])
        tokens, _, mask = train.padded([(one[0].tolist(), one.shape[1]) for one in ids])
        vectors = network(tokens, mask)
        logits = line[0] * (vectors[::2] @ vectors[1::2].T) + line[1]
        same = torch.tensor([float(pair.same) for pair in batch])
        others = logits[~torch.eye(BATCH, dtype=torch.bool)]
        loss = binary_cross_entropy_with_logits(logits.diagonal(), same, pos_weight=torch.tensor(SAME))
        loss = loss + OTHER * binary_cross_entropy_with_logits(others, torch.zeros_like(others))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % TELL == 0:
            told = f"loss {np.mean(losses[-TELL:]):.4f}, {time.monotonic() - begun:.0f} s"
            train.say(out, f"answers, step {step + 1}: {told}")
    torch.save(network.state_dict(), out / "answers.pt")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "out", "minilm"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train_answers(given.data, given.out, given.minilm, steps=given.steps, seed=given.seed)


if __name__ == "__main__":
    main()
