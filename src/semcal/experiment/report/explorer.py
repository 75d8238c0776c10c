"""The test questions of a run as compact blocks, which explorer.js reads one at a time.

A block holds the results of one model on one data set in one run as JSON, compressed and in base64. So a page
with many thousand questions stays small, opens at once and reads only the requested blocks.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from semcal.databases import as_store_errors, reader
from semcal.experiment.analyses.grid_scores import Record, base_candidate
from semcal.experiment.finished import FinishedRun
from semcal.files import parse_float
from semcal.rows import NO_ANSWER
from semcal.workers import Executor, SerialExecutor

#: Maximum number of characters of all blocks of all runs; a larger page has only run 0.
SMALL = 6_000_000
#: Confidences and entropies are stored as whole ten-thousandths, log-likelihoods as whole thousandths.
UNIT = 10_000
#: Characters that are not allowed in a script element, or in UTF-8 (lone surrogates).
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
#: Query that finds models by steps in the index; DISTINCT would read the whole file.
FIND_VERDICTS = """
WITH RECURSIVE models (model) AS (
    SELECT min(model) FROM verdicts
    UNION ALL
    SELECT (SELECT min(model) FROM verdicts WHERE model > models.model) FROM models WHERE model NOT NULL
)
SELECT premise, hypothesis, margin > 0 FROM models CROSS JOIN verdicts USING (model)
WHERE question = ? AND premise IN ({places}) ORDER BY model, premise, hypothesis
"""

Names = dict[str, int]


@dataclass(frozen=True)
class Explorer:
    """The data of the page's table of questions."""

    head: Record  # read at the start: names, choices of candidates, runs
    blocks: Mapping[str, str] = field(repr=False)  # element id → packed JSON


def explorer_blocks(
    run: FinishedRun, executor: Executor[Any] | None = None, *, small: int = SMALL
) -> Explorer:
    """Pack the questions of all runs if they are `small` enough, else of run 0."""
    executor = executor or SerialExecutor(None)
    questions = {dataset: _asked(run, dataset) for dataset in run.datasets}
    blocks = dict(_run_blocks(run, 0, questions, executor))
    every = run.runs * sum(len(block) for block, _ in blocks.values()) <= small
    for number in range(1, run.runs if every else 1):
        blocks |= _run_blocks(run, number, questions, executor)
    packed_questions = {}
    for d, rows in enumerate(questions.values()):
        stated = [
            [key, row["question"], row.get("answers") or [], *filter(None, [row.get("context")])]
            for key, row in rows.items()
        ]
        packed_questions[f"questions-{d}"] = packed(stated)
    head = {
        "measures": run.measures,
        "methods": run.methods,
        "models": run.models,
        "datasets": run.datasets,
        "runs": list(range(run.runs)) if every else [0],
        "rules": list(dict.fromkeys(rule for _, rules in blocks.values() for rule in rules)),
        "choices": [[_choices(run, model, name) for name in run.datasets] for model in run.models],
    }
    return Explorer(head, packed_questions | {name: block for name, (block, _) in blocks.items()})


def script_json(value: Any) -> str:
    r"""Return compact JSON without HTML markup.

    >>> script_json({"answer": "</script>"})
    '{"answer":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def packed(value: Any) -> str:
    """Return compressed JSON as text for a script element; equal values give equal text."""
    return base64.b64encode(gzip.compress(script_json(value).encode(), compresslevel=6, mtime=0)).decode()


def unpacked(text: str) -> Any:
    """Return the value that `packed` packed.

    >>> unpacked(packed({"a": ["</script>", None]}))
    {'a': ['</script>', None]}
    """
    return json.loads(gzip.decompress(base64.b64decode(text)))


def _asked(run: FinishedRun, dataset: str) -> dict[str, Record]:
    rows: dict[str, Record] = {}
    for model in run.models:
        for row in run.rows(model, dataset, base_candidate(run, model, dataset)):
            rows.setdefault(str(row["id"]), row)
    return rows


def _choices(run: FinishedRun, model: str, dataset: str) -> dict[str, list[Any]]:
    """Return method → the candidate for each measure, replaced by another one if undefined."""
    measures = replace(run, part=None).measures
    return {
        method: [(choices.get(measure) or next(iter(choices.values())))["candidate"] for measure in measures]
        for method, choices in run.selections[model, dataset]["methods"].items()
    }


def _run_blocks(
    run: FinishedRun, number: int, questions: Mapping[str, Mapping[str, Record]], executor: Executor[Any]
) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Yield the blocks of one run of the grid: name, content, and the rules that decided."""
    names = [f"block-{m}-{d}-{number}" for m in range(len(run.models)) for d in range(len(run.datasets))]
    jobs = [
        (part, number, {key: str(row["question"]) for key, row in questions[dataset].items()})
        for part, (_, dataset) in zip(run.parts(), run.pairs)
    ]
    return zip(names, executor.map(_packed_block, jobs, stage="report"))


