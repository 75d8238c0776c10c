"""The page of a report as text to compare: its words and tables, its questions unpacked, its figures' words.

Left out are what is no result (style, scripts), what tells of the machine (environment, costs), and how
figures are drawn, for which a hash stands.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re

_LEFT_OUT = (
    re.compile(r"<meta [^>]*>\n?"),
    re.compile(r"<style>\n.*?</style>\n?", re.DOTALL),
    re.compile(r"<script>.*?</script>\n?", re.DOTALL),
    re.compile(r'<section id="costs".*?</section>\n?', re.DOTALL),
    re.compile(r"<h3>Environment</h3>\n?<dl.*?</dl>\n?", re.DOTALL),
    re.compile(r"; the questions take [\d.]+ MB of the page"),
)
_FIGURE = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_BLOCK = re.compile(r'(<script type="text/plain"[^>]*>)([^<]*)(</script>)')


def page_text(page: str) -> str:
    """The text of a page that the same results give on any day and machine."""
    for pattern in _LEFT_OUT:
        page = pattern.sub("", page)
    page = _FIGURE.sub(lambda match: _figure_words(match[0]), page)
    return _BLOCK.sub(lambda match: f"{match[1]}\n{_unpacked(match[2])}{match[3]}", page)


def _figure_words(figure: str) -> str:
    """What a figure says, and a hash of how it is drawn."""
    label = re.search(r'aria-label="([^"]*)"', figure)
    words = (html.unescape(text).strip() for text in re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", figure))
    drawn = hashlib.sha256(figure.encode()).hexdigest()[:16]
    return f"[{label[1] if label else 'figure'} | {' | '.join(words)} | drawn {drawn}]"


def _unpacked(block: str) -> str:
    """The questions of a block, one a line."""
    contents = json.loads(gzip.decompress(base64.b64decode(block)))
    rows = contents if isinstance(contents, list) else list(contents.items())
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
