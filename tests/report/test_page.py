"""report.html is one file, valid, without the network, with the numbers of the run and no foreign markup."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import pytest
from made_up_run import edit_row, write_run
from read_page import Page

from semcal.errors import InputError, StoreError
from semcal.report import build


@pytest.fixture(scope="module")
def small_text(small_run: Path) -> str:
    """The page of the small run."""
    return text_of(small_run)


def text_of(folder: Path) -> str:
    return build(folder).read_text(encoding="utf-8")


def test_the_page_is_well_formed_with_unique_ids_and_a_language(small_text: str) -> None:
    page = Page(small_text)
    assert page.open == []
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert [name for name, count in ids.items() if count > 1] == []
    assert ("lang", "en") in page.attributes
    assert (page.tags["title"], page.tags["h1"], page.tags["main"]) == (1, 1, 1)
    links = {value[1:] for name, value in page.attributes if name == "href" and value and value[0] == "#"}
    assert links <= set(ids)


def test_the_page_needs_nothing_from_outside(small_text: str) -> None:
    assert "http:" not in small_text
    assert "https:" not in small_text
    assert not re.search(r"@import|url\((?!#)", small_text)
    assert {value for name, value in Page(small_text).attributes if name == "src"} == set()
    assert "default-src 'none'" in small_text


def test_the_same_run_gives_the_same_page(small_run: Path, small_text: str) -> None:
    assert text_of(small_run) == small_text


@pytest.mark.parametrize("seed", [1, 2])
def test_the_tables_hold_the_numbers_of_the_results(tmp_path: Path, seed: int) -> None:
    folder = write_run(tmp_path, seed=seed, sets=("made-up-rare",), measures=("E-SC", "T-SC"))
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    tables = Page(text_of(folder)).tables
    for key in ("ace", "auroc"):
        rows = [row[1:] for row in tables[f"table-summary-{key}"] if len(row) == 3][1:]
        wanted = [
            [
                f"{method['measures'][m][key]:.3f}±{method['measures'][m]['se'][key]:.3f}"
                for m in results["measures"]
            ]
            for entry in results["sets"]
            for method in entry["methods"].values()
        ]
        assert rows == wanted
    temperatures = [row[5] for row in tables["table-sets"][2:]]
    assert temperatures == [f"{entry['fit']['temperature']:.2f}" for entry in results["sets"]]


def test_the_explorer_holds_every_answer_of_every_question(small_run: Path, small_text: str) -> None:
    data = Page(small_text).data
    for of_set in data["sets"]:
        assert len(of_set["questions"]) == 40
        for method, entries in of_set["rows"].items():
            path = small_run / "samples" / of_set["name"] / f"{method}.jsonl"
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for row, entry, question in zip(rows, entries, of_set["questions"], strict=True):
                clusters, top, correct, entropy, rule = entry
                assert question["id"] == row["id"]
                assert sum(count for members, _, _ in clusters for _, _, count in members) == 10
                assert top == [row["top_cluster"][m] for m in data["measures"]]
                assert correct == [int(row["correct"][m]) for m in data["measures"]]
                for k, measure in enumerate(data["measures"]):
                    shown = [parts[k] for _, parts, _ in clusters]
                    assert shown == pytest.approx(row["confidences"][measure], abs=5e-5)
                    assert entropy[k] == pytest.approx(row["semantic_entropy"][measure], abs=5e-5)
                    assert data["rules"][rule[k]] == row["rule"][measure]


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "\"quotes\" & 'more' \u2028 \u2029 \x00",
    "{{data}} ${x} \\u003c",
]


def test_markup_in_samples_and_questions_stays_text(own_run: Path) -> None:
    edit_row(
        own_run,
        "samples/made-up-trivia/Base.jsonl",
        question="<b>Which</b> </script> town?",
        answers=['"><svg onload=alert(1)>'],
        samples=(HOSTILE * 2),
        clusters=[list(range(10))],
        log_likelihoods=[-0.5] * 10,
        cluster_correct=[False],
        confidences={"E-SC": [1.0], "L-SC": [1.0]},
        top_cluster={"E-SC": 0, "L-SC": 0},
    )
    page = Page(text_of(own_run))
    assert (page.tags["script"], page.tags["img"], page.tags["b"]) == (2, 0, 0)
    entry = page.data["sets"][0]["rows"]["Base"][0]
    assert [text for text, _, _ in entry[0][0][0]] == HOSTILE
    assert page.data["sets"][0]["questions"][0]["question"] == "<b>Which</b> </script> town?"


def test_markup_in_the_names_of_models_and_sets_stays_text(own_run: Path) -> None:
    path = own_run / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    results["model"]["name"] = "<script>alert(1)</script> {{data}} \ud83d"
    results["sets"][0]["name"] = "a<b>\"'"
    path.write_text(json.dumps(results), encoding="utf-8")
    text = text_of(own_run)
    assert Page(text).tags["script"] == 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt; {{data}} \ufffd" in text
    assert "a&lt;b&gt;&quot;&#x27;" in text


def test_the_script_never_turns_text_into_markup() -> None:
    script = files("semcal.report").joinpath("page.js").read_text(encoding="utf-8")
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert dangerous not in script


def test_a_likelihood_of_zero_and_a_missing_one_are_kept_apart(own_run: Path) -> None:
    path = "samples/made-up-trivia/TS.jsonl"
    edit_row(own_run, path, log_likelihoods=["-inf"] + [-0.25] * 9)
    first = Page(text_of(own_run)).data["sets"][0]["rows"]["TS"][0][0]
    logs = [log for members, _, _ in first for _, log, _ in members]
    assert logs.count("-inf") == 1
    edit_row(own_run, path, log_likelihoods=None)
    first = Page(text_of(own_run)).data["sets"][0]["rows"]["TS"][0][0]
    assert {log for members, _, _ in first for _, log, _ in members} == {None}


def test_a_measure_that_is_null_everywhere_is_a_dash(tmp_path: Path) -> None:
    folder = write_run(tmp_path, sets=("made-up-rare",), measures=("E-SC", "B-SC"), null="B-SC", n=12)
    text = text_of(folder)
    rows = Page(text).tables["table-summary-ace"]
    assert [row[2] for row in rows if row[0] in ("Base", "SE", "TS")] == ["–"] * 3
    assert "B-SC is undefined here" in text


def test_one_class_alone_has_a_dash_for_its_auroc(tmp_path: Path) -> None:
    folder = write_run(tmp_path, sets=("made-up-trivia",), measures=("E-SC",), all_right=True, n=12)
    text = text_of(folder)
    rows = Page(text).tables["table-summary-auroc"]
    assert [row[1] for row in rows if row[0] in ("Base", "SE", "TS")] == ["–"] * 3
    assert "undefined" in text


def test_settings_environment_and_deviations_stand_at_the_end(small_text: str) -> None:
    end = small_text[small_text.index('id="settings"') :]
    assert "<dt>linkage</dt><dd>components</dd>" in end
    assert "<dt>seconds</dt><dd>sample 61.25, fit 0.1235</dd>" in end
    assert Page(small_text).tables["table-deviations"][1] == ["linkage", "components", "greedy"]


def test_a_folder_without_results_is_told_apart_from_a_damaged_one(own_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no results\.json"):
        build(tmp_path / "nothing")
    rows = own_run / "samples/made-up-trivia/TS.jsonl"
    whole = rows.read_text(encoding="utf-8")
    rows.write_text(whole[: len(whole) // 2], encoding="utf-8")
    with pytest.raises(StoreError, match=r"TS\.jsonl is damaged"):
        build(own_run)
    rows.unlink()
    with pytest.raises(StoreError, match="which is missing"):
        build(own_run)


@pytest.mark.parametrize(
    ("content", "reason"), [("{", "damaged"), ("[]", "JSON object"), ('{"schema": 2}', "schema 2")]
)
def test_results_that_cannot_be_read_are_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(StoreError, match=reason):
        build(tmp_path)


def test_the_same_page_comes_out_whoever_draws_the_figures(small_run: Path, small_text: str) -> None:
    asked: list[str] = []

    def others(function: Callable[[str], str], measures: Sequence[str]) -> list[str]:
        function = pickle.loads(pickle.dumps(function))
        asked.extend(measures)
        return [function(measure) for measure in measures]

    assert build(small_run, share=others).read_text(encoding="utf-8") == small_text
    assert asked == ["E-SC", "L-SC"] * 2
