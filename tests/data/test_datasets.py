"""Questions from every kind of source; bad rows are reported and the rest goes on."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data.datasets import clean_text, load_questions, question_from_row, read_questions
from semcal.data.question import Question
from semcal.data.sources import read_source_rows
from semcal.errors import InputError, MissingExtraError, RowError, UsageError
from semcal.files import JsonLine


def write_lines(path: Path, rows: list[Any]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def read_both(source: Path | str, **options: Any) -> tuple[list[Question], list[RowError]]:
    items = list(read_questions(source, **options))
    questions = [item for item in items if isinstance(item, Question)]
    return questions, [item for item in items if isinstance(item, RowError)]


def row_error(data: dict[str, Any], **options: Any) -> str:
    with pytest.raises(RowError) as caught:
        question_from_row(JsonLine(12, data), **options)
    assert caught.value.line == 12
    return caught.value.reason


# One row


def test_a_question_keeps_its_own_keys_in_extra():
    data = {"id": "q", "question": "Who?", "answers": ["Ada"], "context": "Ada did.", "level": 3}
    assert question_from_row(JsonLine(1, data)) == Question("q", "Who?", ("Ada",), "Ada did.", {"level": 3})


def test_a_question_can_be_kept_in_a_set():
    assert len({Question("q", "Who?", extra={"a": 1}), Question("q", "Who?", extra={"a": 1})}) == 1


def test_whole_numbers_are_ids_but_truth_values_are_not():
    assert question_from_row(JsonLine(1, {"id": 17, "question": "Who?"})).id == "17"
    assert '"id" must be a text or a whole number, got True' in row_error({"id": True, "question": "Who?"})


@pytest.mark.parametrize("bad", [None, "", "  ", 1.5, ["q"]])
def test_an_id_that_names_nothing_is_an_error(bad):
    assert '"id" must be' in row_error({"id": bad, "question": "Who?"})


@pytest.mark.parametrize("bad", ["", " \n", "\u00a0", 7, ["Who?"], {"text": "Who?"}])
def test_a_question_without_words_is_an_error_that_shows_the_value(bad):
    reason = row_error({"id": "q", "question": bad})
    assert '"question" must be a text that is not empty, got' in reason


def test_a_missing_question_names_the_keys_that_are_there():
    assert "prompt, gold" in row_error({"prompt": "Who?", "gold": "Ada"})


@pytest.mark.parametrize("bad", [[1984.5], [["Ada"]], ["Ada", None], 1984.5, True])
def test_answers_that_are_not_texts_are_an_error(bad):
    assert '"answers" must' in row_error({"id": "q", "question": "When?", "answers": bad})


def test_answers_are_an_error_only_where_they_are_needed():
    row = {"id": "q", "question": "Who?", "answers": ["", " "]}
    assert question_from_row(JsonLine(1, row)).answers == ()
    assert "no answers" in row_error(row, answers_needed=True)


def test_a_context_that_is_no_text_is_an_error():
    assert '"context" must be the passage' in row_error({"question": "Who?", "context": ["Ada."]})


def test_a_blank_context_is_none():
    assert question_from_row(JsonLine(1, {"question": "Who?", "context": " \n"})).context is None


def test_a_context_is_kept_exactly():
    context = "  First line.\n\nSecond\u00a0line. "
    assert question_from_row(JsonLine(1, {"question": "Who?", "context": context})).context == context


def test_a_long_bad_value_is_shortened_in_the_message():
    assert len(row_error({"question": "Who?", "answers": {"texts": 5, "long": "x" * 2_000_000}})) < 300


def test_half_characters_are_an_error_before_anything_is_computed():
    data = {"id": "q", "question": "Who?", "answers": ["Ada"], "note": ["fine", "bro\ud800ken"]}
    assert "'note' holds '\\ud800', half a character" in row_error(data)


def test_endless_nesting_spoils_its_own_row_only():
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    assert "nested" in row_error({"id": "q", "question": "Who?", "note": nested})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("Ada", ("Ada",)),
        (["Ada", " Ada ", "Ada\u00a0King"], ("Ada", "Ada King")),
        (["Ada (disambiguation)", "Ada"], ("Ada",)),
        (["(disambiguation)"], ("(disambiguation)",)),
        (["A+", "*", "."], ("A+", "*", ".")),
        (['"""Moonfleet"" by Falkner"'], ('"Moonfleet" by Falkner',)),
        ({"text": ["Ada", "Ada"], "answer_start": [0, 0]}, ("Ada",)),
        (
            {"value": "Ada", "aliases": ["Ada", "Countess"], "normalized_aliases": ["ada"]},
            ("Ada", "Countess"),
        ),
        ('["Ada", "King"]', ("Ada", "King")),
        ("['Ada', \"D'Arc\"]", ("Ada", "D'Arc")),
        ("[Ada]", ("[Ada]",)),
        (None, ()),
    ],
)
def test_answers_in_every_shape_become_one_tuple(answers, expected):
    assert question_from_row(JsonLine(1, {"question": "Who?", "answers": answers})).answers == expected


