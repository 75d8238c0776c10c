"""What every Equivalence promises, held by exact match, fakes, tiny checkpoints and the cache around them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_nli

from semcal.inputs import load_equivalence
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import CachedEquivalence, Equivalence
from semcal.models.fakes import FakeEquivalence
from semcal.servers.settings import ServerSettings
from tests.servers.verdict_server import VerdictServer

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


@pytest.mark.parametrize("linkage", ["components", "greedy"])
def test_clusters_are_a_partition_numbered_by_first_sample(linkage, equivalence):
    samples = ["talso", "", "1620", "mira talso", "new", "old red sull", "talso", ""]
    (clusters,) = cluster_answers(QUESTIONS[:1], [samples], equivalence, linkage=linkage).clusters
    assert sorted(index for cluster in clusters for index in cluster) == list(range(8))
    assert [cluster[0] for cluster in clusters] == sorted(cluster[0] for cluster in clusters)
    assert all(cluster == sorted(cluster) for cluster in clusters)
    assert [1, 7] in clusters
    assert sum({0, 6} <= set(cluster) for cluster in clusters) == 1
