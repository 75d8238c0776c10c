"""The settings of `--config`, which every command takes: a YAML file, or SECTION.KEY=VALUE.

    model: {name: models/llama, dtype: bfloat16}
    prompt: {few_shot: examples.jsonl}
    sampling: {m: 5, temperatures: [1, 0.5]}
    calibration: {risks: [0.1]}

All commands share one form of the file. A key sets an option. Each command reads the keys of its own options
(`READERS` has the exceptions), and ignores the other keys. The sections also group the options in `--help`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from semcal.errors import UsageError, shown
from semcal.registry import check_name

#: Section of the file → its keys. A key is the name of an option, unless `OPTIONS` names another option.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "model": ("name", "device", "nli_device", "dtype", "memory", "workers"),
    "prompt": ("few_shot", "system", "template", "vary"),
    "sampling": (
        "m",
        "seed",
        "temperature",
        "temperatures",
        "recalibrator",
        "max_new_tokens",
        "answer_format",
    ),
    "cluster": ("equivalence", "answers_among", "linkage", "merge_refusals", "cache"),
    "measure": ("name", "t_alpha", "g_alpha"),
    "calibration": (
        "answer",
        "features",
        "signals",
        "risks",
        "delta",
        "grader",
        "m_curve",
        "keep_samples",
    ),
    "fit": ("method", "loss", "alpha", "solver", "weight_decay", "learning_rate", "by"),
    "server": (
        *("tokenizer", "api_key_file", "concurrency", "retries", "timeout", "allow_truncation"),
        *("max_tokens_total", "max_cost", "price_in", "price_out"),
    ),
    "serve": (
        *("calibration", "fallback", "fallback_calibration", "force"),
        *("host", "port", "cors", "keys", "label_keys"),
        *("log", "no_answers", "log_texts", "audit"),
        *("abstain", "abstain_text", "uncovered", "on_alarm"),
        *("queue", "request_timeout", "grace", "max_connections", "max_body", "max_characters"),
    ),
}
#: Section and key → the option, where their names differ.
OPTIONS = {
    ("model", "name"): "model",
    ("measure", "name"): "measure",
    ("calibration", "features"): "feature",
    ("calibration", "signals"): "signal",
    ("calibration", "risks"): "risk",
}
#: Section, or section and key → the only commands that read it. In other commands an option of that name
#: means something else (`fit --alpha`, `monitor --alpha`), or should be set on the command line alone
#: (`metrics --risk`).
READERS = {
    "fit": ("fit",),
    "serve": ("serve",),
    "calibration.answer": ("ask", "calibrate", "sample"),
    "calibration.risks": ("calibrate",),
}
#: The panel of `--help` for options that are in no section.
OTHER_PANEL = "Options"
#: The key of the file that names modules to import first. It belongs to no section.
PLUGINS = "plugins"
#: The environment of `semcal serve`: SEMCAL_SERVE_PORT. The variables of keys hold the keys themselves.
PREFIX = "SEMCAL_SERVE_"
KEYS_THEMSELVES = (f"{PREFIX}KEYS", f"{PREFIX}LABEL_KEYS")


class FileSetting(OptionInfo):
    """An option that can be set in the settings file only."""


def setting(default: Any = None, **details: Any) -> Any:
    """Declare an option that can be set in the settings file only; `details` are those of `typer.Option`."""
    return FileSetting(default=default, **details)


def option_of(section: str, key: str) -> str:
    """Return the option that a key of the file sets."""
    return OPTIONS.get((section, key), key)


def keys_by_option() -> dict[str, str]:
    """Return the place of each option in the file, such as "sampling.m"."""
    return {option_of(section, key): f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys}


def panel_of(option: str, command: str) -> str:
    """Return the panel of an option in the `--help` of a command: its section of the file."""
    section, _, key = keys_by_option().get(option, "").partition(".")
    return section.capitalize() if section and is_read(section, key, command) else OTHER_PANEL


class _Text(str):
    """The value of a `SECTION.KEY=VALUE`, which is YAML unless the option takes text."""


def is_read(section: str, key: str, command: str) -> bool:
    """Return whether a command reads a key of the file for its option of that name."""
    return all(command in READERS.get(place, (command,)) for place in (section, f"{section}.{key}"))


def read_settings(
    command: str,
    sources: Sequence[str],
    environment: Mapping[str, str],
    parameters: Mapping[str, inspect.Parameter],
) -> dict[str, Any]:
    """Return the settings of a command from the files and single settings of `--config`.

    A later source overrides an earlier one, and variables of the environment that begin with SEMCAL_SERVE_
    override the files. UsageError if a key is unknown, or the option rejects a value.
    """
    found: dict[str, tuple[Any, str]] = {}
    for source in sources:
        for section, key, value in _entries(source):
            place = f"--config {source}"
            if not isinstance(value, _Text):
                place += f": {section}.{key}"
            if section != PLUGINS and is_read(section, key, command):
                found[option_of(section, key)] = value, place
    found |= _of_environment(environment, parameters)
    return {
        name: _checked(parameters[name], value, source)
        for name, (value, source) in found.items()
        if name in parameters
    }


def plugins_of(sources: Sequence[str]) -> list[str]:
    """Return the modules to import first: the values of the key `plugins` in `--config`."""
    found = [value for source in sources for section, _, value in _entries(source) if section == PLUGINS]
    names = [name for value in found for name in (value if isinstance(value, list) else [value])]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"--config: {PLUGINS} must be a list of module names, got {shown(names)}; write [NAME, …]"
        )
    return names


def _entries(source: str) -> Iterator[tuple[str, str, Any]]:
    """Yield section, key and value of each setting in a file, or of the setting `SECTION.KEY=VALUE`."""
    where, equals, text = source.partition("=")
    section, _, key = where.partition(".")
    if equals and section in (*SECTIONS, PLUGINS) and not Path(source).exists():
        yield from _of_section(source, section, [text] if section == PLUGINS else {key: _Text(text)})
        return
    from semcal.yaml_files import read_yaml

    content = read_yaml(Path(source), "--config") or {}
    if not isinstance(content, dict):
        raise UsageError(
            f"--config {source} must contain sections with keys and values; write for example "
            "'sampling: {m: 5}'"
        )
    for section, settings in content.items():
        check_name(section, (*SECTIONS, PLUGINS), what=f"section in {source}")
        yield from _of_section(source, section, settings or {})


def _of_section(source: str, section: str, settings: Any) -> Iterator[tuple[str, str, Any]]:
    if section == PLUGINS:
        yield PLUGINS, "", settings or []
        return
    if not isinstance(settings, dict):
        raise UsageError(
            f"--config {source}: {section} must contain keys and values, got {shown(settings)}; write "
            f"'{section}: {{KEY: VALUE}}'"
        )
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        yield section, check_name(name, SECTIONS[section], what=f"key of {section} in {source}"), value


def _of_environment(
    environment: Mapping[str, str], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    names = [name for name in parameters if name in keys_by_option()]
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable not in KEYS_THEMSELVES:
            name = variable.removeprefix(PREFIX).lower()
            check_name(name, names, what=f"setting of the environment ({variable})")
            is_list = list[str] in get_args(parameters[name].annotation)
            found[name] = (text.split(",") if is_list else text), variable
    return found


def default_of(parameter: inspect.Parameter) -> Any:
    """Return the default of a parameter, which typer may have wrapped."""
    default = parameter.default
    return default.default if isinstance(default, OptionInfo) else default


def _checked(parameter: inspect.Parameter, value: Any, source: str) -> Any:
    """Return a value of the file or the environment in the type of its option, or raise UsageError."""
    from pydantic import Field, TypeAdapter, ValidationError

    kind, option = parameter.annotation, parameter.default
    kinds = {kind, *get_args(kind)}
    takes_lists = any(str(one).startswith("list[") for one in kinds)
    if isinstance(value, _Text):
        from semcal.yaml_files import parse_yaml

        value = str(value) if kinds & {str, Path} and not takes_lists else parse_yaml(value, what=source)
    if takes_lists and value is not None and not isinstance(value, list):
        value = [value]
    if isinstance(value, bool) and bool not in kinds:
        value = str(value).lower()  # else pydantic takes it for 0 or 1
    if isinstance(option, OptionInfo) and not takes_lists:
        kind = Annotated[kind, Field(ge=option.min, le=option.max)]
    try:
        checked = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input ").removeprefix("Value error, ")
        secret = parameter.name in ("keys", "label_keys")  # may be a key itself
        raise UsageError(f"{source}: {reason}{'' if secret else f', got {shown(value)}'}") from None
    if isinstance(option, OptionInfo) and option.callback is not None:
        try:
            return option.callback(checked)
        except typer.BadParameter as error:
            raise UsageError(f"{source}: {error.message}") from None
    return checked
