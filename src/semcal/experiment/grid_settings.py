"""Settings of a grid: models × data sets × methods × runs (design.md; analyses.md, presets).

Every value has the default of preset `sound`; the preset, a YAML file and `--set` are laid over one another,
and each mistake is named by its key.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from semcal.data.sources import ATLAS
from semcal.errors import WIDTH, UsageError, shown
from semcal.files import writing
from semcal.grading.rules import RuleGrader, Thresholds
from semcal.meaning.answer import AnswerFormat
from semcal.models.load import parse_size
from semcal.recalibration.methods import BUILT_IN, RECALIBRATORS, SERVED
from semcal.registry import Registry, check_name
from semcal.rows import Json
from semcal.servers.settings import PREFIX, Endpoint, ServerSettings
from semcal.yaml_files import DEEPEST, parse_yaml, read_yaml, yaml_text

FILE = "settings.yaml"
PARTS = ("calibration_train", "validation", "test")
_SIZES = Registry("data set", dict.fromkeys(ATLAS.names(), "semcal.demo.questions:SIZES"))

#: Characters of a name: files are named by a model and a data set, and file systems stop at 255.
LONGEST_NAME = 80
Size = Annotated[int, Field(ge=1, lt=2**31)]
#: The extras that need states, logits or beams, which servers do not give.
NOT_SERVED = ("beams", "transfer", "token_losses")


def slug(name: str) -> str:
    """A name as a folder: what is no letter, digit, dot, hyphen or underscore of ASCII becomes "_".

    >>> slug("ATS SS 0.25"), slug("meta-llama/Llama-3.1")
    ('ATS_SS_0.25', 'meta-llama_Llama-3.1')
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def check_slugs(names: Sequence[str], *, what: str) -> None:
    """Raise UsageError for names that would share a folder, or that no folder can have."""
    name_of: dict[str, str] = {}
    for name in names:
        folder = slug(name)
        if folder.strip(".") == "":
            raise UsageError(f"{what} {name!r} cannot name a folder; give it letters or digits")
        if len(folder) > LONGEST_NAME:
            raise UsageError(
                f"{what} {name[:40]!r}… has {len(name)} characters, more than files can be named by; give it "
                f"at most {LONGEST_NAME}"
            )
        first = name_of.setdefault(folder, name)
        if first != name or names.count(name) > 1:
            raise UsageError(
                f"{what} {name!r} and {first!r} would share the folder {folder}; give each a name of its own"
            )


class SettingsGroup(BaseModel):
    """Settings that belong together; unknown keys are refused, and yes or no where a number belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_is_a_bool(cls, value: Any, about: ValidationInfo) -> Any:
        """Refuse what pydantic would take as 1 or 0: `count: yes` is true in YAML."""
        annotation = cls.model_fields[str(about.field_name)].annotation
        if annotation is not bool and any(part is True or part is False for part in _inside(value)):
            raise ValueError(
                "expected a number or a text, not true or false (YAML reads yes, no, on and off so as well; "
                "put a text into quotes)"
            )
        return value


def _inside(value: Any) -> Iterator[Any]:
    """A value, or all that a list holds; the parts of a mapping check their own."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _inside(part)
    else:
        yield value


class GridServer(SettingsGroup):
    """How a server is asked: `semcal.servers.settings.ServerSettings` without the API key."""

    tokenizer: str | None = None
    allow_truncation: bool = False
    concurrency: Size = 16
    retries: Annotated[int, Field(ge=0, lt=2**31)] = 5
    timeout: PositiveFloat = 120.0
    max_tokens_total: Size | None = None
    max_cost: PositiveFloat | None = None
    price_in: Annotated[float, Field(ge=0)] | None = None
    price_out: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> GridServer:
        usable(lambda: ServerSettings(**self.model_dump()))
        return self


#: The settings of a server on which results depend; the others may change from one session to the next.
ASKED_WITH = ("tokenizer", "allow_truncation")


