"""Pairs put together from encoded sides are what the tokenizer makes of the pairs."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_nli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semcal.models.nli import PairEncoder, pair_encoder_for


def whole(tokenizer: Any, pairs: list[tuple[str, str]]) -> list[dict[str, list[int]]]:
    columns = tokenizer([a for a, _ in pairs], [b for _, b in pairs])
    return [dict(zip(columns.keys(), values)) for values in zip(*columns.values())]


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=4))
def test_any_pairs_are_encoded_as_by_the_tokenizer(family: str, pairs: list[tuple[str, str]]) -> None:
    tokenizer = tiny_nli.tokenizer(family)
    by_sides = pair_encoder_for(tokenizer)
    assert by_sides is not None
    assert by_sides.encode(pairs) == whole(tokenizer, pairs)


def test_a_limit_that_was_set_on_the_tokenizer_cuts_nothing() -> None:
    tokenizer = tiny_nli.tokenizer("bert")
    by_sides = pair_encoder_for(tokenizer)
    assert by_sides is not None
    pair = ("one two three four five", "six seven eight")
    expected = whole(tokenizer, [pair])
    tokenizer(*pair, truncation=True, max_length=4, padding="max_length")
    assert by_sides.encode([pair]) == expected


def test_a_tokenizer_that_gives_other_columns_or_other_ids_is_left_alone(monkeypatch) -> None:
    tokenizer = tiny_nli.tokenizer("roberta")
    original = type(tokenizer).__call__

    def with_more(self: Any, *args: Any, **how: Any) -> dict[str, Any]:
        return {**original(self, *args, **how), "more": [[0]]}

    monkeypatch.setattr(type(tokenizer), "__call__", with_more)
    assert pair_encoder_for(tokenizer) is None
    monkeypatch.undo()
    assert pair_encoder_for(tiny_nli.tokenizer("roberta")) is not None
    monkeypatch.setattr(PairEncoder, "_encoded", lambda self, text: self._backend.encode(text + " x"))
    assert pair_encoder_for(tiny_nli.tokenizer("roberta")) is None


def test_a_tokenizer_without_the_library_is_left_alone() -> None:
    assert pair_encoder_for(object()) is None
