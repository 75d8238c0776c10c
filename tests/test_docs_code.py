"""The code that README and the pages of docs/ show runs as it stands there.

Blocks of bash and Python run, page by page, in a folder with what they name. Blocks of text are not run:
they show what other programs need, or print.
"""

from __future__ import annotations

import ast
import re
import subprocess
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from made_up_grid import Grid, write_grid

import semcal
from semcal.data.question import chat
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import load_set
from semcal.experiment.grid_settings import read_settings
from semcal.files import write_rows
from semcal.models import CausalLanguageModel
from semcal.models.protocols import Prompt
from tools.page_outputs import BLOCK, Terminal, renewed
from warm_semcal import warm_semcal

ROOT = Path(__file__).parents[1]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
#: How a block begins that is not run, and why.
NOT_RUN = {
    "python -m venv .venv": "installs semcal, as the tests themselves do",
    'pip install -e ".[models]"': "installs semcal, as the tests themselves do",
    "python -m tools.atlas.questions": "writes the package's data",
    "python -m tools.atlas.train": "trains for an hour",
    "python -m tools.real_examples": "needs a model from the hub",
    "make bench": "takes the machine for itself, for an hour",
    "uv venv others": "installs other programs",
    "semcal run configs/atlas.yaml": "takes an hour; tests/demo runs grids",
    "semcal run compare.yaml": "takes a minute; tests/demo runs grids",
    "pip install 'semcal[ray]'": "needs Ray; tests/experiment runs a grid with it where it is installed",
    'model = semcal.load_model("owner/model", device': "needs a GPU and the hub",
    "hf upload": "needs the hub",
    "from semcal.recalibration import from_pretrained\n\nrecalibrator, provenance": "needs the hub",
}
SERVER = "http://127.0.0.1:8000/v1"


def blocks(language: str, page: str) -> list[str]:
    """The blocks of one language that are run, in their order."""
    found = re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return [block for block in found if not block.startswith(tuple(NOT_RUN))]


