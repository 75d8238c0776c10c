"""Columns have the names of the contract, or those that --columns gives; tables and their delimiters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data import load_questions, read_questions
from semcal.data.question import Question
from semcal.data.sources import DELIMITERS, parse_columns, rename
from semcal.errors import InputError, RowError, UsageError
from semcal.files import JsonLine


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_the_delimiter_is_found_from_the_header(delimiter, ending, tmp_path: Path) -> None:
    path = tmp_path / f"q.{ending}"
    other = "; " if delimiter != ";" else ", "
    cells = [["id", "question", "answers"], ["a", f"Who{other}and when?", "Ada"]]
    path.write_text("".join(delimiter.join(row) + "\n" for row in cells))
    assert load_questions(path) == [Question("a", f"Who{other}and when?", ("Ada",))]


def test_a_column_of_another_name_is_named_in_the_error_and_read_with_columns(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"Question": "Who?", "answer": "Ada", "question": "When?"}\n{"Question": "Who?"}\n')
    first, second = read_questions(path)
    assert (first.question, first.answers, first.extra) == (
        "When?",
        (),
        {"Question": "Who?", "answer": "Ada"},
    )
    assert "keys: Question" in second.reason
    assert "--columns question=NAME" in second.reason
    names = {"question": "Question", "answers": "answer"}
    assert load_questions(path, columns=names)[0].row() == {"id": "1", "question": "Who?", "answers": ["Ada"]}


def test_columns_map_in_every_format(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = {"Frage": "Wer?", "Antwort": "Ada"}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "q.json").write_text(json.dumps([row]))
    (tmp_path / "q.csv").write_text("Frage;Antwort\nWer?;Ada\n")
    (tmp_path / "q.tsv").write_text("Frage\tAntwort\nWer?\tAda\n")
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "q.parquet")
    columns = {"question": "Frage", "answers": "Antwort"}
    for form in ("jsonl", "json", "csv", "tsv", "parquet"):
        (question,) = load_questions(tmp_path / f"q.{form}", columns=columns)
        assert (question.question, question.answers) == ("Wer?", ("Ada",))
        with pytest.raises(UsageError, match="'Frage'"):
            load_questions(tmp_path / f"q.{form}", columns={"question": "Frag"})


@pytest.mark.parametrize(
    "given", [["question"], ["question="], ["questoin=Frage"], ["question=a", "question=b"]]
)
def test_columns_that_make_no_sense_are_wrong_usage(given) -> None:
    with pytest.raises(UsageError, match="--columns"):
        parse_columns(given, ("id", "question"))


def test_renamed_columns_keep_their_place_and_other_rows_stay_as_they_are() -> None:
    rows = [JsonLine(1, {"a": 1, "responses": ["x"], "b": 2}), JsonLine(2, {"samples": ["y"]})]
    first, second = rename(rows, {"samples": "responses"})
    assert list(first.data.items()) == [("a", 1), ("samples", ["x"]), ("b", 2)]
    assert second is rows[1]


def test_columns_of_one_name_are_an_error_that_names_it(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "q.csv").write_text("question,answers,answers\nWho?,Ada,Bo\n")
    columns = [pyarrow.array([text]) for text in ("Who?", "Ada", "Bo")]
    table = pyarrow.Table.from_arrays(columns, names=["question", "answers", "answers"])
    parquet.write_table(table, tmp_path / "q.parquet")
    for form in ("csv", "parquet"):
        with pytest.raises(InputError, match="'answers'"):
            load_questions(tmp_path / f"q.{form}")


def test_columns_without_a_name_are_kept_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(",question,\n0,Who?,\n")
    assert load_questions(tmp_path / "q.csv")[0].extra == {"column 1": "0", "column 3": ""}


def test_an_unclosed_quote_names_the_lines_that_it_includes(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('id,question\na,"One?\nb,Two?\nc,"Three?"\nd,"Four?\ne,Five?\n')
    first, last = read_questions(path)
    assert [(bad.line, bad.last) for bad in (first, last)] == [(2, 4), (5, 6)]


PIECES = [*(bytes([byte]) for byte in b'",;\n\r\0\xff{]'), b"NaN", b"1" * 5000, b'"id": 1, ', b"\\ud800"]
SOURCES = {
    "q.csv": b'id,question,answers\na,"Who wrote ""Kim""?",Ada\nb,Two?,"[""x"", ""y""]"\n',
    "q.tsv": b"id\tquestion\na\tWho?\nb\tTwo?\n",
    "q.jsonl": b'{"id": "a", "question": "Who?"}\n{"id": "b", "question": "Two?", "answers": [{"x": 1}]}\n',
    "q.json": b'[{"id": "a", "question": "Who?"},\n {"id": "b", "question": "Two?"}]',
}


@given(
    st.sampled_from(sorted(SOURCES)),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES)), max_size=4),
)
def test_a_damaged_file_gives_rows_errors_of_rows_or_one_error(tmp_path_factory, name, changes) -> None:
    content = SOURCES[name]
    for place, piece in changes:
        at = int(place * len(content))
        content = content[:at] + piece + content[at + len(piece) // 3 :]
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(content)
    try:
        found = list(read_questions(path, answers_needed=False))
    except (InputError, UsageError):
        return
    assert all(isinstance(item, (Question, RowError)) for item in found)
    for item in found:
        if isinstance(item, Question):
            json.dumps(item.row(), ensure_ascii=False, allow_nan=False).encode()
