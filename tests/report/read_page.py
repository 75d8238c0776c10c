"""A page of HTML read back: its elements, tables and scripts."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "input", "br", "path", "use", "rect"}


class Page(HTMLParser):
    """The elements of a page: their tags, attributes, cells of tables and the data of its explorer."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[str] = []
        self.table = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = dict(attrs).get("id") or ""
            self.tables[self.table] = []
        if tag == "tr" and self.table:
            self.tables[self.table].append([])
        if tag in ("td", "th") and self.table:
            self.tables[self.table][-1].append("")
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        if tag == "table":
            self.table = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.table and {"td", "th"} & set(self.open):
            self.tables[self.table][-1][-1] += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])
