"""The candidates of a grid, method by method, and the fits that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from semcal.experiment.grid_settings import CALIBRATED, GridSettings
from semcal.pipeline.select import WITH_ALPHA, Candidate, CandidateFit, candidate_fits
from semcal.semantics import MEASURES

#: Methods that are fitted to calibration questions.
FITTED = ("TS", "ATS", "Platt")
#: Temperatures of TS-grid: 1/2 to 4.
TEMPERATURES = tuple(2 ** (k / 4) for k in range(-4, 9))


def grid_temperatures() -> Mapping[str, float]:
    """Name → temperature of the candidates of TS-grid."""
    return {f"T = {temperature:.3f}": temperature for temperature in TEMPERATURES}


def known_temperatures() -> Mapping[str, float]:
    """Name → temperature of the candidates that are not fitted."""
    return {"Base": 1.0, "SE": 0.5, **grid_temperatures()}


def candidates_of(settings: GridSettings) -> dict[str, list[Candidate]]:
    """Method → its candidates, in the order in which they are tried; Calibrated has none."""
    return {method: _candidates(method, settings) for method in settings.methods if method != CALIBRATED}


def _candidates(method: str, settings: GridSettings) -> list[Candidate]:
    if method == "TS-grid":
        return [Candidate(name) for name in grid_temperatures()]
    if method not in FITTED:
        return [Candidate(method)]
    return [candidate for fit in fits_of(settings, [method]) for candidate in fit.candidates]


def nothing_to_choose(settings: GridSettings, candidates: Mapping[str, Sequence[Candidate]]) -> bool:
    """Whether each method has one candidate, and nothing else is learnt on validation: none is asked then."""
    one_each = all(len(given) == 1 for given in candidates.values())
    return one_each and len(settings.selection.measure_alphas) == 1 and not settings.extras.score_maps


def only_choices(settings: GridSettings, candidates: Mapping[str, Sequence[Candidate]]) -> dict[str, Any]:
    """What is chosen where there is nothing to choose, as the job `select` gives it; without scores."""
    (measure_alpha,) = settings.selection.measure_alphas
    methods = {
        method: {
            measure: {
                "candidate": one.name,
                "measure_alpha": measure_alpha if measure in WITH_ALPHA else None,
                **{key: value for key, value in asdict(one).items() if key != "name"},
            }
            for measure in MEASURES
        }
        for method, (one,) in candidates.items()
    }
    by_draws = {str(count): methods for count in settings.chosen_at}
    return {"methods": methods, "by_loss": {}, "by_draws": by_draws, "table": []}


def labelled_beside(settings: GridSettings, validation: int) -> int:
    """How many questions of calibration-train Calibrated is learnt from, beside those of validation."""
    return max(0, settings.calibrated.questions - validation)


def fits_of(settings: GridSettings, methods: Sequence[str]) -> list[CandidateFit]:
    """The fits of some methods in the first run."""
    fitting = settings.fitting
    return candidate_fits(
        [method for method in settings.methods if method in FITTED and method in methods],
        losses=fitting.losses,
        weight_decays=fitting.weight_decays,
        solver=fitting.solver,
    )


def refits_of(settings: GridSettings, names: Sequence[str]) -> list[CandidateFit]:
    """The fits of some candidates in the later runs; an exact solution has no seed, so runs share it."""
    if not settings.runs.refit:
        return []
    return [
        replace(fit, losses=(loss,), run=run)
        for run in range(1, settings.runs.count)
        for fit in fits_of(settings, FITTED)
        if fit.solver == "sgd"
        for loss, candidate in zip(fit.losses, fit.candidates)
        if candidate.name in names
    ]
