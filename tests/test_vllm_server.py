"""The tool that installs and starts vLLM: what it tells uv and vLLM. That both run is checked by hand."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tools.vllm_server import (
    TORCH_WHEELS,
    add_metadata,
    environment,
    index_options,
    main,
    read_options,
    serve_options,
)


def test_vllm_counts_as_installed_once_its_metadata_is_added(tmp_path: Path) -> None:
    add_metadata(tmp_path)
    (found,) = importlib.metadata.distributions(name="vllm", path=[str(tmp_path)])
    assert found.version == "0.32.0+cpu"


def test_uv_looks_where_pip_was_told_to_look() -> None:
    told = {"PIP_INDEX_URL": "https://index.example/simple", "PIP_FIND_LINKS": "/a /b"}
    expected = "--default-index https://index.example/simple --find-links /a --find-links /b"
    assert " ".join(index_options(told)) == expected
    assert index_options({}) == ["--find-links", TORCH_WHEELS]


def test_the_server_is_told_what_the_options_say_and_what_follows_them() -> None:
    options = ["--model", "some/model", "--port", "8001", "--logprobs-mode", "processed_logprobs"]
    given = read_options(["serve", "vl", *options, "--", "--seed", "3"])
    words = " ".join(serve_options(given))
    assert words.startswith("serve some/model ")
    for said in (
        "--no-enable-chunked-prefill",
        "--port 8001",
        "--logprobs-mode processed_logprobs",
        "--max-logprobs -1",
        "--dtype float32",
    ):
        assert f" {said} " in f"{words} "
    assert words.endswith(" --seed 3")


def test_a_setting_of_the_user_stands_and_our_packages_stay_out() -> None:
    found = environment({"OMP_NUM_THREADS": "2", "PYTHONPATH": "src"})
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["VLLM_NO_USAGE_STATS"] == "1"
    assert "PYTHONPATH" not in found


def test_a_folder_without_vllm_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"python -m tools.vllm_server install {tmp_path}"):
        main(["serve", str(tmp_path)])


def test_an_installation_does_not_touch_a_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exists"):
        main(["install", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
