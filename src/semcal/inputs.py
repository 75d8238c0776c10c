"""Check and convert the arguments of public functions: samples, models, equivalences and configurations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, cast

from semcal.arrays import as_option
from semcal.data.datasets import Argument, DataFrameLike, parse_list, references_of
from semcal.data.sources import read_source_rows
from semcal.errors import InputError, SemcalWarning, UsageError, shown
from semcal.files import JsonLine, JsonObject, fault
from semcal.models.clustering import ClusterConfig, check_clusterable
from semcal.models.equivalence import (
    DEFAULT,
    EQUIVALENCES,
    LETTER,
    CachedEquivalence,
    EmbeddedEquivalence,
    Equivalence,
    ExactMatch,
    is_same_equivalence,
    names_a_server,
    needs_no_model,
)
from semcal.models.load import load_cross_encoder, load_model
from semcal.models.protocols import Capabilities
from semcal.registry import check_name
from semcal.rows import AnswerKind, Json, Row, RowsAt, check_distinct

if TYPE_CHECKING:
    from semcal.data.datasets import Questions
    from semcal.data.template import TemplateLike, VaryLike
    from semcal.grading.rules import Grader
    from semcal.models.engine.draw import Truncation
    from semcal.models.protocols import Sampler
    from semcal.servers.settings import ServerSettings

ModelLike: TypeAlias = "Sampler | str | Path"
"""A model of `semcal.load_model`, or its name, directory or address."""
EquivalenceLike: TypeAlias = "Equivalence | str | Path"
"""An equivalence of answers: "default", "exact", the name or directory of an NLI model, or an object."""
Samples: TypeAlias = "str | Path | DataFrameLike | Iterable[Mapping[str, object]]"
"""A file, a DataFrame or dicts with one row for each question and the column `samples`."""

#: Fewest samples for which a share of samples is informative.
FEWEST = 2
#: The columns whose cells hold lists, with an example.
LISTS = {
    "samples": None,
    "log_likelihoods": "[-0.5, -1.2]",
    "token_counts": "[3, 5]",
    "temperatures": "[1, 0.5]",
    "clusters": "[[0, 2], [1]]",
}


def as_model(model: object) -> Sampler:
    """Return a language model; a directory, hub id, name ("atlas") or server address is loaded."""
    if names_a_server(model):
        from semcal.servers.sampler import load_server

        return load_server(str(model))
    if isinstance(model, str | Path):
        return load_model(model)
    if not isinstance(getattr(model, "capabilities", None), Capabilities):
        raise UsageError(
            f"model: expected a language model; got {shown(model)}. Pass a name, a directory or a model "
            "of semcal.load_model; wrap a model in memory with "
            "semcal.models.CausalLanguageModel(model, tokenizer, name=...), or add `capabilities` "
            "(semcal.models.Capabilities) to your own sampler"
        )
    return cast("Sampler", model)


def load_equivalence(
    name_or_dir: str | Path = DEFAULT,
    *,
    device: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    settings: ServerSettings | None = None,
) -> Equivalence:
    """Load an equivalence, which decides whether two answers mean the same.

    Parameters
    ----------
    name_or_dir : str or Path
        One of these names, directories or addresses:

        - "default": the model for real text that is part of the package;
        - "exact": equality of normal forms;
        - "among:spam,ham": equality of labels; any other answer is invalid and counts as no answer;
        - "atlas": the NLI model of the fictional world;
        - the name of a registered equivalence (`semcal.models.equivalence.EQUIVALENCES`);
        - a directory or hub id of a sequence-classification checkpoint with a label "entailment", such as a
          model trained on MNLI;
        - "openai:URL#MODEL": a language model behind a server.
    device : str, optional
        Device of the model: "cpu", "cuda", "cuda:1". By default a GPU if one is available.
    revision : str, optional
        Commit, tag or branch of a hub id.
    cache : str or Path, optional
        File that stores verdicts, shared by runs and processes.
    settings : ServerSettings, optional
        Settings of requests to a server. The key is SEMCAL_JUDGE_API_KEY if it is set, else the key of the
        settings, by default SEMCAL_API_KEY.

    Returns
    -------
    Equivalence
        For the option `equivalence` of `semcal.score`, `semcal.ask_many` and `semcal.calibrate`.

    Raises
    ------
    ModelError
        If the checkpoint cannot be loaded, or has no label for entailment.
    ServerError
        If the server cannot be reached.
    StoreError
        If the cache is damaged or belongs to another program.

    Examples
    --------
    >>> load_equivalence("exact").name
    'exact'
    """
    if needs_no_model(str(name_or_dir)):
        if str(name_or_dir) in ("exact", LETTER):
            return ExactMatch(letter=str(name_or_dir) == LETTER)
        return ExactMatch.among(str(name_or_dir))
    equivalence: Equivalence
    if str(name_or_dir) == DEFAULT:
        equivalence = EmbeddedEquivalence()
    elif str(name_or_dir) in EQUIVALENCES:
        equivalence = EQUIVALENCES[str(name_or_dir)].load()
    elif names_a_server(name_or_dir):
        from semcal.servers.entailment import load_verdicts

        equivalence = load_verdicts(str(name_or_dir), settings)
    else:
        equivalence = load_cross_encoder(name_or_dir, device, revision)
    return equivalence if cache is None else CachedEquivalence(equivalence, cache)


def as_equivalence(equivalence: object) -> Equivalence:
    """Return an equivalence; a name, directory or hub id is loaded, and None is "default"."""
    if equivalence is None:
        equivalence = DEFAULT
    if isinstance(equivalence, str | Path):
        return load_equivalence(equivalence)
    if isinstance(equivalence, type) or not hasattr(equivalence, "entails"):
        raise UsageError(
            f"equivalence: expected an equivalence, got {shown(equivalence)}. Pass "
            '"default", "exact", the name or directory of an NLI model, or the result of '
            "semcal.load_equivalence"
        )
    return cast("Equivalence", equivalence)


def load_cluster_config(config: ClusterConfig) -> ClusterConfig:
    """Return the configuration with its equivalence loaded."""
    return replace(config, equivalence=as_equivalence(config.equivalence))


def checked_draws(m: Any, answer: AnswerKind = "modal") -> int:
    """Return the number of samples `m`; UsageError unless `m` is a whole number of 2 or more.

    For an `answer` that is not chosen from the samples, one sample is enough.
    """
    number = int(as_option(m, "m", "a whole number of samples, such as 10", whole=True))
    if number < (FEWEST if answer == "modal" else 1):
        raise UsageError(
            f"m = {m}: the share of a single sample is always 1. Sample at least {FEWEST} answers, better 10"
        )
    return number


def check_stored_draws(rows: RowsAt, answer: AnswerKind = "modal") -> None:
    """Raise UsageError if rows hold too few samples for each question (see `checked_draws`)."""
    first = next(iter(rows.values()))
    if first:
        checked_draws(len(first[0].samples), answer)


def check_clustered_by(rows: Iterable[Row], cluster: ClusterConfig, revision: str | None = None) -> None:
    """Raise UsageError if another configuration made the clusters of a row; warn of another revision.

    `revision` is the expected revision of the equivalence, by default the loaded one. Fields that are missing
    in `clustered_by` are not checked.
    """
    equivalence, linkage = cluster.address, cluster.linkage
    if revision is None and not isinstance(cluster.equivalence, str | Path):
        revision = cluster.judge.revision
    for row in rows:
        by = row.json.get("clustered_by") if row.has("clusters") else None
        made_by = by if isinstance(by, Mapping) else {}
        found = str(made_by.get("equivalence") or equivalence), str(made_by.get("linkage") or linkage)
        if not is_same_equivalence(found[0], equivalence) or found[1] != linkage:
            raise UsageError(
                f"question {row.id!r}: 'clustered_by' names the equivalence {shown(found[0])} (linkage "
                f"{shown(found[1])}), expected {shown(equivalence)} (linkage {shown(linkage)}) as in the "
                "calibration, since another equivalence finds other meanings. Cluster the samples again with "
                f"--equivalence {equivalence} --config cluster.linkage={linkage}, or calibrate again with "
                f"--equivalence {found[0]} --config cluster.linkage={found[1]}"
            )
        if revision is not None and made_by.get("revision") not in (None, revision):
            warnings.warn(
                f"'clustered_by' names revision {shown(made_by['revision'])} of the equivalence "
                f"{shown(equivalence)}, and the calibration is for revision {shown(revision)}: the "
                "probabilities may not hold",
                SemcalWarning,
                stacklevel=3,
            )


def warn_of_clusters(rows: Sequence[Row], equivalence: str) -> None:
    """Warn if rows hold `clusters` of unknown origin, and the equivalence of a calibration is a model."""
    stored = sum(row.has("clusters") and not row.has("clustered_by") for row in rows)
    if stored and not needs_no_model(equivalence):
        warnings.warn(
            f"{stored} of {len(rows)} rows hold 'clusters' of unknown origin, which are used unchanged. "
            f"Check that the equivalence of the calibration, {shown(equivalence)}, made these clusters, or "
            "leave 'clusters' out",
            SemcalWarning,
            stacklevel=3,
        )


def as_sample_rows(
    samples: object,
    name: str = "samples",
    *,
    scored: bool | None = False,
    of_documents: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Return rows of samples from a file, dicts or a DataFrame; rows without ids are numbered.

    With `scored` rows need no samples, and None allows rows without samples if no row has some. Rows of
    structured answers are checked by `of_documents`.
    """
    argument = Argument(samples, name)
    if isinstance(samples, str | Path):
        argument.check_path()
        source = read_source_rows(samples)
    else:
        source = argument.rows(argument.items("dicts"))
    lines = list(map(argument.usable, source))
    if scored is None:
        scored = not any("samples" in line.data for line in lines)
    check = of_documents or (lambda row: None if scored else _check_sampled(row))
    rows = [_checked_row(line, argument, check, is_document=of_documents is not None) for line in lines]
    if not rows:
        raise InputError(f"{shown(str(samples)) if isinstance(samples, str | Path) else name} has no rows")
    named = sum(row.has("id") for row in rows)
    if 0 < named < len(rows):
        lacking = f"'id': missing in {len(rows) - named} of {len(rows)} rows of {name}"
        raise InputError(f"{lacking}. Give an id to all rows, or to none")
    rows = rows if named else [Row({"id": str(number), **row.json}) for number, row in enumerate(rows, 1)]
    check_distinct(str(row.json["id"]) for row in rows)
    return rows


