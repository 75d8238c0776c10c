"""How many labels do I need: the learning curve of TS on validation, from labelled questions, resumable.

The validation questions are sampled at those temperatures of the grid alone between which a fitted one lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.experiment.blocks import rows_in_blocks
from semcal.experiment.learning_curve import (
    SIZES,
    LearningCurve,
    grid_weights,
    learning_curve,
    subset_fit,
    subset_temperatures,
)
from semcal.pipeline.grid import GRID
from semcal.pipeline.prompting import Asking
from semcal.qa.datasets import Question
from semcal.recalibration import CalibrationFeatures

__all__ = ["curve_of_labels", "grid_around"]


def grid_around(temperatures: Sequence[float], grid: Sequence[float] = GRID) -> tuple[float, ...]:
    """Return the temperatures of a grid that have a share in the value at one of `temperatures`.

    Examples
    --------
    >>> grid_around([1.0, 1.5], grid=(0.5, 1.0, 2.0, 4.0))
    (1.0, 2.0)
    """
    used = grid_weights(temperatures, grid).sum(0) > 0
    return tuple(np.asarray(grid)[used].tolist())


def curve_of_labels(
    model: LanguageModel,
    features: CalibrationFeatures,
    validation: Sequence[Question],
    *,
    asking: Asking,
    equivalence: Equivalence,
    loss: str = "NLL",
    alpha: float | None = None,
    sizes: Sequence[int] = SIZES,
    subsets: int = 20,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
    keep: Path | None = None,
) -> LearningCurve:
    """Fit TS to random subsets of the calibration questions, and measure each on the validation questions.

    Parameters
    ----------
    model : LanguageModel
        Its head serves the fits; it samples the validation questions once.
    features : CalibrationFeatures
        Of all calibration questions.
    validation : sequence of Question
        Labelled questions that are not fitted to.
    asking, equivalence, m, seed, max_new_tokens
        As in `SemanticUQ`; the seed also draws the subsets and the resamples.
    loss, alpha
        As in `semcal.fit`.
    sizes : sequence of int
        Labelled questions to try; all there are is added to them, larger ones are left out.
    subsets : int
        Random subsets of each size.
    progress : callable, optional
        Maps a label and a total to what is told how much is done.
    keep : Path, optional
        A folder for finished blocks of validation questions: the same call goes on from there.

    Returns
    -------
    LearningCurve
    """

    def tell(label: str, total: int) -> Callable[[int], None] | None:
        return None if progress is None else progress(label, total)

    count = len(features.prompt_start)
    tried = sorted({count, *(size for size in sizes if size <= count)})
    fit = subset_fit(model, features, loss=loss, alpha=alpha)
    fits = subsets * (len(tried) - 1) + 1  # of all questions there is one subset
    fitted = subset_temperatures(
        fit, count, sizes=tried, subsets=subsets, seed=seed, progress=tell("subsets", fits)
    )
    grid = grid_around([1.0, *(t for of_size in fitted.values() for t in of_size)])
    rows = rows_in_blocks(
        model,
        validation,
        grid,
        asking=asking,
        equivalence=equivalence,
        m=m,
        seed=seed,
        max_new_tokens=max_new_tokens,
        progress=tell("validation", len(validation)),
        keep=keep,
    )
    return learning_curve(fitted, rows, seed=seed)
