"""The tools that train and write the embedded equivalence: its pairs, and a graph that is the network."""

import os
from pathlib import Path
from random import Random

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import BertConfig, BertModel

from tools.equivalence import export
from tools.equivalence.pairs import Pairs, is_held_out, judged_pairs, unrelated_pairs
from tools.equivalence.train import Network

needs_data = pytest.mark.skipif("SEMCAL_DATA" not in os.environ, reason="SEMCAL_DATA is not set")


def test_the_graph_computes_what_the_rounded_network_does() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=12, intermediate_size=40
    )
    network = Network(BertModel(config, add_pooling_layer=False)).eval()
    weights = {k: v.numpy() for k, v in network.state_dict().items() if v.is_floating_point()}
    graph = export.build(weights, heads=12)
    rounded = dict(network.state_dict())
    for name, value in weights.items():
        if value.ndim == 2 and name != "head.weight" and "position" not in name and "token_type" not in name:
            integers, scales = export.quantize(value)
            assert np.abs(value - integers * scales[:, None]).max() <= scales.max() / 2 * 1.001
            rounded[name] = torch.tensor(integers * scales[:, None])
    network.load_state_dict(rounded)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
    ids = np.random.default_rng(0).integers(0, 50, (3, 9))
    segments = np.repeat((np.arange(9) > 5)[None].astype(np.int64), 3, axis=0)
    (found,) = session.run(None, {"ids": ids, "segments": segments})
    with torch.inference_mode():
        expected = network(torch.tensor(ids), torch.tensor(segments), torch.ones(3, 9, dtype=torch.long))
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


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
