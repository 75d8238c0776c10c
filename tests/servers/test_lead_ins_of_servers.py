"""Likelihoods behind a lead-in where a server encodes the prompt: by the texts of its entries."""

from __future__ import annotations

import pytest

from semcal.servers.protocol import TokenEntry
from semcal.servers.sampler import _entries_before


@pytest.mark.parametrize(
    ("tokens", "lead", "count"),
    [
        (["Sure", "!", " Paris", "."], "Sure! ", 2),
        (["Sure", "!", "\n\n", "Paris"], "Sure!\n\n", 3),
        (["Answer", ":", " ", "Paris"], "Answer: ", 3),
        (["Answer", ":\nPa", "ris"], "Answer:\n", 0),
        (["<0xE2>", "Paris"], "\u2022 ", 0),
        ([], "Sure! ", 0),
    ],
)
def test_entries_before_an_answer_end_where_it_begins(tokens: list[str], lead: str, count: int) -> None:
    assert _entries_before(lead, [TokenEntry(text, -1.0) for text in tokens]) == count
