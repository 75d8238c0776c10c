"""The table of presets (analyses.md, "Presets, setting by setting"), from what each resolves to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semcal.experiment.grid_settings import GridSettings
from semcal.experiment.presets import PRESETS, against_paper, deviations
from semcal.experiment.reading import settings_of

DOCS = Path(__file__).parents[2] / "docs" / "grid.md"
SIZES = {
    name: {"calibration_train": train, "validation": 2000, "test": 2000}
    for name, train in (("trivia", 59374), ("nq", 61600), ("squad", 59577))
}
#: Row → what it says of sound, paper and reference, in the words of a report.
TABLE = {
    "truncation while sampling": ("none", "none", "top-k 50, top-p 0.9"),
    "max_new_tokens (closed, open book)": ("10, 32", "10, 10", "10, 10"),
    "linkage": ("components", "greedy", "components"),
    "ties for the first place": ("to the likelier", "to the first", "to the likelier"),
    "entailment": ("both directions",) * 3,
    "normal forms": ("numbers and dates",) * 3,
    "scored text": (*("answer in its whole prompt",) * 2, "answer in its prompt without passage"),
    "fuzzy match": ("from 90, not on numerals", "above 90", "from 90"),
    "F1": ("above 0.5, numerals guarded", "above 0.5", "above 0.5"),
    "ROUGE-L": ("off", "off", "above 0.3"),
    "members graded": ("up to 4 at random", "up to 4 at random", "the likeliest and 1 more"),
    "SE_vanilla answer": ("greedy", "greedy", "4 beams"),
    "TS solver": ("exact", "sgd, batch 4, warm-up 10 %", "sgd, batch 4, warm-up 5 %"),
    "ACE": (*("ties averaged, weighted by size",) * 2, "in the order of the rows, unweighted"),
    "AUROC of one class": ("undefined", "undefined", "0.5"),
    "bins": ("15",) * 3,
    "runs": ("4 of one fit", "4, each a fit and an evaluation", "4 of one fit"),
    "refusals": ("as any answer",) * 3,
    "selection": ("highest gain", "lowest Brier score", "lowest Brier score"),
}
#: The schedule of `reference` is that of all its fits.
ALSO = {
    "ATS and Platt": (
        *("lr 1e-05, batch 4, warm-up 10 %",) * 2,
        "lr 1e-05, batch 4, warm-up 5 %",
    )
}


def resolved(preset: str) -> GridSettings:
    return settings_of(
        {
            "preset": preset,
            "models": [{"name": "one", "path": "one"}],
            "datasets": [{"name": name, "source": name} for name in SIZES],
            "equivalence": "deberta-v2-xxlarge-mnli",
        },
        (),
    )


def column(preset: str) -> dict[str, str]:
    return {row.setting: row.here for row in against_paper(resolved(preset), SIZES)}


@pytest.mark.parametrize("setting", [*TABLE, *ALSO])
def test_a_row_of_the_table_is_what_the_presets_resolve_to(setting: str) -> None:
    assert tuple(column(preset)[setting] for preset in PRESETS) == (TABLE | ALSO)[setting]


def test_presets_differ_nowhere_but_in_the_table() -> None:
    columns = [column(preset) for preset in PRESETS]
    differing = {setting for setting in columns[0] if len({one[setting] for one in columns}) > 1}
    assert differing == {setting for setting, row in (TABLE | ALSO).items() if len(set(row)) > 1}


def test_the_paper_preset_deviates_from_the_paper_in_its_models_and_data_alone() -> None:
    assert {row.setting for row in deviations(resolved("paper"), SIZES)} == {"language models", "data sets"}


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
    lines = DOCS.read_text().partition("| | sound | paper | reference |")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: tuple(row[1:]) for row in cells[: cells.index([""])]}


def paths_of(row: str) -> list[str]:
    """The settings that a row of the docs names between backticks; later ones lie beside the first."""
    first, *others = row.split("`")[1::2]
    return [first, *(f"{first.rpartition('.')[0]}.{one}" for one in others)]


def shown(value: Any) -> str:
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
        expected = "–" if set(values) == {None} else ", ".join(map(shown, values))
        assert cells.replace("90.0", "90") == expected.replace("90.0", "90"), preset
