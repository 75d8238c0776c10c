"""Verdicts on disk: kept, found again, shared by processes, and never read from a file that is not whole."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semcal.errors import StoreError
from semcal.models.equivalence import CHUNK, CachedEquivalence
from semcal.models.fakes import FakeEquivalence

ASKED = [("Where?", "nyc", "new york"), ("Where?", "new york", "nyc"), ("Where?", "nyc", "rome")]


def fake(**options: str) -> FakeEquivalence:
    return FakeEquivalence([{"nyc", "new york"}], **options)


def test_a_second_run_asks_the_model_nothing(tmp_path):
    path = tmp_path / "new" / "folder" / "verdicts.sqlite"
    first = CachedEquivalence(fake(), path)
    assert first.entails([*ASKED, ASKED[0]]) == [True, True, False, True]
    second = CachedEquivalence(fake(), path)
    assert second.entails(ASKED[::-1]) == [False, True, True]
    assert (first.hits, first.calls) == (1, 3)
    assert (second.hits, second.calls) == (3, 0)
    assert second.inner.asked == []
    del first, second  # who closes the file leaves nothing beside it
    assert [kept.name for kept in path.parent.iterdir()] == ["verdicts.sqlite"]


def test_a_later_run_has_the_margins_of_the_first(tmp_path):
    scoring = SimpleNamespace(name="m", revision="1", margins=lambda triples: [1.25, -0.5][: len(triples)])
    scoring.entails = lambda triples: [margin > 0 for margin in scoring.margins(triples)]
    asked = [("q?", "a", "b"), ("q?", "a", "c")]
    assert CachedEquivalence(scoring, tmp_path / "v.sqlite").margins(asked) == [1.25, -0.5]
    again = CachedEquivalence(scoring, tmp_path / "v.sqlite")
    assert (again.margins(asked), again.entails(asked), again.calls) == ([1.25, -0.5], [True, False], 0)


def test_direction_question_and_model_are_part_of_the_key(tmp_path):
    path = tmp_path / "verdicts.sqlite"
    one_way = FakeEquivalence(entailments=[("soho", "nyc")])
    cached = CachedEquivalence(one_way, path)
    assert cached.entails([("Where?", "soho", "nyc"), ("Where?", "nyc", "soho")]) == [True, False]
    assert cached.entails([("Where else?", "soho", "nyc")]) == [True]
    assert cached.calls == 3
    assert CachedEquivalence(FakeEquivalence(), path).entails([("Where?", "soho", "nyc")]) == [False]
    assert CachedEquivalence(FakeEquivalence(name="other"), path).entails([("Where?", "soho", "nyc")]) == [
        False
    ]


def test_more_triples_than_one_statement_takes_are_all_found(tmp_path):
    asked = [(f"q{i}?", f"a{i}", f"b{i % 7}") for i in range(3 * CHUNK + 1)]
    truth = FakeEquivalence(entailments=[(a, b) for _, a, b in asked[::2]])
    expected = truth.entails(asked)
    CachedEquivalence(truth, tmp_path / "v.sqlite").entails(asked)
    again = CachedEquivalence(truth, tmp_path / "v.sqlite")
    assert again.entails(asked) == expected
    assert again.calls == 0


def test_of_two_processes_that_decide_at_once_the_first_verdict_holds_for_both(tmp_path):
    path = tmp_path / "verdicts.sqlite"
    first = CachedEquivalence(SimpleNamespace(name="m", revision="1", entails=lambda _: [True]), path)

    def later(triples):
        assert first.entails(triples) == [True]  # meanwhile, on another device
        return [False]

    second = CachedEquivalence(SimpleNamespace(name="m", revision="1", entails=later), path)
    assert second.entails([("q?", "a", "b")]) == [True]


def filled(path: Path) -> Path:
    asked = [(f"q{i}?", f"answer {i}", f"answer {i + 1}") for i in range(800)]
    CachedEquivalence(fake(), path).entails(asked)
    return path


WORKER = """
import sys
from types import SimpleNamespace
from semcal.models.equivalence import CachedEquivalence

