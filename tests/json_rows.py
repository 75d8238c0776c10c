"""Functions on rows, given and returning the objects of files: what most tests of rows are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import Any

from semcal import inputs, measuring, rows
from semcal.calibration import calibration as calibrations
from semcal.calibration import compatibility, features, learning
from semcal.calibration import samples as stored
from semcal.grading import grade
from semcal.grading.rules import RuleGrader
from semcal.measuring import MeasureOptions
from semcal.models import clustering as grouping
from semcal.models import sample
from semcal.models.clustering import ClusterConfig
from semcal.models.prompting import PromptConfig
from semcal.models.sample import Sampling, SamplingConfig
from semcal.recalibration import select
from semcal.results import answer_of as answer_of_row
from semcal.rows import Row

Json = Mapping[str, Any]


def as_rows(value: Any) -> Any:
    """Objects as rows, within lists, and mappings to lists, of them; everything else as it is."""
    if isinstance(value, list | tuple):
        return [Row(dict(item)) if isinstance(item, Mapping) else as_rows(item) for item in value]
    if isinstance(value, Mapping):
        return {key: as_rows(item) for key, item in value.items()}
    return value


def as_json(value: Any) -> Any:
    """Rows as objects, within lists and mappings of them."""
    if isinstance(value, Row):
        return value.to_json()
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list) else value


def on_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given its first argument as objects and returning objects."""

    @wraps(function)
    def call(rows: Any, *args: Any, **options: Any) -> Any:
        return as_json(function(as_rows(rows), *args, **options))

    return call


