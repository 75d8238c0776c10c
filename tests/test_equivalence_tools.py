"""The tools that train and write the embedded equivalence: its pairs, and a graph that is the network."""

import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import BertConfig, BertModel

from tools.equivalence import answers, export
from tools.equivalence.pairs import is_held_out, judged_pairs
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


@needs_data
def test_questions_kept_apart_are_in_no_training_pair() -> None:
    folder = Path(os.environ["SEMCAL_DATA"])
    held = {pair.question for pair in judged_pairs(folder, held_out=True)}
    assert held
    assert all(map(is_held_out, held))
    assert not held & {pair.question for pair in judged_pairs(folder, held_out=False)}
