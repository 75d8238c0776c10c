"""--out: what is refused or replaced, what a signal or a full disk leaves, and two processes at once."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoking import semcal, write

from semcal.cli import fit, grid_commands
from semcal.cli.console import kept_message, open_unfinished
from semcal.errors import UsageError
from semcal.files import LOCK, file_lock
from semcal.store import find_rows, keep_rows

ROWS = [{"id": str(i), "question": "Who?", "samples": ["a", "b", "a"]} for i in range(5)]
GRID = """
models: [{name: none, path: no-such-model}]
datasets: [{name: d, source: atlas-trivia, calibration_train: 24, validation: 8, test: 12}]
equivalence: exact
"""


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return write(tmp_path / "rows.jsonl", ROWS)


def started(*arguments: Any, **how: Any) -> subprocess.Popen[str]:
    """A command as a process, which waits for rows on its stdin."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "semcal", *map(str, arguments)]
    return subprocess.Popen(command, text=True, **pipes, **how)


def wait_for(there: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@pytest.mark.parametrize(
    "command", ["cluster", "measure", "grade", "metrics", ("sample", "--model", "no-such-model"), "ask"]
)
def test_a_file_that_is_there_is_refused_before_anything_is_read_or_loaded(
    command: str | tuple[str, ...], tmp_path: Path
) -> None:
    name, *options = (command,) if isinstance(command, str) else command
    out = tmp_path / "out.jsonl"
    out.write_text("forty rows\n")
    code, printed, stderr = semcal(name, tmp_path / "no-such-file.jsonl", *options, "--out", out)
    assert (code, printed) == (2, [])
    assert stderr.startswith(f"error: --out {out} ")
    assert "--overwrite" in stderr
    assert out.read_text() == "forty rows\n"
    assert hidden(tmp_path) == []


def test_a_link_is_refused_and_with_overwrite_replaced_not_followed(rows: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for target in (rows, "nowhere"):
        out.symlink_to(target)
        assert semcal("cluster", rows, "--out", out)[0] == 2
        assert semcal("cluster", rows, "--out", out, "--overwrite", "-q")[0] == 0
        assert not out.is_symlink()
        assert len(Path(rows).read_text().splitlines()) == 5
        out.unlink()
    assert not (tmp_path / "nowhere").exists()


def test_devices_and_pipes_stay_what_they_are(rows: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert semcal("cluster", rows, "--out", pipe, "-q")[0] == 0
    assert len(os.read(reader, 10_000).splitlines()) == 5
    os.close(reader)
    assert pipe.is_fifo()
    assert semcal("cluster", rows, "--out", "/dev/null", "-q")[0] == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116
    for out in ("/dev/full", "/dev/stdout"):
        command = [sys.executable, "-m", "semcal", "cluster", rows, "-q", "--out", out]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (
            1,
            f"error: No space left on device: {out}; free some space, and run the same command again\n",
        )


@pytest.mark.parametrize("stopped", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind_and_says_so(stopped: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    process = started("cluster", "-", "--out", out, "-q")
    wait_for(lambda: hidden(tmp_path), process)
    time.sleep(0.5)  # until it waits for rows
    process.send_signal(stopped)
    stderr = process.communicate()[1]
    word, code = ("interrupted", 130) if stopped == signal.SIGINT else ("terminated", 143)
    # Python itself ends by SIGINT, which shells call 130 too, if it came in the middle of an import's exec()
    ended = {code, -stopped} if stopped == signal.SIGINT else {code}
    assert process.returncode in ended
    assert stderr == f"{word}; no unfinished work is kept\n"
    assert list(tmp_path.iterdir()) == []


def unprivileged() -> None:
    """Let the permissions of files hold for this process, though root started it."""
    drop, overrides = 24, (1, 2)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    for capability in overrides if os.geteuid() == 0 else ():
        if ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0):
            raise OSError


@pytest.mark.skipif(sys.platform != "linux", reason="root gives up its rights by a call of Linux")
def test_a_folder_that_cannot_be_written_to_is_an_error_before_any_work(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(0o555)
    command = [sys.executable, "-m", "semcal", "sample", "no-questions.jsonl", "--model", "none", "--out"]
    for out in (folder / "out.jsonl", folder / "new" / "out.jsonl"):
        try:
            done = subprocess.run(
                [*command, str(out)],
                preexec_fn=unprivileged,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.SubprocessError:
            pytest.skip("root may not give up its rights here")
        assert (done.returncode, done.stderr) == (
            1,
            f"error: Permission denied: {out}; check the permissions, or choose another place\n",
        )
    assert list(folder.iterdir()) == []


def refused(output: Any, *, overwrite: bool = False) -> str:
    """Why an output is refused, or "" if it is not."""
    try:
        output.check(overwrite=overwrite)
    except UsageError as error:
        return str(error)
    return ""


def test_fit_replaces_a_recalibrator_with_overwrite_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "fit"
    assert refused(fit.output_of(out)) == ""
    out.mkdir()
    assert refused(fit.output_of(out)) == ""
    (out / "recalibrator.json").write_text('{"kind": "recalibrator"}')
    assert "--overwrite" in refused(fit.output_of(out))
    assert refused(fit.output_of(out), overwrite=True) == ""
    (out / "recalibrator.json").rename(out / "calibration.json")
    assert f"--out {out} " in refused(fit.output_of(out), overwrite=True)
    write(tmp_path / "thesis.tex", [])
    assert "is a file" in refused(fit.output_of(tmp_path / "thesis.tex"), overwrite=True)
    (tmp_path / "fit.unfinished").mkdir()
    (tmp_path / "fit.unfinished" / "settings.json").write_text("{}")
    assert refused(fit.output_of(out)) == ""  # it was begun, and goes on


def test_a_run_goes_on_with_its_own_folder_alone(tmp_path: Path) -> None:
    config = tmp_path / "grid.yaml"
    config.write_text(GRID)
    taken = tmp_path / "thesis"
    taken.mkdir()
    (taken / "chapter.tex").write_text("mine")
    for more in ((), ("--dry-run",), ("--fresh", "--overwrite")):
        code, _, stderr = semcal("run", config, "--out", taken, *more)
        assert (code, "thesis" in stderr) == (2, True)
    assert [path.name for path in taken.iterdir()] == ["chapter.tex"]
    own = tmp_path / "own"
    own.mkdir()
    (own / "settings.yaml").write_text("")
    assert refused(grid_commands.run_output(own, config)) == ""


def test_a_second_process_on_a_run_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "grid.yaml"
    config.write_text(GRID)
    folder = tmp_path / "run"
    with grid_commands.run_output(folder, config).locked():
        code, _, stderr = semcal("run", config, "--out", folder)
        assert (code, f"--out {folder}: another process" in stderr) == (2, True)
    assert not folder.exists()


def test_a_report_is_written_to_a_folder_of_reports_alone(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    for path in (folder, out):
        path.mkdir()
    (folder / "samples").mkdir()
    (out / "results.json").write_text("{}")
    for target, free in ((None, True), (folder, True), (out, True), (tmp_path, False)):
        output = grid_commands.report_output(folder, target)
        assert output is not None
        assert (refused(output) == "") == free


def test_what_is_kept_is_said_with_how_to_go_on(tmp_path: Path) -> None:
    blocks = tmp_path / "fit.unfinished" / "blocks" / "rows"
    output = fit.output_of(tmp_path / "fit")
    assert kept_message(output) == ""
    blocks.mkdir(parents=True)
    assert kept_message(output) == ""
    (blocks / "a.jsonl").write_text("")
    assert f"{tmp_path}/fit.unfinished; the same command without --fresh" in kept_message(output)


def test_a_lock_that_a_killed_process_left_is_no_hindrance(rows: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    (tmp_path / f".out.jsonl{LOCK}").write_text("")
    assert semcal("cluster", rows, "--out", out, "-q")[0] == 0
    assert hidden(tmp_path) == []
    with file_lock(tmp_path / f".out.jsonl{LOCK}", "busy"):
        assert semcal("cluster", rows, "--out", out, "--overwrite")[0] == 2


def test_a_call_that_finished_nothing_stands_in_nobodys_way(tmp_path: Path) -> None:
    kept = [{"id": "1", "x": 2}]
    open_unfinished(tmp_path / "out", {"seed": 0}, fresh=False)
    path = open_unfinished(tmp_path / "out", {"seed": 1}, fresh=False).path("rows", {})
    assert keep_rows(path, kept) == kept
    with pytest.raises(UsageError, match=r"out\.unfinished"):
        open_unfinished(tmp_path / "out", {"seed": 0}, fresh=False)
    assert find_rows(open_unfinished(tmp_path / "out", {"seed": 1}, fresh=False).path("rows", {})) == kept