path, number = sys.argv[1], int(sys.argv[2])
decide = lambda triples: [premise == hypothesis for _, premise, hypothesis in triples]
cached = CachedEquivalence(SimpleNamespace(name="m", revision="1", entails=decide), path)
for step in range(100):
    place = (step + 10 * number) % 100
    assert cached.entails([(f"q{place}?", "even", "odd" if place % 2 else "even")]) == [place % 2 == 0]
print(cached.hits + cached.calls)
"""


def test_processes_share_one_file_made_by_whoever_comes_first(tmp_path):
    path = tmp_path / "verdicts.sqlite"
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, path, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    assert [worker.communicate()[0] for worker in workers] == ["100\n"] * 4
    assert [kept.name for kept in tmp_path.iterdir()] == ["verdicts.sqlite"]
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*), sum(margin > 0) FROM verdicts").fetchone() == (100, 50)
    database.close()


def declared(path: Path, *statements: str) -> Path:
    """Another file of verdicts, in which something was declared or changed."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA ignore_check_constraints = ON")
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def overwritten(change: Any) -> Any:
    """Damage: other bytes."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def by(statement: str) -> Any:
    """Damage: a statement that is none of ours."""
    return lambda path: declared(path, statement)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (overwritten(lambda _: b"not a database at all, but long enough to look like a file"), "damaged"),
        (overwritten(lambda raw: raw[:8192] + bytes(8192) + raw[16384:]), "damaged"),
        (by("CREATE TRIGGER a AFTER INSERT ON verdicts BEGIN UPDATE verdicts SET margin = 1; END"), "tables"),
        (by("PRAGMA user_version = 99"), "99"),
        (lambda path: path.unlink() or declared(path, "CREATE TABLE bookmarks (a TEXT)"), "another program"),
        (lambda path: path.unlink() or path.mkdir(), "unable"),
    ],
)
def test_a_file_that_is_no_whole_cache_is_an_error_that_names_it_and_is_left_alone(damage, named, tmp_path):
    path = filled(tmp_path / "v.sqlite")
    damage(path)
    before = path.is_file() and path.read_bytes()
    with pytest.raises(StoreError, match=rf"v\.sqlite.*{named}"):
        CachedEquivalence(fake(), path).entails(ASKED)
    assert (path.is_file() and path.read_bytes()) == before


def test_a_file_damaged_while_it_is_open_is_named_and_so_is_a_folder_that_cannot_be_made(tmp_path):
    path = filled(tmp_path / "v.sqlite")
    cached = CachedEquivalence(fake(), path)
    path.write_bytes(path.read_bytes()[:4096] + bytes(8192))
    with pytest.raises(StoreError, match=r"v\.sqlite"):
        cached.entails(ASKED)
    with pytest.raises(StoreError, match="folder"):
        CachedEquivalence(fake(), path / "v.sqlite")


def test_a_margin_that_is_no_finite_number_is_damage(tmp_path: Path) -> None:
    path = filled(tmp_path / "v.sqlite")
    declared(path, "UPDATE verdicts SET margin = -9e999 WHERE hypothesis = 'answer 7'")
    with pytest.raises(StoreError, match=r"v\.sqlite.*CHECK"):
        CachedEquivalence(fake(), path)


def test_a_copy_of_the_file_alone_holds_all_verdicts_though_another_has_it_open(tmp_path: Path) -> None:
    path, copy = tmp_path / "cache", tmp_path / "copy"
    open_still, one = CachedEquivalence(fake(), path), CachedEquivalence(fake(), path)
    found = one.entails(ASKED)
    del one
    copy.write_bytes(path.read_bytes())
    kept = CachedEquivalence(fake(), copy)
    assert (kept.entails(ASKED), kept.calls, open_still.calls) == (found, 0, 0)
