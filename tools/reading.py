"""Measure how easy the pages of the documentation are to read.

    python -m tools.reading            # one line for each page, and the totals
    python -m tools.reading PAGE.md    # the longest sentences of one page

The reading ease is that of Flesch (1948): 206.835 − 1.015 words per sentence − 84.6 syllables per word, with
syllables counted by hyphenation (Pyphen, en_US). Code blocks, tables, headings and addresses do not count,
and inline code counts as one word. The words of a page include its tables, but no code blocks. The kind of
a page is the caption of its table of contents in docs/index.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyphen

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages that are made from the code, and the decisions and notebooks, which are not read in order.
LEFT_OUT = ("reference/", "decisions/", "notebooks/", "_build/")
_HYPHENS = pyphen.Pyphen(lang="en_US", left=1, right=1)
#: Replacements that leave the prose of a page, in their order.
_REPLACEMENTS = (
    (r"^(`{3,}|~{3,})(?s:.*?)^\1`*[ \t]*$", "\n"),  # code blocks and directives
    (r"^\s*\|.*$", ""),  # tables
    (r"^#+ .*$", "\n"),  # headings
    (r"^\([\w-]+\)=$", ""),  # anchors
    (r"\$\$(?s:.*?)\$\$|\$[^$\n]+\$", "formula"),
    (r"\{[\w:-]+\}`([^`<]*?)\s*(<[^`]*>)?`", r"\1"),  # roles
    (r"`+[^`]+`+", "code"),
    (r"!\[([^\]]*)\]\([^)]*\)", ""),  # pictures
    (r"\[([^\]]*)\]\([^)]*\)", r"\1"),  # links
    (r"<[^>]+>", ""),
    (r"https?://\S+", "address"),
    (r"[*_]{1,2}(\S(?:[^*_]*\S)?)[*_]{1,2}", r"\1"),  # emphasis
    (r"\b(?:e\.g\.|i\.e\.|et al\.|vs\.)", "such"),
    (r"\d[\d.,]*\d", "12"),
)


@dataclass(frozen=True)
class Page:
    """Figures of one page: its kind, its words, the median words of a sentence, and its reading ease."""

    name: str
    kind: str
    words: int
    median: float
    ease: float


def kinds() -> dict[str, str]:
    """Return the kind of each page: the caption of the table of contents in docs/index.md that lists it."""
    found = {}
    for block in re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL):
        caption = re.search(r":caption: (.*)", block)
        for line in block.splitlines():
            if line.strip() and not line.startswith(":"):
                found[line.split("<")[-1].strip(" >") + ".md"] = caption[1] if caption else ""
    return found


def paths() -> list[Path]:
    """Return README and the pages of the documentation that people write, in order of their names."""
    pages = sorted(DOCS.rglob("*.md"))
    return [
        ROOT / "README.md",
        *(one for one in pages if not str(one.relative_to(DOCS)).startswith(LEFT_OUT)),
    ]


def prose(text: str) -> str:
    """Return the prose of a page of Markdown, without code, tables, headings and addresses."""
    for pattern, replacement in _REPLACEMENTS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def word_count(text: str) -> int:
    """Count the words of a page, tables included and code blocks left out."""
    text = re.sub(*_REPLACEMENTS[0], text, flags=re.MULTILINE)
    return sum(any(map(str.isalnum, word)) for word in text.split())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page of Markdown; each item of a list ends a sentence."""
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*+>]|\d+\.)\s+", prose(text), flags=re.MULTILINE):
        for sentence in re.split(r"(?<=[.!?])\s+(?=\S)", " ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence


def measure(path: Path, kind: str = "") -> Page:
    """Measure one page."""
    text = path.read_text("utf-8")
    found = list(sentences(text))
    words = [word for sentence in found for word in re.findall(r"[A-Za-z][A-Za-z'’]*", sentence)]
    syllables = sum(len(_HYPHENS.positions(word)) + 1 for word in words)
    ease = 206.835 - 1.015 * len(words) / len(found) - 84.6 * syllables / len(words) if words else 100.0
    lengths = [len(one.split()) for one in found] or [0]
    return Page(_name(path), kind, word_count(text), median(lengths), ease)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def pages() -> list[Page]:
    """Measure every page of `paths`."""
    known = kinds()
    return [measure(one, known.get(_name(one).removeprefix("docs/"), "")) for one in paths()]


def main(page: str = "") -> None:
    if page:
        longest = sorted(sentences(Path(page).read_text("utf-8")), key=lambda one: -len(one.split()))
        for sentence in longest[:20]:
            print(f"{len(sentence.split()):3d}  {sentence}")
        return
    found = pages()
    for one in sorted(found, key=lambda one: one.ease):
        figures = f"{one.ease:5.1f} ease  {one.median:4.1f} words a sentence  {one.words:5,d} words"
        print(f"{figures}  {one.kind:12s} {one.name}")
    print(f"{sum(one.words for one in found):,} words on {len(found)} pages")


if __name__ == "__main__":
    main(*sys.argv[1:])