class Model(SettingsGroup):
    """A language model: what it is called in tables, and its directory, hub id, embedded name or server."""

    name: str = Field(min_length=1)
    path: str
    revision: str | None = None
    dtype: str | None = None
    server: GridServer | None = None  # where `path` is openai:URL#NAME

    @property
    def is_server(self) -> bool:
        """Whether it is behind a server."""
        return self.path.startswith(PREFIX)

    @property
    def may_charge(self) -> bool:
        """Whether it is behind a server that may charge for a request."""
        return self.is_server and Endpoint.parse(self.path).may_charge

    @model_validator(mode="after")
    def _of_one_kind(self) -> Model:
        if self.is_server:
            usable(lambda: Endpoint.parse(self.path))
        given = ["revision", "dtype"] if self.is_server else ["server"]
        given = [name for name in given if getattr(self, name) is not None]
        if given:
            kind = "is behind a server" if self.is_server else "is no server (openai:URL#NAME)"
            raise ValueError(f"{shown(self.path)} {kind}; leave {' and '.join(given)} out")
        return self


def usable(make: Callable[[], object]) -> None:
    """Let pydantic report a UsageError with the place of the setting."""
    try:
        make()
    except UsageError as error:
        raise ValueError(str(error)) from error


def _checked_method(name: str) -> str:
    """The name of a method, or an error with the place of the setting."""
    usable(lambda: RECALIBRATORS[name])
    return name


def _checked_format(name: str) -> str:
    """The name of an answer format, or an error with the place of the setting."""
    usable(lambda: AnswerFormat(name))
    return name


#: The paper's.
LEARNING_RATE = 1e-5
MethodName = Annotated[str, AfterValidator(_checked_method)]
FormatName = Annotated[str, AfterValidator(_checked_format)]
#: The method that asks no test question: it maps the confidence in Base's answers.
CALIBRATED: MethodName = "Calibrated"
METHODS: tuple[MethodName, ...] = tuple(method.name for method in BUILT_IN if method.make or method.fit)
LossSetting = tuple[Literal["NLL", "SS", "any"], Annotated[float, Field(gt=0, lt=1)] | None]
OpenShare = Annotated[float, Field(gt=0, le=1)]


class DataSet(SettingsGroup):
    """A set of questions; `format`, `subset`, `split`, `columns` as in `semcal.data.read_questions`."""

    name: str = Field(min_length=1)
    source: str  # a built-in name, a file, or owner/name on the hub
    format: str | None = None
    subset: str | None = None
    split: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    test_source: str | None = None  # where the test part is, if not in the same source
    test_split: str | None = None
    calibration_train: Size | None = None  # None takes what the other parts leave
    validation: Size | None = None  # None is the paper's 2000, or all that a built-in set has; so is test's
    test: Size | None = None
    #: None is the paper's 10 closed book and 4 open book, or all that a built-in set has
    few_shot: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    split_seed: int = 0  # draws the parts; it is no run's


class RunSettings(SettingsGroup):
    """How many runs, and whether each fits anew."""

    count: Size = 4
    refit: bool = False


class MaxNewTokens(SettingsGroup):
    """The longest generation."""

    closed_book: Size = 10
    open_book: Size = 32


class SamplingSettings(SettingsGroup):
    """How answers are drawn and scored."""

    m: Size = 10  # draws per question
    max_new_tokens: MaxNewTokens = MaxNewTokens()
    answer_format: FormatName = "auto"  # the rule that reads an answer in a generation
    top_k: Size | None = None
    top_p: OpenShare | None = None
    scored_in: Literal["whole prompt", "prompt without passage"] = "whole prompt"  # before an answer
    counts: tuple[Size, ...] = (5, 10, 15, 20, 25)  # cut from one sampling of the largest
    counts_runs: Annotated[int, Field(ge=0, lt=2**31)] = 1  # in how many runs, from the first
    reselect: bool = False  # whether candidates are chosen anew at each of these numbers, not as at m


