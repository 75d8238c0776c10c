"""What the commands write is what tests/golden holds (`python -m tests.golden --rebuild` stores it anew)."""

from __future__ import annotations

from pathlib import Path

import pytest

from semcal.experiment.report.explorer import packed
from tests.golden.__main__ import written_today
from tests.golden.archive import read_archive, write_archive
from tests.golden.differences import differences
from tests.golden.machine_facts import is_compared, without_machine_facts

#: Logits of the engine agree with plain transformers within 1e-4, and processors round differently.
TOLERANCE = 1e-4


def test_the_commands_write_what_is_stored(tmp_path: Path) -> None:
    found = differences(read_archive(), written_today(tmp_path / "golden"), tolerance=TOLERANCE)
    assert not found, "\n".join(map(str, found))


def test_numbers_within_the_tolerance_are_equal_and_hashes_of_figures_are_left_out() -> None:
    before, after = {"a": "T 2000.001, drawn 0123456789abcdef"}, {"a": "T 2000.008, drawn fedcba9876543210"}
    assert not differences(before, after, tolerance=1e-5)
    assert differences(before, after, tolerance=1e-7)
    assert differences(before, after)


@pytest.mark.parametrize(
    ("name", "old", "new", "equal"),
    [
        ("a.txt", "0.125", "0.126", True),
        ("a.txt", "0.125", "0.127", False),
        ("a.txt", "1.2e-03", "1.3e-03", True),
        ("a.txt", "89%", "90%", False),
        ("a.txt", "n 300", "n 301", False),
        ("a.html", "[7, -201]", "[7, -202]", True),
        ("a.html", "[7, -201]", "[8, -201]", False),
        ("a.json", '"sha256": "0123456789ab"', '"sha256": "ba9876543210"', True),
        ("a.json", "0.123456789012e-08", "0.923456789012e-03", False),
    ],
)
def test_what_rounds_differently_is_equal_and_a_count_is_not(
    name: str, old: str, new: str, equal: bool
) -> None:
    assert (not differences({name: old}, {name: new}, tolerance=1e-4)) is equal
    assert differences({name: old}, {name: new})


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


def test_ports_versions_and_times_are_left_out_and_numbers_stay() -> None:
    said = "sample: 3 of 20 (12 s, 9 s left)\nsample: 71 requests (121/s, 7 retried), 5313 tokens in\n"
    assert without_machine_facts("a.stderr.txt", said) == "sample: 71 requests (7 retried), 5313 tokens in\n"
    assert without_machine_facts("a.yaml", "path: openai:http://127.0.0.1:4711/v1") == (
        "path: openai:http://127.0.0.1:PORT/v1"
    )
    fitted = '{\n  "temperature": 1.25,\n  "versions": {\n    "torch": "2"\n  },\n  "sha256": "%s"\n}\n' % (
        "a" * 64
    )
    assert without_machine_facts("ts/recalibrator.json", fitted) == (
        '{\n  "temperature": 1.25,\n  "versions": {}\n}\n'
    )
    assert not is_compared("grid/run/environment.json")
    assert is_compared("grid/run/report.html")


def test_of_a_page_its_words_and_questions_are_compared_and_a_figure_by_its_words_and_a_hash() -> None:
    page = """<style>
p {}
</style>
<p>ACE 0.125 of http://127.0.0.1:4711/v1</p><svg aria-label="Figure 1"><text x="1">share</text></svg>
<section id="costs"><p>12 s</p></section>
<h3>Environment</h3>
<dl class="facts-list"><dt>cores</dt><dd>2</dd></dl>
<script type="text/plain" id="questions-0">PACKED</script>
<script>run()</script>
"""
    page = page.replace("PACKED", packed([{"question": "Who?"}]))
    assert without_machine_facts("report.html", page) == (
        "<p>ACE 0.125 of http://127.0.0.1:PORT/v1</p>[Figure 1 | share | drawn 3487e33852bc29f0]\n"
        '<script type="text/plain" id="questions-0">\n{"question": "Who?"}\n</script>\n'
    )
