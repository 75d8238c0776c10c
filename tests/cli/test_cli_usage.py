"""Wrong usage, and files that cannot be used: one error names the option or file, and nothing is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from invoking import semcal, write

from tests.steps.made_up_calibration import calibration

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand", "Mira"]}
    for i in range(30)
]
ROWS = [{**row, "samples": ["Odo", "Mira", "Odo"], "clusters": [[0, 2], [1]]} for row in QUESTIONS]
SCORES = [{"confidence": {"E-SC": 0.5}, "correct": {"E-SC": True}, "kind": "a"}] * 2
LM_EVAL = [{"doc_id": 0, "doc": {"question": "Who?"}, "resps": [["Odo"]], "arguments": {}}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of each kind, where commands run."""
    files = {"q": QUESTIONS, "rows": ROWS, "scores": SCORES, "lm": LM_EVAL, "unlabeled": [{"question": "?"}]}
    for name, rows in files.items():
        write(tmp_path / f"{name}.jsonl", rows)
    calibration(m=5).save_pretrained(tmp_path / "calibration")
    (tmp_path / "there.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: Before a model is loaded: "none" is the name of none.
ASK = "ask Who? --model none --calibration calibration"
FIT = "fit q.jsonl --model none --out o"
CALIBRATE = "calibrate rows.jsonl --equivalence exact --out o"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("nonsense", "No such command"),
        # Rows
        ("cluster rows.jsonl --config cluster.linkage=single", "unknown linkage 'single'"),
        *(
            (f"{command} rows.jsonl {option} {'9' * digits}", option)
            for command, option in (("cluster", "--limit"), ("metrics", "--limit"), ("metrics", "--bins"))
            for digits in (11, 400)
        ),
        *((f"{name} rows.jsonl --columns id=Idd", "'Idd'") for name in ("cluster", "measure", "grade")),
        ("metrics scores.jsonl --columns confidence=Confidenc", "'Confidenc'"),
        ("metrics scores.jsonl --measure E-CS", "did you mean 'E-SC'"),
        ("metrics scores.jsonl --by knid", "--by knid"),
        ("metrics scores.jsonl --ci --config sampling.seed=-1", "sampling.seed"),
        *((f"metrics scores.jsonl --risk {share}", "--risk") for share in ("0", "1", "nan", "-2")),
        ("grade rows.jsonl --grader nli --equivalence exact", "--equivalence"),
        (f"metrics scores.jsonl --config sampling.seed={2**62}", "sampling.seed"),
        ("measure rows.jsonl --answer given", "--answer"),
        ("import lm_eval lm.jsonl", "'lm_eval'"),
        ("import lm-eval lm.jsonl --requests lm.jsonl", "--requests"),
        ("import lm-eval lm.jsonl --answer greedy", "--answer: got greedy"),
        ("cluster rows.jsonl --out calibration --overwrite", "is a folder"),
        # Answers
        ("ask nosuch.jsonl --model none", "'nosuch.jsonl'"),
        ("ask . --model none", "QUESTION"),
        *(
            (f"{ASK} {option}", option.split()[0])
            for option in (
                *("--m 5", "--temperature 1", "--recalibrator any"),
                *("--max-new-tokens 2", "--measure E-SC"),
            )
        ),
        (f"{ASK} --m 5 --measure L-SC", "--m, --measure"),
        (f"{ASK} --compare", "--compare"),
        (f"{ASK} --equivalence atlas", "equivalence: got 'atlas', expected 'exact'"),
        # Fits
        (f"{FIT} --validation q.jsonl", "--validation"),
        (f"{FIT} --measure E-CS", "did you mean 'E-SC'"),
        (f"{FIT} --by bier --method TS-grid", "did you mean 'brier'"),
        (f"{FIT} --config fit.learning_rate=0.1", "fit.learning_rate"),
        (f"{FIT} --config fit.weight_decay=0.01", "fit.weight_decay"),
        (f"{FIT} --method ATS --solver exact", "ATS has no exact solver"),
        (f"{FIT} --few-shot q.jsonl", "few-shot example"),
        (f"{FIT} --few-shot unlabeled.jsonl", "unlabeled.jsonl: line 1"),
        (f"{FIT} --select --validation q.jsonl", "a validation question"),
        (f"{FIT} --select", "--select"),
        ("fit q.jsonl --model none --out q.jsonl", "is a file"),
        # Calibrations
        (f"{CALIBRATE} --risk 0", "--risk"),
        (f"{CALIBRATE} --risk 0.1 --config calibration.delta=1", "calibration.delta"),
        (f"{CALIBRATE} --audited", "--audited"),
        ("calibrate rows.jsonl --out o", "--equivalence"),  # which made the clusters
        # Logs, grids, exports
        ("monitor scores.jsonl --risk 1", "--risk"),
        ("monitor scores.jsonl --alpha 0", "--alpha"),
        ("monitor scores.jsonl --plot plot.txt", "plot.txt"),
        ("monitor scores.jsonl --plot there.png", "there.png"),
        ("labels scores.jsonl --strike", "--strike"),
        ("labels scores.jsonl --strike --restore --id 3", "--restore"),
        ("export atlas --format logit-processor", "did you mean 'logits-processor'"),
        ("report .", "settings.yaml"),
        ("report nowhere", "settings.yaml"),
        ("status .", "settings.yaml"),
    ],
)
def test_wrong_usage_names_what_is_wrong_and_does_nothing(line: str, named: str, folder: Path) -> None:
    stderr = refused(line, folder, code=2)
    assert named in " ".join(stderr.replace("│", " ").split())
    assert len(stderr) < 2000


def refused(line: str, folder: Path, *, code: int) -> str:
    """Run a command that ends with this code, prints no row and writes nothing; return its stderr."""
    before = sorted(folder.rglob("*"))
    found, rows, stderr = semcal(*shlex.split(line))
    assert (found, rows) == (code, []), stderr
    assert sorted(folder.rglob("*")) == before
    return stderr


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("cluster absent.jsonl", "absent.jsonl"),
        ("cluster rows.jsonl --equivalence no/such/dir", "no/such/dir"),
        ("import lm-eval absent.jsonl", "absent.jsonl"),
        ("calibrate unlabeled.jsonl --out o", "--model"),
        ("labels none.sqlite", "none.sqlite"),
        ("monitor none.sqlite", "none.sqlite"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(line: str, named: str, folder: Path) -> None:
    assert named in refused(line, folder, code=1)