def test_a_list_without_commas_is_an_error_and_not_one_long_answer():
    assert 'expected a list of texts like ["a", "b"]' in row_error({"question": "?", "answers": "['a' 'b']"})


def test_the_reading_of_372_aliases_keeps_their_order():
    aliases = [f"Alias {n}" for n in range(372)]
    assert question_from_row(JsonLine(1, {"question": "Who?", "answers": aliases})).answers == tuple(aliases)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  Who   did\u00a0it ? ", "Who did it ?"),
        ('"Who wrote ""Moonfleet"" and ""Kim""?"', 'Who wrote "Moonfleet" and "Kim"?'),
        ('"Who said, ""Never again?"""', 'Who said, "Never again?"'),
        ('Who wrote ""Kim""?', 'Who wrote "Kim"?'),
        ('"Kim"', '"Kim"'),
        ('"Kim" and "Moonfleet"', '"Kim" and "Moonfleet"'),
        ('""', ""),
    ],
)
def test_blanks_and_quotes_of_a_csv_export_are_cleaned(raw, clean):
    assert clean_text(raw) == clean


@given(st.text(alphabet='a" \u00a0\n', max_size=12))
def test_cleaned_text_stands_on_one_line_without_blanks_around_it(text):
    cleaned = clean_text(text)
    assert cleaned == " ".join(cleaned.split())


# Files


def test_bad_lines_are_reported_with_their_number_and_the_rest_goes_on(tmp_path):
    rows = [
        {"id": "a", "question": "One?"},
        "not json",
        "",
        {"id": "b", "question": ""},
        {"id": "a", "question": "Two?"},
        {"question": "Three?"},
        ["a", "list"],
        {"id": "c", "question": "Four?"},
    ]
    questions, errors = read_both(write_lines(tmp_path / "q.jsonl", rows))
    assert [question.id for question in questions] == ["a", "c"]
    assert [error.line for error in errors] == [2, 4, 5, 6, 7]
    assert "\"id\" 'a' was used in line 1" in errors[2].reason
    assert 'no "id", though rows before have one' in errors[3].reason


