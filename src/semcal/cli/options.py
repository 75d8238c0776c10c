"""The options that commands share, each defined once, and the models, recalibrators and graders they name.

Used as `from semcal.cli import options as opt`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from semcal.cli.console import info, loading
from semcal.errors import RowError, UsageError, printable, shown
from semcal.models.equivalence import DEFAULT, names_a_server
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.calibration.calibrated import Calibration
    from semcal.data.question import Question
    from semcal.grading.rules import Grader
    from semcal.hub_names import Location
    from semcal.models.equivalence import Equivalence
    from semcal.models.language_model import PromptConfig, Sampler
    from semcal.recalibration.attentive import AnyRecalibrator
    from semcal.servers.settings import ServerSettings
    from semcal.steps import WorkerState

#: The embedded models, in --model, --equivalence and --recalibrator.
ATLAS = "atlas"
#: Counts are below this, and seeds (of 62 bits) below the square of it: what arrays and files can hold.
LARGEST = 2**31


def out_path(path: Path | None) -> Path | None:
    """Refuse an output path whose grandparent folder does not exist either: it is misspelt."""
    if path is not None and not path.parent.exists() and not path.parent.parent.exists():
        reason = f"neither {path.parent} nor {path.parent.parent} exists"
        remedy = f"check the path, or make the folder first (mkdir -p {path.parent})"
        raise typer.BadParameter(printable(f"{reason}; {remedy}"))
    return path


def countable(count: int | None) -> int | None:
    """Refuse a count that is too large for an array."""
    return _below(count, LARGEST)


def _seed(seed: int | None) -> int | None:
    return _below(seed, LARGEST**2)


def _below(number: int | None, limit: int) -> int | None:
    if number is not None and number >= limit:
        raise typer.BadParameter(f"{shown(number)} is too large; give a number below {limit}")
    return number


def _share(share: float | None) -> float | None:
    if share is not None and not 0 < share < 1:
        raise typer.BadParameter(f"{shown(share)} is no share; give a number between 0 and 1, such as 0.1")
    return share


RowsArgument = Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines, or - for standard input.")]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="OURS=THEIRS",
        help="The name of a column in FILE: question=Frage; may be repeated.",
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, callback=_seed, help="Random seed.")]
KeptSeedOption = Annotated[
    int | None,
    typer.Option("--seed", min=0, callback=_seed, help="Random seed: 0 by default, or that of kept samples."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, callback=countable, help="Stop after this many rows; bad ones count as well."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        callback=out_path,
        help="Write here instead of stdout; the file appears whole or not at all.",
    ),
]
ApiKeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", metavar="FILE", help="Its first line is the server's key, else SEMCAL_API_KEY."
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", help="How long a try of a request to a server may take."),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace what exists at --out; otherwise that is refused.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON, one object a line.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no notes on stderr.")]
VerboseOption = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Print more on stderr: processes, memory, times."),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 or mps; the best available by default.")
]
NliDeviceOption = Annotated[
    str | None,
    typer.Option("--nli-device", help="Where the NLI model runs, if not on the language model's device."),
]
DtypeOption = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start again instead of resuming.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Apply a fit that was made on another model or prompt.")
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for keys and values of a batch in each process, such as 500MB or 2GB.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        callback=countable,
        metavar="N",
        help="Worker processes, each of one thread; by default chosen by the models' size.",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Hugging Face directory or id, or openai:URL#NAME of a server; atlas is the embedded model.",
    ),
]
EquivalenceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="default, the embedded model for real text; exact, equality of normal forms; or an NLI model "
        "(directory or id of a cross-encoder with a label entailment, such as microsoft/deberta-large-mnli). "
        "openai:URL#MODEL asks a language model, http://HOST a cross-encoder behind "
        "text-embeddings-inference.",
    ),
]
GraderOption = Annotated[
    str,
    typer.Option(
        metavar="GRADER",
        help="rules; nli (by --equivalence); judge:openai:URL#MODEL, a language model that judges what the "
        "rules call wrong. Its API key, and that of --equivalence: SEMCAL_JUDGE_API_KEY, else the model's.",
    ),
]
LinkageOption = Annotated[str, typer.Option(help="components, greedy or complete.")]
MergeRefusalsOption = Annotated[
    bool, typer.Option("--merge-refusals", help="Count all refusals to answer as one meaning.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", metavar="FILE", help="Keep NLI verdicts in this file, for later runs."),
]
FewShotOption = Annotated[
    Path | None,
    typer.Option("--few-shot", metavar="FILE", help="Answered questions that are put before each question."),
]
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        callback=countable,
        help="Longest generation: 10 tokens closed book, 32 open book by default.",
    ),
]
SamplesOption = Annotated[
    int, typer.Option("--m", min=1, callback=countable, help="Answers to sample for each question.")
]
TAlphaOption = Annotated[float, typer.Option("--t-alpha", help="The parameter a of T-SC.")]
GAlphaOption = Annotated[float, typer.Option("--g-alpha", help="The parameter a of G-SC.")]
RecalibratorOption = Annotated[
    str | None,
    typer.Option(
        "--recalibrator",
        metavar="DIR",
        help="Written by semcal fit, or a hub id; atlas is the embedded model's.",
    ),
]
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="DIR",
        help="Written by semcal calibrate, or a hub id; atlas is the embedded model's.",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", metavar="T", help="A temperature instead; 1 is Base, 0.5 is SE."),
]
RiskOption = Annotated[
    float | None,
    typer.Option(
        "--risk",
        metavar="R",
        callback=_share,
        help="Find the threshold above which at most this share of answers is wrong, with confidence "
        "1 − delta; of questions that nothing else was fitted on.",
    ),
]
DeltaOption = Annotated[
    float,
    typer.Option("--delta", callback=_share, help="How often the limit of --risk may be exceeded after all."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as semcal run writes it.")]


def add_options(
    run: Callable[..., Any], command: Callable[..., Any], further: Mapping[str, Any], *, instead_of: str = ""
) -> None:
    """Give `run`, which calls a command, that command's options, and further ones that it lacks."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [item for item in signature.parameters.values() if item.name != instead_of]
    parameters += [
        inspect.Parameter(
            name, parameters[0].kind, default=False if get_args(kind)[0] is bool else None, annotation=kind
        )
        for name, kind in further.items()
        if name not in signature.parameters
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


def open_model(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    memory: str | None = None,
    settings: ServerSettings | None = None,
) -> Sampler:
    """Load a language model, or connect to one behind a server."""
    with loading():
        if names_a_server(name):
            for option, value in (("--dtype", dtype), ("--memory", memory)):
                if value is not None:
                    raise UsageError(f"{option} is for a model that runs here; leave it out")
            from semcal.servers.sampler import load_server

            return load_server(name, settings)
        from semcal.models.loading import load_model

        return load_model(name, device=device, dtype=dtype, memory=memory)


def open_equivalence(
    name: str | None,
    *,
    device: str | None = None,
    cache: Path | None = None,
    settings: ServerSettings | None = None,
) -> Equivalence:
    """Load an equivalence: the embedded model by default, exact, an NLI model, or a server."""
    with loading():
        from semcal.models.loading import load_equivalence

        return load_equivalence(named_equivalence(name), device=device, cache=cache, settings=settings)


def named_equivalence(name: str | None) -> str:
    """Return the name of an equivalence; where none is given that of the embedded model, which it says."""
    if name is None:
        info(f"answers are grouped by the embedded equivalence model (--equivalence {DEFAULT})")
    return name or DEFAULT


def open_models(
    model: str | None,
    equivalence: str | None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    memory: str | None = None,
    nli_device: str | None = None,
    cache: Path | None = None,
    settings: ServerSettings | None = None,
) -> WorkerState:
    """Load the models that a worker needs: either, or both."""
    with loading():
        from semcal.steps import WorkerState

        return WorkerState(
            None
            if model is None
            else open_model(model, device=device, dtype=dtype, memory=memory, settings=settings),
            None
            if equivalence is None
            else open_equivalence(equivalence, device=nli_device or device, cache=cache, settings=settings),
        )


def weights_of(*, model: str | None = None, equivalence: str | None = None) -> int | None:
    """Bytes of the weights of models that are named as in the options; None if one is not on this disk."""
    from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, locate
    from semcal.workers import on_disk

    if names_a_server(model) or names_a_server(equivalence):
        return None
    places = [] if model is None else [locate(model, LANGUAGE_MODEL)]
    places += [] if equivalence in (None, "exact") else [locate(equivalence, NLI_MODEL)]
    sizes = [on_disk(folder) if (folder := _folder(place)) else 0 for place in places]
    return sum(sizes) if all(sizes) else None


def _folder(place: Location) -> Path | None:
    """The directory of a checkpoint: its own, or that of the hub's cache or of unpacked models."""
    if place.gguf:
        from semcal.models.loading import unpacked_folder

        return unpacked_folder(Path(place.source), "float32")[0]
    if not place.on_hub:
        return Path(place.source)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(place.source, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def open_grader(
    name: str, *, rouge: bool = False, cache: Path | None = None, settings: ServerSettings | None = None
) -> Grader | str:
    """Return the grader by rules or by a judge; or "nli", which takes an equivalence (`as_grader`)."""
    from semcal.grading.grade import GRADERS
    from semcal.grading.rules import RuleGrader

    if name.startswith("judge:"):
        from semcal.grading.judge import load_judge

        return load_judge(name, rules=RuleGrader(rouge=rouge), settings=settings, cache=cache)
    nli = check_name(name, GRADERS, what="grader") == "nli"
    return name if nli else RuleGrader(rouge=rouge)


def open_few_shot(path: Path | None) -> tuple[Question, ...] | None:
    """Read answered examples from a file; None without one."""
    if path is None:
        return None
    from semcal.data.datasets import load_questions

    try:
        return tuple(load_questions(path, answers_needed=True))
    except RowError as error:
        raise UsageError(f"the few-shot examples in {path}: {error}") from error


def open_calibration(name: str) -> Calibration:
    """Load a calibration."""
    with loading():
        from semcal.calibration.calibrated import Calibration

        return Calibration.from_pretrained(name)


def open_recalibrator(
    model: Sampler, name: str | None, temperature: float | None, few_shot: Path | None, *, force: bool
) -> tuple[AnyRecalibrator, PromptConfig]:
    """Return the recalibrator that the options name, checked against the model, and the prompt to use."""
    from semcal.recalibration.fitting import recalibrator_and_prompt

    if name is not None and temperature is not None:
        raise UsageError("give --recalibrator or --temperature, not both")
    recalibrator = temperature if name is None else name
    return recalibrator_and_prompt(model, recalibrator, open_few_shot(few_shot), force=force)


# ---- Servers -----------------------------------------------------------------------------------------------

ServerOptions = Mapping[str, Any]
"""The options of servers that a command was given."""
NO_SERVER: ServerOptions = MappingProxyType({})


def _server_option(kind: Any, name: str, metavar: str, text: str) -> Any:
    callback = countable if kind is int else None
    return Annotated[kind | None, typer.Option(name, metavar=metavar, callback=callback, help=text)]


SERVER_OPTIONS: dict[str, Any] = {
    "tokenizer": _server_option(
        str, "--tokenizer", "DIR", "The server's model as a directory or hub id: token ids are sent."
    ),
    "api_key_file": ApiKeyFileOption,
    "concurrency": _server_option(
        int, "--concurrency", "N", "Requests to a server at a time: 16 by default."
    ),
    "retries": _server_option(
        int, "--retries", "N", "How often a request that fails is tried again: 5 by default."
    ),
    "timeout": _server_option(float, "--timeout", "SECONDS", "How long a try may take: 120 by default."),
    "allow_truncation": Annotated[
        bool,
        typer.Option("--allow-truncation", help="Sample although a server truncates; it is recorded."),
    ],
    "max_tokens_total": _server_option(
        int, "--max-tokens-total", "N", "Stop before servers have read and written more tokens, all together."
    ),
    "max_cost": _server_option(float, "--max-cost", "COST", "Stop before more is spent, by the prices."),
    "price_in": _server_option(float, "--price-in", "PRICE", "Of a million prompt tokens."),
    "price_out": _server_option(float, "--price-out", "PRICE", "Of a million completion tokens."),
}


def server_settings(options: ServerOptions, *names: str | None) -> ServerSettings | None:
    """How servers are asked; without a server among the names None, and UsageError for an option of one."""
    chosen = {name: value for name, value in options.items() if value is not None and value is not False}
    if not any(names_a_server(name) for name in names):
        for name in chosen:
            raise UsageError(
                f"--{name.replace('_', '-')} is for a model behind a server (openai:URL#NAME); leave it out"
            )
        return None
    from semcal.servers.settings import JUDGE_KEY_VARIABLE, Endpoint, ServerSettings, read_api_key

    key = read_api_key(chosen.pop("api_key_file", None))
    hosts = {Endpoint.parse(name).host: None for name in names if name is not None and names_a_server(name)}
    if key is not None and len(hosts) > 1 and JUDGE_KEY_VARIABLE not in os.environ:
        raise UsageError(
            f"the API key would be sent to {' and '.join(hosts)}; give what decides on meanings and grades "
            f"its own by {JUDGE_KEY_VARIABLE} (empty: none)"
        )
    return ServerSettings(api_key=key, **chosen)
