"""Write a trained equivalence model as one ONNX file: `python -m tools.equivalence.export WEIGHTS MINILM
TO`.

Weights are integers of 8 bits with one scale for each row of the matrix (each output, each token),
rounded to nearest; the runtime multiplies them out when it loads, and computes in float32. Sequences of a
batch have one length: there is no mask. Needs the package `onnx`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

OPSET = 20
EPSILON = 1e-12


class _Graph:
    """Nodes and initializers, as they are added; every method returns the name of what it computes."""

    def __init__(self) -> None:
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

    def weight(self, matrix: NDArray[np.float32]) -> str:
        """A matrix (out, in) as (in, out), in 8 bits with a scale for each output."""
        integers, scales = quantize(matrix)
        return str(
            self.node(
                "DequantizeLinear",
                self.constant(integers.T),
                self.constant(scales),
                self.constant(np.zeros(len(scales), np.int8)),
                axis=1,
            )
        )

    def linear(self, states: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        return str(self.node("Add", self.node("MatMul", states, self.weight(weight)), self.constant(bias)))

    def norm(self, states: str, weights: dict[str, NDArray[np.float32]], name: str) -> str:
        scale, shift = self.constant(weights[f"{name}.weight"]), self.constant(weights[f"{name}.bias"])
        return str(self.node("LayerNormalization", states, scale, shift, axis=-1, epsilon=EPSILON))

    def rows(self, table: NDArray[np.float32], indices: str) -> str:
        """Rows of a table, kept in 8 bits with a scale for each."""
        integers, scales = quantize(table)
        found = self.node("Cast", self.node("Gather", self.constant(integers), indices), to=TensorProto.FLOAT)
        return str(self.node("Mul", found, self.node("Gather", self.constant(scales[:, None]), indices)))


def quantize(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers (rows, columns) and scales (rows,) whose product is nearest to the matrix.

    >>> quantize(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32))[0].tolist()
    [[64, -127], [0, 0]]
    """
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-8).astype(np.float32) / np.float32(127)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def build(weights: dict[str, NDArray[np.float32]], *, heads: int) -> onnx.ModelProto:
    """Return the graph from ids (B, L) and segments (B, L), both int64, to logits (B,) in float32."""
    graph = _Graph()
    table = "encoder.embeddings."
    positions = graph.node(
        "Slice",
        graph.constant(weights[f"{table}position_embeddings.weight"]),
        graph.constant(np.array([0])),
        graph.node("Shape", "ids", start=1, end=2),
        graph.constant(np.array([0])),
    )
    words = graph.rows(weights[f"{table}word_embeddings.weight"], "ids")
    kinds = graph.node("Gather", graph.constant(weights[f"{table}token_type_embeddings.weight"]), "segments")
    states = graph.norm(
        graph.node("Add", graph.node("Add", words, kinds), positions), weights, f"{table}LayerNorm"
    )
    layers = 1 + max(int(name.split(".")[3]) for name in weights if name.startswith("encoder.encoder.layer."))
    for layer in range(layers):
        states = _layer(
            graph, states, weights, f"encoder.encoder.layer.{layer}.", heads, last=layer == layers - 1
        )
    logit = graph.node(
        "Add",
        graph.node("MatMul", states, graph.constant(weights["head.weight"].T)),
        graph.constant(weights["head.bias"]),
    )
    graph.nodes.append(helper.make_node("Reshape", [logit, graph.constant(np.array([-1]))], ["logits"]))
    shape = ["batch", "length"]
    made = helper.make_graph(
        graph.nodes,
        "equivalence",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("ids", "segments")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch"])],
        graph.initializers,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="semcal")
    model.ir_version = 9
    onnx.checker.check_model(model)
    return model


def _layer(
    graph: _Graph, states: str, weights: dict[str, NDArray[np.float32]], name: str, heads: int, *, last: bool
) -> str:
    """One encoder layer; the last one only at the first token, which is all that is read of it."""
    own = {key.removeprefix(name): value for key, value in weights.items() if key.startswith(name)}
    width = own["attention.self.query.weight"].shape[0]
    asking = states
    if last:
        first = [graph.constant(np.array([i])) for i in (0, 1, 1)]
        asking = graph.node("Slice", states, *first)

    def split(of: str, part: str, order: tuple[int, ...], scale: float = 1.0) -> str:
        made = graph.linear(
            of, own[f"attention.self.{part}.weight"] * scale, own[f"attention.self.{part}.bias"] * scale
        )
        shaped = graph.node("Reshape", made, graph.constant(np.array([0, 0, heads, width // heads])))
        return str(graph.node("Transpose", shaped, perm=order))

    query = split(asking, "query", (0, 2, 1, 3), float((width // heads) ** -0.5))
    scores = graph.node("MatMul", query, split(states, "key", (0, 2, 3, 1)))
    mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), split(states, "value", (0, 2, 1, 3)))
    joined = graph.node(
        "Reshape", graph.node("Transpose", mixed, perm=(0, 2, 1, 3)), graph.constant(np.array([0, 0, width]))
    )
    attended = graph.linear(joined, own["attention.output.dense.weight"], own["attention.output.dense.bias"])
    asking = graph.norm(graph.node("Add", attended, asking), own, "attention.output.LayerNorm")
    inner = graph.linear(asking, own["intermediate.dense.weight"], own["intermediate.dense.bias"])
    outer = graph.linear(graph.node("Gelu", inner), own["output.dense.weight"], own["output.dense.bias"])
    return graph.norm(graph.node("Add", outer, asking), own, "output.LayerNorm")


def main() -> None:
    """Read the command line and write model.onnx and tokenizer.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("to", type=Path)
    given = parser.parse_args()
    state = torch.load(given.weights, weights_only=True)
    weights = {name: value.float().numpy() for name, value in state.items() if value.is_floating_point()}
    given.to.mkdir(parents=True, exist_ok=True)
    onnx.save(build(weights, heads=12), given.to / "model.onnx")
    tokenizer = Tokenizer.from_file(str(given.minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(given.to / "tokenizer.json"), pretty=False)
    print(f"{(given.to / 'model.onnx').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
