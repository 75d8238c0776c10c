"""Commands about servers and this installation: `probe`, `export` and `env`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.console import info, show
from semcal.errors import ServerError
from semcal.files import dumps, user_cache
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.servers.protocol import ServerProfile

#: The remedy against truncation of the distribution, by server.
UNCUT = {
    "vLLM": "start vLLM with --generation-config vllm",
    "Ollama": "set PARAMETER top_k 1000000, top_p 1 and min_p 0 in the Modelfile",
}
#: Default number of samples for each question.
DRAWS = 10
SNIPPET = """\
{origin}
from semcal.export import TemperatureProcessor
from transformers import LogitsProcessorList

processors = LogitsProcessorList([TemperatureProcessor({temperature!r})])
sampling = {{"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
output = model.generate(**inputs, logits_processor=processors, max_new_tokens=32, **sampling)
"""


def probe(
    url: str = Argument(
        "openai:",
        metavar="URL",
        help="Address of the server, such as http://127.0.0.1:8000/v1, with #NAME for one of its models. "
        "openai: stands for the address in the variable OPENAI_BASE_URL.",
    ),
    fresh: bool = Option(False, "--fresh", help="Probe again instead of using the stored profile."),
    api_key_file: Path | None = Option(None, metavar="FILE", help=opt.API_KEY_FILE.help),
    timeout: float = opt.TIMEOUT,
    json: bool = opt.JSON,
) -> int:
    """Find out the capabilities of a model server with a few dozen small requests.

    Prints the capabilities and their consequences: the measures and fits that are available, and remedies
    for missing capabilities. The result is stored until the version of the server changes. After a change of
    the server's options, pass --fresh. The API key is read from SEMCAL_API_KEY or --api-key-file.
    """
    from semcal.servers.client import ServerClient
    from semcal.servers.probing import stored_profile
    from semcal.servers.settings import Endpoint, ServerSettings, read_api_key

    settings = ServerSettings(api_key=read_api_key(api_key_file), timeout=timeout, announce=info)
    with ServerClient(Endpoint.parse(url), settings) as client:
        profile = stored_profile(client, fresh=fresh)
        info(f"probe: {client.usage.requests} requests")
    findings, consequences = asdict(profile), dict(_consequences(profile))
    if json or not sys.stdout.isatty():
        show(dumps({**findings, "consequences": consequences}))
        return 0
    for name, value in (findings | consequences).items():
        show(f"{name:<30}{value}")
    return 0


def _consequences(profile: ServerProfile) -> Iterator[tuple[str, str]]:
    from semcal.servers.sampler import choose_route, knows_log_probs, why_unknown

    if profile.truncated_to:
        remedy = UNCUT.get(profile.server, "switch truncation off at the server")
        accepted = "record the cut with --config server.allow_truncation=true"
        yield "sampling", f"rejected, because the distribution is truncated; {remedy}, or {accepted}"
    else:
        requests = ceil(DRAWS / profile.together)
        yield "sampling", f"{DRAWS} samples of a question take {requests} request{'s'[: requests > 1]}"
    at_one, at_others = (knows_log_probs(profile, temperature) for temperature in (1.0, 2.0))
    cut = (
        "; answers that are a part of a reply need --config server.tokenizer=DIR"
        if at_one and profile.token_ids_in
        else ""
    )
    if at_others:
        yield "measures", f"all at every T{cut}"
    elif at_one:
        yield "measures", f"all at T = 1{cut}; only E-SC at other T: {why_unknown(profile, 2.0)}"
    else:
        yield "measures", f"only E-SC: {why_unknown(profile, 1.0)}"
    samples = "semcal calibrate; semcal fit --method TS-grid"
    try:
        exact = f"semcal fit --config server.tokenizer=DIR (exact T, by {choose_route(profile)})"
        yield "fits", f"{samples}; {exact}"
    except ServerError as error:
        yield "fits", f"{samples}. No exact T: {error}"


def export(
    recalibrator: str = Argument(
        metavar="RECALIBRATOR", help="Directory that semcal fit wrote, or a hub id."
    ),
    format: str = Option(
        "temperature",
        help="Format: temperature (JSON) or logits-processor (Python).",
    ),
    json: bool = opt.JSON,
) -> int:
    """Print a fitted temperature for another program that runs the model.

    The default output is JSON with T and the model, prompt and data of the fit. With --format
    logits-processor, it is a script for transformers. docs/export.md lists the settings of each server.
    """
    from semcal.recalibration.files import from_pretrained
    from semcal.recalibration.recalibrators import single_temperature, solver_of

    check_name(format, ("temperature", "logits-processor"), what="format")
    fitted, provenance = from_pretrained(recalibrator)
    temperature = single_temperature(fitted)
    belonging = (
        f"T = {temperature:g} is valid for {provenance.model} (revision {provenance.revision}) with the "
        "prompt of the fit; nothing else may divide the logits"
    )
    if format == "logits-processor":
        comment = fill(belonging, 100, initial_indent="# ", subsequent_indent="# ")
        text = SNIPPET.format(origin=comment, temperature=temperature)
        show(dumps({"format": format, "text": text}) if json else text.rstrip())
        return 0
    info(f"export: {belonging}")
    names = ("model", "revision", "prompt_hash", "data", "data_hash", "n_questions")
    found_by = {"solver": solver} if (solver := solver_of(fitted)) else {}
    origin = {name: getattr(provenance, name) for name in names}
    show(dumps({"temperature": temperature, **found_by, **origin}, indent=None if json else 2))
    return 0


def env(json: bool = opt.JSON) -> int:
    """Print versions, devices and folders for a bug report."""
    from semcal.demo.paths import language_model_dir, nli_model_dir
    from semcal.workers import environment

    unpacked = user_cache("gguf")
    size = sum(path.stat().st_size for path in unpacked.rglob("*") if path.is_file())
    folders = (language_model_dir(), nli_model_dir())
    facts = {
        **environment(),
        **_devices(),
        "cache": str(user_cache("")),
        "unpacked GGUFs": {"in": str(unpacked), "bytes": size, "to clear": f"rm -r {unpacked}"},
        "embedded models": {folder.name: (folder / "model.safetensors").is_file() for folder in folders},
    }
    if json or not sys.stdout.isatty():
        show(dumps(facts))
        return 0
    for name, value in facts.items():
        lines = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in lines:
            show(f"{name + (f' {key}' if key else ''):<28} {item if item not in (None, []) else 'none'}")
    return 0


def _devices() -> dict[str, object]:
    """Return the threads and the GPUs of PyTorch; empty if it is not installed."""
    if find_spec("torch") is None:
        return {}
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"threads": torch.get_num_threads(), "cuda": names}
