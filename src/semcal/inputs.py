"""What users give in Python: questions, samples, models and equivalences, made uniform or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from semcal.arrays import as_option
from semcal.data.arguments import Argument, DataFrameLike, kind_of
from semcal.data.datasets import parse_list, references_of
from semcal.data.sources import COMMON_NAMES, peek, read_source_rows, rename
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
from semcal.rows import AnswerKind, Json, Row, RowsAt, check_distinct

if TYPE_CHECKING:
    from semcal.models.protocols import Sampler
    from semcal.servers.settings import ServerSettings


ModelLike: TypeAlias = "Sampler | str | Path"
"""A model of `semcal.load_model`, or its name, directory or address."""
EquivalenceLike: TypeAlias = "Equivalence | str | Path"
"""What decides which answers mean the same: "default", "exact", or an NLI model's name or directory."""
Samples: TypeAlias = "str | Path | DataFrameLike | Iterable[Mapping[str, object]]"
"""A file, a DataFrame or dicts, a row a question, with `samples`."""

#: Fewer draws than this have no share.
FEWEST = 2
#: The columns of rows of samples, and those of them whose cells hold lists.
SAMPLED = ("id", "question", "answers", "context", "group", "samples", "log_likelihoods", "temperatures")
LISTS = {
    "samples": None,
    "log_likelihoods": "[-0.5, -1.2]",
    "temperatures": "[1, 0.5]",
    "clusters": "[[0, 2], [1]]",
}


def as_model(model: object) -> Sampler:
    """Return a language model: as it is, or loaded from its directory, id or name ("atlas"), or a server."""
    if names_a_server(model):
        from semcal.servers.sampler import load_server

        return load_server(str(model))
    if isinstance(model, str | Path):
        return load_model(model)
    if not isinstance(getattr(model, "capabilities", None), Capabilities):
        raise UsageError(
            f"the model is {kind_of(model)}; give its name or directory, or a language model as "
            "semcal.load_model returns it; a model in memory is wrapped by "
            "semcal.models.CausalLanguageModel(model, tokenizer, name=...), and a sampler of your own has "
            "`capabilities` (semcal.models.Capabilities)"
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
    """Load what decides whether two answers mean the same.

    Parameters
    ----------
    name_or_dir : str or Path
        "default", the model for real text that comes with the package; "exact", equality of normal forms;
        "among:spam,ham", that of labels, where any other answer is invalid and counts as none;
        "atlas", the NLI model of the invented world; the name of one that was registered
        (`semcal.models.equivalence.EQUIVALENCES`); the directory or hub id of a sequence-classification
        checkpoint with a label "entailment" (such as those trained on MNLI); "openai:URL#MODEL", a language
        model that is asked in words.
    device : str, optional
        Where the model runs: "cpu", "cuda", "cuda:1". By default a GPU if there is one.
    revision : str, optional
        Commit, tag or branch of a hub id.
    cache : str or Path, optional
        A file in which verdicts are kept and looked up, shared by runs and processes.
    settings : ServerSettings, optional
        How a server is asked. The key is SEMCAL_JUDGE_API_KEY, or else that of the settings, which is
        SEMCAL_API_KEY by default.

    Raises
    ------
    ModelError
        If the checkpoint cannot be loaded or does not say which label is entailment.
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
    """Return an equivalence: as it is, or loaded from its name, directory or id; None is the embedded one."""
    if equivalence is None:
        equivalence = DEFAULT
    if isinstance(equivalence, str | Path):
        return load_equivalence(equivalence)
    if isinstance(equivalence, type) or not hasattr(equivalence, "entails"):
        raise UsageError(
            f'the equivalence is {kind_of(equivalence)}; give "default", "exact", the name or directory of '
            "an NLI model, or what semcal.load_equivalence returns"
        )
    return cast("Equivalence", equivalence)


def load_cluster_config(config: ClusterConfig) -> ClusterConfig:
    """Return the configuration with its equivalence loaded."""
    return replace(config, equivalence=as_equivalence(config.equivalence))


def checked_draws(m: Any, answer: AnswerKind = "modal") -> int:
    """Return a number of draws; UsageError unless it is a whole number of 2 or more.

    With one draw an `answer` that is not read of it may be compared.
    """
    number = int(as_option(m, "m", "a whole number of draws, such as 10", whole=True))
    if number < (FEWEST if answer == "modal" else 1):
        raise UsageError(
            f"m = {m}: one draw has a share of 1 whatever it says; sample at least {FEWEST}, better 10"
        )
    return number


def check_stored_draws(rows: RowsAt, answer: AnswerKind = "modal") -> None:
    """Raise UsageError if rows hold one draw a question, as `checked_draws` would of a model."""
    first = next(iter(rows.values()))
    if first:
        checked_draws(len(first[0].samples), answer)


def check_clustered_by(rows: Iterable[Row], cluster: ClusterConfig, revision: str | None = None) -> None:
    """Raise UsageError if another configuration made the clusters of a row; warn of another revision.

    `revision` is that of the equivalence; by default that of the loaded one. What `clustered_by` does not say
    is not checked.
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
                f"{shown(found[1])}), and the calibration is for {shown(equivalence)} (linkage "
                f"{shown(linkage)}), which finds other meanings. Cluster the samples again with "
                f"--equivalence {equivalence} --config cluster.linkage={linkage}, or calibrate again with "
                f"--equivalence {found[0]} --config cluster.linkage={found[1]}"
            )
        if revision is not None and made_by.get("revision") not in (None, revision):
            warnings.warn(
                f"'clustered_by' names revision {shown(made_by['revision'])} of the equivalence "
                f"{shown(equivalence)}, and the calibration is for revision {shown(revision)}: its "
                "probabilities may not hold",
                SemcalWarning,
                stacklevel=3,
            )


