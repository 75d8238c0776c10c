"""Settings of a grid from a YAML file: preset below file below `--set`, each mistake named by its key.

YAML as settings are written in it: every key once, no more than settings need, one error for a mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from semcal.errors import WIDTH, UsageError, shown
from semcal.experiment.grid_settings import ASKED_WITH, GridSettings
from semcal.experiment.presets import PRESETS
from semcal.experiment.question_sets import sizes_of_built_in
from semcal.records import writing
from semcal.records.jsonl import DEEPEST
from semcal.registry import check_name

FILE = "settings.yaml"
#: Mistakes that are named at once.
NAMED = 10


def read_settings(path: Path, overrides: Sequence[str] = (), *, limit: int | None = None) -> GridSettings:
    """Read a YAML file of settings, and resolve everything that it leaves out.

    `overrides` are "a.b=c" as for `--set`: a path of keys (a number in a list), and a YAML value. No part of
    a data set has more than `limit` questions. UsageError if there is no such file, it is no YAML, or a key
    or value is wrong: all of them are named.
    """
    if not path.is_file():
        raise UsageError(f"no settings there: {path}; give a YAML file such as configs/atlas.yaml")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings: expected keys such as models and datasets")
    return settings_of(content, overrides, limit=limit, where=str(path))


def settings_of(
    content: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    limit: int | None = None,
    where: str = "settings",
) -> GridSettings:
    """Settings from plain data; parameters and errors as in `read_settings`."""
    own = deepcopy(dict(content))
    for override in overrides:
        _set(own, override)
    preset = check_name(str(own.get("preset", "sound")), PRESETS, what="preset")
    try:
        settings = GridSettings.model_validate(_over(PRESETS[preset], own))
    except ValidationError as error:
        found = list(_complaints(error))
        more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise UsageError(f"{where}: " + "; ".join(found[:NAMED]) + more) from None
    return resolved(settings, limit=limit)


def _set(content: dict[str, Any], override: str) -> None:
    """Apply one "a.b=c"."""
    where, equals, text = override.partition("=")
    *path, last = where.split(".")
    what = f"--set {_cut(override)}"
    if not equals or not last or len(path) > DEEPEST:
        raise UsageError(f"{what}: expected key=value, such as sampling.m=5")
    target: Any = content
    for key in path:
        target = _step(target, key, what)
    if not isinstance(target, (dict, list)):
        raise UsageError(f"{what}: {shown(path[-1])} holds no keys")
    value = parse_yaml(text, what=what)
    if isinstance(target, list):
        target[_index(target, last, what)] = value
    else:
        target[last] = value


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def _step(target: Any, key: str, what: str) -> Any:
    if isinstance(target, list):
        return target[_index(target, key, what)]
    found = target.setdefault(key, {})
    if not isinstance(found, (dict, list)):
        raise UsageError(f"{what}: {shown(key)} holds no keys")
    return found


def _index(target: list[Any], key: str, what: str) -> int:
    if not key.isdecimal() or len(key) > 9 or int(key) >= len(target):
        raise UsageError(f"{what}: {shown(key)} is no place in a list of {len(target)}; count from 0")
    return int(key)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What `above` says, and where it says nothing what `below` does."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(value, dict) and isinstance(under, Mapping)
        merged[key] = _over(under, value) if both else value  # type: ignore[arg-type]
    return merged


def _complaints(error: ValidationError) -> Iterator[str]:
    for one in error.errors():
        where = ".".join(_cut(str(part)) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            known = _keys_at(one["loc"][:-1])
            near = difflib.get_close_matches(str(one["loc"][-1]), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            yield f"unknown setting {where!r}{hint} Known: {', '.join(known)}"
        elif one["type"] == "missing":
            yield f"{where} is missing"
        elif one["type"] == "too_short" and one["input"]:
            continue  # what is wrong with its items is told
        else:
            message = one["msg"].removeprefix("Value error, ")
            yield f"{where}: {message}, got {shown(one['input'])}" if where else message


def _keys_at(place: Sequence[int | str]) -> list[str]:
    """The keys of the settings at a place."""
    part: type[BaseModel] = GridSettings
    for key in place:
        if isinstance(key, str):
            found = part.model_fields[key].annotation
            part = next(one for one in (found, *get_args(found)) if hasattr(one, "model_fields"))
    return list(part.model_fields)


def resolved(settings: GridSettings, *, limit: int | None = None) -> GridSettings:
    """The settings with the sizes of all data sets written out, and none above the limit."""
    datasets = []
    for dataset in settings.datasets:
        known = sizes_of_built_in(dataset.source) or {
            "validation": 2000,
            "test": 2000,
        }
        sizes: dict[str, int | None] = {}
        for part in ("calibration_train", "validation", "test"):
            size = getattr(dataset, part)
            size = known.get(part) if size is None else size
            sizes[part] = limit if size is None else size if limit is None else min(size, limit)
        datasets.append(dataset.model_copy(update=sizes))
    return settings.model_copy(update={"datasets": tuple(datasets)})


def settings_text(settings: GridSettings) -> str:
    """All settings as YAML."""
    return yaml.safe_dump(settings.tree(), sort_keys=False, allow_unicode=True, width=100)


def claim_folder(folder: Path, settings: GridSettings) -> None:
    """Write the settings into a run folder; refuse one that holds a run with others.

    What is kept (`keep`) and how servers are asked may change from one session to the next: no result depends
    on it.

    UsageError with the settings that differ.
    """
    path = folder / FILE
    text = settings_text(settings)
    if path.exists():
        if path.read_bytes() == text.encode():
            return
        before = read_yaml(path)
        differing = list(_differing(_that_matters(before), _that_matters(settings.tree())))
        if differing or before == settings.tree():
            raise UsageError(
                f"{folder} holds a run with other settings ({', '.join(differing) or 'edited by hand'}); use "
                "--fresh to start again, or another --out"
            )
    with writing(path) as handle:
        handle.write(text)


def _that_matters(tree: Any) -> Any:
    """Settings without those on which no result depends."""
    if not isinstance(tree, dict):
        return tree
    models = [
        {**one, "server": {name: value for name, value in server.items() if name in ASKED_WITH}}
        if isinstance(server := one.get("server"), dict)
        else one
        for one in tree.get("models", [])
    ]
    return {name: value for name, value in tree.items() if name != "keep"} | {"models": models}


def _differing(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """The paths of the settings that two trees do not share."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from _differing(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield where


#: Characters of a text, and values in it: one that an alias repeats counts each time.
LONGEST, MOST = 1_000_000, 10_000
#: Whole numbers are below this: what NumPy and files of other programs can hold.
LARGEST = 2**63
#: What PyYAML raises where a value is not what its form or its tag says (`2020-13-45`, `!!int x`).
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def parse_yaml(text: str, *, what: str) -> Any:
    """Return what a YAML text says; `what` says where it comes from, the beginning of a message.

    UsageError if it is no YAML, gives a key twice, is longer or nested deeper than settings can be (aliases
    written out), or holds a value that is none; with the line and column.

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
        raise UsageError(f"{what}: {place}{_one_line(error.problem or str(error))}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{what}: no YAML: {_one_line(str(error))}") from error


def read_yaml(path: Path) -> Any:
    """Return what a YAML file says; errors as of `parse_yaml`."""
    try:
        with path.open(encoding="utf-8") as handle:
            text = handle.read(LONGEST + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    return parse_yaml(text, what=str(path))


def _one_line(text: str) -> str:
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
