"""Blocks of a run: made once, whole or absent, refused when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from semcal.errors import StoreError
from semcal.experiment.store import Store, digest

ROWS = [{"id": "1", "u": -float("inf")}, {"id": "2", "text": "è\n"}]


def test_a_block_is_computed_once(tmp_path: Path) -> None:
    calls = []
    store = Store(tmp_path)
    first = store.rows("sample", {"seed": 0}, lambda: calls.append(1) or ROWS)
    second = Store(tmp_path).rows("sample", {"seed": 0}, lambda: calls.append(1) or [])
    assert first == second == [{"id": "1", "u": "-inf"}, {"id": "2", "text": "è\n"}]
    assert calls == [1]


def test_other_settings_are_another_block(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.rows("sample", {"seed": 0}, lambda: ROWS)
    assert store.rows("sample", {"seed": 1}, list) == []
    assert store.rows("cluster", {"seed": 0}, list) == []


def test_a_failure_while_computing_leaves_nothing(tmp_path: Path) -> None:
    def compute():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Store(tmp_path).rows("sample", {}, compute)
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize("damage", ["cut", "edit", "drop", "empty", "garble"])
def test_a_damaged_block_is_named_and_refused(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    store.rows("sample", {}, lambda: ROWS)
    path = store.path("sample", {})
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(
        {
            "cut": "".join(lines)[:-5],
            "edit": "".join(lines).replace('"1"', '"3"'),
            "drop": "".join(lines[1:]),
            "empty": "",
            "garble": "x" + "".join(lines),
        }[damage]
    )
    with pytest.raises(StoreError, match=path.name):
        store.rows("sample", {}, lambda: ROWS)


def test_digests_do_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": [1.5, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
