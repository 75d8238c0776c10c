"""`semcal export`: write a fitted temperature for the program that runs the model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from json import loads
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import Output, info, show, warn
from semcal.errors import UsageError
from semcal.records import dumps, own_files, writing
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.export.checkpoint import Checkpoint
    from semcal.recalibration.provenance import Provenance
    from semcal.recalibration.saving import Fitted

#: Larger temperatures are refused by many OpenAI-style servers.
OPENAI_MAX = 2.0
SNIPPET = """\
{origin}
from semcal.export import TemperatureProcessor
from transformers import LogitsProcessorList

processors = LogitsProcessorList([TemperatureProcessor({temperature!r}, model=model)])
sampling = {{"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
output = model.generate(**inputs, logits_processor=processors, max_new_tokens=32, **sampling)
"""


RecalibratorArgument = Annotated[
    str, typer.Argument(metavar="RECALIBRATOR", help="Directory that semcal fit wrote, or a hub id.")
]
FormatOption = Annotated[
    str | None,
    typer.Option(help="generation-config, logits-processor, openai, vllm, sglang, llama.cpp or ollama."),
]
FoldOption = Annotated[
    bool, typer.Option("--fold", help="Copy the checkpoint of --model to --out, T folded into its weights.")
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
    format: FormatOption = None,
    fold: FoldOption = False,
    model: FittedModelOption = None,
    out: FolderOption = None,
    overwrite: opt.OverwriteOption = False,
    force: opt.ForceOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    dry_run: opt.DryRunOption = False,
) -> int:
    """Hand a fitted temperature over to the program that runs the model.

    As sampling settings with everything that truncates switched off, as a logits processor for
    transformers, or (--fold) as a checkpoint whose logits are divided by T already.
    """
    from semcal.export.sampling_parameters import SERVERS, origin
    from semcal.recalibration.saving import from_pretrained
    from semcal.recalibration.temperature import single_temperature, solver_of

    if (format is None) != fold:
        raise UsageError("give either --format NAME or --fold --model DIR --out DIR")
    if format is not None:
        check_name(format, ("generation-config", "logits-processor", *SERVERS), what="format")
    fitted, provenance = from_pretrained(recalibrator)
    temperature = single_temperature(fitted)
    note = origin(temperature, provenance, solver=solver_of(fitted))
    _warn_of_steps(fitted)
    checkpoint = _open(model, provenance, force=force)
    if format is None:
        if checkpoint is None or out is None:
            raise UsageError("--fold needs the checkpoint (--model DIR) and where its copy goes (--out DIR)")
        if dry_run:
            return _fold_plan(temperature, checkpoint, out)
        how = {"device": device, "dtype": dtype or "float32", "overwrite": overwrite}
        return _fold(checkpoint, out, as_json=json, temperature=temperature, origin=note, **how)
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
    """A folder for files of this command alone, or the copy of a checkpoint."""
    out = options["out"]
    if out is None:
        return None
    if options["fold"]:
        from semcal.export.checkpoint import is_folded

        return Output(
            out, is_folder=True, inside=False, replaceable=is_folded(out), holds="a folded checkpoint already"
        )
    from semcal.export.sampling_parameters import SERVERS

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


def _open(model: str | None, provenance: Provenance, *, force: bool) -> Checkpoint | None:
    """The checkpoint of --model: the one that was fitted on, with no temperature folded in."""
    from semcal.export.checkpoint import open_checkpoint, refuse_folded

    if model is None:
        return None
    checkpoint = open_checkpoint(model)
    refuse_folded(checkpoint.config)
    if not force:
        provenance.check(model=checkpoint.name, revision=checkpoint.revision)
    return checkpoint


def _content(
    format: str,
    temperature: float,
    note: Mapping[str, Any],
    provenance: Provenance,
    checkpoint: Checkpoint | None,
) -> tuple[str, str]:
    """Name and text of the file that says T in this format."""
    from semcal.export.sampling_parameters import generation_config, request_parameters

    if format == "logits-processor":
        belonging = _belonging(temperature, provenance, provenance.revision)
        comment = fill(belonging, 100, initial_indent="# ", subsequent_indent="# ")
        return "logits_processor.py", SNIPPET.format(origin=comment, temperature=temperature)
    if format == "generation-config":
        own = checkpoint.special_tokens() if checkpoint else None
        content = generation_config(temperature, checkpoint=own, comment=note)
        return "generation_config.json", dumps(content, indent=2) + "\n"
    return f"{format}.json", dumps(request_parameters(format, temperature), indent=2) + "\n"


def _belonging(temperature: float, provenance: Provenance, revision: str) -> str:
    """What T must not be parted from."""
    return (
        f"T = {temperature:g} belongs to {provenance.model} (revision {revision}) and to the prompt that it "
        "was fitted with; nothing else may divide the logits"
    )


def _note(format: str, temperature: float, provenance: Provenance, checkpoint: Checkpoint | None) -> None:
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


def _fold_plan(temperature: float, checkpoint: Checkpoint, out: Path) -> int:
    size = checkpoint.size() / 1e9
    warn(
        f"would copy {checkpoint.name} ({size:.2f} GB) to {out} with T = {temperature:g} folded in, and "
        "compare the logits of both"
    )
    return 0


def _fold(checkpoint: Checkpoint, out: Path, *, as_json: bool, **how: Any) -> int:
    """Fold T into a copy of the checkpoint, and print where and how exactly."""
    from semcal.export.folding import fold

    done = fold(checkpoint, out, **how)
    if done.left_out:
        info(f"export: not copied, for T is not folded into them: {', '.join(done.left_out)}")
    if as_json or not sys.stdout.isatty():
        show(dumps({**asdict(done), "directory": str(done.directory)}))
    else:
        show(
            f"T = {done.temperature:.4f} is folded into {', '.join(done.changed)}\n"
            f"largest error of the logits, relative to their scale: {done.error:.1e} "
            f"(allowed: {done.tolerance:.0e})\nwritten to {done.directory}; sample from it at temperature 1"
        )
    return 0
