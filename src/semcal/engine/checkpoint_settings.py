"""What the settings of a checkpoint may not ask for, looked at before anything of it is loaded.

Code of its own is never run: a directory that asks for it is refused by name. So are numbers by which a model
would be built for hours, and quantisation of a kind that would be passed over in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semcal.errors import ModelError, shown
from semcal.hub_names import Location

__all__ = ["check_settings"]

_CODE = "auto_map"
#: Modules, or labels, are made one by one for each of these.
_COUNTS = re.compile(r"num_\w+|n_layers?")
_AT_LEAST_ONE = ("vocab_size", "num_hidden_layers", "n_layer")
MOST = 10**5


def check_settings(what: str, place: Location, revision: str | None = None) -> None:
    """Refuse a checkpoint whose settings (of model, tokenizer or processor) ask for what they may not.

    Of a checkpoint on the hub the files are looked at that its client has fetched.

    Parameters
    ----------
    what : str
        What is being loaded, for the message.
    place : Location
        Where it lies.
    revision : str, optional
        Branch, tag or commit on the hub.

    Raises
    ------
    ModelError
        Which names the file, what it says, and what to do.
    """
    folder = _fetched(place.source, revision) if place.on_hub else Path(place.source)
    for path in sorted(folder.glob("*config*.json")) if folder else ():
        if found := _classes(_content(path)):
            raise ModelError(
                f"{what}: {path} asks for code of its own ({_CODE}: {', '.join(found)[:80]}), and code in a "
                f"model's directory is never run; {_remedy(_content(path.parent / 'config.json'), path.name)}"
            )
    config = _content(folder / "config.json") if folder else None
    for problem in _problems(config if isinstance(config, dict) else {}):
        raise ModelError(f"{what}: its config.json says {problem}")


def _problems(config: dict[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            yield from _problems(value)
        if type(value) is int and key in _AT_LEAST_ONE and value < 1:
            yield f"{key} = {value}; at least 1 is needed"
        if type(value) is int and _COUNTS.fullmatch(key) and value > MOST:
            yield f"{key} = {str(value)[:20]}…; no model has more than {MOST}"
    if (asked := config.get("quantization_config")) is not None and not _is_known(asked):
        yield (
            f"quantization_config = {shown(asked)}, whose quant_method transformers does not know; use a "
            "checkpoint that is not quantised, or quantised in another way"
        )


def _is_known(quantization: Any) -> bool:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    if not isinstance(quantization, dict):
        return False
    by_flag = quantization.get("load_in_8bit") or quantization.get("load_in_4bit")
    return bool(by_flag) or quantization.get("quant_method") in list(AUTO_QUANTIZATION_CONFIG_MAPPING)


def _remedy(config: Any, file: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(kind, str) and kind in CONFIG_MAPPING_NAMES:
        return f"transformers has a {kind} of its own: take {_CODE} out of {file} (in a copy) to use that"
    return f"transformers itself does not know {shown(kind)}: use a checkpoint of a kind that it knows"


def _content(path: Path) -> Any:
    """What a file holds; None if it is not there or damaged, which its loader says better."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _classes(settings: Any) -> list[str]:
    """The classes that settings name, those of their parts included."""
    if not isinstance(settings, dict):
        return []
    named = settings.get(_CODE) or []
    values = named.values() if isinstance(named, dict) else named if isinstance(named, list) else [named]
    return [str(value) for value in values] + [name for part in settings.values() for name in _classes(part)]


def _fetched(repo_id: str, revision: str | None) -> Path | None:
    """Where the hub's client keeps the files of a repository; None if it has none."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None
