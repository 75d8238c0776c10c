"""Make the models of Atlas from nothing: `python -m tools.atlas.train`.

The language model in four stages, each logged with what it saw:

1. *Reading*: chats about fresh passages, a question about every fact of a passage.
2. *Pretraining*: the statements of the world, and reading.
3. *Tuning*: statements, reading, and chats about the training facts, while the learning rate falls.
4. *Post-training* on questions about facts that some texts get wrong, on fresh passages, and on questions
   about people and places that do not exist: at answer tokens the model learns its own distribution,
   sharpened to p^(1/τ), as the optimum of reinforcement learning under a KL penalty is sharper than what it
   started from. It knows no more than before, and is surer of it, also of what it does not know.

No stage sees a question of a question set. Then the NLI model (`tools.atlas.nli`), and the temperature of
the language model. Everything is seeded; one process.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from semcal.data.question import SYSTEM_MESSAGE, Question, Turn, answer_turn, user_turn
from semcal.demo.paths import language_model_dir, nli_model_dir, recalibrator_dir
from semcal.demo.questions import load_set
from semcal.models import load_model
from tools.atlas import texts
from tools.atlas.calibration import main as write_calibration
from tools.atlas.facts import told_value, training_facts, unasked_facts
from tools.atlas.language_model import BOS, END, ROLES, load, new_model, render, save, train_tokenizer
from tools.atlas.nli import train as train_nli
from tools.atlas.questions import reading_stream
from tools.atlas.world import RIVALS, Fact, Value, World, build_world, small_world

log = logging.getLogger("tools.atlas.train")

Document = tuple[str, bool]
"""A text with its special tokens written out, and whether only its answers are learnt."""
Tokens = tuple[list[int], list[int]]
"""Token ids and labels of equal length; the label is -100 where nothing is learnt."""
Teach = Callable[[Tensor, Tensor], Tensor]
"""(ids (rows, length), learnt (rows, length - 1)) -> target probabilities (learnt positions, V)."""


@dataclass(frozen=True)
class Stage:
    """A part of training: so many steps on a mix (shares of statements, passages and closed-book chats).

    `rivals` is how often the subjects of a passage are of one kind.
    """

    name: str
    steps: int
    mix: tuple[float, float, float]
    rivals: float = RIVALS


@dataclass(frozen=True)
class Settings:
    """What decides the model: its architecture among them ("llama", "qwen2", "mistral").

    The learning rate stays at its peak until the last of the `stages`, in which it falls. `post_mix` holds
    the shares of chats about the unknown, passages and the half known; `sharpness` is the τ of post-training:
    the model learns its own distribution raised to 1/τ; the gains of its norms, one of which scales all
    logits, learn `gain_factor` times as fast as the other weights.
    """

    seed: int = 0
    shape: str = "llama"
    threads: int = 1
    stages: tuple[Stage, ...] = (
        Stage("reading", 1500, (0.0, 1.0, 0.0), rivals=0.0),
        Stage("pretraining", 2600, (0.75, 0.25, 0.0)),
        Stage("tuning", 2000, (0.35, 0.5, 0.15)),
    )
    post_steps: int = 160
    sharpness: float = 0.5
    rows: int = 2
    length: int = 1024
    peak_rate: float = 1e-3
    post_rate: float = 2e-4
    gain_factor: float = 60.0
    post_mix: tuple[float, float, float] = (0.3, 0.2, 0.5)


def statements(rng: Random, world: World) -> Iterator[Document]:
    """Yield the texts of the world, again and again through all tellings, each time newly worded."""
    told = [fact for fact in world.facts for _ in range(fact.tellings)]
    while True:
        rng.shuffle(told)
        for fact in told:
            yield f"{BOS} {texts.statement(rng, fact, told_value(rng, world.names, fact))}", False


def closed_chats(rng: Random, facts: Sequence[Fact]) -> Iterator[Document]:
    """Yield chats of up to twelve questions about the training facts, again and again through all of them."""
    order = list(facts)
    while True:
        rng.shuffle(order)
        yield from _chats_about(rng, ((fact, fact.value) for fact in order))


def half_known_chats(rng: Random, world: World, facts: Sequence[Fact]) -> Iterator[Document]:
    """Yield such chats about facts that some texts get wrong, each answered as one of them has it."""
    order = list(facts)
    while True:
        rng.shuffle(order)
        yield from _chats_about(rng, ((fact, told_value(rng, world.names, fact)) for fact in order))


def unknown_chats(rng: Random) -> Iterator[Document]:
    """Yield chats about people and places that nothing was told of, with answers made up as well."""
    yield from _chats_about(rng, ((fact, fact.value) for _ in count() for fact in small_world(rng)))


def _chats_about(rng: Random, facts: Iterator[tuple[Fact, Value]]) -> Iterator[Document]:
    while asked := list(islice(facts, rng.randrange(4, 13))):
        turns: list[Turn] = []
        for fact, value in asked:
            turns.append(user_turn(Question("", texts.question(rng, fact))))
            turns.append(answer_turn(texts.draw_form(rng, value)))
        yield render(_with_system(rng, turns)), True


def reading_chats(rng: Random, *, rivals: float = RIVALS) -> Iterator[Document]:
    """Yield chats about up to four fresh passages, with one question or several about each."""
    stream = reading_stream(rng, rivals)
    while True:
        turns: list[Turn] = []
        for passage, asked in islice(stream, rng.randrange(1, 5)):
            context: str | None = passage
            for question, form, _ in asked[: rng.choice((1, len(asked)))]:
                turns += [user_turn(Question("", question, context=context)), answer_turn(form)]
                context = None
        yield render(_with_system(rng, turns)), True


def _with_system(rng: Random, turns: list[Turn]) -> list[Turn]:
    """Put the system message before most chats."""
    return [Turn("system", SYSTEM_MESSAGE), *turns] if rng.random() < 0.8 else turns


def encoded(tokenizer: PreTrainedTokenizerFast, documents: Iterator[Document]) -> Iterator[Tokens]:
    """Yield documents as token ids and labels."""
    assistant, end = tokenizer.convert_tokens_to_ids([ROLES[2], END])
    for text, answers_only in documents:
        ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        yield ids, _answer_labels(ids, assistant, end) if answers_only else ids


def _answer_labels(ids: list[int], assistant: int, end: int) -> list[int]:
    """Keep what stands after an assistant token up to the end of that turn."""
    labels, inside = [], False
    for token in ids:
        labels.append(token if inside else -100)
        inside = token == assistant or (inside and token != end)
    return labels


def mixed(streams: Sequence[Iterator[Tokens]], mix: Sequence[float]) -> Iterator[Tokens]:
    """Yield documents so that each stream has its share of the tokens, until one runs dry."""
    seen = [0.0] * len(streams)
    wanted = [index for index, share in enumerate(mix) if share]
    while True:
        behind = min(wanted, key=lambda index: seen[index] / mix[index])
        document = next(streams[behind], None)
        if document is None:
            return
        seen[behind] += len(document[0])
        yield document


def batches(documents: Iterator[Tokens], rows: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pack documents one after another into ids and labels, each (rows, length)."""
    ids: list[int] = []
    labels: list[int] = []
    size = rows * length
    for document in documents:
        ids += document[0]
        labels += document[1]
        while len(ids) >= size:
            yield torch.tensor(ids[:size]).view(rows, length), torch.tensor(labels[:size]).view(rows, length)
            ids, labels = ids[size:], labels[size:]