def _checked_row(
    line: JsonLine, argument: Argument, check: Callable[[Row], None], *, is_document: bool
) -> Row:
    try:
        row = Row(line.data if is_document else listed_cells(line.data))
        check(Row({"id": "", **row.json}))
    except InputError as error:
        raise argument.error(line.error(str(error))) from None
    return row


def _check_sampled(row: Row) -> None:
    if not row.has("samples"):
        keys = ", ".join(key for key in row if key != "id")[:200]
        remedy = "Put all samples of a question into one list of one row"
        raise InputError(f"'samples' is missing; the keys are {keys}. {remedy}")
    check_clusterable(row)
    _ = row.clusters if row.has("clusters") else None, row.context, row.group


def listed_cells(json: Json) -> JsonObject:
    """Return a row of samples, with lists for cells that hold the text of a list; InputError if invalid."""
    cells: JsonObject = {}
    for key, example in LISTS.items():
        if isinstance(text := json.get(key), str):
            try:
                cells[key] = parse_list(text) if text.strip() else None
            except InputError as error:
                expected = f"expected a list like {example}, got {shown(text)}"
                raise InputError(f"{key!r}: {expected if example else error}") from None
    if "answers" in json:
        cells["answers"] = list(references_of(json["answers"]))
    if cells and (reason := fault(cells)):
        raise InputError(reason)
    emptied = ("answers", "clusters")
    return {key: value for key, value in {**json, **cells}.items() if value or key not in emptied}


