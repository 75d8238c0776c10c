"""The package as a whole: cheap to import, complete, and honest about its names."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import semcal
from semcal.cli.app import COMMANDS
from tools.house import above_limits, counts, read_limits

PACKAGE = Path(semcal.__file__).parent
HEAVY = ("torch", "transformers", "matplotlib", "pydantic", "pyarrow", "datasets", "pandas")
#: What takes time to import, and what few rows are computed without.
LATER = (
    "scipy.special",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.fft",
    "scipy.stats",
    "torch",
    "transformers",
    "urllib.request",
)
LATER += ("matplotlib", "pandas", "pyarrow", "rich", "asyncio", "httpx", "jinja2", "ruamel.yaml")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split() if done.stdout.strip() else [])


ROW = {"question": "Who?", "samples": ["Ana", "Bo"], "answers": "Ana"}
RUN_OF_A_GRID = """
from semcal.cli import grid_commands
from semcal.experiment.grid import Grid
grid_commands.opt.weights_of(model="atlas", equivalence="atlas")
"""


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import semcal, semcal.errors, semcal.files, semcal.registry", set()),
        (f"import semcal; repr(semcal.score({[ROW]}))", set()),
        ("from semcal.cli.app import app\ntry: app(['--help'])\nexcept SystemExit: pass", set()),
        (RUN_OF_A_GRID, {"pydantic"}),  # the process that hands out the work
    ],
)
def test_what_needs_no_model_loads_nothing_heavy(statement: str, allowed: set[str]) -> None:
    assert loaded_by(statement) <= allowed


def test_importing_the_package_is_silent() -> None:
    done = subprocess.run([sys.executable, "-c", "import semcal"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_list_of_commands_has_first_lines_and_loads_no_numpy() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "from semcal.cli.app import app; app(['--help'])"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    commands = [resolve_name(f"semcal.cli.{function}") for function, _ in COMMANDS.values()]
    assert [one for one in commands if one.__doc__.splitlines()[0][:45] not in done.stdout] == []
    assert "numpy" not in done.stderr


def test_commands_of_rows_that_need_no_model_load_no_part_of_scipy(tmp_path: Path) -> None:
    row = {"question": "Who?", "samples": ["Ana", "Ana", "Bo"], "log_likelihoods": [-1.0, -1.0, -2.0]}
    rows = [{**row, "id": str(n), "answers": "Ana" if n else "Bo"} for n in range(9)]
    (tmp_path / "0").write_text("".join(json.dumps(one) + "\n" for one in rows))
    code = f"""
import os, sys
from semcal.cli.app import app
os.chdir({str(tmp_path)!r})
steps = ["cluster", "measure", "grade", "metrics"]
for n, step in enumerate(steps):
    more = ["--equivalence", "exact"] if step == "cluster" else []
    try: app([step, str(n), "--out", str(n + 1), "-q", *more])
    except SystemExit as end: print(step, end.code, [m for m in {LATER!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} 0 []" for name in ("cluster", "measure", "grade", "metrics")]


@pytest.mark.parametrize("module", [semcal, semcal.recalibration])
def test_every_public_name_can_be_had_and_an_unknown_one_not(module: ModuleType) -> None:
    assert {*module.__all__} <= {*dir(module)}
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'confidense'"):
        module.confidense  # noqa: B018


def test_the_public_names_are_those_that_the_documentation_lists() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `semcal\.(\w+)` \|", page, re.MULTILINE)) == sorted(semcal.__all__)


@pytest.mark.parametrize("name", semcal.__all__)
def test_every_public_function_and_class_has_an_example(name: str) -> None:
    public = getattr(semcal, name)
    assert not callable(public) or ">>>" in (public.__doc__ or "")


@cache
def files() -> dict[str, Path]:
    """Module → its file."""
    parts = {path: path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(names[: -1 if names[-1] == "__init__" else None]): path for path, names in parts.items()}


def imported_by(module: str, *, for_types: bool = True) -> list[tuple[str, str]]:
    """What a module imports from the package, also inside its functions: modules, and the names taken."""
    found = []
    nodes: list[ast.AST] = [ast.parse(files()[module].read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name in files()]
        elif isinstance(node, ast.ImportFrom) and node.module in files():
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                (name, "") if name in files() else (node.module, name.rpartition(".")[2]) for name in inner
            ]
    return found


def test_no_module_imports_a_private_name_of_another() -> None:
    private = [
        f"{module}: {source} {name}"
        for module in files()
        for source, name in imported_by(module)
        if any(part.startswith("_") and not part.startswith("__") for part in (*source.split("."), name))
    ]
    assert private == []


def test_no_two_modules_import_each_other() -> None:
    arrows = {
        module: {source for source, _ in imported_by(module, for_types=False)} - {module}
        for module in files()
    }
    TopologicalSorter(arrows).prepare()  # CycleError names a circle, also one through other modules


def test_the_house_is_within_its_limits() -> None:
    """`python -m tools.house` prints the counts, and `--lower` stores lower ones."""
    assert above_limits(counts(), read_limits()) == []
