"""What the commands write is what tests/golden holds (`python -m tests.golden --rebuild` stores it anew)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.__main__ import written_today
from tests.golden.archive import read_archive, write_archive
from tests.golden.differences import differences


@pytest.mark.slow
def test_the_commands_write_what_is_stored(tmp_path: Path) -> None:
    found = differences(read_archive(), written_today(tmp_path / "golden"))
    assert not found, "\n".join(map(str, found))


def test_a_number_that_moves_a_word_that_changes_and_a_missing_file_are_told_apart() -> None:
    before = {"a": "ACE 0.125, n 3", "b": "one", "c": "same", "d": "gone"}
    after = {"a": "ACE 0.25, n 3", "b": "two", "c": "same", "e": "x"}
    assert list(map(str, differences(before, after))) == [
        "a: numbers differ by up to 0.125",
        "b: 'one' became 'two'",
        "d: is missing",
        "e: is new",
    ]


def test_an_archive_gives_back_its_files_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    files = {"grid/results.json": '{"ä": 1}\n', "a.txt": ""}
    write_archive(files, tmp_path / "one.tar.gz")
    write_archive(dict(reversed(files.items())), tmp_path / "two.tar.gz")
    assert read_archive(tmp_path / "one.tar.gz") == files
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
