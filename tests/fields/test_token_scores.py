"""Token probabilities of the values of sampled documents, from texts of tokens that are split anywhere."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.fields.documents import leaf_scores, leaves_of
from semcal.fields.rows import add_fields
from semcal.fields.schema import parse_schema
from semcal.rows import Row

SCHEMA = parse_schema(
    {
        "type": "object",
        "properties": {
            "city": {"type": ["string", "null"]},
            "total": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "set": {"type": "array", "x-set": True, "items": {"type": "integer"}},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        },
    }
)
TEXT = '{"city": "Rome, IT", "total": 12.5}'
TOKENS = ['{"', "city", '":', ' "', "Ro", "me", ', IT"', ', "total', '": ', "12", ".5", "}"]


def in_log(*probabilities):
    return list(map(math.log, probabilities))


def test_the_tokens_of_a_value_are_those_that_hold_a_part_of_it():
    p = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.9, 0.01, 0.02, 0.8, 0.4, 0.03]
    scores = leaf_scores(SCHEMA, json.loads(TEXT), TOKENS, in_log(*p))
    found = {node.path: of_value for node, _, of_value in scores}
    assert found["/city"] == pytest.approx([0.5, (0.5 + 0.6 + 0.9) / 3])
    assert found["/total"] == pytest.approx([0.4, 0.6])


def test_an_empty_text_has_its_quotes_and_null_its_word():
    texts = ['{"city": ', "null", ', "tags": ["', '"]}']
    found = leaf_scores(SCHEMA, {"city": None, "tags": [""]}, texts, in_log(0.1, 0.5, 0.4, 0.2))
    assert [score for _, _, score in found] == [pytest.approx([0.5, 0.5]), pytest.approx([0.2, 0.3])]


documents = st.fixed_dictionaries(
    {},
    optional={
        "city": st.none() | st.text(),
        "total": st.floats(-1e6, 1e6),
        "tags": st.lists(st.text(), max_size=3),
        "set": st.lists(st.integers(), max_size=3),
        "lines": st.lists(st.fixed_dictionaries({}, optional={"n": st.integers()}), max_size=3),
    },
)


@given(documents, st.lists(st.integers(1, 5), min_size=1), st.integers(0, 2))
def test_each_leaf_has_the_tokens_of_its_place_however_the_text_is_split(document, sizes, indent):
    text = f"Here it is:\n```json\n{json.dumps(document, indent=indent or None)}\n```"
    pieces, at = [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    scores = leaf_scores(SCHEMA, SCHEMA.root.read(document), pieces, [-0.5] * len(pieces))
    leaves = list(leaves_of(SCHEMA.root, SCHEMA.root.read(document)))
    assert [(node, value) for node, value, _ in scores] == leaves
    assert all(score == pytest.approx([math.exp(-0.5)] * 2) for _, _, score in scores)


def test_fields_have_the_means_over_the_samples_that_state_the_value():
    made = [('{"city": "', "Rome", '"}'), ('{"city": "', "rome", '"}'), ('{"city": "', "Oslo", '"}')]
    row = Row(
        {
            "id": "1",
            "samples": ["".join(tokens) for tokens in made],
            "token_texts": list(map(list, made)),
            "token_log_probs": [in_log(1, 0.9, 1), in_log(1, 0.5, 1), in_log(1, 0.1, 1)],
        }
    )
    (found,) = add_fields([row], schema=SCHEMA)
    assert found["fields"]["/city"]["token_scores"] == pytest.approx([0.7, 0.7])
    (without,) = add_fields([row.without("token_texts")], schema=SCHEMA)
    assert "token_scores" not in without["fields"]["/city"]
    other = row.set(token_texts=[["{}"] * 3] * 3)  # texts of another document
    assert "token_scores" not in add_fields([other], schema=SCHEMA)[0]["fields"]["/city"]


@pytest.mark.parametrize("texts", [[["a"]], [["a", 1]], ["ab"], [None, None]])
def test_texts_that_do_not_belong_to_the_log_probabilities_are_named(texts):
    row = Row({"id": "1", "samples": ["{}"], "token_texts": texts, "token_log_probs": [[-1.0, -1.0]]})
    with pytest.raises(InputError, match="token_texts"):
        _ = row.scored_tokens
