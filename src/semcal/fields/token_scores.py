"""Token probabilities of the values of a sampled document, from the texts of its tokens."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Sequence
from itertools import accumulate

import numpy as np

from semcal.fields.documents import locate_document
from semcal.fields.schema import InvalidDocument, JsonValue, Node, Schema
from semcal.rows import TokenScores

LeafScores = tuple[Node, JsonValue, TokenScores]
"""A leaf of a sampled document: its value, and the smallest and the mean probability of its tokens."""
_BETWEEN = re.compile(r"[\s,:]*")
_decode = json.JSONDecoder().raw_decode


def leaf_scores(
    schema: Schema, document: JsonValue, texts: Sequence[str], log_probs: Sequence[float]
) -> list[LeafScores]:
    """Return the token scores of each leaf of a document.

    `texts` are the texts of all tokens of a generation. A token counts if it holds a part of the value; the
    quotes of a string are no part of it, unless the string is empty. The result is empty if the texts
    together do not hold the document.
    """
    whole = "".join(texts)
    try:
        read, start = locate_document(schema, whole)
    except InvalidDocument:
        return []
    if read != document or len(texts) != len(log_probs):
        return []
    ends = np.fromiter(accumulate(map(len, texts)), dtype=np.intp)
    scores: list[LeafScores] = []
    for node, value, begin, end in _leaf_spans(schema.root, document, whole, start):
        if whole[begin] == '"' and end - begin > 2:
            begin, end = begin + 1, end - 1
        first, last = np.searchsorted(ends, [begin, end - 1], side="right").tolist()
        probabilities = [math.exp(log_prob) for log_prob in log_probs[first : last + 1]]
        scores.append((node, value, [min(probabilities), math.fsum(probabilities) / len(probabilities)]))
    return scores


def _leaf_spans(
    node: Node, value: JsonValue, text: str, at: int
) -> Generator[tuple[Node, JsonValue, int, int], None, int]:
    """Yield each leaf of the value at a place of a text, with start and end; return the end of the value."""
    at = _after(text, at)
    if node.kind == "leaf" or value is None:
        end = _decode(text, at)[1]
        if node.kind == "leaf":
            yield node, value, at, end
        return end
    at += 1
    if isinstance(value, list):
        assert node.items is not None
        for item in value:
            at = yield from _leaf_spans(node.items, item, text, at)
    else:
        node = node.variant(value)
        for name, item in value.items():
            _, at = _decode(text, _after(text, at))
            at = yield from _leaf_spans(node.child(name), item, text, at)
    return _after(text, at) + 1


def _after(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return at if between is None else between.end()
