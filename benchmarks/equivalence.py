"""Agreement of equivalences with people on pairs of real answers, and their cost.

    SEMCAL_DATA=FOLDER python -m benchmarks equivalence [--minilm FOLDER] [--draws FILE...] [--questions N]

Pairs are answers to one question, of which people judge both or exactly one as correct (n_refs = 1: the
question has one reference, so two correct answers mean the same). For training sources of the embedded model,
only held-out questions are used. "unrelated": answers to two other questions of one kind, from questions of
NQ-open's development set. "members": unlike members of the classes of names that the rules know. `--minilm`
adds the cosine of all-MiniLM-L6-v2, with the best threshold for these pairs. Contrast pairs have a separate
benchmark. "default" is the verdict of `semcal cluster` with rules, "model alone" without rules. `--draws` are
files of `semcal sample` with answers: gain and AUROC of E-SC for each equivalence and linkage.

Cost: CPU time of one thread for each question. "semcal cluster": for its samples. "embedded": for the model
on all pairs of distinct answers that no rule about values decides. "read": the share of them that the pair
network reads. DeBERTa: random weights in the shape of DeBERTa-v3-base and -large; each pair is read in one
direction, the minimum of a cross-encoder; the time of `DEBERTA_PAIRS` pairs is scaled to their number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import numpy as np

import semcal
from benchmarks import data_folder
from semcal.files import write_rows
from semcal.meaning.rules import read_classes
from semcal.models.clustering import LINKAGES, cluster_answers
from semcal.models.equivalence import EmbeddedEquivalence, Triple
from semcal.text.normal_form import normal_form
from semcal.text.values import values_differ
from tools.equivalence.pairs import JUDGED, Pair, is_held_out, read, unrelated_pairs

#: Maximum number of judged pairs of a source; all pairs of questions with one reference are used.
LIMIT = 600
#: Number of questions of each set for the cost, and of pairs for the larger networks.
QUESTIONS, DEBERTA_PAIRS = 60, 24
#: Layers and width of the larger networks.
DEBERTA = {"DeBERTa-base": (12, 768), "DeBERTa-large": (24, 1024)}
NAMES = ("default", "exact", "atlas")
QUICK = {"LIMIT": 10, "DEBERTA_PAIRS": 1, "DEBERTA": {"DeBERTa-tiny": (1, 64)}}
Decide = Callable[[Sequence[Pair]], np.ndarray]


def judged(folder: Path) -> dict[str, list[Pair]]:
    """Return judged pairs by source; those of questions with one reference, and all."""
    found: dict[str, list[Pair]] = {}
    for row in read(folder, "equivalence_pairs_from_labels_a"):
        if row["source"] in JUDGED and not is_held_out(row["question"]):
            continue
        pair = Pair(row["question"], row["a"], row["b"], row["same"])
        for name in (row["source"], f"{row['source']}, one reference")[: 1 + (row["n_refs"] == 1)]:
            found.setdefault(name, []).append(pair)
    return {
        name: pairs if "one reference" in name else Random(0).sample(pairs, min(LIMIT, len(pairs)))
        for name, pairs in found.items()
    }


def merged(equivalence: Any, pairs: Sequence[Pair]) -> np.ndarray:
    """Return for each pair whether `semcal cluster` puts both answers into one meaning."""
    texts = [[pair.first, pair.second] for pair in pairs]
    found = cluster_answers([pair.question for pair in pairs], texts, equivalence=equivalence)
    return np.array([len(clusters) == 1 for clusters in found.clusters])


def alone(model: EmbeddedEquivalence, pairs: Sequence[Pair]) -> np.ndarray:
    """Return for each pair whether the embedded model alone decides that both answers mean the same."""
    return np.array(model.entails([(pair.question, pair.first, pair.second) for pair in pairs]))


def cosine(folder: Path, pairs: Sequence[Pair]) -> np.ndarray:
    """Return for each pair whether all-MiniLM-L6-v2's cosine is above the best threshold for these pairs."""
    from tools.equivalence.train import embed, load

    network, tokenizer = load(folder)
    one, other = (
        embed(network.encoder, tokenizer, [normal_form(text) for text in texts])
        for texts in zip(*((p.first, p.second) for p in pairs))
    )
    likeness, same = (one * other).sum(axis=1), np.array([p.same for p in pairs])
    best = max(np.linspace(0, 1, 101), key=lambda at: ((likeness >= at) == same).mean())
    return likeness >= best


