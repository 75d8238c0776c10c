"""The shared options of commands, each defined once, and functions that open models, workers and graders.

Used as `from semcal.cli import options as opt`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import typer
from typer import Argument, Option
from typer.models import OptionInfo

from semcal.cli.config_file import (
    FileSetting,
    default_of,
    panel_of,
    read_settings,
    setting,
)
from semcal.cli.console import debug, info, show, spending
from semcal.errors import InputError, ModelError, RowError, UsageError, shown
from semcal.files import read_object
from semcal.hub_names import FIELD_CALIBRATION
from semcal.models.equivalence import AMONG, DEFAULT, EQUIVALENCES, ExactMatch, names_a_server, needs_no_model
from semcal.registry import check_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from semcal.calibration.calibration import Calibration
    from semcal.calibration.fields import FieldCalibration
    from semcal.data.question import Question
    from semcal.fields.schema import Schema
    from semcal.grading.rules import Grader
    from semcal.hub_names import Location
    from semcal.models.clustering import ClusterConfig
    from semcal.models.equivalence import Equivalence
    from semcal.models.prompting import PromptConfig
    from semcal.models.protocols import AnyRecalibrator, Sampler
    from semcal.models.sample import SampleStep, SamplingConfig
    from semcal.rows import AnswerKind
    from semcal.servers.settings import ServerSettings
    from semcal.steps import WorkerState
    from semcal.workers import Executor, WorkerPlan

_Options = TypeVar("_Options", bound="DataclassInstance")
_State = TypeVar("_State")
_Item = TypeVar("_Item")

#: The name of the embedded models in --model, --equivalence, --recalibrator and --calibration.
ATLAS = "atlas"
#: Pairs of options that exclude each other. One on the command line overrides the other in the file.
_ALTERNATIVES = {"recalibrator": "temperature", "equivalence": "answers_among"}
#: The placeholder of an option's value in help, by its type.
_PLACEHOLDERS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
#: The limit of counts; that of seeds (62 bits) is its square. Arrays and files hold no larger numbers.
LARGEST = 2**31


def countable(count: int | None) -> int | None:
    """Reject a count that is too large for an array."""
    return _below(count, LARGEST)


def _seed(seed: int | None) -> int | None:
    return _below(seed, LARGEST**2)


def _below(number: int | None, limit: int) -> int | None:
    if number is not None and number >= limit:
        raise typer.BadParameter(f"{shown(number)} is too large; choose a number below {limit}")
    return number


def share(value: Any) -> Any:
    """Reject a number that is not between 0 and 1, also in a list."""
    for one in value if isinstance(value, list) else [value]:
        if one is not None and not 0 < one < 1:
            raise typer.BadParameter(f"{shown(one)} is not between 0 and 1; choose a share such as 0.1")
    return value


def folder_option(text: str, default: Any = None) -> Any:
    """Declare the --out of a command that writes into a folder."""
    return Option(default, "--out", metavar="DIR", help=text)


ROWS = Argument(metavar="FILE", help="File of rows (JSON Lines), or - for standard input.")
COLUMNS = Option(
    None,
    metavar="OURS=THEIRS",
    help="Name of a column in FILE, such as question=Frage; may be repeated.",
)
SEED = Option(0, min=0, callback=_seed, help="Random seed.")
RARE_SEED = setting(0, min=0, callback=_seed, help="Random seed (default: 0).")
KEPT_SEED = setting(
    min=0, callback=_seed, help="Random seed (default: 0, or the seed of the stored samples)."
)
LIMIT = Option(
    None, min=1, callback=countable, help="Largest number of rows to read, including bad rows (default: all)."
)
OUT = Option(None, help="File to write instead of standard output. It is written completely or not at all.")
API_KEY_FILE = setting(
    help="File whose first line is the API key of the server (default: the variable SEMCAL_API_KEY)."
)
TIMEOUT = Option(120.0, metavar="SECONDS", help="Largest duration of one attempt of a request, in seconds.")
OVERWRITE = Option(
    False, "--overwrite", help="Replace existing files at --out, which are rejected otherwise."
)
JSON = Option(False, "--json", help="Print results as JSON, one object per line.")
QUIET = Option(
    False, "-q", "--quiet", help="Print only errors and bad rows on stderr: no progress, notes or warnings."
)
VERBOSE = Option(False, "-v", "--verbose", help="Print more on stderr: processes, memory and times.")
CONFIG = Option(
    None,
    "--config",
    metavar="FILE",
    help="YAML file of settings and options (docs/reference/config.md), or one setting as SECTION.KEY=VALUE, "
    "such as model.dtype=bfloat16; may be repeated.",
)
DEVICE = Option(None, help="Device of the models: cpu, cuda, cuda:1 or mps (default: the best available).")
RARE_DEVICE = setting(help=DEVICE.help)
NLI_DEVICE = setting(help="Device of the NLI model (default: that of the language model).")
DTYPE = setting(
    help="Number format of the weights: float32, bfloat16 or float16 (default: float32 on a CPU, elsewhere "
    "the format of the file)."
)
DRY_RUN = Option(False, "--dry-run", help="Print the plan and stop.")
FRESH = Option(False, "--fresh", help="Start again instead of resuming interrupted work.")
FORCE = Option(
    False,
    "--force",
    help="Accept a calibration or recalibrator that was made with another model or prompt.",
)
MEMORY = setting(
    help="Memory for the keys and values of a batch in each process, such as 500MB or 2GB (default: a "
    "quarter of the size of the weights)."
)
WORKERS = Option(
    None,
    min=1,
    callback=countable,
    metavar="N",
    help="Number of worker processes, each with one thread (default: by the size of the models).",
)
MODEL = Option(
    None,
    metavar="DIR",
    help="The language model: a Hugging Face directory or id, a GGUF file, openai:URL#NAME for a server, or "
    "atlas for the embedded model.",
)
EQUIVALENCE = Option(
    None,
    metavar="DIR",
    help="Rule that decides which answers mean the same: default (rules, then the embedded model), exact "
    "(equal normal forms), letter (equal texts), the directory or id of an NLI cross-encoder, such as "
    "microsoft/deberta-large-mnli, or openai:URL#MODEL (a language model).",
)
ANSWERS_AMONG = Option(
    None,
    metavar="A,B,…",
    help="Labels that an answer may be, compared by normal form. Any other answer counts as no answer.",
)
ANSWER = Option(
    None,
    metavar="KIND",
    help="Answer whose probability is computed: modal (the most frequent meaning), greedy (the answer at "
    "T = 0) or given (the column 'answer' of the row). The default is modal.",
)
SCHEMA = Option(
    None,
    metavar="FILE",
    help="JSON Schema of structured answers: samples are JSON documents, and each field gets a confidence.",
)
FIELDS = Option(
    None,
    metavar="accepted",
    help="With the calibration of --schema: leave values below the threshold out of the answer (null).",
)
GRADER = Option(
    "rules",
    metavar="GRADER",
    help="Grader that decides which answers are correct: rules, exact (equal normal forms, usual with "
    "--answers-among), letter (equal texts, usual with --equivalence letter), nli (the model of "
    "--equivalence), or judge:openai:URL#MODEL (a language model judges the answers that the rules reject). "
    "The API key of the judge and of --equivalence is SEMCAL_JUDGE_API_KEY, else the key of the model.",
)
LINKAGE = setting(
    "components",
    help="Rule that joins pairs of equal answers into meanings: components (default), greedy or complete.",
)
MERGE_REFUSALS = setting(False, help="Count all refusals to answer as one meaning (default: false).")
CACHE = setting(help="File that keeps NLI verdicts for later runs (default: none).")
FEW_SHOT = Option(None, metavar="FILE", help="File of answered questions that precede each question.")
SYSTEM = setting(help='System message instead of the built-in one; "" for none.')
TEMPLATE = setting(
    help="YAML file with the form of the prompt: user, with {question} and {context}, and system."
)
VARY = Option(
    None,
    metavar="N|FILE",
    help="Variants of the prompt, among which the samples of a question are divided: a number from 2 to 5 "
    "(the prompt itself and built-in variants), or a YAML file with a list of further templates (default: "
    "no variants).",
)
SHOW_PROMPT = Option(False, "--show-prompt", help="Print the prompt of the first question and stop.")
MAX_NEW_TOKENS = Option(
    None,
    min=1,
    callback=countable,
    help="Longest generation, in tokens (default: 10 closed book, 32 open book).",
)
RARE_MAX_NEW_TOKENS = setting(min=1, callback=countable, help=MAX_NEW_TOKENS.help)
ANSWER_FORMAT = Option(
    None,
    metavar="FORMAT",
    help="Rule that finds the answer in a generation: auto, first, final, whole, json, json:/POINTER, or "
    "regex:PATTERN with one group (default: that of the calibration or of the imported log, else auto).",
)
SAMPLES = Option(10, min=1, callback=countable, help="Number of answers to sample for each question.")
TALPHA = setting(0.5, help="The parameter a of T-SC (default: 0.5).")
GALPHA = setting(0.5, help="The parameter a of G-SC (default: 0.5).")
RECALIBRATOR = Option(
    None,
    metavar="DIR",
    help="The recalibrator: a directory that semcal fit wrote, a hub id, or atlas for that of the embedded "
    "model.",
)
RARE_RECALIBRATOR = setting(help=RECALIBRATOR.help)
CALIBRATION = Option(
    None,
    metavar="DIR",
    help="The calibration: a directory that semcal calibrate wrote, a hub id, or atlas for that of the "
    "embedded model.",
)
TEMPERATURE = Option(
    None,
    metavar="T",
    help="Sampling temperature instead of a recalibrator, such as 0.5 for SE (default: 1, Base).",
)
RISK = Option(
    None,
    metavar="R",
    callback=share,
    help="Find the threshold above which at most this share of answers is wrong, with confidence "
    "1 − delta. Nothing else may have been fitted on these questions.",
)
PROMISED_RISK = Option(
    None,
    metavar="R",
    callback=share,
    help="Promised share of wrong answers among answered questions (default: that of --calibration).",
)
ALPHA = Option(0.05, callback=share, help="Largest probability that a watch ever raises a false alarm.")
DELTA = setting(
    0.05, callback=share, help="Allowed probability that the limit of --risk is exceeded (default: 0.05)."
)


@dataclass(frozen=True)
class PromptOptions:
    """The options of `ask`, `calibrate`, `fit` and `sample`: a model, its prompt and a file of questions."""

    model: str | None = MODEL
    dtype: str | None = DTYPE
    few_shot: Path | None = FEW_SHOT
    system: str | None = SYSTEM
    template: Path | None = TEMPLATE
    columns: list[str] | None = COLUMNS
    limit: int | None = LIMIT
    overwrite: bool = OVERWRITE


# ---- Signatures --------------------------------------------------------------------------------------------

#: Options of the running command that the settings file has set.
_from_file: set[str] = set()


def parameters_of(command: Callable[..., int]) -> dict[str, inspect.Parameter]:
    """Return all parameters of a command: its own, then the common ones.

    A parameter whose type is a dataclass is replaced by the fields of the dataclass.
    """
    own = dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            own.update(inspect.signature(parameter.annotation, eval_str=True).parameters)
        else:
            own[name] = parameter
    common = inspect.signature(_common, eval_str=True).parameters
    return own | {name: one for name, one in common.items() if name not in own}


def options_of(name: str, command: Callable[..., int]) -> inspect.Signature:
    """Return the signature that typer reads: the command-line options with their panels."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = parameters_of(command)
    left_out = {name for name, one in parameters.items() if isinstance(one.default, FileSetting)}
    if (
        not parameters.keys() & {"model", "workers"}
        and "verbose" not in inspect.signature(command).parameters
    ):
        left_out.add("verbose")  # it prints processes, memory and times of models
    return inspect.Signature(
        [
            one.replace(kind=kind, default=_in_panel(one, panel_of(option, name)))
            for option, one in parameters.items()
            if option not in left_out
        ]
    )


