"""What the columns of a file are called: by option, by our names in any case, or by other common names.

Decided once for a file, from its first rows; what is understood is told, what is missing is an error.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from semcal.errors import InputError, RowError, SemcalWarning, UsageError, shown
from semcal.records import Row
from semcal.registry import check_name

__all__ = ["COMMON_NAMES", "Tell", "check_different", "find_columns", "parse_columns", "peek", "rename"]

#: Rows from which it is decided what columns are called.
FIRST = 64
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("query",),
    "samples": ("responses", "completions"),
}
"""Other names of a column that are understood, in any case."""
#: Columns beside which `answer` is the model's.
_OF_A_MODEL = {"samples", *COMMON_NAMES["samples"], "prediction"}
#: Several answers in one cell, as people write them who have no lists.
_SEVERAL = re.compile(r"[^\s;|]\s*[;|]\s*[^\s;|]")

Tell = Callable[[str], None]
"""Tells the user something about a file that is no error."""


def parse_columns(given: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """Return "question=Frage", … as {our name: the file's}.

    Raises
    ------
    UsageError
        If one is no such pair, names no column of `known`, or stands twice.

    Examples
    --------
    >>> parse_columns(["question=Frage", "answers=Die Antwort"], ("id", "question", "answers"))
    {'question': 'Frage', 'answers': 'Die Antwort'}
    """
    columns: dict[str, str] = {}
    for pair in given:
        ours, equals, theirs = pair.partition("=")
        if not (equals and theirs):
            raise UsageError(f"--columns {shown(pair)}: expected OURS=THEIRS, such as question=Frage")
        if check_name(ours.strip(), known, what="column of --columns") in columns:
            raise UsageError(f"--columns names {ours.strip()!r} twice")
        columns[ours.strip()] = theirs
    return columns


def check_different(names: Sequence[str], path: Path) -> None:
    """Refuse a file with two columns of one name: InputError."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{times} columns of {path} are called {shown(name)}: rename or remove one")


def find_columns(
    keys: Sequence[str], known: Mapping[str, Sequence[str]], columns: Mapping[str, str]
) -> dict[str, str]:
    """Return what each known column is called among `keys`, where it is not called by our name.

    Parameters
    ----------
    keys : sequence of str
        What a file has.
    known : mapping of str to sequence of str
        Our names, with the other names that are understood for each.
    columns : mapping of str to str
        Our name → the file's, where the user has said so.

    Raises
    ------
    UsageError
        If the user names a column that is not there, or two columns could be the one that is looked for.

    Examples
    --------
    >>> find_columns(["ID", "Query", "Level"], {"id": (), "question": ("query",)}, {})
    {'id': 'ID', 'question': 'Query'}
    """
    found = {ours: check_name(theirs, keys, what="column") for ours, theirs in columns.items()}
    for ours, others in known.items():
        if ours in found or ours in keys:
            continue
        for name in (ours, *others):
            same = [key for key in keys if key.strip().lower() == name and key not in found.values()]
            if len(same) > 1:
                raise UsageError(
                    f"{' and '.join(map(shown, same))} could both be the column {ours!r}: say which with "
                    f"--columns {ours}=NAME (in Python: columns={{{ours!r}: NAME}})"
                )
            if same:
                found[ours] = same[0]
                break
    return found


def peek(
    rows: Iterator[Row | RowError],
    known: Mapping[str, Sequence[str]],
    columns: Mapping[str, str],
    *,
    labelled: bool = False,
    tell: Tell | None = None,
) -> tuple[dict[str, str], Iterator[Row | RowError]]:
    """Decide from its first rows what the columns of a file are called; returns them with all rows.

    Parameters
    ----------
    rows : iterator of Row or RowError
    known, columns
        As for `find_columns`.
    labelled : bool
        Whether the file holds questions with their answers: there `answer` may stand for `answers`. Beside
        `samples` or a `prediction` it is the model's.
    tell : callable, optional
        Is told which columns are understood to be ours.

    Warns
    -----
    SemcalWarning
        If most cells of `answers` hold several answers that are no list.
    """
    first = list(islice(rows, FIRST))
    good = [row.data for row in first if isinstance(row, Row)]
    keys = list(dict.fromkeys(key for data in good for key in data))
    if labelled and _OF_A_MODEL.isdisjoint(key.strip().lower() for key in keys):
        known = {**known, "answers": (*known["answers"], "answer")}
    settled = len(first) < FIRST or set(columns.values()) <= set(keys)
    given = columns if settled else {ours: name for ours, name in columns.items() if name in keys}
    found = {**columns, **find_columns(keys, known, given)} if good else dict(columns)
    for ours, theirs in found.items():
        if tell and theirs != ours and ours in keys:
            tell(f"columns: {theirs!r} takes the place of {ours!r}, which is left out")
    understood = [f"{theirs!r} as {ours}" for ours, theirs in found.items() if ours not in columns]
    if understood and tell:
        tell(f"columns: {', '.join(understood)}")
    if "answers" in known:
        _warn_of_several([data.get(found.get("answers", "answers")) for data in good])
    missing = {name: ours for ours, others in known.items() if ours not in found for name in (ours, *others)}
    return found, chain(first, _without_late(rows, frozenset(keys), missing))


def _without_late(
    rows: Iterable[Row | RowError], keys: frozenset[str], missing: Mapping[str, str]
) -> Iterator[Row | RowError]:
    """Refuse rows with a column that would have been understood in the first rows, and would be lost here."""
    for row in rows:
        if isinstance(row, Row) and not row.data.keys() <= keys:
            for key in row.data:
                ours = missing.get(key.strip().lower(), key)
                if key not in keys and key != ours:
                    yield row.error(
                        f"its column {shown(key)} is in none of the first {FIRST} rows, which settle what "
                        f"columns are called: call it {ours!r}, or say --columns {ours}={key[:40]}"
                    )
                    break
            else:
                yield row
            continue
        yield row


def _warn_of_several(cells: Sequence[Any]) -> None:
    texts = [cell for cell in cells if isinstance(cell, str) and not cell.lstrip().startswith("[")]
    several = [text for text in texts if _SEVERAL.search(text)]
    if len(several) > 1 and len(several) > len(cells) / 2:
        warnings.warn(
            f"most cells of 'answers' look like several answers in one text, such as {shown(several[0])}, "
            'and count as one: write several as a list of JSON, ["A", "B"]',
            SemcalWarning,
            stacklevel=2,
        )


def rename(rows: Iterable[Row | RowError], columns: Mapping[str, str]) -> Iterator[Row | RowError]:
    """Call the columns of rows by our names; each keeps its place, and what had that name before goes."""
    names = {theirs: ours for ours, theirs in columns.items() if ours != theirs}
    for row in rows:
        if isinstance(row, Row) and (here := {key: names[key] for key in row.data if key in names}):
            gone = here.values() - here.keys()
            data = {here.get(key, key): value for key, value in row.data.items() if key not in gone}
            yield Row(row.line, data)
        else:
            yield row
