"""`semcal ask --decide` as users type it."""

from __future__ import annotations

import re

from invoking import semcal, write
from typer.testing import CliRunner

from semcal.cli.app import app
from semcal.cli.ask import _page

QUESTIONS = [
    {"id": "q1", "question": "Who was the victor of the battle of Hagel?", "answers": ["Tanzin Morlund"]},
    {"id": "q2", "question": "Which river flows through Belmar?", "answers": ["Sull"]},
    {"id": "q3", "question": "Who wrote The Silent Harbour?", "answers": ["Shuhon Medria"]},
]


def test_ask_decide_answers_and_abstains_as_with_all_draws_and_says_what_it_saved(tmp_path):
    file = write(tmp_path / "questions.jsonl", QUESTIONS)
    options = ("--abstain-below", "0.7", "--linkage", "greedy")
    _, expected, _ = semcal("ask", file, *options)
    code, found, stderr = semcal("ask", file, "--decide", *options)
    assert code == 0
    for one, other in zip(expected, found, strict=True):
        assert other["abstained"] == one["abstained"]
        assert other["samples"] == one["samples"][: len(other["samples"])]
        low, high = other["confidence_bounds"]
        assert low <= one["confidence"] <= high
        assert other["m"] == 10
    drawn, all_draws, calls, pairs = map(int, re.findall(r"\d+", stderr.splitlines()[-1])[:4])
    assert drawn == sum(len(one["samples"]) for one in found)
    assert (all_draws, pairs) == (30, 270)
    assert drawn < all_draws
    assert f"decided with {drawn} of 30 draws and {calls} NLI calls of 270 ordered pairs" in stderr


def test_a_page_of_an_early_decision_names_its_bound_and_how_many_draws_were_asked():
    meaning = {"text": "Ana Velis", "share": None, "probability": None, "samples": ["Ana Velis"] * 6}
    record = {
        "question": "Who?",
        "method": "Base",
        "temperature": 1.0,
        "solver": None,
        "answer": "Ana Velis",
        "confidence": None,
        "confidence_bounds": [0.62, 0.9],
        "m": 10,
        "measure": "Calibrated",
        "abstained": False,
        "threshold": 0.6,
        "entropy": None,
        "explanation": "6 of 6 samples say Ana Velis",
        "meanings": [meaning],
        "samples": ["Ana Velis"] * 6,
    }
    page = _page(record)
    assert "right with probability at least 0.62" in page
    assert "answered: at least 0.62 reaches the threshold 0.60" in page
    assert "6 of 10 samples taken" in page
    assert "at most 0.90 is below" in _page(record | {"abstained": True, "threshold": 0.95})
    assert "probability 0.90" in _page(record | {"confidence": 0.9})


def test_decide_without_a_threshold_or_with_a_map_of_more_than_the_share_is_wrong_usage():
    for options, reason in (
        ((), "a threshold is needed"),
        (("--calibration", "atlas"), "must rise with the answer's share"),
    ):
        result = CliRunner().invoke(app, ["ask", QUESTIONS[0]["question"], "--decide", *options])  # type: ignore[list-item]
        assert result.exit_code == 2
        assert reason in result.stderr
