"""What is installed: the weights that everything runs on, and nothing large beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import semcal
from semcal.demo import paths
from semcal.errors import EXTRAS, ModelError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built anew."""
    wheels = pytest.importorskip("hatchling.builders.wheel")
    folder = str(tmp_path_factory.mktemp("dist"))
    (path,) = wheels.WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"])
    return Path(path)


def test_the_wheel_is_below_36_megabytes_and_holds_what_runs_and_nothing_else(wheel_file: Path) -> None:
    assert wheel_file.stat().st_size < 36e6
    with zipfile.ZipFile(wheel_file) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"semcal-{semcal.__version__}.dist-info/METADATA").decode()
    weights = {name for name in names if name.endswith(".safetensors")}
    folders = (paths.language_model_dir(), paths.nli_model_dir())
    assert weights == {f"semcal/demo/{folder.name}/model.safetensors" for folder in folders}
    assert {name.partition("/")[0] for name in names} == {"semcal", f"semcal-{semcal.__version__}.dist-info"}
    assert names >= {
        "semcal/py.typed",
        "semcal/demo/demo.yaml",
        "semcal/demo/quick.yaml",
        "semcal/demo/real.jsonl",
        "semcal/serve/page/page.js",
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)
    extras = set(re.findall(r"Provides-Extra: (.+)", metadata)) - {"dev", "docs"}
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/semcal").rglob("*.py")))
    named = set(re.findall(r'MissingExtraError\("?\w+"?, "(\w+)"', source)) | set(EXTRAS.values())
    assert named == extras


def test_what_the_wheel_holds_runs_the_quick_demo(wheel_file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_file) as wheel:
        wheel.extractall(tmp_path / "site")
    # without site, the repository that is installed as editable is not found
    run = "import semcal, sys; print(semcal.__file__, file=sys.stderr); from semcal.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", run, "demo", "--quick", "--limit", "20", "--out", "demo"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{sysconfig.get_path('purelib')}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.startswith(str(tmp_path / "site" / "semcal"))
    assert "\n\natlas-trivia (20 test questions); Base, Calibrated; one run" in done.stdout
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000


def test_the_sdist_holds_what_builds_and_what_tests() -> None:
    sdists = pytest.importorskip("hatchling.builders.sdist")
    names = {one.distribution_path for one in sdists.SdistBuilder(str(ROOT)).recurse_included_files()}
    needed = {"README.md", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py"}
    assert names >= needed | {"src/semcal/__init__.py", "src/semcal/demo/language_model/model.safetensors"}
    assert not [name for name in names if name.startswith((".venv", "runs", "dist"))]


@pytest.mark.slow
def test_the_wheel_runs_its_quick_demo_where_nothing_else_is_installed() -> None:
    release_check = [sys.executable, "-m", "tools.release_check", "constraints", "--uv", find_uv()]
    done = subprocess.run(release_check, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("all legs passed\n")


def find_uv() -> str:
    """The program uv, or skip."""
    return shutil.which("uv") or pytest.skip("the program uv is not installed: pip install uv")


@pytest.mark.parametrize("name", ["atlas-mistral", "atlas-qwen2"])
def test_a_model_that_is_not_installed_is_refused_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_HERE", tmp_path)
    with pytest.raises(ModelError, match=f"'{name}'"):
        semcal.load_model(name)