class Fitting(SettingsGroup):
    """What is tried when recalibrators are fitted."""

    solver: Literal["exact", "sgd"] = "exact"  # of TS; ATS and Platt are always fitted by sgd
    losses: tuple[LossSetting, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
    weight_decays: tuple[Annotated[float, Field(ge=0)], ...] = (0.0, 0.01)  # of ATS and Platt
    learning_rate: PositiveFloat | None = None  # of ATS and Platt; None is the paper's 1e-5
    batch_size: Size = 4  # questions for a step of sgd
    warm_up: Annotated[float, Field(ge=0, le=1)] = 0.1  # share of the first epoch of sgd
    #: Trainings go as far as on so many questions: on fewer, the learning rate of ATS and Platt is higher by
    #: as much. The paper's 60 000 make thirty times the steps of 2000.
    as_many_as: Size | None = None

    def learning_rate_for(self, questions: int) -> float | None:
        """The learning rate of ATS and Platt on so many questions; None is the paper's."""
        if self.as_many_as is None:
            return self.learning_rate
        return (self.learning_rate or LEARNING_RATE) * max(1.0, self.as_many_as / questions)

    @model_validator(mode="after")
    def _consistent(self) -> Fitting:
        for loss, alpha in self.losses:
            if (alpha is None) == (loss == "SS"):
                raise ValueError(f"[SS, α] needs an α, [NLL, null] has none, got [{loss}, {alpha}]")
        if not self.losses or len(set(self.losses)) < len(self.losses):
            raise ValueError("losses are one or more, each different from the others")
        if ("any", None) in self.losses and (self.solver == "sgd" or len(self.losses) == 1):
            raise ValueError("any is for TS with solver exact, beside NLL or SS, which all methods take")
        return self


class Selecting(SettingsGroup):
    """How a candidate is chosen on validation: as in `semcal.recalibration.select.select`."""

    by: Literal["gain", "brier"] = "gain"
    measure_alphas: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (0.5, 0.75, 1.25)


class Calibrating(SettingsGroup):
    """What the method Calibrated learns from, and whether it sets a threshold."""

    #: Labelled questions: of validation, where these are asked anyway, then of calibration-train.
    questions: Annotated[int, Field(ge=5, lt=2**31)] = 250
    #: The share of the answers from the threshold on that may be wrong; None sets no threshold. Two in five
    #: of the labelled questions are then kept apart for it.
    risk: Annotated[float, Field(gt=0, lt=1)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05  # allowed probability that it is larger after all


class ClusteringSettings(SettingsGroup):
    """How pairs become meanings."""

    linkage: Literal["components", "greedy", "complete"] = "components"
    merge_refusals: bool = False
    ties: Literal["likelier", "first"] = "likelier"  # which of the largest meanings is the answer


class Grading(SettingsGroup):
    """What counts as correct."""

    fuzzy: Annotated[float, Field(ge=0, le=100)] = 90.0  # ratio from which on two texts match
    fuzzy_above: bool = False  # whether it must be exceeded
    f1: Annotated[float, Field(ge=0, le=1)] = 0.5  # to be exceeded
    numerals: bool = True  # whether a wrong number is never rescued by fuzzy matching or F1
    rouge_l: Annotated[float, Field(ge=0, le=1)] | None = None  # to be exceeded; None leaves the rule out
    #: The texts of a cluster that are graded: "given" is its commonest wording, the answer that is given. The
    #: others are the paper's rule, by which one correct text of up to `members` suffices: random ones, or the
    #: likeliest and random ones.
    choice: Literal["given", "random", "likeliest"] = "given"
    members: Size = 4
    vanilla: Literal["greedy", "beam"] = "greedy"  # the answer of SE_vanilla

    def grader(self) -> RuleGrader:
        """What grades by these rules."""
        at = Thresholds(
            fuzzy=self.fuzzy,
            fuzzy_above=self.fuzzy_above,
            f1=self.f1,
            numerals=self.numerals,
            rouge_l=0.0 if self.rouge_l is None else self.rouge_l,
        )
        return RuleGrader(rouge=self.rouge_l is not None, thresholds=at)


class Evaluation(SettingsGroup):
    """How metrics are taken."""

    bins: Size = 15
    resamples: Annotated[int, Field(ge=100, lt=2**31)] = 1000
    ace: Literal["sound", "reference"] = "sound"
    auroc_one_class: float | None = None


class Extras(SettingsGroup):
    """What is done besides, unless it is switched off; all of it costs time."""

    beams: bool = True  # Base's answers by 4 beams (table 2)
    entailment: bool = True  # grading of Base's answers by the NLI model as well (table 13)
    transfer: bool = True  # answers at the temperatures of the other data sets
    token_losses: bool = True  # what each fit does to the tokens of validation answers
    figure_files: bool = True  # figures as PDF and PNG, beside those on the page
    #: Maps of Base's confidence, learnt on validation questions and tried on test questions.


class GridSettings(SettingsGroup):
    """Settings of a grid."""

    preset: Literal["sound", "paper"] = "sound"  # whose defaults lie below the file
    seed: Annotated[int, Field(ge=0, lt=2**62)] = 0  # see `run_seed`
    models: Annotated[tuple[Model, ...], Field(min_length=1)]
    datasets: Annotated[tuple[DataSet, ...], Field(min_length=1)]
    equivalence: str  # "exact", "atlas", or an NLI model's directory or id
    methods: Annotated[tuple[MethodName, ...], Field(min_length=1)] = METHODS
    runs: RunSettings = RunSettings()
    sampling: SamplingSettings = SamplingSettings()
    fitting: Fitting = Fitting()
    selection: Selecting = Selecting()
    calibrated: Calibrating = Calibrating()
    clustering: ClusteringSettings = ClusteringSettings()
    grading: Grading = Grading()
    evaluation: Evaluation = Evaluation()
    extras: Extras = Extras()
    block: Size = 50  # questions that are computed in one piece
    #: What keys and values of a batch may take, such as "1GB"; None is a quarter of the weights, 64 MiB at
    #: least. Like `block` it decides which questions share a product, so results depend on it.
    memory: str | int | None = None

    @field_validator("memory")
    @classmethod
    def _is_a_size(cls, memory: str | int | None) -> str | int | None:
        if memory is not None:
            usable(lambda: parse_size(memory))
        return memory

    @model_validator(mode="after")
    def _distinct(self) -> GridSettings:
        check_slugs([model.name for model in self.models], what="model")
        check_slugs([dataset.name for dataset in self.datasets], what="data set")
        check_slugs(self.methods, what="method")
        if self.sampling.counts_runs > self.runs.count:
            raise ValueError(
                f"sampling.counts_runs is {self.sampling.counts_runs}, more than the {self.runs.count} runs "
                "that there are"
            )
        if CALIBRATED in self.methods and ("Base" not in self.methods or self.sampling.m < 2):
            raise ValueError(
                "Calibrated maps the share of Base's answers among 2 draws or more; add Base to methods, and "
                "draw as many"
            )
        for model in self.models if any(model.is_server for model in self.models) else ():
            self._check_served(model)
        return self

    def _check_served(self, model: Model) -> None:
        needed = {
            "sampling.top_k and top_p": self.sampling.top_k is not None or self.sampling.top_p is not None,
            "sampling.scored_in": self.sampling.scored_in != "whole prompt",
            "grading.vanilla": self.grading.vanilla == "beam",
        }
        wrong = [name for name, is_set in needed.items() if is_set and model.is_server]
        if wrong:
            raise ValueError(
                f"the model {model.name} is behind a server, which draws from the whole distribution, scores "
                f"no given text and has no beams: leave {', '.join(wrong)} as in preset sound"
            )
        if not set(self.methods) & set(SERVED) and model.is_server:
            raise ValueError(
                f"the model {model.name} is behind a server, which can do none of the methods; add one of "
                f"{', '.join(SERVED)}"
            )

    def left_out(self, model: Model) -> list[str]:
        """The methods, and then the extras, that a model cannot serve: none but for one behind a server."""
        if not model.is_server:
            return []
        methods = [method for method in self.methods if method not in SERVED]
        return methods + [name for name in NOT_SERVED if getattr(self.extras, name)]

    def of_model(self, model: Model) -> GridSettings:
        """The settings without what a model cannot serve."""
        gone = self.left_out(model)
        if not gone:
            return self
        extras = self.extras.model_copy(update=dict.fromkeys(set(gone) & set(NOT_SERVED), False))
        methods = tuple(method for method in self.methods if method not in gone)
        return self.model_copy(update={"methods": methods, "extras": extras})

    def max_new_tokens(self, *, open_book: bool) -> int:
        """The longest generation of a data set."""
        longest = self.sampling.max_new_tokens
        return longest.open_book if open_book else longest.closed_book

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(run_seed(self.seed, run) for run in range(self.runs.count))

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of draws other than m, ascending; empty where no run has them."""
        return tuple(sorted({*self.sampling.counts} - {self.sampling.m})) if self.sampling.counts_runs else ()

    @property
    def chosen_at(self) -> tuple[int, ...]:
        """The numbers of draws other than m at which candidates are chosen, ascending."""
        return self.counts if self.sampling.reselect else ()

    def tree(self) -> Json:
        """Return the settings as plain data."""
        return self.model_dump(mode="json")


def run_seed(seed: int, run: int) -> int:
    """The seed of a run: the first 32 bits of BLAKE2b over "seed/run", so that no two grids share a run.

    >>> run_seed(0, 0), run_seed(0, 1), run_seed(1, 0)
    (1735201683, 3278692055, 2238400176)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{run}".encode(), digest_size=4).digest(), "big")


#: Preset → what it changes in the defaults, which are those of `sound`.
PRESETS: Mapping[str, Json] = {
    "sound": {},
    "paper": {
        "runs": {"count": 4, "refit": True},
        "sampling": {"max_new_tokens": {"closed_book": 10, "open_book": 10}, "answer_format": "first"},
        "fitting": {"solver": "sgd"},
        "selection": {"by": "brier"},
        "clustering": {"linkage": "greedy", "ties": "first"},
        "grading": {"fuzzy_above": True, "numerals": False, "choice": "random"},
    },
}

# ---- From a file

#: Mistakes that are named at once.
NAMED = 10


def read_settings(path: Path, overrides: Sequence[str] = (), *, limit: int | None = None) -> GridSettings:
    """Read a YAML file of settings, and resolve everything that it leaves out.

    `overrides` are "a.b=c" as for `--set`: a path of keys (a number in a list), and a YAML value. No part of
    a data set has more than `limit` questions. UsageError if there is no such file, it is no YAML, or a key
    or value is wrong: all of them are named.
    """
    if not path.is_file():
        raise UsageError(f"no settings there: {path}; give a YAML file such as configs/atlas.yaml")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings: expected keys such as models and datasets")
    return settings_of(content, overrides, limit=limit, where=str(path))


def settings_of(
    content: Json,
    overrides: Sequence[str] = (),
    *,
    limit: int | None = None,
    where: str = "settings",
) -> GridSettings:
    """Settings from plain data; parameters and errors as in `read_settings`."""
    tree = deepcopy(dict(content))
    for override in overrides:
        _set(tree, override)
    preset = check_name(str(tree.get("preset", "sound")), PRESETS, what="preset")
    try:
        settings = GridSettings.model_validate(_over(PRESETS[preset], tree))
    except ValidationError as error:
        complaints = list(_complaints(error))
        more = f"; and {len(complaints) - NAMED} more" if len(complaints) > NAMED else ""
        raise UsageError(f"{where}: " + "; ".join(complaints[:NAMED]) + more) from None
    return resolved(settings, limit=limit)


def _set(content: Any, override: str) -> None:
    """Apply one "a.b=c"."""
    where, equals, text = override.partition("=")
    *path, last = where.split(".")
    what = f"--set {_cut(override)}"
    if not equals or not last or len(path) > DEEPEST:
        raise UsageError(f"{what}: expected key=value, such as sampling.m=5")
    target = content
    for key in path:
        target = _step(target, key, what)
    if not isinstance(target, (dict, list)):
        raise UsageError(f"{what}: {shown(path[-1])} holds no keys")
    value = parse_yaml(text, what=what)
    if isinstance(target, list):
        target[_index(target, last, what)] = value
    else:
        target[last] = value


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def _step(target: Any, key: str, what: str) -> Any:
    if isinstance(target, list):
        return target[_index(target, key, what)]
    child = target.setdefault(key, {})
    if not isinstance(child, (dict, list)):
        raise UsageError(f"{what}: {shown(key)} holds no keys")
    return child


def _index(target: list[Any], key: str, what: str) -> int:
    if not key.isdecimal() or len(key) > 9 or int(key) >= len(target):
        raise UsageError(f"{what}: {shown(key)} is no place in a list of {len(target)}; count from 0")
    return int(key)


def _over(below: Json, above: Json) -> Json:
    """What `above` says, and where it says nothing what `below` does."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, dict) and isinstance(under, Mapping):
            value = _over(under, value)
        merged[key] = value
    return merged


def _complaints(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        where = ".".join(_cut(str(part)) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            keys = _keys_at(detail["loc"][:-1])
            near = difflib.get_close_matches(str(detail["loc"][-1]), keys, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            yield f"unknown setting {where!r}{hint} Known: {', '.join(keys)}"
        elif detail["type"] == "missing":
            yield f"{where} is missing"
        elif detail["type"] == "too_short" and detail["input"]:
            continue  # what is wrong with its items is told
        else:
            message = detail["msg"].removeprefix("Value error, ")
            yield f"{where}: {message}, got {shown(detail['input'])}" if where else message


def _keys_at(place: Sequence[int | str]) -> list[str]:
    """The keys of the settings at a place."""
    part: type[BaseModel] = GridSettings
    for key in place:
        if isinstance(key, str):
            kind = part.model_fields[key].annotation
            part = next(option for option in (kind, *get_args(kind)) if hasattr(option, "model_fields"))
    return list(part.model_fields)


def resolved(settings: GridSettings, *, limit: int | None = None) -> GridSettings:
    """The settings with the sizes of all data sets written out, and none above the limit."""
    datasets = []
    for dataset in settings.datasets:
        defaults = sizes_of_built_in(dataset.source) or {"validation": 2000, "test": 2000}
        sizes: dict[str, int | None] = {}
        for part in PARTS:
            size = getattr(dataset, part)
            size = defaults.get(part) if size is None else size
            sizes[part] = limit if size is None else size if limit is None else min(size, limit)
        datasets.append(dataset.model_copy(update=sizes))
    return settings.model_copy(update={"datasets": tuple(datasets)})


def sizes_of_built_in(source: str) -> Mapping[str, int] | None:
    """How many questions the parts of a set that comes with the package have; None for other sources."""
    return dict(_SIZES.load(source)) if source in _SIZES.names() else None


def settings_text(settings: GridSettings) -> str:
    """All settings as YAML."""
    return yaml_text(settings.tree())


def claim_folder(folder: Path, settings: GridSettings) -> None:
    """Write the settings into a run folder; UsageError, with what differs, if it holds a run with others.

    How servers are asked may change from one session to the next: no result depends on it.
    """
    path = folder / FILE
    text = settings_text(settings)
    if path.exists():
        if path.read_bytes() == text.encode():
            return
        before = read_yaml(path)
        differing = list(_differing(_that_matters(before), _that_matters(settings.tree())))
        if differing or before == settings.tree():
            raise UsageError(
                f"{folder} holds a run with other settings ({', '.join(differing) or 'edited by hand'}); use "
                "--fresh to start again, or another --out"
            )
    with writing(path) as handle:
        handle.write(text)


def _that_matters(tree: Any) -> Any:
    """Settings without those on which no result depends."""
    if not isinstance(tree, dict):
        return tree
    models = [
        {**model, "server": {name: value for name, value in server.items() if name in ASKED_WITH}}
        if isinstance(server := model.get("server"), dict)
        else model
        for model in tree.get("models", [])
    ]
    return {**tree, "models": models}


def _differing(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """The paths of the settings that two trees do not share."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from _differing(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield where
