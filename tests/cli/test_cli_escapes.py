"""What comes from outside never reaches a terminal as an escape sequence; records keep it."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoking import Terminal, write

from semcal.cli import console, options
from semcal.cli.app import app
from semcal.errors import printable
from semcal.files import dumps
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.progress import bar
from semcal.steps import WorkerState

#: Clears the screen, names the window, writes to the clipboard, C1's CSI, turns the direction of writing.
HOSTILE = "\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0=\x07\x9b31m\u202eend"
CLEANED = "�[2J�]0;title��]52;c;cm0=��31m�end"
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def terminals(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Terminal]:
    """Terminals in place of stdout and stderr, without progress, whose bar is made of escape sequences."""
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(console, "_in_a_pipe", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    return streams


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app([str(one) for one in arguments], prog_name="semcal")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_letters_that_shape_words_stay() -> None:
    family, persian, hebrew = "👩\u200d👩\u200d👦", "می\u200cخواهم", "\u200fשלום\u200e"
    for text in (
        family,
        persian,
        hebrew,
        "12\u00a0000",
        "全\u3000角",
        "co\u00adop",
        "\U0001fadc",
        "é",
        "e\u0301",
    ):
        assert printable(text) == text


@given(st.text(st.characters(codec=None)))
def test_nothing_is_left_that_a_terminal_acts_on_and_nothing_else_is_lost(text: str) -> None:
    found = printable(text)
    assert not ACTED_ON.search(found)
    assert printable(found) == found
    lost = {old for old, new in zip(text, found, strict=True) if old != new}
    assert {unicodedata.category(one) for one in lost} <= {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


@given(st.text(st.characters(codec=None)))
def test_json_holds_the_same_text_and_nothing_that_a_terminal_acts_on(text: str) -> None:
    written = dumps({"answer": text, text: 1})
    assert json.loads(written) == {"answer": text, text: 1}
    assert not ACTED_ON.search(written.replace("\x7f", ""))
    written.encode()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose answers and name are hostile, and hold what rich takes for markup."""
    model = FakeLanguageModel({"Who?": {f"[red]{HOSTILE}": 1.0}}, name=HOSTILE)
    state = WorkerState(model, ExactMatch())
    monkeypatch.setattr(options.ModelOptions, "__call__", lambda _: state)
    monkeypatch.setattr(options, "weights_of", lambda **_: 1)


@pytest.mark.usefixtures("model")
@pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")
def test_an_answer_is_printed_without_escape_sequences_and_recorded_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = terminals(monkeypatch)
    options = ("--model", "hostile", "--temperature", "1", "--m", "4")
    file = write(tmp_path / "q.jsonl", [{"id": HOSTILE, "question": "Who?"}])
    for what in ("Who?", file):
        assert run("ask", what, *options) == 0
    assert (
        len(re.findall(rf"^answer +{re.escape(f'[red]{CLEANED}')}$", terminal[0].getvalue(), re.MULTILINE))
        == 2
    )
    assert run("ask", "Who?", *options, "--json") == 0
    assert not ACTED_ON.search("".join(one.getvalue() for one in terminal))
    record = json.loads(terminal[0].getvalue().splitlines()[-1])
    assert record["answer"] == f"[red]{HOSTILE}"
    assert run("ask", file, *options, "--out", tmp_path / "a.jsonl") == 0
    (row,) = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert (row["id"], row["answer"]) == (HOSTILE, f"[red]{HOSTILE}")


def test_names_in_tables_and_messages_are_printed_as_they_are_but_for_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = terminals(monkeypatch)
    name = f"[b]{HOSTILE}"
    rows = [{"id": name, "confidence": {name: p}, "correct": {name: p > 0.4}} for p in (0.3, 0.6)]
    assert run("metrics", write(tmp_path / "m.jsonl", [*rows, {"id": name}]), "--risk", "0.2") == 1
    assert f"[b]{CLEANED}: no threshold" in terminal[0].getvalue()
    assert re.search(r"^ +\[b\]�\[2J", terminal[0].getvalue(), re.MULTILINE)
    assert run("cluster", tmp_path / f"{HOSTILE}.jsonl") == 1
    assert f"{tmp_path}/{CLEANED}.jsonl: " in terminal[1].getvalue()
    (tmp_path / f"{HOSTILE}.out").touch()
    assert run("cluster", "x", "--out", tmp_path / f"{HOSTILE}.out") == 2
    assert not ACTED_ON.search("".join(one.getvalue() for one in terminal))


def test_warnings_and_labels_of_progress_are_cleaned_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminals(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with bar(f"[b]{HOSTILE}", 3) as update:
        update(2)
    shown = re.sub(r"\x1b\[(\d+[AKm]|\?25[lh])|\r", "", terminal[1].getvalue())
    assert f"[b]{CLEANED}" in shown
    assert not ACTED_ON.search(shown)
    console.warn(HOSTILE)
    assert terminal[1].getvalue().endswith(f"{CLEANED}\n")


def test_commands_print_through_the_console_alone() -> None:
    """One function replaces what does not print; one that prints beside it would not."""
    for file in Path(console.__file__).parent.rglob("*.py"):
        calls = re.findall(r"(?:typer\.echo|\bprint|sys\.std(?:out|err)\.write)\(", file.read_text())
        assert len(calls) == 2 * (file.name == "console.py"), file
