"""`semcal env`: versions, devices and folders of this installation."""

from __future__ import annotations

import sys
from typing import Any

from semcal.cli import options as opt
from semcal.cli.console import loading, show
from semcal.files import dumps, user_cache

#: Facts that only PyTorch knows, which takes seconds to load.
UNKNOWN = "not looked up; see semcal env -v"


def command(json: opt.JsonOption = False, verbose: opt.VerboseOption = False) -> int:
    """Print versions, devices and folders, for a bug report.

    With -v PyTorch is loaded, and its threads and GPUs are printed too.
    """
    from semcal.demo.paths import language_model_dir, nli_model_dir
    from semcal.installation import environment

    found: dict[str, Any] = environment()
    found |= _devices() if verbose else {"threads": UNKNOWN, "cuda": UNKNOWN}
    found["cache"] = str(user_cache(""))
    unpacked = user_cache("gguf")
    size = sum(one.stat().st_size for one in unpacked.rglob("*") if one.is_file())
    found["unpacked GGUFs"] = {"in": str(unpacked), "bytes": size, "to clear": f"rm -r {unpacked}"}
    found["embedded models"] = {
        path.name: (path / "model.safetensors").is_file() for path in (language_model_dir(), nli_model_dir())
    }
    if json or not sys.stdout.isatty():
        show(dumps(found))
        return 0
    for name, value in found.items():
        lines = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in lines:
            show(f"{name + (f' {key}' if key else ''):<28} {item if item not in (None, []) else 'none'}")
    return 0


def _devices() -> dict[str, Any]:
    """What PyTorch says of this machine."""
    with loading():
        import torch

        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"threads": torch.get_num_threads(), "cuda": names}
