"""Find problems of labeled rows, and advice for the report, as one sentence each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats
from semcal.calibration.features import MOST_LACKING, AnswerFeatures, lacking_share
from semcal.data.question import Ties
from semcal.errors import InputError, shown
from semcal.metrics.frequencies import Groups
from semcal.models.equivalence import Equivalence, ExactMatch, count_invalid
from semcal.models.prompting import PromptConfig
from semcal.recalibration.files import Provenance
from semcal.rows import Row
from semcal.text.normal_form import normal_form

#: Accuracy below which a model is nearly always wrong.
HARDLY = 0.1
#: Labels of a set: at most so many, each the reference of at least so many questions.
MOST_LABELS, FEWEST_QUESTIONS = 8, 5
#: Separator of answers that were written into one cell.
LISTED = re.compile(r"\S\s*[;|]\s*\S")


def problems_of_rows(
    rows: Sequence[Row], ties: Sequence[Ties], groups: Groups | None, testing: NDArray[np.bool_]
) -> Iterator[str]:
    """Yield problems of labeled rows, and of the rows that test a threshold (`testing`)."""
    keys = Counter(tie for row_ties in ties for tie in row_ties if tie[0] == "question")
    repeated = sum(count for count in keys.values() if count > 1)
    if repeated:
        yield (
            f"{repeated} of {len(rows)} labeled questions occur more than once, and count as fewer. "
            "Remove the copies"
        )
    independent = int(testing.sum()) if groups is None else len(np.unique(groups[testing]))
    if independent < testing.sum():
        yield (
            f"some of the {testing.sum()} questions that test the threshold share a passage or group. They "
            f"count as {independent} groups, and the threshold holds for questions of new groups"
        )
    lists = [
        row for row in rows if row.is_labelled and len(row.answers) == 1 and LISTED.search(row.answers[0])
    ]
    if lists:
        yield (
            f"{len(lists)} reference answers look like several in one ({lists[0].answers[0]!r}, id "
            f"{lists[0].id!r}), so that correct answers are graded as wrong. Write them as a list"
        )


def problems_of_features(features: AnswerFeatures) -> Iterator[str]:
    """Yield requested features that are left out."""
    for name in features.optional:
        if (share := lacking_share(features, name)) > MOST_LACKING:
            yield f"{100 * share:.0f}% of the questions have no {name!r}, which is left out"


def check_references(row: Row, among: ExactMatch) -> None:
    """Raise InputError for a reference that is not one of the labels."""
    references = row.answers if row.is_labelled else ()
    if unknown := [answer for answer in references if not among.form(answer)]:
        labels = ", ".join(among.labels)
        raise InputError(f"'answers': the reference {shown(unknown[0])} is not one of the labels {labels}")


def problems_of_labels(rows: Sequence[Row], equivalence: Equivalence | str) -> Iterator[str]:
    """Yield the number of samples that are none of the labels; InputError for such a reference."""
    if not isinstance(equivalence, ExactMatch):
        if suggestion := suggest_labels(row.answers for row in rows if row.is_labelled):
            yield suggestion
        return
    if not equivalence.labels:
        return
    for row in rows:
        try:
            check_references(row, equivalence)
        except InputError as error:
            raise row.error(str(error)) from None
    texts = [text for row in rows for text in row.texts]
    if invalid := count_invalid(equivalence, texts):
        labels = ", ".join(equivalence.labels)
        yield f"{invalid} of {len(texts)} samples are none of the labels {labels}, and count as no answer"


def suggest_labels(references: Iterable[Sequence[str]]) -> str | None:
    """Suggest --answers-among if the references of a set of questions are few strings.

    >>> suggest_labels([["Yes"], ["no"]] * 10)
    "the references of 20 questions are 2 labels. Pass --answers-among 'Yes,no'...
    >>> suggest_labels([["Yes"], ["Lima"]]) is None
    True
    """
    counts, spelled = Counter[str](), dict[str, str]()
    for answers in references:
        forms = {normal_form(answer): answer for answer in reversed(answers)}
        counts.update(forms.keys())
        spelled |= {form: text for form, text in forms.items() if form not in spelled}
        if len(forms) > 1 or len(counts) > MOST_LABELS:
            return None
    if (
        len(counts) < 2
        or min(counts.values()) < FEWEST_QUESTIONS
        or any("," in text for text in spelled.values())
    ):
        return None
    return (
        f"the references of {counts.total()} questions are {len(counts)} labels. Pass --answers-among "
        f"{shown(','.join(spelled.values()))} to compare answers with these labels only"
    )


def what_to_do_first(rows: Sequence[Row], correct: Floats, provenance: Provenance | None) -> Iterator[str]:
    """Yield facts with advice that a user should know before any figure."""
    n, right = len(correct), int(correct.sum())
    advice = "Add few-shot examples (--few-shot)"
    if right < HARDLY * n:
        yield f"the model is nearly always wrong ({right} of {n} correct). {advice}, or use a larger model"
    differ = sum(len(row.clusters) == len(row.samples) for row in rows)
    if 2 * differ > len(rows) and any(len(row.samples) > 1 for row in rows):
        text = f"all samples differ for {differ} of {len(rows)} questions, so that shares mean little"
        yield f"{text}. {advice}, or an equivalence model (--equivalence)"
    finished = [ended for row in rows if row.has("finished") for ended in row.finished]
    if 2 * finished.count(False) > len(finished):
        cut = f"{finished.count(False)} of {len(finished)} samples were cut at the token limit"
        yield f"{cut}. {advice} with short answers, or allow more tokens (--max-new-tokens)"
    if provenance is not None and not PromptConfig.from_description(provenance.prompt).few_shot:
        yield f"there are no few-shot examples, and models tend to answer in sentences. {advice}"
