"""The second half of a cell: what is chosen on validation, then the rows of the test questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from semcal.experiment.answer_jobs import AnswerBlock, EntailmentJob, GreedyJob, GreedyPass, TextFormsJob
from semcal.experiment.cell import Cell
from semcal.experiment.cell_calibration import calibrated_rows, labelled_blocks
from semcal.experiment.cell_fits import diagnose, fit_again, refit
from semcal.experiment.fit_jobs import OverheadJob
from semcal.experiment.grid_blocks import (
    FITTED,
    BlockJob,
    Lines,
    candidates_of,
    known_temperatures,
    nothing_to_choose,
    only_choices,
)
from semcal.experiment.grid_settings import CALIBRATED
from semcal.experiment.paths import rows_path, selection_path
from semcal.experiment.question_sets import PARTS, essentials
from semcal.experiment.row_jobs import MeasureJob, SelectJob
from semcal.pipeline.sample import SamplePass
from semcal.pipeline.store import write_if_new
from semcal.pipeline.worker_state import RecalibratorSource
from semcal.qa.questions import group_ties, several
from semcal.records import dumps

Spec = dict[str, Any]
Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
#: The a of T-SC and G-SC where nothing chose one.
DEFAULT_ALPHA = 0.5
#: Validation questions whose answers recalibrators are timed on.
TIMED = 8


def answer(cell: Cell, temperatures: Mapping[str, float]) -> None:
    """Fit, choose on validation, ask the test questions, and write rows and selection of a prepared cell.

    `temperatures` are those of other data sets, to be tried here.
    """
    fits = diagnose(cell)
    chosen, validation = _choose(cell)
    wanted = _names(chosen["methods"], *chosen["by_draws"].values(), *chosen["by_loss"].values())
    refit(cell, wanted)
    used = _names(chosen["methods"])
    fit_again(cell, map(cell.source, used))
    cell.remove_fits([(name, run) for name, run in cell.fitted if name not in wanted])
    labelled = labelled_blocks(cell, validation) if CALIBRATED in cell.settings.methods else None
    moved = {f"T of {name}": temperature for name, temperature in temperatures.items()}
    asked = _TestQuestions(cell, chosen, _passes(cell, chosen, moved)).rows()
    calibrated = {}
    if labelled is not None:
        with_se = "SE" in cell.settings.methods and labelled is validation
        calibrated = calibrated_rows(cell, labelled, asked, with_se=with_se)
    cell.remove_fits([(name, run) for name, run in cell.fitted if name not in used or run > 0])
    for path, blocks in {**asked, **calibrated}.items():
        write_if_new(cell.root / path, "".join(line + "\n" for line in chain.from_iterable(blocks)))
    content = _selection(cell, chosen, temperatures, fits)
    selection = cell.root / selection_path(cell.model.name, cell.parts.name)
    write_if_new(selection, dumps(content, indent=1) + "\n")


def _selection(cell: Cell, chosen: Spec, temperatures: Mapping[str, float], fits: Sequence[Spec]) -> Spec:
    """What stands in the file of selections."""
    reference = reference_candidate(chosen["methods"])
    plain = {"candidate": _without_forms(reference), "of": reference}
    groups = several(map(group_ties, cell.questions("test")))
    return {
        "model": cell.model.name,
        "dataset": cell.parts.name,
        "open_book": cell.parts.open_book,
        "sizes": {part: len(cell.questions(part)) for part in PARTS},
        **({} if groups is None else {"test_groups": int(groups.max()) + 1}),
        "prompt": cell.prompt,
        **({"left_out": list(cell.not_served)} if cell.not_served else {}),
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


def _with_temperatures(choices: Choices, fits: Sequence[Spec]) -> Spec:
    """Choices by method and measure, each with its one temperature; null where it has none."""
    known = {**known_temperatures(), **{one["candidate"]: one["temperature"] for one in fits}}
    return {
        method: {
            measure: {**one, "temperature": known.get(one["candidate"])} for measure, one in of_method.items()
        }
        for method, of_method in choices.items()
    }


def reference_candidate(methods: Choices) -> str:
    """The candidate whose answers are clustered twice: that of TS, or of the first method, for E-SC.

    >>> chosen = {name: {"E-SC": {"candidate": f"{name} NLL"}} for name in ("ATS", "TS")}
    >>> reference_candidate(chosen)
    'TS NLL'
    """
    of_measures = methods.get("TS") or next(iter(methods.values()))
    return str(next(iter(of_measures.values()))["candidate"])


def _without_forms(reference: str) -> str:
    """What the same answers are called when they are clustered without number and date forms."""
    return f"{reference} without normal forms"


def _choose(cell: Cell) -> tuple[Spec, tuple[AnswerBlock, ...]]:
    """Sample, cluster and grade the validation questions under every candidate, and choose.

    Also returns the blocks of these questions; none where nothing is to be chosen.
    """
    settings = cell.settings
    candidates = candidates_of(settings)
    maps = settings.extras.score_maps
    if nothing_to_choose(settings, candidates):
        return only_choices(settings, candidates), ()
    names = list(dict.fromkeys(one.name for given in candidates.values() for one in given))
    counts = settings.chosen_at
    sources = tuple(map(cell.source, names))
    passes = [SamplePass(sources, settings.seeds[:1], max(settings.sampling.m, *counts, 0), (0,), counts)]
    blocks = tuple(cell.answered("validation", passes, _needed(cell, passes)))
    job = SelectJob(
        candidates,
        blocks,
        settings.sampling.m,
        counts,
        settings.selection.measure_alphas,
        settings.selection.by,
        settings.evaluation.bins,
        score_maps=bool(maps) and "Base" in settings.methods,
        ties=settings.clustering.ties,
    )
    (lines,) = cell.blocks.rows([cell.block(job, "validation", "all")], cell.priority)
    return json.loads(lines[0]), blocks


def _needed(cell: Cell, passes: Sequence[SamplePass]) -> Callable[[], None]:
    """Brings the recalibrators of some passes back where they were not kept."""
    every = [one for some in passes for one in some.recalibrators if isinstance(one, RecalibratorSource)]
    return lambda: fit_again(cell, every)


def _names(*choices: Choices) -> list[str]:
    """The candidates among some choices by method and measure, each once."""
    every = (
        one["candidate"] for some in choices for of_method in some.values() for one in of_method.values()
    )
    return list(dict.fromkeys(every))


def _passes(cell: Cell, chosen: Spec, moved: Mapping[str, float]) -> list[SamplePass]:
    """What the test questions are asked: groups of candidates and runs that share a pass of the model.

    The candidates of the methods are drawn more often in the first runs, for comparisons of numbers of draws,
    and those that are chosen at other numbers beside them; all other rows have m draws. Runs that fit anew
    have passes of their own.
    """
    settings = cell.settings
    main = _names(chosen["methods"], *chosen["by_draws"].values())
    at_m = [*_names(chosen["methods"], *chosen["by_loss"].values()), *moved]
    rest = [name for name in at_m if name not in main]
    counts, more = settings.counts, settings.sampling.counts_runs
    runs = list(range(settings.runs.count))

    def one_pass(names: Sequence[str], runs: Sequence[int], counts: tuple[int, ...]) -> SamplePass:
        sources = tuple(
            RecalibratorSource(name, moved[name]) if name in moved else cell.source(name, runs[0])
            for name in names
        )
        seeds = tuple(settings.seeds[run] for run in runs)
        return SamplePass(sources, seeds, max(settings.sampling.m, *counts, 0), tuple(runs), counts)

    passes = []
    for group in [[run] for run in runs] if settings.runs.refit else [runs]:
        early, late = [run for run in group if run < more], [run for run in group if run >= more]
        asked: list[tuple[list[str], list[int], tuple[int, ...]]] = [(at_m, group, ())]
        if counts and early:
            asked = [(main, early, counts), (rest, early, ()), (at_m, late, ())]
        passes += [one_pass(*one) for one in asked if one[0] and one[1]]
    return passes


@dataclass(frozen=True)
class _TestQuestions:
    """The test questions of a cell, asked with what was chosen on validation."""

    cell: Cell
    chosen: Spec
    passes: Sequence[SamplePass]

    def rows(self) -> dict[str, list[Lines]]:
        """Sample, cluster, grade and measure: file → its lines, a list a block."""
        cell, names = self.cell, (self.cell.model.name, self.cell.parts.name)
        greedy = self._greedy()
        measured = self._measured(cell.answered("test", self.passes, _needed(cell, self.passes)), greedy)
        files: dict[str, list[Lines]] = {path: [] for path in self._files()}
        for (_, block), lines in zip(cell.cut("test"), measured):
            for place, of_file in enumerate(files.values()):
                start = place * len(block)
                of_file.append(lines[start : start + len(block)])
        base = rows_path(*names, "Base", 0)
        if base in files and cell.settings.extras.entailment:
            files[base] = self._by_entailment(files[base])
        if cell.settings.extras.without_normal_forms:
            reference = reference_candidate(self.chosen["methods"])
            plain = self._without_normal_forms(files[rows_path(*names, reference, 0)], reference)
            files[rows_path(*names, _without_forms(reference), 0)] = plain
        return files

    def _sources(self) -> list[tuple[SamplePass, RecalibratorSource]]:
        return [
            (one, source)
            for one in self.passes
            for source in one.recalibrators
            if isinstance(source, RecalibratorSource)
        ]

    def _greedy(self) -> list[Lines]:
        """Greedy and beam answers; methods that keep the argmax share Base's."""
        cell = self.cell
        beams = cell.settings.grading.vanilla == "beam"
        base = RecalibratorSource("Base")
        kinds = ("greedy",) + ("beam",) * (beams or cell.settings.extras.beams)
        asked = {("Base", 0): GreedyPass(base, 0, kinds)}
        for one, source in self._sources():
            run = one.runs[0] if cell.settings.runs.refit else 0
            kinds = ("greedy",) * source.name.startswith("Platt") + ("beam",) * beams
            if kinds:
                asked.setdefault((source.name, run), GreedyPass(source, run, kinds))
        passes, grading = tuple(asked.values()), cell.settings.grading
        jobs = [
            GreedyJob(block, cell.asking, passes, grading, cell.max_new_tokens)
            for _, block in cell.cut("test")
        ]
        return cell.without_failed("test", cell.done("test", jobs, before=_needed(cell, self.passes)))

    def _measured(self, blocks: Sequence[AnswerBlock], greedy: Sequence[Lines]) -> list[Lines]:
        alphas = self._alphas(self.chosen)
        alphas_at = {
            count: self._alphas({"methods": methods, "by_loss": {}})
            for count, methods in self.chosen["by_draws"].items()
        }
        names = (self.cell.model.name, self.cell.parts.name, self.cell.settings.clustering.ties)
        jobs = [MeasureJob(block, lines, alphas, alphas_at, *names) for block, lines in zip(blocks, greedy)]
        return self.cell.done("test", jobs)

    def _files(self) -> list[str]:
        """The files of rows, in the order in which `MeasureJob` gives their lines within a block."""
        cell = self.cell
        return [
            rows_path(cell.model.name, cell.parts.name, source.name, run, count)
            for one in self.passes
            for run in one.runs
            for source in one.recalibrators
            if isinstance(source, RecalibratorSource)
            for count in (None, *one.counts)
        ]

    def _alphas(self, chosen: Spec) -> dict[str, list[float]]:
        """Candidate → the a of T-SC and of G-SC: as chosen with it, or else as its method chose."""
        found: dict[str, list[float]] = {}
        for name in sorted({source.name for _, source in self._sources()}):
            method = name.partition(" ")[0]
            method = "TS" if name.startswith("T of ") else "TS-grid" if method == "T" else method
            found[name] = [_alpha(chosen, method, name, measure) for measure in ("T-SC", "G-SC")]
        return found

    def _by_entailment(self, parts: Sequence[Lines]) -> list[Lines]:
        """Rows of Base with `correct_nli`."""
        settings = self.cell.settings
        found = self.cell.again(parts, lambda rows: EntailmentJob(rows, settings.grading, settings.seeds[0]))
        return [list(map(dumps, rows)) for rows in found]

    def _without_normal_forms(self, parts: Sequence[Lines], reference: str) -> list[Lines]:
        """Rows of a candidate in run 0 with the clusters that text alone gives."""
        settings = self.cell.settings
        t_alpha, g_alpha = self._alphas(self.chosen)[reference]
        found = self.cell.again(
            parts,
            lambda rows: TextFormsJob(
                rows, (t_alpha, g_alpha), settings.clustering, settings.grading, settings.seeds[0]
            ),
        )

        def line(row: Mapping[str, Any]) -> str:
            left = {key: value for key, value in row.items() if key != "correct_nli"}
            return dumps({**left, "candidate": _without_forms(row["candidate"])})

        return [list(map(line, rows)) for rows in found]


