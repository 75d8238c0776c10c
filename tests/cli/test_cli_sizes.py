"""Counts that nothing can have are wrong usage; unfinished work is in others' way only if there is some."""

from __future__ import annotations

from pathlib import Path

import pytest
from invoking import semcal, write

from semcal.cli.console import open_unfinished
from semcal.errors import UsageError

ROWS = [{"id": "1", "question": "Which?", "samples": ["a", "b"], "confidence": 0.5, "correct": True}]


@pytest.mark.parametrize("digits", [11, 400])
@pytest.mark.parametrize(
    ("command", "option"),
    [("cluster", "--limit"), ("metrics", "--limit"), ("metrics", "--bins")],
)
def test_a_count_that_no_array_can_have_is_wrong_usage(
    command: str, option: str, digits: int, tmp_path: Path
) -> None:
    code, rows, stderr = semcal(command, write(tmp_path / "rows.jsonl", ROWS), option, "9" * digits)
    assert (code, rows) == (2, [])
    assert f"Invalid value for '{option}'" in stderr
    assert "is too large" in stderr
    assert len(stderr) < 400


def test_a_seed_has_62_bits_at_most(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"id": "1", "answers": ["a"], "prediction": "a"}])
    assert semcal("grade", path, "--seed", 2**62 - 1)[0] == 0
    assert semcal("grade", path, "--seed", 2**62)[0] == 2


def unfinished(folder: Path) -> Path:
    """What a call that has finished one block leaves; its note of settings."""
    open_unfinished(folder / "out", {"seed": 0}, fresh=False).keep([{"id": "1"}], [{"id": "1", "x": 2}])
    return folder / "out.unfinished" / "settings.json"


@pytest.mark.parametrize("change", [b"", b"\xff\xfe", b"{", b'{"seed": 0', b"[" * 100_000, b"null"])
def test_a_changed_note_of_settings_is_another_calls(change: bytes, tmp_path: Path) -> None:
    unfinished(tmp_path).write_bytes(change)
    with pytest.raises(
        UsageError, match=r"out\.unfinished holds unfinished work of a call with other options"
    ):
        open_unfinished(tmp_path / "out", {"seed": 0}, fresh=False)


def test_a_call_that_finished_nothing_stands_in_nobodys_way(tmp_path: Path) -> None:
    open_unfinished(tmp_path / "out", {"seed": 0}, fresh=False).begin()
    other = open_unfinished(tmp_path / "out", {"seed": 1}, fresh=False)
    assert other.keep([{"id": "1"}], [{"id": "1", "x": 2}]) == [{"id": "1", "x": 2}]
    with pytest.raises(UsageError, match="other options"):
        open_unfinished(tmp_path / "out", {"seed": 0}, fresh=False)
    assert open_unfinished(tmp_path / "out", {"seed": 1}, fresh=False).find([{"id": "1"}]) == [
        {"id": "1", "x": 2}
    ]
