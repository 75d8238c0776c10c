"""Sampled documents: reading, the document that samples agree on, its fields, and their token probabilities.

A *document* is a value that is valid under a schema. Each leaf of a document is an item: its value, and the
value at the same place of each sample.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, shown
from semcal.fields.schema import EMPTY, InvalidDocument, JsonValue, Node, Schema, escaped
from semcal.files import fault
from semcal.meaning.answer import split_reasoning
from semcal.rows import TokenScores

#: Brackets of a text that are tried as the beginning of a document.
TRIES = 20
_OBJECT = r"""\{\s*(?:["'}]|\w+\s*:)"""  # how an object begins, or what should be one
_FENCE = re.compile(rf"```(?:json)?\s*(?={_OBJECT})", re.IGNORECASE)
_BRACKET = re.compile(_OBJECT)
#: The parts of a text that tell where an object ends.
_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')
_BETWEEN = re.compile(r"[\s,:]*")
_NO_WORD, _DIGIT = re.compile(r"[\W_]"), re.compile(r"\d")
#: The similarity from which a key of a reference is taken for a misspelled key of the schema.
NEAR = 0.85
#: The value of a place that a sample does not have.
ABSENT = object()
FieldKey = tuple[str, Hashable]
LeafScores = tuple[Node, JsonValue, TokenScores]
"""A leaf of a sampled document: its value, and the smallest and the mean probability of its tokens."""


def read_document(schema: Schema, text: str | None) -> JsonValue:
    """Return the document in a generation; InvalidDocument if there is none that is valid.

    The document may stand in a fence or among other text, after reasoning.
    """
    return locate_document(schema, text)[0]


def locate_document(schema: Schema, text: str | None) -> tuple[JsonValue, int]:
    """Return the document in a generation, as `read_document` does, and its place in the text."""
    answer = None if text is None else split_reasoning(text)[1]
    if text is None or answer is None or not answer.strip():
        raise InvalidDocument("/: there is no answer")
    starts = [match.end() for match in islice(_FENCE.finditer(answer), TRIES)]
    starts += [match.start() for match in islice(_BRACKET.finditer(answer), TRIES)]
    error: InvalidDocument | None = None
    read: list[tuple[int, int]] = []
    for start in starts:
        if any(begin <= start < end for begin, end in read):  # within an object that was read, or is damaged
            continue
        try:
            value = _DECODER.raw_decode(answer, start)[0]
            if reason := fault(value):
                raise InvalidDocument(f"/: {reason}")
            return schema.root.read(value), len(text) - len(answer) + start
        except InvalidDocument as invalid:
            error = error or invalid
        except (ValueError, RecursionError) as damage:
            error = error or InvalidDocument(f"/: the JSON is damaged or cut: {damage}")
        read.append((start, _end(answer, start)))
    raise error or InvalidDocument("/: the text holds no JSON object")


def _end(text: str, start: int) -> int:
    """Return the end of the object that begins at a place, by its brackets; that of the text if it is cut."""
    depth = 0
    for part in _PART.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(part[0], 0)
        if not depth:
            return part.end()
    return len(text)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise InvalidDocument("/: a key occurs twice in one object")
    return members


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct_keys)


@dataclass(frozen=True)
class Keys:
    """Equality of values in one row: by their keys, and by what an equivalence or a tolerance has joined."""

    joined: Mapping[FieldKey, Hashable] = field(default_factory=dict)

    def of(self, node: Node, value: JsonValue) -> Hashable:
        """Return what equal values of the field have in common."""
        key = node.key(value)
        return self.joined.get((node.path, key), key) if self.joined else key


def join_numbers(node: Node, values: Iterable[JsonValue], joined: dict[FieldKey, Hashable]) -> None:
    """Join numbers whose difference to the smallest of them is within the tolerance of the field."""
    numbers = sorted({value for value in values if isinstance(value, int | float)})
    first: float | None = None
    for number in numbers:
        if first is None or not node.is_near(number, first):
            first = number
        joined[node.path, node.key(number)] = node.key(first)


def leaves_of(node: Node, value: JsonValue) -> Iterator[tuple[Node, JsonValue]]:
    """Yield each leaf of a value with its node."""
    if node.kind == "leaf":
        yield node, value
    elif isinstance(value, list):
        assert node.items is not None
        for item in value:
            yield from leaves_of(node.items, item)
    elif isinstance(value, Mapping):
        node = node.variant(value)
        for name, item in value.items():
            yield from leaves_of(node.child(name), item)


# ---- The document that samples agree on


def agreed_document(schema: Schema, documents: Sequence[JsonValue], keys: Keys) -> JsonValue:
    """Return the document of the most frequent values, valid under the schema.

    If the most frequent values together are not valid, the result is the sample that shares most values with
    the others.
    """
    try:
        return schema.root.read(_agreed(schema.root, documents, keys, may_lack=False))
    except InvalidDocument:
        agreement = _agreement(schema.root, documents, keys).sum(1)
        return documents[int(agreement.argmax())]


def _agreed(node: Node, values: Sequence[JsonValue], keys: Keys, *, may_lack: bool = True) -> JsonValue:
    """Return the value that samples agree on, None for an empty field; `values` may hold None."""
    if not may_lack and not node.nullable:
        values = [value for value in values if value is not None] or values
    if node.kind == "leaf":
        return _commonest(node, values, keys)
    present = [value for value in values if value is not None]
    if 2 * len(present) < len(values) or not present:
        return None
    if node.kind == "list":
        return _agreed_list(node, [value or [] for value in values], keys)
    if node.tag:
        tag = Counter(str(value[node.tag]) for value in present).most_common(1)[0][0]
        present = [value for value in present if str(value[node.tag]) == tag]
        node = node.variants[tag]
    counts = Counter(name for value in present for name in value)
    agreed: dict[str, JsonValue] = {}
    for name in dict.fromkeys((*node.properties, *counts)):
        if name not in counts or (name not in node.properties and 2 * counts[name] < len(present)):
            continue
        child, is_required = node.child(name), name in node.required
        value = _agreed(child, [item.get(name) for item in present], keys, may_lack=not is_required)
        stated = sum(name in item and item[name] is None for item in present)
        if (
            value is not None
            or is_required
            or (2 * stated >= len(present) and (child.nullable or child.is_free))
        ):
            agreed[name] = value
    return agreed


def _commonest(node: Node, values: Sequence[JsonValue], keys: Keys) -> JsonValue:
    """Return the most frequent wording of the most frequent value; the first of several."""
    if not values:
        return None
    key_of = [keys.of(node, value) for value in values]
    top = Counter(key_of).most_common(1)[0][0]
    return commonest_wording([value for value, key in zip(values, key_of) if key == top])


def commonest_wording(values: Sequence[JsonValue]) -> JsonValue:
    """Return the most frequent of equal values as they are written; the first of several."""
    counts = Counter(map(repr, values))
    return max(values, key=lambda value: counts[repr(value)])


def _agreed_list(node: Node, lists: Sequence[list[JsonValue]], keys: Keys) -> list[JsonValue]:
    assert node.items is not None
    element = node.items
    if node.ordered or element.kind != "leaf":
        length = Counter(map(len, lists)).most_common(1)[0][0]
        if node.ordered:
            slots = [[one[place] for one in lists if len(one) > place] for place in range(length)]
        else:
            slots = _slots(element, lists, length, keys)
        slots = [slot for slot in slots if 2 * len(slot) >= len(lists)]
        return [_agreed(element, slot, keys, may_lack=False) for slot in slots]
    distinct = [dict.fromkeys(keys.of(element, item) for item in one) for one in lists]
    counts = Counter(key for one in distinct for key in one)
    length = Counter(map(len, distinct)).most_common(1)[0][0]
    chosen = [key for key, count in counts.most_common(length) if 2 * count >= len(lists)]
    chosen = [key for key in counts if key in chosen]  # in order of appearance
    by_key: dict[Hashable, list[JsonValue]] = {key: [] for key in chosen}
    for one in lists:
        for item in one:
            if (key := keys.of(element, item)) in by_key:
                by_key[key].append(item)
    return [_commonest(element, by_key[key], keys) for key in chosen]


def _slots(element: Node, lists: Sequence[list[JsonValue]], length: int, keys: Keys) -> list[list[JsonValue]]:
    """Align lists of objects to the list of the most frequent length that agrees most with the others."""
    agreement = _agreement(element, [item for one in lists for item in one], keys)
    ends = np.cumsum([0, *map(len, lists)])
    places = [slice(start, end) for start, end in pairwise(ends)]
    pivots = [at for one, at in zip(lists, places) if len(one) == length]
    distinct = {agreement[at].tobytes(): at for at in reversed(pivots)}  # equal lists have equal rows
    matched: list[list[tuple[float, int, int]]] = []
    most = -1.0
    for pivot in reversed(distinct.values()):
        pairs = [_matched(agreement[pivot, at]) for at in places]
        if (total := sum(agreed for of_list in pairs for agreed, _, _ in of_list)) > most:
            most, matched = total, pairs
    slots: list[list[JsonValue]] = [[] for _ in range(length)]
    for one, of_list in zip(lists, matched):
        for _, place, index in of_list:
            slots[place].append(one[index])
    return slots


def aligned(
    element: Node, pivot: Sequence[JsonValue], lists: Sequence[Sequence[JsonValue]], keys: Keys
) -> list[dict[int, JsonValue]]:
    """Return the element of each list for each place of the pivot, by greatest total agreement.

    Elements that agree in no leaf are not matched.
    """
    agreement = _agreement(element, pivot, keys, [item for one in lists for item in one])
    ends = np.cumsum([0, *map(len, lists)])
    return [
        {place: one[index] for _, place, index in _matched(agreement[:, start : start + len(one)])}
        for one, start in zip(lists, ends)
    ]


def _matched(agreement: NDArray[np.float64]) -> list[tuple[float, int, int]]:
    """Return agreement, row and column of the pairs with the greatest total, without those of none."""
    from scipy.optimize import linear_sum_assignment  # only now, since few documents hold such lists

    rows, columns = linear_sum_assignment(-agreement)
    pairs = zip(agreement[rows, columns].tolist(), rows.tolist(), columns.tolist())
    return [pair for pair in pairs if pair[0] > 0]


def _agreement(
    node: Node, values: Sequence[JsonValue], keys: Keys, others: Sequence[JsonValue] | None = None
) -> NDArray[np.float64]:
    """Return the number of equal leaves of each pair of values; shape (len(values), len(others))."""
    codes: dict[Hashable, int] = {}
    tables = []
    for side in (values,) if others is None else (values, others):
        found = [
            (row, codes.setdefault((leaf.path, keys.of(leaf, one)), len(codes)))
            for row, value in enumerate(side)
            for leaf, item in list(leaves_of(node, value)) or [(node, None)]  # objects without keys are equal
            for one in _accepted(item)
        ]
        tables.append((len(side), np.array(found, dtype=np.intp).reshape(-1, 2).T))
    counts = [np.zeros((size, len(codes))) for size, _ in tables]
    for table, (_, where) in zip(counts, tables):
        np.add.at(table, tuple(where), 1.0)
    first, second = counts[0], counts[-1].T
    # min(a, b) is the number of t >= 1 with a >= t and b >= t
    steps = range(1, int(first.max(initial=0)) + 1)
    equal = ((first >= t).astype(float) @ (second >= t).astype(float) for t in steps)
    return sum(equal, np.zeros((len(first), second.shape[1])))


def with_values(document: JsonValue, values: Mapping[str, JsonValue]) -> JsonValue:
    """Return a document with other values at paths; a place that the document lacks is not added."""
    document = json.loads(json.dumps(document))
    for path, value in values.items():
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
        inner = document
        with suppress(LookupError, TypeError, ValueError):
            for part in above:
                inner = inner[int(part)] if isinstance(inner, list) else inner[part]
            if isinstance(inner, list):
                inner[int(last)] = value
            elif last in inner:
                inner[last] = value
    return document


# ---- The items of a document


@dataclass(frozen=True)
class Item:
    """A leaf of a document, with the value at this place in each sample."""

    path: str  # JSON Pointer
    node: Node
    value: JsonValue
    values: Sequence[JsonValue]  # of each sample; ABSENT if it does not have the element


def items_of(schema: Schema, document: JsonValue, samples: Sequence[JsonValue], keys: Keys) -> list[Item]:
    """Return the items of a document, compared with valid samples.

    An empty field of an object is an item, with the value None. An empty list has no items.
    """
    return list(_items(schema.root, "", document, samples, keys))


def _items(
    node: Node, path: str, value: JsonValue, samples: Sequence[JsonValue], keys: Keys
) -> Iterator[Item]:
    if node.kind == "leaf":
        yield Item(path, node, value, samples)
    elif node.kind == "list":
        yield from _list_items(node, path, value or [], samples, keys)
    elif value is None:
        yield Item(path, node, None, [None if _is_empty(node, item, keys) else item for item in samples])
    else:
        union, node = node, node.variant(value)
        names = [name for name in node.properties if name in value or name not in node.required]
        for name in dict.fromkeys((*names, *value)):
            place = f"{path}/{escaped(name)}"
            below = [_member(union, item, name, node) for item in samples]
            yield from _items(node.child(name), place, value.get(name), below, keys)


def _is_empty(node: Node, value: JsonValue, keys: Keys) -> bool:
    """Return whether a value is null, or an object whose fields are all empty."""
    if value is ABSENT:
        return False
    fields = [(leaf, _accepted(item)) for leaf, item in leaves_of(node, value)]
    return all(any(keys.of(leaf, one) == EMPTY for one in some) for leaf, some in fields)


def _member(union: Node, sample: JsonValue, name: str, node: Node) -> JsonValue:
    """Return the value of a key; None if a sample has another variant, with another kind of value."""
    if sample is ABSENT:
        return ABSENT
    if not isinstance(sample, Mapping) or name not in sample:
        return None
    other = union.variant(sample)
    is_same = other is node or {"leaf"} == {other.child(name).kind, node.child(name).kind}
    return sample[name] if is_same else None


def _list_items(
    node: Node, path: str, value: Sequence[JsonValue], samples: Sequence[JsonValue], keys: Keys
) -> Iterator[Item]:
    assert node.items is not None
    element = node.items
    lists = [item if isinstance(item, list) else [] for item in samples]
    if node.ordered:
        matched = [dict(enumerate(one)) for one in lists]
    elif element.kind != "leaf":
        matched = aligned(element, value, lists, keys)
    else:
        held = [{keys.of(element, item): item for item in reversed(one)} for one in lists]
        matched = [
            {place: _same(element, item, one, keys) for place, item in enumerate(value)} for one in held
        ]
    for place, item in enumerate(value):
        below = [one.get(place, ABSENT) for one in matched]
        yield from _items(element, f"{path}/{place}", item, below, keys)


def _same(element: Node, item: JsonValue, held: Mapping[Hashable, JsonValue], keys: Keys) -> JsonValue:
    """Return the equal element of a list; with a tolerance the first that is near; else ABSENT."""
    if (key := keys.of(element, item)) in held or not (element.tolerance or element.items):
        return held.get(key, ABSENT)
    return next((other for other in held.values() if _is_accepted(element, item, other, keys)), ABSENT)


# ---- Token probabilities of values


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
        end = _DECODER.raw_decode(text, at)[1]
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
            _, at = _DECODER.raw_decode(text, _after(text, at))
            at = yield from _leaf_spans(node.child(name), item, text, at)
    return _after(text, at) + 1


def _after(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return at if between is None else between.end()


# ---- Correctness


def read_reference(schema: Schema, reference: JsonValue) -> JsonValue:
    """Return a reference with numbers and dates read; InputError if it is not valid under the schema."""
    if not isinstance(reference, Mapping):
        raise InputError(f"'answers' must be an object like the schema, got {shown(reference)}. Correct it")
    try:
        _check_names(schema.root, reference, "")
        return schema.root.read(reference, reference=True)
    except InvalidDocument as error:
        raise InputError(f"'answers' is not valid under the schema: {error}. Correct the reference") from None


def _check_names(node: Node, reference: JsonValue, place: str) -> None:
    """Raise InvalidDocument for a key that is nearly one of the schema, whose field would count as empty."""
    if isinstance(reference, list) and node.kind == "list" and node.items is not None:
        for number, item in enumerate(reference):
            _check_names(node.items, item, f"{place}/{number}")
    if node.kind != "object" or not isinstance(reference, Mapping):
        return
    node = node.variant(reference)
    missing = [name for name in node.properties if name not in reference]
    for name, item in reference.items():
        if name in node.properties:
            _check_names(node.properties[name], item, f"{place}/{escaped(name)}")
        elif near := _nearly(name, missing):
            raise InvalidDocument(
                f"{place}/{escaped(name)}: this key is not in the schema, which has {shown(near)}"
            )


def _nearly(name: str, others: Sequence[str]) -> str | None:
    """Return the name that another one misspells; other digits are another name."""
    own, *spelled = (_NO_WORD.sub("", one.casefold()) or one for one in (name, *others))
    near = get_close_matches(own, spelled, n=1, cutoff=NEAR)
    is_near = near and _DIGIT.findall(near[0]) == _DIGIT.findall(own)
    return others[spelled.index(near[0])] if is_near else None


def grade_document(
    schema: Schema, document: JsonValue, reference: JsonValue, keys: Keys
) -> tuple[dict[str, bool], bool]:
    """Return the correctness of each item by its path, and whether no value of the reference is missing.

    A key that the reference leaves out is an empty field; alternatives with null need no value.
    """
    chosen = _chosen(schema.root, document, read_reference(schema, reference), keys)
    items = items_of(schema, document, [chosen], keys)
    correct = {item.path: _is_accepted(item.node, item.value, item.values[0], keys) for item in items}
    return correct, not any(
        item.values[0] is ABSENT or keys.of(item.node, item.values[0]) == EMPTY
        for item in items_of(schema, chosen, [document], keys)
        if all(keys.of(item.node, one) != EMPTY for one in _accepted(item.value))
    )


def _accepted(reference: JsonValue) -> list[JsonValue]:
    is_any = isinstance(reference, Mapping) and reference.keys() == {"any_of"}
    return reference["any_of"] if is_any and isinstance(reference["any_of"], list) else [reference]


def _is_accepted(node: Node, value: JsonValue, reference: JsonValue, keys: Keys) -> bool:
    accepted = _accepted(None if reference is ABSENT else reference)
    return any(are_equal(node, value, one, keys) for one in accepted)


def are_equal(node: Node, value: JsonValue, other: JsonValue, keys: Keys) -> bool:
    """Return whether two values of a field are equal, numbers within the tolerance."""
    if keys.of(node, value) == keys.of(node, other):
        return True
    if isinstance(value, list) and isinstance(other, list) and (element := node.items):
        if node.ordered:
            return len(value) == len(other) and all(
                _is_accepted(element, one, accepted, keys) for one, accepted in zip(value, other)
            )
        rows = [[_is_accepted(element, one, accepted, keys) for accepted in other] for one in value]
        return bool(value and other) and all(map(any, rows)) and all(map(any, zip(*rows)))
    if isinstance(value, Mapping) and isinstance(other, Mapping) and node.kind == "object":
        known = node.variant(value)
        return known is node.variant(other) and all(
            _is_accepted(known.child(name), value.get(name), other.get(name), keys)
            for name in {*value, *other}
        )
    return {type(value), type(other)} <= {int, float} and node.is_near(value, other)


def _chosen(node: Node, value: JsonValue, reference: JsonValue, keys: Keys) -> JsonValue:
    """Choose the alternatives of a reference's elements that a document holds."""
    if node.kind == "list" and isinstance(reference, list) and node.items is not None:
        element = node.items
        if element.kind != "leaf":
            return reference
        alternatives = list(map(_accepted, reference))
        if all(len(some) == 1 for some in alternatives) or not value:
            return [some[0] for some in alternatives]
        equal = np.array([[_is_accepted(element, one, item, keys) for one in value] for item in reference])
        pairs = {row: value[column] for _, row, column in _matched(equal.astype(float))}
        return [
            next((a for a in some if row in pairs and are_equal(element, pairs[row], a, keys)), some[0])
            for row, some in enumerate(alternatives)
        ]
    if node.kind != "object" or not isinstance(reference, Mapping):
        return reference
    node, value = node.variant(reference), value if isinstance(value, Mapping) else {}
    return {name: _chosen(node.child(name), value.get(name), item, keys) for name, item in reference.items()}
