"""JSON Lines: bad lines are reported, numbers survive; what JSON may hold is one rule for all readers."""

from __future__ import annotations

import gzip
import io
import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal import files as jsonl
from semcal.data import read_questions
from semcal.errors import InputError, StoreError
from semcal.files import (
    DEEPEST,
    JsonLine,
    canonical,
    dumps,
    fault,
    parse,
    parse_float,
    read_object,
    read_rows,
    write_rows,
)

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


# ---- What JSON may hold: no NaN, no key twice, no depth or size without end


GOOD = '{"id": "good", "question": "Who?", "wide": [' + "[1], " * 300 + '"\\ud83d\\ude00"]}'
#: What follows the id and the question of a row, and the key or the fault that its error names.
BAD = {
    "NaN": ('"log_likelihoods": [-1, NaN]', "'log_likelihoods' holds NaN"),
    "half a character": ('"x": "\\ud83d\\ude00", "y": "\\ud800"', "'y'"),
    "too deep": ('"x": ' + "[" * 300 + "1" + "]" * 300, "nested"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["jsonl", "json", "squad"])
def test_what_json_should_not_hold_spoils_its_own_row_in_every_reader(name, form, tmp_path: Path) -> None:
    more, reason = BAD[name]
    text = '{"id": "b", "question": "Who?", ' + more + "}"
    path = tmp_path / f"rows.{form.replace('squad', 'json')}"
    whole = {
        "jsonl": f"{text}\n{GOOD}\n",
        "json": f"[{text},\n {GOOD}]",
        "squad": '{"data": [{"paragraphs": [{"context": "C.", "qas": [' + f"{text}, {GOOD}" + "]}]}]}",
    }
    path.write_text(whole[form])
    bad, good = read_questions(path)
    assert str(bad).startswith("line 1 (id 'b'): ")
    assert reason in str(bad)
    assert (good.id, good.question) == ("good", "Who?")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ('"question": "When?"', "'question' occurs twice"),
        ('"x": [{"k": 1, "k": 1}]', "'k' occurs twice"),
        ('"x": ' + "7" * 5000, "4300 digits"),
    ],
)
def test_a_key_twice_or_an_endless_number_is_a_bad_line_or_ends_a_json_file(
    more, reason, tmp_path: Path
) -> None:
    text = '{"id": "b", "question": "Who?", ' + more + "}"
    (tmp_path / "rows.jsonl").write_text(f"{text}\n{GOOD}\n")
    bad, good = read_questions(tmp_path / "rows.jsonl")
    assert (bad.line, reason in str(bad), good.id) == (1, True, "good")
    (tmp_path / "rows.json").write_text(f"[{text},\n {GOOD}]")
    with pytest.raises(InputError, match=reason):
        list(read_questions(tmp_path / "rows.json"))


def test_nesting_is_counted_alike_for_lists_and_objects() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for depth, expected in ((DEEPEST, None), (DEEPEST + 1, "nested more than 100 deep")):
            data, odd = parse(opening * depth + "1" + closing * depth)
            found = fault(data)
            assert (found is None) == (expected is None)
            assert odd or found is None
    with pytest.raises(InputError, match="nested more than 100 deep"):
        parse("[" * 100_000)


def test_a_line_or_a_file_in_one_piece_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("files.LONGEST", "data.sources.LONGEST", "data.sources.LARGEST"):
        monkeypatch.setattr(f"semcal.{name}", 1000)
    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb") as handle:
        handle.write(f"{GOOD[:900]}\n".encode() + b" " * 1_000_000)
    (tmp_path / "q.csv").write_text("id,question\n1,Who?\n2," + "x" * 2000)
    (tmp_path / "q.json").write_text(json.dumps([{"question": "x" * 900}] * 2))
    for name in ("/dev/zero", tmp_path / "bomb.jsonl.gz"):
        with pytest.raises(InputError, match=f"{name}: line . has more than 1,000 bytes"):
            list(read_rows(name))
    for name in ("q.csv", "q.json"):
        with pytest.raises(InputError, match=rf"{name}.* more than 1,000 characters"):
            list(read_questions(tmp_path / name))
    (tmp_path / "q.csv").write_text('id,question\n1,Who?\n2,"' + "long\n" * 300 + '"\n4,When?\n')
    first, *bad = read_questions(tmp_path / "q.csv")
    assert (first.id, bad[0].line) == ("1", 3)
    assert bad[0].last is not None


def test_a_large_file_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl.gz"
    row = json.dumps({"id": "x", "note": "n" * 100_000}).encode() + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as handle:
        for _ in range(300):
            handle.write(row)
    tracemalloc.start()
    count = sum(isinstance(item, JsonLine) for item in read_rows(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 300
    assert peak < 5_000_000  # of 30 MB


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("q.xlsx", b"PK", r"\.parquet"),
        ("q.jsonl.zip", b"PK", r"\.parquet"),
        ("q.jsonl", gzip.compress(b"{}", mtime=0), "not a text"),
        ("q.csv", b"PK\x03\x04rest", "not a text"),
        ("q.json", b"PAR1\x15\x04\x15", "not a text"),
        ("q.tsv", "question".encode("utf-16"), "not a text"),
        ("q.jsonl", '{"id": 1}'.encode("utf-16-be"), "not a text"),
        ("q.csv", b"question,r\xe9ponse\nWho?,Ada\n", "UTF-8"),
        ("q.csv.gz", gzip.compress(b"question\nCaf\xe9?\n", mtime=0), "UTF-8"),
        ("q.json", b'[{"question": "Caf\xe9?"}]', "UTF-8"),
    ],
)
def test_a_file_of_another_format_or_encoding_is_one_error(name, content, reason, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}.*{reason}"):
        list(read_questions(tmp_path / name))


def test_broken_json_is_one_error_and_not_one_for_each_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('[\n {"question": "Who?"},\n {"question": \n]\n')
    with pytest.raises(InputError, match=r"q.json: not JSON \(Expecting value: line 4"):
        list(read_questions(tmp_path / "q.json"))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"a"', b"null", b'{"a": "\xff"}', b"[" * 100_000])
def test_anything_else_is_an_error_with_the_file_and_the_remedy(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.json .*make it again$"):
        read_object(path, remedy="make it again")
