"""The page at / of `semcal serve`: its files and what it reads, and in Chromium what a person does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from semcal.calibration.calibration import LabeledAnswers
from semcal.calibration.features import ColumnFeature
from semcal.calibration.report import LikeAnswers
from semcal.calibration.watch import PromiseWatch
from semcal.metrics.sequential import KEPT
from semcal.models.fakes import FakeLanguageModel
from semcal.reply_log import LabelledReply, ReplyLog
from semcal.serve.configuration import hashed
from semcal.serve.guard import PAGE
from semcal.uncertainty import SemanticUQ
from tests.serve import form_service as forms
from tests.serve.devtools import Page, browsing
from tests.serve.serving import MANY, TABLE, WROTE, Running, running, uq_of
from tests.steps.made_up_calibration import calibration

KEY = "a-key-of-sixteen-letters"
HOSTILE = "<img src=x onerror=window.ran=1></script><script>window.ran=1</script>"
LIKE = (LikeAnswers(0.1, 0.4, 50, 10), LikeAnswers(0.4, 0.7, 50, 40))
#: A probability of .25 for those of the first group, .55 for those of the second, every fifth is off.
P, CORRECT = (0.25,) * 50 + (0.55,) * 50, tuple((n % 5 == 0) == (n < 50) for n in range(100))
LABELED = LabeledAnswers(P, CORRECT, P, CORRECT)


def uq_of_labelled(table: Any = TABLE, **changed: Any) -> SemanticUQ:
    """A model whose calibration knows how often like answers were right."""
    report = replace(calibration().report, like=LIKE)
    return uq_of(FakeLanguageModel(table), report=report, labeled=LABELED, **changed)


# ---- What is served


def test_the_page_is_three_files_that_load_nothing_else_and_need_no_key() -> None:
    with running(keys=(hashed(KEY),)) as server:
        for path, (name, kind) in PAGE.items():
            reply = server.get(path)
            assert (reply.status_code, reply.headers["content-type"]) == (200, f"{kind}; charset=utf-8"), name
            assert reply.headers.get_list("cache-control") == ["no-store"]
            (policy,) = reply.headers.get_list("content-security-policy")
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy
            head = httpx.head(f"{server.url}{path}")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(reply.content))
            assert server.post(path, {}, headers={"authorization": f"Bearer {KEY}"}).status_code == 405
        assert server.get("/v1/semcal/state").status_code == 401
        assert "script-src" not in server.get("/health").headers["content-security-policy"]


def test_the_state_says_what_thresholds_mean_and_how_the_watch_goes(tmp_path: Path) -> None:
    uq = uq_of_labelled()
    with running(uq, log=ReplyLog(tmp_path / "log"), watch=PromiseWatch.of(uq.calibration)) as server:
        replies = [server.chat(text).json()["id"] for text in MANY[:3]]
        server.post("/v1/semcal/labels", [{"id": id, "correct": False} for id in replies])
        state = server.get("/v1/semcal/state").json()
    assert state["labelled"][1] == {"low": 0.4, "high": 0.7, "n": 50, "right": 40}
    assert [one["threshold"] for one in state["thresholds"]] == [0.6]
    assert state["thresholds"][0]["sentence"].startswith(
        "threshold 0.6: answers 40% of questions; at most 10%"
    )
    tests = {test["watch"]: test for test in state["watch"]["tests"]}
    assert (tests["risk"]["labels"], tests["questions"]["replies"], tests["risk"]["limit"]) == (3, 3, 20)
    assert len(tests["risk"]["log_e"]) == 4
    with running() as server:
        state = server.get("/v1/semcal/state").json()
    assert (state["watch"], state["labelled"], state["examples"]) == (None, [], [])


def test_of_a_long_watch_some_hundred_values_are_kept() -> None:
    watch, log_e = PromiseWatch.of(risk=0.1), [0.0]
    test = watch.tests["risk"]
    for number in range(5 * KEPT):
        watch.update(LabelledReply(str(number), 0.9, 0.8, False, number % 10 > 0, False))
        log_e.append(test.log_e)
    (kept, _) = watch.courses
    assert KEPT / 2 <= len(kept["log_e"]) <= KEPT
    assert kept["log_e"] == log_e[:: kept["every"]]


# ---- In the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("chromium") / "profile") as page:
        yield page


def opened(page: Page, server: Running, wait: str = "!document.querySelector('#main').hidden") -> None:
    page.requests.clear()
    page.problems.clear()
    page.call("Page.navigate", url=f"{server.url}/")
    page.until(f"document.readyState === 'complete' && {wait}")


def asked(page: Page, text: str) -> str:
    """Type a question, press Enter, and read the result."""
    page.do("document.querySelector('#question').value = ''; document.querySelector('#question').focus()")
    page.call("Input.insertText", text=text)
    page.press("Enter")
    page.until("document.querySelector('#result').matches('[aria-busy=false]:not(:empty)')")
    return str(page.do("document.querySelector('#result').innerText"))


def fits(page: Page, width: int) -> bool:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=700, deviceScaleFactor=1, mobile=True)
    return bool(page.do(f"document.documentElement.scrollWidth <= {width}"))


def test_a_person_asks_opens_a_meaning_and_turns_the_dial(browser: Page, tmp_path: Path) -> None:
    table = {HOSTILE: {HOSTILE: 0.8, "W" * 300: 0.2}, WROTE: TABLE[WROTE]}
    uq = uq_of_labelled(table)
    watch = PromiseWatch.of(uq.calibration)
    with running(uq, log=ReplyLog(tmp_path / "log"), watch=watch) as server:
        opened(browser, server)
        assert "At 0.60: about 17% answered, 20% of them wrong" in read(browser, "#dial-said")
        said = asked(browser, HOSTILE)
        expected = uq.ask(HOSTILE)
        assert HOSTILE in said
        assert f"{expected.confidence:.2f}" in said
        assert expected.explanation.split(";")[-1] in said
        browser.do("document.querySelector('summary').focus()")
        browser.press("Enter")
        assert browser.do("document.querySelector('details').open")
        draws = sum(len(meaning.samples) for meaning in expected.meanings[:1])
        assert read(browser, "details li").split() == [str(draws), "×", *HOSTILE.split()]
        browser.do("document.querySelector('#threshold').focus()")
        browser.press("End")
        assert "nothing is answered" in read(browser, "#dial-said")
        assert "Abstains" in read(browser, "#result")
        browser.press("Home", "ArrowRight")
        assert "At 0.01: 100% answered, 50% of them wrong" in read(browser, "#dial-said")
        assert "Answered" in read(browser, "#result")
        assert "Back to the server's 0.60" in read(browser, "#dial")
        asked(browser, WROTE)
        assert browser.do("document.querySelectorAll('#history li').length") == 2
        browser.until("document.querySelector('#watch').innerText.includes('2 replies')")
        assert "No reply" in asked(browser, " ".join([WROTE] * 5000))
        assert browser.do("document.images.length + document.scripts.length") == 1
        assert browser.do("window.ran") is None
        assert all(fits(browser, width) for width in (1280, 390, 320))
    assert all(url.startswith(server.url) for url in browser.requests)
    (refused,) = browser.problems  # the question that was too long
    assert "400" in refused


def read(page: Page, selector: str) -> str:
    text = page.do(f"document.querySelector({selector!r}).innerText")
    return str(text).replace("\u00a0", " ")


def test_the_page_asks_for_the_key_and_abstains_during_an_alarm(browser: Page, tmp_path: Path) -> None:
    uq = uq_of_labelled()
    watch = PromiseWatch.of(uq.calibration)
    for number in range(60):
        watch.update(LabelledReply(str(number), 0.7, 0.6, False, False, False))
    with running(uq, log=ReplyLog(tmp_path / "log"), watch=watch, keys=(hashed(KEY),)) as server:
        opened(browser, server, "!document.querySelector('#key').hidden")
        for key, ends in (
            ("wrong", "document.querySelector('#key-said').innerText"),
            (KEY, "!document.querySelector('#main').hidden"),
        ):
            browser.do("document.querySelector('#key-text').focus()")
            browser.call("Input.insertText", text=key)
            browser.press("Enter")
            browser.until(ends)
        assert "Every reply abstains" in read(browser, "#alarm")
        said = asked(browser, WROTE)
        assert "Abstains" in said
        assert "The watch has raised an alarm" in said
        assert browser.do("document.cookie + localStorage.length") == "0"


def test_the_page_shows_a_document_with_the_least_probable_fields_first(
    browser: Page, tmp_path: Path
) -> None:
    watch = PromiseWatch.of(forms.calibration())
    with running(forms.source(), log=ReplyLog(tmp_path / "log"), watch=watch) as server:
        opened(browser, server)
        assert "1 of 3 fields to review" in asked(browser, forms.SURE)
        assert "2 of 3 fields to review" in asked(browser, forms.UNSURE)
        cells = "row => [...row.cells].map(cell => cell.innerText.trim())"
        rows = browser.do(f"[...document.querySelectorAll('#fields tbody tr')].map({cells})")
        expected = server.chat(forms.UNSURE, response_format=forms.RESPONSE_FORMAT).json()["semcal"]
        assert [row[0] for row in rows] == ["/note", "/n", "/name"]
        assert [row[3] for row in rows] == ["review", "review", "accepted"]
        assert rows[1][1] == str(expected["answer"]["n"])
        assert rows[1][2] == f"{expected['fields']['/n']['probability']:.2f}"
        assert rows[1][4] == f"{expected['fields']['/n']['alternatives'][0]['value']} (50%)"
        assert all(fits(browser, width) for width in (1280, 400, 320))
        asked(browser, forms.MARKED)
        assert forms.MARKUP in read(browser, "#fields tbody")
        assert browser.do("document.images.length + Number(window.ran ?? 0)") == 0
        assert "No document" in asked(browser, forms.NOTHING)
        assert read(browser, "#fields-said").startswith("6 of 6 samples held no valid document.")
        assert browser.do("document.querySelectorAll('#history li').length") == 4
        browser.do("document.querySelectorAll('#history button')[3].click()")
        assert "1 of 3 fields to review" in read(browser, "#result")
    assert browser.problems == []


def test_the_page_checks_a_given_document_and_asks_for_the_text_where_a_calibration_had_one(
    browser: Page,
) -> None:
    with running(forms.source("given")) as server:
        opened(browser, server)
        browser.do(f"document.querySelector('#given-text').value = {json.dumps(forms.WRONG)}")
        asked(browser, forms.SURE)
        assert read(browser, "#fields td.value") == "(empty)"
        assert "9" in read(browser, "#fields tbody")
    with running(forms.source(open_book=True)) as server:
        opened(browser, server)
        browser.do("document.querySelector('#passage-text').value = '<b>A form</b> {question}'")
        assert "fields to review" in asked(browser, forms.SURE)
    assert browser.problems == []


def test_the_page_asks_for_the_columns_that_a_calibration_reads(browser: Page) -> None:
    uq = uq_of(columns=(ColumnFeature("distance"),))
    with running(uq) as server:
        opened(browser, server)
        assert read(browser, "#columns label") == "distance"
        browser.do("document.querySelector('#columns input').value = 'far'")
        assert "'distance' must be a finite number" in asked(browser, WROTE)
        browser.do("document.querySelector('#columns input').value = '2.5'")
        assert "Ana" in asked(browser, WROTE)
        assert all(fits(browser, width) for width in (1280, 320))
    assert [one for one in browser.problems if "400" not in one] == []
