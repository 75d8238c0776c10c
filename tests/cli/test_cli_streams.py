"""Closed streams, full devices, bytes that are no text, odd locales: one line of error, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from invoking import semcal, write

ROWS = [{"id": "a", "question": "Who?", "samples": ["Ana", "Ana", "Bo"]}]


def shell(line: str, *arguments: object, **environment: str) -> tuple[int, str, str]:
    """Run `"$@"`, which is semcal with these arguments, in a line of sh: its exit code, stdout and stderr."""
    command = [os.fsencode(str(one)) for one in (sys.executable, "-m", "semcal", *arguments)]
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "s.jsonl", ROWS)


@pytest.mark.parametrize(
    ("line", "arguments", "reason"),
    [
        (
            'exec "$@" >&-',
            ("cluster", "FILE", "--equivalence", "exact"),
            "Bad file descriptor: standard output",
        ),
        ('exec "$@" <&-', ("cluster", "-", "--equivalence", "exact"), "Bad file descriptor: standard input"),
        ('exec "$@" >&- <&-', ("env",), "Bad file descriptor: standard output"),
        ('exec "$@" >&-', ("--version",), "Bad file descriptor: standard output"),
        ('exec "$@" >/dev/full', ("--help",), "No space left on device: standard output"),
    ],
)
def test_a_closed_or_full_stream_that_is_needed_is_one_error(
    line: str, arguments: tuple[str, ...], reason: str, file: str
) -> None:
    code, stdout, stderr = shell(line, *(file if one == "FILE" else one for one in arguments))
    assert (code, stdout, stderr) == (1, "", f"error: {reason}\n")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_closed_or_full_stream_that_is_not_needed_changes_nothing(
    streams: str, file: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    code, _, stderr = shell(f'exec "$@" {streams}', "cluster", file, "--equivalence", "exact", "--out", out)
    assert (code, json.loads(out.read_text())["clusters"]) == (0, [[0, 1], [2]])
    assert stderr == ("" if "2>" in streams else f"cluster: 1 rows in {out}\n")


def test_messages_that_nobody_reads_do_not_end_a_command(file: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    line = '{ "$@" 3>&-; echo $? >&3; } 2>&1 | true'
    code, _, _ = shell(
        f"{{ {line}; }} 3>{tmp_path / 'code'}", "cluster", file, "--equivalence", "exact", "--out", out
    )
    assert (code, (tmp_path / "code").read_text(), len(out.read_text().splitlines())) == (0, "0\n", 1)


@pytest.mark.parametrize("option", [(), ("Who?", "--context")])
def test_a_question_that_is_not_utf_8_is_refused_before_a_model_is_loaded(
    option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semcal.cli.options.ModelOptions.__call__", lambda _: pytest.fail("it was loaded"))
    for bytes_ in (b"Where is Caf\xe9?", b"half \xed\xa0\xbd"):
        code, rows, stderr = semcal("ask", *option, os.fsdecode(bytes_))
        assert (code, rows) == (2, [])
        assert "UTF-8" in stderr
        assert stderr.startswith(f"error: {'context' if option else 'question'}: ")


@pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")
def test_quiet_commands_print_errors_and_bad_rows_alone(tmp_path: Path) -> None:
    """Each of these prints a warning or a note without -q."""
    rows = [
        {
            "id": f"q{i}",
            "question": f"Who built mill {i}?",
            "samples": ["Ana"] * (i % 5) + ["Bo"] * 5,
            "answers": ["Ana"],
        }
        for i in range(40)
    ]
    rows = [{**row, "samples": row["samples"][:5]} for row in rows]
    file, asked = write(tmp_path / "rows.jsonl", rows), write(tmp_path / "q.jsonl", [{"question": "Who?"}])
    clustered = str(tmp_path / "clustered.jsonl")
    assert semcal("cluster", file, "--equivalence", "exact", "--out", clustered, "-q")[2] == ""
    for command in (
        ("calibrate", file, "--equivalence", "exact", "--overwrite", "--out", tmp_path / "c"),
        ("measure", clustered),
        ("measure", clustered, "--calibration", tmp_path / "c"),
        ("ask", asked, "--model", "atlas", "--m", "3", "--equivalence", "exact"),
    ):
        loud, quiet = semcal(*command), semcal(*command, "-q")
        assert (loud[0], quiet[0], quiet[2]) == (0, 0, ""), command
        assert len(loud[2]) > 0, command
        assert loud[1] == quiet[1]
    with Path(clustered).open("a") as handle:
        handle.write('{"id": "bad"}\n')
    code, _, stderr = semcal("measure", clustered, "-q")
    assert (code, "1 bad row was left out" in stderr, "log-likelihoods" in stderr) == (1, True, False)