def _in_panel(parameter: inspect.Parameter, panel: str) -> Any:
    if not isinstance(parameter.default, OptionInfo):
        return parameter.default
    option = copy(parameter.default)
    option.rich_help_panel = panel
    kinds = (parameter.annotation, *get_args(parameter.annotation))
    usual = next((text for kind, text in _PLACEHOLDERS.items() if kind in kinds), None)
    option.metavar = option.metavar or usual
    return option


def with_settings(
    name: str,
    command: Callable[..., int],
    options: Mapping[str, Any],
    sources: Sequence[str],
    given: Collection[str],
) -> dict[str, Any]:
    """Return the options of a command, completed from `--config` and, for `serve`, from the environment.

    The `given` options were set on the command line, and override the other sources.
    """
    parameters = parameters_of(command)
    found = read_settings(name, sources, os.environ if name == "serve" else {}, parameters)
    usual = {option: default_of(parameter) for option, parameter in parameters.items()}
    pairs = _ALTERNATIVES.items()
    decided = {*given, *(b for a, b in pairs if a in given), *(a for a, b in pairs if b in given)}
    chosen = {option: value for option, value in found.items() if option not in decided}
    _from_file.clear()
    _from_file.update(chosen)
    return {**usual, **options, **chosen}


def is_from_file(name: str) -> bool:
    """Return whether the settings file or the environment, not the command line, has set an option."""
    return name in _from_file


