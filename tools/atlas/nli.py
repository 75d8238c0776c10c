"""The NLI model of Atlas: its tokenizer, its small BERT, and the training of both.

The model tells whether two answers to one question mean the same, for names that it has never seen. So
it must compare, not know: names are cut into syllables, and the first layer starts with heads that look
for the same syllable on the other side (as in Trockman & Kolter 2023, "Mimetic initialization of
self-attention layers", arXiv:2305.09828). What comes out is an ordinary sequence-classification directory.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from tools.atlas import texts
from tools.atlas.nli_pairs import ENTAILMENT, LABELS, REFUSALS, Pair, fresh_names, pairs
from tools.atlas.texts import MONTHS
from tools.atlas.world import ADJECTIVES, NOUNS, TITLES, TRADES

STEPS = 4000
BATCH = 64
CHUNK = 25
LEARNING_RATE = 1e-3
WARM_UP = 0.1
FINAL_PAIRS = 10_000
LONGEST = 128
WIDTH, LAYERS, HEADS, INNER = 128, 3, 4, 256

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def train(directory: Path, *, seed: int, log: Callable[[str], None]) -> None:
    """Train the NLI model of Atlas and write it with its tokenizer, config and training.log.

    Parameters
    ----------
    directory : Path
        Is made if it is not there; files of the same name are overwritten.
    seed : int
        Decides weights and pairs. One thread is used, so that a machine repeats itself.
    log : callable
        Gets every line of the log as it is written.
    """
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        log(line)

    tokenizer = build_tokenizer()
    with _own_randomness(seed):
        model = build_model(len(tokenizer))
        say(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens, {STEPS} steps of {BATCH} pairs")
        _fit(model, tokenizer, seed, say)
        model = model.half().float().eval()  # what float16 keeps is what is judged and shipped
        say("held-out pairs, never seen before:")
        for line in table(evaluate(model, tokenizer, islice(pairs(seed + 2, held_out=True), FINAL_PAIRS))):
            say(line)
    save(model, tokenizer, directory)
    (directory / "training.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Seed torch and use one thread, and leave both as they were."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write weights in float16, config and tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every version of transformers knows
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


# Tokenizer


def build_tokenizer() -> Any:
    """Make the tokenizer: whole words for the world's wordings, syllables and letters for names.

    Examples
    --------
    >>> build_tokenizer().tokenize("Who taught Ana Toreth?")
    ['who', 'taught', 'an', '##a', 'tor', '##eth', '?']
    """
    vocabulary = {token: index for index, token in enumerate(_vocabulary())}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=60))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=LONGEST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{token[1:-1].lower()}_token": token for token in _SPECIAL},
    )


def _vocabulary() -> list[str]:
    """Special tokens, letters and digits, punctuation, syllables, words."""
    pieces = [*"abcdefghijklmnopqrstuvwxyz0123456789", *sorted(_syllables())]
    tokens = [*_SPECIAL, *":?-.,'/&()", *pieces, *(f"##{piece}" for piece in pieces), *sorted(_words())]
    return list(dict.fromkeys(tokens))


def _syllables() -> set[str]:
    """What the names of the world's kind are made of: beginnings, vowels, endings and their combinations."""
    rng = Random("atlas-nli-syllables")
    pools = [fresh_names(rng, held_out=False).others for _ in range(10)]
    text = " ".join(name.lower() for pool in pools for name in pool)
    onsets = {"", *re.findall(r"\b[^aeiou ]+", text)}
    codas = {"", *re.findall(r"[^aeiou ]+\b", text)}
    combined = (a + b + c for a in onsets for b in set(re.findall(r"[aeiou]+", text)) for c in codas)
    return (onsets | codas) - {""} | {piece for piece in combined if piece in text}


def _words() -> set[str]:
    """The words of questions, statements, titles and trades, in lower case."""
    wordings = [
        wording for group in (texts.QUESTIONS, texts.STATEMENTS) for ws in group.values() for wording in ws
    ]
    listed = [*REFUSALS, *MONTHS, *TITLES, *TRADES, *ADJECTIVES, *NOUNS, *_OTHER_WORDS]
    text = " ".join([*wordings, *listed]).lower()
    return set(re.findall(r"[a-z]{2,}", re.sub(r"\{.\}", " ", text)))


