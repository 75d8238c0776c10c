"""Find text that breaks the rules of language: no verb, a clause for a noun, a private word.

    python -m tools.language            # list each place, and the shares
    python -m tools.language servers    # the places of the files whose names contain a text

The rules, and the limits that tests/test_language.py holds:

- A public docstring, a help text or a message does not begin with what, whether, how, which, where, that,
  those, of or as (at most 1%).
- The docstring of a public function begins with a verb, and a message contains a verb (at most 1% do not).
- Help texts, messages and pages do not contain the words of `AVOIDED` (none does; code in backquotes and
  quotations do not count).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tools.messages import template
from tools.reading import paths, prose

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semcal"
CLAUSES = frozenset(("what", "whether", "how", "which", "where", "that", "those", "of", "as"))
AVOIDED = re.compile(
    r"\b(learnt|likelier|likeliest|commonest|drawn|by chance|kept apart|is no|is none|are none)\b"
    r"|\b(an|the|this|its) asking\b",
    re.IGNORECASE,
)
#: Calls whose first text is a message to the user, beside those of classes whose names end in Error.
MESSAGES = frozenset(
    ("warn", "warn_once", "info", "warning", "notice", "error", "fail", "BadParameter", "_refuse", "Fault")
)
#: The verbs of the code base, in the imperative.
VERBS = frozenset(Path(__file__).with_name("verbs.txt").read_text("utf-8").split())
#: Forms that the endings of `_forms` do not make.
_IRREGULAR = Path(__file__).with_name("irregular_verb_forms.txt").read_text("utf-8").split()


class Text(NamedTuple):
    """One text that people read: its place, its kind (docstring, function, help, message, page) and words."""

    place: str
    kind: str
    words: str


@dataclass(frozen=True)
class Finding:
    """A text that breaks a rule."""

    rule: str
    text: Text


def _forms() -> frozenset[str]:
    """Return the third person, the past and the participles of the verbs."""
    found = {*VERBS, *_IRREGULAR}
    for verb in VERBS:
        stem = verb.removesuffix("e")
        found |= {
            f"{verb}s",
            f"{verb}es",
            f"{stem}ed",
            f"{stem}ing",
            f"{verb}{verb[-1]}ed",
            f"{verb}{verb[-1]}ing",
        }
        if verb.endswith("y"):
            found |= {f"{verb[:-1]}ies", f"{verb[:-1]}ied"}
    return frozenset(found)


_FORMS = _forms()


def code_texts() -> Iterator[Text]:
    """Yield public docstrings and messages of the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            place = f"{name}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.Call):
                yield from (Text(place, "message", text) for text in _messages(node))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node)
                if text and not getattr(node, "name", "").startswith("_"):
                    yield Text(place, "function" if _is_function(node) else "docstring", text)


def _is_function(node: ast.AST) -> bool:
    """Tell functions and methods from properties, whose docstrings name a thing."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(one) for one in node.decorator_list)


def _messages(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func).rsplit(".", 1)[-1]
    if name in MESSAGES or name.endswith("Error"):
        for argument in call.args:
            if isinstance(argument, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp):
                text = template(argument)
                if len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{.*?\}", "", text))) >= 3:
                    yield text


def help_texts() -> Iterator[Text]:
    """Yield the help of every command and of every option."""
    from typer.main import get_command

    from semcal.cli.app import app

    for name, command in sorted(get_command(app).commands.items()):  # type: ignore[attr-defined]
        yield Text(f"semcal {name}", "help", command.help or "")
        for option in command.params:
            yield Text(f"semcal {name} {option.opts[0]}", "help", getattr(option, "help", None) or "")


def pages() -> Iterator[Text]:
    """Yield the prose of README and of the pages of the documentation that people write."""
    for path in paths():
        yield Text(path.relative_to(ROOT).as_posix(), "page", prose(path.read_text(encoding="utf-8")))


def findings(texts: list[Text]) -> list[Finding]:
    """Return each breach of a rule."""
    found = []
    for text in texts:
        words = re.findall(r"[a-z]+", re.sub(r"\{.*?\}", " ", text.words).lower())
        plain = re.sub(r"`[^`]*`|\"[^\"]*\"|“[^”]*”|\{.*?\}", " ", text.words)
        if text.kind in ("docstring", "function", "help", "message") and words and words[0] in CLAUSES:
            found.append(Finding("clause", text))
        if text.kind == "function" and words and words[0] not in VERBS:
            found.append(Finding("verb", text))
        if text.kind == "message" and not _FORMS.intersection(words):
            found.append(Finding("verb", text))
        if text.kind in ("help", "message", "page"):
            found += [Finding(f"word {one[0]!r}", text) for one in AVOIDED.finditer(plain)]
    return found


def shares(texts: list[Text]) -> dict[str, float]:
    """Return the share of texts that begin with a clause word, and of those without a verb, in 0 to 1."""
    found = findings(texts)
    begin = [one for one in texts if one.kind != "page"]
    act = [one for one in texts if one.kind in ("function", "message")]
    return {
        "clause": sum(one.rule == "clause" for one in found) / max(1, len(begin)),
        "verb": sum(one.rule == "verb" for one in found) / max(1, len(act)),
    }


def main(containing: str = "") -> None:
    texts = [*code_texts(), *help_texts(), *pages()]
    for finding in findings(texts):
        if containing in finding.text.place:
            first = finding.text.words.split("\n")[0] if finding.text.kind != "page" else ""
            print(f"{finding.text.place}: {finding.rule}: {first}")
    for rule, share in shares(texts).items():
        print(f"{rule}: {share:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