def pages_with(language: str) -> list[str]:
    """Names of the pages with such blocks."""
    return [name for name, page in PAGES.items() if blocks(language, page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with what the pages name, as the working directory."""
    for name in ("my-model", "DIR", "path/to/checkpoint"):
        link(tmp_path / name, language_model_dir())
    for name in ("my-nli", "NLI_DIR", "DIR_OR_ID", "path/to/nli-model"):
        link(tmp_path / name, nli_model_dir())
    atlas = load_set("atlas-rare")
    questions = {
        "labelled": atlas.calibration_train[:40],
        "held-out": atlas.validation[:20],
        "examples": atlas.few_shot,
        "questions": atlas.validation[:6],
        "train": atlas.calibration_train[:1000],
        "dev": atlas.test[:500],
        "test": atlas.test[:6],
    }
    files: dict[str, Iterable[dict[str, Any]]] = {
        name: ({"id": q.id, "question": q.question, "answers": q.answers} for q in part)
        for name, part in questions.items()
    }
    samples = [
        {
            "id": str(n),
            "question": f"Who built mill {n}?",
            "samples": ["Ana"] * (4 + n % 7) + ["Bo"] * (6 - n % 7),
            "answers": "Ana" if n % 3 else "Cy",
            "topic": "mills" if n % 2 else "barns",
        }
        for n in range(60)
    ]
    labels = ("billing", "delivery", "other")
    tickets = [
        {"id": str(n), "question": f"Ticket {n}: what is it about?", "answers": [labels[n % 3]]}
        for n in range(36)
    ]
    files |= {"tickets": tickets[:30], "few-tickets": tickets[30:33], "new-tickets": tickets[33:]}
    files |= dict.fromkeys(("samples", "theirs", "rows"), samples)
    files["samples_mine"] = map(as_lm_eval_logs, samples)
    files["judged"] = (
        {**row, "answer": row["samples"][0], "human_correct": n % 3 > 0} for n, row in enumerate(samples)
    )
    checked = [
        {"question": q.question, "answer": q.answers[0] if n % 3 else "Nobody", "correct": n % 3 > 0}
        for n, q in enumerate(atlas.calibration_train[:30])
    ]
    files |= {"checked": checked, "unchecked": checked[:2]}
    for name, n in (("scores", 400), ("new-scores", 3)):
        rng = np.random.default_rng(n == 3)
        margin = rng.normal(size=n)
        cells = zip(margin, rng.random(n) < 1 / (1 + np.exp(-2 * margin)))
        lines = [f"{score:.3f},{right:d}"[: None if n > 3 else -2] for score, right in cells]
        (tmp_path / f"{name}.csv").write_text("\n".join(["margin,correct"[: None if n > 3 else -8], *lines]))
    files["replies"] = (
        {"id": str(n), "confidence": 0.5 + n % 5 / 10, "abstained": n % 5 == 0, "correct": n % 10 < 7}
        for n in range(60)
    )
    for name, rows in files.items():
        write_rows(tmp_path / f"{name}.jsonl", rows)
    write_own_prompts(tmp_path)
    (tmp_path / "grid.yaml").write_text(
        "models: [{name: atlas, path: atlas}]\n"
        "datasets: [{name: mine, source: train.jsonl, validation: 6, test: 6, calibration_train: 40}]\n"
        "methods: [Base]\nsampling: {m: 2, counts: []}\nruns: {count: 1}\nequivalence: exact\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_own_prompts(folder: Path) -> None:
    """Write the rows and the form of prompts.md, extraction.md and classification.md."""
    names = ("Ana", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Ida")
    months = ("January", "February", "March", "April", "May", "June", "July", "August", "September")
    topics = (("My parcel is late", "delivery"), ("I was charged twice", "billing"))
    found: dict[str, list[dict[str, Any]]] = {"passages": [], "notices": [], "mails": []}
    for n in range(66):
        builder, painter = names[n % 8], names[n * 3 // 2 % 8]
        passages = f"[1] {painter} painted mill {n}.\n[2] {builder} built mill {n}.\n\nWho built mill {n}?"
        turns = (
            ("system", "Answer from the passages, with a name alone."),
            ("user", "I have a question about old mills."),
            ("assistant", "Which one?"),
            ("user", passages),
        )
        messages = [{"role": role, "content": content} for role, content in turns]
        found["passages"].append({"messages": messages, "answers": [builder]})
        day = f"{n * 7 % 28 + 1} {months[n % 9]}"
        notice = f"Fair {n} opens on {day} at {n % 9 + 8}, hall {n % 5 + 1}."
        found["notices"].append({"question": "the date", "context": notice, "answers": [day]})
        text, label = topics[n % 2]
        found["mails"].append({"question": f"{text} (order {n}).", "answers": [label]})
    for name, rows in found.items():
        for part, chosen in (("shown", rows[:3]), ("labelled", rows[3:63]), ("new", rows[63:])):
            write_rows(folder / f"{name}-{part}.jsonl", chosen)
    (form,) = blocks("yaml", PAGES["docs/extraction.md"])
    (folder / "extract.yaml").write_text(form)


def link(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def as_lm_eval_logs(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `--log_samples` of lm-evaluation-harness."""
    asked = {"arg_0": row["question"], "arg_1": {"temperature": 1.0, "top_p": 1.0}}
    return {
        "doc_id": int(row["id"]),
        "doc": {"question": row["question"], "answers": [row["answers"]]},
        "target": row["answers"],
        "arguments": {"gen_args_0": asked},
        "resps": [row["samples"]],
        "filter": "none",
    }


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved temperature."""
    out = tmp_path_factory.mktemp("fitted") / "my-temperature"
    questions = load_set("atlas-rare").calibration_train[:40]
    semcal.fit(str(language_model_dir()), questions).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_semcal(tmp_path_factory.mktemp("programs")) as found:
        yield found


@pytest.mark.parametrize("name", pages_with("bash"))
def test_commands(name: str, folder: Path, programs: Path, request: pytest.FixtureRequest) -> None:
    script = "".join(blocks("bash", PAGES[name]))
    environment = {}
    if SERVER in script:
        url = request.getfixturevalue("llama_server")
        environment["SEMCAL_CACHE"] = str(request.getfixturevalue("llama_cache"))
        script = script.replace(SERVER, url).replace("#name", "#atlas")
    # the calibrations of the pages have ten draws a question
    script = re.sub(r"(semcal calibrate \S+ --model \S+)", r"\1 --m 4", script.replace("--m 5", "--m 3"))
    if "--out my-temperature" not in script:
        link(folder / "my-temperature", request.getfixturevalue("fitted"))
    stdout = run_script(script, folder, programs, environment)
    assert '"auroc"' in stdout or name != "README.md"


def run_script(script: str, folder: Path, programs: Path, environment: dict[str, str]) -> str:
    """Run the commands of a page in a folder, and return what they print."""
    usual = {"PATH": f"{programs}:/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=usual | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", pages_with("python"))
def test_python(
    name: str, folder: Path, fitted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mpl, "get_backend", lambda: "agg")
    link(folder / "my-temperature", fitted)
    if "runs/atlas" in PAGES[name]:
        write_grid(folder / "runs" / "atlas", Grid(models=("a",), runs=1, n=12, counts=()))
    for number, code in enumerate(blocks("python", PAGES[name])):
        given = names_for(code)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Matplotlib is currently using agg")
            warnings.filterwarnings("ignore", "AUROC is undefined")  # all wrong: 40 questions at T = 4
            exec(compile(code, f"{name} {number}", "exec"), given)
            check_values(code, given)
        assert "print(" not in code or re.search(r"\d\.\d", capsys.readouterr().out)


def names_for(code: str) -> dict[str, Any]:
    """What a block takes for granted: a model of transformers, one of ours, questions and answers."""
    given: dict[str, Any] = {
        "semcal": semcal,
        "questions": ["Who built the old mill?"],
        "normal_forms": [["ana velis", "velis", "bo tarn"]],
    }
    if re.search(r"\bmodel\b|\bmy_model\b", code):
        ours = semcal.load_model("my-model")
        assert isinstance(ours, CausalLanguageModel)
        plain = ours.network.model
        given |= {"my_model": plain, "my_tokenizer": ours.tokenizer}
        given["model"] = plain if "model.generate" in code else ours
        given["inputs"] = dict(ours.tokenizer(given["questions"], return_tensors="pt"))
        given["prompts"] = [Prompt("1", ours.encode(chat(given["questions"][0])))]
    return given


def check_values(code: str, given: dict[str, Any]) -> None:
    """An expression with a literal as its comment has that value."""
    for line, comment in re.findall(r"^(\w.*?\))  # (\S.*)$", code, flags=re.MULTILINE):
        try:
            value = ast.literal_eval(comment)
        except (SyntaxError, ValueError):
            continue
        assert eval(line, given) == value, line


def test_grid_settings(folder: Path) -> None:
    (shown,) = blocks("yaml", PAGES["docs/grid.md"])
    (folder / "shown.yaml").write_text(shown)
    assert read_settings(folder / "shown.yaml").models


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Terminal:
    return Terminal(tmp_path_factory.mktemp("terminal"), path=str(programs))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if BLOCK.search(page)])
def test_commands_print_the_output_that_a_page_shows(name: str, terminal: Terminal) -> None:
    """After a change of outputs: python -m tools.page_outputs."""
    assert renewed(PAGES[name], terminal) == PAGES[name]


def test_what_is_not_run_is_on_a_page() -> None:
    for start in NOT_RUN:
        assert any(f"\n{start}" in page for page in PAGES.values()), start
