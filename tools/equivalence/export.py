"""Write the trained networks as ONNX files: `python -m tools.equivalence.export DATA OUT MINILM TO`.

OUT is the folder that `train` and `answers` wrote. `model.onnx` reads a pair, `answers.onnx` an answer; both
read one at a time, so there is neither a mask nor a batch, and what is found depends on nothing else.
Matrices are integers with one scale for each output, and are multiplied as integers: the states before them
are rounded to 8 bits by their own range, after a division by a scale for each channel that evens out the
ranges of channels and weights (Xiao et al., SmoothQuant, 2023), which some pairs for training give. Weights
have 7 bits, so that no processor's sums of 16 bits run over. Needs the package `onnx`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tools.equivalence import answers, train
from tools.equivalence.pairs import judged_pairs

OPSET = 20
EPSILON = 1e-12
#: The largest weight, and the largest entry of a table of embeddings.
WEIGHT, ENTRY = 63, 127
#: How much of the difference between channels is taken to the weights.
TO_WEIGHTS = 0.8
#: Pairs that give the ranges of channels.
PAIRS = 400
Weights = Mapping[str, NDArray[np.float32]]


class _Graph:
    """Nodes and initializers, as they are added; every method returns the name of what it computes."""

    def __init__(self, weights: Weights, peaks: Weights) -> None:
        self.weights, self.peaks = weights, peaks
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, value: NDArray[Any]) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"n{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, states: str, *names: str, scale: float = 1.0) -> str:
        """Layers of one input side by side; `scale` is that of the first one's outputs."""
        scales = [scale, *(1.0 for _ in names[1:])]
        matrix = np.concatenate([self.weights[f"{name}.weight"] * s for name, s in zip(names, scales)])
        bias = np.concatenate([self.weights[f"{name}.bias"] * s for name, s in zip(names, scales)])
        peaks = np.maximum(self.peaks[names[0]], 1e-3)
        even = peaks**TO_WEIGHTS / np.maximum(np.abs(matrix).max(axis=0), 1e-4) ** (1 - TO_WEIGHTS)
        even = (even / np.exp(np.log(even).mean())).astype(np.float32)
        integers, steps = quantize(matrix * even, WEIGHT)
        divided = self.node("Mul", states, self.constant(1 / even))
        rounded, step, zero = self.node("DynamicQuantizeLinear", divided, outputs=3)
        sums = self.node("MatMulInteger", rounded, self.constant(integers.T), zero)
        both = self.node("Mul", step, self.constant(steps))
        product = self.node("Mul", self.node("Cast", sums, to=TensorProto.FLOAT), both)
        return str(self.node("Add", product, self.constant(bias.astype(np.float32))))

    def norm(self, states: str, name: str) -> str:
        scale, shift = (self.constant(self.weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return str(self.node("LayerNormalization", states, scale, shift, axis=-1, epsilon=EPSILON))

    def rows(self, name: str, indices: str) -> str:
        """Rows of a table, kept in 8 bits with a scale for each."""
        integers, scales = quantize(self.weights[name], ENTRY)
        found = self.node("Cast", self.node("Gather", self.constant(integers), indices), to=TensorProto.FLOAT)
        return str(self.node("Mul", found, self.node("Gather", self.constant(scales[:, None]), indices)))

    def embed(self, segments: str | None) -> str:
        """States of the tokens `ids` (1, L) before the first layer."""
        name = "encoder.embeddings."
        ends = [self.constant(np.array([0])), self.node("Shape", "ids", start=1, end=2)]
        places = self.constant(self.weights[f"{name}position_embeddings.weight"])
        positions = self.node("Slice", places, *ends, self.constant(np.array([0])))
        kinds = self.weights[f"{name}token_type_embeddings.weight"]
        if segments is None:
            kind = self.constant(kinds[:1])
        else:
            kind = self.node("Gather", self.constant(kinds), segments)
        words = self.rows(f"{name}word_embeddings.weight", "ids")
        summed = self.node("Add", self.node("Add", words, kind), positions)
        return self.norm(summed, f"{name}LayerNorm")

    def layers(self, states: str, heads: int, *, to_first: bool) -> str:
        """All layers; with `to_first` the last one only at the first token."""
        named = "encoder.encoder.layer."
        last = max(int(name.split(".")[3]) for name in self.weights if name.startswith(named))
        for layer in range(last + 1):
            states = self._layer(states, f"{named}{layer}.", heads, first_only=to_first and layer == last)
        return states

    def _layer(self, states: str, name: str, heads: int, *, first_only: bool) -> str:
        query, key, value = (f"{name}attention.self.{part}" for part in ("query", "key", "value"))
        width = self.weights[f"{query}.weight"].shape[0]
        scale = float((width // heads) ** -0.5)
        asking = states
        if first_only:
            asking = self.node("Slice", states, *(self.constant(np.array([i])) for i in (0, 1, 1)))
            parts = [self.linear(asking, query, scale=scale)]
            parts += self.node("Split", self.linear(states, key, value), outputs=2, axis=-1, num_outputs=2)
        else:
            whole = self.linear(states, query, key, value, scale=scale)
            parts = self.node("Split", whole, outputs=3, axis=-1, num_outputs=3)
        mixed = self.node("MultiHeadAttention", *parts, domain="com.microsoft", num_heads=heads, scale=1.0)
        attended = self.linear(mixed, f"{name}attention.output.dense")
        asking = self.norm(self.node("Add", attended, asking), f"{name}attention.output.LayerNorm")
        inner = self.node("Gelu", self.linear(asking, f"{name}intermediate.dense"))
        outer = self.linear(inner, f"{name}output.dense")
        return self.norm(self.node("Add", outer, asking), f"{name}output.LayerNorm")

    def model(self, inputs: Sequence[str], output: str, shape: Sequence[int]) -> onnx.ModelProto:
        """The graph from `inputs`, each int64 (1, L), to `output`."""
        made = helper.make_graph(
            self.nodes,
            "equivalence",
            [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "length"]) for name in inputs],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self.initializers,
        )
        versions = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(made, opset_imports=versions, producer_name="semcal")
        model.ir_version = 9
        onnx.checker.check_model(model)
        return model


def quantize(matrix: NDArray[np.float32], largest: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers (rows, columns) up to `largest`, and scales (rows,), whose product is nearest to it.

    >>> quantize(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), 127)[0].tolist()
    [[64, -127], [0, 0]]
    """
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-8).astype(np.float32) / np.float32(largest)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def build(weights: Weights, peaks: Weights, *, heads: int) -> onnx.ModelProto:
    """Return the graph from ids and segments (1, L), both int64, to the logit of a pair (1,) in float32.

    `peaks` are the largest absolute inputs (channels,) of every linear layer, by its name.
    """
    graph = _Graph(weights, peaks)
    states = graph.layers(graph.embed("segments"), heads, to_first=True)
    product = graph.node("MatMul", states, graph.constant(weights["head.weight"].T))
    logit = graph.node("Add", product, graph.constant(weights["head.bias"]))
    graph.nodes.append(helper.make_node("Reshape", [logit, graph.constant(np.array([-1]))], ["logits"]))
    return graph.model(["ids", "segments"], "logits", [1])


def build_answers(weights: Weights, peaks: Weights, *, heads: int) -> onnx.ModelProto:
    """Return the graph from ids (1, L), int64, to the vector of an answer (d,) of length one in float32."""
    graph = _Graph(weights, peaks)
    states = graph.layers(graph.embed(None), heads, to_first=False)
    mean = graph.node("ReduceMean", states, graph.constant(np.array([0, 1])), keepdims=0)
    graph.nodes.append(helper.make_node("LpNormalization", [mean], ["vector"], axis=0, p=2))
    return graph.model(["ids"], "vector", [weights["encoder.embeddings.LayerNorm.weight"].shape[0]])


@torch.inference_mode()
def peaks_of(network: torch.nn.Module, batches: Sequence[Sequence[Any]]) -> dict[str, NDArray[np.float32]]:
    """Return the largest absolute inputs (channels,) of every linear layer, by name, over batches."""
    peaks: dict[str, NDArray[np.float32]] = {}

    def watch(name: str) -> Any:
        def note(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            found = given[0].abs().flatten(0, -2).amax(0).numpy()
            peaks[name] = np.maximum(found, peaks.get(name, np.float32(0)))

        return note

    linear = {n: m for n, m in network.named_modules() if isinstance(m, torch.nn.Linear)}
    hooks = [module.register_forward_pre_hook(watch(name)) for name, module in linear.items()]
    for batch in batches:
        network(*batch)
    for hook in hooks:
        hook.remove()
    return peaks


def main() -> None:
    """Read the command line and write model.onnx, answers.onnx and tokenizer.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "out", "minilm", "to"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    network, tokenizer = train.load(given.minilm)
    network.load_state_dict(torch.load(given.out / "weights.pt", weights_only=True))
    small = answers.load(given.out / "answers.pt")
    pairs = Random(0).sample(judged_pairs(given.data, held_out=False), PAIRS)
    texts = [text for pair in pairs for text in (pair.first, pair.second)]
    encoded, single = train.encode(tokenizer, pairs), answers.encode(tokenizer, texts)
    given.to.mkdir(parents=True, exist_ok=True)
    for name, made, model, batches, heads in (
        ("model", build, network, [train.padded([one]) for one in encoded], 12),
        ("answers", build_answers, small, [[one] for one in single], answers.HEADS),
    ):
        state = model.eval().state_dict()
        weights = {key: value.numpy() for key, value in state.items() if value.is_floating_point()}
        onnx.save(made(weights, peaks_of(model, batches), heads=heads), given.to / f"{name}.onnx")
        print(f"{name}: {(given.to / f'{name}.onnx').stat().st_size:,} bytes")
    tokenizer.save(str(given.to / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
