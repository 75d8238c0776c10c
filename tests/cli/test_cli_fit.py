"""`semcal fit`: what is kept of gradient steps, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import semcal, write
from running import finish, start

from semcal.cli.fit import _in_words
from semcal.recalibration import from_pretrained

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand", "Mira"]}
    for i in range(40)
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Questions to fit to, and to validate on."""
    return write(tmp_path / "q.jsonl", QUESTIONS[:30]), write(tmp_path / "v.jsonl", QUESTIONS[30:])


def test_an_interrupted_training_starts_again_and_ends_at_the_same_bytes(
    model: str, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--model", model, "--method", "ATS", "--out")
    semcal("fit", files[0], *options, tmp_path / "whole")
    steps = iter(range(100))
    step = torch.optim.AdamW.step

    def interrupted(self: Any, *arguments: Any) -> Any:
        if next(steps) == 7:
            raise KeyboardInterrupt
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", interrupted)
        code, _, _ = semcal("fit", files[0], *options, tmp_path / "cut")
    assert code == 130
    assert semcal("fit", files[0], *options, tmp_path / "cut")[0] == 0
    for name in ("recalibrator.json", "model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "cut.unfinished").exists()


def die_with_the_second_block(path: Path, target: Path) -> Path:
    """Give a finished file its name, as `Path.replace` does; kill the process after the second block."""
    os.replace(path, target)  # noqa: PTH105
    if "blocks" in target.parts and len(list(target.parent.parent.rglob("*.jsonl"))) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return target


def test_a_killed_selection_keeps_its_samples_and_ends_at_the_same_bytes(
    model: str, files: tuple[str, str], tmp_path: Path
) -> None:
    command = ["fit", files[0], "--model", model, "--method", "TS", "--select"]
    command += ["--validation", files[1], "--m", "2", "--max-new-tokens", "2", "-q", "--out"]
    how = {"said": tmp_path / "said", "values": {"semcal.models.sample.BLOCK_TOKENS": 4}}
    assert finish(start(*command, tmp_path / "whole", **how)) == 0
    deadly = {**how["values"], "pathlib.Path.replace": die_with_the_second_block}
    running = start(*command, tmp_path / "cut", said=how["said"], values=deadly)
    assert finish(running) == -signal.SIGKILL, how["said"].read_text()
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [".semcal.lock"]
    assert finish(start(*command, tmp_path / "cut", **how)) == 0
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.*")]
    assert len(names) >= 2
    for name in names:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_plan_says_what_would_be_sampled(model: str, files: tuple[str, str], tmp_path: Path) -> None:
    options = ("--model", model, "--out", tmp_path / "fit", "--dry-run")
    validation = ("--validation", files[1])
    for extra, said in [
        ((), "read 30 questions once"),
        (("--select", *validation), "10 answers to each of 10 questions with each of 5 fits"),
        (("--method", "TS-grid", "--m", "3"), ", sample 3 answers to each of 30"),
    ]:
        code, rows, stderr = semcal("fit", files[0], *options, *extra)
        assert (code, rows, said in stderr) == (0, [], True), stderr
    assert not (tmp_path / "fit").exists()


@pytest.mark.parametrize("by", ["gain", "brier"])
@pytest.mark.parametrize("how", [("--select", "--validation"), ("--method", "TS-grid")])
def test_what_is_chosen_is_best_by_the_rule_that_was_asked_for(
    how: tuple[str, ...], by: str, model: str, files: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "fit"
    options = ("--model", model, "--m", "2", "--max-new-tokens", "2", "--out", out)
    asked = () if by == "gain" else ("--by", by)
    _, (result,), _ = semcal("fit", files[0], *options, *asked, *how, *files[1:][: how[0] == "--select"])
    assert result["by"] == by
    table = [json.loads(line) for line in (out / "selection.jsonl").read_text().splitlines()]
    best = max if by == "gain" else min
    for measure, row in result["chosen"].items():
        assert row[by] == pytest.approx(best(r[by] for r in table if r["measure"] == measure), abs=1e-12)
        assert row["gain"] == pytest.approx(row["accuracy"] - row["brier"], abs=1e-12)
    for measure in ("E-SC", "T-SC"):
        folder = out if measure == "E-SC" else out / measure
        kept = json.loads((folder / "recalibrator.json").read_text())
        validation, chosen = kept["provenance"]["validation"], result["chosen"][measure]
        assert validation == {"by": by, **{key: chosen.get(key) for key in validation if key != "by"}}
        assert {"measure", "gain", "brier", "ace", "auroc", "accuracy", "n"} < validation.keys()
    kept = json.loads((out / "recalibrator.json").read_text())
    assert semcal("fit", files[0], "--model", model, "--out", out, "--overwrite")[0] == 0
    assert [path.name for path in out.iterdir()] == ["recalibrator.json"]  # nothing of the older choice
    if "TS-grid" in how:
        assert kept["loss"] == {"gain": "gain", "brier": "Brier"}[by]


def test_a_fit_to_few_questions_is_warned_of_and_validation_on_its_passages_too(
    model: str, tmp_path: Path
) -> None:
    labelled = [{**one, "context": f"The mill of {i // 2}."} for i, one in enumerate(QUESTIONS[:12])]
    judging = [{**one, "context": f"The mill of {i}."} for i, one in enumerate(QUESTIONS[12:20])]
    judging[7] = {**QUESTIONS[19], "question": "Who's built mill number 3?"}
    fit = write(tmp_path / "q.jsonl", [*labelled, QUESTIONS[30] | {"question": "Who built mill number 3 ?!"}])
    out, options = tmp_path / "fit", ("--m", "2", "--max-new-tokens", "2")
    code, _, stderr = semcal(
        "fit", fit, "--model", model, "--out", out, *options,
        "--select", "--validation", write(tmp_path / "v.jsonl", judging),
    )  # fmt: skip
    assert code == 0
    assert "warning: questions: got only 13 " in stderr
    assert "warning: 6 questions ('q12', 'q13', 'q14', …) share a passage or a group with questions" in stderr
    assert "warning: 1 pairs of nearly equal questions are in different parts" in stderr
    code, (result,), _ = semcal("fit", fit, "--model", model, "--out", tmp_path / "plain")
    assert (code, result["n_groups"]) == (0, 7)


def test_the_loss_any_is_fitted_saved_and_says_what_becomes_of_right_draws(
    model: str, files: tuple[str, str], tmp_path: Path
) -> None:
    code, (fitted,), stderr = semcal(
        "fit", files[0], "--model", model, "--loss", "any", "--out", tmp_path / "any"
    )
    assert (code, fitted["loss"], fitted["solver"]) == (0, "any", "exact")
    before, after = (f"{100 * share:.1f}%" for share in fitted["right_draws"])
    assert f"{before} of " in stderr
    assert f"{after} at the fitted T" in stderr
    assert ("warning: fewer samples match" in stderr) == (float(after[:-1]) < float(before[:-1]))
    again, _ = from_pretrained(tmp_path / "any")
    assert (again.loss, again.temperature_) == ("any", fitted["temperature"])
    text = _in_words(fitted)
    assert f"any per question: {fitted['loss_before']:.4f} before" in text
