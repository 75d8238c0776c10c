"""Reader and writer of YAML for settings, prompt templates and options of `semcal serve`.

YAML 1.1 is used, in which `yes` is true, as in most programs. Only plain data of limited size without
duplicate keys and aliases is accepted. An error names the line and the column.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError, YAMLWarning
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import Node
from ruamel.yaml.resolver import VersionedResolver

from semcal.errors import UsageError, shown

#: Maximum number of characters and of nested levels.
LONGEST, DEEPEST = 1_000_000, 100
#: Whole numbers must be below this limit of NumPy and of files of other programs.
LARGEST = 2**63
#: NUL and lone surrogates.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
#: Errors of the library for a value that contradicts its form or tag (`2020-13-45`, `!!int x`).
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def read_yaml(path: Path, name: str = "") -> Any:
    """Return the content of a YAML file, called `name` in messages; errors as in `parse_yaml`."""
    what = f"{name} {path}".strip()
    try:
        with path.open(encoding="utf-8") as handle:
            text = handle.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"{what} cannot be read ({error.strerror}); give another file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    return parse_yaml(text, what=what)


def parse_yaml(text: str, *, what: str) -> Any:
    """Return the content of a YAML text; `what` is its origin, which begins messages.

    UsageError, with line and column, if the text is not YAML, repeats a key, exceeds the limits of length
    or depth, or holds an alias or an invalid value.

    >>> parse_yaml("{m: 10, seed: 0}", what="--set")
    {'m': 10, 'seed': 0}
    >>> parse_yaml("{m: 10, m: 5}", what="--set")
    Traceback (most recent call last):
    semcal.errors.UsageError: --set: line 1, column 9: found duplicate key "m" with value "5" (original ...
    """
    if len(text) > LONGEST:
        raise UsageError(f"{what}: longer than {LONGEST} characters. Shorten it.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", YAMLWarning)
            return _yaml().load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        too_deep = f"nested more than {DEEPEST} deep" if isinstance(error, MaxDepthExceededError) else None
        reason = " ".join(str(too_deep or getattr(error, "problem", None) or error).split())
        reason = reason if len(reason) <= 200 else reason[:197] + "..."
        raise UsageError(f"{what}: {place}{reason}") from error


def yaml_text(tree: Any) -> str:
    """Return plain data as YAML with keys in their order."""
    text = io.StringIO()
    _yaml().dump(tree, text)
    return text.getvalue().removeprefix("%YAML 1.1\n---\n")


def _yaml() -> Any:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.version, yaml.max_depth = (1, 1), DEEPEST
    yaml.Composer, yaml.Constructor, yaml.Resolver = _Composer, _Constructor, _Resolver
    yaml.width, yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = 100, False, False
    return yaml


class _Composer(Composer):
    """A composer that rejects aliases, whose content can be without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.parser.check_event(AliasEvent):
            event = self.parser.peek_event()
            raise _misplaced(f"*{event.anchor} is an alias; write its value out", event)
        return super().compose_node(parent, index)


class _Resolver(VersionedResolver):
    """A resolver that reads `y` and `n` as texts, because settings and tables have such keys."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        is_letter = value in ("y", "Y", "n", "N")
        return super().resolve(kind, value, (False, implicit[1]) if is_letter else implicit)


class _Constructor(SafeConstructor):
    """A constructor of plain data that reports invalid values with their place, within the limits."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except _WRONG as error:
            kind = str(node.tag).rpartition(":")[2]
            raise _misplaced(
                f"{shown(node.value)} is not a valid {kind}; put a text into quotes", node
            ) from error
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise _misplaced(f"{shown(value)} is too large", node)
        if isinstance(value, str) and _NO_TEXT.search(value):
            raise _misplaced(f"{shown(value)} holds NUL or half a character; remove it", node)
        return value


def _misplaced(problem: str, place: Node | AliasEvent) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