def on_draws(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return one row for each file, equivalence and linkage, with metrics of E-SC."""
    rows = []
    for file in files:
        for name in NAMES:
            equivalence = semcal.load_equivalence(name)
            for linkage in LINKAGES if name == "default" else LINKAGES[:1]:
                found = semcal.score(str(file), equivalence=equivalence, linkage=linkage, progress=None)
                measured = found.metrics()["E-SC"]
                several = sum(len(row["clusters"]) < len(row["samples"]) for row in found.rows)
                row = {"draws": file.stem, "equivalence": name, "linkage": linkage, "merged in": several}
                rows.append(row | {key: measured[key] for key in ("n", "accuracy", "gain", "auroc", "ace")})
    return rows


def results(minilm: Path | None = None) -> list[dict[str, Any]]:
    """Return one row for each set of pairs: accuracy of each equivalence, or the share of merged pairs."""
    folder = data_folder()
    sets = judged(folder)
    asked = [(row["question"], row["answers"][0]) for row in read(folder, "nq_open_dev_sample")]
    sets["unrelated, merged"] = unrelated_pairs(asked, Random(0), LIMIT)
    sets["members of one class, unlike, merged"] = unlike_members(LIMIT)
    deciders: dict[str, Decide] = {name: partial(merged, semcal.load_equivalence(name)) for name in NAMES}
    deciders["model alone"] = partial(alone, EmbeddedEquivalence())
    if minilm is not None:
        deciders["cosine"] = partial(cosine, minilm)
    rows = []
    for name, pairs in sorted(sets.items()):
        row: dict[str, Any] = {"pairs": name, "n": len(pairs)}
        for decider, decide in deciders.items():
            said = decide(pairs)
            same = np.array([pair.same for pair in pairs])
            row[decider] = round(float(said.mean() if "merged" in name else (said == same).mean()), 4)
        rows.append(row)
    return rows


def unlike_members(count: int) -> list[Pair]:
    """Return random pairs of unlike members of the classes of names, such as owl and raven."""
    random = Random(0)
    classes = [one for one in read_classes() if one[0][0] != "is it true"]
    drawn = [
        (questions[0], *random.sample(members, 2)) for questions, members in random.choices(classes, k=count)
    ]
    return [Pair(f"{question}?", first[0], second[0], False) for question, first, second in drawn]


def drawn(folder: Path, count: int) -> dict[str, list[tuple[str, list[str]]]]:
    """Return questions with their samples, or with the answers of systems, by set."""
    sets: dict[str, list[tuple[str, list[str]]]] = {}
    for name in ("llama2-7b-chat_triviaqa_T1_a", "mistral-7b-instruct_nq_T1_a"):
        sets[name] = [(row["question"], row["samples"]) for row in read(folder, name)]
    systems: dict[str, list[str]] = {}
    for row in read(folder, "evouna_a"):
        if not row.get("improper") and row["answer"]:
            systems.setdefault(row["question"], []).append(row["answer"])
    sets["sentences of chat models (evouna)"] = [row for row in systems.items() if len(row[1]) > 3]
    return {name: Random(0).sample(rows, min(count, len(rows))) for name, rows in sets.items()}


def left_to_a_model(question: str, answers: Sequence[str]) -> list[Triple]:
    """Return pairs of distinct normal forms that no rule about values decides."""
    forms = filter(None, dict.fromkeys(map(normal_form, answers)))
    return [(question, one, other) for one, other in combinations(forms, 2) if not values_differ(one, other)]


class _Counting(EmbeddedEquivalence):
    """A reader that counts the pairs of the pair network."""

    count = 0

    def logits(self, pairs: Sequence[Triple]) -> np.ndarray:
        self.count += len(pairs)
        return super().logits(pairs)


def deberta(layers: int, width: int) -> Callable[[Sequence[Triple]], None]:
    """Return a reader of pairs with random weights."""
    import torch
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=30522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        num_labels=3,
    )
    torch.set_num_threads(1)
    network = DebertaV2ForSequenceClassification(config).eval()
    model = EmbeddedEquivalence()

    def read_pairs(pairs: Sequence[Triple]) -> None:
        by_length: dict[int, list[list[int]]] = {}
        for ids, _ in model.encode(pairs):
            by_length.setdefault(len(ids), []).append(ids)
        with torch.inference_mode():
            for batch in by_length.values():
                network(torch.tensor(batch))

    return read_pairs


def cost(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return one row for each set of answers: CPU time of each model for a question, in milliseconds."""
    others = {name: deberta(*shape) for name, shape in DEBERTA.items()}
    rows = []
    for name, questions in drawn(folder, count).items():
        row: dict[str, Any] = {"answers": name, "questions": count}
        equivalence = semcal.load_equivalence("default")
        start = process_time()
        cluster_answers([asked for asked, _ in questions], [answers for _, answers in questions], equivalence)
        row["semcal cluster, ms"] = round(1000 * (process_time() - start) / count, 1)
        left = [left_to_a_model(*question) for question in questions]
        pairs = [pair for found in left for pair in found]
        model = _Counting()
        start = process_time()
        for found in left:
            model.margins(found)
        row["pairs"] = round(len(pairs) / count, 1)
        row["embedded, ms"] = round(1000 * (process_time() - start) / count, 1)
        row["read"] = round(model.count / max(1, len(pairs)), 2)
        some = Random(0).sample(pairs, min(DEBERTA_PAIRS, len(pairs)))
        for other, read_pairs in others.items():
            start = process_time()
            read_pairs(some)
            row[f"{other}, ms"] = round(
                1000 * (process_time() - start) * len(pairs) / max(1, len(some)) / count
            )
        rows.append(row)
    return rows


def quick_runs(folder: Path) -> list[list[str]]:
    draws = folder / "draws.jsonl"
    rows = [
        {"question": f"Who built mill {n}?", "answers": ["Ana Velis"], "log_likelihoods": [-1, -2, -3]}
        | {"samples": ["Ana Velis", "Velis", "Bo"] if n % 2 else ["Bo", "Bo", "Cy"]}
        for n in range(8)
    ]
    write_rows(draws, rows)
    return [["--questions", "2", "--draws", str(draws)]]


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks equivalence")
    parser.add_argument("--minilm", type=Path, metavar="FOLDER")
    parser.add_argument("--draws", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument(
        "--questions", type=int, default=QUESTIONS, metavar="N", help="of each set, for the cost"
    )
    options = parser.parse_args(arguments)
    print(table(results(options.minilm)), flush=True)
    print(table(cost(data_folder(), options.questions)), flush=True)
    if options.draws:
        print(table(on_draws(options.draws)))


if __name__ == "__main__":
    main(sys.argv[1:])
