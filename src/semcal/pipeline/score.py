"""`semcal.score`: samples from any system in, measured and graded answers out; no model needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.engine.equivalence import Equivalence
from semcal.errors import InputError
from semcal.pipeline.answer import answer_of
from semcal.pipeline.cluster import cluster_new
from semcal.pipeline.grade import as_grader
from semcal.pipeline.inputs import as_equivalence, as_sample_rows, checked_seed, warn_of_clusters
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.progress import ShowProgress, shown_progress
from semcal.pipeline.results import Results
from semcal.pipeline.sample_features import RowsAt, rows_by_temperature
from semcal.registry import check_name
from semcal.semantics import MEASURES

if TYPE_CHECKING:
    from semcal.pipeline.calibrated import Calibration
    from semcal.qa.grading import Grader


def score(
    samples: Any,
    equivalence: Equivalence | str | Path | None = None,
    *,
    calibration: Calibration | str | Path | None = None,
    grader: Grader | str | None = None,
    measure: str | None = None,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    linkage: str | None = None,
    seed: int = 0,
    progress: ShowProgress = True,
) -> Results:
    """Cluster and measure sampled answers, and grade them where reference answers are known; no model needed.

    Parameters
    ----------
    samples : file, DataFrame or dicts
        A row a question: `question`, `samples` (a list of texts or its JSON) and, where there are some,
        `log_likelihoods` (length-normalised, nats), `answers` (references), `id`, `context`, `group`, and
        `temperatures`, one a sample, if they differ. `clusters` in them are used as they are, unless
        `equivalence` or `linkage` is given: then all are clustered anew.
    equivalence : Equivalence, str or Path, optional
        As in `semcal.calibrate`; by default "exact", or the calibration's.
    calibration, measure, t_alpha, g_alpha, linkage : optional
        As in `semcal.SemanticUQ`.
    grader : Grader or {"rules", "nli"}, optional
        As in `semcal.calibrate`; `seed` chooses the members of a cluster that are graded.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that are clustered.

    Raises
    ------
    InputError
        If a row cannot be used, with its place and what to do.
    UsageError
        For a wrong argument, or is set by the calibration.

    Examples
    --------
    >>> found = score([{"question": "Who wrote it?", "samples": ["Ana Velis", "Ana Velis.", "Bo Tarn"]}])
    >>> found[0]
    Answer('Ana Velis', confidence=0.667)
    """
    seed, given = checked_seed(seed), as_sample_rows(samples)
    chosen = check_name(measure or "E-SC", MEASURES, what="measure")
    if equivalence is not None or linkage is not None:
        given = [{key: value for key, value in row.items() if key != "clusters"} for row in given]
    if calibration is not None:
        from semcal.pipeline import apply_calibration as applying

        calibration = applying.as_calibration(calibration)
        applying.check_beside(calibration, {"linkage": linkage, "measure": measure})
        equivalence, linkage = applying.equivalence_of(calibration, equivalence), calibration.linkage
    judge, linkage = as_equivalence(equivalence or "exact"), linkage or "components"
    if calibration is not None:
        applying.check_equivalence(calibration, judge)
        warn_of_clusters(given, calibration.equivalence)
    marks = as_grader(grader, judge)
    with shown_progress(progress, "score", len(given)) as update:
        clustered = cluster_new(given, equivalence=judge, linkage=linkage, progress=update)
    drawn: RowsAt = rows_by_temperature(clustered)
    if calibration is not None:
        drawn = applying.drawn_for(calibration, clustered)
    rows = {t: measure_rows(part, t_alpha=t_alpha, g_alpha=g_alpha) for t, part in drawn.items()}
    own = next(iter(rows.values()))
    if calibration is None:
        lacking = [row["id"] for row in own if chosen not in row["confidences"]]
        if lacking:
            raise InputError(
                f"question {lacking[0]!r} has no log-likelihoods, which {chosen} needs; use E-SC"
            )
        answers = [answer_of(row, chosen, None, None) for row in own]
    else:
        limit = None if calibration.threshold is None else calibration.threshold.threshold
        answers = [answer_of(row, chosen, one, limit) for row, one in zip(own, calibration.apply(rows))]
    how: dict[str, Any] = {"equivalence": judge, "linkage": linkage, "seed": seed}
    return Results(answers, rows, grader=marks, stored=True, **how)
