"""What is installed: the weights that everything runs on, and nothing large beside them."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

import pytest

import semcal
from semcal.demo import paths
from semcal.errors import ModelError

ROOT = Path(__file__).parents[2]


def installed_files() -> list[Path]:
    """The files of src/semcal that the settings of the wheel do not leave out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/semcal"]
    left_out = [ROOT / folder for folder in wheel["exclude"]]
    return [
        path
        for path in sorted((ROOT / "src/semcal").rglob("*"))
        if path.is_file()
        and path.suffix != ".pyc"
        and not any(path.is_relative_to(folder) for folder in left_out)
    ]


def test_the_wheel_is_below_12_megabytes_and_holds_the_default_models() -> None:
    files = installed_files()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in files:
            wheel.write(path, path.relative_to(ROOT))
    assert len(archive.getvalue()) < 12e6
    folders = {path.parent for path in files if path.suffix == ".safetensors"}
    assert folders == {paths.language_model_dir(), paths.nli_model_dir()}


@pytest.mark.parametrize("name", ["atlas-mistral", "atlas-qwen2"])
def test_a_model_that_is_not_installed_is_refused_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_HERE", tmp_path)
    with pytest.raises(ModelError, match=f"'{name}' comes with the repository.*clone the repository"):
        semcal.load_model(name)
