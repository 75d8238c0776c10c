"""YAML of settings: every mistake is one short error with its place, whatever the text is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from semcal.errors import UsageError, shown
from semcal.experiment.grid_settings import read_settings
from semcal.models.load import parse_size
from semcal.yaml_files import LONGEST, parse_yaml

SMALL = """\
models: [{name: one, path: atlas}]
datasets: [{name: trivia, source: atlas-trivia}]
equivalence: atlas
"""
#: Nine words nine times, nine times, …: 9¹⁰ words in twenty lines.
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
CHAIN = "c0: &c0 [x]\n" + "".join(f"c{i + 1}: &c{i + 1} [*c{i}]\n" for i in range(3000))

#: Texts that follow the settings, and the place or the key that the error names.
WRONG = {
    "a date that is none": ("seed: 2020-13-45", "line 4, column 7: '2020-13-45'"),
    "a tag that does not fit": ("seed: !!int x", "line 4, column 7: 'x'"),
    "an empty float": ("seed: !!float ''", "line 4, column 7: ''"),
    "a binary number without digits": ("seed: 0b_", "'0b_'"),
    "a timestamp by tag": ("seed: !!timestamp x", "line 4, column 7"),
    "a thousand lists in one another": (f"seed: {'[' * 1000}{']' * 1000}", "column 106: nested"),
    "lists that never end": (f"seed: {'[' * 100_000}", "line 4, column 106: nested"),
    "a size of 400 digits": (f"block: {'9' * 400}", "line 4, column 8"),
    "a size of 5000 digits": (f"block: {'9' * 5000}", "line 4, column 8"),
    "a size of 400 digits in quotes": (f"block: '{'9' * 400}'", "block: "),
    "a number to base 60": (f"seed: 1{':59' * 5000}", "line 4, column 7"),
    "NUL in a path": ('equivalence_: "a\\0b"', r"'a\x00b'"),
    "half a character": ('x: "\\ud800"', "line 4, column 4"),
    "a control character": ("seed: \x01", "#x0001"),
    "a number beyond float": ("fitting: {learning_rate: 1e999}", "fitting.learning_rate"),
    "an infinity": ("fitting: {learning_rate: .inf}", "fitting.learning_rate"),
    "a whole number beyond float": (f"fitting: {{learning_rate: 1{'0' * 400}}}", "line 4, column 26"),
    "a list that holds itself": ("seed: &a [*a]", "line 4, column 7"),
    "a mapping merged into itself": ("sampling: &s {<<: *s}", "line 4, column 15"),
    "a billion laughs": (LAUGHS, "values, aliases written out"),
    "a chain of aliases": (CHAIN, "nested more than 100 deep"),
    "a key twice": ("seed: 1\nseed: 2", 'line 5, column 1: found duplicate key "seed"'),
    "a key twice further in": ("sampling: {m: 1, m: 2}", 'line 4, column 18: found duplicate key "m"'),
    "yes as a number": ("block: yes", "block: "),
    "true among numbers": ("sampling: {counts: [5, true]}", "sampling.counts: "),
    "no as a text": ("models_: 0\nmemory: no", "memory: "),
    "a text that is no size": (f"memory: {'9' * 400}GB", "memory"),
    "an object of Python": ("seed: !!python/object:os.system x", "line 4, column 7"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_setting_can_be_is_one_short_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    more, told = WRONG[name]
    path.write_text(SMALL + more, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        read_settings(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert told in text
    assert len(text) < 700
    assert "\n" not in text


def test_a_null_or_a_yes_where_a_name_belongs_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    for word, got in (("null", "None"), ("yes", "True")):
        path.write_text(SMALL.replace("name: one", f"name: {word}"))
        with pytest.raises(UsageError, match=f"models.0.name: .*{got}") as raised:
            read_settings(path)
        assert "at least 1 item" not in str(raised.value)


@pytest.mark.parametrize(
    "override",
    [
        "seed=" + "[" * 1000,
        "seed=" + "9" * 5000,
        "k" * 5000 + "=1",
        ".".join("k" * 5000) + "=1",
        f"models.{'9' * 5000}.path=x",
        "preset=" + "x" * 5000,
        "x" * 5000,
        "seed=2020-13-45",
        'models.0.path="a\\0b"',
        "datasets=&a [*a]",
        "seed={a: 1, a: 2}",
    ],
    ids=lambda override: override[:20],
)
def test_a_wrong_override_is_one_error_that_shows_it_cut(override: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(SMALL)
    with pytest.raises(UsageError) as raised:
        read_settings(path, [override])
    assert len(str(raised.value)) < 450


def test_thousands_of_unknown_keys_are_ten_and_a_count(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(SMALL + "".join(f"k{number}: 1\n" for number in range(3000)))
    with pytest.raises(UsageError, match=r"'k9'.*2990 more$"):
        read_settings(path)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("#" * (LONGEST + 1))
    with pytest.raises(UsageError, match="1000000 characters"):
        read_settings(path)
    path.write_bytes(b"seed: \xff")
    with pytest.raises(UsageError, match=r"grid\.yaml: not UTF-8 \(byte 6\)"):
        read_settings(path)


def test_aliases_and_merged_keys_that_are_few_mean_what_they_say() -> None:
    text = "one: &one {m: 3, n: 4}\ntwo: {<<: *one, m: 5}\nthree: [*one, *one]"
    assert parse_yaml(text, what="x") == {
        "one": {"m": 3, "n": 4},
        "two": {"m": 5, "n": 4},
        "three": [{"m": 3, "n": 4}, {"m": 3, "n": 4}],
    }


@pytest.mark.parametrize("size", ["9" * 400 + "GB", "9" * 400, 10**5000, 2**63, -1], ids=range(5))
def test_a_size_that_no_process_can_address_is_refused(size: str | int) -> None:
    with pytest.raises(UsageError, match="size of memory") as raised:
        parse_size(size)
    assert len(str(raised.value)) < 200


def test_values_are_shown_short() -> None:
    assert shown("x" * 10**6) == "'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'"
    assert shown([[[[["x"]]]]]) == "[[[[...]]]]"
    assert len(shown({f"key {i}" * 9: ["value"] * 9 for i in range(9)})) == 60
