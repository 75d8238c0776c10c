"""Blocks of a run: made once, whole or absent, refused when damaged."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from semcal.errors import StoreError
from semcal.store import Store, digest, find_rows, keep_rows, read_block

ROWS = [{"id": "1", "u": -float("inf")}, {"id": "2", "text": "è\n"}]


def test_a_block_is_computed_once(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []
    first = store.rows("sample", {"seed": 0}, lambda: calls.append(1) or ROWS)
    second = store.rows("sample", {"seed": 0}, lambda: calls.append(1) or [])
    assert first == second == [{"id": "1", "u": "-inf"}, {"id": "2", "text": "è\n"}]
    assert calls == [1]
    assert store.rows("sample", {"seed": 1}, list) == []  # other settings are another block
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
        Store(tmp_path).rows("sample", {}, lambda: ROWS)


def test_blocks_whose_contents_are_swapped_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keys = ({"seed": 0}, {"seed": 1})
    for key in keys:
        store.rows("sample", key, lambda: ROWS)
    one, other = (store.path("sample", key) for key in keys)
    contents = one.read_bytes(), other.read_bytes()
    for path, content in zip((other, one), contents):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=path.name):
            find_rows(path)


def test_a_block_of_another_user_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    Store(tmp_path).rows("sample", {}, lambda: ROWS)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StoreError, match=r"\.jsonl"):
        Store(tmp_path).rows("sample", {}, lambda: ROWS)


def test_no_change_of_a_single_byte_passes_for_a_block(tmp_path: Path) -> None:
    path = Store(tmp_path).path("sample", {})
    keep_rows(path, [{"id": "1"}, {"id": "2"}], {"model": "m", "block": 0})
    raw = path.read_bytes()
    for place in range(len(raw) - 1):  # the last is the line's end, and may lack
        for value in {raw[place] ^ 1, raw[place] ^ 32, 0, 255, ord("["), ord("9")} - {raw[place]}:
            path.write_bytes(raw[:place] + bytes([value]) + raw[place + 1 :])
            with pytest.raises(StoreError, match=path.name):
                read_block(path)
    path.write_bytes(raw)
    assert read_block(path)[1] == {"model": "m", "block": 0}


@pytest.mark.parametrize(
    "end", ["[" * 100_000, "9" * 5000, '{"block": 1, "of": []}', "null", '"x"', "\ud800"]
)
def test_an_end_that_seals_nothing_is_refused(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "1"}\n' + end.encode("utf-8", "surrogatepass") + b"\n")
    with pytest.raises(StoreError, match=r"a\.jsonl"):
        read_block(path)


def test_digests_do_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": [1.5, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
