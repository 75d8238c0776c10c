"""Recalibrators are fitted in the way of scikit-learn, and that gives what `semcal.fit` gives."""

from __future__ import annotations

from typing import Any

import pytest

import semcal
from semcal.models.fakes import FakeLanguageModel
from semcal.models.load import load_model
from semcal.recalibration import ATS, Platt, TemperatureScaling

TABLE = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(50)}
LABELED = [{"question": q, "answers": "Ana." if i % 3 else "Bo."} for i, q in enumerate(TABLE)]
MODEL = FakeLanguageModel(TABLE)


@pytest.mark.parametrize(
    ("estimator", "method"), [(TemperatureScaling("SS", 0.25), "TS"), (Platt(loss="SS", alpha=0.25), "Platt")]
)
def test_fit_on_a_model_gives_what_semcal_fit_gives_and_the_recalibrator_has_it(
    estimator: Any, method: str
) -> None:
    options: dict[str, Any] = {"seed": 3, "progress": False}
    if method == "Platt":
        options["learning_rate"] = 0.1
    expected = semcal.fit(MODEL, LABELED, method=method, loss="SS", alpha=0.25, **options)
    found = estimator.fit(MODEL, LABELED, **options)
    assert found.recalibrator is estimator
    assert repr(estimator) == repr(expected.recalibrator)
    assert (found.report, found.provenance) == (expected.report, expected.provenance)
    if method == "Platt":
        assert estimator.fingerprint() == expected.recalibrator.fingerprint()


def test_ats_takes_its_shape_from_the_model() -> None:
    model = load_model("atlas", device="cpu")
    labeled = [{"question": f"Who built mill {i}?", "answers": "Ana"} for i in range(50)]
    ats = ATS(loss="SS", alpha=0.5)
    assert repr(ats) == "ATS(loss='SS', alpha=0.5)"
    found = ats.fit(model, labeled, seed=2, progress=False)
    expected = semcal.fit(model, labeled, method="ATS", loss="SS", alpha=0.5, seed=2, progress=False)
    assert ats.shape == model.block_shape
    assert ats.fingerprint() == expected.recalibrator.fingerprint()
    assert found.report == expected.report


def test_the_prompt_of_a_fit_is_one_object() -> None:
    prompt = semcal.PromptConfig([{"question": "Who?", "answers": "Ana."}], system="Answer briefly.")
    found = TemperatureScaling().fit(MODEL, LABELED, prompt=prompt, progress=False)
    assert (found.asking.few_shot, found.asking.template) == (prompt.few_shot, prompt.template)
