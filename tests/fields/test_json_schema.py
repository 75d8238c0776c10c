"""Schemas: what is refused, what is read, and which values are equal."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import pydantic_function_tool
from pydantic import BaseModel
from pydantic import Field as PydanticField

from semcal.errors import InputError
from semcal.fields.schema import KEYWORDS, MOST_LEAVES, InvalidDocument, Node, parse_schema


def schema(**properties):
    return parse_schema({"type": "object", "properties": properties})


def leaf(**rules) -> Node:
    return schema(value=rules).root.properties["value"]


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"$ref": "#"}, "#/properties/a"),
        ({"$ref": "#/$defs/node"}, "#/properties/a/properties/next"),
        ({"$ref": "https://example.org/a.json"}, "#/properties/a"),
        ({"$ref": "#/$defs/nowhere"}, "#/properties/a"),
        ({"oneOf": [{"type": "object"}] * 2, "discriminator": {"propertyName": "kind"}}, "#/properties/a"),
        ({"oneOf": [{"type": "object"}] * 2, "discriminator": {"propertyName": ["kind"]}}, "#/properties/a"),
        ({"oneOf": [{"type": "object"}, {"type": "object", "properties": {"x": {}}}]}, "#/properties/a"),
        ({"not": {}}, "#/properties/a"),
        ({"pattern": "("}, "#/properties/a"),
        ({"minItems": "2"}, "#/properties/a"),
        # limits that a merged schema would lose, and keywords that would have no effect
        ({"allOf": [{"minimum": 1}, {"minimum": 5}]}, "#/properties/a: 'minimum'"),
        ({"type": "string", "x-set": True}, "#/properties/a: 'x-set'"),
        ({"type": "number", "x-tolerance": -1}, "#/properties/a: 'x-tolerance'"),
        (3, "#/properties/a"),
    ],
)
def test_a_schema_whose_fields_are_no_finite_tree_is_refused_with_its_place(part, place):
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    defs = {"node": node}
    with pytest.raises(InputError, match="'schema'") as caught:
        parse_schema({"type": "object", "properties": {"a": part}, "$defs": defs})
    assert place in str(caught.value)


@pytest.mark.parametrize("root", [{"type": "array"}, {"type": "string"}, [], None])
def test_the_root_of_a_schema_is_an_object(root):
    with pytest.raises(InputError, match="'schema'"):
        parse_schema(root)


def test_a_schema_of_500_leaves_is_read_and_one_of_501_is_refused():
    most = {f"field {i}": {"type": "integer"} for i in range(MOST_LEAVES)}
    document = dict.fromkeys(most, 1)
    assert schema(**most).root.read(document) == document
    with pytest.raises(InputError, match="501"):
        schema(**most, one_more={"type": "integer"})
    further = {"type": "object", "properties": most | {"one_more": {}}}
    with pytest.raises(InputError, match="501"):
        schema(entries={"type": "object", "additionalProperties": further})


def test_references_that_multiply_are_refused():
    defs = {
        f"d{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "abcd"}}
        for i in range(12)
    }
    document = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs | {"d12": {}}}
    with pytest.raises(InputError, match="500"):
        parse_schema(document)


def test_definitions_and_allof_are_followed():
    money = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    total = {"allOf": [{"$ref": "#/definitions/money"}], "description": "Sum"}
    parsed = parse_schema({"properties": {"total": total}, "definitions": {"money": money}})
    assert [node.path for node in parsed.root.leaves()] == ["/total/amount"]
    with pytest.raises(InvalidDocument, match="/total/amount"):
        parsed.root.read({"total": {}})


EURO = {"type": "object", "propertyNames": {"enum": ["EUR"]}, "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("part", "valid", "invalid"),
    [
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}, ["x", 1], [1.5]),
        (EURO, {"EUR": 1}, {"x": 1}),
        ({"type": "string", "nullable": True}, None, 3),
        ({"$ref": "#/$defs/a%20b"}, 1, "x"),
    ],
)
def test_tuples_and_known_keys_are_read(part, valid, invalid):
    """Pydantic writes tuples and dictionaries of an enum so."""
    definitions = {"a b": {"type": "integer"}}
    parsed = parse_schema({"type": "object", "properties": {"a": part}, "$defs": definitions})
    assert parsed.root.read({"a": valid}) == {"a": valid}
    with pytest.raises(InvalidDocument, match="/a"):
        parsed.root.read({"a": invalid})


def test_a_mapping_of_openapi_tells_objects_apart():
    kinds = {
        name: {"type": "object", "properties": {"kind": {"type": "string"}, "n": {"type": number}}}
        for name, number in (("x", "integer"), ("y", "string"))
    }
    tag = {"propertyName": "kind", "mapping": {"whole": "#/$defs/x"}}  # y is mapped by its name
    part = {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], "discriminator": tag}
    parsed = parse_schema({"type": "object", "properties": {"a": part}, "$defs": kinds})
    for value in ({"kind": "whole", "n": 1}, {"kind": "y", "n": "one"}):
        assert parsed.root.read({"a": value}) == {"a": value}
    for value in ({"kind": "y", "n": 1}, {"kind": "x", "n": 1}):
        with pytest.raises(InvalidDocument, match="/a"):
            parsed.root.read({"a": value})


def test_classes_of_pydantic_are_schemas():
    class Card(BaseModel):
        kind: Literal["card"]
        number: str

    class Cash(BaseModel):
        kind: Literal["cash"]
        currency: str | None = None

    class Payment(BaseModel):
        method: Annotated[Card | Cash, PydanticField(discriminator="kind")]
        amount: float | None

    parsed = parse_schema(Payment)
    read = parsed.root.read({"method": {"kind": "cash", "currency": "EUR"}, "amount": "12.50"})
    assert read == {"method": {"kind": "cash", "currency": "EUR"}, "amount": 12.5}
    with pytest.raises(InvalidDocument, match="/method/kind"):
        parsed.root.read({"method": {"kind": "cheque"}, "amount": None})
    assert parsed.hash == parse_schema(dict(reversed(Payment.model_json_schema().items()))).hash


@pytest.mark.parametrize(
    ("rules", "written", "value"),
    [
        ({"type": "number"}, "$1,200.50", 1200.5),
        ({"type": "number"}, "($1,200.50)", -1200.5),
        ({"type": "number"}, "12.50-", -12.5),
        ({"type": "number"}, "RM46.90", 46.9),
        ({"type": "integer"}, "1200", 1200),
        ({"type": "integer"}, 3.0, 3),
        ({"type": "string", "format": "date"}, "9 November 1989", "1989-11-09"),
        ({"type": "string", "format": "date"}, "unknown", "unknown"),
        ({"type": "string", "format": "date"}, "19891109", "1989-11-09"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x", "x"),
        ({}, {"free": [1, None]}, {"free": [1, None]}),
    ],
)
def test_numbers_and_dates_are_read(rules, written, value):
    assert leaf(**rules).read(written) == value


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ({"type": "number"}, "twelve apples"),
        ({"type": "number"}, float("nan")),
        ({"type": "number"}, True),
        ({"type": "integer"}, 2.5),
        ({"type": "string"}, None),
        ({"type": "string", "pattern": "^A"}, "B"),
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"enum": ["a", 1]}, True),
        ({"type": "number", "minimum": 0}, -1),
        ({"type": "number", "exclusiveMaximum": 1}, 1),
        ({"type": "number", "multipleOf": 0.5}, 0.3),
        ({"type": "array", "minItems": 1}, []),
        ({"type": "array", "uniqueItems": True}, [1, 1]),
        ({"type": "object", "additionalProperties": False}, {"x": 1}),
        ({"type": "object", "required": ["x"]}, {}),
    ],
)
def test_invalid_values_name_their_place(rules, value):
    with pytest.raises(InvalidDocument, match="/value"):
        schema(value=rules).root.read({"value": value})


MOMENTS = ("2024-01-01T12:00:00+02:00", "2024-01-01T10:00:00Z")


@pytest.mark.parametrize(
    ("rules", "first", "second", "equal"),
    [
        ({"type": "string"}, "The Acme Corp.", "acme corp", True),
        ({"type": "string", "format": "email"}, "a@b.c", "A@b.c", False),
        ({"type": "string", "format": "date"}, "1989-11-09", "9 Nov 1989", True),
        ({"type": "string", "format": "date-time"}, *MOMENTS, True),
        ({"type": "number"}, 1, 1.0, True),
        ({}, True, 1, False),
        ({}, None, False, False),
        ({"type": "array", "x-set": True}, ["a", "b"], ["b", "a"], True),
        ({}, ["a", "b"], ["b", "a"], False),
        ({}, {"a": 1, "b": None}, {"a": 1.0}, True),
        ({"anyOf": [{"enum": ["A", "a"]}, {"type": "number"}]}, "A", "a", False),
    ],
)
def test_values_are_equal_by_their_type(rules, first, second, equal):
    node = leaf(**rules)
    assert (node.key(first) == node.key(second)) is equal


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_place_without_rules_keeps_every_value(value):
    node = leaf()
    assert node.read(value) == value
    assert node.key(json.loads(json.dumps(value))) == node.key(value)


TYPES = st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object"])
SCHEMAS = st.recursive(
    st.dictionaries(st.sampled_from(sorted(KEYWORDS)), VALUES | TYPES, max_size=2)
    | st.builds(lambda kind: {"type": kind}, TYPES | st.lists(TYPES, max_size=2)),
    lambda inner: (
        st.builds(lambda part: {"type": "array", "items": part}, inner)
        | st.builds(lambda parts: {"type": "object", "properties": parts}, st.dictionaries(st.text(), inner))
        | st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, max_size=3))
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), SCHEMAS, max_size=4), st.dictionaries(st.text(), VALUES) | VALUES, st.data()
)
def test_any_value_is_read_or_refused(properties, value, data):
    """Parsing and reading end in a value or an InputError, whatever keywords, keys and values are."""
    try:
        parsed = parse_schema({"type": "object", "properties": properties})
    except InputError:
        return
    if properties:
        value = {name: data.draw(VALUES) for name in properties}
    with suppress(InvalidDocument):
        read = parsed.root.read(value)
        assert parsed.root.key(read) == parsed.root.key(parsed.root.read(read))


# ---- Equal schemas


class Part(BaseModel):
    name: str
    price: float = PydanticField(default=0.0, ge=0)


class Bill(BaseModel):
    """A bill."""

    vendor: str = PydanticField(description="The sender")
    main: Part = PydanticField(description="The largest part")
    note: str | None = None
    parts: list[Part] = []
    codes: dict[str, int] = {}


def test_the_schema_of_a_class_equals_the_form_that_the_official_client_sends():
    own, sent = parse_schema(Bill), pydantic_function_tool(Bill)["function"]["parameters"]
    assert own.hash == parse_schema(sent).hash


def test_equal_schemas_differ_in_order_references_and_notes_only():
    part = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    own = schema(a=part, b={**part, "description": "The second"})
    below = {"$ref": "#/$defs/part"}
    same = {
        "$defs": {"part": {**part, "title": "Part"}},
        "properties": {"b": {**below, "description": "The second"}, "a": {**below, "default": {"n": 1}}},
        "type": "object",
        "description": "Two parts",
    }
    assert parse_schema(same).hash == own.hash
    for name, changed in (("type", "number"), ("minimum", 0), ("description", "A number")):
        other = {**part, "properties": {"n": {"type": "integer", name: changed}}}
        found = schema(a=other, b={**part, "description": "The second"})
        assert found.hash != own.hash, name
    loose = {**part, "required": []}
    found = schema(a=loose, b={**part, "description": "The second"})
    assert found.hash == own.hash


def test_schemas_that_are_nested_too_deeply_are_refused():
    for depth in (300, 450):
        deep = json.loads('{"type": "array", "items": ' * depth + "{}" + "}" * depth)
        with suppress(InputError):  # a stack that is nearly full refuses earlier
            assert schema(a=deep).hash
