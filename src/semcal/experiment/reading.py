"""Settings of a grid from a YAML file: preset below file below `--set`, each mistake named by its key.

YAML as settings are written in it: every key once, no more than settings need, one error for a mistake.
"""

from __future__ import annotations

import difflib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError, YAMLWarning
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver

from semcal.errors import WIDTH, UsageError, shown
from semcal.experiment.grid_settings import ASKED_WITH, PRESETS, GridSettings
from semcal.experiment.question_sets import sizes_of_built_in
from semcal.files import DEEPEST, writing
from semcal.registry import check_name

FILE = "settings.yaml"
#: Settings that are gone, and what has become of them.
REMOVED = {
    "extras.without_normal_forms": "answers are no longer clustered a second time without normal forms",
    "extras.timing": "recalibrators are no longer timed",
}
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
    tree = deepcopy(dict(content))
    for override in overrides:
        _set(tree, override)
    if tree.get("preset") == "reference":
        raise UsageError(
            f"{where}: preset reference is gone; take paper or sound, and set what the published code does "
            "otherwise setting by setting (docs/paper.md)"
        )
    preset = check_name(str(tree.get("preset", "sound")), PRESETS, what="preset")
    try:
        settings = GridSettings.model_validate(_over(PRESETS[preset], tree))
    except ValidationError as error:
        complaints = list(_complaints(error))
        more = f"; and {len(complaints) - NAMED} more" if len(complaints) > NAMED else ""
        raise UsageError(f"{where}: " + "; ".join(complaints[:NAMED]) + more) from None
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
    child = target.setdefault(key, {})
    if not isinstance(child, (dict, list)):
        raise UsageError(f"{what}: {shown(key)} holds no keys")
    return child


def _index(target: list[Any], key: str, what: str) -> int:
    if not key.isdecimal() or len(key) > 9 or int(key) >= len(target):
        raise UsageError(f"{what}: {shown(key)} is no place in a list of {len(target)}; count from 0")
    return int(key)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What `above` says, and where it says nothing what `below` does."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        is_tree = isinstance(value, dict) and isinstance(under, Mapping)
        merged[key] = _over(under, value) if is_tree else value  # type: ignore[arg-type]
    return merged


def _complaints(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        where = ".".join(_cut(str(part)) for part in detail["loc"])
        if where in REMOVED:
            yield f"{where} is gone: {REMOVED[where]}; leave it out"
        elif detail["type"] == "extra_forbidden":
            keys = _keys_at(detail["loc"][:-1])
            near = difflib.get_close_matches(str(detail["loc"][-1]), keys, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            yield f"unknown setting {where!r}{hint} Known: {', '.join(keys)}"
        elif detail["type"] == "missing":
            yield f"{where} is missing"
        elif detail["type"] == "too_short" and detail["input"]:
            continue  # what is wrong with its items is told
        else:
            message = detail["msg"].removeprefix("Value error, ")
            yield f"{where}: {message}, got {shown(detail['input'])}" if where else message


def _keys_at(place: Sequence[int | str]) -> list[str]:
    """The keys of the settings at a place."""
    part: type[BaseModel] = GridSettings
    for key in place:
        if isinstance(key, str):
            kind = part.model_fields[key].annotation
            part = next(option for option in (kind, *get_args(kind)) if hasattr(option, "model_fields"))
    return list(part.model_fields)


def resolved(settings: GridSettings, *, limit: int | None = None) -> GridSettings:
    """The settings with the sizes of all data sets written out, and none above the limit."""
    datasets = []
    for dataset in settings.datasets:
        defaults = sizes_of_built_in(dataset.source) or {"validation": 2000, "test": 2000}
        sizes: dict[str, int | None] = {}
        for part in ("calibration_train", "validation", "test"):
            size = getattr(dataset, part)
            size = defaults.get(part) if size is None else size
            sizes[part] = limit if size is None else size if limit is None else min(size, limit)
        datasets.append(dataset.model_copy(update=sizes))
    return settings.model_copy(update={"datasets": tuple(datasets)})


def settings_text(settings: GridSettings) -> str:
    """All settings as YAML."""
    return yaml_text(settings.tree())


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
        {**model, "server": {name: value for name, value in server.items() if name in ASKED_WITH}}
        if isinstance(server := model.get("server"), dict)
        else model
        for model in tree.get("models", [])
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
#: What the library raises where a value is not what its form or its tag says (`2020-13-45`, `!!int x`).
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", YAMLWarning)
            return _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        too_deep = f"nested more than {DEEPEST} deep" if isinstance(error, MaxDepthExceededError) else None
        raise UsageError(f"{what}: {place}{_one_line(too_deep or error.problem or str(error))}") from error
    except YAMLError as error:
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


def _yaml() -> Any:
    """A reader and writer of plain data as YAML 1.1, in which `yes` is true, as most programs have it."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.version, yaml.max_depth = (1, 1), DEEPEST
    yaml.Constructor, yaml.Resolver = _Constructor, _Resolver
    yaml.width, yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = 100, False, False
    return yaml


def yaml_text(tree: Any) -> str:
    """Plain data as YAML, keys in their order."""
    text = io.StringIO()
    _yaml().dump(tree, text)
    return text.getvalue().removeprefix("%YAML 1.1\n---\n")


class _Resolver(VersionedResolver):
    """Takes `y` and `n` for texts: settings and tables have such keys."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        is_letter = value in ("y", "Y", "n", "N")
        return super().resolve(kind, value, (False, implicit[1]) if is_letter else implicit)


class _Constructor(SafeConstructor):
    """Plain data only; what is wrong is told with its place, before anything grows out of hand."""

    def construct_document(self, node: Node) -> Any:
        if next(islice(_repeated(node), MOST, None), None) is not None:
            raise _misplaced(f"more than {MOST} values, aliases written out, are too many", node)
        return super().construct_document(node)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except _WRONG as error:
            kind = str(node.tag).rpartition(":")[2]
            raise _misplaced(f"{shown(node.value)} is no {kind}; put a text into quotes", node) from error
        problem = _unusable(value)
        if problem:
            raise _misplaced(problem, node)
        return value


def _repeated(node: Node, parents: tuple[Node, ...] = ()) -> Iterator[Node]:
    """A node and all below it, those that aliases repeat each time, none with a key given twice."""
    if node in parents:
        raise _misplaced("an alias inside the value that it repeats", node)
    if len(parents) >= DEEPEST:
        raise _misplaced(f"nested more than {DEEPEST} deep", node)
    yield node
    children = node.value if isinstance(node, SequenceNode) else ()
    if isinstance(node, MappingNode):
        children = [child for pair in node.value for child in pair]
        names: set[tuple[str, str]] = set()
        for key in filter(lambda child: isinstance(child, ScalarNode), children[::2]):
            if (str(key.tag), key.value) in names:
                raise _misplaced(f"the key {shown(key.value)} is given twice; leave one out", key)
            names.add((str(key.tag), key.value))
    for child in children:
        yield from _repeated(child, (*parents, node))


def _misplaced(problem: str, node: Node) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _unusable(value: Any) -> str | None:
    """Why no setting can have a value, whichever it is."""
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return f"{shown(value)} is too large"
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        return f"{shown(value)} holds a character that no text or path can have (NUL, or half a character)"
    return None