def _packed_block(job: tuple[FinishedRun, int, Mapping[str, str]]) -> tuple[str, list[str]]:
    """Return the results of one model, data set and run (see explorer.js), and the rules that decided."""
    run, number, questions = job
    ((model, dataset),) = run.pairs
    measures = replace(run, part=None).measures
    rules: Names = {}
    texts: Names = {}
    forms: dict[int, str] = {}
    stated_forms: list[set[str]] = [set() for _ in questions]
    candidates = {}
    for name in dict.fromkeys(chain.from_iterable(_choices(run, model, dataset).values())):
        rows = {str(row["id"]): row for row in run.rows(model, dataset, name, number)}
        candidates[name] = [
            _entry(rows[key], measures, texts, rules) if key in rows else None for key in questions
        ]
        for place, key in enumerate(questions):
            row = rows.get(key, {})
            stated = row.get("normal_forms") or []
            forms.update(zip((_number(texts, text) for text in row.get("samples", [])), stated))
            stated_forms[place].update(stated)
    form_ids = {form: i for i, form in enumerate(dict.fromkeys(forms.values()))}
    judged = stored_verdicts(run.folder / "verdicts.sqlite", zip(questions.values(), stated_forms), form_ids)
    block = {
        "texts": list(texts),
        "forms": list(form_ids),
        "form_of": [form_ids.get(forms.get(i, ""), -1) if i in forms else -1 for i in range(len(texts))],
        "rules": list(rules),
        "candidates": candidates,
        "verdicts": judged if any(judged) else None,
    }
    return packed(block), list(rules)


def _entry(row: Record, measures: Sequence[str], texts: Names, rules: Names) -> list[Any]:
    """Return [clusters, confidences, top, correct, entropy, rule, greedy, greedy_correct].

    All but the first and the last two have one item for each measure.
    """
    samples = [_number(texts, text) for text in row["samples"]]
    logs = [_thousandths(value) for value in row.get("log_likelihoods") or [None] * len(samples)]
    named = [row["rule"].get(measure) for measure in measures]
    return [
        [_members(cluster, samples, logs) for cluster in row["clusters"]],
        [
            None if values is None else [*map(_unit, values)]
            for values in map(row["confidences"].get, measures)
        ],
        [row["top_cluster"].get(measure) for measure in measures],
        [_bit(row["correct"].get(measure)) for measure in measures],
        [_unit(row["semantic_entropy"].get(measure)) for measure in measures],
        [None if rule is None else _number(rules, rule) for rule in named],
        _number(texts, row["greedy"]),
        _bit(row["greedy_correct"]),
    ]


def _number(names: Names, name: str | None) -> int:
    """Return the place of a name in a growing list; None means no answer."""
    return names.setdefault(f"({NO_ANSWER})" if name is None else name, len(names))


def _members(cluster: Iterable[int], samples: Sequence[int], logs: Sequence[Any]) -> list[Any]:
    """Return [text, log-likelihood, count, text, …] of a cluster."""
    counts: dict[tuple[int, Any], int] = {}
    for i in cluster:
        counts[samples[i], logs[i]] = counts.get((samples[i], logs[i]), 0) + 1
    return [item for (text, log), count in counts.items() for item in (text, log, count)]


def _thousandths(value: Any) -> int | str | None:
    """Return a log-likelihood in whole thousandths; JSON has no infinity."""
    number = value if type(value) is float and math.isfinite(value) else parse_float(value)
    if number is None:
        return None
    return "-inf" if math.isinf(number) else round(1000 * round(number, 3))


def _bit(value: bool | None) -> int | None:
    return None if value is None else int(value)


def _unit(value: float | None) -> int | None:
    return None if value is None else round(UNIT * value)


def stored_verdicts(
    path: Path, asked: Iterable[tuple[str, Collection[str]]], numbers: Mapping[str, int]
) -> list[list[int]]:
    """Read the NLI verdicts between the normal forms of each question; empty if the file is missing.

    Each list is [premise, hypothesis, entails, premise, …], with the numbers of the normal forms.
    """
    if not path.is_file():
        return []
    remedy, judged = "delete it and run `semcal run` again", []
    with as_store_errors(f"the file of verdicts {path}", remedy), closing(reader(path)()) as database:
        for question, forms in asked:
            find = FIND_VERDICTS.format(places=", ".join("?" * len(forms)))
            found = database.execute(find, (question, *forms)) if len(forms) > 1 else ()
            judged.append(
                [
                    item
                    for premise, hypothesis, entails in found
                    if hypothesis in forms
                    for item in (numbers[premise], numbers[hypothesis], entails)
                ]
            )
    return judged
