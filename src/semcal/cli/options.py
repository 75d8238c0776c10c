"""The options that commands share, each defined once, and the models, workers and graders they name.

Used as `from semcal.cli import options as opt`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer import Argument, Option

from semcal.cli.config_file import FileSetting, default_of, keys_by_option, read_settings, setting
from semcal.cli.console import debug, info, loading, show, spending
from semcal.errors import InputError, ModelError, RowError, UsageError, printable, shown
from semcal.models.equivalence import AMONG, DEFAULT, EQUIVALENCES, ExactMatch, names_a_server, needs_no_model
from semcal.registry import check_name, option_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from semcal.calibration.calibration import Calibration
    from semcal.data.question import Question
    from semcal.grading.rules import Grader
    from semcal.hub_names import Location
    from semcal.models.clustering import ClusterConfig
    from semcal.models.equivalence import Equivalence
    from semcal.models.prompting import PromptConfig
    from semcal.models.protocols import AnyRecalibrator, Sampler
    from semcal.models.sample import SamplingConfig
    from semcal.servers.settings import ServerSettings
    from semcal.steps import WorkerState
    from semcal.workers import Executor, WorkerPlan

_Options = TypeVar("_Options", bound="DataclassInstance")
_State = TypeVar("_State")
_Item = TypeVar("_Item")

#: The embedded models, in --model, --equivalence and --recalibrator.
ATLAS = "atlas"
#: Of two options only one may stand; that of the command line sets aside the other one in the file.
_ALTERNATIVES = {"recalibrator": "temperature", "equivalence": "answers_among"}
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


def share(value: float | None) -> float | None:
    """Refuse what is no share between 0 and 1."""
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"{shown(value)} is no share; give a number between 0 and 1, such as 0.1")
    return value


def shares(values: list[float] | None) -> list[float] | None:
    """Refuse a list that holds no shares."""
    return None if values is None else [value for value in values if share(value) is not None]


def folder_option(text: str, default: Any = None) -> Any:
    """The --out of a command that writes into a folder."""
    return Option(default, "--out", metavar="DIR", callback=out_path, help=text)


ROWS = Argument(metavar="FILE", help="JSON Lines, or - for standard input.")
COLUMNS = Option(
    None,
    "--columns",
    metavar="OURS=THEIRS",
    help="The name of a column in FILE, such as question=Frage; may be repeated.",
)
SEED = Option(0, min=0, callback=_seed, help="Random seed.")
RARE_SEED = setting(0, min=0, callback=_seed, help="Random seed: 0 by default.")
KEPT_SEED = setting(min=0, callback=_seed, help="Random seed: 0 by default, or that of kept samples.")
LIMIT = Option(None, min=1, callback=countable, help="Stop after this many rows; bad ones count as well.")
OUT = Option(
    None,
    "--out",
    callback=out_path,
    help="Write here instead of stdout; the file appears whole or not at all.",
)
API_KEY_FILE = Option(
    None,
    "--api-key-file",
    metavar="FILE",
    help="File whose first line is the API key of the server; else SEMCAL_API_KEY holds the key.",
)
TIMEOUT = Option(
    120.0, "--timeout", metavar="SECONDS", help="Seconds that one try of a request to a server may take."
)
OVERWRITE = Option(False, "--overwrite", help="Replace what exists at --out; otherwise that is refused.")
JSON = Option(False, "--json", help="Print results as JSON, one object a line.")
QUIET = Option(
    False, "-q", "--quiet", help="Only errors and bad rows on stderr: no progress, notes or warnings."
)
VERBOSE = Option(False, "-v", "--verbose", help="Print more on stderr: processes, memory, times.")
PLUGIN = setting(
    help="Modules of yours to import first, which register measures, metrics, methods, ….", metavar="MODULE"
)
CONFIG = Option(
    None,
    "--config",
    metavar="FILE",
    help="YAML file of settings and options (docs/reference/config.md), or one of them as SECTION.KEY=VALUE, "
    "such as model.dtype=bfloat16; may be repeated.",
)
DEVICE = Option(None, help="Device of the models: cpu, cuda, cuda:1 or mps; the best available by default.")
NLI_DEVICE = setting(help="Device of the NLI model, if it is not the language model's.")
DTYPE = setting(help="Number format of the weights: float32, bfloat16 or float16.")
DRY_RUN = Option(False, "--dry-run", help="Print the plan and stop.")
FRESH = Option(False, "--fresh", help="Start again instead of resuming.")
FORCE = Option(False, "--force", help="Apply a fit that was made on another model or prompt.")
MEMORY = setting(help="Memory for keys and values of a batch in each process, such as 500MB or 2GB.")
WORKERS = Option(
    None,
    min=1,
    callback=countable,
    metavar="N",
    help="Worker processes, each of one thread; by default chosen by the models' size.",
)
MODEL = Option(
    None,
    "--model",
    metavar="DIR",
    help="The model: a Hugging Face directory or id, or openai:URL#NAME of a server; atlas is the embedded "
    "model.",
)
ANSWERING_MODEL = Option(
    None,
    "--model",
    metavar="DIR",
    help="The model that answers: a Hugging Face directory or id, or openai:URL#NAME of a server; atlas is "
    "the embedded model.",
)
EQUIVALENCE = Option(
    None,
    metavar="DIR",
    help="Which answers mean the same, by: default, rules and the embedded model; exact, equality of "
    "normal forms; letter, equality to the letter; the directory or id of an NLI cross-encoder, such as "
    "microsoft/deberta-large-mnli; or openai:URL#MODEL, a language model.",
)
ANSWERS_AMONG = Option(
    None,
    "--answers-among",
    metavar="A,B,…",
    help="The labels that an answer may be, compared by normal form. Any other answer counts as no answer.",
)
ANSWER = Option(
    None,
    "--answer",
    metavar="KIND",
    help="The answer that the probability is of: modal (the most frequent meaning; by default), greedy (the "
    "answer at T = 0), or given (the row's 'answer').",
)
GRADER = Option(
    "rules",
    metavar="GRADER",
    help="Which answers are correct, by: rules; exact, equality of normal forms (usual with "
    "--answers-among); letter, equality to the letter (usual with --equivalence letter); nli, the model of "
    "--equivalence; or judge:openai:URL#MODEL, a language model that judges the answers that the rules call "
    "wrong. Its API key, and that of --equivalence: SEMCAL_JUDGE_API_KEY, else the model's.",
)
LINKAGE = setting(
    "components", help="How equal pairs become meanings: components (by default), greedy or complete."
)
MERGE_REFUSALS = setting(False, help="Count all refusals to answer as one meaning.")
CACHE = setting(help="A file that keeps NLI verdicts for later runs.")
FEW_SHOT = Option(
    None, "--few-shot", metavar="FILE", help="Answered questions that stand before each question."
)
SYSTEM = setting(help='A system message in place of the built-in one; "" for none.')
TEMPLATE = setting(
    help="YAML file with the form of the prompt: user, which holds {question} and {context}, and system."
)
SHOW_PROMPT = Option(False, "--show-prompt", help="Print the prompt of the first question, and ask nothing.")
MAX_NEW_TOKENS = Option(
    None,
    min=1,
    callback=countable,
    help="Longest generation in tokens: 10 closed book, 32 open book by default.",
)
ANSWER_FORMAT = Option(
    None,
    "--answer-format",
    metavar="FORMAT",
    help="The rule that finds the answer in a generation: auto, first, final, whole, json, json:/POINTER, or "
    "regex:PATTERN with one group; that of the calibration by default, else auto.",
)
SAMPLES = Option(10, "--m", min=1, callback=countable, help="Answers to sample for each question.")
TALPHA = setting(0.5, help="The parameter a of T-SC.")
GALPHA = setting(0.5, help="The parameter a of G-SC.")
RECALIBRATOR = Option(
    None,
    "--recalibrator",
    metavar="DIR",
    help="The recalibrator: a directory that semcal fit wrote, or a hub id; atlas is that of the embedded "
    "model.",
)
CALIBRATION = Option(
    None,
    "--calibration",
    metavar="DIR",
    help="The calibration: a directory that semcal calibrate wrote, or a hub id; atlas is that of the "
    "embedded model.",
)
TEMPERATURE = Option(
    None, "--temperature", metavar="T", help="A temperature in place of a recalibrator; 1 is Base, 0.5 is SE."
)
RISK = Option(
    None,
    "--risk",
    metavar="R",
    callback=share,
    help="Find the threshold above which at most this share of answers is wrong, with confidence "
    "1 − delta; of questions that nothing else was fitted on.",
)
PROMISED_RISK = Option(
    None,
    "--risk",
    metavar="R",
    callback=share,
    help="At most this share of answered questions is promised to be wrong.",
)
ALPHA = Option(0.05, "--alpha", callback=share, help="How likely a watch may be to give a false alarm, ever.")
DELTA = setting(
    0.05, callback=share, help="Probability that the limit of --risk is exceeded after all: 0.05 by default."
)


# ---- Signatures --------------------------------------------------------------------------------------------

#: Options that the settings file has set for the command under way.
_from_file: set[str] = set()


def parameters_of(command: Callable[..., int]) -> dict[str, inspect.Parameter]:
    """Return all parameters of a command: its own, then the common ones.

    A parameter that is a dataclass stands for the fields of the dataclass.
    """
    own = dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            own.update(inspect.signature(parameter.annotation, eval_str=True).parameters)
        else:
            own[name] = parameter
    common = inspect.signature(_common, eval_str=True).parameters
    return own | {name: one for name, one in common.items() if name not in own}


def options_of(command: Callable[..., int]) -> inspect.Signature:
    """Return the signature that typer reads: the parameters that are options of the command line."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = parameters_of(command)
    left_out = {name for name, one in parameters.items() if isinstance(one.default, FileSetting)}
    if (
        not parameters.keys() & {"model", "workers"}
        and "verbose" not in inspect.signature(command).parameters
    ):
        left_out.add("verbose")  # processes, memory and times are those of models
    return inspect.Signature(
        [one.replace(kind=kind) for name, one in parameters.items() if name not in left_out]
    )


