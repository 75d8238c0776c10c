"""Files that appear whole or not at all, their leftovers, and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from semcal import files as module
from semcal.cli.row_streams import RowResults
from semcal.errors import UsageError
from semcal.files import (
    LOCK,
    atomic_folder,
    atomic_write,
    clear_folder,
    file_lock,
    own_files,
    remove_leftovers,
    write_sealed,
    writing,
)
from semcal.models.equivalence import CachedEquivalence, ExactMatch
from semcal.store import Store

#: Opens what the arguments say, says so, and waits to be killed.
HOLDS = """
import sys, time
from pathlib import Path
from semcal.files import atomic_folder, atomic_write, file_lock
what, path = sys.argv[1], Path(sys.argv[2])
held_by = {"file": atomic_write, "folder": atomic_folder, "lock": lambda path: file_lock(path, "busy")}
with held_by[what](path) as held:
    if what == "file":
        held.write(b"half")
        held.flush()
    if what == "folder":
        (held / "half").write_text("half")
    print("there", flush=True)
    time.sleep(60)
"""


def holder(what: str, path: Path) -> subprocess.Popen[str]:
    """A process that is writing `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, what, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "there\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_a_killed_process_leaves_is_removed_and_what_a_living_one_writes_is_not(
    what: str, tmp_path: Path
) -> None:
    dead, living = (holder(what, tmp_path / name) for name in ("dead", "living"))
    killed(dead)
    assert len(names(tmp_path)) >= 2
    remove_leftovers(tmp_path)
    found = names(tmp_path)
    assert found
    assert all(name.startswith(".living.") and name.endswith(".semcal.part") for name in found)
    killed(living)
    module._clean.cache_clear()
    with writing(tmp_path / "other.jsonl") as handle:
        handle.write("{}\n")
    assert names(tmp_path) == ["other.jsonl"]


def test_a_temporary_name_cannot_be_guessed_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    with atomic_write(tmp_path / "a") as one, atomic_write(tmp_path / "a") as two:
        assert one.name != two.name
        assert str(os.getpid()) not in Path(one.name).name.split(".")
    monkeypatch.setattr(module.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / f".out.guessed{module.PART}").symlink_to(precious)
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "out") as handle:
        handle.write(b"overwritten")
    assert precious.read_text() == "kept"


def test_a_link_under_the_name_itself_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "out").symlink_to(tmp_path / "precious")
    with writing(tmp_path / "out") as handle:
        handle.write("new")
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "out").read_text() == "new"
    assert not (tmp_path / "out").is_symlink()


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_leaves(mask: int, mode: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from semcal.recalibration.modules import write_tensors

    before = os.umask(mask)
    try:
        with writing(tmp_path / "rows.jsonl") as handle:
            handle.write("{}\n")
        write_tensors(tmp_path / "model.safetensors", {"a": torch.ones(3)})
        write_sealed(tmp_path / "profile.json", {"a": 1})  # of a cache that users may share
        with atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    folder = 0o777 & ~mask
    of_files = dict.fromkeys(("rows.jsonl", "model.safetensors", "profile.json"), mode)
    assert modes == {**of_files, "folder": folder}


def test_files_of_samples_and_caches_of_verdicts_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (path := Store(tmp_path).path("stage", {})).parent.mkdir(parents=True)
        Store(tmp_path).rows("stage", {}, lambda: [{}])
        with RowResults("sample", tmp_path / "rows.jsonl"):
            pass
        CachedEquivalence(ExactMatch(), tmp_path / "verdicts.sqlite")
    finally:
        os.umask(before)
    files = [path, *(tmp_path / name for name in ("rows.jsonl", "verdicts.sqlite"))]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_folder_appears_whole_in_place_of_what_was_there(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "old").write_text("1")
        assert not (tmp_path / "made").exists()
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "made") as folder:
        raise RuntimeError
    assert names(tmp_path / "made") == ["old"]
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "new").write_text("2")
    assert names(tmp_path / "made") == ["new"]
    assert names(tmp_path) == ["made"]


def test_a_lock_is_refused_to_a_second_process_and_free_when_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    process = holder("lock", path)
    with pytest.raises(UsageError, match="somebody is at it"), file_lock(path, "somebody is at it"):
        pass
    killed(process)
    assert names(tmp_path) == [LOCK]
    with file_lock(path, "somebody is at it"):
        assert own_files(tmp_path) == []
    assert names(tmp_path) == []


def test_clearing_a_folder_leaves_its_lock_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "blocks").mkdir()
    (tmp_path / "run" / "blocks" / "a").write_text("")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "kept")
    with file_lock(tmp_path / "run" / LOCK, "busy"):
        clear_folder(tmp_path / "run")
        assert names(tmp_path / "run") == [LOCK]
    assert (tmp_path / "kept").is_dir()


def test_files_of_others_are_never_taken_for_leftovers(tmp_path: Path) -> None:
    others = [".out.part", "out.semcal.part", ".x.123.part", ".semcal.parts"]
    for name in others:
        (tmp_path / name).write_text("")
    (tmp_path / ".link.0123456789abcdef.semcal.part").symlink_to(tmp_path / ".out.part")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*others, ".link.0123456789abcdef.semcal.part"])


def test_a_file_system_without_locks_is_written_to_and_its_leftovers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".left.0123456789abcdef.semcal.part"
    left.mkdir()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with file_lock(tmp_path / LOCK, "busy"), writing(tmp_path / "out") as handle:
        handle.write("x")
    assert names(tmp_path) == [left.name, "out"]


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system cannot limit the size of a file")
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from semcal.files import atomic_folder, writing
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with writing(sys.argv[1]) as handle:
        handle.write("x" * 5000)
except OSError as error:
    print(error.filename)
"""
    out = tmp_path / "out.jsonl"
    done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{out}\n", "")
    assert names(tmp_path) == []
