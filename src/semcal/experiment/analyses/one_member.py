"""Correctness of the most confident meaning by one of its members, as SE_vanilla is judged by one answer.

Stored rows hold the verdict on a meaning of which any of several members may be right. The verdict on one of
them needs no model: the answers and references stand in the rows, the rules of grading in the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, StoreError
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import Grading, run_seed
from semcal.pipeline.rows import identity, log_likelihoods_of
from semcal.qa.grading import Grader, members_to_grade

__all__ = ["one_member_correct"]

Row = Mapping[str, Any]


def one_member_correct(
    run: FinishedRun, model: str, dataset: str, candidate: str
) -> dict[str, NDArray[np.float64]]:
    """Grade the first of the members that were drawn from each measure's most confident meaning.

    Where the most likely member is graded in any case (`grading.choice: likeliest`), it is that one.

    Returns
    -------
    dict of str to ndarray of float64, shape (R, N)
        By measure; NaN where it is null.

    Raises
    ------
    StoreError
        As `FinishedRun.rows`; also if a row cannot be graded.
    """
    grading = Grading.model_validate(run.settings.get("grading", {}))
    grader, likeliest = grading.grader(), grading.choice == "likeliest"
    table = [
        [
            _by_measure(run, row, grader, seed=run_seed(run.seed, number), likeliest=likeliest)
            for row in run.rows(model, dataset, candidate, number)
        ]
        for number in range(run.runs)
    ]
    found = np.array(table, dtype=np.float64)  # (R, N, measures)
    return {name: found[:, :, i] for i, name in enumerate(run.measures)}


def _by_measure(
    run: FinishedRun, row: Row, grader: Grader, *, seed: int, likeliest: bool
) -> list[float | None]:
    """The verdicts on a row in the order of the run's measures; those on one meaning are the same."""
    tops = [row["top_cluster"].get(name) for name in run.measures]
    try:
        known = {
            top: _is_right(row, row["clusters"][top], grader, seed=seed, likeliest=likeliest)
            for top in {*tops} - {None}
        }
    except (TypeError, ValueError, KeyError, IndexError, InputError) as error:
        raise StoreError(
            f"question {row.get('id')!r} of a stored file cannot be graded ({error}): delete the folder "
            "samples and run `semcal run` again"
        ) from error
    return [known.get(top) for top in tops]


def _is_right(row: Row, cluster: list[int], grader: Grader, *, seed: int, likeliest: bool) -> bool:
    known = log_likelihoods_of(row, len(row["samples"])) if likeliest else None
    first = None if known is None else max(cluster, key=known.__getitem__)
    (member,) = members_to_grade(cluster, seed=seed, question_id=identity(row), limit=1, first=first)
    return grader.grade(row["question"], [row["samples"][member]], row["answers"]).correct
