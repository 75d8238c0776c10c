"""The rules of claims are frozen: a change of one moves their version and stands in the docs."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from semcal.experiment.analyses import claims, contrasts
from semcal.experiment.analyses.claims.statements import RULES

#: Version → checksum of texts, thresholds and code. A change that can move no verdict (a name, a sentence of
#: `because`) replaces the last checksum; any other adds a version here, in `RULES` and in docs/analyses.md.
FROZEN = {5: "a6a2368c94150aa6"}
ROOT = Path(__file__).parents[2]


def shape(node: Any) -> Any:
    """Syntax as lists, alike in every version of Python, without docstrings and the words of f-strings."""
    if isinstance(node, list):
        return [shape(one) for one in node if not _is_docstring(one)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", *(shape(part) for part in node.values if isinstance(part, ast.FormattedValue))]
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
        return [type(node).__name__, *([name, shape(value)] for name, value in fields)]
    return repr(node)


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def checksum(sources: dict[str, str]) -> str:
    """Of the syntax of some modules by name, so that layout and comments do not count."""
    content = {name: shape(ast.parse(text)) for name, text in sorted(sources.items())}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def rules() -> dict[str, str]:
    """The modules of the rules: claims and findings, and how methods are compared and pooled."""
    folder = Path(claims.__file__).parent
    paths = [*folder.glob("*.py"), Path(contrasts.__file__)]
    return {
        path.name if path.parent != folder else f"claims/{path.name}": path.read_text("utf-8")
        for path in paths
    }


def test_rules_do_not_change_without_their_version() -> None:
    assert max(FROZEN) == RULES["version"]
    assert checksum(rules()) == FROZEN[RULES["version"]]


def test_a_threshold_a_comparison_and_the_text_of_a_rule_count_and_words_between_figures_do_not() -> None:
    whole = rules()
    before = checksum(whole)

    def after(name: str, old: str, new: str) -> str:
        assert old in whole[name]
        return checksum(whole | {name: whole[name].replace(old, new, 1)})

    assert after("claims/statements.py", "STABLE = 0.03", "STABLE = 0.02") != before
    assert after("claims/statements.py", "found.low > 0", "found.low >= 0") != before
    assert after("claims/statements.py", "must lie above 0", "must lie above 1") != before
    assert (
        after(
            "contrasts.py", '"ace": Quantity(_metric("ace"), False)', '"ace": Quantity(_metric("ece"), False)'
        )
        != before
    )
    assert after("claims/score_claims.py", "is furthest from 0", "is farthest from 0") == before
    assert after("claims/statements.py", "#: AUROC within", "#: An AUROC within") == before


def test_the_docs_tell_of_every_version_with_its_date() -> None:
    page = (ROOT / "docs" / "analyses.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| (\d+) \| (\d{4}-\d\d-\d\d)", page, re.MULTILINE)
    assert [int(version) for version, _ in told] == list(range(1, RULES["version"] + 1))
    assert told[-1][1] == RULES["since"]
    assert "fixed beforehand" not in page.replace("not all fixed beforehand", "")
