"""Sphinx settings: `make docs` builds the pages of this folder into docs/_build."""

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
suppress_warnings = ["myst.header", "myst.xref_missing"]
