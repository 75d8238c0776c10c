"""Check or renew the outputs that README.md and the pages of docs/ show.

    python -m tools.page_outputs            # write today's outputs into the pages
    python -m tools.page_outputs --check    # fail if a page shows an output of another day

Every block of language `console` holds commands, which begin with `$ `, and their output on a terminal of 80
columns. The commands of all pages run in one empty folder, each command once. So they name only the questions
of the package (`real`, `atlas`) and files that commands of their page have written. A last line `…` stands
for the rest of an output. The last digits of numbers differ between processors, so four decimals are shown.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 80
CUT = "…"
BLOCK = re.compile(r"^```console\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LONG_NUMBER = re.compile(r"\d+\.\d{7,}")
#: A command, whose lines end in a backslash except the last, and the rest.
COMMAND = re.compile(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", flags=re.DOTALL)


def pages() -> list[Path]:
    """Return README.md and the pages of docs/ that show an output."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if BLOCK.search(page.read_text(encoding="utf-8"))]


@dataclass
class Terminal:
    """A folder in which commands run on a terminal, each command once."""

    folder: Path
    path: str = ""  # searched for programs before PATH
    outputs: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> str:
        """Return what a command prints on stdout; raise RuntimeError if it fails."""
        if command not in self.outputs:
            self.outputs[command] = self._run(command)
        return self.outputs[command]

    def _run(self, command: str) -> str:
        reader, writer = pty.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        plain = {"COLUMNS": str(COLUMNS), "TERM": "dumb", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
        places = [self.path, str(Path(sys.executable).parent), os.environ["PATH"]]
        search = os.pathsep.join(filter(None, places))
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self.folder,
                env={**os.environ, **plain, "PATH": search, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=errors,
            )
            os.close(writer)
            text = b"".join(_until_closed(reader)).decode()
            os.close(reader)
            if process.wait() not in (0, 1):  # 1: `semcal monitor` has an alarm
                errors.seek(0)
                raise RuntimeError(f"{command}\n{errors.read().decode()}")
        text = LONG_NUMBER.sub(lambda found: f"{float(found[0]):.4f}", text.replace("\r\n", "\n"))
        return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _until_closed(reader: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(reader, 1 << 16)
        except OSError:  # how Linux ends a terminal
            return
        if not data:
            return
        yield data


def renewed(page: str, terminal: Terminal) -> str:
    """Return the text of a page with the outputs that its commands print today."""
    return BLOCK.sub(lambda found: f"```console\n{_renewed_block(found[1], terminal)}```", page)


def _renewed_block(block: str, terminal: Terminal) -> str:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return "\n".join(_renewed_part(part, terminal) for part in parts)


def _renewed_part(part: str, terminal: Terminal) -> str:
    command, shown = COMMAND.fullmatch(part).groups()  # type: ignore[union-attr]
    lines = terminal.run(command.rstrip("\n")).split("\n")
    shown = shown.strip("\n").split("\n")
    if shown[-1] == CUT:
        lines = [*lines[: len(shown) - 1], CUT]
    output = "\n".join(lines)
    return f"$ {command}{output}\n" if output else f"$ {command}"


def main() -> int:
    """Write or check the outputs, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change no page")
    parser.add_argument("page", nargs="*", type=Path, help="only these pages")
    given = parser.parse_args()
    stale = []
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(Path(folder))
        for page in given.page or pages():
            text = page.read_text(encoding="utf-8")
            today = renewed(text, terminal)
            if today != text:
                stale.append(page.name)
                if not given.check:
                    page.write_text(today, encoding="utf-8")
    print(", ".join(stale) or "all outputs are as shown")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
