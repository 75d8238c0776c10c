"""Verdicts asked of llama.cpp's server: the embedded model cannot judge, so only that all parts fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import semcal
from semcal.cli.app import app
from semcal.errors import SemcalWarning
from semcal.servers.settings import ServerSettings

pytestmark = pytest.mark.servers
TRIPLES = [("Who wrote it?", "ana velis", "velis"), ("Who wrote it?", "velis", "ana velis")]


def test_verdicts_are_given_once_and_kept(llama_server: str, llama_cache: Path):
    settings = ServerSettings(profiles=llama_cache / "servers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)  # about what cannot be read
        equivalence = semcal.load_equivalence(f"openai:{llama_server}#atlas", settings=settings)
        first, again = equivalence.entails(TRIPLES), equivalence.entails(TRIPLES)
    assert first == again
    assert {type(verdict) for verdict in first} == {bool}
    assert equivalence.name == "atlas"
    assert "llama.cpp" in equivalence.revision


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_a_judge_grades_a_file(
    llama_server: str, llama_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SEMCAL_CACHE", str(llama_cache))
    row = {"id": "1", "question": "Who wrote it?", "prediction": "Bo", "answers": ["Ana Velis"]}
    (tmp_path / "rows").write_text(json.dumps(row) + "\n")
    grader = f"judge:openai:{llama_server}#atlas"
    done = CliRunner().invoke(app, ["grade", str(tmp_path / "rows"), "--grader", grader])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rule"] in ("judge", "none")
