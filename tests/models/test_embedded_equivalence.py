"""The embedded equivalence: verdicts that depend on a pair alone, in either order, and what it can tell
apart.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_nli
from hypothesis import given, settings
from hypothesis import strategies as st

import semcal
from semcal.errors import ModelError, SemcalWarning
from semcal.hub_names import NLI_MODEL, locate
from semcal.inputs import load_equivalence
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import (
    EQUAL,
    CachedEquivalence,
    EmbeddedEquivalence,
    Equivalence,
    share_no_word,
)
from semcal.models.fakes import FakeEquivalence
from semcal.servers.settings import ServerSettings
from tests.servers.verdict_server import VerdictServer

WHO, WHERE = "Who wrote Hamlet?", "Which country is it?"
SAME = [
    (WHO, "william shakespeare", "shakespeare"),
    (WHO, "it was william shakespeare", "shakespeare"),
    (WHERE, "usa", "united states of america"),
    ("What is the capital of France?", "paris", "paris france"),
    ("What is the capital of France?", "capital of france is paris", "paris"),
]
APART = [
    (WHO, "william shakespeare", "christopher marlowe"),
    (WHO, "ben jonson", "john milton"),
    (WHERE, "burma", "cambodia"),
    (WHERE, "norway", "sweden"),
    ("Which US president was it?", "abraham lincoln", "john f kennedy"),
    ("Which US president was it?", "harry truman", "gerald ford"),
    ("What colour is it?", "green", "blue"),
    ("Which cities are meant?", "paris and london", "paris and rome"),
    ("What is the capital of France?", "i do not know", "paris"),
]


@pytest.fixture(scope="module")
def model() -> EmbeddedEquivalence:
    return EmbeddedEquivalence()


def test_it_is_what_is_used_when_nothing_is_named() -> None:
    found = semcal.load_equivalence()
    assert (found.name, type(found)) == ("default", EmbeddedEquivalence)
    assert semcal.load_equivalence("default").revision == found.revision


def test_other_wordings_of_an_answer_mean_the_same_and_answers_of_one_kind_do_not(
    model: EmbeddedEquivalence,
) -> None:
    assert model.entails(SAME) == [True] * len(SAME)
    assert model.entails(APART) == [False] * len(APART)


words = st.text("abcdefg éß中🙂-", min_size=0, max_size=30)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=6), st.randoms())
def test_a_verdict_depends_on_its_pair_alone(
    model: EmbeddedEquivalence, triples: list, random: object
) -> None:
    alone = [model.entails([triple])[0] for triple in triples]
    assert model.entails(triples) == alone
    assert model.entails([(q, b, a) for q, a, b in triples]) == alone
    margins = [model.margins([triple])[0] for triple in triples]
    assert model.margins([*triples, *SAME, *APART])[: len(triples)] == margins
    assert [margin > 0 for margin in margins] == alone


def test_a_margin_is_the_logit_less_the_threshold(model: EmbeddedEquivalence) -> None:
    pairs = [(question, *sorted((a, b))) for question, a, b in SAME]
    read = [pair for pair in pairs if not share_no_word(*pair[1:])]
    assert len(read) > 3
    expected = [round(float(logit) - model.threshold, 3) for logit in model.logits(read)]
    assert model.margins([(question, b, a) for question, a, b in read]) == expected


def test_raw_answers_are_compared_by_their_normal_forms(model: EmbeddedEquivalence) -> None:
    raw = [(WHO, "Shakespeare!", "the SHAKESPEARE"), (WHO, "William Shakespeare.", "Shakespeare!")]
    assert model.margins(raw) == [EQUAL, *model.margins([(WHO, "shakespeare", "william shakespeare")])]


def test_answers_far_apart_without_a_common_word_are_not_read_as_a_pair(
    model: EmbeddedEquivalence, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, str, str]] = []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda some: read.extend(some) or logits(some))
    monkeypatch.setattr(model, "near", 0.5)
    far, near = (WHO, "a loaf of bread", "christopher marlowe"), (WHO, "christopher marlowe", "marlowe")
    assert model.margins([far])[0] < 0
    assert read == []
    model.margins([near])
    assert read == [("who wrote hamlet", *near[1:])]
    monkeypatch.setattr(model, "near", -1.0)  # nothing is far apart
    model.margins([far])
    assert len(read) == 2


def test_texts_are_read_alike_by_one_thread_and_by_several(
    model: EmbeddedEquivalence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = model.margins([*SAME, *APART])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert model.margins([*SAME, *APART]) == one


def test_clustering_asks_one_direction_only(model: EmbeddedEquivalence) -> None:
    found = cluster_answers([WHO], [["shakespeare", "william shakespeare", "thomas kyd"]], equivalence=model)
    assert found.clusters == [[[0, 1], [2]]]
    assert found.calls == 3  # each pair once, not once in each direction


def test_what_is_too_long_is_cut_and_said_once(model: EmbeddedEquivalence) -> None:
    long = "a question that goes on " * 100
    fresh = EmbeddedEquivalence()
    with pytest.warns(SemcalWarning, match="256"):
        assert len(fresh.entails([(long, "paris", "paris france"), (long, "paris", "rome " * 400)])) == 2
    fresh.entails([(long, "paris", "rome")])  # warnings are errors: none comes again


@pytest.mark.parametrize("damage", ["missing", "cut", "no config"])
def test_damaged_files_are_refused_with_the_remedy(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "equivalence_model"
    shutil.copytree(locate("default", NLI_MODEL).source, folder)
    if damage == "missing":
        (folder / "tokenizer.json").unlink()
    elif damage == "cut":
        (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:100_000])
    else:
        (folder / "config.json").write_text(json.dumps({"longest": 256}))
    with pytest.raises(ModelError, match="--equivalence"):
        EmbeddedEquivalence(folder)


def test_it_is_small() -> None:
    folder = Path(locate("default", NLI_MODEL).source)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 29_000_000


# What every Equivalence promises, held by exact match, fakes, tiny checkpoints and the cache around them

SERVERS = ("prompted", "cached prompted")
IMPLEMENTATIONS = ("exact", "default", "fake", "cached fake", *tiny_nli.FAMILIES, "cached bert", *SERVERS)
FORMS = ["mira talso", "talso", "1620", "old red sull", "new", ""]
QUESTIONS = ["Who painted the lighthouse of Orvane?", " which river runs through belmar", ""]
TRIPLES = [(question, a, b) for question in QUESTIONS for a in FORMS for b in FORMS]


@pytest.fixture(scope="module")
def server() -> Iterator[VerdictServer]:
    pairs = (("mira talso", "talso"), ("talso", "mira talso"), ("old red sull", "new"))
    same = {(form, form): "entailment" for form in FORMS}
    with VerdictServer(same | dict.fromkeys(pairs, "entailment")) as running:
        yield running


@pytest.fixture(params=IMPLEMENTATIONS)
def equivalence(request: Any, tmp_path: Any) -> Equivalence:
    if request.param.endswith("prompted"):
        name = request.getfixturevalue("server").name
        kept = tmp_path / "verdicts.sqlite" if request.param.startswith("cached") else None
        settings = ServerSettings(profiles=tmp_path.parent / "profiles")
        return load_equivalence(name, cache=kept, settings=settings)
    if request.param in ("exact", "default"):
        return load_equivalence(request.param)
    fake = FakeEquivalence([{"mira talso", "talso"}], entailments=[("old red sull", "new")])
    if request.param == "fake":
        return fake
    if request.param == "cached fake":
        return CachedEquivalence(fake, tmp_path / "verdicts.sqlite")
    family = request.param.removeprefix("cached ")
    cache = tmp_path / "verdicts.sqlite" if family != request.param else None
    return load_equivalence(tiny_nli.save(tmp_path / family, family), device="cpu", cache=cache)


def test_there_is_one_plain_bool_for_each_triple_of_any_texts(equivalence):
    assert equivalence.name
    assert equivalence.revision
    verdicts = equivalence.entails(TRIPLES)
    assert len(verdicts) == len(TRIPLES)
    assert {type(verdict) for verdict in verdicts} == {bool}
    assert len(set(verdicts)) == 2
    assert equivalence.entails([]) == []
    strange = ["naïve 🙂", "\n\t", "'; --", "1/2"]
    assert len(equivalence.entails([("東?", a, b) for a in strange for b in strange])) == 16


def test_verdicts_do_not_depend_on_order_company_or_repetition(equivalence):
    verdicts = dict(zip(TRIPLES, equivalence.entails(TRIPLES)))
    shuffled = random.Random(0).sample(TRIPLES, len(TRIPLES)) + TRIPLES[:5]
    assert equivalence.entails(tuple(shuffled)) == [verdicts[triple] for triple in shuffled]
    for triple in TRIPLES[::7]:
        assert equivalence.entails([triple]) == [verdicts[triple]]
