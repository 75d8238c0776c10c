"""The tools that train and write the embedded equivalence: its pairs, and a graph that is the network."""

import os
from pathlib import Path
from random import Random

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import BertConfig, BertModel

from tools.equivalence import answers, contrasts, export
from tools.equivalence.pairs import Pairs, is_held_out, judged_pairs, unrelated_pairs
from tools.equivalence.train import Network

needs_data = pytest.mark.skipif("SEMCAL_DATA" not in os.environ, reason="SEMCAL_DATA is not set")


def weights_of(network: torch.nn.Module) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in network.state_dict().items() if v.is_floating_point()}


def small_encoder() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=3, num_attention_heads=12, intermediate_size=80
    )
    return BertModel(config, add_pooling_layer=False)


def test_the_graph_computes_what_the_network_does_up_to_rounding() -> None:
    network = Network(small_encoder()).eval()
    network.head.weight.data *= 20
    random = np.random.default_rng(0)
    texts = [(random.integers(0, 50, (1, 9)), (np.arange(9) > 4)[None].astype(np.int64)) for _ in range(30)]
    given = [
        (torch.tensor(ids), torch.tensor(kinds), torch.ones_like(torch.tensor(ids))) for ids, kinds in texts
    ]
    graph = export.build(weights_of(network), export.peaks_of(network, given), heads=12)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    found = [session.run(None, {"ids": ids, "segments": kinds})[0][0] for ids, kinds in texts]
    with torch.inference_mode():
        expected = [network(*inputs)[0].item() for inputs in given]
    assert np.corrcoef(found, expected)[0, 1] > 0.999
    assert np.abs(np.subtract(found, expected)).max() < 0.1 * np.std(expected)


def test_the_graph_of_answers_gives_vectors_of_length_one() -> None:
    network = answers.Answers().eval()
    ids = [torch.tensor([[101, 7000 + i, 102]]) for i in range(5)]
    graph = export.build_answers(
        weights_of(network), export.peaks_of(network, [[one] for one in ids]), heads=4
    )
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    found = np.stack([session.run(None, {"ids": one.numpy()})[0] for one in ids])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    with torch.inference_mode():
        np.testing.assert_allclose(found, torch.cat([network(one) for one in ids]).numpy(), atol=0.02)


def test_rounded_matrices_are_near_the_matrix_and_leave_room_for_sums_of_16_bits() -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    integers, scales = export.quantize(matrix, export.WEIGHT)
    assert np.abs(matrix - integers * scales[:, None]).max() <= scales.max() / 2 * 1.001
    assert 2 * 255 * int(np.abs(integers).max()) < 2**15


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    def embed(texts: list[str]) -> np.ndarray:
        made = np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    return Pairs(Path(os.environ["SEMCAL_DATA"]), embed)


@needs_data
def test_a_part_of_the_stream_is_the_same_again_and_unlike_the_next(pairs: Pairs) -> None:
    once = pairs.stream(0, 3, 200)
    assert once == pairs.stream(0, 3, 200)
    assert once != pairs.stream(0, 4, 200)
    assert 0.3 < np.mean([pair.same for pair in pairs.stream(0, 0, 2000)]) < 0.6
    assert all(pair.first != pair.second and pair.first and pair.second for pair in once)


@needs_data
@pytest.mark.parametrize("kind", contrasts.SHARES)
def test_contrasts_mean_the_same_as_often_as_not(pairs: Pairs, kind: str) -> None:
    found = [pairs.contrasts.of_kind(kind, Random(f"{kind}{i}")) for i in range(150)]
    assert found == [pairs.contrasts.of_kind(kind, Random(f"{kind}{i}")) for i in range(150)]
    assert 0.35 < np.mean([same for *_, same in found]) < 0.65
    assert all(one and other and one != other for _, one, other, _ in found)
    overlap = {
        wanted: np.mean([_shared(one, other) for _, one, other, same in found if same is wanted])
        for wanted in (True, False)
    }
    assert overlap[True] < overlap[False] + 0.35  # that words are shared says little


def _shared(one: str, other: str) -> float:
    first, second = set(one.split()), set(other.split())
    return len(first & second) / len(first | second)


@needs_data
def test_questions_kept_apart_are_in_no_training_pair(pairs: Pairs) -> None:
    folder = Path(os.environ["SEMCAL_DATA"])
    held = {pair.question for pair in judged_pairs(folder, held_out=True)}
    assert held
    assert all(map(is_held_out, held))
    assert not held & {pair.question for pair in judged_pairs(folder, held_out=False)}


@needs_data
def test_names_of_one_thing_are_never_told_apart(pairs: Pairs) -> None:
    assert not pairs.differ("usa", "united states")
    assert not pairs.differ("paris", "paris france")
    assert pairs.differ("norway", "sweden")


def test_unrelated_pairs_are_answers_to_two_other_questions() -> None:
    asked = [(f"who did thing {i}", f"person {chr(97 + i)}") for i in range(8)]
    found = unrelated_pairs(asked, Random(0), 50)
    assert all(not pair.same and pair.first != pair.second for pair in found)
    answer = dict(asked)
    assert all(answer[pair.question] not in (pair.first, pair.second) for pair in found)
