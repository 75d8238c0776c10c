"""What stored texts tell of the machine, the day and the moment, and how it is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from tests.golden.page_text import page_text

#: Facts of the machine and of what a run took, and files that stand behind what is compared.
NOT_COMPARED = ("environment.json", "blocks/", "work/", "report-files.json", "tables/cost-")
TEXT = {".json", ".jsonl", ".md", ".html", ".svg", ".tex", ".csv", ".txt", ".yaml", ".py"}

_LEFT_OUT: Mapping[re.Pattern[str], str] = {
    # a server's port is a free one
    re.compile(r"127\.0\.0\.1:\d+"): "127.0.0.1:PORT",
    # versions of packages, and the hash of a calibration's contents, which hold them
    re.compile(r'"versions": \{[^{}]*\}'): '"versions": {}',
    re.compile(r',\s*"sha256": "\w{64}"(?=\s*\}\s*\Z)'): "",
    # how far a command is, every few seconds
    re.compile(r"^[\w -]+: \d+(?: of \d+)? \(\d[^\n]*\n", re.MULTILINE): "",
    # requests a second, and seconds that a plan expects
    re.compile(r"\b(\d+ requests \()[\d.e+]+/s(?:, )?"): r"\1",
    re.compile(r"^time: [^\n]*\n", re.MULTILINE): "",
}


def is_compared(name: str) -> bool:
    """Whether a file, by its path below the folder, is text that does not depend on the machine."""
    return PurePosixPath(name).suffix in TEXT and not any(part in name for part in NOT_COMPARED)


def without_machine_facts(name: str, text: str) -> str:
    """A file's text without ports, versions and times."""
    text = page_text(text) if name.endswith(".html") else text
    for pattern, replacement in _LEFT_OUT.items():
        text = pattern.sub(replacement, text)
    return text
