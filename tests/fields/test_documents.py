"""Documents of samples: reading, the document that samples agree on, items, and correctness."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.fields.documents import (
    ABSENT,
    Keys,
    agreed_document,
    grade_document,
    items_of,
    read_document,
    read_reference,
)
from semcal.fields.schema import InvalidDocument, parse_schema

TEXT = {"type": "string"}
INVOICE = parse_schema(
    {
        "type": "object",
        "required": ["vendor", "lines"],
        "properties": {
            "vendor": TEXT,
            "total": {"type": ["number", "null"]},
            "tags": {"type": ["array", "null"], "items": TEXT},
            "address": {"anyOf": [{"type": "object", "properties": {"city": TEXT}}, {"type": "null"}]},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": TEXT, "price": {"type": "number"}},
                },
            },
        },
    }
)


def agreed(*documents, schema=INVOICE):
    return agreed_document(schema, documents, Keys())


def items(document, *documents, schema=INVOICE):
    return {item.path: item for item in items_of(schema, document, documents, Keys())}


def invoice(**fields):
    return {"vendor": "Acme", "lines": [], **fields}


@pytest.mark.parametrize(
    "text",
    [
        '{"vendor": "Acme", "lines": []}',
        'Here it is:\n```json\n{"vendor": "Acme", "lines": []}\n```\nDone {it}.',
        'Wrong: {"vendor": "B", "lines": [{"name": "x"}],} Right: {"vendor": "Acme", "lines": []}',
        'I see {no JSON} and {"other": 1}, so {"vendor": "Acme", "lines": []}',
        '{{"vendor": "Acme", "lines": []}}',
        'An object begins with {, so: {"vendor": "Acme", "lines": []}',
        '<think>{"vendor": "B", "lines": []}?</think> {"vendor": "Acme", "lines": []}',
    ],
)
def test_a_document_is_found_in_a_fence_among_text_and_after_reasoning(text):
    assert read_document(INVOICE, text) == {"vendor": "Acme", "lines": []}


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "none", "[]", "{", '{"vendor": "A"', '{"vendor": 1, "lines": []}', '{"lines": []}'),
        '{"vendor": "A", "vendor": "B", "lines": []}',
        '{"vendor": "A", "lines": [], "total": NaN}',
        '{"vendor": "A", "lines": [], "spare": {"vendor": "B", "lines": []}, "total": 1',
        "{'vendor': 'A', 'spare': {\"vendor\": \"B\", \"lines\": []}}",
        '{"note": "a } in a text", "spare": {"vendor": "B", "lines": []}, "total": 1',
        '<think>{"vendor": "Acme", "lines": []}',
    ],
)
def test_a_text_without_a_valid_document_is_an_invalid_sample(text):
    with pytest.raises(InvalidDocument, match="/"):
        read_document(INVOICE, text)


def test_the_most_frequent_value_of_each_field_is_taken_in_its_commonest_wording():
    documents = [invoice(total=2), invoice(vendor="ACME", total=3), invoice(vendor="Bo", total=3)]
    assert agreed(*documents, invoice(vendor="ACME", total=3)) == invoice(vendor="ACME", total=3)


def test_a_list_of_scalars_holds_the_elements_of_most_samples_and_their_shares():
    documents = [invoice(tags=["a", "b"]), invoice(tags=["B", "c"]), invoice(tags=["b"]), invoice(tags=None)]
    document = agreed(*documents)
    assert document["tags"] == ["b"]
    assert items(document, *documents)["/tags/0"].values == ["b", "B", "b", ABSENT]


def test_elements_in_order_are_compared_by_place_and_sets_as_a_whole():
    ordered = parse_schema({"properties": {"a": {"type": "array", "items": TEXT, "x-ordered": True}}})
    lists = [{"a": ["x", "y"]}, {"a": ["y", "x"]}, {"a": ["x", "y", "z"]}]
    assert agreed(*lists, schema=ordered) == {"a": ["x", "y"]}
    assert items(lists[0], *lists, schema=ordered)["/a/1"].values == ["y", "x", "y"]
    as_set = parse_schema({"properties": {"a": {"type": "array", "items": TEXT, "x-set": True}}})
    document = agreed({"a": ["z"]}, *lists[:2], schema=as_set)
    assert list(items(document, schema=as_set)) == ["/a"]
    assert {*document["a"]} == {"x", "y"}


def test_lists_of_objects_are_aligned_and_an_element_that_most_samples_lack_is_absent():
    bolt, nut = {"name": "Bolt", "price": 2}, {"name": "Nut", "price": 1}
    documents = [
        invoice(lines=[bolt, nut]),
        invoice(lines=[{"name": "nut", "price": 1}, {"name": "bolt", "price": 3}]),
        invoice(lines=[nut, bolt, {"name": "Pin", "price": 5}]),
    ]
    document = agreed(*documents)
    assert document["lines"] == [bolt, nut]
    at = items(document, *documents)
    assert at["/lines/0/price"].values == [2, 3, 2]
    assert at["/lines/1/name"].values == ["Nut", "nut", "Nut"]


def test_a_sample_without_an_element_has_no_values_for_its_fields():
    documents = [invoice(lines=[{"name": "Bolt"}])] * 2 + [invoice(lines=[])]
    at = items(documents[0], *documents)
    assert at["/lines/0/name"].values == ["Bolt", "Bolt", ABSENT]
    assert at["/lines/0/price"].values == [None, None, ABSENT]
    schema = parse_schema({"properties": {"a": {"type": "array", "items": {"properties": {"b": TEXT}}}}})
    documents = [{"a": [{}, {"b": "x"}]}, {"a": [{"b": "x"}, {}]}, {"a": [{"b": "x"}]}]
    assert items(documents[0], *documents, schema=schema)["/a/0/b"].values == [None, None, ABSENT]


def test_an_empty_field_is_an_item_and_an_empty_list_has_none():
    document = agreed(invoice(), invoice(address=None), invoice(address={"city": "Rome"}))
    assert items(document, document).keys() == {"/vendor", "/total", "/address"}
    full = invoice(address={"city": "Rome"})
    assert items(full, full)["/address/city"].value == "Rome"


def test_a_document_that_is_not_valid_as_a_whole_gives_way_to_a_sample():
    pair = parse_schema({"properties": {"a": {"type": "array", "items": TEXT, "minItems": 1}}})
    assert agreed({"a": ["x"]}, {"a": ["y"]}, {"a": ["z"]}, schema=pair) in [{"a": [x]} for x in "xyz"]


def test_alternatives_lists_and_null_of_references():
    reference = {
        "vendor": ["Acme", "Acme Inc."],
        "total": {"any_of": [5, 7.0]},
        "tags": ["a", "b"],
        "address": None,
        "lines": [{"name": "nut"}, {"name": "bolt", "price": 2}],
    }
    read_reference(INVOICE, reference)
    lines = [{"name": "Bolt", "price": 2}, {"name": "Nut", "price": 9}]
    document = invoice(vendor="acme inc", total=7, tags=["a", "c"], address={"city": "Rome"}, lines=lines)
    correct, is_complete = grade_document(INVOICE, document, reference, Keys())
    assert correct == {
        **dict.fromkeys(("/vendor", "/total", "/tags/0", "/lines/0/name", "/lines/0/price"), True),
        **dict.fromkeys(("/tags/1", "/address/city", "/lines/1/price"), False),
        "/lines/1/name": True,
    }
    assert not is_complete


EMPTY, WHOLE = {"type": ["string", "null"]}, {"type": "integer"}
CENTS = {"type": "number", "x-tolerance": 0.01}
ROW, SET_OF_CENTS = {"type": "array", "items": CENTS}, {"type": "array", "items": CENTS, "x-set": True}
PART = {"type": "object", "properties": {"n": TEXT, "p": CENTS}}
SET_OF_PARTS = {"type": "array", "items": PART, "x-set": True}
LISTS = {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}}
PARTS = [{"name": "bolt", "price": 2}, {"name": "nut", "price": 3}]
ALTERNATIVES = [
    {"name": ["Nut", "nuts"], "price": {"any_of": [3, None]}},
    {"name": {"any_of": ["bolt"]}, "price": [2]},
]
GRADED = [
    # an alternative of null needs no value
    ({"a": TEXT, "b": TEXT}, {"a": "v"}, {"a": "v", "b": {"any_of": ["x", None]}}, set(), True),
    ({"a": TEXT, "b": TEXT}, {"a": "v"}, {"a": "v", "b": {"any_of": ["x", "y"]}}, {"/b"}, False),
    # a document is complete if no element of the reference is missing
    ({}, invoice(tags=["a"]), invoice(tags=["a", "b"]), set(), False),
    ({}, invoice(tags=[]), invoice(tags=["x"]), set(), False),
    # a blank text is an empty field
    *(({"a": EMPTY}, {"a": empty}, {"a": None}, set(), True) for empty in ("", " ")),
    *(({"a": EMPTY}, {"a": empty}, {"a": "x"}, {"/a"}, False) for empty in ("", " ", None)),
    # elements with alternatives in all leaves are aligned
    ({}, invoice(lines=PARTS), invoice(lines=ALTERNATIVES), set(), True),
    # numbers at the tolerance are equal, and long integers are exact
    ({"a": CENTS, "b": WHOLE}, {"a": 1.01, "b": 10**18}, {"a": 1.02, "b": 10**18}, set(), True),
    ({"a": CENTS, "b": WHOLE}, {"a": 1.01, "b": 10**18}, {"a": 1.02, "b": 10**18 + 1}, {"/b"}, True),
    # a tolerance holds for the elements of a list and their alternatives
    (
        {"a": {"type": "array", "items": CENTS}},
        {"a": [1.0, 2.0, 3.0]},
        {"a": [3.01, {"any_of": [9, 2.005]}, 1.02]},
        {"/a/0"},
        False,
    ),
    # a tolerance and alternatives hold within sets, lists in lists, and alternative types
    ({"a": SET_OF_CENTS}, {"a": [2.0, 1.0]}, {"a": [1.01, {"any_of": [9, 2]}]}, set(), True),
    ({"a": SET_OF_PARTS}, {"a": [{"n": "x", "p": 1}]}, {"a": [{"n": ["y", "x"], "p": 1.01}]}, set(), True),
    ({"a": {"type": "array", "items": ROW}}, {"a": [[1, 2], [3]]}, {"a": [[3.01], [1, 2]]}, set(), True),
    ({"a": {"type": "array", "items": ROW}}, {"a": [[1, 2]]}, {"a": [[2, 1]]}, {"/a/0"}, False),
    ({"a": {"anyOf": [CENTS, TEXT]}}, {"a": 1.0}, {"a": "1.01"}, set(), True),
    ({"a": {"anyOf": [{"type": "number"}, TEXT], "x-tolerance": 0.1}}, {"a": 1.0}, {"a": 1.05}, set(), True),
    # each element of a document is an alternative of one element of the reference
    ({}, invoice(tags=["a", "b"]), invoice(tags=[{"any_of": ["a", "b"]}, "a"]), set(), True),
    # an object without values, and an empty set, are empty fields
    ({}, invoice(), invoice(address={"city": None}), set(), True),
    ({}, invoice(), invoice(address={"city": {"any_of": ["Rome", ""]}}), set(), True),
    ({"a": SET_OF_CENTS}, {"a": []}, {"a": None}, set(), True),
    # a key may be named any_of
    ({"a": {"type": "array"}}, {"a": [{"any_of": 2}]}, {"a": [{"any_of": 2}]}, set(), True),
    # lists in a dictionary are lists
    ({"a": LISTS}, {"a": {"x": ["u", "v"]}}, {"a": {"x": ["v", "u", "w"]}}, set(), False),
    ({"*": {"type": "array", "items": TEXT}}, {"*": ["u", "v"]}, {"*": ["v", "u"]}, set(), True),
]


@pytest.mark.parametrize(("properties", "document", "reference", "wrong", "complete"), GRADED)
def test_fields_are_correct_and_documents_complete(properties, document, reference, wrong, complete):
    schema = parse_schema({"type": "object", "properties": properties}) if properties else INVOICE
    correct, is_complete = grade_document(schema, document, reference, Keys())
    assert ({path for path in correct if not correct[path]}, is_complete) == (wrong, complete)


@pytest.mark.parametrize(
    ("reference", "place"),
    [
        (3, ""),
        (invoice(vendor=1), "/vendor"),
        ({"lines": []}, "/vendor"),
        (invoice(vendor={"any_of": []}), "/vendor"),
        (invoice(total=["x"]), "/total"),
        (invoice(lines=[{"price": 2}]), "/lines/0/name"),
        (invoice(address={"any_of": [{"city": "Rome"}]}), "/address"),
        ({"any_of": [invoice()]}, "/"),
        # misspelled keys
        (invoice(Total=2), "/Total"),
        (invoice(totl=2), "/totl"),
        (invoice(lines=[{"name": "x"}, {"name": "y", "pric": 2}]), "/lines/1/pric"),
        (invoice(address={"City": "Rome"}), "/address/City"),
    ],
)
def test_an_invalid_reference_is_refused_with_its_place(reference, place):
    with pytest.raises(InputError, match=f"'answers'.*{place}"):
        read_reference(INVOICE, reference)


@pytest.mark.parametrize(
    "reference",
    [{"price_2023": 1, "price_2024": 2}, {"price_2024": 2}, {"prices": 1, "price_2023": 1}, {"€": 1}],
)
def test_further_keys_of_a_reference_are_allowed_if_the_schema_allows_them(reference):
    schema = parse_schema({"properties": {"price_2023": {"type": "number"}, "$": {"type": "number"}}})
    assert read_reference(schema, reference) == reference


def test_500_leaves_and_keys_of_other_scripts_are_items():
    names = [f"{'字/~é'[i % 4]}{i}" for i in range(500)]
    wide = parse_schema({"properties": {name: {"type": "integer"} for name in names}})
    document = read_document(wide, json.dumps(dict.fromkeys(names, 1)))
    found = items(agreed(document, document, schema=wide), document, schema=wide)
    assert len(found) == 500
    assert {"/字0", "/~11", "/~02", "/é3"} <= found.keys()


FREE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
LINES = st.fixed_dictionaries({"name": st.sampled_from("abc")}, optional={"price": st.integers(0, 2)})
INVOICES = st.fixed_dictionaries(
    {"vendor": st.text(max_size=2), "lines": st.lists(LINES, max_size=3)},
    optional={
        "total": st.none() | st.integers(0, 2),
        "tags": st.none() | st.lists(st.sampled_from("abc"), max_size=3),
        "address": st.none() | st.fixed_dictionaries({}, optional={"city": st.sampled_from("xy")}),
        "further": FREE,
    },
)


def leaves(value):
    """Count what is not a list or an object; of an empty one nothing."""
    if isinstance(value, Mapping):
        return sum(map(leaves, value.values()))
    return sum(map(leaves, value)) if isinstance(value, list) else 1


@given(st.lists(INVOICES, min_size=1, max_size=5))
def test_samples_agree_on_a_valid_document_whose_items_are_all_its_leaves(documents):
    document = agreed(*documents)
    assert INVOICE.root.read(document) == document
    found = items(document, *documents)
    assert all(len(item.values) == len(documents) for item in found.values())
    for path, item in found.items():
        value = document
        for part in path.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value.get(name)
        assert value == item.value
    known = {name: value for name, value in document.items() if (name, value) != ("tags", None)}
    known.pop("further", None)
    assert sum(not path.startswith("/further") for path in found) >= leaves(known)


@given(INVOICES, st.integers(1, 4))
def test_equal_samples_agree_on_themselves_and_every_field_is_correct(document, m):
    again = agreed(*[document] * m)
    assert INVOICE.root.key(again) == INVOICE.root.key(document) or has_repeats(document)
    correct, is_complete = grade_document(INVOICE, document, document, Keys())
    assert is_complete
    assert all(correct.values())
    read_reference(INVOICE, document)


def has_repeats(document):
    tags = document.get("tags") or []
    return len({*tags}) < len(tags)


@given(st.text() | FREE.map(json.dumps))
def test_any_text_is_read_or_refused(text):
    for place in (text, f"```json\n{text}\n```", f"Answer: {text}"):
        try:
            INVOICE.root.read(read_document(INVOICE, place))
        except InvalidDocument:
            continue
