"""Settings of a grid: models × data sets × methods × runs (design.md; analyses.md, presets).

Defaults are those of preset `sound`. The preset, a YAML file and `--set` override them in this order. An
error names its key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from semcal.data.sources import ATLAS
from semcal.errors import WIDTH, UsageError, shown
from semcal.files import writing
from semcal.grading.rules import RuleGrader, Thresholds
from semcal.meaning.answer import AnswerFormat
from semcal.models.load import parse_size
from semcal.recalibration.methods import BUILT_IN, RECALIBRATORS, SERVED
from semcal.registry import check_name
from semcal.rows import Json
from semcal.servers.settings import PREFIX, Endpoint, ServerSettings
from semcal.yaml_files import DEEPEST, parse_yaml, read_yaml, yaml_text

FILE = "settings.yaml"
PARTS = ("calibration_train", "validation", "test")

Size = Annotated[int, Field(ge=1, lt=2**31)]
#: The extras that need states, logits or beams, which servers do not return.
NOT_SERVED = ("beams", "transfer", "token_losses")


def slug(name: str) -> str:
    """Return a name for a folder: all but ASCII letters, digits, dots and hyphens become "_".

    >>> slug("ATS SS 0.25"), slug("meta-llama/Llama-3.1")
    ('ATS_SS_0.25', 'meta-llama_Llama-3.1')
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def check_slugs(names: Sequence[str], *, what: str) -> None:
    """Raise UsageError for names that share a folder, or that are invalid for folders."""
    name_of: dict[str, str] = {}
    for name in names:
        folder = slug(name)
        if folder.strip(".") == "":
            raise UsageError(f"{what} {name!r} cannot name a folder. Use letters or digits.")
        first = name_of.setdefault(folder, name)
        if first != name or names.count(name) > 1:
            raise UsageError(f"{what} {name!r} and {first!r} would share the folder {folder}. Rename one.")


