"""A checkpoint's files: its settings, single tensors, and a copy in which a few tensors differ.

Files are copied, and changed tensors overwrite their own bytes: everything else stays bit for bit the same,
whatever version of transformers wrote it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from semcal.engine.loading import files_hash, unpacked
from semcal.errors import ModelError, SemcalError
from semcal.hub_names import LANGUAGE_MODEL, locate, snapshot
from semcal.records import dumps

#: The key of config.json with the temperature by which the logits are divided already.
FOLDED = "semcal_folded_temperature"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
#: Weights in other formats, which are not folded and so not copied.
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"}
_OTHER_WEIGHTS |= {".gguf", ".onnx", ".onnx_data", ".safetensors"}


@dataclass(frozen=True)
class Checkpoint:
    """A directory of a transformers checkpoint with safetensors weights."""

    directory: Path
    name: str  # with `revision` as `load_model` gives them: what a recalibrator's provenance is compared with
    revision: str
    config: Mapping[str, Any]  # content of config.json
    generation_config: Mapping[str, Any]  # of generation_config.json; empty where there is none
    shards: Mapping[str, str]  # tensor → name of its file

    def special_tokens(self) -> dict[str, Any]:
        """Token ids and lengths from the generation config, or from the config where there is none."""
        return dict(self.generation_config or {**self.config.get("text_config", {}), **self.config})

    def tensor(self, name: str) -> Tensor:
        """Read one tensor, in the dtype in which it is stored."""
        with safe_open(self.directory / self.shards[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def files(self) -> tuple[list[Path], list[Path]]:
        """Files that belong to the checkpoint, and weights that do not; both relative to the directory."""
        inside = sorted(path for path in self.directory.rglob("*") if path.is_file())
        relative = [path.relative_to(self.directory) for path in inside]
        shown = [path for path in relative if not any(part.startswith(".") for part in path.parts)]
        used = {Path(name) for name in self.shards.values()}
        left = [path for path in shown if path not in used and _is_other_weight(path)]
        return [path for path in shown if path not in left], left

    def size(self) -> int:
        """Size of a copy in bytes."""
        return sum((self.directory / path).stat().st_size for path in self.files()[0])

    def copy(
        self,
        target: Path,
        *,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
    ) -> None:
        """Copy it to `target`, which must not exist, with these tensors and settings instead of its own."""
        for path in self.files()[0]:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.directory / path, target / path)
        for name, tensor in tensors.items():
            _overwrite(target / self.shards[name], name, tensor)
        for file, content in (("config.json", config), ("generation_config.json", generation_config)):
            (target / file).write_text(dumps(content, indent=2) + "\n", encoding="utf-8")


def open_checkpoint(path_or_id: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Open the directory of a checkpoint, or fetch it from the hub; no weights are read.

    ModelError if it is not the directory of a checkpoint, has no safetensors, or the hub cannot be reached.
    """
    location = locate(path_or_id, LANGUAGE_MODEL, revision=revision)
    if location.gguf:
        location = unpacked(f"cannot open {location.name!r}", location, torch.float32)
    directory = Path(location.source)
    if location.on_hub:
        directory = snapshot(
            location.source,
            revision=revision,
            without=("*.bin", "*.pth", "*.gguf"),
            cached=location.cached,
            error_class=ModelError,
        )
    return Checkpoint(
        directory=directory,
        name=location.name,
        revision=directory.name if location.on_hub else location.revision or files_hash(directory),
        config=_json(directory / "config.json"),
        generation_config=_json(directory / "generation_config.json", missing={}),
        shards=_shards(directory),
    )


def refuse_folded(config: Mapping[str, Any], error_class: type[SemcalError] = ModelError) -> None:
    """Raise if the logits of the model with this config are already divided by a temperature.

    >>> refuse_folded({"semcal_folded_temperature": 1.25})
    Traceback (most recent call last):
    semcal.errors.ModelError: this checkpoint has T = 1.25 folded in: its logits are divided by T already;
    use it as it is (T = 1), or go back to the checkpoint from which it was made
    """
    if config.get(FOLDED) is not None:
        raise error_class(
            f"this checkpoint has T = {config[FOLDED]:g} folded in: its logits are divided by T already; "
            "use it as it is (T = 1), or go back to the checkpoint from which it was made"
        )


def is_folded(directory: Path) -> bool:
    """Whether a directory is a checkpoint with a temperature folded in."""
    return (directory / "config.json").is_file() and FOLDED in _json(directory / "config.json")


def _json(path: Path, *, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not path.is_file():
        return missing
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); fetch or save the checkpoint again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object; fetch or save the checkpoint again")
    return content


def _shards(directory: Path) -> dict[str, str]:
    """Tensor → its safetensors file."""
    if (directory / INDEX).is_file():
        return _files_of(_json(directory / INDEX).get("weight_map"), directory / INDEX)
    if not (directory / WEIGHTS).is_file():
        raise ModelError(
            f"{directory} holds no {WEIGHTS}; only safetensors can be folded: load the model with "
            "transformers and save it again with save_pretrained"
        )
    return dict.fromkeys(_header(directory / WEIGHTS)[0], WEIGHTS)


def _files_of(weight_map: Any, index: Path) -> dict[str, str]:
    """The map of an index, checked to name only files of its own directory: a copy is written to them."""
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and name == Path(name).name and (index.parent / name).is_file()
        for name in weight_map.values()
    ):
        raise ModelError(
            f"{index}: weight_map must map weights to files beside it; fetch or save the checkpoint again"
        )
    return dict(weight_map)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The entries of a safetensors file, and the offset of its data."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(min(length, path.stat().st_size)))
        return {name: entry for name, entry in entries.items() if name != "__metadata__"}, 8 + length
    except (AttributeError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged (no safetensors header); fetch or save it again") from error


def _overwrite(path: Path, name: str, tensor: Tensor) -> None:
    """Overwrite a stored tensor with one of the same shape and dtype."""
    entries, start = _header(path)
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    first, last = entries[name]["data_offsets"]
    if len(data) != last - first:
        raise ModelError(f"{name} takes {last - first} bytes in {path}, not {len(data)}")
    with path.open("r+b") as file:
        file.seek(start + first)
        file.write(data)


def _is_other_weight(path: Path) -> bool:
    return path.suffix in _OTHER_WEIGHTS or (path.name.endswith(".index.json") and path.name != INDEX)
