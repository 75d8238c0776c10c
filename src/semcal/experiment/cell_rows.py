"""The second half of a cell's plan: what is chosen on validation, then the rows of the test questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from semcal.experiment.cell_fits import diagnose, fitted_again, refit
from semcal.experiment.cell_plain import plain_candidate, plainly_clustered, reference_candidate
from semcal.experiment.cells import Cell, Incomplete
from semcal.experiment.grid_candidates import (
    candidates_of,
    known_temperatures,
    nothing_to_choose,
    only_choices,
)
from semcal.experiment.keeping import remove_answered, remove_features, remove_unchosen
from semcal.experiment.paths import rows_path, selection_path
from semcal.experiment.question_sets import PARTS, row_of
from semcal.experiment.stages import Lines, Piece
from semcal.experiment.store import write_if_new
from semcal.pipeline.crews import Plan
from semcal.qa.questions import group_ties, several
from semcal.records import dumps

__all__ = ["answer"]

Spec = dict[str, Any]
#: The a of T-SC and G-SC where nothing chose one.
DEFAULT_ALPHA = 0.5


def answer(cell: Cell, temperatures: Mapping[str, float]) -> Plan[bool]:
    """Fit, choose on validation, ask the test questions, and write rows and selection.

    Parameters
    ----------
    cell : Cell
        After `semcal.experiment.cell_fits.prepare`.
    temperatures : mapping of str to float
        Other data set → its temperature, to be tried here.

    Returns
    -------
    bool
        False where blocks of other shards are missing.
    """
    fits = yield from diagnose(cell)
    try:
        chosen = yield from _choose(cell)
        yield from refit(cell, _chosen_names(chosen))
        yield from fitted_again(cell, map(cell.reference, _names(chosen["methods"])))
        remove_unchosen(cell, _chosen_names(chosen))
        moved = {f"T of {name}": temperature for name, temperature in temperatures.items()}
        written = yield from _test(cell, chosen, _passes(cell, chosen, moved))
    except Incomplete:
        remove_features(cell)
        return False
    remove_answered(cell, _names(chosen["methods"]))
    root, names = cell.stages.store.root, (cell.model.name, cell.parts.name)
    for path, lines in written.items():
        write_if_new(root / path, "".join(line + "\n" for line in lines))
    content = _selection(cell, chosen, temperatures, fits)
    write_if_new(root / selection_path(*names), dumps(content, indent=1) + "\n")
    return True


def _selection(cell: Cell, chosen: Spec, temperatures: Mapping[str, float], fits: Sequence[Spec]) -> Spec:
    """What stands in the file of selections."""
    reference = reference_candidate(chosen["methods"])
    plain = {"candidate": plain_candidate(reference), "of": reference}
    groups = several(map(group_ties, cell.questions("test")))
    return {
        "model": cell.model.name,
        "dataset": cell.parts.name,
        "open_book": cell.parts.open_book,
        "sizes": {part: len(cell.questions(part)) for part in PARTS},
        **({} if groups is None else {"test_groups": int(groups.max()) + 1}),
        "prompt": cell.prompt,
        "methods": _with_temperatures(chosen["methods"], fits),
        **{
            key: {one: _with_temperatures(found, fits) for one, found in chosen[key].items()}
            for key in ("by_loss", "by_draws")
        },
        "transfer": {
            name: {"candidate": f"T of {name}", "temperature": temperature}
            for name, temperature in temperatures.items()
        },
        **({"plain": plain} if cell.settings.extras.without_normal_forms else {}),
        **{key: chosen[key] for key in ("validation_scores",) if key in chosen},
        "table": chosen["table"],
        "fits": [_with_refits(cell, fit) for fit in fits],
    }


def _with_refits(cell: Cell, fit: Spec) -> Spec:
    """A fit with the temperature of each run, where runs fit anew."""
    found = cell.temperatures(fit["candidate"])
    return {**fit, "temperature_of_run": found} if len(found) > 1 else fit


def _with_temperatures(choices: Mapping[str, Mapping[str, Spec]], fits: Sequence[Spec]) -> Spec:
    """Choices by method and measure, each with its one temperature; null where it has none."""
    known = {**known_temperatures(), **{one["candidate"]: one["temperature"] for one in fits}}
    return {
        method: {
            measure: {**one, "temperature": known.get(one["candidate"])} for measure, one in of_method.items()
        }
        for method, of_method in choices.items()
    }


def _choose(cell: Cell) -> Plan[Spec]:
    """Sample, cluster and grade the validation questions under every candidate, and choose."""
    settings = cell.settings
    candidates = candidates_of(settings)
    maps = settings.extras.score_maps
    if nothing_to_choose(settings, candidates) and not maps:
        return only_choices(settings, candidates)
    names = list(dict.fromkeys(one.name for given in candidates.values() for one in given))
    counts = list(settings.chosen_at)
    passes = [
        {
            "recalibrators": [cell.reference(name) for name in names],
            "runs": [0],
            "seeds": [settings.seeds[0]],
            "m": max([settings.sampling.m, *counts]),
            "counts": counts,
        }
    ]
    sampled = yield from cell.sampled("validation", passes, _needed(cell, passes))
    clustered = yield from cell.clustered("validation", sampled)
    graded = yield from cell.graded("validation", sampled, clustered)
    blocks = [
        {"questions": [row_of(q) for q in block], "sampled": a, "clustered": b, "graded": c}
        for (_, block), a, b, c in zip(cell.cut("validation"), sampled, clustered, graded)
    ]
    if any(block["graded"] is None for block in blocks):
        raise Incomplete
    piece = Piece(
        {
            "methods": {method: [asdict(one) for one in given] for method, given in candidates.items()},
            "blocks": blocks,
            "m": settings.sampling.m,
            "counts": counts,
            "measure_alphas": list(settings.selection.measure_alphas),
            "accuracy_within": settings.selection.accuracy_within,
            "bins": settings.evaluation.bins,
            **({"score_maps": True} if maps and "Base" in settings.methods else {}),
        },
        {},
        cell.label("validation", "all"),
    )
    (lines,) = yield from cell.stages.rows("select", [piece], cell.rank, everyone=True)
    found: Spec = json.loads((lines or [])[0])
    return found


def _needed(cell: Cell, passes: Sequence[Spec]) -> Callable[[], Plan[None]]:
    """Brings the recalibrators of some passes back where they were not kept."""
    return lambda: fitted_again(cell, (one for some in passes for one in some["recalibrators"]))


def _names(*choices: Mapping[str, Mapping[str, Spec]]) -> list[str]:
    """The candidates among some choices by method and measure, each once."""
    return list(
        dict.fromkeys(
            one["candidate"] for some in choices for of_method in some.values() for one in of_method.values()
        )
    )


def _chosen_names(chosen: Spec) -> list[str]:
    """Every candidate that was chosen: those of the methods first."""
    return _names(chosen["methods"], *chosen["by_draws"].values(), *chosen["by_loss"].values())


def _passes(cell: Cell, chosen: Spec, moved: Mapping[str, float]) -> list[Spec]:
    """What the test questions are asked: groups of candidates and runs that share a pass of the model.

    The candidates of the methods are drawn more often in the first runs, for comparisons of numbers of draws,
    and those that are chosen at other numbers beside them; all other rows have m draws. Runs that fit anew
    have passes of their own.
    """
    settings = cell.settings
    main = _names(chosen["methods"], *chosen["by_draws"].values())
    at_m = [*_names(chosen["methods"], *chosen["by_loss"].values()), *moved]
    rest = [name for name in at_m if name not in main]
    counts, more = list(settings.counts), settings.sampling.counts_runs
    runs = list(range(settings.runs.count))
    passes = []
    for group in [[run] for run in runs] if settings.runs.refit else [runs]:
        early, late = [run for run in group if run < more], [run for run in group if run >= more]
        asked: list[tuple[list[str], list[int], list[int]]] = [(at_m, group, [])]
        if counts and early:
            asked = [(main, early, counts), (rest, early, []), (at_m, late, [])]
        passes += [_pass(cell, names, given, cut, moved) for names, given, cut in asked if names and given]
    return passes


def _pass(
    cell: Cell, names: Sequence[str], runs: Sequence[int], counts: Sequence[int], moved: Mapping[str, float]
) -> Spec:
    settings = cell.settings
    references = [
        {"name": name, "temperature": moved[name]} if name in moved else cell.reference(name, runs[0])
        for name in names
    ]
    return {
        "recalibrators": references,
        "runs": list(runs),
        "seeds": [settings.seeds[run] for run in runs],
        "m": max([settings.sampling.m, *counts]),
        "counts": list(counts),
    }


def _test(cell: Cell, chosen: Spec, passes: Sequence[Spec]) -> Plan[dict[str, Lines]]:
    """Sample, cluster, grade and measure the test questions: file → its lines."""
    greedy = yield from _greedy(cell, passes)
    sampled = yield from cell.sampled("test", passes, _needed(cell, passes))
    clustered = yield from cell.clustered("test", sampled)
    graded = yield from cell.graded("test", sampled, clustered)
    blocks = cell.cut("test")
    pieces = [
        None
        if a is None or b is None or c is None or d is None
        else Piece(
            {
                "questions": [row_of(q) for q in block],
                "m": cell.settings.sampling.m,
                "measure_alphas": _alphas(chosen, passes),
                "measure_alphas_at": {
                    count: _alphas({"methods": methods, "by_loss": {}}, passes)
                    for count, methods in chosen["by_draws"].items()
                },
                "model_name": cell.model.name,
                "dataset": cell.parts.name,
                "sampled": a,
                "clustered": b,
                "graded": c,
                "greedy": d,
            },
            {},
            cell.label("test", number),
        )
        for (number, block), a, b, c, d in zip(blocks, sampled, clustered, graded, greedy)
    ]
    measured = yield from cell.stages.rows("measure", pieces, cell.rank)
    groups = _groups(cell, passes)
    files: dict[str, list[list[str]]] = {path: [] for path in groups}
    for (_, block), lines in zip(blocks, measured):
        for place, of_file in enumerate(files.values()):
            start = place * len(block)
            of_file.append([] if lines is None else lines[start : start + len(block)])
    base = rows_path(cell.model.name, cell.parts.name, "Base", 0)
    judged: list[Lines | None] = []
    if base in files and cell.settings.extras.entailment:
        judged = yield from _by_entailment(cell, files[base])
        files[base] = [lines or [] for lines in judged]
    plain: list[Lines | None] = []
    if cell.settings.extras.without_normal_forms:
        reference = reference_candidate(chosen["methods"])
        rows = files[rows_path(cell.model.name, cell.parts.name, reference, 0)]
        plain = yield from plainly_clustered(cell, rows, _alphas(chosen, passes)[reference])
        path = rows_path(cell.model.name, cell.parts.name, plain_candidate(reference), 0)
        files[path] = [lines or [] for lines in plain]
    if any(lines is None for lines in (*measured, *judged, *plain)):
        raise Incomplete
    return {path: list(chain.from_iterable(parts)) for path, parts in files.items()}


def _groups(cell: Cell, passes: Sequence[Spec]) -> list[str]:
    """The files of rows, in the order in which `measure` gives their lines within a block."""
    return [
        rows_path(cell.model.name, cell.parts.name, reference["name"], run, count)
        for one in passes
        for run in one["runs"]
        for reference in one["recalibrators"]
        for count in (None, *one["counts"])
    ]


def _alphas(chosen: Spec, passes: Sequence[Spec]) -> dict[str, list[float]]:
    """Candidate → the a of T-SC and of G-SC: as chosen with it, or else as its method chose."""
    found: dict[str, list[float]] = {}
    names = {reference["name"] for one in passes for reference in one["recalibrators"]}
    for name in sorted(names):
        method = name.partition(" ")[0]
        method = "TS" if name.startswith("T of ") else "TS-grid" if method == "T" else method
        found[name] = [_alpha(chosen, method, name, measure) for measure in ("T-SC", "G-SC")]
    return found


def _alpha(chosen: Spec, method: str, name: str, measure: str) -> float:
    own = [chosen["methods"][method], *(of.get(method, {}) for of in chosen["by_loss"].values())]
    choices = [one[measure] for one in own if measure in one]
    exact = [one for one in choices if one["candidate"] == name]
    found = next((one["measure_alpha"] for one in [*exact, *choices]), None)
    return DEFAULT_ALPHA if found is None else float(found)


def _greedy(cell: Cell, passes: Sequence[Spec]) -> Plan[list[Lines | None]]:
    """The answers without chance: Base's for all methods that leave the likeliest token, Platt's its own."""
    beams = cell.settings.grading.vanilla == "beam"
    asked: dict[tuple[str, int], Spec] = {
        ("Base", 0): {"name": "Base", "run": 0, "kinds": ["greedy", "beam"]}
    }
    if not (beams or cell.settings.extras.beams):
        asked["Base", 0]["kinds"] = ["greedy"]
    for one in passes:
        run = one["runs"][0] if cell.settings.runs.refit else 0
        for reference in one["recalibrators"]:
            kinds = ["greedy"] * reference["name"].startswith("Platt") + ["beam"] * beams
            if kinds:
                asked.setdefault((reference["name"], run), {**reference, "run": run, "kinds": kinds})
    how = {
        "recalibrators": list(asked.values()),
        "grading": cell.settings.grading.model_dump(),
        "longest": cell.settings.max_new_tokens(open_book=cell.parts.open_book),
    }
    pieces = [
        Piece(
            cell.frozen(questions=[row_of(q) for q in block], **how), cell.where(), cell.label("test", number)
        )
        for number, block in cell.cut("test")
    ]
    return (yield from cell.stages.rows("greedy", pieces, cell.rank, before=_needed(cell, passes)))


def _by_entailment(cell: Cell, parts: Sequence[Lines]) -> Plan[list[Lines | None]]:
    """Rows of Base with `correct_nli`; None for a block that is not there."""
    found = yield from cell.again(
        "nli",
        parts,
        ("id", "question", "answers", "normal_forms", "clusters", "top_cluster"),
        seed=cell.settings.seeds[0],
        grading=cell.settings.grading.model_dump(),
        judge=cell.identity["equivalence"],
    )
    return [None if rows is None else list(map(dumps, rows)) for rows in found]
