"""What README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from semcal.cli.app import app
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import load_set
from semcal.records import write_rows

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples name: a model, an NLI model, questions."""
    (tmp_path / "my-model").symlink_to(language_model_dir())
    (tmp_path / "my-nli").symlink_to(nli_model_dir())
    atlas = load_set("atlas-rare")
    for name, questions in (
        ("labelled.jsonl", atlas.calibration_train[:40]),
        ("examples.jsonl", atlas.few_shot),
        ("questions.jsonl", atlas.validation[:6]),
    ):
        rows = ({"id": q.id, "question": q.question, "answers": q.answers} for q in questions)
        write_rows(tmp_path / name, rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert re.search(r"\d\.\d", capsys.readouterr().out)


def test_the_commands_of_the_readme_run(folder: Path) -> None:
    (script,) = [block for block in blocks("bash") if "semcal fit" in block]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={"PATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"auroc"' in done.stdout


def test_every_file_that_the_readme_links_to_is_there() -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_every_command_is_described(folder: Path) -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        assert f"`{command.name}`" in text or f"semcal {command.name}" in text