def with_settings(
    name: str,
    command: Callable[..., int],
    options: Mapping[str, Any],
    sources: Sequence[str],
    given: Collection[str],
) -> dict[str, Any]:
    """Return the options of a command, completed from `--config` and, for `serve`, from the environment.

    The `given` options stand on the command line and come first.
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
    """Return whether the settings file (or the environment) has set an option, and not the command line."""
    return name in _from_file


def without_settings(options: _Options, *names: str) -> _Options:
    """Return the options of a command without those of `names` that the settings file has set."""
    left_out: dict[str, Any] = {name: None for name in names if is_from_file(name)}
    return replace(options, **left_out)


def name_of(option: str) -> str:
    """Return how a message names an option: by its place in the settings file if that has set it."""
    return keys_by_option()[option] if is_from_file(option) else option_name(option)


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
    plugin: list[str] | None = PLUGIN,
) -> None:
    """The options of all commands."""


# ---- Models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """The models that options name, and what they are loaded with; a call loads what a worker holds."""

    model: str | None = None
    equivalence: str | None = None
    device: str | None = None
    nli_device: str | None = None  # if not the language model's
    dtype: str | None = None
    memory: str | None = None
    cache: Path | None = None  # of NLI verdicts
    settings: ServerSettings | None = None

    @classmethod
    def of(cls, options: object, server: ServerOptions, *names: str) -> ModelOptions:
        """Those that the options of a command name; `names` are further ones, which servers may have."""
        names_of_fields = [field.name for field in fields(cls)]
        values = dict(zip(names_of_fields, _named(options, *names_of_fields)))
        settings = server.settings(values["model"], values["equivalence"], *names)
        return replace(cls(**values), settings=settings)

    def __call__(self) -> WorkerState:
        """Load the models that are named: either, or both."""
        with loading():
            from semcal.steps import WorkerState

            model = None if self.model is None else self.open_model()
            return WorkerState(model, None if self.equivalence is None else self.open_equivalence())

    @property
    def has_server(self) -> bool:
        """Whether one of the models is behind a server."""
        return names_a_server(self.model) or names_a_server(self.equivalence)

    def open_model(self) -> Sampler:
        """Load the language model, or connect to one behind a server."""
        assert self.model is not None
        with loading():
            if names_a_server(self.model):
                from semcal.servers.sampler import load_server

                return load_server(self.model, self.settings)
            from semcal.models.load import load_model

            return load_model(self.model, device=self.device, dtype=self.dtype, memory=self.memory)

    def open_equivalence(self) -> Equivalence:
        """Load the equivalence: the embedded model by default, exact, an NLI model, or a server."""
        with loading():
            from semcal.inputs import load_equivalence

            return load_equivalence(
                equivalence_name(self.equivalence),
                device=self.nli_device or self.device,
                cache=self.cache,
                settings=self.settings,
            )

    def open_grader(self, name: str, *, rouge: bool = False) -> Grader | str:
        """Return the grader by rules or by a judge; or "nli", which takes an equivalence (`as_grader`)."""
        from semcal.grading.grade import GRADERS, rule_grader
        from semcal.grading.rules import RuleGrader

        if name.startswith("judge:"):
            from semcal.grading.judge import load_judge

            return load_judge(name, rules=RuleGrader(rouge=rouge), settings=self.settings, cache=self.cache)
        if check_name(name, GRADERS, what="grader") == "nli":
            return name
        return rule_grader(name, rouge=rouge)


def required_model(model: str | None) -> str:
    """Return the name of the model; UsageError if it is neither an option nor in the settings file."""
    if model is None:
        raise UsageError("--model is missing; name a model, or set model.name in the file of --config")
    return model


def among_labels(equivalence: str | None, labels: str | None) -> str | None:
    """The name of the equivalence, which --answers-among may say; UsageError where both are given."""
    if labels is not None and equivalence is not None:
        raise UsageError("--answers-among compares labels by normal form; leave --equivalence out")
    return equivalence if labels is None else ExactMatch.among(f"{AMONG}{labels}").name


def tell_invalid(label: str, equivalence: str, costs: Mapping[str, int]) -> None:
    """Say how many draws are none of the labels, where there are some."""
    if equivalence.startswith(AMONG):
        labels = equivalence.removeprefix(AMONG).replace(",", ", ")
        invalid = f"{costs['invalid']} of {costs['draws']} draws are none of {labels}"
        info(f"{label}: {invalid}, and count as no answer")


def equivalence_name(name: str | None) -> str:
    """The name of an equivalence; where none is given that of the embedded model, which is said."""
    if name is None:
        info(f"answers are grouped by the embedded equivalence model (--equivalence {DEFAULT})")
    return name or DEFAULT


def weights_of(*, model: str | None = None, equivalence: str | None = None) -> int | None:
    """Bytes of the weights of models that are named as in the options; None if one is not on this disk."""
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
    """Whether a model needs no download: it is on this disk, if as a packed GGUF, or behind a server."""
    from semcal.hub_names import LANGUAGE_MODEL, locate

    try:
        place = None if names_a_server(model) else locate(model, LANGUAGE_MODEL)
        return place is None or (place.gguf and Path(place.source).is_file()) or bool(weights_of(model=model))
    except ModelError:
        return False


def _folder(place: Location) -> Path | None:
    """The directory of a checkpoint: its own, or that of the hub's cache or of unpacked models."""
    if place.gguf:
        from semcal.models.gguf import unpacked_folder

        return unpacked_folder(Path(place.source), "float32")[0]
    if not place.on_hub:
        return Path(place.source)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(place.source, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def open_calibration(name: str) -> Calibration:
    """Load a calibration."""
    with loading():
        from semcal.calibration.calibration import Calibration

        return Calibration.from_pretrained(name)


def prompt_config(options: object) -> PromptConfig:
    """Return the prompt that the options of a command name: `few_shot`, `system`, `template`, `force`."""
    from semcal.models.prompting import PromptConfig

    few_shot, system, template, force = _named(options, "few_shot", "system", "template", "force")
    try:
        return PromptConfig(few_shot or (), system, template, force=bool(force))
    except RowError as error:
        raise UsageError(f"the few-shot examples in {few_shot}: {error}") from error


def sampling_config(options: object) -> SamplingConfig:
    """Return how answers are sampled, as the options of a command say."""
    from semcal.models.sample import SamplingConfig

    names = ("m", "seed", "temperatures", "max_new_tokens", "answer_format")
    given = {name: value for name, value in zip(names, _named(options, *names)) if value is not None}
    if "temperatures" in given:
        given["temperatures"] = tuple(dict.fromkeys((1.0, *given["temperatures"])))
    return SamplingConfig(**given)


def cluster_config(options: object, equivalence: Equivalence) -> ClusterConfig:
    """Return how answers are clustered by an equivalence, as the options of a command say."""
    from semcal.models.clustering import ClusterConfig

    linkage, merge_refusals = _named(options, "linkage", "merge_refusals")
    return ClusterConfig(equivalence, linkage or "components", bool(merge_refusals))


def open_recalibrator(model: Sampler, options: object) -> tuple[AnyRecalibrator, PromptConfig]:
    """Return the recalibrator that the options name, checked against the model, and the prompt."""
    from semcal.recalibration.fit import recalibrator_and_prompt

    name, temperature = _named(options, "recalibrator", "temperature")
    if name is not None and temperature is not None:
        raise UsageError("give --recalibrator or --temperature, not both")
    return recalibrator_and_prompt(model, temperature if name is None else name, prompt_config(options))


def _named(options: object, *names: str) -> list[Any]:
    """Return the options of these names, None for those that the command does not have."""
    return [getattr(options, name, None) for name in names]


def show_prompt(model: Sampler, asking: PromptConfig, questions: Iterable[Question]) -> None:
    """Print what the model gets for the first question; InputError if there is none."""
    first = next(iter(questions), None)
    if first is None:
        raise InputError("there is no question to show the prompt of; give one")
    (prompt,) = asking.prompts(model, [first])
    show(model.prompt_text(prompt))


# ---- Workers -----------------------------------------------------------------------------------------------


@contextmanager
def open_workers(
    label: str, models: ModelOptions, n_workers: int | None, n_blocks: int | None
) -> Iterator[tuple[Executor[WorkerState], Callable[[], WorkerState]]]:
    """Give what does blocks of rows, and what loads the models in this process; say what servers took."""
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
    at_once: bool = False,
) -> WorkerPlan:
    """Choose how many processes a command uses, `at_once` or when that pays; -v says so."""
    from semcal.workers import WorkerPlan, cores, plan_workers

    if models.has_server:
        if requested is not None and not is_from_file("workers"):
            raise UsageError("one process asks a server; leave --workers out, and set server.concurrency")
        return WorkerPlan(1, cores(), "a server answers")
    weights = weights_of(model=models.model, equivalence=models.equivalence)
    plan = plan_workers(requested, weights=weights, blocks=blocks, on_cpu=_uses_cpu(models.device))
    surely = at_once or plan.requested or plan.n_workers == 1
    debug(f"{label}: {'' if surely else 'up to '}{plan}")
    return plan