def test_rows_without_ids_get_their_row_number(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", [{"question": "One?"}, "", {"question": "Two?"}])
    assert [question.id for question in load_questions(path)] == ["1", "3"]


def test_a_row_number_never_doubles_a_given_id(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", [{"question": "One?"}, {"id": 1, "question": "Two?"}])
    questions, errors = read_both(path)
    assert [question.question for question in questions] == ["One?"]
    assert "was used in line 1" in errors[0].reason


def test_broken_utf8_spoils_its_own_line_only(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"id": "a", "question": "Caf\xe9?"}\n{"id": "b", "question": "Caf\xc3\xa9?"}\n')
    questions, errors = read_both(path)
    assert [question.question for question in questions] == ["Café?"]
    assert (errors[0].line, "UTF-8" in errors[0].reason) == (1, True)


def test_gzip_is_read_and_a_damaged_archive_is_one_clear_error(tmp_path):
    path = tmp_path / "q.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "question": "One?"}\n' * 1))
    assert load_questions(path)[0].id == "a"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match="damaged"):
        load_questions(path)


def test_a_passage_of_two_megabytes_is_legal_in_every_format(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"id": "a", "question": "Who?", "answers": ["Ada"], "context": "Ada, she wrote. \n" * 130_000}
    write_lines(tmp_path / "q.jsonl", [row])
    (tmp_path / "q.json").write_text(json.dumps([row]))
    with (tmp_path / "q.csv").open("w", newline="") as handle:
        writer = csv.DictWriter(handle, row)
        writer.writeheader()
        writer.writerow(row | {"answers": '["Ada"]'})
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "q.parquet")
    for name in ("q.jsonl", "q.json", "q.csv", "q.parquet"):
        assert load_questions(tmp_path / name) == [Question("a", "Who?", ("Ada",), row["context"])]


def test_reading_csv_leaves_the_csv_module_as_it_was(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "q.csv").write_text("id,question\na,One?\n")
    for _ in read_questions(tmp_path / "q.csv"):
        assert csv.field_size_limit() == before


def test_csv_rows_become_questions_and_bad_ones_are_reported(tmp_path):
    path = tmp_path / "q.csv"
    path.write_bytes(
        b"\xef\xbb\xbfid,question,answers,level\r\n"
        b'a,"Who wrote ""Kim"",\r\nand when?","[""Rudyard"", ""Kipling""]",1\r\n'
        b"b,too,many,cells,here\r\n"
        b"\r\n"
        b",No id?,Ada,2\r\n"
        b"c,Caf\xe9?,Ada,3\r\n"
        b"d,Last?,Ada,4\r\n"
    )
    questions, errors = read_both(path)
    assert questions[0] == Question(
        "a", 'Who wrote "Kim", and when?', ("Rudyard", "Kipling"), None, {"level": "1"}
    )
    assert [question.id for question in questions] == ["a", "d"]
    assert [error.line for error in errors] == [4, 6, 7]
    assert "expected 4 cells (id, question, answers, level), got 5" in errors[0].reason
    assert str(errors[2]) == "line 7 (id 'c'): 'question' is not UTF-8 (byte 0xe9): save the file as UTF-8"


@pytest.mark.parametrize(
    ("cell", "texts"),
    [(1988, ("1988",)), ([1988, "7", 7], ("1988", "7")), (1988.0, ("1988",)), (0, ("0",)), (-3, ("-3",))],
)
def test_whole_numbers_are_reference_answers(tmp_path, cell, texts):
    path = write_lines(tmp_path / "q.jsonl", [{"question": "When?", "answers": cell}])
    assert load_questions(path, answers_needed=True)[0].answers == texts


@pytest.mark.parametrize("cell", [True, 1.5, [False], [0.1], 2.0**60, 1e300, [None], [["a"]]])
def test_other_values_are_none_and_say_what_to_do(tmp_path, cell):
    _, (error,) = read_both(write_lines(tmp_path / "q.jsonl", [{"question": "When?", "answers": cell}]))
    assert error.reason.startswith('"answers" must hold texts or whole numbers, got ')
    assert error.reason.endswith("write it in quotes")


