"""Meanings by models behind servers: prompts, replies, the cache."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from semcal.errors import BudgetError, InputError, SemcalWarning, ServerError
from semcal.grading.judge import JUDGEMENT
from semcal.inputs import load_equivalence
from semcal.models.clustering import cluster_answers
from semcal.servers.entailment import (
    ENTAILMENT,
    EntailmentTask,
    load_verdicts,
    read_label,
    settings_of_judge,
)
from semcal.servers.protocol import ServerProfile
from semcal.servers.settings import ServerSettings
from tests.cli.invoking import semcal
from tests.cli.running import finish, start
from tests.servers.fake_server import Refused
from tests.servers.verdict_server import VerdictServer, reply_of

LABELS = ENTAILMENT.labels
QUESTION = "Largest city?"
TABLE = {
    ("nyc", "new york"): "entailment",
    ("new york", "nyc"): "entailment",
    ("soho", "nyc"): "entailment",
    ("boston", "nyc"): "contradiction",
}
FAST = ServerSettings(retries=1, concurrency=4)


pytestmark = pytest.mark.usefixtures("known")


def triples(*pairs: tuple[str, str]) -> list[tuple[str, str, str]]:
    return [(QUESTION, *pair) for pair in pairs]


# ---- What is asked -----------------------------------------------------------------------------------------


def test_both_directions_are_asked_and_symmetric_answers_are_one_meaning():
    with VerdictServer(TABLE) as server:
        equivalence = load_equivalence(server.name, settings=FAST)
        found = cluster_answers([QUESTION], [["nyc", "new york", "soho", "boston", "nyc"]], equivalence)
    assert found.clusters == [[[0, 1, 4], [2], [3]]]  # soho entails nyc and is not entailed by it
    assert {("new york", "nyc"), ("nyc", "soho")} <= set(server.asked)
    assert len(server.asked) == len(set(server.asked)) == found.calls


def test_every_request_states_that_it_is_greedy_and_how_it_samples():
    with VerdictServer(TABLE) as server:
        load_equivalence(server.name, settings=FAST).entails(triples(("nyc", "new york")))
    ((path, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert (body["temperature"], body["max_tokens"]) == (0, 10)
    assert ServerProfile("", "").neutral.items() <= body.items()


def test_the_documentation_has_the_prompts_which_hold_the_question_and_both_answers():
    text = (Path(__file__).parents[2] / "docs" / "meaning.md").read_text(encoding="utf-8")
    for task, first, second in (
        (ENTAILMENT, "{premise}", "{hypothesis}"),
        (JUDGEMENT, "{answer}", "{references, one a line}"),
    ):
        prompt = task.prompt.format(question="{question}", first=first, second=second)
        assert f"```text\n{prompt}\n```" in text
    (turn,) = ENTAILMENT.chat((" Largest city? ", "nyc", "new {york}"))
    assert "Question: Largest city?\nAnswer A: nyc\nAnswer B: new {york}\n" in turn.content


# ---- What is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("entailment", "entailment"),
        (" **Entailment.**\n\nBecause", "entailment"),
        ("\n\nNEUTRAL", "neutral"),
        ("“contradiction”", "contradiction"),
        *((text, None) for text in ("not entailment", "entailment or neutral", "Label: entailment")),
        *((text, None) for text in ("entail", "", "!!!")),
        ("<think>entailment?</think>neutral", "neutral"),
    ],
)
def test_a_text_is_read_strictly(text, label):
    assert read_label(reply_of(text), LABELS) == label


def test_what_cannot_be_read_is_asked_again_with_room_to_think():
    def at_length(body):
        return reply_of("entailment" if body["max_tokens"] > 100 else "<think>Let me")

    with VerdictServer(odd={("nyc", "soho"): at_length}) as server:
        equivalence = load_equivalence(server.name, settings=FAST)
        assert equivalence.entails(triples(("nyc", "soho"))) == [True]
    assert equivalence.unreadable == 0
    _, (_, second) = server.requests
    assert second["messages"][0]["content"].endswith("nothing else: entailment, neutral, contradiction.")
    assert second["temperature"] == 0


def test_what_stays_unreadable_is_no_entailment_counted_and_not_kept(tmp_path):
    odd = {("nyc", "soho"): "It depends.", ("soho", "nyc"): "Maybe"}
    with VerdictServer(TABLE, odd=odd) as server:
        for _ in range(2):  # a later run asks again, and says so again
            equivalence: Any = load_equivalence(server.name, settings=FAST, cache=tmp_path / "v")
            with pytest.warns(SemcalWarning, match="2 of .*not entailment"):
                verdicts = equivalence.entails(triples(*odd, ("nyc", "new york")))
            assert verdicts == [False, False, True]
            assert equivalence.inner.unreadable == 2


# ---- The cache, and runs that are stopped ------------------------------------------------------------------


def test_verdicts_are_kept_by_server_model_and_prompt(tmp_path):
    with VerdictServer(TABLE) as server:
        for hits in (0, 4, 4):
            equivalence: Any = load_equivalence(server.name, settings=FAST, cache=tmp_path / "v")
            assert equivalence.entails(triples(*TABLE)) == [True, True, True, False]
            assert equivalence.hits == hits
        assert len(server.asked) == 4
        other = load_verdicts(server.name, FAST, task=EntailmentTask("other", LABELS, ENTAILMENT.prompt))
    assert equivalence.inner.name == "fake"
    assert equivalence.revision == f"{server.url}; vLLM 0.0.1; entailment {ENTAILMENT.version}"
    assert equivalence.address == server.name
    assert other.revision != equivalence.revision  # and so it is another key of the cache


def test_a_run_that_is_stopped_and_resumed_asks_nothing_twice(tmp_path):
    pairs = triples(*[(f"a{k}", f"b{k}") for k in range(100)])
    with VerdictServer({(f"a{k}", f"b{k}"): "entailment" for k in range(0, 100, 3)}) as server:
        settings = ServerSettings(concurrency=4, max_tokens_total=41 * 93 + 2000)
        first = load_equivalence(server.name, settings=settings, cache=tmp_path / "verdicts")
        with pytest.raises(BudgetError):
            first.entails(pairs)
        assert 20 < len(server.asked) < 80
        again = load_equivalence(server.name, settings=FAST, cache=tmp_path / "verdicts")
        verdicts = again.entails(pairs)
    assert verdicts == [k % 3 == 0 for k in range(100)]
    assert len(server.asked) == len(set(server.asked)) == 100


def test_a_command_that_is_killed_and_run_again_asks_only_what_was_in_hand_twice(tmp_path):
    rows, pairs = tmp_path / "rows", 180
    names = ["".join("qwrtpsdfgh"[int(digit)] for digit in str(k)) for k in range(pairs)]
    samples = [
        {"id": name, "question": "Who?", "samples": [f"tall {name}", f"{name} hill"]} for name in names
    ]
    rows.write_text("".join(json.dumps(row) + "\n" for row in samples))
    with VerdictServer(delay=0.02) as server:
        command = ("cluster", rows, "--equivalence", server.name)
        kept = ("--config", f"cluster.cache={tmp_path / 'verdicts'}", "--out", tmp_path / "out")
        process = start(*command, *kept, said=tmp_path / "said")
        while len(server.asked) < 90 and process.is_alive():
            time.sleep(0.01)
        process.kill()
        assert finish(process) == -signal.SIGKILL, (tmp_path / "said").read_text()
        assert len(server.asked) < pairs
        server.quirks.delay = 0
        assert semcal(*command, *kept)[0] == 0
    assert len(set(server.asked)) == pairs
    assert pairs <= len(server.asked) <= pairs + 16 + 32  # under way, and answered but not written yet


def test_a_pair_that_fails_for_good_is_an_input_error_and_the_others_are_not_asked_again():
    odd = {("nyc", "soho"): Refused(400, "too long")}
    with VerdictServer(TABLE, odd=odd) as server:
        equivalence = load_equivalence(server.name, settings=FAST)
        with pytest.raises(InputError, match=r"'nyc' and 'soho'.*too long"):
            equivalence.entails(triples(*TABLE, ("nyc", "soho")))
        assert equivalence.entails(triples(*TABLE)) == [True, True, True, False]
    assert len(server.asked) == 5


# ---- Names and keys ----------------------------------------------------------------------------------------


def test_the_judge_has_a_key_of_its_own_or_the_models(monkeypatch):
    settings = ServerSettings(api_key="model")
    assert settings_of_judge(settings).api_key == "model"
    for own in ("judge", ""):  # "": none at all, also none of OPENAI_API_KEY
        monkeypatch.setenv("SEMCAL_JUDGE_API_KEY", own)
        assert settings_of_judge(settings).api_key == own


def test_a_key_that_is_needed_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("SEMCAL_JUDGE_API_KEY", "sk-secret")
    with VerdictServer(TABLE, key="sk-secret") as server:
        equivalence = load_equivalence(server.name)
        assert equivalence.entails(triples(("nyc", "new york"))) == [True]
        monkeypatch.setenv("SEMCAL_JUDGE_API_KEY", "sk-wrong")
        with pytest.raises(ServerError) as error:
            load_equivalence(server.name).entails(triples(("nyc", "new york")))
    assert "sk-" not in f"{error.value} {equivalence!r} {equivalence.revision} {equivalence.address}"
