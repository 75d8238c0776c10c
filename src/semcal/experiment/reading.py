"""Settings of a grid from a YAML file: preset below file below `--set`, each mistake named by its key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from semcal.errors import WIDTH, UsageError, shown
from semcal.experiment.grid_settings import GridSettings
from semcal.experiment.presets import PRESETS
from semcal.experiment.question_sets import sizes_of_built_in
from semcal.experiment.yaml_text import parse_yaml, read_yaml
from semcal.records import writing
from semcal.records.parsing import DEEPEST
from semcal.registry import check_name

__all__ = ["claim_folder", "read_settings", "resolved", "settings_of", "settings_text"]

FILE = "settings.yaml"
#: Mistakes that are named at once.
MOST = 10


def read_settings(path: Path, overrides: Sequence[str] = (), *, limit: int | None = None) -> GridSettings:
    """Read a file of settings, and resolve everything that it leaves out.

    Parameters
    ----------
    path : Path
        YAML.
    overrides : sequence of str
        "a.b=c" as for `--set`: a path of keys (a number in a list), and a YAML value.
    limit : int, optional
        No part of a data set has more questions.

    Raises
    ------
    UsageError
        If there is no such file, it is no YAML, or a key or value is wrong: all of them are named.
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
        more = f"; and {len(found) - MOST} more" if len(found) > MOST else ""
        raise UsageError(f"{where}: " + "; ".join(found[:MOST]) + more) from None
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

    What is kept (`keep`) may change from one session to the next: no result depends on it.

    Raises
    ------
    UsageError
        With the settings that differ.
    """
    path = folder / FILE
    text = settings_text(settings)
    if path.exists():
        if path.read_bytes() == text.encode():
            return
        differing = list(_differing(read_yaml(path), settings.tree()))
        if differing != ["keep"]:
            raise UsageError(
                f"{folder} holds a run with other settings ({', '.join(differing) or 'edited by hand'}); use "
                "--fresh to start again, or another --out"
            )
    with writing(path) as handle:
        handle.write(text)


def _differing(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """The paths of the settings that two trees do not share."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from _differing(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield where