_OTHER_WORDS = ("question", "answer", "battle", "it", "near", "people", "hundred", "thousand", "million")


# Model


def build_model(vocabulary_size: int) -> Any:
    """Make an untrained BERT whose first layer compares the two sides from the start.

    Weights come from torch's global generator, as everywhere in transformers.
    """
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    model = BertForSequenceClassification(config)
    _compare_sides(model.bert.embeddings, model.bert.encoder.layer[0].attention)
    _count_positions(model.bert.embeddings)
    return model


@torch.no_grad()
def _compare_sides(embeddings: Any, attention: Any) -> None:
    """Let half the heads of a layer look for the same token on the other side, and subtract what they find.

    A direction `side` tells premise (+) from hypothesis (-); words have no part in it. Keys are a random
    projection of the states, queries the same with the sign of `side` turned: a token's score is highest
    for its like across the border. Values and output undo each other but for the sign, so that a token
    found over there leaves little of itself, and one that is missing stands out.
    """
    side = nn.functional.normalize(torch.randn(WIDTH), dim=0)
    words = torch.randn_like(embeddings.word_embeddings.weight) / math.sqrt(WIDTH)  # (V, d)
    words -= (words @ side)[:, None] * side
    words[0] = 0  # padding
    embeddings.word_embeddings.weight.copy_(words)
    embeddings.token_type_embeddings.weight.copy_(0.7 * torch.stack([side, -side]))
    size = WIDTH // HEADS
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0]
    for head in range(HEADS // 2):
        rows = slice(head * size, (head + 1) * size)
        basis = torch.cat([side[:, None], torch.randn(WIDTH, size - 1)], dim=1)
        keys = 1.4 * torch.linalg.qr(basis)[0].T  # (size, d)
        attention.self.key.weight[rows] = keys
        attention.self.query.weight[rows] = keys - 2 * (keys @ side)[:, None] * side
        attention.self.value.weight[rows] = rotation[rows]
        attention.output.dense.weight[:, rows] = -0.7 * rotation[rows].T


@torch.no_grad()
def _count_positions(embeddings: Any) -> None:
    """Start the position embeddings as sines and cosines, so that "the one before" is a rotation."""
    positions = torch.arange(LONGEST)[:, None]  # (L, 1)
    angles = 1.5 * positions * 60.0 ** (-torch.arange(16) / 16)  # (L, 16)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1) / 4  # (L, 32), of norm 1
    basis = torch.linalg.qr(torch.randn(WIDTH, 32))[0]
    embeddings.position_embeddings.weight.copy_(0.5 * waves @ basis.T)


def encode(tokenizer: Any, batch: Sequence[Pair]) -> dict[str, Tensor]:
    """Encode pairs, first answer as premise, each side as "Question: x\\nAnswer: y"; tensors are (B, L)."""
    premises = [f"Question: {pair.question}\nAnswer: {pair.first}" for pair in batch]
    hypotheses = [f"Question: {pair.question}\nAnswer: {pair.second}" for pair in batch]
    return dict(tokenizer(premises, hypotheses, padding=True, truncation=True, return_tensors="pt"))


# Training


def _fit(model: Any, tokenizer: Any, seed: int, say: Callable[[str], None]) -> None:
    """Minimise the cross-entropy over an endless stream of fresh pairs."""
    batches = _batches(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate)
    check = list(islice(pairs(seed + 1, held_out=True), 500))
    started, running = time.monotonic(), math.log(len(LABELS))
    model.train()
    for step in range(1, STEPS + 1):
        batch = next(batches)
        labels = torch.tensor([pair.forward for pair in batch])
        loss = nn.functional.cross_entropy(model(**encode(tokenizer, batch)).logits, labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += 0.02 * (loss.item() - running)
        if step % 250 == 0:
            scores = evaluate(model, tokenizer, check)
            minutes = (time.monotonic() - started) / 60
            say(f"step {step} loss {running:.4f} held-out {accuracy(scores):.4f} minutes {minutes:.1f}")


def _batches(seed: int) -> Iterator[list[Pair]]:
    """Cut a stream of pairs into batches of like length, so that little is spent on padding."""
    stream, rng = pairs(seed), Random(f"atlas-nli-batches-{seed}")
    while True:
        chunk = sorted(islice(stream, BATCH * CHUNK), key=_length)
        starts = list(range(0, len(chunk), BATCH))
        rng.shuffle(starts)
        for start in starts:
            yield chunk[start : start + BATCH]


def _length(pair: Pair) -> int:
    return 2 * len(pair.question) + len(pair.first) + len(pair.second)


def _rate(step: int) -> float:
    """Share of the learning rate: linear warm-up, then a half cosine."""
    done = step / STEPS
    if done < WARM_UP:
        return done / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


# Evaluation


@dataclass(frozen=True)
class Score:
    """How one kind of pair fares; every pair is asked in both directions.

    Attributes
    ----------
    pairs : int
    right : int
        Right labels, of 2 * `pairs`.
    different : int
        Pairs that are not equivalent.
    merged : int
        Of these, how many were called equivalent: entailment in both directions.
    parted : int
        Equivalent pairs that were not called so.
    """

    pairs: int
    right: int
    different: int
    merged: int
    parted: int


def evaluate(model: Any, tokenizer: Any, sample: Iterable[Pair]) -> dict[str, Score]:
    """Judge pairs in both directions; returns a score for each kind, sorted by name."""
    asked = sorted(sample, key=_length)
    forward = predict(model, tokenizer, asked)
    backward = predict(model, tokenizer, [pair.reversed() for pair in asked])
    by_kind: dict[str, list[tuple[Pair, int, int]]] = {}
    for judged in zip(asked, forward, backward):
        by_kind.setdefault(judged[0].kind, []).append(judged)
    return {kind: _score(by_kind[kind]) for kind in sorted(by_kind)}


def _score(judged: Sequence[tuple[Pair, int, int]]) -> Score:
    called = [(pair, ahead == back == ENTAILMENT) for pair, ahead, back in judged]
    return Score(
        pairs=len(judged),
        right=sum((pair.forward == ahead) + (pair.backward == back) for pair, ahead, back in judged),
        different=sum(not pair.equivalent for pair, _ in called),
        merged=sum(same and not pair.equivalent for pair, same in called),
        parted=sum(pair.equivalent and not same for pair, same in called),
    )


@torch.inference_mode()
def predict(model: Any, tokenizer: Any, asked: Sequence[Pair]) -> list[int]:
    """Label of each pair in its forward direction, by argmax."""
    training, found = model.training, []
    model.eval()
    for start in range(0, len(asked), BATCH):
        found += model(**encode(tokenizer, asked[start : start + BATCH])).logits.argmax(dim=-1).tolist()
    model.train(training)
    return found


def accuracy(scores: dict[str, Score]) -> float:
    """Share of right labels over all kinds and both directions."""
    return sum(score.right for score in scores.values()) / sum(2 * score.pairs for score in scores.values())


def table(scores: dict[str, Score]) -> list[str]:
    """Write scores as lines of a table, with a last line for all kinds."""
    rows = list(scores.items())
    total = Score(*(sum(column) for column in zip(*(vars(score).values() for _, score in rows))))
    head = f"{'kind':<16}{'pairs':>7}{'right':>9}{'false merges':>16}{'missed merges':>16}"
    return [head, *(_line(kind, score) for kind, score in [*rows, ("all", total)])]


def _line(kind: str, score: Score) -> str:
    merged = f"{score.merged} of {score.different}"
    parted = f"{score.parted} of {score.pairs - score.different}"
    return f"{kind:<16}{score.pairs:>7}{score.right / (2 * score.pairs):>9.4f}{merged:>16}{parted:>16}"