def _uses_cpu(device: str | None) -> bool:
    """Whether models run on the CPU; where a GPU may be, PyTorch is asked."""
    from semcal.workers import has_gpu

    if device is not None or not has_gpu():
        return device in (None, "cpu")
    from semcal.models.load import choose_device

    return choose_device().type == "cpu"


@contextmanager
def open_executor(
    plan: WorkerPlan, load: Callable[[], _State], *, at_once: bool = False
) -> Iterator[tuple[Executor[_State], Callable[[], _State]]]:
    """Give the executor, and what loads this process's own state; say at the end what memory it took.

    Workers that were asked for start `at_once`, and this process loads nothing before it is asked to; workers
    that were chosen start when that pays.
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
    """The state of a process that uses so many threads, or fewer if PyTorch was told to (OMP_NUM_THREADS)."""
    state = load()
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_num_threads(min(n_threads, torch.get_num_threads()))
    return state


def show_peak(executor: Executor[Any]) -> None:
    """Say with -v how much memory was used at most."""
    workers = f" of this process and {executor.n_processes} more" if executor.n_processes else ""
    debug(f"peak memory{workers}: at most {executor.peak_memory_mb:.0f} MB")


def peek_blocks(items: Iterable[_Item], block: int, limit: int | None) -> tuple[Iterator[_Item], int | None]:
    """The items up to the limit, and the number of blocks that they make: 0, 1, or None for more."""
    limited = islice(items, limit)
    first = list(islice(limited, block + 1))
    return chain(first, limited), None if len(first) > block else min(1, len(first))


# ---- Servers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerOptions:
    """How a model behind a server is asked: the options of all commands that may ask one."""

    api_key_file: Path | None = API_KEY_FILE
    tokenizer: str | None = setting(
        help="Directory or hub id of the server's model: its tokenizer is used, and token ids are sent."
    )
    concurrency: int | None = setting(
        callback=countable, help="Requests to a server at a time: 16 by default."
    )
    retries: int | None = setting(
        callback=countable, help="How often a request that failed is tried again: 5 by default."
    )
    timeout: float | None = setting(help="Seconds that one try of a request may take: 120 by default.")
    allow_truncation: bool = setting(
        False, help="Sample although the server truncates the distribution; the rows record it."
    )
    max_tokens_total: int | None = setting(
        callback=countable, help="Stop before all servers together have read and written more tokens."
    )
    max_cost: float | None = setting(help="Stop before the requests cost more, by the two prices.")
    price_in: float | None = setting(help="Price of one million prompt tokens, in the currency of max_cost.")
    price_out: float | None = setting(help="Price of one million completion tokens.")

    def settings(self, *names: str | None) -> ServerSettings | None:
        """Return how servers are asked; None if none of the names is that of a server."""
        chosen = {k: value for k, value in vars(self).items() if value is not None and value is not False}
        hosts_named = [name for name in names if name is not None and names_a_server(name)]
        if not hosts_named:
            if "api_key_file" in chosen and not is_from_file("api_key_file"):
                raise UsageError(
                    "--api-key-file is for a model behind a server (openai:URL#NAME); leave it out"
                )
            return None
        from semcal.servers.settings import JUDGE_KEY_VARIABLE, Endpoint, ServerSettings, read_api_key

        key = read_api_key(chosen.pop("api_key_file", None))
        hosts = {Endpoint.parse(name).host: None for name in hosts_named}
        if key is not None and len(hosts) > 1 and JUDGE_KEY_VARIABLE not in os.environ:
            raise UsageError(
                f"the API key would be sent to {' and '.join(hosts)}; give what decides on meanings and "
                f"grades its own by {JUDGE_KEY_VARIABLE} (empty: none)"
            )
        return ServerSettings(api_key=key, announce=info, **chosen)