class SettingsGroup(BaseModel):
    """A group of settings that rejects unknown keys, and other types such as truth values for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that lets pydantic report a UsageError with the place of the setting."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return value

    return AfterValidator(validate)


class GridServer(SettingsGroup):
    """Settings of requests to a server: `semcal.servers.settings.ServerSettings` without the API key."""

    tokenizer: str | None = None
    allow_truncation: bool = False
    concurrency: Size = 16
    retries: Annotated[int, Field(ge=0, lt=2**31)] = 5
    timeout: PositiveFloat = 120.0
    max_tokens_total: Size | None = None
    max_cost: PositiveFloat | None = None
    price_in: Annotated[float, Field(ge=0)] | None = None
    price_out: Annotated[float, Field(ge=0)] | None = None


#: The settings of a server that results depend on; the others may change between sessions.
ASKED_WITH = ("tokenizer", "allow_truncation")


class Model(SettingsGroup):
    """A language model: its name in tables, and its directory, hub id, embedded name or server."""

    name: str = Field(min_length=1)
    path: Annotated[str, checked(lambda path: path.startswith(PREFIX) and Endpoint.parse(path))]
    revision: str | None = None
    dtype: str | None = None
    #: Requests to the server, if `path` is openai:URL#NAME.
    server: Annotated[GridServer, checked(lambda it: ServerSettings(**it.model_dump()))] | None = None

    @property
    def is_server(self) -> bool:
        """True if the model is behind a server."""
        return self.path.startswith(PREFIX)

    @property
    def may_charge(self) -> bool:
        """True if the model is behind a server that may charge for a request."""
        return self.is_server and Endpoint.parse(self.path).may_charge

    @model_validator(mode="after")
    def _of_one_kind(self) -> Model:
        given = ["revision", "dtype"] if self.is_server else ["server"]
        given = [name for name in given if getattr(self, name) is not None]
        if given:
            kind = "is behind a server" if self.is_server else "is not a server (openai:URL#NAME)"
            raise ValueError(f"{shown(self.path)} {kind}; leave {' and '.join(given)} out")
        return self


MethodName = Annotated[str, checked(lambda name: RECALIBRATORS[name])]
FormatName = Annotated[str, checked(AnswerFormat)]
#: The method without test answers of its own: it maps the confidence in Base's answers.
CALIBRATED: MethodName = "Calibrated"
METHODS: tuple[MethodName, ...] = tuple(method.name for method in BUILT_IN if method.make or method.fit)
LossSetting = tuple[Literal["NLL", "SS", "any"], Annotated[float, Field(gt=0, lt=1)] | None]


class DataSet(SettingsGroup):
    """A set of questions; `subset`, `split`, `columns` as in `semcal.data.read_questions`."""

    name: str = Field(min_length=1)
    source: str  # a built-in name, a file, or owner/name on the hub
    subset: str | None = None
    split: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    test_source: str | None = None  # source of the test part, if different
    test_split: str | None = None
    calibration_train: Size | None = None  # None: all remaining questions
    validation: Size | None = None  # None: the paper's 2000, or all of a built-in set; the same for test
    test: Size | None = None
    #: None: the paper's 10 closed book and 4 open book, or all of a built-in set
    few_shot: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    split_seed: int = 0  # for the random parts; not the seed of a run


class RunSettings(SettingsGroup):
    """The number of runs, and whether each run fits again."""

    count: Size = 4
    refit: bool = False


class MaxNewTokens(SettingsGroup):
    """The longest generation."""

    closed_book: Size = 10
    open_book: Size = 32


class SamplingSettings(SettingsGroup):
    """Settings of sampling and scoring."""

    m: Size = 10  # samples per question
    max_new_tokens: MaxNewTokens = MaxNewTokens()
    answer_format: FormatName = "auto"  # rule that finds the answer in a generation
    counts: tuple[Size, ...] = (5, 10, 15, 20, 25)  # numbers of samples in run 0, cut from the largest
    reselect: bool = False  # choose candidates again at each count instead of at m only


class Fitting(SettingsGroup):
    """The candidates of recalibrators and the settings of their fits."""

    solver: Literal["exact", "sgd"] = "exact"  # of TS; ATS and Platt always use sgd
    losses: tuple[LossSetting, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
    weight_decays: tuple[Annotated[float, Field(ge=0)], ...] = (0.0, 0.01)  # of ATS and Platt
    learning_rate: PositiveFloat | None = None  # of ATS and Platt; None: the paper's 1e-5

    @model_validator(mode="after")
    def _consistent(self) -> Fitting:
        for loss, alpha in self.losses:
            if (alpha is None) == (loss == "SS"):
                raise ValueError(f"expected [SS, α] or [NLL, null], got [{loss}, {alpha}]")
        if not self.losses or len(set(self.losses)) < len(self.losses):
            raise ValueError("expected one or more different losses")
        if ("any", None) in self.losses and (self.solver == "sgd" or len(self.losses) == 1):
            raise ValueError(
                "any requires TS with solver exact, together with NLL or SS, which all methods support"
            )
        return self


class Selecting(SettingsGroup):
    """Settings of the choice on validation questions, as in `semcal.recalibration.select.select`."""

    by: Literal["gain", "brier"] = "gain"
    measure_alphas: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (0.5, 0.75, 1.25)


class Calibrating(SettingsGroup):
    """Settings of the method Calibrated and its threshold."""

    #: Number of labeled questions: of validation, if these are asked anyway, then of calibration-train.
    questions: Annotated[int, Field(ge=5, lt=2**31)] = 250
    #: Limit of the selective risk for the threshold, which uses 40% of the labeled questions as held-out
    #: labels; None: no threshold.
    risk: Annotated[float, Field(gt=0, lt=1)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05  # allowed probability of a larger risk


class ClusteringSettings(SettingsGroup):
    """Settings of clusters."""

    linkage: Literal["components", "greedy", "complete"] = "components"
    merge_refusals: bool = False
    ties: Literal["likelier", "first"] = "likelier"  # rule for ties of the largest meanings


class Grading(SettingsGroup):
    """Settings of the rules that grade answers."""

    fuzzy_above: bool = False  # whether the ratio of matching texts must be larger than 90
    numerals: bool = True  # whether fuzzy matching and F1 never accept a wrong number
    rouge_l: Annotated[float, Field(ge=0, le=1)] | None = None  # minimum, exclusive; None: rule not used
    #: The graded texts of a cluster: "given" is its most frequent wording, the answer; "random" is the
    #: paper's rule, by which one correct text among up to `members` random ones suffices.
    choice: Literal["given", "random"] = "given"
    members: Size = 4
    vanilla: Literal["greedy", "beam"] = "greedy"  # answer of SE_vanilla

    def grader(self) -> RuleGrader:
        """Return the grader with these rules."""
        at = Thresholds(
            fuzzy_above=self.fuzzy_above,
            numerals=self.numerals,
            rouge_l=0.0 if self.rouge_l is None else self.rouge_l,
        )
        return RuleGrader(rouge=self.rouge_l is not None, thresholds=at)


class Evaluation(SettingsGroup):
    """Settings of metrics."""

    resamples: Annotated[int, Field(ge=100, lt=2**31)] = 1000


class Extras(SettingsGroup):
    """Additional work, which costs time and can be switched off."""

    beams: bool = True  # Base's answers with 4 beams (table 2)
    entailment: bool = True  # also grade Base's answers with the NLI model (table 13)
    transfer: bool = True  # answers at the temperatures of the other data sets
    token_losses: bool = True  # effects of each fit on the tokens of validation answers
    figure_files: bool = True  # figures as PDF and PNG, beside those on the page


class GridSettings(SettingsGroup):
    """Settings of a grid."""

    preset: Literal["sound", "paper"] = "sound"  # its defaults are overridden by the file
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
    block: Size = 50  # number of questions computed together
    #: Memory for the keys and values of a batch, such as "1GB"; None: a quarter of the weights, at least
    #: 64 MiB. Like `block` it determines which questions share a product, so results depend on it.
    memory: Annotated[str | int, checked(parse_size)] | None = None

    @model_validator(mode="after")
    def _distinct(self) -> GridSettings:
        check_slugs([model.name for model in self.models], what="model")
        check_slugs([dataset.name for dataset in self.datasets], what="data set")
        check_slugs(self.methods, what="method")
        if CALIBRATED in self.methods and ("Base" not in self.methods or self.sampling.m < 2):
            raise ValueError(
                "Calibrated maps the share of Base's answers among at least 2 samples. Add Base to methods, "
                "and set sampling.m to 2 or more."
            )
        for model in self.models:
            if model.is_server:
                self._check_served(model)
        return self

    def _check_served(self, model: Model) -> None:
        if self.grading.vanilla == "beam":
            raise ValueError(
                f"grading.vanilla: the model {model.name} is behind a server, which has no beams. Set greedy."
            )
        if not set(self.methods) & set(SERVED):
            raise ValueError(
                f"the model {model.name} is behind a server, which supports none of the methods. Add one of "
                f"{', '.join(SERVED)}"
            )

    def left_out(self, model: Model) -> list[str]:
        """Return the methods, and then the extras, that a model does not support; none for a local model."""
        if not model.is_server:
            return []
        methods = [method for method in self.methods if method not in SERVED]
        return methods + [name for name in NOT_SERVED if getattr(self.extras, name)]

    def of_model(self, model: Model) -> GridSettings:
        """Return the settings without methods and extras that a model does not support."""
        gone = self.left_out(model)
        if not gone:
            return self
        extras = self.extras.model_copy(update=dict.fromkeys(set(gone) & set(NOT_SERVED), False))
        methods = tuple(method for method in self.methods if method not in gone)
        return self.model_copy(update={"methods": methods, "extras": extras})

    def max_new_tokens(self, *, open_book: bool) -> int:
        """Return the maximum length of generations of a data set."""
        longest = self.sampling.max_new_tokens
        return longest.open_book if open_book else longest.closed_book

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(run_seed(self.seed, run) for run in range(self.runs.count))

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of samples other than m, ascending."""
        return tuple(sorted({*self.sampling.counts} - {self.sampling.m}))

    @property
    def chosen_at(self) -> tuple[int, ...]:
        """The numbers of samples other than m at which candidates are chosen, ascending."""
        return self.counts if self.sampling.reselect else ()

    def tree(self) -> Json:
        """Return the settings as plain data."""
        return self.model_dump(mode="json")


