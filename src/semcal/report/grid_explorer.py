"""The test questions of a grid run as the compact blocks that grid_page.js reads, one at a time.

A block is what one model did on one data set in one run; JSON, compressed and in base64, so that a page of
many thousand questions stays small, opens at once and reads only what a reader asks for.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from semcal.experiment.finished import FinishedRun
from semcal.pipeline.executor import Executor, SerialExecutor
from semcal.report.explorer import as_bit, as_log, script_json
from semcal.report.stored_verdicts import StoredVerdicts

__all__ = ["SMALL", "Explorer", "begin_explorer", "explorer_blocks"]

#: Characters of all blocks up to which a page holds every run; beyond it, run 0 alone.
SMALL = 6_000_000
#: Confidences and entropies are stored as whole ten-thousandths, log-likelihoods as whole thousandths.
UNIT = 10_000

Row = Mapping[str, Any]
Rows = Sequence[Row]
Names = dict[str, int]
Begun = Callable[[], dict[str, tuple[str, list[str]]]]
"""Waits for the blocks of one run: name → block and the rules that decided there."""


@dataclass(frozen=True)
class Explorer:
    """What the page's table of questions is made of.

    Attributes
    ----------
    head : mapping
        What grid_page.js reads at once: names, choices of candidates, the runs there are.
    blocks : mapping of str to str
        Element id → packed JSON.
    """

    head: Mapping[str, Any]
    blocks: Mapping[str, str] = field(repr=False)

    @property
    def runs(self) -> list[int]:
        """The runs that the page holds."""
        return list(self.head["runs"])


def explorer_blocks(run: FinishedRun, *, small: int = SMALL) -> Explorer:
    """Pack the questions of a run; of every run of the grid where that is small, else of run 0.

    Parameters
    ----------
    run : FinishedRun
    small : int
        Characters up to which all runs are packed.
    """
    return begin_explorer(run, SerialExecutor(None), small=small)()


def begin_explorer(
    run: FinishedRun, executor: Executor[Any], *, small: int = SMALL
) -> Callable[[], Explorer]:
    """Begin what `explorer_blocks` does, to be done by workers that have nothing else to do.

    What is returned waits for it.
    """
    asked = {dataset: _asked(run, dataset) for dataset in run.datasets}
    first = _run_blocks(run, 0, asked, executor)
    return partial(_explorer, run, executor, small, asked, first)


def _explorer(
    run: FinishedRun,
    executor: Executor[Any],
    small: int,
    asked: Mapping[str, Mapping[str, Row]],
    first: Begun,
) -> Explorer:
    found = first()
    every = run.runs * sum(len(block) for block, _ in found.values()) <= small
    for number in range(1, run.runs if every else 1):
        found |= _run_blocks(run, number, asked, executor)()
    questions = {
        f"questions-{d}": packed([_question(row) for row in asked[name].values()])
        for d, name in enumerate(run.datasets)
    }
    head = {
        "measures": run.measures,
        "methods": run.methods,
        "models": run.models,
        "datasets": run.datasets,
        "runs": list(range(run.runs)) if every else [0],
        "rules": list(dict.fromkeys(rule for _, rules in found.values() for rule in rules)),
        "choices": [[_choices(run, model, name) for name in run.datasets] for model in run.models],
    }
    return Explorer(head, questions | {name: block for name, (block, _) in found.items()})


def packed(value: Any) -> str:
    """JSON, compressed, as text that may stand in a script element; the same value gives the same text."""
    return base64.b64encode(gzip.compress(script_json(value).encode(), compresslevel=6, mtime=0)).decode()


def unpacked(text: str) -> Any:
    """What `packed` packed.

    Examples
    --------
    >>> unpacked(packed({"a": ["</script>", None]}))
    {'a': ['</script>', None]}
    """
    return json.loads(gzip.decompress(base64.b64decode(text)))


def _asked(run: FinishedRun, dataset: str) -> dict[str, Row]:
    """The questions of a data set by id, in its order."""
    method, measure = run.methods[0], run.measures[0]
    found: dict[str, Row] = {}
    for model in run.models:
        candidate = run.choice(model, dataset, method, measure)["candidate"]
        for row in run.rows(model, dataset, candidate):
            found.setdefault(str(row["id"]), row)
    return found


def _question(row: Row) -> list[Any]:
    """[id, question, answers, context?]."""
    context = [row["context"]] if row.get("context") else []
    return [str(row["id"]), row["question"], row.get("answers") or [], *context]


def _choices(run: FinishedRun, model: str, dataset: str) -> dict[str, list[Any]]:
    """Method → for each measure its candidate."""
    return {
        method: [run.choice(model, dataset, method, measure)["candidate"] for measure in run.measures]
        for method in run.methods
    }


def _run_blocks(
    run: FinishedRun, number: int, asked: Mapping[str, Mapping[str, Row]], executor: Executor[Any]
) -> Begun:
    """Begin the blocks of one run of the grid, each with the rules that decided there."""
    places = [(m, d) for m in range(len(run.models)) for d in range(len(run.datasets))]
    wanted = [
        (replace(run, part=pair), number, {key: str(row["question"]) for key, row in asked[pair[1]].items()})
        for pair in run.pairs
    ]
    packing = executor.map(_packed_block, wanted, stage="report", priority=1)
    return lambda: {f"block-{m}-{d}-{number}": block for (m, d), block in zip(places, packing)}


def _packed_block(wanted: tuple[FinishedRun, int, Mapping[str, str]]) -> tuple[str, list[str]]:
    """A block, and the rules that decided there."""
    run, _, _ = wanted
    with StoredVerdicts(run.folder / "verdicts.sqlite") as verdicts:
        block = _block(*wanted, verdicts)
    return packed(block), block["rules"]


def _block(
    run: FinishedRun, number: int, asked: Mapping[str, str], verdicts: StoredVerdicts
) -> dict[str, Any]:
    """What one model did on one data set in one run; grid_page.js has the shape."""
    ((model, dataset),) = run.pairs
    rules: Names = {}
    texts: Names = {}
    forms: dict[int, str] = {}
    known: list[set[str]] = [set() for _ in asked]
    candidates = {}
    for name in dict.fromkeys(chain.from_iterable(_choices(run, model, dataset).values())):
        rows = {str(row["id"]): row for row in run.rows(model, dataset, name, number)}
        candidates[name] = [
            _entry(rows[key], run.measures, texts, rules) if key in rows else None for key in asked
        ]
        for place, key in enumerate(asked):
            row = rows.get(key, {})
            stated = row.get("normal_forms") or []
            forms.update(zip((texts[text] for text in row.get("samples", [])), stated))
            known[place].update(stated)
    form_ids = {form: i for i, form in enumerate(dict.fromkeys(forms.values()))}
    judged = [verdicts.among(question, stated, form_ids) for question, stated in zip(asked.values(), known)]
    return {
        "texts": list(texts),
        "forms": list(form_ids),
        "form_of": [form_ids.get(forms.get(i, ""), -1) if i in forms else -1 for i in range(len(texts))],
        "rules": list(rules),
        "candidates": candidates,
        "verdicts": judged if any(judged) else None,
    }


def _entry(row: Row, measures: Sequence[str], texts: Names, rules: Names) -> list[Any]:
    """[clusters, confidences, top, correct, entropy, rule, greedy, greedy_correct]; all but the first and
    the last two with one item a measure."""
    samples = [_number(texts, text) for text in row["samples"]]
    logs = [_thousandths(value) for value in row.get("log_likelihoods") or [None] * len(samples)]
    named = [row["rule"].get(measure) for measure in measures]
    return [
        [_members(cluster, samples, logs) for cluster in row["clusters"]],
        [_units(row["confidences"].get(measure)) for measure in measures],
        [row["top_cluster"].get(measure) for measure in measures],
        [as_bit(row["correct"].get(measure)) for measure in measures],
        [_unit(row["semantic_entropy"].get(measure)) for measure in measures],
        [None if rule is None else _number(rules, rule) for rule in named],
        _number(texts, row["greedy"]),
        as_bit(row["greedy_correct"]),
    ]


def _number(names: Names, name: str) -> int:
    """The place of a name in a growing list of them."""
    return names.setdefault(name, len(names))


def _members(cluster: Iterable[int], samples: Sequence[int], logs: Sequence[Any]) -> list[Any]:
    """[text, log-likelihood, how often, text, …] of a cluster."""
    counts: dict[tuple[int, Any], int] = {}
    for i in cluster:
        counts[samples[i], logs[i]] = counts.get((samples[i], logs[i]), 0) + 1
    return [item for (text, log), count in counts.items() for item in (text, log, count)]


def _thousandths(value: Any) -> int | str | None:
    if type(value) is float and math.isfinite(value):  # as nearly all are
        return round(1000 * round(value, 3))
    log = as_log(value)
    return round(1000 * log) if isinstance(log, float | int) else log


def _unit(value: float | None) -> int | None:
    return None if value is None else round(UNIT * value)


def _units(values: Sequence[float] | None) -> list[int | None] | None:
    if values is None:
        return None
    return [None if value is None else round(UNIT * value) for value in values]
