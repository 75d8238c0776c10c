"""`semcal env`: what this machine runs semcal with."""

from __future__ import annotations

import sys
from typing import Any

import typer

from semcal.cli.console import loading
from semcal.cli.options import JsonOption, QuietOption, VerboseOption
from semcal.records import dumps

__all__ = ["command"]


#: What PyTorch alone can tell, which takes seconds to load.
UNKNOWN = "not looked up; see semcal env -v"


def command(json: JsonOption = False, quiet: QuietOption = False, verbose: VerboseOption = False) -> int:
    """Print versions, devices and folders: what to put into a bug report.

    With -v PyTorch is loaded and asked for its threads and GPUs.
    """
    from semcal.demo.paths import language_model_dir, nli_model_dir
    from semcal.experiment.environment import environment

    found: dict[str, Any] = environment()
    found |= _devices() if verbose else {"threads": UNKNOWN, "cuda": UNKNOWN}
    found["embedded models"] = {
        path.name: (path / "model.safetensors").is_file() for path in (language_model_dir(), nli_model_dir())
    }
    if json or not sys.stdout.isatty():
        typer.echo(dumps(found))
        return 0
    for name, value in found.items():
        lines = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in lines:
            typer.echo(
                f"{name + (f' {key}' if key else ''):<28} {item if item not in (None, []) else 'none'}"
            )
    return 0


def _devices() -> dict[str, Any]:
    """What PyTorch says of this machine."""
    with loading():
        import torch

        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"threads": torch.get_num_threads(), "cuda": names}
