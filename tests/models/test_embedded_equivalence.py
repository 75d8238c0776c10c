"""The embedded equivalence: verdicts that depend on a pair alone, in either order, and what it can tell
apart.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semcal
from semcal.errors import ModelError, SemcalWarning
from semcal.hub_names import NLI_MODEL, locate
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import CachedEquivalence, EmbeddedEquivalence

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


@pytest.mark.parametrize("triple", SAME)
def test_other_wordings_of_an_answer_mean_the_same(
    model: EmbeddedEquivalence, triple: tuple[str, str, str]
) -> None:
    assert model.entails([triple]) == [True]


@pytest.mark.parametrize("triple", APART)
def test_answers_of_one_kind_are_kept_apart(model: EmbeddedEquivalence, triple: tuple[str, str, str]) -> None:
    assert model.entails([triple]) == [False]


words = st.text("abcdefg éß中🙂-", min_size=0, max_size=30)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=6), st.randoms())
def test_a_verdict_depends_on_its_pair_alone(
    model: EmbeddedEquivalence, triples: list, random: object
) -> None:
    alone = [model.entails([triple])[0] for triple in triples]
    assert model.entails(triples) == alone
    assert model.entails([(q, b, a) for q, a, b in triples]) == alone
    together = model.logits([*triples, *SAME, *APART])[: len(triples)]
    np.testing.assert_allclose(together, [model.logits([triple])[0] for triple in triples], atol=1e-4)


def test_both_orders_are_read_unless_the_first_is_far_from_the_same(
    model: EmbeddedEquivalence, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(question, *sorted((a, b))) for question, a, b in [*SAME, *APART]]
    first = model.logits(pairs)
    means = (first + model.logits([(question, b, a) for question, a, b in pairs])) / 2
    assert min(abs(first - model.apart).min(), abs(means - model.threshold).min()) > 1e-3
    read: list[tuple[str, str, str]] = []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda some: read.extend(some) or logits(some))
    assert model.entails(pairs) == ((first > model.apart) & (means > model.threshold)).tolist()
    near = [pair for pair, logit in zip(pairs, first) if logit > model.apart]
    assert 0 < len(near) < len(pairs)
    assert read == [*pairs, *((question, b, a) for question, a, b in near)]


@pytest.mark.parametrize("limit", ["apart", "threshold"])
def test_a_logit_at_a_limit_is_that_of_the_pair_alone(
    model: EmbeddedEquivalence, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    pair = (WHO, "shakespeare", "william shakespeare")
    logits = model.logits
    alone = (
        (logits([pair])[0] + logits([(WHO, pair[2], pair[1])])[0]) / 2
        if limit == "threshold"
        else logits([pair])[0]
    )
    monkeypatch.setattr(model, limit, alone + 1e-5)  # differs, by itself; in company it would be above
    if limit == "threshold":
        monkeypatch.setattr(model, "apart", -100.0)
    else:
        monkeypatch.setattr(model, "threshold", -100.0)
    monkeypatch.setattr(model, "logits", lambda some: logits(some) + (0.0 if len(some) == 1 else 2e-5))
    assert model.entails([pair, (WHO, "marlowe", "shakespeare")])[0] is False


def test_no_triple_is_no_verdict(model: EmbeddedEquivalence) -> None:
    assert model.entails([]) == []


def test_clustering_asks_one_direction_only(model: EmbeddedEquivalence) -> None:
    found = cluster_answers([WHO], [["shakespeare", "william shakespeare", "marlowe"]], equivalence=model)
    assert found.clusters == [[[0, 1], [2]]]
    assert found.calls == 3  # each pair once, not once in each direction


def test_verdicts_are_cached_by_name_and_revision(model: EmbeddedEquivalence, tmp_path: Path) -> None:
    cached = CachedEquivalence(model, tmp_path / "verdicts.sqlite")
    assert cached.symmetric
    assert cached.entails(SAME) == [True] * len(SAME)
    assert (cached.calls, cached.hits) == (len(SAME), 0)
    assert cached.entails(SAME) == [True] * len(SAME)
    assert cached.hits == len(SAME)


def test_what_is_too_long_is_cut_and_said_once(model: EmbeddedEquivalence) -> None:
    long = "a question that goes on " * 100
    fresh = EmbeddedEquivalence()
    with pytest.warns(SemcalWarning, match="at most 256 tokens"):
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
    with pytest.raises(
        ModelError, match="install semcal again, or group by normal forms with --equivalence exact"
    ):
        EmbeddedEquivalence(folder)


def test_it_is_small_and_needs_no_torch() -> None:
    folder = Path(locate("default", NLI_MODEL).source)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 24_000_000
    code = (
        "import sys, semcal; e = semcal.load_equivalence(); "
        "assert e.entails([('Who?', 'ann lee', 'lee')]) is not None; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