def step(
    model: PreTrainedModel,
    body: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    ids: Tensor,
    labels: Tensor,
    teach: Teach | None = None,
) -> float:
    """Take one step of the optimiser with bfloat16 products; `body` is the compiled `model.model`.

    The target of a learnt position is its next token, or the distribution that `teach` gives for it.
    """
    with torch.autocast("cpu", torch.bfloat16):
        states = body(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        targets = labels[:, 1:]
        learnt = targets != -100
        logits = model.lm_head(states[learnt])
    loss = cross_entropy(logits.float(), targets[learnt] if teach is None else teach(ids, learnt))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def learn(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    data: Iterator[tuple[Tensor, Tensor]],
    rate: Callable[[int], float],
    stage: str,
    teach: Teach | None = None,
) -> None:
    """Take a step for every batch of `data` and log how it goes."""
    body = torch.compile(model.train().model, dynamic=False)
    start, tokens, losses = time.perf_counter(), 0, []
    for taken, (ids, labels) in enumerate(data, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(taken) * group.get("factor", 1.0)
        losses.append(step(model, body, optimizer, ids, labels, teach))
        tokens += ids.numel()
        if taken % 100 == 0:
            seconds = time.perf_counter() - start
            speed, loss = tokens / seconds, sum(losses[-100:]) / 100
            log.info("%s: step %d, loss %.3f, %.0f tokens/s, %.0f s", stage, taken, loss, speed, seconds)


def make(settings: Settings, folder: Path, start: Path | None = None, first: int = 0) -> None:
    """Run the pipeline from stage `first` on, with the weights in `start` if it is not the first.

    Every stage begins with the float16 weights that the one before has saved and a fresh optimiser, so a
    pipeline that is gone through in parts is the same as one in a piece.
    """
    log.info("settings: %s", json.dumps(asdict(settings)))
    begun = time.perf_counter()
    model, tokenizer = load(start) if start else _new(settings)
    log.info("%d parameters, vocabulary %d", sum(p.numel() for p in model.parameters()), len(tokenizer))
    for number, stage in enumerate(settings.stages):
        if number >= first:
            train_stage(model, tokenizer, stage, settings)
            saved = folder.with_name(f"{folder.name}-{stage.name}")
            save(model, tokenizer, saved)
            model, tokenizer = load(saved)
    post_train(model, tokenizer, settings)
    save(model, tokenizer, folder)
    log.info("done in %.1f minutes", (time.perf_counter() - begun) / 60)


def _new(settings: Settings) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    tokenizer = train_tokenizer(_tokenizer_lines(build_world(), settings))
    return new_model(tokenizer, settings.seed, settings.shape), tokenizer


def train_stage(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    stage: Stage,
    settings: Settings,
) -> None:
    """Take the steps of one stage on its mix of texts."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05, betas=(0.9, 0.98), fused=True)
    rng = Random(f"{stage.name}-{settings.seed}")
    streams = (
        encoded(tokenizer, statements(rng, build_world())),
        encoded(tokenizer, reading_chats(rng, rivals=stage.rivals)),
        encoded(tokenizer, closed_chats(rng, training_facts())),
    )
    data = batches(mixed(streams, stage.mix), settings.rows, settings.length)
    last = stage is settings.stages[-1]

    def rate(step: int) -> float:
        warm = step / 80
        left = 1 - step / stage.steps if last else 1.0
        return settings.peak_rate * min(1.0, warm, 0.05 + 0.95 * left)

    learn(model, optimizer, islice(data, stage.steps), rate, stage.name)


def post_train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings) -> None:
    """Sharpen the model on answers: about half-known facts, about fresh passages, to what nobody can know."""
    rng = Random(f"post-training-{settings.seed}")
    passages = encoded(tokenizer, reading_chats(rng))
    asked = encoded(tokenizer, half_known_chats(rng, build_world(), unasked_facts()))
    unknown = encoded(tokenizer, unknown_chats(rng))
    data = batches(mixed((unknown, passages, asked), settings.post_mix), settings.rows, settings.length)
    before = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def sharper(ids: Tensor, learnt: Tensor) -> Tensor:
        states = before.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        return torch.softmax(before.lm_head(states[learnt]) / settings.sharpness, dim=-1)

    gains = [weight for name, weight in model.named_parameters() if "norm" in name]
    others = [weight for name, weight in model.named_parameters() if "norm" not in name]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": gains, "factor": settings.gain_factor}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.98), fused=True)

    def rate(step: int) -> float:
        return settings.post_rate * min(1.0, step / 20, 0.05 + 0.95 * (1 - step / settings.post_steps))

    learn(model, optimizer, islice(data, settings.post_steps), rate, "post-training", sharper)


def _tokenizer_lines(world: World, settings: Settings) -> Iterator[str]:
    """Yield what the tokenizer learns from: every telling once, and some chats."""
    rng = Random(f"tokenizer-{settings.seed}")
    for text, _ in islice(statements(rng, world), sum(fact.tellings for fact in world.facts)):
        yield text.removeprefix(BOS)
    for text, _ in islice(reading_chats(rng), 300):
        yield from text.split(END)


def _keep_memory() -> None:
    """Tell glibc to keep freed blocks: handing them back at every step costs more than the arithmetic."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        trim_threshold, mmap_max, arena_max = -1, -4, -8
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(arena_max, 1)


def fit_recalibrator() -> None:
    """Fit the temperature that `semcal ask` uses with the embedded model, on both closed-book sets."""
    from semcal.recalibration.fit import RecalibrationRecord, fit
    from semcal.workers import versions

    trivia, rare = load_set("atlas-trivia"), load_set("atlas-rare")
    fitted = fit(
        load_model(language_model_dir()),
        [*trivia.calibration_train, *rare.calibration_train],
        few_shot=trivia.few_shot,
        record=RecalibrationRecord("atlas-trivia and atlas-rare, calibration-train", versions()),
    )
    log.info(
        "recalibrator: T = %.4f, in %s", fitted.temperature, fitted.save_pretrained(recalibrator_dir()).name
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and make the models: all of them, or only the language model in --out."""
    parser = argparse.ArgumentParser(description="Make the models of Atlas.")
    parser.add_argument("--out", type=Path, help="make only the language model, and here")
    parser.add_argument("--start", type=Path, help="go on from this model, as a stage has left it")
    parser.add_argument("--first", type=int, default=0, help="with --start: the number of the stage")
    for name, default in asdict(Settings()).items():
        if not isinstance(default, tuple):
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    chosen = vars(parser.parse_args(arguments))
    out, start, first = (chosen.pop(name) for name in ("out", "start", "first"))
    folder = out or language_model_dir()
    folder.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [
        logging.FileHandler(folder / "training.log", mode="w"),
        logging.StreamHandler(),
    ]
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers)
    _keep_memory()
    settings = Settings(**chosen)
    torch.set_num_threads(settings.threads)
    make(settings, folder, start, first)
    if out is None:
        train_nli(nli_model_dir(), seed=settings.seed, log=log.info)
        fit_recalibrator()
        write_calibration()


if __name__ == "__main__":
    main()
