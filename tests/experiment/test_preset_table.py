"""The table of presets in docs/grid.md, from what each resolves to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semcal.experiment.grid_settings import PRESETS, GridSettings, settings_of

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
