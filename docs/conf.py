"""Sphinx settings: `make docs` builds the pages of this folder into docs/_build."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.notebooks import page  # noqa: E402

project = "semcal"
author = "The semcal developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # which would make one dash of the two of an option
html_theme = "furo"
html_title = "semcal"
html_static_path = ["_static"]
html_css_files = ["semcal.css"]
html_extra_path = ["llms.txt"]
html_show_copyright = False
exclude_patterns = ["_build"]
autodoc_typehints = "description"
napoleon_use_ivar = True
suppress_warnings = ["myst.header"]

GLOSSARY = Path(__file__).parent / "reference" / "glossary.md"
#: Where no term is linked.
NOT_IN = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, pending_xref)


def terms() -> list[str]:
    """Read the terms of the glossary, longest first: "semantic entropy" before "entropy"."""
    body = GLOSSARY.read_text(encoding="utf-8").partition("```{glossary}\n")[2]
    return sorted(re.findall(r"^([^\s`].*)$", body, flags=re.MULTILINE), key=len, reverse=True)


def link_terms(app: Any, doctree: nodes.document) -> None:
    """Link the first use of each term on a page to the glossary."""
    page = app.env.docname
    if page.startswith("reference/"):
        return
    left = {term: re.compile(rf"(?<![\w-]){re.escape(term)}s?(?![\w-])") for term in terms()}
    for found in doctree.findall(pending_xref):
        left.pop(str(found.get("reftarget")), None)  # linked by hand
    for text in list(doctree.findall(nodes.Text)):
        if not _inside(text):
            text.parent.replace(text, _linked(str(text), left, page))


def _inside(node: nodes.Node | None) -> bool:
    while node is not None:
        if isinstance(node, NOT_IN):
            return True
        node = node.parent
    return False


def _linked(text: str, left: dict[str, re.Pattern[str]], page: str) -> list[nodes.Node]:
    """Cut a text into what stands before, in and after the first term found; `left` loses what is linked."""
    for term, pattern in list(left.items()):
        if found := pattern.search(text):
            del left[term]
            link = pending_xref(
                refdomain="std", reftype="term", reftarget=term, refexplicit=False, refdoc=page
            )
            link += nodes.inline(found[0], found[0], classes=["xref", "std", "std-term"])
            before, after = text[: found.start()], text[found.end() :]
            return [*_linked(before, left, page), link, *_linked(after, left, page)]
    return [nodes.Text(text)] if text else []


def show_notebook(app: Any, docname: str, source: list[str]) -> None:
    """Show a notebook as the page of its name."""
    if docname.startswith("notebooks/"):
        notebook = ROOT / f"{docname}.ipynb"
        app.env.note_dependency(str(notebook))
        source[0] = page(json.loads(notebook.read_text(encoding="utf-8")))


def setup(app: Any) -> None:
    """Show the notebooks, and link the terms of the glossary."""
    app.connect("source-read", show_notebook)
    app.connect("doctree-read", link_terms)