def run_seed(seed: int, run: int) -> int:
    """Return the seed of a run: 32 bits of BLAKE2b over "seed/run", so that grids do not share runs.

    >>> run_seed(0, 0), run_seed(0, 1), run_seed(1, 0)
    (1735201683, 3278692055, 2238400176)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{run}".encode(), digest_size=4).digest(), "big")


#: Preset → its changes of the defaults, which are those of `sound`.
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

#: Maximum number of errors in a message.
NAMED = 10


def read_settings(path: Path, overrides: Sequence[str] = (), *, limit: int | None = None) -> GridSettings:
    """Read a YAML file of settings, and complete it with the defaults.

    `overrides` are "a.b=c" as for `--set`: a path of keys (a number in a list), and a YAML value. No part of
    a data set has more than `limit` questions. UsageError names a missing file, invalid YAML, or the invalid
    keys and values.
    """
    if not path.is_file():
        raise UsageError(f"{path}: the file does not exist. Pass a YAML file such as configs/atlas.yaml.")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected keys such as models and datasets. Pass a file of settings.")
    return settings_of(content, overrides, limit=limit, where=str(path))


def settings_of(
    content: Json,
    overrides: Sequence[str] = (),
    *,
    limit: int | None = None,
    where: str = "settings",
) -> GridSettings:
    """Return settings from plain data; parameters and errors as in `read_settings`."""
    tree = deepcopy(dict(content))
    for override in overrides:
        _set(tree, override)
    preset = check_name(str(tree.get("preset", "sound")), PRESETS, what="preset")
    try:
        # as JSON, in which lists are tuples for strict settings
        settings = GridSettings.model_validate_json(json.dumps(_over(PRESETS[preset], tree)))
    except ValidationError as error:
        raise UsageError(f"{where}: {'; '.join(islice(_complaints(error), NAMED))}") from None
    return resolved(settings, limit=limit)


def _set(content: Json, override: str) -> None:
    where, equals, text = override.partition("=")
    *path, last = where.split(".")
    what = f"--set {_cut(override)}"
    if not equals or not last or len(path) > DEEPEST:
        raise UsageError(f"{what}: expected key=value, such as sampling.m=5")
    target: Any = content
    for key in path:
        place = _place(target, key, what)
        target = target.setdefault(place, {}) if isinstance(target, dict) else target[place]
        if not isinstance(target, (dict, list)):
            raise UsageError(f"{what}: {shown(key)} has no keys")
    target[_place(target, last, what)] = parse_yaml(text, what=what)


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def _place(target: Any, key: str, what: str) -> Any:
    """Return a key of a mapping, or its number in a list."""
    if isinstance(target, dict):
        return key
    if not key.isdecimal() or len(key) > 9 or int(key) >= len(target):
        raise UsageError(f"{what}: {shown(key)} is outside of a list of {len(target)} items; count from 0")
    return int(key)


def _over(below: Json, above: Json) -> Json:
    """Return the settings of `below`, overridden by those of `above`."""
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
            yield f"{where}: unknown setting. Use one of docs/grid.md."
        elif detail["type"] == "missing":
            yield f"{where} is missing"
        else:
            message = detail["msg"].removeprefix("Value error, ")
            yield f"{where}: {message}, got {shown(detail['input'])}" if where else message


def resolved(settings: GridSettings, *, limit: int | None = None) -> GridSettings:
    """Return the settings with the sizes of all data sets, at most `limit`."""
    datasets = []
    for dataset in settings.datasets:
        is_built_in = dataset.source in ATLAS
        sizes = (
            resolve_name("semcal.demo.questions:SIZES") if is_built_in else {"validation": 2000, "test": 2000}
        )
        given = {part: getattr(dataset, part) for part in PARTS if getattr(dataset, part) is not None}
        sizes = {**sizes, **given}
        limited = sizes if limit is None else {part: min(sizes.get(part, limit), limit) for part in PARTS}
        datasets.append(dataset.model_copy(update=limited))
    return settings.model_copy(update={"datasets": tuple(datasets)})


def claim_folder(folder: Path, settings: GridSettings) -> None:
    """Write the settings into a run folder; UsageError with the differences if it has other settings.

    Settings of requests to servers may differ if no result depends on them.
    """
    path = folder / FILE
    if path.exists():
        differing = list(_differing(_that_matters(read_yaml(path)), _that_matters(settings.tree())))
        if differing:
            raise UsageError(
                f"{folder} holds a run with other settings ({', '.join(differing)}). Pass --fresh to start "
                "again, or another --out."
            )
    with writing(path) as handle:
        handle.write(yaml_text(settings.tree()))


def _that_matters(tree: Any) -> Any:
    """Return the settings that results depend on."""
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
    """Yield the paths of settings that differ between two trees."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from _differing(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield where
