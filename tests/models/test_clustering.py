"""Clusters are those of the full relation, and the model is asked nothing that cannot change them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

import semcal
from semcal.errors import InputError, UsageError
from semcal.grading.grade import as_grader, grader_record
from semcal.inputs import load_equivalence
from semcal.meaning.rules import decide
from semcal.measures.formulas import complete
from semcal.models import clustering
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.text.normal_form import normal_form
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write


def components(related: Sequence[Sequence[bool]]) -> list[list[int]]:
    """Connected components of a relation."""
    _, label = connected_components(np.array(related), directed=False)
    return [np.flatnonzero(label == number).tolist() for number in np.unique(label)]


def greedy(related: Sequence[Sequence[bool]]) -> list[list[int]]:
    """Each answer joins the first cluster whose first member it is equivalent to."""
    clusters: list[list[int]] = []
    for i in range(len(related)):
        home = next((cluster for cluster in clusters if related[i][cluster[0]]), None)
        if home is None:
            clusters.append([i])
        else:
            home.append(i)
    return clusters


#: Those that take the samples as they come.
LINKAGES = {"components": components, "greedy": greedy}
FORMS = ["awl", "bolt wood", "cog", "date palm", "eel", "frame rim", ""]


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[str], FakeEquivalence]:
    """Samples of one question and any directed relation between them, symmetric or transitive or not."""
    samples = draw(st.lists(st.sampled_from(FORMS), min_size=1, max_size=12))
    pairs = list(permutations(FORMS, 2))
    entailed = draw(st.lists(st.sampled_from(pairs), max_size=len(pairs), unique=True))
    both_ways = draw(st.booleans())
    entailed += [(b, a) for a, b in entailed] if both_ways else []
    return samples, FakeEquivalence(entailments=entailed)


def equivalent_by(equivalence: FakeEquivalence, a: str, b: str) -> bool:
    both = [("q?", a, b), ("q?", b, a)]
    return a == b or (bool(a and b) and all(FakeEquivalence.entails(equivalence, both)))


def by_definition(samples: Sequence[str], equivalence: FakeEquivalence, linkage: str) -> list[list[int]]:
    """All ordered pairs of samples, both directions, then the linkage of the whole relation."""
    return LINKAGES[linkage]([[equivalent_by(equivalence, a, b) for b in samples] for a in samples])


@given(questions(), st.sampled_from(sorted(LINKAGES)))
def test_clusters_are_those_of_the_full_relation(question, linkage):
    samples, equivalence = question
    found = cluster_answers(["q?"], [samples], equivalence, linkage=linkage)
    assert found.clusters == [by_definition(samples, equivalence, linkage)]


@given(questions(), st.randoms(use_true_random=False))
def test_complete_clusters_are_those_of_the_full_relation_the_commonest_and_shortest_answers_first(
    question, random
):
    samples, equivalence = question
    found = cluster_answers(["q?"], [samples], equivalence, linkage="complete").clusters[0]
    order = sorted(
        range(len(samples)), key=lambda i: (-samples.count(samples[i]), len(samples[i]), samples[i])
    )
    related = [[equivalent_by(equivalence, samples[i], samples[j]) for j in order] for i in order]
    expected = [sorted(order[i] for i in cluster) for cluster in complete(related)]
    assert found == sorted(expected)
    for cluster in found:
        assert all(equivalent_by(equivalence, samples[i], samples[j]) for i, j in combinations(cluster, 2))
    shuffled = random.sample(range(len(samples)), len(samples))
    moved = cluster_answers(["q?"], [[samples[i] for i in shuffled]], equivalence, linkage="complete")
    assert sorted(sorted(shuffled[i] for i in cluster) for cluster in moved.clusters[0]) == found


def test_complete_asks_about_each_pair_once_and_back_only_where_the_first_entails():
    fake = FakeEquivalence([{"awl", "bolt"}, {"bolt", "cog"}])
    found = cluster_answers(["q?"], [["awl", "bolt", "cog", "cog", "5", "6"]], fake, linkage="complete")
    assert found.clusters == [[[0], [1, 2, 3], [4], [5]]]  # two draws of cog: surer than awl
    assert len(fake.asked) == len(set(fake.asked)) == found.calls == 10 - 1 + 2  # "5" and "6" differ


@given(questions(), st.sampled_from(sorted(LINKAGES)))
def test_nothing_is_asked_twice_or_without_need(question, linkage):
    samples, equivalence = question
    found = cluster_answers(["q?"], [samples], equivalence, linkage=linkage)
    asked = [(a, b) for _, a, b in equivalence.asked]
    assert found.calls == len(asked) == len(set(asked))
    assert all(a and b and a != b and {a, b} <= set(samples) for a, b in asked)
    entails = {
        pair: FakeEquivalence().entails([("q?", *pair)])[0] or pair in equivalence._entailed for pair in asked
    }
    home = {form: {form} for form in samples}
    for place, (a, b) in enumerate(asked):
        if (b, a) in asked[:place]:  # the second direction, only after the first entailed
            assert entails[b, a]
            if linkage == "components" and entails[a, b]:
                joined = home[a] | home[b]
                home |= dict.fromkeys(joined, joined)
        elif linkage == "components":
            assert home[a] is not home[b]


@given(st.lists(questions(), max_size=6), st.sampled_from(clustering.LINKAGES), st.integers(1, 20))
def test_questions_in_company_are_clustered_and_asked_about_as_alone(several, linkage, room):
    relation = FakeEquivalence(entailments=[pair for _, e in several for pair in e._entailed])
    names = [f"q{number}?" for number in range(len(several))]
    samples = [forms for forms, _ in several]
    alone = [cluster_answers([n], [s], relation, linkage=linkage) for n, s in zip(names, samples)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "PAIRS_PER_ROUND", room)
        together = cluster_answers(names, samples, relation, linkage=linkage)
    assert together.clusters == [one.clusters[0] for one in alone]
    assert together.calls == sum(one.calls for one in alone)


def test_all_questions_are_asked_about_in_the_same_few_calls():
    class Counting(FakeEquivalence):
        batches = 0

        def entails(self, triples):
            Counting.batches += 1
            return super().entails(triples)

    names = [f"q{number}?" for number in range(300)]
    cluster_answers(names, [["awl", "bolt", "cog"]] * 300, Counting([{"awl", "bolt"}]))
    assert Counting.batches == 3  # awl with all, back from bolt, cog with bolt


def test_one_question_in_several_rows_and_wordings_is_asked_about_once():
    fake = FakeEquivalence([{"awl", "awl tree"}])
    rows = [["Awl.", "awl", "Awl tree", "eel"], ["eel", "the Awl"], ["awl tree!", "eel", "awl"]]
    found = cluster_answers(["q?"] * 3, rows, fake)
    assert found.clusters == [[[0, 1, 2], [3]], [[0], [1]], [[0, 2], [1]]]
    assert found.calls == len(set(fake.asked)) == 4


@pytest.mark.parametrize("linkage", clustering.LINKAGES)
@pytest.mark.parametrize(
    ("samples", "clusters"),
    [
        (["$5", "$6", "$5"], [[0, 2], [1]]),
        (["henry vii", "henry viii", "henry vii"], [[0, 2], [1]]),
        (["5 km", "5000 m", "5 miles"], [[0, 1], [2]]),
    ],
)
def test_values_merge_or_not_by_rule_whatever_a_model_says_and_it_is_not_asked(samples, clusters, linkage):
    fake = FakeEquivalence([set(samples)])
    found = cluster_answers(["q?"], [samples], fake, linkage=linkage)
    assert (found.clusters, found.calls, fake.asked) == ([clusters], 0, [])


class Margins:
    """An equivalence with margins: `table` maps unordered pairs of forms to a margin, −1 for all others."""

    name, revision, symmetric = "margins", "1", True

    def __init__(self, table: dict[tuple[str, str], float]) -> None:
        self.table = {frozenset(pair): margin for pair, margin in table.items()}
        self.asked: list[tuple[str, str, str]] = []

    def entails(self, triples: Sequence[tuple[str, str, str]]) -> list[bool]:
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[tuple[str, str, str]]) -> list[float]:
        self.asked += triples
        return [self.table.get(frozenset((a, b)), -1.0) for _, a, b in triples]


def test_different_values_never_meet_through_a_third_answer_and_it_joins_the_surer():
    table = {("few coins", "$5"): 1.0, ("few coins", "$6"): 2.0}
    samples = ["few coins", "$5", "$6"]
    assert cluster_answers(["q?"], [samples], Margins(table)).clusters == [[[0, 2], [1]]]
    table = {("few coins", "$5"): 2.0, ("few coins", "$6"): 1.0}
    assert cluster_answers(["q?"], [samples], Margins(table)).clusters == [[[0, 1], [2]]]


def test_greedy_has_no_cannot_links_and_complete_linkage_has():
    fake = FakeEquivalence([{"$5", "few coins", "$6"}])
    found = cluster_answers(["q?"], [["few coins", "$5", "$6"]], fake, linkage="complete")
    assert found.clusters == [[[0, 1], [2]]]
    found = cluster_answers(["q?"], [["few coins", "$5", "$6"]], fake, linkage="greedy")
    assert found.clusters == [[[0, 1, 2]]]  # each is compared with the first member alone
    assert not any({a, b} == {"$5", "$6"} for _, a, b in fake.asked)


#: Of the first five, those with numbers differ by rule; "$5" and "$ 5." are the same.
WORDINGS = ["$5", "$6", "$7", "few coins", "small change", "awl", "bolt wood", "$ 5.", "Awl.", "cog"]


@st.composite
def margins_of_wordings(draw: st.DrawFn) -> Margins:
    forms = sorted({normal_form(text) for text in WORDINGS})
    values = st.sampled_from([-2.0, -1.0, 0.5, 1.0, 1.5])
    return Margins({pair: draw(values) for pair in combinations(forms, 2)})


def components_by_definition(samples: Sequence[str], equivalence: Margins) -> list[set[str]]:
    """Decide all pairs, then join by rule, then by falling margin, and never across a difference."""
    texts = sorted(set(samples))
    verdicts = {pair: decide("q?", *pair) for pair in combinations(texts, 2)}
    scores = {pair: math.inf if verdicts[pair] else -1.0 for pair in verdicts}
    scores |= {
        (a, b): equivalence.margins([("q?", normal_form(a), normal_form(b))])[0]
        for (a, b), verdict in verdicts.items()
        if verdict is None
    }
    clusters = [{text} for text in texts]
    for pair in sorted(scores, key=lambda pair: (-scores[pair], pair)):
        one, other = (next(c for c in clusters if text in c) for text in pair)
        different = any(verdicts[min(a, b), max(a, b)] is False for a in one for b in other if a != b)
        if scores[pair] > 0 and one is not other and not different:
            clusters = [c for c in clusters if c is not one and c is not other] + [one | other]
    return clusters


@given(
    st.lists(st.sampled_from(WORDINGS), min_size=1, max_size=10),
    margins_of_wordings(),
    st.randoms(use_true_random=False),
)
def test_components_are_those_of_the_definition_in_whatever_order_samples_come(samples, equivalence, random):
    expected = sorted(sorted(cluster) for cluster in components_by_definition(samples, equivalence))
    for _ in range(2):
        (found,) = cluster_answers(["q?"], [samples], equivalence).clusters
        assert sorted(sorted({samples[i] for i in cluster}) for cluster in found) == expected
        random.shuffle(samples)


def test_a_sample_without_an_answer_is_a_meaning_of_its_own_and_never_asked_about():
    fake = FakeEquivalence([{"awl", "none"}])
    found = cluster_answers(["q?"], [[None, "awl", None, "", "none"]], fake)
    assert found.clusters == [[[0, 2], [1, 4], [3]]]
    assert {text for _, *pair in fake.asked for text in pair} == {"awl", "none"}


def test_to_the_letter_case_dots_and_signs_count():
    found = cluster_answers(
        ["q?"], [["AB-12", "ab-12", " AB-12 ", "AB12", "a + b", "a - b"]], ExactMatch(letter=True)
    )
    assert found.clusters == [[[0, 2], [1], [3], [4], [5]]]


def test_refusals_are_one_meaning_that_merge_refusals_also_makes_of_equal_forms():
    samples = [["i dont know", "awl", "im not sure", "i dont know"]]
    fake = FakeEquivalence()
    assert cluster_answers(["q?"], samples, fake).clusters == [[[0, 2, 3], [1]]]
    assert cluster_answers(["q?"], samples, ExactMatch()).clusters == [[[0, 3], [1], [2]]]
    merged = cluster_answers(["q?"], samples, ExactMatch(), merge_refusals=True)
    assert merged.clusters == [[[0, 2, 3], [1]]]


def test_questions_may_have_different_numbers_of_samples_or_none():
    found = cluster_answers(["a?", "b?", "c?"], [[], ["awl"], ["eel", "awl", "eel"]], FakeEquivalence())
    assert found.clusters == [[], [[0]], [[0, 2], [1]]]
    assert cluster_answers([], [], FakeEquivalence()).clusters == []


def test_progress_counts_settled_questions_up_to_the_last():
    seen: list[int] = []
    samples = [["awl"], ["awl", "eel"], ["awl", "bolt", "cog"], ["", ""]]
    cluster_answers(["a?", "b?", "c?", "d?"], samples, FakeEquivalence(), progress=seen.append)
    assert seen == sorted(set(seen))
    assert seen[-1] == 4


def test_lists_that_do_not_match_and_an_unknown_linkage_are_errors():
    with pytest.raises(InputError, match="1 lists for 2 questions"):
        cluster_answers(["a?", "b?"], [["awl"]], FakeEquivalence())
    with pytest.raises(UsageError, match="component"):
        cluster_answers(["a?"], [["awl"]], FakeEquivalence(), linkage="component")


# ---- Labels as answers: compared and graded by equality, and anything else is no answer, counted -----------

NAME = "among:spam,not spam"
TEXTS = [f"Is mail {n} spam?" for n in range(60)]
#: Ten in a hundred draws say something else.
TABLE = {
    text: {"spam": 0.1 + 0.7 * (n % 2), "not spam": 0.8 - 0.7 * (n % 2), "I think so": 0.1}
    for n, text in enumerate(TEXTS)
}
LABELLED = [
    {"question": text, "answers": "spam" if n % 2 != (n % 5 == 0) else "Not spam."}
    for n, text in enumerate(TEXTS)
]


def test_other_answers_are_one_group_and_labels_never_mean_the_same() -> None:
    samples = ["spam", "Spam.", "not spam", "no", "I think so", "SPAM"]
    (row,) = semcal.score([{"question": "Is it?", "samples": samples}], equivalence=NAME).rows
    assert row["normal_forms"] == ["spam", "spam", "not spam", "", "", "spam"]
    assert row["clusters"] == [[0, 1, 5], [2], [3, 4]]


def test_a_label_within_another_is_wrong() -> None:
    labels = load_equivalence(NAME)
    exact = as_grader(None, labels)
    assert not exact.grade("Is it?", ["not spam"], ["spam"]).correct
    assert exact.grade("Is it?", ["Spam."], ["spam"]).correct
    assert grader_record(exact) == ("exact", None)
    assert not as_grader("rules", labels).grade("Is it?", ["not spam"], ["spam"]).correct
    with pytest.raises(UsageError, match="NLI"):
        as_grader("nli", labels)


@pytest.mark.parametrize("labels", ["spam,", "spam,Spam.", ""])
def test_labels_that_are_none_are_refused(labels: str) -> None:
    with pytest.raises(UsageError, match="labels"):
        load_equivalence(f"among:{labels}")


def test_a_reference_that_is_no_label_is_refused_by_its_row() -> None:
    rows: list[dict[str, Any]] = [*LABELLED[:30], {"id": "odd", "question": "Is it?", "answers": "ham"}]
    model = FakeLanguageModel({**TABLE, "Is it?": {"spam": 1.0}})
    with pytest.raises(InputError, match=r"'odd'.*'ham'"):
        semcal.calibrate(model, rows, equivalence=NAME, progress=False)


@pytest.mark.filterwarnings("ignore:all 60 answers have the same share")
def test_the_option_names_the_labels_and_tells_how_many_draws_are_none(tmp_path: Path) -> None:
    rows = [
        {
            "id": str(n),
            "question": text,
            "samples": ["spam"] * 7 + ["not spam", "eh", "eh"],
            "answers": ["spam" if n % 4 else "not spam"],
        }
        for n, text in enumerate(TEXTS)
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    code, clustered, told = command("cluster", file, "--answers-among", "spam, not spam")
    assert code == 0
    assert "120 of 600 samples do not match any of spam, not spam" in told
    assert clustered[0]["clusters"] == [list(range(7)), [7], [8, 9]]
    options = ("--answers-among", "spam,not spam", "--out", tmp_path / "map")
    code, _, told = command("calibrate", file, *options)
    assert code == 0, told
    stored = json.loads((tmp_path / "map" / "calibration.json").read_text())
    assert (stored["equivalence"], stored["grader"]) == (NAME, "exact")
    code, _, told = command("cluster", file, "--answers-among", "spam,ham", "--equivalence", "exact")
    assert (code, "--equivalence" in told) == (2, True)
