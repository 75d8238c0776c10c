"""Questions from every kind of source; bad rows are reported and the rest goes on."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from semcal.data.datasets import clean_text, load_questions, question_from_row, read_questions
from semcal.data.question import Question
from semcal.errors import InputError, MissingExtraError, RowError, SemcalWarning, UsageError
from semcal.files import JsonLine


def write_lines(path: Path, rows: list[Any]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def read_both(source: Path | str, **options: Any) -> tuple[list[Question], list[RowError]]:
    items = list(read_questions(source, **options))
    questions = [item for item in items if isinstance(item, Question)]
    return questions, [item for item in items if isinstance(item, RowError)]


@pytest.fixture
def parquet(tmp_path) -> Callable[..., Path]:
    """Writes a table of columns, or of rows, to a file."""
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(columns: dict[str, Any] | list[dict[str, Any]]) -> Path:
        table = pyarrow.table(columns) if isinstance(columns, dict) else pyarrow.Table.from_pylist(columns)
        writer.write_table(table, tmp_path / "q.parquet")
        return tmp_path / "q.parquet"

    return write


# One row


#: Rows that hold no question that can be used, and the key or the value that the error names.
BAD_ROWS = [
    *(({"id": bad, "question": "Who?"}, '"id"') for bad in (None, "", "  ", 1.5, ["q"], True)),
    *(
        ({"id": "q", "question": bad}, '"question"')
        for bad in ("", " \n", "\u00a0", 7, ["Who?"], {"text": "Who?"})
    ),
    ({"prompt": "Who?", "gold": "Ada"}, "prompt, gold"),
    *(
        ({"question": "When?", "answers": bad}, '"answers"')
        for bad in (True, 1984.5, [1984.5], [False], 2.0**60, 1e300, [["Ada"]], ["Ada", None], [None])
    ),
    ({"question": "?", "answers": "['a' 'b']"}, "a list of texts"),
    ({"question": "Who?", "answers": {"texts": 5, "long": "x" * 2_000_000}}, '"answers"'),
    ({"question": "Who?", "context": ["Ada."]}, '"context"'),
]


@pytest.mark.parametrize(("data", "named"), BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_row_without_a_usable_question_is_one_short_error_that_names_the_key(data, named):
    with pytest.raises(RowError, match=re.escape(named)) as caught:
        question_from_row(JsonLine(12, data))
    assert caught.value.line == 12
    assert len(caught.value.reason) < 300


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
        (1988, ("1988",)),
        ([1988, "7", 7], ("1988", "7")),
        (1988.0, ("1988",)),
        (0, ("0",)),
        (-3, ("-3",)),
    ],
)
def test_answers_in_every_shape_become_one_tuple(answers, expected):
    assert question_from_row(JsonLine(1, {"question": "Who?", "answers": answers})).answers == expected


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
    assert '"id"' in errors[3].reason


def test_a_row_without_id_has_its_number_and_answers_and_a_passage_may_be_missing(tmp_path):
    rows = [{"question": "One?", "answers": ["", " "], "context": " "}, {"id": 1, "question": "Two?"}]
    path = write_lines(tmp_path / "q.jsonl", rows)
    questions, errors = read_both(path)
    assert questions == [Question("1", "One?")]
    assert "was used in line 1" in errors[0].reason
    with pytest.raises(RowError, match='"answers"'):
        load_questions(path, answers_needed=True)


def test_a_passage_of_two_megabytes_is_legal_in_every_format(tmp_path, parquet):
    row = {"id": "a", "question": "Who?", "answers": ["Ada"], "context": "Ada, she wrote. \n" * 130_000}
    write_lines(tmp_path / "q.jsonl", [row])
    (tmp_path / "q.json").write_text(json.dumps([row]))
    with (tmp_path / "q.csv").open("w", newline="") as handle:
        writer = csv.DictWriter(handle, row)
        writer.writeheader()
        writer.writerow(row | {"answers": '["Ada"]'})
    parquet([row])
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
        b"d,Last?,Ada,4\r\n"
    )
    questions, errors = read_both(path)
    assert questions[0] == Question(
        "a", 'Who wrote "Kim", and when?', ("Rudyard", "Kipling"), None, {"level": "1"}
    )
    assert [question.id for question in questions] == ["a", "d"]
    assert [error.line for error in errors] == [4, 6]
    assert "expected 4 cells (id, question, answers, level), got 5" in errors[0].reason


def test_whole_numbers_of_tables_are_reference_answers(tmp_path, parquet):
    question = ["When?", "Who?", "How many?"]
    for answers in ([1988, 7, None], [1988.0, 7.0, None], [[1988], [7], []]):  # None makes floats in pandas
        found = load_questions(parquet({"question": question, "answers": answers}))
        assert [one.answers for one in found] == [("1988",), ("7",), ()]
    (tmp_path / "q.csv").write_text("question,answers\nWhen?,1988\nWho?,7.0\n")
    assert [one.answers for one in load_questions(tmp_path / "q.csv")] == [("1988",), ("7.0",)]


def squad(*paragraphs: Any) -> str:
    return json.dumps({"version": "1.1", "data": [{"title": "Ada", "paragraphs": list(paragraphs)}]})


def test_squads_own_json_is_read_and_a_part_of_another_shape_is_an_error(tmp_path):
    entry = {"id": "s1", "question": " Who? ", "answers": [{"text": "Ada", "answer_start": 0}] * 3}
    other = {"id": "s2", "question": "When?", "answers": []}
    path = tmp_path / "dev.json"
    path.write_text(squad({"context": "Ada did.", "qas": [entry, other]}))
    first, second = load_questions(path)
    assert first == Question("s1", "Who?", ("Ada",), "Ada did.", {"title": "Ada"})
    assert (second.id, second.answers) == ("s2", ())
    for bad in ({"context": "Ada."}, "paragraph", {"context": "Ada.", "qas": [7]}):
        path.write_text(squad(bad))
        with pytest.raises(InputError, match="paragraphs → qas"):
            load_questions(path)


def test_a_json_file_may_hold_a_list_or_lines(tmp_path):
    row = {"id": "a", "question": "Who?"}
    (tmp_path / "list.json").write_text(json.dumps([row, 5]))
    questions, errors = read_both(tmp_path / "list.json")
    assert ([question.id for question in questions], [error.line for error in errors]) == (["a"], [2])
    assert load_questions(write_lines(tmp_path / "lines.json", [row, {**row, "id": "b"}]))[1].id == "b"
    assert load_questions(write_lines(tmp_path / "one.json", [row]))[0].id == "a"


def test_parquet_is_read(tmp_path, parquet):
    rows = [{"id": n, "question": f"Question {n}?", "answers": [f"{n}"], "level": 1.5} for n in range(2000)]
    questions = load_questions(parquet(rows))
    assert len(questions) == 2000
    assert questions[1999] == Question("1999", "Question 1999?", ("1999",), None, {"level": 1.5})


def test_parquet_cells_become_what_json_can_hold(parquet):
    columns = {
        "question": ["When?"],
        "asked": [date(2026, 1, 2)],
        "price": [Decimal("12.50")],
        "seen": [[datetime(2026, 1, 2, 3, 4, tzinfo=UTC)]],
    }
    (question,) = load_questions(parquet(columns))
    assert question.extra == {"asked": "2026-01-02", "price": 12.5, "seen": ["2026-01-02T03:04:00+00:00"]}


def test_a_cell_of_parquet_that_json_cannot_hold_spoils_its_own_row_only(parquet):
    import pyarrow as pa

    columns = {
        "number": pa.array([float("nan"), 1.0, float("nan")]),
        "image": pa.array([b"\x00", None, b"\x00"]),
    }
    for name, cells in columns.items():
        ids = pa.array(["a", "b", "c"])
        first, good, last = read_questions(parquet({"id": ids, "question": ["Who?"] * 3, name: cells}))
        assert [(bad.line, isinstance(bad, RowError)) for bad in (first, last)] == [(1, True), (3, True)]
        assert isinstance(good, Question)


def test_parquet_that_python_cannot_hold_is_one_error(parquet):
    import pyarrow as pa

    columns = {
        "day": pa.array([3_000_000], pa.int32()).cast(pa.date32()),
        "moment": pa.array([2**62], pa.timestamp("us")),
        "text": pa.array([b"Caf\xe9?"], pa.binary()).view(pa.string()),
        "pair": pa.StructArray.from_arrays([pa.array([1])] * 2, names=["a", "a"]),
    }
    for name, cells in columns.items():
        with pytest.raises(InputError, match=r"q\.parquet"):
            load_questions(parquet({"question": ["Who?"], name: cells}))


@pytest.mark.parametrize(
    ("name", "options", "error", "named"),
    [
        ("none.jsonl", {}, InputError, r"none\.jsonl"),
        ("squat", {}, UsageError, "'squad'"),
        ("q.doc", {}, InputError, r"\.jsonl"),
        ("q.csv", {}, InputError, r"q\.csv"),
        ("q.parquet", {}, InputError, r"q\.parquet"),
        ("q.csv", {"split": "train"}, UsageError, "split"),
    ],
)
def test_a_source_that_cannot_be_read_says_why(name, options, error, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for empty in ("q.doc", "q.csv", "q.parquet"):
        (tmp_path / empty).write_bytes(b"")
    with pytest.raises(error, match=named):
        load_questions(name, **options)


def test_loading_raises_the_first_bad_row_or_hands_all_to_the_caller(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", [{"question": "One?"}, "bad", {"question": "Two?"}, "worse"])
    with pytest.raises(RowError, match="line 2"):
        load_questions(path)
    errors: list[RowError] = []
    assert len(load_questions(path, on_bad_row=errors.append)) == 2
    assert [error.line for error in errors] == [2, 4]
    assert len(load_questions(path, limit=1)) == 1


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


@pytest.mark.parametrize(
    ("name", "options", "row", "question", "asked"),
    [
        (
            "triviaqa",
            {"split": "validation"},
            {
                "question_id": "tc",
                "question": "Who?",
                "answer": {"value": "Ada", "aliases": ["A. K."]},
                "x": 1,
            },
            Question("tc", "Who?", ("Ada", "A. K.")),
            ("mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation"),
        ),
        (  # without ids
            "nq-open",
            {},
            {"question": "who did it", "answer": ["Ada"]},
            Question("1", "who did it", ("Ada",)),
            ("google-research-datasets/nq_open", None, "train"),
        ),
        (
            "squad",
            {},
            {"id": "s", "title": "T", "context": "Ada.", "question": "Who?", "answers": {"text": ["Ada"]}},
            Question("s", "Who?", ("Ada",), "Ada.", {"title": "T"}),
            ("rajpurkar/squad", None, "train"),
        ),
        (
            "someone/something",
            {"subset": "easy", "columns": {"question": "query", "answers": "gold"}},
            {"query": "Who?", "gold": "Ada"},
            Question("1", "Who?", ("Ada",)),
            ("someone/something", "easy", "train"),
        ),
    ],
)
def test_a_data_set_comes_from_the_hub_with_its_own_columns(hub, name, options, row, question, asked):
    hub.rows = [row]
    assert load_questions(name, **options) == [question]
    assert hub.asked == [asked]


def test_the_questions_of_the_embedded_world_are_a_data_set_in_four_splits(tmp_path, monkeypatch):
    sizes = {"few_shot": 10, None: 2000, "validation": 500, "test": 500}
    found = {split: load_questions("atlas-rare", split=split, answers_needed=True) for split in sizes}
    assert {split: len(questions) for split, questions in found.items()} == sizes
    assert len({one.id for questions in found.values() for one in questions}) == 3010
    assert found[None] == load_questions("atlas-rare", split="calibration_train")
    with pytest.raises(UsageError, match="unknown split of atlas-rare 'train'"):
        load_questions("atlas-rare", split="train")
    with pytest.raises(UsageError, match="no subset or columns apply"):
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


@pytest.mark.parametrize(("source", "package"), [("q.parquet", "pyarrow"), ("squad", "datasets")])
def test_a_package_that_is_missing_names_the_extra(source, package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("q.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} .*semcal\[data\]"):
        load_questions(source)


def test_a_hub_out_of_reach_is_a_clear_error(hub):
    hub.error = ConnectionError("Couldn't reach 'rajpurkar/squad' on the Hub")
    with pytest.raises(InputError, match=r"cannot load rajpurkar/squad .*Couldn't reach.* local file"):
        load_questions("squad")


# The development data


def test_what_is_wrong_with_a_question_names_its_line_and_its_id(tmp_path):
    path = write_lines(
        tmp_path / "q.jsonl", [{"id": "a", "question": "One?"}, {"id": "b", "question": "Two?"}]
    )
    assert str(load_questions(path)[1].error("too long")) == "line 2 (id 'b'): too long"
    assert str(Question("b", "Two?").error("too long")) == "question 'b': too long"
    assert load_questions(path)[1] == Question("b", "Two?")


def test_several_references_in_one_cell_are_warned_of(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("question,answers\nWho?,Ana; Anna\nWhat?,a mill | mills\nWhere?,Rome\n")
    with pytest.warns(SemcalWarning, match='"answers" of 2 of 3 rows'):
        assert load_questions(path)[0].answers == ("Ana; Anna",)


def test_the_line_sep_of_excel_is_named(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("sep=;\r\nquestion;answers\r\nWho?;Ana\r\n")
    with pytest.raises(InputError, match="'sep=;'"):
        load_questions(path)
