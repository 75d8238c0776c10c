"""JSON Lines: bad lines are reported, numbers survive, files are whole or absent."""

from __future__ import annotations

import gzip
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal import files as jsonl
from semcal.errors import InputError
from semcal.files import JsonLine, canonical, dumps, parse_float, read_rows, write_rows

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(rows=st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=4))
def test_rows_come_back_as_they_went(tmp_path_factory, rows) -> None:
    path = tmp_path_factory.mktemp("rows") / "x.jsonl"
    write_rows(path, rows)
    assert [row.data for row in read_rows(path)] == rows


def test_bad_lines_are_reported_with_their_number_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": \n[1]\n{"a": "\xff"}\n{"a": 2}')
    first, *bad, last = read_rows(path)
    assert (first, last) == (JsonLine(1, {"a": 1}), JsonLine(6, {"a": 2}))
    assert [error.line for error in bad] == [3, 4, 5]
    assert all(word in str(error) for word, error in zip(["JSON", "list", "UTF-8"], bad, strict=True))


def test_gzip_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(tmp_path / "x.jsonl.gz", "wb") as handle:
        handle.write(b'{"a": 1}\n')
    assert list(read_rows(tmp_path / "x.jsonl.gz")) == [JsonLine(1, {"a": 1})]
    (tmp_path / "x.jsonl.gz").rename(tmp_path / "X.JSONL.GZ")
    assert list(read_rows(tmp_path / "X.JSONL.GZ")) == [JsonLine(1, {"a": 1})]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 2}\n')))
    assert list(read_rows("-")) == [JsonLine(1, {"a": 2})]
    with pytest.raises(InputError, match="does not exist"):
        list(read_rows(tmp_path / "absent"))


def test_infinite_and_undefined_numbers_have_a_spelling() -> None:
    assert dumps([-math.inf, math.nan, np.float32(0.5), np.arange(2)]) == '["-inf", null, 0.5, [0, 1]]'
    assert parse_float("-inf") == -math.inf
    assert parse_float(None) is None
    for bad in ("x", True, [1]):
        with pytest.raises(InputError, match="expected a number"):
            parse_float(bad)


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_rows(path, [{"a": 1}])

    def rows():
        yield {"a": 2}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_rows(path, rows())
    assert [row.data for row in read_rows(path)] == [{"a": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]


def test_a_damaged_gzip_file_and_a_folder_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": 1}\n' * 1000)
    for content in (whole[:-20], b"no gzip", whole[:30] + b"xxxx" + whole[34:]):
        (tmp_path / "x.jsonl.gz").write_bytes(content)
        with pytest.raises(InputError, match="damaged gzip"):
            list(read_rows(tmp_path / "x.jsonl.gz"))
    with pytest.raises(InputError, match="is a folder"):
        list(read_rows(tmp_path))


def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\n")
    assert list(read_rows(path)) == []


def test_what_an_open_file_holds_already_stays(tmp_path: Path) -> None:
    """`semcal grade … --out /dev/stdout >> all.jsonl` erased what all.jsonl held."""
    (tmp_path / "all.jsonl").write_text('{"id": 1}\n')
    with (tmp_path / "all.jsonl").open("a") as handle:
        write_rows(f"/dev/fd/{handle.fileno()}", [{"id": 2}])
    assert (tmp_path / "all.jsonl").read_text() == '{"id": 1}\n{"id": 2}\n'


#: Without what `dumps` escapes for terminals (tests/cli/test_cli_escapes.py).
TEXTS = st.text(
    st.characters(exclude_categories=("Cs", "Cf"), exclude_characters="".join(map(chr, range(0x80, 0xA0))))
)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.just(np.float32(0.1)),
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner) | st.tuples(inner, inner),
    )
)
def test_what_is_written_at_once_is_what_is_written_number_by_number(value: object) -> None:
    plain = jsonl._encodable(value)
    assert dumps(value) == json.dumps(plain, ensure_ascii=False, allow_nan=False)
    assert canonical(value) == canonical(json.loads(dumps(value)))


def test_what_json_cannot_hold_is_refused_even_beside_what_it_holds() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        dumps({"a": [math.nan, object()]})


def test_an_indent_gives_the_text_of_the_standard_library() -> None:
    plain = {"a": [1, 2.5, None, "x\n"], "b": [], "c": {}, "d": [[1], [{"e": [True]}]]}
    assert dumps(plain, indent=2) == json.dumps(plain, indent=2)
    assert dumps([[math.nan, -math.inf]], indent=1) == json.dumps([[None, "-inf"]], indent=1)