def test_whole_numbers_of_tables_are_reference_answers(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    question = ["When?", "Who?", "How many?"]
    for answers in ([1988, 7, None], [1988.0, 7.0, None], [[1988], [7], []]):  # None makes floats in pandas
        table = pyarrow.table({"question": question, "answers": answers})
        parquet.write_table(table, tmp_path / "q.parquet")
        found = [one.answers for one in load_questions(tmp_path / "q.parquet")]
        assert found == [("1988",), ("7",), ()]
    (tmp_path / "q.csv").write_text("question,answers\nWhen?,1988\nWho?,7.0\n")
    assert [one.answers for one in load_questions(tmp_path / "q.csv")] == [("1988",), ("7.0",)]


@pytest.mark.parametrize("name", ["q.csv", "q.csv.gz"])
def test_a_header_that_is_not_utf8_is_one_clear_error(tmp_path, name):
    raw = b"question,r\xe9ponse\nWho?,Ada\n"
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    with pytest.raises(InputError, match=r"first line of .* is not UTF-8 \(byte 0xe9\): save the file"):
        load_questions(tmp_path / name)


def test_a_byte_that_is_not_utf8_in_a_json_list_spoils_its_own_row_only(tmp_path):
    path = tmp_path / "q.json"
    path.write_bytes(b'[{"question": "Who?"}, {"question": "Caf\xe9?"}, {"question": "When?"}]')
    rows = list(read_source_rows(path))
    assert [isinstance(row, JsonLine) for row in rows] == [True, False, True]
    assert "save the file as UTF-8" in str(rows[1])


def test_a_quote_in_csv_that_never_closes_is_reported_where_it_opens(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text('id,question\na,One?\nb,"Two?\nc,Three?\n')
    questions, errors = read_both(path)
    assert [question.id for question in questions] == ["a"]
    assert errors[0].line == 3
    assert "not CSV" in errors[0].reason


def test_tab_separated_files_and_columns_of_other_names_are_read(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text("Query\tGold\nWho?\tAda\n")
    questions = load_questions(path, columns={"question": "Query", "answers": "Gold"}, answers_needed=True)
    assert questions == [Question("2", "Who?", ("Ada",))]


def squad(*paragraphs: Any) -> str:
    return json.dumps({"version": "1.1", "data": [{"title": "Ada", "paragraphs": list(paragraphs)}]})


def test_squads_own_json_is_read(tmp_path):
    entry = {"id": "s1", "question": " Who? ", "answers": [{"text": "Ada", "answer_start": 0}] * 3}
    path = tmp_path / "dev.json"
    path.write_text(squad({"context": "Ada did.", "qas": [entry, entry | {"id": "s2"}]}))
    questions = load_questions(path, answers_needed=True)
    assert questions[0] == Question("s1", "Who?", ("Ada",), "Ada did.", {"title": "Ada"})
    assert [question.id for question in questions] == ["s1", "s2"]


def test_bad_parts_of_squads_json_are_reported_one_by_one(tmp_path):
    entry = {"id": "s1", "question": "Who?", "answers": []}
    path = tmp_path / "dev.json"
    path.write_text(squad({"context": "Ada."}, "paragraph", {"context": "Ada.", "qas": [7, entry]}))
    questions, errors = read_both(path)
    assert [question.id for question in questions] == ["s1"]
    assert [error.line for error in errors] == [1, 2, 3]
    assert all("paragraphs → qas" in error.reason for error in errors)


def test_a_json_file_may_hold_a_list_or_lines(tmp_path):
    row = {"id": "a", "question": "Who?"}
    (tmp_path / "list.json").write_text(json.dumps([row, 5]))
    questions, errors = read_both(tmp_path / "list.json")
    assert ([question.id for question in questions], [error.line for error in errors]) == (["a"], [2])
    assert load_questions(write_lines(tmp_path / "lines.json", [row, {**row, "id": "b"}]))[1].id == "b"
    assert load_questions(write_lines(tmp_path / "one.json", [row]))[0].id == "a"


def test_parquet_is_read_and_what_is_none_is_an_error(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": n, "question": f"Question {n}?", "answers": [f"{n}"], "level": 1.5} for n in range(2000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    questions = load_questions(tmp_path / "q.parquet")
    assert len(questions) == 2000
    assert questions[1999] == Question("1999", "Question 1999?", ("1999",), None, {"level": 1.5})
    (tmp_path / "no.parquet").write_text("no parquet")
    with pytest.raises(InputError, match="not a Parquet file"):
        load_questions(tmp_path / "no.parquet")


def test_a_parquet_text_that_is_not_utf8_spoils_its_own_row_only(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = pyarrow.array([b"Caf\xe9?", b"Who?"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"question": column}), tmp_path / "q.parquet")
    questions, errors = read_both(tmp_path / "q.parquet")
    assert [question.question for question in questions] == ["Who?"]
    assert (errors[0].line, "UTF-8" in errors[0].reason) == (1, True)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "q.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pyarrow .*semcal\[data\]"):
        load_questions(tmp_path / "q.parquet")


def test_standard_input_is_read_as_json_lines(monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"id": "a", "question": "Who?"}\n'))
    )
    assert load_questions("-")[0].id == "a"
    with pytest.raises(UsageError, match="JSON Lines"):
        load_questions("-", format="csv")


def test_a_source_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_questions(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="did you mean 'squad'"):
        load_questions("squat")
    (tmp_path / "q.doc").write_bytes(b"")
    with pytest.raises(InputError, match=r"known endings: \.jsonl"):
        load_questions(tmp_path / "q.doc")
    (tmp_path / "q.csv").write_text("")
    with pytest.raises(InputError, match="no questions"):
        load_questions(tmp_path / "q.csv")
    with pytest.raises(UsageError, match="local file"):
        load_questions(tmp_path / "q.csv", split="train")
    with pytest.raises(UsageError, match="did you mean 'csv'"):
        load_questions(tmp_path / "q.csv", format="csf")


def test_loading_raises_the_first_bad_row_or_hands_all_to_the_caller(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", [{"question": "One?"}, "bad", {"question": "Two?"}, "worse"])
    with pytest.raises(RowError, match="line 2"):
        load_questions(path)
    errors: list[RowError] = []
    assert len(load_questions(path, on_bad_row=errors.append)) == 2
    assert [error.line for error in errors] == [2, 4]
    assert len(load_questions(path, limit=1)) == 1


def test_reading_is_lazy(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", [{"question": "One?"}, "bad"])
    assert isinstance(next(iter(read_questions(path))), Question)


# The hub


class HubTable:
    """What `datasets.load_dataset` gives, as far as it is used."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.column_names = list(rows[0])

    def select_columns(self, names: list[str]) -> list[dict[str, Any]]:
        return [{name: row[name] for name in names} for row in self.rows]


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package `datasets`; `asked` holds the calls, `rows` what they give."""
    module = ModuleType("datasets")
    module.asked, module.rows, module.error = [], [], None

    def load_dataset(path, name, *, split, trust_remote_code):
        assert trust_remote_code is False  # left out, it asks on stdin whether code may run
        module.asked.append((path, name, split))
        if module.error:
            raise module.error
        return HubTable(module.rows)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_triviaqa_comes_from_the_hub_with_its_own_columns(hub):
    answer = {"value": "Ada", "aliases": ["Ada King"], "normalized_aliases": ["ada king"]}
    hub.rows = [{"question_id": "tc_1", "question": "Who?", "answer": answer, "search_results": ["long"]}]
    assert load_questions("TriviaQA", split="validation") == [Question("tc_1", "Who?", ("Ada", "Ada King"))]
    assert hub.asked == [("mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation")]


def test_nq_open_has_no_ids_and_gets_row_numbers(hub):
    hub.rows = [{"question": "who did it", "answer": ["Ada"]}, {"question": "when", "answer": ["1843"]}]
    assert [(q.id, q.answers) for q in load_questions("nq_open")] == [("1", ("Ada",)), ("2", ("1843",))]
    assert hub.asked == [("google-research-datasets/nq_open", None, "train")]


def test_squad_from_the_hub_brings_its_passages(hub):
    answers = {"text": ["Ada"], "answer_start": [0]}
    hub.rows = [{"id": "s", "title": "T", "context": "Ada.", "question": "Who?", "answers": answers}]
    assert load_questions("squad") == [Question("s", "Who?", ("Ada",), "Ada.", {"title": "T"})]


def test_any_other_hub_data_set_is_read_by_its_address(hub):
    hub.rows = [{"query": "Who?", "gold": "Ada"}]
    columns = {"question": "query", "answers": "gold"}
    assert load_questions("someone/something", subset="easy", columns=columns) == [
        Question("1", "Who?", ("Ada",))
    ]
    assert hub.asked == [("someone/something", "easy", "train")]


def test_the_questions_of_the_embedded_world_are_a_data_set_in_four_splits(tmp_path, monkeypatch):
    sizes = {"few_shot": 10, None: 2000, "validation": 500, "test": 500}
    found = {split: load_questions("atlas-rare", split=split, answers_needed=True) for split in sizes}
    assert {split: len(questions) for split, questions in found.items()} == sizes
    assert len({one.id for questions in found.values() for one in questions}) == 3010
    assert found[None] == load_questions("Atlas_rare", split="calibration_train")
    with pytest.raises(UsageError, match="unknown split of atlas-rare 'train'"):
        load_questions("atlas-rare", split="train")
    with pytest.raises(UsageError, match="no format, subset or columns apply"):
        load_questions("atlas-rare", subset="easy")
    with pytest.raises(UsageError, match="did you mean 'atlas-rare'"):
        load_questions("atlas-rar")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "atlas-rare").write_text('{"question": "Who?"}\n', encoding="utf-8")
    assert load_questions("atlas-rare")[0].question == "Who?"


def test_a_local_file_comes_before_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "squad", [{"id": "mine", "question": "Who?"}])
    assert load_questions("squad")[0].id == "mine"
    assert hub.asked == []


def test_a_hub_out_of_reach_is_a_clear_error(hub):
    hub.error = ConnectionError("Couldn't reach 'rajpurkar/squad' on the Hub")
    with pytest.raises(InputError, match=r"cannot load rajpurkar/squad .*Couldn't reach.* local file"):
        load_questions("squad")
    with pytest.raises(UsageError, match="a format is for local files"):
        load_questions("squad", format="csv")


def test_the_hub_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"datasets .*semcal\[data\]"):
        load_questions("squad")


# The development data


def test_every_row_of_the_development_data_is_read(semcal_data):
    sizes = {"squad_dev": 2000, "nq_open_train": 6000, "triviaqa_train": 6000, "entityquestions_dev": 2000}
    for name, size in sizes.items():
        questions = load_questions(semcal_data / f"{name}_sample.jsonl.gz", answers_needed=True)
        assert len(questions) == size
        texts = [text for q in questions for text in (q.question, *q.answers)]
        assert not [text for text in texts if text != text.strip() or '""' in text or "\u00a0" in text]
        assert all(len(set(q.answers)) == len(q.answers) for q in questions)


def test_parquet_cells_become_what_json_can_hold(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "typed.parquet"
    columns = {
        "question": ["When?"],
        "asked": [date(2026, 1, 2)],
        "price": [Decimal("12.50")],
        "seen": [[datetime(2026, 1, 2, 3, 4, tzinfo=UTC)]],
    }
    pq.write_table(pa.table(columns), path)
    (question,) = load_questions(path)
    assert question.extra == {"asked": "2026-01-02", "price": 12.5, "seen": ["2026-01-02T03:04:00+00:00"]}
    pq.write_table(pa.table({"question": ["When?"], "image": [b"\x00"]}), path)
    (error,) = read_questions(path)
    assert "a cell holds bytes" in str(error)
    assert "line 1" in str(error)


def test_what_is_wrong_with_a_question_names_its_line_and_its_id(tmp_path):
    path = write_lines(
        tmp_path / "q.jsonl", [{"id": "a", "question": "One?"}, {"id": "b", "question": "Two?"}]
    )
    assert str(load_questions(path)[1].error("too long")) == "line 2 (id 'b'): too long"
    assert str(Question("b", "Two?").error("too long")) == "question 'b': too long"
    assert load_questions(path)[1] == Question("b", "Two?")
