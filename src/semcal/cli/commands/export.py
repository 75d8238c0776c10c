"""`semcal export`: write a fitted temperature for the program that runs the model."""

from __future__ import annotations

from collections.abc import Mapping
from json import loads
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import Output, info, show, warn
from semcal.errors import UsageError
from semcal.files import dumps, own_files, writing
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.export import CheckpointSettings
    from semcal.recalibration.provenance import Provenance
    from semcal.recalibration.saving import Fitted

#: Larger temperatures are refused by many OpenAI-style servers.
OPENAI_MAX = 2.0
SNIPPET = """\
{origin}
from semcal.export import TemperatureProcessor
from transformers import LogitsProcessorList

processors = LogitsProcessorList([TemperatureProcessor({temperature!r})])
sampling = {{"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
output = model.generate(**inputs, logits_processor=processors, max_new_tokens=32, **sampling)
"""


RecalibratorArgument = Annotated[
    str, typer.Argument(metavar="RECALIBRATOR", help="Directory that semcal fit wrote, or a hub id.")
]
FormatOption = Annotated[
    str,
    typer.Option(help="generation-config, logits-processor, openai, vllm, sglang, llama.cpp or ollama."),
]
FittedModelOption = Annotated[
    str | None, typer.Option("--model", metavar="DIR", help="The model that it was fitted on.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", callback=opt.out_path, help="Write into this directory instead of stdout."
    ),
]


def command(
    recalibrator: RecalibratorArgument,
    format: FormatOption,
    model: FittedModelOption = None,
    out: FolderOption = None,
    overwrite: opt.OverwriteOption = False,
    force: opt.ForceOption = False,
    json: opt.JsonOption = False,
    dry_run: opt.DryRunOption = False,
) -> int:
    """Hand a fitted temperature over to the program that runs the model.

    As sampling settings with everything that truncates switched off, or as a logits processor for
    transformers.
    """
    from semcal.export import SERVERS, origin
    from semcal.recalibration.saving import from_pretrained
    from semcal.recalibration.temperature import single_temperature, solver_of

    check_name(format, ("generation-config", "logits-processor", *SERVERS), what="format")
    fitted, provenance = from_pretrained(recalibrator)
    temperature = single_temperature(fitted)
    note = origin(temperature, provenance, solver=solver_of(fitted))
    _warn_of_steps(fitted)
    checkpoint = _open(model, provenance, force=force)
    name, text = _content(format, temperature, note, provenance, checkpoint)
    if dry_run:
        warn(f"would write T = {temperature:g} as {format} to {'stdout' if out is None else out / name}")
        return 0
    _note(format, temperature, provenance, checkpoint)
    if out is None:
        show(_line(format, name, text) if json else text.rstrip())
    else:
        _write(out / name, text)
        show(dumps({"files": [str(out / name)]}) if json else str(out / name))
    return 0


def output_of(options: Mapping[str, Any]) -> Output | None:
    """A folder for files of this command alone."""
    out = options["out"]
    if out is None:
        return None
    from semcal.export import SERVERS

    own = {"generation_config.json", "logits_processor.py", *(f"{server}.json" for server in SERVERS)}
    begun = out.is_dir() and all(path.name in own for path in own_files(out))
    return Output(out, is_folder=True, begun=begun)


def _line(format: str, name: str, text: str) -> str:
    """The file as one line of JSON."""
    return dumps(loads(text) if name.endswith(".json") else {"format": format, "text": text})


def _warn_of_steps(fitted: Fitted) -> None:
    """Say so if T was reached by gradient steps and is not the optimum."""
    steps, temperature = getattr(fitted, "sgd_", None), getattr(fitted, "temperature_", None)
    if steps is not None and temperature is not None:
        warn(
            f"warning: T = {temperature:g} is what {steps.steps} gradient steps reached, "
            f"{steps.distance(temperature):.3g} in log T from the optimum of its loss, "
            f"{steps.exact_temperature:g}; `semcal fit` without --solver sgd finds that"
        )


def _open(model: str | None, provenance: Provenance, *, force: bool) -> CheckpointSettings | None:
    """The settings of --model, which is the one that was fitted on."""
    from semcal.export import read_checkpoint_settings

    if model is None:
        return None
    checkpoint = read_checkpoint_settings(model)
    if not force:
        provenance.check(model=checkpoint.name, revision=checkpoint.revision)
    return checkpoint


def _content(
    format: str,
    temperature: float,
    note: Mapping[str, Any],
    provenance: Provenance,
    checkpoint: CheckpointSettings | None,
) -> tuple[str, str]:
    """Name and text of the file that says T in this format."""
    from semcal.export import generation_config, request_parameters

    if format == "logits-processor":
        belonging = _belonging(temperature, provenance, provenance.revision)
        comment = fill(belonging, 100, initial_indent="# ", subsequent_indent="# ")
        return "logits_processor.py", SNIPPET.format(origin=comment, temperature=temperature)
    if format == "generation-config":
        own = checkpoint.generation_config if checkpoint else None
        content = generation_config(temperature, checkpoint=own, comment=note)
        return "generation_config.json", dumps(content, indent=2) + "\n"
    return f"{format}.json", dumps(request_parameters(format, temperature), indent=2) + "\n"


def _belonging(temperature: float, provenance: Provenance, revision: str) -> str:
    """What T must not be parted from."""
    return (
        f"T = {temperature:g} belongs to {provenance.model} (revision {revision}) and to the prompt that it "
        "was fitted with; nothing else may divide the logits"
    )


def _note(
    format: str, temperature: float, provenance: Provenance, checkpoint: CheckpointSettings | None
) -> None:
    """Say on stderr what the format has no room for."""
    info(f"export: {_belonging(temperature, provenance, provenance.revision[:19])}")
    if format == "generation-config" and checkpoint is None:
        warn(
            "warning: no special tokens are in this generation config, so generation may not end where it "
            "should; give the checkpoint with --model"
        )
    if format == "openai" and temperature > OPENAI_MAX:
        warn(f"warning: T = {temperature:g}, and many OpenAI-style servers refuse more than {OPENAI_MAX:g}")


def _write(path: Path, text: str) -> None:
    """Write the file; a generation config that is not ours is not replaced."""
    if path.name == "generation_config.json" and path.is_file() and '"semcal"' not in path.read_text("utf-8"):
        raise UsageError(
            f"{path} is there already and semcal did not write it; name another directory, or move it away"
        )
    with writing(path) as handle:
        handle.write(text)