def _alpha(chosen: Spec, method: str, name: str, measure: str) -> float:
    own = [chosen["methods"][method], *(of.get(method, {}) for of in chosen["by_loss"].values())]
    choices = [one[measure] for one in own if measure in one]
    exact = [one for one in choices if one["candidate"] == name]
    found = next((one["measure_alpha"] for one in [*exact, *choices]), None)
    return DEFAULT_ALPHA if found is None else float(found)


def overhead_job(cell: Cell) -> BlockJob | None:
    """Times Base and the first candidate of each fitted method that is there; None where there is none."""
    settings = cell.settings
    sources = {
        method: cell.source(name)
        for method, given in candidates_of(settings).items()
        if method in FITTED and (name := _first_kept(cell, [one.name for one in given]))
    }
    if not sources:
        return None
    job = OverheadJob(
        tuple(map(essentials, cell.questions("validation")[:TIMED])),
        cell.asking,
        {"Base": RecalibratorSource("Base"), **sources},
        settings.sampling.m,
        cell.max_new_tokens,
    )
    return BlockJob(job, cell.model, settings.equivalence)


def _first_kept(cell: Cell, names: Sequence[str]) -> str | None:
    """The first of some candidates that is fitted and kept."""
    folders = {name: cell.fitted[name, 0]["folder"] for name in names if (name, 0) in cell.fitted}
    return next(
        (name for name, at in folders.items() if (cell.root / at / "calibration.json").exists()), None
    )