# ---- Configuration objects from the keywords of public functions -------------------------------------------

_Config = TypeVar("_Config")


class PromptKeywords(TypedDict, total=False):
    """The fields of `PromptConfig`."""

    few_shot: Questions | None
    system: str | None
    template: TemplateLike | None
    vary: VaryLike


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingConfig`."""

    m: int | None
    seed: int | None
    temperatures: Sequence[float] | float | None
    max_new_tokens: int | None
    truncation: Truncation | None
    answer_format: str | None


class ClusterKeywords(TypedDict, total=False):
    """The fields of `ClusterConfig`."""

    equivalence: EquivalenceLike | None
    linkage: str | None
    merge_refusals: bool | None


class CalibrationKeywords(TypedDict, total=False):
    """The fields of `CalibrationConfig`; `risk` is an alias of `risks`."""

    answer: AnswerKind | None
    features: Sequence[str] | None
    signals: Sequence[str] | None
    risk: float | Sequence[float] | None
    risks: float | Sequence[float] | None
    delta: float | None
    grader: Grader | str | None
    score: str | None


def configured(kind: type[_Config], config: _Config | None, options: dict[str, Any]) -> _Config:
    """Return the given configuration, or build one from the options that are its fields.

    The used options are removed from `options`; None means the default. UsageError is raised if both the
    configuration and one of its fields are given.
    """
    chosen = {name: options.pop(name) for name in options_of(kind) if name in options}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if config is None:
        return kind(**chosen)
    if not isinstance(config, kind):
        raise UsageError(
            f"expected a {kind.__name__}, got {type(config).__name__}. Pass semcal.{kind.__name__}(…)"
        )
    if chosen:
        names = ", ".join(chosen)
        raise UsageError(
            f"{names}: given together with a {kind.__name__}. Set these fields in the {kind.__name__}"
        )
    return config


def check_options(options: Mapping[str, object], known: Iterable[str], *, of: str) -> None:
    """Raise UsageError, with the nearest known name, for an unknown option."""
    for name in options:
        check_name(name, known, what=f"option of {of}")


def options_of(*kinds: type) -> list[str]:
    """Return the names of the fields of configuration classes."""
    return [name for kind in kinds for name in signature(kind).parameters]
