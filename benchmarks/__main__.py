"""Run every benchmark, print Markdown, and write what was measured to runs/bench.json.

python -m benchmarks [NAME ...]
python -m benchmarks NAME --OPTION ...
"""

from __future__ import annotations

import json
import pkgutil
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import benchmarks

OUT = Path("runs/bench.json")


def main(names: Sequence[str]) -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    modules = [name for name in known if not name.startswith("_")]
    if len(names) > 1 and names[0] in modules and names[1].startswith("-"):
        import_module(f"benchmarks.{names[0]}").main(names[1:])
        return 0
    unknown = sorted(set(names) - set(modules))
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(modules)}", file=sys.stderr)
        return 2
    measured = {name: run(name) for name in names or modules}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    found = {name: rows for name, rows in measured.items() if rows is not None}
    OUT.write_text(
        json.dumps({"schema": 1, "environment": environment(), "benchmarks": found}, indent=1) + "\n"
    )
    print(f"Rows are in {OUT}.")
    return 0


def run(name: str) -> list[dict[str, Any]] | None:
    """Run one benchmark; its rows, if it has any."""
    module = import_module(f"benchmarks.{name}")
    print(f"## {name}\n\n{(module.__doc__ or '').splitlines()[0]}\n", flush=True)
    try:
        if not hasattr(module, "results"):
            module.main()
            return None
        rows: list[dict[str, Any]] = module.results()
    except SystemExit as stop:  # it says what it needs, such as a folder of data
        print(f"Not run: {stop}\n", flush=True)
        return None
    print(table(rows), flush=True)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a Markdown table; a row may lack keys."""
    head = list(dict.fromkeys(key for row in rows for key in row))
    lines = [head, ["---"] * len(head), *([cell(row.get(key)) for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(value: Any) -> str:
    """A number to three significant digits, a dash for nothing, anything else as it is."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def environment() -> dict[str, str]:
    """What the figures depend on."""
    packages = {name: version(name) for name in ("numpy", "scipy", "semcal")}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
