"""List all sentences that the program may print: errors, warnings and notes, by module and line.

python -m tools.messages            # all messages
python -m tools.messages server     # messages that contain a text

The list is for a review of all messages together. Inserted values are in braces.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

#: Minimum number of words of a sentence; shorter texts are names.
WORDS = 3
SOURCE = Path(__file__).parents[1] / "src" / "semcal"


def template(node: ast.expr) -> str:
    """Return the text of an expression, with its values in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else f"{{{node.value!r}}}"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return f"{template(node.body)} | {template(node.orelse)}"
    return f"{{{ast.unparse(node)}}}"


def texts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the outermost texts below a node that are sentences or parts of sentences."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant | ast.JoinedStr | ast.BinOp) and len(_words(child)) >= WORDS:
            yield child
            continue
        yield from texts(child)


def _words(node: ast.expr) -> list[str]:
    """Return the words of a text in the source."""
    found = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return [word for text in found if isinstance(text, str) for word in text.split()]


def messages(source: str) -> list[tuple[int, str]]:
    """Yield line and text of every message of a module, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return [(node.lineno, " ".join(template(node).split())) for node in texts(tree)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def main(holding: str = "") -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in messages(path.read_text(encoding="utf-8")):
            if holding in text:
                print(f"{path.relative_to(SOURCE)}:{line}: {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
