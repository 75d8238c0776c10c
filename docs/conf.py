"""Sphinx settings: `make docs` builds the pages of this folder into docs/_build."""

from typing import Any

project = "semcal"
author = "The semcal developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "semcal"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
napoleon_use_ivar = True
suppress_warnings = ["myst.header", "myst.xref_missing"]


def setup(app: Any) -> None:
    """Build the decisions without a place in the navigation: pages link to them."""

    def mark(app: Any, _doctree: Any) -> None:
        if app.env.docname.startswith("decisions/"):
            app.env.metadata[app.env.docname]["orphan"] = ""

    app.connect("doctree-read", mark)