def without_settings(options: _Options, *names: str) -> _Options:
    """Return the options of a command, without values that the settings file has set for `names`."""
    left_out: dict[str, Any] = {name: None for name in names if is_from_file(name)}
    return replace(options, **left_out)


def arguments_of(command: Callable[..., int], options: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a command: its options, or dataclasses of them."""
    return {
        name: kind(**{field.name: options[field.name] for field in fields(kind)})
        if isinstance(kind := parameter.annotation, type) and is_dataclass(kind)
        else options[name]
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
    }


def _common(
    config: list[str] | None = CONFIG,
    quiet: bool = QUIET,
    verbose: bool = VERBOSE,
) -> None:
    """The options of all commands."""


# ---- Models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """The models of the options, with the settings to load them; a call loads the state of a worker."""

    model: str | None = None
    equivalence: str | None = None
    device: str | None = None
    nli_device: str | None = None  # that of the language model by default
    dtype: str | None = None
    memory: str | None = None
    cache: Path | None = None  # of NLI verdicts
    settings: ServerSettings | None = None

    @classmethod
    def of(cls, options: object, server: ServerOptions, *names: str) -> ModelOptions:
        """Return the models that the options of a command name; `names` are further models on servers."""
        names_of_fields = [field.name for field in fields(cls)]
        values = dict(zip(names_of_fields, _named(options, *names_of_fields)))
        settings = server.settings(values["model"], values["equivalence"], *names)
        return replace(cls(**values), settings=settings)

    def __call__(self) -> WorkerState:
        """Load the named models: the language model, the equivalence, or both."""
        from semcal.steps import WorkerState

        model = None if self.model is None else self.open_model()
        return WorkerState(model, None if self.equivalence is None else self.open_equivalence())

    @property
    def has_server(self) -> bool:
        """True if one of the models is behind a server."""
        return names_a_server(self.model) or names_a_server(self.equivalence)

    def open_model(self) -> Sampler:
        """Load the language model, or connect to one behind a server."""
        assert self.model is not None
        if names_a_server(self.model):
            from semcal.servers.sampler import load_server

            return load_server(self.model, self.settings)
        from semcal.models.load import load_model

        return load_model(self.model, device=self.device, dtype=self.dtype, memory=self.memory)

    def open_equivalence(self) -> Equivalence:
        """Load the equivalence: the embedded model (by default), exact, an NLI model, or a server."""
        from semcal.inputs import load_equivalence

        return load_equivalence(
            self.equivalence or DEFAULT,
            device=self.nli_device or self.device,
            cache=self.cache,
            settings=self.settings,
        )

    def open_grader(self, name: str, *, rouge: bool = False) -> Grader | str:
        """Return the grader by rules or by a judge; or "nli", which needs an equivalence (`as_grader`)."""
        from semcal.grading.grade import GRADERS, rule_grader
        from semcal.grading.rules import RuleGrader

        if name.startswith("judge:"):
            from semcal.grading.judge import load_judge

            return load_judge(name, rules=RuleGrader(rouge=rouge), settings=self.settings, cache=self.cache)
        if check_name(name, GRADERS, what="grader") == "nli":
            return name
        return rule_grader(name, rouge=rouge)


def required_model(model: str | None) -> str:
    """Return the name of the model; UsageError if neither an option nor the settings file has it."""
    if model is None:
        raise UsageError("--model is missing; pass a model, or set model.name in the file of --config")
    return model


def among_labels(equivalence: str | None, labels: str | None) -> str | None:
    """Return the name of the equivalence, or that of --answers-among; UsageError if both are given."""
    if labels is not None and equivalence is not None:
        raise UsageError("--answers-among already compares labels by normal form; omit --equivalence")
    return equivalence if labels is None else ExactMatch.among(f"{AMONG}{labels}").name


def report_invalid(label: str, equivalence: str, costs: Mapping[str, int]) -> None:
    """Print the number of samples that match none of the labels of --answers-among."""
    if equivalence.startswith(AMONG):
        labels = equivalence.removeprefix(AMONG).replace(",", ", ")
        count, total = costs["invalid"], costs["draws"]
        info(f"{label}: {count:,} of {total:,} samples do not match any of {labels}; they count as no answer")


def weights_of(*, model: str | None = None, equivalence: str | None = None) -> int | None:
    """Return the size of the models' weights in bytes, None if a model is not on this disk."""
    from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, locate
    from semcal.workers import on_disk

    if names_a_server(model) or names_a_server(equivalence):
        return None
    places = [] if model is None else [locate(model, LANGUAGE_MODEL)]
    is_checkpoint = not (needs_no_model(equivalence) or equivalence in {None, *EQUIVALENCES})
    places += [locate(equivalence, NLI_MODEL)] if equivalence and is_checkpoint else []
    sizes = [on_disk(folder) if (folder := _folder(place)) else 0 for place in places]
    return sum(sizes) if all(sizes) else None


def is_here(model: str) -> bool:
    """Return whether a model needs no download, because it is on this disk (also as GGUF) or a server."""
    from semcal.hub_names import LANGUAGE_MODEL, locate

    try:
        place = None if names_a_server(model) else locate(model, LANGUAGE_MODEL)
        return place is None or (place.gguf and Path(place.source).is_file()) or bool(weights_of(model=model))
    except ModelError:
        return False


def _folder(place: Location) -> Path | None:
    """Return the directory of a checkpoint, which may be in the hub's cache or among unpacked models."""
    if place.gguf:
        from semcal.models.gguf import unpacked_folder

        return unpacked_folder(Path(place.source), "float32")
    if not place.on_hub:
        return Path(place.source)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(place.source, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def open_calibration(name: str) -> Calibration:
    """Load a calibration from a directory or the hub."""
    from semcal.calibration.calibration import Calibration

    return Calibration.from_pretrained(name)


def open_any_calibration(name: str) -> Calibration | FieldCalibration:
    """Load a calibration of answers or of fields."""
    from semcal.calibration.fields import as_field_calibration

    return as_field_calibration(name) or open_calibration(name)


def holds_field_calibration(name: str) -> bool:
    """Return whether a directory holds a calibration of the fields of structured answers."""
    return (Path(name) / FIELD_CALIBRATION.file).is_file()


def accepted_only(fields: str | None) -> bool:
    """Return whether --fields leaves out values below the threshold."""
    return fields is not None and check_name(fields, ("accepted",), what="--fields") == "accepted"


def open_schema(path: Path | None) -> Schema | None:
    """Load the JSON Schema of a file, and check it."""
    from semcal.fields.schema import parse_schema

    if path is None:
        return None
    if not path.is_file():
        raise UsageError(f"--schema: {path} does not exist. Pass a file with a JSON Schema")
    return parse_schema(read_object(path, remedy="pass a file with a JSON Schema to --schema"))


def structured_options(options: _Options, model: Sampler, schema: Schema | None) -> _Options:
    """Return the options with a prompt and a token limit for structured answers, unless the user gave some.

    A local model reads the schema in the prompt.
    """
    if schema is None:
        return options
    from semcal.fields.rows import STRUCTURED_TOKENS, system_message

    system, template, limit = _named(options, "system", "template", "max_new_tokens")
    if system is None and template is None:
        system = system_message(model, schema)
    changed = {"max_new_tokens": limit or STRUCTURED_TOKENS, "system": system}
    if hasattr(options, "answer_format"):
        changed["answer_format"] = "whole"
    return replace(options, **changed)


def document_step(
    options: _Options, model: Sampler, schema: Schema, m: int, kind: AnswerKind
) -> tuple[SampleStep, dict[str, Any]]:
    """Return the step that samples documents, and the model and the prompt that its rows depend on."""
    from semcal.fields.rows import document_step as step_of
    from semcal.models.sample import SamplingConfig

    options = structured_options(options, model, schema)
    method, prompt = open_recalibrator(model, options)
    seed, limit = _named(options, "seed", "max_new_tokens")
    config = SamplingConfig(m, seed or 0, 1.0, limit, answer_format="whole")
    step = step_of(schema, config, kind, method, prompt)
    return step, {"model": model.revision, "prompt": prompt.hash(model)}


def prompt_config(options: object) -> PromptConfig:
    """Return the prompt settings of a command: `few_shot`, `system`, `template`, `vary` and `force`."""
    from semcal.models.prompting import PromptConfig

    few_shot, system, template, vary = _named(options, "few_shot", "system", "template", "vary")
    (force,) = _named(options, "force")
    try:
        return PromptConfig(few_shot or (), system, template, vary, force=bool(force))
    except RowError as error:
        raise UsageError(f"--few-shot {few_shot}: {error}") from error


def sampling_config(options: object) -> SamplingConfig:
    """Return the sampling settings of a command."""
    from semcal.models.sample import SamplingConfig

    names = ("m", "seed", "temperatures", "max_new_tokens", "answer_format")
    given = {name: value for name, value in zip(names, _named(options, *names)) if value is not None}
    if "temperatures" in given:
        given["temperatures"] = tuple(dict.fromkeys((1.0, *given["temperatures"])))
    return SamplingConfig(**given)


def cluster_config(options: object, equivalence: Equivalence) -> ClusterConfig:
    """Return the clustering settings of a command, with a loaded equivalence."""
    from semcal.models.clustering import ClusterConfig

    linkage, merge_refusals = _named(options, "linkage", "merge_refusals")
    return ClusterConfig(equivalence, linkage or "components", bool(merge_refusals))


def open_recalibrator(model: Sampler, options: object) -> tuple[AnyRecalibrator, PromptConfig]:
    """Return the recalibrator that the options name, checked against the model, and the prompt."""
    from semcal.recalibration.fit import recalibrator_and_prompt

    name, temperature = _named(options, "recalibrator", "temperature")
    if name is not None and temperature is not None:
        raise UsageError("--recalibrator and --temperature exclude each other; omit one")
    return recalibrator_and_prompt(model, temperature if name is None else name, prompt_config(options))


def _named(options: object, *names: str) -> list[Any]:
    """Return the values of these options, None for options that the command does not have."""
    return [getattr(options, name, None) for name in names]


def show_prompt(model: Sampler, prompt_config: PromptConfig, questions: Iterable[Question]) -> None:
    """Print the prompt of the first question; InputError if there is no question."""
    first = next(iter(questions), None)
    if first is None:
        raise InputError("--show-prompt: the question is missing; pass a question or a file with one")
    (prompt,) = prompt_config.prompts(model, [first])
    show(model.prompt_text(prompt))


# ---- Workers -----------------------------------------------------------------------------------------------


@contextmanager
def open_workers(
    label: str, models: ModelOptions, n_workers: int | None, n_blocks: int | None
) -> Iterator[tuple[Executor[WorkerState], Callable[[], WorkerState]]]:
    """Yield the executor and a function that loads the models in this process; report what servers cost."""
    plan = choose_workers(n_workers, label, models, blocks=n_blocks)
    with open_executor(plan, models) as (executor, load):
        served = load() if models.has_server else None
        model = served.model if served and models.model else None
        equivalence = served.equivalence if served and models.equivalence else None
        with spending(label, model=model, equivalence=equivalence):
            yield executor, load


def choose_workers(
    requested: int | None,
    label: str,
    models: ModelOptions,
    *,
    blocks: int | None = None,
) -> WorkerPlan:
    """Choose the number of processes; print it with -v."""
    from semcal.workers import WorkerPlan, cores, plan_workers

    if models.has_server:
        if requested is not None and not is_from_file("workers"):
            raise UsageError("--workers does not apply to a server; omit it, or set server.concurrency")
        return WorkerPlan(1, cores())
    weights = weights_of(model=models.model, equivalence=models.equivalence)
    plan = plan_workers(requested, weights=weights, blocks=blocks, on_cpu=_uses_cpu(models.device))
    debug(f"{label}: {plan}")
    return plan


def _uses_cpu(device: str | None) -> bool:
    """Return whether models run on the CPU; PyTorch is imported only if there may be a GPU."""
    from semcal.workers import has_gpu

    if device is not None or not has_gpu():
        return device in (None, "cpu")
    from semcal.models.load import choose_device

    return choose_device().type == "cpu"


@contextmanager
def open_executor(
    plan: WorkerPlan, load: Callable[[], _State], *, at_once: bool = False
) -> Iterator[tuple[Executor[_State], Callable[[], _State]]]:
    """Yield the executor and a function that loads this process's own state; report memory at the end.

    If the user set the number of workers, they start `at_once`, and this process loads its state on demand.
    Otherwise the workers start once the time saved pays.
    """
    from semcal.workers import ProcessExecutor, SerialExecutor

    state = cache(partial(load_with_threads, load, plan.n_threads))
    chosen: Executor[_State]
    if plan.n_workers == 1:
        chosen = SerialExecutor(state())
    else:
        chosen = ProcessExecutor(load, plan.n_workers, state=None if at_once or plan.requested else state())
    with chosen as executor:
        yield executor, state
        show_peak(executor)


def load_with_threads(load: Callable[[], _State], n_threads: int) -> _State:
    """Load the state of a process, and limit its threads; OMP_NUM_THREADS may limit them further."""
    state = load()
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_num_threads(min(n_threads, torch.get_num_threads()))
    return state


def show_peak(executor: Executor[Any]) -> None:
    """Print the peak memory with -v."""
    workers = f" of this process and {executor.n_processes} more" if executor.n_processes else ""
    debug(f"peak memory{workers}: at most {executor.peak_memory_mb:.0f} MB")


def peek_blocks(items: Iterable[_Item], block: int, limit: int | None) -> tuple[Iterator[_Item], int | None]:
    """Return the items up to the limit, and their number of blocks: 0, 1, or None for more."""
    limited = islice(items, limit)
    first = list(islice(limited, block + 1))
    return chain(first, limited), None if len(first) > block else min(1, len(first))


# ---- Servers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerOptions:
    """The options for models on servers, shared by all commands that may use one."""

    api_key_file: Path | None = API_KEY_FILE
    tokenizer: str | None = setting(
        help="Directory or hub id of the tokenizer of the server's model. With it, prompts are sent as token "
        "ids (default: none)."
    )
    concurrency: int | None = setting(
        callback=countable, help="Number of simultaneous requests to a server (default: 16)."
    )
    retries: int | None = setting(
        callback=countable, help="Number of further attempts after a failed request (default: 5)."
    )
    timeout: float | None = setting(
        help="Largest duration of one attempt of a request, in seconds (default: 120)."
    )
    allow_truncation: bool = setting(
        False,
        help="Sample even if the server truncates the distribution, and record it in the rows: false by "
        "default.",
    )
    max_tokens_total: int | None = setting(
        callback=countable,
        help="Limit of the prompt and completion tokens of all servers together (default: none).",
    )
    max_cost: float | None = setting(
        help="Limit of the cost of all requests, in the currency of the prices (default: none)."
    )
    price_in: float | None = setting(help="Price of one million prompt tokens, in the currency of max_cost.")
    price_out: float | None = setting(
        help="Price of one million completion tokens, in the currency of max_cost."
    )

    def settings(self, *names: str | None) -> ServerSettings | None:
        """Return the settings of requests to servers; None if no name is that of a server."""
        chosen = {k: value for k, value in vars(self).items() if value is not None and value is not False}
        hosts_named = [name for name in names if name is not None and names_a_server(name)]
        if not hosts_named:
            return None
        from semcal.servers.settings import JUDGE_KEY_VARIABLE, Endpoint, ServerSettings, read_api_key

        key = read_api_key(chosen.pop("api_key_file", None))
        hosts = {Endpoint.parse(name).host: None for name in hosts_named}
        if key is not None and len(hosts) > 1 and JUDGE_KEY_VARIABLE not in os.environ:
            raise UsageError(
                f"server.api_key_file: the same API key would be sent to {' and '.join(hosts)}; set the "
                f"key of --equivalence and --grader by {JUDGE_KEY_VARIABLE} (empty for none)"
            )
        return ServerSettings(api_key=key, announce=info, **chosen)
