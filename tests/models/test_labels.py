"""Labels as answers: compared and graded by equality, and anything else is no answer, counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import semcal
from semcal.calibration.calibration import Calibration
from semcal.errors import InputError, UsageError
from semcal.grading.grade import as_grader, grader_record
from semcal.inputs import load_equivalence
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write

NAME = "among:spam,not spam"
TEXTS = [f"Is mail {n} spam?" for n in range(60)]
#: Ten in a hundred draws say something else.
TABLE = {
    text: {"spam": 0.1 + 0.7 * (n % 2), "not spam": 0.8 - 0.7 * (n % 2), "I think so": 0.1}
    for n, text in enumerate(TEXTS)
}
LABELLED = [
    {"question": text, "answers": "spam" if n % 2 != (n % 5 == 0) else "Not spam."}
    for n, text in enumerate(TEXTS)
]


def test_other_answers_are_one_group_and_labels_never_mean_the_same() -> None:
    samples = ["spam", "Spam.", "not spam", "no", "I think so", "SPAM"]
    (row,) = semcal.score([{"question": "Is it?", "samples": samples}], equivalence=NAME).rows
    assert row["normal_forms"] == ["spam", "spam", "not spam", "", "", "spam"]
    assert row["clusters"] == [[0, 1, 5], [2], [3, 4]]


def test_a_label_within_another_is_wrong() -> None:
    labels = load_equivalence(NAME)
    exact = as_grader(None, labels)
    assert not exact.grade("Is it?", ["not spam"], ["spam"]).correct
    assert exact.grade("Is it?", ["Spam."], ["spam"]).correct
    assert grader_record(exact) == ("exact", None)
    assert not as_grader("rules", labels).grade("Is it?", ["not spam"], ["spam"]).correct
    with pytest.raises(UsageError, match="NLI"):
        as_grader("nli", labels)


@pytest.mark.parametrize("labels", ["spam,", "spam,Spam.", ""])
def test_labels_that_are_none_are_refused(labels: str) -> None:
    with pytest.raises(UsageError, match="labels"):
        load_equivalence(f"among:{labels}")


def test_a_calibration_counts_invalid_draws_and_brings_its_labels(tmp_path: Path) -> None:
    model = FakeLanguageModel(TABLE)
    calibration = semcal.calibrate(model, LABELLED, equivalence=NAME, progress=False)
    first = [line for line in calibration.report.first if "are none of the labels spam, not spam" in line]
    assert len(first) == 1
    invalid, _, draws = first[0].split()[:3]
    assert 0.05 < int(invalid) / int(draws) < 0.15
    assert (calibration.equivalence, calibration.grader) == (NAME, "exact")
    calibration.save_pretrained(tmp_path)
    uq = semcal.SemanticUQ(model, calibration=Calibration.from_pretrained(tmp_path))
    answer = uq.ask(TEXTS[1])
    assert answer.text == "spam"
    assert uq.invalid_draws == sum(not ExactMatch.among(NAME).form(text) for text in answer.row.samples)
    with pytest.raises(UsageError, match="equivalence"):
        semcal.SemanticUQ(model, calibration=str(tmp_path), equivalence="exact")


def test_a_reference_that_is_no_label_is_refused_by_its_row() -> None:
    rows: list[dict[str, Any]] = [*LABELLED[:30], {"id": "odd", "question": "Is it?", "answers": "ham"}]
    model = FakeLanguageModel({**TABLE, "Is it?": {"spam": 1.0}})
    with pytest.raises(InputError, match=r"'odd'.*'ham'"):
        semcal.calibrate(model, rows, equivalence=NAME, progress=False)


@pytest.mark.filterwarnings("ignore:all 60 answers have the same share")
def test_the_option_names_the_labels_and_tells_how_many_draws_are_none(tmp_path: Path) -> None:
    rows = [
        {
            "id": str(n),
            "question": text,
            "samples": ["spam"] * 7 + ["not spam", "eh", "eh"],
            "answers": ["spam" if n % 4 else "not spam"],
        }
        for n, text in enumerate(TEXTS)
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    code, clustered, told = command("cluster", file, "--answers-among", "spam, not spam")
    assert code == 0
    assert "120 of 600 samples do not match any of spam, not spam" in told
    assert clustered[0]["clusters"] == [list(range(7)), [7], [8, 9]]
    options = ("--answers-among", "spam,not spam", "--out", tmp_path / "map")
    code, _, told = command("calibrate", file, *options)
    assert code == 0, told
    stored = json.loads((tmp_path / "map" / "calibration.json").read_text())
    assert (stored["equivalence"], stored["grader"]) == (NAME, "exact")
    code, _, told = command("cluster", file, "--answers-among", "spam,ham", "--equivalence", "exact")
    assert (code, "--equivalence" in told) == (2, True)
