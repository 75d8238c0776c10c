"""Settings of a grid: what is read, what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from semcal.errors import UsageError
from semcal.experiment.grid_settings import (
    check_slugs,
    claim_folder,
    read_settings,
    settings_of,
    slug,
)
from semcal.yaml_files import yaml_text

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {
    "models": [{"name": "one", "path": "atlas"}],
    "datasets": [{"name": "trivia", "source": "atlas-trivia"}],
    "equivalence": "atlas",
}


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("sampling.mm=4", r"sampling\.mm"),
        ("models.0.pth=x", r"models\.0\.pth"),
        ("preset=papper", "papper"),
        ("methods=[Base, TSS]", r"methods\.1"),
        ("fitting.losses=[[SS, null]]", "losses"),
        ("models.3.path=x", "'3'"),
        ("seed.a=3", "seed"),
        ("sampling.m", r"sampling\.m"),
        ("sampling.counts_runs=9", "counts_runs"),
        ("models=[{name: a/b, path: x}, {name: a_b, path: y}]", "a_b"),
        ("datasets=[]", "datasets"),
        ("keep=all", "keep"),
    ],
)
def test_a_mistake_is_named_with_its_key(override: str, key: str) -> None:
    with pytest.raises(UsageError, match=key):
        settings_of({**SMALL, "seed": 0}, [override])


def test_a_value_overrides_the_file_and_the_file_the_preset() -> None:
    content = {**SMALL, "preset": "paper", "clustering": {"linkage": "components"}}
    found = settings_of(content, ["sampling.m=3", "grading.fuzzy_above=false"])
    assert (found.clustering.linkage, found.sampling.m, found.grading.fuzzy_above) == ("components", 3, False)
    assert (found.grading.numerals, found.fitting.solver, found.runs.refit) == (False, "sgd", True)
    assert settings_of(content, ["clustering.linkage=complete"]).clustering.linkage == "complete"
    with pytest.raises(UsageError, match=r"clustering\.linkage"):
        settings_of(content, ["clustering.linkage=single"])


@pytest.mark.parametrize("name", ["atlas", "paper"])
def test_what_is_written_out_is_read_again_as_the_same(name: str, tmp_path: Path) -> None:
    settings = read_settings(CONFIGS / f"{name}.yaml", ["seed=3"])
    path = tmp_path / "settings.yaml"
    path.write_text(yaml_text(settings.tree()))
    assert read_settings(path) == settings
    assert (len(settings.models), len(settings.datasets), len(settings.methods)) == (
        3,
        3,
        6 if name == "atlas" else 5,
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("real-*.yaml")))
def test_settings_of_real_models_share_test_questions_seed_draws_and_equivalence(name: str) -> None:
    settings = read_settings(CONFIGS / f"{name}.yaml")
    assert {dataset.test_source for dataset in settings.datasets} <= {
        f"$SEMCAL_DATA/{part}_dev_sample.jsonl.gz" for part in ("triviaqa", "nq_open", "squad")
    }
    assert (settings.seed, settings.sampling.m, settings.equivalence) == (0, 10, "default")


def test_a_limit_is_part_of_the_settings() -> None:
    (dataset,) = settings_of(SMALL, limit=20).datasets
    assert (dataset.calibration_train, dataset.validation, dataset.test) == (20, 20, 20)
    (dataset,) = settings_of(SMALL).datasets
    assert (dataset.calibration_train, dataset.validation, dataset.test) == (2000, 500, 500)


def test_a_folder_with_other_settings_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    claim_folder(tmp_path, settings_of(SMALL))
    claim_folder(tmp_path, settings_of(SMALL))
    with pytest.raises(UsageError, match=r"seed, sampling\.m"):
        claim_folder(tmp_path, settings_of(SMALL, ["sampling.m=3", "seed=1"]))


def test_runs_of_neighbouring_seeds_share_no_run() -> None:
    seeds = [seed for grid in range(50) for seed in settings_of(SMALL, [f"seed={grid}"]).seeds]
    assert len(set(seeds)) == 200


def test_slugs_keep_plain_names() -> None:
    names = {"TS SS 0.25": "TS_SS_0.25", "a/b:c": "a_b_c", "Llama-3.1_x": "Llama-3.1_x"}
    assert {name: slug(name) for name in names} == names


def test_a_name_that_is_too_long_for_the_names_of_files_is_refused() -> None:
    check_slugs(["W" * 80], what="model")
    with pytest.raises(UsageError, match="model 'W"):
        check_slugs(["W" * 81], what="model")