def warn_of_clusters(rows: Sequence[Row], equivalence: str) -> None:
    """Warn where rows hold `clusters` but not their origin, beside a calibration that names an NLI model."""
    stored = sum(row.has("clusters") and not row.has("clustered_by") for row in rows)
    if stored and not needs_no_model(equivalence):
        warnings.warn(
            f"{stored} of {len(rows)} rows hold 'clusters', which are used as they are, and the calibration "
            f"is for the equivalence {shown(equivalence)}: see that it made them, or leave 'clusters' out",
            SemcalWarning,
            stacklevel=3,
        )


def warn_of_rows_left_out(n: int, *, n_rows: int) -> None:
    """Say that n of the rows of samples have no reference answers, in the name of the caller's caller."""
    if 0 < n < n_rows:
        warnings.warn(
            f"{n} of {n_rows} rows of samples have no reference answers and are left out",
            SemcalWarning,
            stacklevel=3,
        )


def as_sample_rows(samples: object, name: str = "samples") -> list[Row]:
    """Return rows of sampled answers from a file, dicts or a DataFrame; rows without ids are numbered."""
    argument = Argument(samples, name)
    if isinstance(samples, str | Path):
        argument.check_path()
        source = read_source_rows(samples, names=SAMPLED)
    else:
        source = argument.rows(argument.items("dicts"))
    columns, source = peek(source, {column: COMMON_NAMES.get(column, ()) for column in SAMPLED}, {})
    rows = [_sampled(argument.usable(line), argument) for line in rename(source, columns)]
    if not rows:
        raise InputError(f"no rows in {shown(str(samples)) if isinstance(samples, str | Path) else name}")
    named = sum(row.has("id") for row in rows)
    if 0 < named < len(rows):
        raise InputError(f"{len(rows) - named} of {len(rows)} rows of {name} have no id; name all, or none")
    rows = rows if named else [Row({"id": str(number), **row.json}) for number, row in enumerate(rows, 1)]
    check_distinct(str(row.json["id"]) for row in rows)
    return rows


def _sampled(line: JsonLine, argument: Argument) -> Row:
    """The row with lists where its cells hold their text, checked."""
    try:
        if "samples" not in line.data:
            raise InputError(
                f"no 'samples' (its keys: {', '.join(line.data)[:200]}); there is one row a question, with "
                "all its sampled answers in one list"
            )
        row = Row(listed_cells(line.data))
        check_clusterable(Row({"id": "", **row.json}))
        _ = row.clusters if row.has("clusters") else None, row.context, row.group
    except InputError as error:
        raise argument.error(line.error(str(error))) from None
    return row


def listed_cells(json: Json) -> JsonObject:
    """Return a row of samples with lists where its cells hold their text; InputError if one is none."""
    cells = dict(json)
    for key in LISTS:
        if isinstance(cells.get(key), str):
            cells[key] = _listed(key, cells[key]) if cells[key].strip() else None
    if "answers" in cells:
        cells["answers"] = list(references_of(cells["answers"]))
    if reason := fault({key: value for key, value in cells.items() if value is not json[key]}):
        raise InputError(reason)
    return {key: value for key, value in cells.items() if value or key not in ("answers", "clusters")}


def _listed(key: str, text: str) -> list[Any]:
    """The list in a cell of a table."""
    try:
        return parse_list(text)
    except InputError as error:
        expected = f"expected a list like {LISTS[key]}, got {shown(text)}"
        raise InputError(f"{key!r}: {expected if LISTS[key] else error}") from None
