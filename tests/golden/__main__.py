"""Compare what the commands write today with what is stored: `python -m tests.golden [--rebuild]`.

`--keep DIR` leaves what was written today in a folder. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.golden.archive import ARCHIVE, read_archive, write_archive
from tests.golden.differences import differences


def main() -> int:
    """Run the commands with one thread and compare or store what they write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="store what the commands write today")
    parser.add_argument("--keep", type=Path, help="leave today's files in this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        today = written_today((given.keep or Path(scratch)) / "golden")
    if given.rebuild:
        write_archive(today)
        print(f"{ARCHIVE.name}: {len(today)} files")
        return 0
    found = differences(read_archive(), today)
    print("\n".join(map(str, found)) or f"{len(today)} files are equal")
    return 1 if found else 0


def written_today(folder: Path) -> dict[str, str]:
    """Run the commands in two processes of one thread, each with an empty cache, and return the files."""
    from tests.golden.commands import PROCESSES, stored_files

    with ThreadPoolExecutor(len(PROCESSES)) as pool:
        list(pool.map(lambda names: _write_in_process(folder, names), PROCESSES))
    return stored_files(folder)


def _write_in_process(folder: Path, names: Sequence[str]) -> None:
    code = "import sys; from pathlib import Path; from tests.golden.commands import write_parts; "
    code += "write_parts(Path(sys.argv[1]), sys.argv[2:])"
    with tempfile.TemporaryDirectory() as cache:
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "SEMCAL_CACHE": cache}
        surroundings["PYTHONPATH"] = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
        surroundings.pop("SEMCAL_API_KEY", None)
        command = [sys.executable, "-c", code, str(folder), *names]
        subprocess.run(command, check=True, env=surroundings, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
