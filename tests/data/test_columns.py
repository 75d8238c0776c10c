"""What columns are called: any case, common names, --columns; delimiters; columns that stand twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data import load_questions, read_questions
from semcal.data.question import Question
from semcal.data.sources import DELIMITERS, find_columns, find_delimiter, parse_columns, rename
from semcal.errors import InputError, RowError, SemcalWarning, UsageError
from semcal.files import JsonLine


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_the_delimiter_is_found_from_the_header(delimiter, ending, tmp_path: Path) -> None:
    path = tmp_path / f"q.{ending}"
    other = "; " if delimiter != ";" else ", "
    cells = [["ID", "Question", "Answers"], ["a", f"Who{other}and when?", "Ada"]]
    path.write_text("".join(delimiter.join(row) + "\n" for row in cells))
    told: list[str] = []
    (question,) = read_questions(path, notify=told.append)
    assert question == Question("a", f"Who{other}and when?", ("Ada",))
    usual = {"csv": ",", "tsv": "\t"}[ending]
    assert (f"{path}: cells are separated by {DELIMITERS[delimiter]}" in told) == (delimiter != usual)
    assert "columns: 'ID' as id, 'Question' as question, 'Answers' as answers" in told


def test_the_delimiter_is_that_of_the_first_line_that_is_not_blank(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("\n\nquestion;answers\nWho?;Ada\n")
    assert load_questions(tmp_path / "q.csv")[0].answers == ("Ada",)


def test_known_names_decide_before_the_number_of_cells() -> None:
    names = {"question", "answers"}
    assert find_delimiter("question|answers, as given, all", names=names) == "|"
    assert find_delimiter('"question; or query",answers', names=names) == ","
    assert find_delimiter("question", names=names) == ","
    assert find_delimiter("a;b,c", usual=";") == ";"


@given(st.lists(st.sampled_from(["id", "question", "Level", "x y"]), min_size=2, max_size=5, unique=True))
def test_any_header_without_delimiters_in_its_names_is_cut_where_it_was_joined(names) -> None:
    for delimiter in DELIMITERS:
        assert find_delimiter(delimiter.join(names), names={"question"}) == delimiter


def test_answer_stands_for_answers_only_where_it_cannot_be_the_models(tmp_path: Path) -> None:
    def read(row: dict, **options) -> Question | RowError:
        path = tmp_path / "q.jsonl"
        path.write_text(json.dumps({"question": "Who?", **row}) + "\n")
        (found,) = read_questions(path, **options)
        return found

    assert read({"Answer": "Ada"}, answers_needed=True).answers == ("Ada",)
    assert read({"answer": "Ada"}).answers == ()
    assert read({"answer": "Bo", "answers": ["Ada"]}, answers_needed=True).answers == ("Ada",)
    for models in ("samples", "prediction", "Prediction", "Responses", "completions"):
        assert isinstance(read({"answer": "Ada", models: "Ada"}, answers_needed=True), RowError)


def test_one_row_with_answers_settles_what_answer_is_for_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "One?", "answer": "Bo"}\n{"question": "Two?", "answers": ["Ada"]}\n')
    first, second = read_questions(path, answers_needed=True)
    assert isinstance(first, RowError)
    assert second.answers == ("Ada",)


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


def test_a_column_that_is_replaced_is_told_and_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "a", "question": "Who?", "better": "Who wrote it?"}\n')
    told: list[str] = []
    (question,) = load_questions(path, columns={"question": "better"}, notify=told.append)
    assert question.row() == {"id": "a", "question": "Who wrote it?"}
    assert told == ["columns: 'better' replaces 'question'"]


def test_a_column_that_comes_late_is_read_by_its_name_and_by_columns(tmp_path: Path) -> None:
    rows = [{"id": f"q{i}", "question": "Which?", "answers": ["a"]} for i in range(70)]
    rows[67]["Context"], rows[68]["context"], rows[69]["level"] = "Belmar.", "Tarn.", 2
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_questions(file)
    assert (found[68].context, found[69].extra) == ("Tarn.", {"level": 2})
    assert load_questions(file, columns={"context": "Context"})[67].context == "Belmar."


def test_two_columns_that_could_be_meant_are_not_guessed_between() -> None:
    with pytest.raises(UsageError, match="'Question'"):
        find_columns(["Question", "QUESTION"], {"question": ()}, {})
    assert find_columns(["question", "Question"], {"question": ()}, {}) == {}
    assert find_columns(["Query", "Question"], {"question": ("query",)}, {}) == {"question": "Question"}


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


@pytest.mark.parametrize("cell", ["A{0};B{0}", "A{0} | B{0}"])
def test_several_answers_in_most_cells_are_pointed_out(cell, tmp_path: Path) -> None:
    path, rows = tmp_path / "q.csv", [f"Q{n}?,{cell.format(n)}\n" for n in range(4)]
    path.write_text(f"question,answers\n{''.join(rows)}Q?,Ada\n")
    with pytest.warns(SemcalWarning, match=r"such as 'A0 ?[;|] ?B0'.* \[\"A\", \"B\"\]"):
        assert load_questions(path)[0].answers == (cell.format(0),)
    path.write_text('question,answers\nQ1?,"[""A;B"", ""C""]"\nQ2?,A;B\nQ3?,Ada\nQ4?,Bo;\n')
    assert [one.answers for one in load_questions(path)] == [("A;B", "C"), ("A;B",), ("Ada",), ("Bo;",)]


def test_columns_of_one_name_are_an_error_that_names_it(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "q.csv").write_text("question,answers,answers\nWho?,Ada,Bo\n")
    (tmp_path / "q.tsv").write_text("question\tanswers \tanswers\nWho?\tAda\tBo\n")
    columns = [pyarrow.array([text]) for text in ("Who?", "Ada", "Bo")]
    table = pyarrow.Table.from_arrays(columns, names=["question", "answers", "answers"])
    parquet.write_table(table, tmp_path / "q.parquet")
    for form in ("csv", "tsv", "parquet"):
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
    assert "quote" in first.reason


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
