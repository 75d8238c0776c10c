"""YAML as settings are written in it: every key once, no more than settings need, one error for a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from semcal.errors import UsageError, shown
from semcal.records.parsing import DEEPEST

__all__ = ["parse_yaml", "read_yaml"]

#: Characters of a text, and values in it: one that an alias repeats counts each time.
LONGEST, MOST = 1_000_000, 10_000
#: Whole numbers are below this: what NumPy and files of other programs can hold.
LARGEST = 2**63
#: What PyYAML raises where a value is not what its form or its tag says (`2020-13-45`, `!!int x`).
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def parse_yaml(text: str, *, what: str) -> Any:
    """Return what a YAML text says.

    Parameters
    ----------
    text : str
    what : str
        Where it comes from: the beginning of a message.

    Raises
    ------
    UsageError
        If it is no YAML, gives a key twice, is longer or nested deeper than settings can be (aliases
        written out), or holds a value that is none; with the line and column.

    Examples
    --------
    >>> parse_yaml("{m: 10, seed: 0}", what="--set")
    {'m': 10, 'seed': 0}
    >>> parse_yaml("{m: 10, m: 5}", what="--set")
    Traceback (most recent call last):
    semcal.errors.UsageError: --set: line 1, column 9: the key 'm' is given twice; leave one out
    """
    if len(text) > LONGEST:
        raise UsageError(f"{what}: longer than the {LONGEST} characters that settings may have")
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UsageError(f"{what}: {place}{_cut(error.problem or str(error))}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{what}: no YAML: {_cut(str(error))}") from error


def read_yaml(path: Path) -> Any:
    """Return what a YAML file says; errors as of `parse_yaml`."""
    try:
        with path.open(encoding="utf-8") as handle:
            text = handle.read(LONGEST + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    return parse_yaml(text, what=str(path))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:197] + "..."


class _Loader(yaml.SafeLoader):
    """Plain data only; what is wrong is told with its place, before anything grows out of hand."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._sizes: dict[int, tuple[int, int]] = {}  # of finished nodes: values in them, depth below them

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        repeated = self.check_event(yaml.AliasEvent)
        self._level += 1
        self._refuse_deeper(self._level, mark)
        node: Any = super().compose_node(parent, index)
        self._level -= 1
        if repeated and id(node) not in self._sizes:
            raise yaml.MarkedYAMLError(problem="an alias inside the value that it repeats", problem_mark=mark)
        if not repeated:
            self._sizes[id(node)] = self._measured(node)
        return node

    def _measured(self, node: yaml.Node) -> tuple[int, int]:
        """How many values a node holds, itself among them, and how deep; its keys are looked at as well."""
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _refuse_doublets(node)
            inside = [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value
        sizes = [self._sizes[id(one)] for one in inside]
        count, depth = 1 + sum(size for size, _ in sizes), 1 + max((d for _, d in sizes), default=0)
        if count > MOST:
            raise yaml.MarkedYAMLError(
                problem=f"{shown(count)} values, aliases written out, are too many; at most {MOST}",
                problem_mark=node.start_mark,
            )
        self._refuse_deeper(depth, node.start_mark)
        return count, depth

    def _refuse_deeper(self, depth: int, mark: Any) -> None:
        if depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep", problem_mark=mark)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except _WRONG as error:
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{shown(node.value)} is no {kind}; put a text into quotes",
                problem_mark=node.start_mark,
            ) from error
        problem = _unusable(value)
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


def _refuse_doublets(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {shown(key.value)} is given twice; leave one out",
                    problem_mark=key.start_mark,
                )
            seen.add((key.tag, key.value))


def _unusable(value: Any) -> str | None:
    """Why no setting can have a value, whichever it is."""
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return f"{shown(value)} is too large"
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        return f"{shown(value)} holds a character that no text or path can have (NUL, or half a character)"
    return None
