"""Count lines, files, options and circular imports of the package, and compare the counts with limits.

    python -m tools.house            # print the counts with the limits, and details
    python -m tools.house --lower    # store today's counts if they are below the limits

The limits are in tools/house.json, and tests/test_house.py checks them: lines of each package of src and of
the tests, files, options of each command, public names with two definitions, and pairs of packages that
import each other. To raise a limit, change the file by hand, and give the reason in the commit message.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, LIMITS = ROOT / "src" / "semcal", Path(__file__).with_suffix(".json")
Counts = dict[str, dict[str, int]]


def counts() -> Counts:
    """Return the numbers of lines, files, options, double names and circles of packages, by kind and name."""
    files = sorted(PACKAGE.rglob("*.py"))
    lines: Counter[str] = Counter()
    for path in files:
        lines[_room(path)] += _line_count(path)
    tests = sum(map(_line_count, (ROOT / "tests").rglob("*.py")))
    options = options_by_command()
    return {
        "lines": dict(sorted(lines.items())),
        "sums": {
            "lines": lines.total(),
            "lines without experiment": lines.total() - lines["experiment"],
            "files": len(files),
            "lines of tests": tests,
            "options": sum(options.values()),
            "public names with two definitions": len(double_names(files)),
            "pairs of packages that import each other": len(circles(files)),
        },
        "options": options,
    }


def options_by_command() -> dict[str, int]:
    """Count the options of each command, without --help."""
    from typer.main import get_command

    from semcal.cli.app import app

    group = get_command(app)
    commands: Mapping[str, object] = getattr(group, "commands")  # noqa: B009
    return {
        name: sum(one.param_type_name == "option" for one in getattr(command, "params"))  # noqa: B009
        for name, command in sorted(commands.items())
    }


def double_names(files: Sequence[Path]) -> dict[str, list[str]]:
    """Find public classes and type aliases that several modules define: name → the modules."""
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path in files:
        for name in _types_of(ast.parse(path.read_text(encoding="utf-8"))):
            defined[name].append(path.relative_to(PACKAGE).as_posix())
    return {name: places for name, places in sorted(defined.items()) if len(set(places)) > 1}


def circles(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Return pairs of packages that import each other, including imports inside functions."""
    arrows = {(room, target) for path in files for room, target in _arrows_of(path) if room != target}
    rooms = sorted({room for arrow in arrows for room in arrow})
    return [(a, b) for a, b in combinations(rooms, 2) if (a, b) in arrows and (b, a) in arrows]


def _types_of(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (target.id for target in targets if isinstance(target, ast.Name))
            yield from (name for name in names if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name))


def _arrows_of(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            if node.module == "semcal":
                modules = [f"semcal.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            parts = module.split(".")
            if parts[0] == "semcal" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
                yield _room(path), parts[1]


def _room(path: Path) -> str:
    """Return the package of a file, `semcal` for files outside of packages."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "semcal"


def _line_count(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def above_limits(today: Counts, limits: Counts) -> list[str]:
    """Return the counts that are above their limits, or have no limit."""
    return [
        f"{kind}, {name}: {count} (limit {limits.get(kind, {}).get(name, 0)})"
        for kind, part in today.items()
        for name, count in part.items()
        if count > limits.get(kind, {}).get(name, 0)
    ]


def read_limits() -> Counts:
    """Read the limits from tools/house.json."""
    limits: Counts = json.loads(LIMITS.read_text(encoding="utf-8"))
    return limits


def main(arguments: Sequence[str]) -> int:
    """Print the counts beside the limits; the exit status is 1 if a count is above its limit."""
    today, limits = counts(), read_limits() if LIMITS.exists() else {}
    if "--lower" in arguments:
        lowered = {
            kind: {name: min(count, limits.get(kind, {}).get(name, count)) for name, count in part.items()}
            for kind, part in today.items()
        }
        LIMITS.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")
        limits = lowered
    for kind, part in today.items():
        print(f"{kind}:")
        for name, count in part.items():
            print(f"  {name:45} {count:6}  limit {limits.get(kind, {}).get(name, '–')}")
    files = sorted(PACKAGE.rglob("*.py"))
    print("\npublic names with two definitions:")
    for name, places in double_names(files).items():
        print(f"  {name}: {', '.join(places)}")
    print("\npackages that import each other:", *(f"{a} and {b}" for a, b in circles(files)), sep="\n  ")
    return int(bool(above_limits(today, limits)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
