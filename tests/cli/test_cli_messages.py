"""Commands on rows with messages, and with prompt.system, prompt.template and --show-prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models

import semcal
from semcal.calibration.calibration import Calibration
from semcal.data.datasets import as_questions
from semcal.data.question import Question, Turn
from semcal.errors import InputError, QuestionError, UsageError
from semcal.models.chat_format import chat_format
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from tests.cli.invoking import run, write
from tests.cli.invoking import semcal as command
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer

SYSTEM = {"role": "system", "content": "Answer with a name alone."}
TEXTS = [f"Ana built mill {n}. Who built mill {n}?" for n in range(30)]
TABLE = {text: {"Ana.": 0.7, "Bo.": 0.3} for text in TEXTS}


def messages(text: str, *start: dict[str, str]) -> dict[str, Any]:
    return {"messages": [*start, {"role": "user", "content": text}]}


ROWS = [messages(text, SYSTEM) | {"answers": "Ana" if n % 3 else "Bo"} for n, text in enumerate(TEXTS)]


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """A checkpoint without a chat template."""
    return tiny_models.save(tmp_path / "base", template=None)


@pytest.fixture
def chat_model(tmp_path: Path) -> Path:
    return tiny_models.save(tmp_path / "chat")


def shown(*arguments: Any) -> str:
    code, stdout, stderr = run(*arguments, "--show-prompt")
    assert code == 0, stderr
    return stdout


@pytest.mark.filterwarnings("ignore:.*reached the token limit", "ignore:AUROC")
def test_rows_with_messages_pass_the_whole_pipe(tmp_path: Path, chat_model: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [*ROWS[:3], {"messages": []}, {"messages": [SYSTEM]}])
    code, rows, said = command("sample", file, "--model", chat_model, "--m", 3, "--max-new-tokens", 4)
    assert (code, len(rows), [row["id"] for row in rows]) == (1, 3, ["1", "2", "3"])
    assert 'line 5: "messages": the last turn has the role system' in said
    assert len({row["sampled_by"]["prompt_hash"] for row in rows}) == 1
    for name in (("cluster",), ("measure",), ("grade",)):
        code, rows, said = command(*name, "-", stdin="".join(json.dumps(row) + "\n" for row in rows))
        assert code == 0, said
    assert rows[0]["messages"] == ROWS[0]["messages"]
    assert "question" not in rows[0]
    code, (row, *_), _ = command("metrics", "-", stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert (code, row["n"]) == (0, 3)


def test_a_calibration_of_messages_refuses_other_templates_by_name() -> None:
    model = FakeLanguageModel(TABLE)
    calibration = semcal.calibrate(model, ROWS, equivalence="exact", m=5, progress=False)
    assert calibration.provenance.prompt["roles"] == ["user"]
    uq = semcal.SemanticUQ(model, calibration=calibration)
    answer = uq.ask(ROWS[0]["messages"])
    assert (answer.question, answer.measure) == ("", "Calibrated")
    with pytest.raises(
        QuestionError, match=r"the system message is none, expected 'Answer with a name alone.'"
    ):
        uq.ask(messages(TEXTS[0])["messages"])
    with pytest.raises(QuestionError, match="it has no 'messages'"):
        uq.ask(TEXTS[0])
    with pytest.raises(UsageError, match="system"):
        semcal.SemanticUQ(model, calibration=calibration, system="Be brief.")
    with pytest.raises(InputError, match="of another template: the system message is none"):
        semcal.calibrate(model, [*ROWS[:9], messages(TEXTS[9]) | {"answers": "Ana"}], equivalence="exact")


def test_a_calibration_brings_its_template_to_plain_questions(tmp_path: Path) -> None:
    model = FakeLanguageModel(TABLE)
    template = {"system": SYSTEM["content"], "user": "{question}"}
    plain = [{"question": text, "answers": row["answers"]} for text, row in zip(TEXTS, ROWS)]
    made = semcal.calibrate(model, plain, template=template, equivalence="exact", m=5, progress=False)
    made.save_pretrained(tmp_path / "made")
    uq = semcal.SemanticUQ(model, calibration=Calibration.from_pretrained(tmp_path / "made"))
    assert [turn.content for turn in uq.asking.chat(Question("1", "Who?"))] == [SYSTEM["content"], "Who?"]
    assert uq.ask(TEXTS[0]).text == "Ana"
    assert uq.ask(ROWS[0]["messages"]).text == "Ana"  # of the same template


def test_a_base_model_gets_messages_and_templates_as_plain_text(tmp_path: Path, base_model: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS[:1])
    assert f"{SYSTEM['content']}\n\n{TEXTS[0]}\nAnswer:" in shown("sample", file, "--model", base_model)
    assert "Be brief.\n\nQuestion: Who?\nAnswer:" in shown(
        "ask", "Who?", "--model", base_model, "--config", "prompt.system=Be brief."
    )


def test_the_prompt_is_shown_as_the_model_gets_it(tmp_path: Path, chat_model: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "form.yaml").write_text("user: 'Say {question}'\n")
    for name in (
        ("sample",),
        ("ask",),
        ("fit", "--out", tmp_path / "b"),
    ):
        text = shown(name[0], file, "--model", chat_model, *name[1:])
        assert SYSTEM["content"] in text
        assert TEXTS[0] in text
        assert TEXTS[1] not in text
    text = shown(
        "ask", "Who?", "--model", chat_model, "--config", f"prompt.template={tmp_path / 'form.yaml'}"
    )
    assert "Say Who?" in text
    assert "Question:" not in text
    assert not (tmp_path / "a").exists()


def test_a_server_gets_messages_as_they_are() -> None:
    row = messages(
        "Who built mill 1?", SYSTEM, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "?"}
    )
    with FakeServer() as server:
        model = model_of(server)
        (prompt,) = PromptConfig().prompts(model, as_questions([row]))
        assert json.loads(model.prompt_text(prompt)) == row["messages"]
        semcal.ask_many(model, [row], equivalence="exact", progress=False)
        assert server.requests[-1][1]["messages"] == row["messages"]


def test_a_system_message_without_a_place_begins_the_first_user_turn() -> None:
    no_system = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    template = no_system + "{{ m.role }}: {{ m.content }}\n{% endfor %}"
    form = chat_format(tiny_models.tokenizer(template=template), [2])
    turns = [Turn("system", "Be brief."), Turn("assistant", "Yes?"), Turn("user", "a")]
    assert form.encode(turns) == form.encode([turns[1], Turn("user", "Be brief.\n\na")])