def on_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given one object and returning one."""
    return lambda row, *args, **options: as_json(function(Row(row), *args, **options))


check_measurable = on_row(measuring.check_measurable)
check_clusterable = on_row(grouping.check_clusterable)
check_gradable = on_row(grade.check_gradable)
check_assessable = on_row(measuring.check_assessable)
check_calibratable = on_row(compatibility.check_calibratable)
grade_row = on_row(grade.grade_row)
answer_of = on_row(answer_of_row)
measure_at = on_json(measuring.measure_at)
features_of = on_json(features.features_of)
rows_by_temperature = on_json(rows.rows_by_temperature)
choose_temperatures = on_json(select.choose_temperatures)
scores_by_measure = on_json(measuring.scores_by_measure)


def calibrated_rows(objects: Sequence[Json], calibration: calibrations.Calibration) -> list[dict[str, Any]]:
    """Rows with the answers of a calibration, as `semcal measure --calibration` writes them."""
    made: list[dict[str, Any]] = as_json(compatibility.CalibrationStep(calibration)(as_rows(objects)))
    return made


def measure_rows(objects: Sequence[Json], *, sharper: Sequence[Sequence[str]] = (), **options: Any) -> Any:
    """`measure_rows`, with the options of `MeasureOptions`."""
    return as_json(measuring.measure_rows(as_rows(objects), MeasureOptions(**options), sharper=sharper))


def cluster_rows(objects: Sequence[Json], **options: Any) -> tuple[list[dict[str, Any]], int]:
    """`cluster_rows`: the rows, and the number of NLI calls."""
    progress = options.pop("progress", None)
    rows, calls = grouping.cluster_rows(as_rows(objects), ClusterConfig(**options), progress=progress)
    return as_json(rows), calls


def calibrate_samples(
    objects: Sequence[Json],
    *,
    equivalence: Any,
    linkage: str = "components",
    m: int | None = None,
    temperatures: Sequence[float] | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Any:
    """`measure_samples`, then `calibrate_rows`."""
    cluster = ClusterConfig(equivalence, linkage)
    measured = stored.measure_samples(
        as_rows(objects), cluster, m=m, temperatures=temperatures, progress=progress
    )
    return calibrate_rows(measured, equivalence=equivalence, linkage=linkage, **options)


def calibrate_rows(
    rows_at: Mapping[Any, Any], *, equivalence: Any, linkage: str = "components", **options: Any
) -> Any:
    """`calibrate_rows`, with the fields of `SamplesOrigin` and `CalibrationConfig` as options."""
    of_origin = options.keys() & {field.name for field in fields(stored.SamplesOrigin)}
    origin = stored.SamplesOrigin(**{name: options.pop(name) for name in of_origin})
    given = {name: value for name, value in options.items() if value is not None}
    seed = given.pop("seed", 0)
    config = calibrations.calibration_config(None, given, of="calibrate_rows")
    cluster = ClusterConfig(equivalence, linkage)
    how = learning.LearningOptions(seed, origin=origin)
    return learning.calibrate_rows(as_rows(rows_at), cluster, config, how)


def as_sample_rows(samples: Any, what: str = "samples") -> list[dict[str, Any]]:
    """`as_sample_rows`."""
    return as_json(inputs.as_sample_rows(samples, what))


def sampling_of(
    recalibrators: Sequence[Any] = (),
    asking: PromptConfig | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = 10,
    truncation: Any = None,
) -> Sampling:
    """A `Sampling` of one run."""
    config = SamplingConfig(m, seed, max_new_tokens=max_new_tokens, truncation=truncation)
    return Sampling(tuple(recalibrators), asking or PromptConfig(), config)


def sample_questions(model: Any, questions: Any, *, progress: Any = None, **options: Any) -> Any:
    """The draws of one run: ``[recalibrator][question]``."""
    (run,) = sample.sample_runs(model, questions, sampling_of(**options), progress=progress)
    return run


def sample_runs(
    model: Any, questions: Any, *, seeds: Sequence[int], first: int = 0, progress: Any = None, **options: Any
) -> Any:
    """The draws of several runs: ``[run][recalibrator][question]``."""
    made = replace(sampling_of(**options), seeds=tuple(seeds), first=first)
    return sample.sample_runs(model, questions, made, progress=progress)


def fields_of(sampled: Any) -> dict[str, Any]:
    """What a `Sampled` adds to a row of `semcal sample`."""
    return sampled.add_to(Row({}), tokens=True).to_json()


def question_blocks(
    model: Any, questions: Any, *, m: int, ways: int, max_new_tokens: int | None
) -> Iterator[Any]:
    """`question_blocks` for draws in several ways."""
    made = sampling_of([None] * ways, m=m, max_new_tokens=max_new_tokens)
    blocks = sample.question_blocks(model, map(Row.of, questions), made)
    return ([row.to_question() for row in block] for block in blocks)


def plan_sampling(model: Any, questions: Any, **options: Any) -> list[str]:
    """`plan_sampling`."""
    return sample.plan_sampling(model, questions, sampling_of(**options))


def sample_candidates(
    model: Any,
    questions: Any,
    recalibrators: Mapping[Any, Any],
    *,
    asking: PromptConfig,
    equivalence: Any,
    linkage: str = "components",
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    **options: Any,
) -> Any:
    """`sample_candidates`: rows by candidate."""
    made = sampling_of((), asking, m, seed, max_new_tokens)
    cluster = ClusterConfig(equivalence, linkage)
    return as_json(select.sample_candidates(model, questions, recalibrators, made, cluster, **options))


def select_candidates(candidates: Mapping[Any, Any], **options: Any) -> select.Selection:
    """`select`, from clustered rows of each candidate that the rules grade."""
    alphas = options.get("measure_alphas", select.MEASURE_ALPHAS)
    graded = {}
    for candidate, of_candidate in as_rows(candidates).items():
        grades = (grade.grade_clusters(row, grader=RuleGrader()).values() for row in of_candidate)
        verdicts = [[one.correct for one in of_row] for of_row in grades]
        graded[candidate] = select.under_alphas(of_candidate, verdicts, alphas)
    return select.select(graded, **options)


def fit_grid(
    model: Any,
    questions: Any,
    *,
    equivalence: Any,
    temperatures: Sequence[float],
    m: int = 10,
    seed: int = 0,
    by: str = "gain",
    progress: Any = None,
) -> select.TemperatureGrid:
    """The temperatures that TS-grid chooses, with m draws of a seed."""
    made = sampling_of(m=m, seed=seed, max_new_tokens=None)
    cluster = ClusterConfig(equivalence, "components")
    rows = select.rows_at_temperatures(model, questions, temperatures, made, cluster, progress=progress)
    return select.choose_temperatures(rows, by=by)


def rows_at_temperatures(
    model: Any,
    questions: Any,
    temperatures: Sequence[float],
    *,
    equivalence: Any,
    linkage: str = "components",
    asking: PromptConfig | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    **options: Any,
) -> Any:
    """`rows_at_temperatures`: temperature → rows."""
    made = sampling_of((), asking, m, seed, max_new_tokens)
    return as_json(
        select.rows_at_temperatures(
            model,
            questions,
            temperatures,
            made,
            ClusterConfig(equivalence, linkage),
            **options,
        )
    )
