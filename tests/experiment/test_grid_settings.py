"""Settings of a grid: what is read, what is refused and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semcal.errors import UsageError, shown
from semcal.experiment.grid_settings import (
    PRESETS,
    GridSettings,
    claim_folder,
    read_settings,
    settings_of,
)
from semcal.models.load import parse_size
from semcal.yaml_files import LONGEST, yaml_text

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


# ---- The table of presets in docs/grid.md ------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "grid.md"


def resolved(preset: str) -> GridSettings:
    return settings_of(
        {
            "preset": preset,
            "models": [{"name": "one", "path": "one"}],
            "datasets": [{"name": "trivia", "source": "trivia"}],
            "equivalence": "deberta-v2-xxlarge-mnli",
        },
        (),
    )


def leaves(tree: Any, where: str = "") -> dict[str, Any]:
    """Every setting of a tree by its path."""
    if not isinstance(tree, dict):
        return {where: tree}
    return {
        path: value
        for key, below in tree.items()
        for path, value in leaves(below, f"{where}.{key}" if where else key).items()
    }


def documented() -> dict[str, tuple[str, ...]]:
    """The rows of the table of presets in docs/grid.md."""
    lines = DOCS.read_text().partition("| | sound | paper |")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: tuple(row[1:]) for row in cells[: cells.index([""])]}


def paths_of(row: str) -> list[str]:
    """The settings that a row of the docs names between backticks; later ones lie beside the first."""
    first, *others = row.split("`")[1::2]
    return [first, *(f"{first.rpartition('.')[0]}.{one}" for one in others)]


def in_docs(value: Any) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_the_docs_name_every_setting_in_which_presets_differ() -> None:
    trees = [leaves(resolved(preset).tree()) for preset in PRESETS]
    differing = {path for path in trees[0] if len({repr(tree[path]) for tree in trees}) > 1} - {"preset"}
    named = {path for row in documented() for path in paths_of(row)}
    named |= {f"sampling.max_new_tokens.{book}" for book in ("closed_book", "open_book")}
    assert differing <= named


@pytest.mark.parametrize("row", [row for row in documented() if "max_new_tokens" not in row])
def test_a_row_of_the_docs_holds_the_resolved_settings(row: str) -> None:
    for place, preset in enumerate(PRESETS):
        tree = leaves(resolved(preset).tree())
        values = [tree[path] for path in paths_of(row)]
        cells = documented()[row][place]
        expected = "–" if set(values) == {None} else ", ".join(map(in_docs, values))
        assert cells.replace("90.0", "90") == expected.replace("90.0", "90"), preset


# ---- YAML of settings: every mistake is one short error with its place -------------------------------------

SMALL_TEXT = """\
models: [{name: one, path: atlas}]
datasets: [{name: trivia, source: atlas-trivia}]
equivalence: atlas
"""
#: Texts that follow the settings, and the place or the key that the error names.
WRONG = {
    "a date that is none": ("seed: 2020-13-45", "line 4, column 7: '2020-13-45'"),
    "a tag that does not fit": ("seed: !!int x", "line 4, column 7: 'x'"),
    "a thousand lists in one another": (f"seed: {'[' * 1000}{']' * 1000}", "column 106: nested"),
    "a size of 400 digits": (f"block: {'9' * 400}", "line 4, column 8"),
    "NUL in a path": ('equivalence_: "a\\0b"', r"'a\x00b'"),
    "half a character": ('x: "\\ud800"', "line 4, column 4"),
    "a control character": ("seed: \x01", "#x0001"),
    "a number beyond float": ("fitting: {learning_rate: 1e999}", "fitting.learning_rate"),
    "an infinity": ("fitting: {learning_rate: .inf}", "fitting.learning_rate"),
    "a list that holds itself": ("seed: &a [*a]", "line 4, column 11"),
    "a key twice": ("seed: 1\nseed: 2", 'line 5, column 1: found duplicate key "seed"'),
    "yes as a number": ("block: yes", "block: "),
    "true among numbers": ("sampling: {counts: [5, true]}", "sampling.counts.1: "),
    "no as a text": ("models_: 0\nmemory: no", "memory"),
    "a text that is no size": (f"memory: {'9' * 400}GB", "memory"),
    "an object of Python": ("seed: !!python/object:os.system x", "line 4, column 7"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_setting_can_be_is_one_short_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    more, told = WRONG[name]
    path.write_text(SMALL_TEXT + more, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        read_settings(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert told in text
    assert len(text) < 700
    assert "\n" not in text


def test_a_null_or_a_yes_where_a_name_belongs_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    for word, got in (("null", "None"), ("yes", "True")):
        path.write_text(SMALL_TEXT.replace("name: one", f"name: {word}"))
        with pytest.raises(UsageError, match=f"models.0.name: .*{got}"):
            read_settings(path)


@pytest.mark.parametrize(
    "override",
    [
        "seed=" + "[" * 1000,
        "k" * 5000 + "=1",
        ".".join("k" * 5000) + "=1",
        f"models.{'9' * 5000}.path=x",
        "x" * 5000,
        "seed={a: 1, a: 2}",
    ],
    ids=lambda override: override[:20],
)
def test_a_wrong_override_is_one_error_that_shows_it_cut(override: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(SMALL_TEXT)
    with pytest.raises(UsageError) as raised:
        read_settings(path, [override])
    assert len(str(raised.value)) < 450


def test_of_thousands_of_unknown_keys_ten_are_named(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(SMALL_TEXT + "".join(f"k{number}: 1\n" for number in range(3000)))
    with pytest.raises(UsageError, match="k9: ") as raised:
        read_settings(path)
    assert "k10" not in str(raised.value)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("#" * (LONGEST + 1))
    with pytest.raises(UsageError, match="1000000 characters"):
        read_settings(path)
    path.write_bytes(b"seed: \xff")
    with pytest.raises(UsageError, match=r"grid\.yaml: not UTF-8 \(byte 6\)"):
        read_settings(path)


@pytest.mark.parametrize("size", ["9" * 400 + "GB", "9" * 400, 10**5000, 2**63, -1], ids=range(5))
def test_a_size_that_no_process_can_address_is_refused(size: str | int) -> None:
    with pytest.raises(UsageError, match="size of memory") as raised:
        parse_size(size)
    assert len(str(raised.value)) < 200


def test_values_are_shown_short() -> None:
    assert shown("x" * 10**6) == "'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'"
    assert shown([[[[["x"]]]]]) == "[[[[...]]]]"
    assert len(shown({f"key {i}" * 9: ["value"] * 9 for i in range(9)})) == 60
