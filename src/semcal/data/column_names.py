"""Names of columns: which of a file's columns is which of ours."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from semcal.errors import InputError, RowError, SemcalWarning, UsageError, shown
from semcal.files import JsonLine
from semcal.registry import check_name

#: Rows from which the names of columns are decided.
FIRST = 64
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("query",),
    "samples": ("responses", "completions"),
}
"""Other accepted names of a column, in any case."""
#: Columns beside which `answer` is the model's answer.
_OF_A_MODEL = {"samples", *COMMON_NAMES["samples"], "prediction"}
#: Several answers in one cell, not written as a list.
_SEVERAL = re.compile(r"[^\s;|]\s*[;|]\s*[^\s;|]")

Notify = Callable[[str], None]
"""Shows the user a note about a file that is not an error."""


def parse_columns(pairs: Sequence[str], fields: Iterable[str]) -> dict[str, str]:
    """Return "question=Frage", … as {our name: the file's}.

    UsageError if one is no such pair, names no column of `fields`, or is given twice.

    >>> parse_columns(["question=Frage", "answers=Die Antwort"], ("id", "question", "answers"))
    {'question': 'Frage', 'answers': 'Die Antwort'}
    """
    columns: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not (equals and theirs):
            raise UsageError(f"--columns {shown(pair)}: expected OURS=THEIRS, such as question=Frage")
        if check_name(ours.strip(), fields, what="column of --columns") in columns:
            raise UsageError(f"--columns names {ours.strip()!r} twice")
        columns[ours.strip()] = theirs
    return columns


def check_different(names: Sequence[str], path: Path | str) -> None:
    """Refuse a file with two columns of one name: InputError."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{times} columns of {path} are called {shown(name)}: rename or remove one")


def find_columns(
    keys: Sequence[str], fields: Mapping[str, Sequence[str]], columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the key of each of our columns that is not called by our name.

    `fields` maps our names to the other accepted names of each, `columns` our names to those that the user
    has given.

    UsageError if the user names a column that does not exist, or two keys could be the same column.

    >>> find_columns(["ID", "Query", "Level"], {"id": (), "question": ("query",)}, {})
    {'id': 'ID', 'question': 'Query'}
    """
    names = {ours: check_name(theirs, keys, what="column") for ours, theirs in columns.items()}
    for ours, aliases in fields.items():
        if ours in names or ours in keys:
            continue
        for name in (ours, *aliases):
            matches = [key for key in keys if key.strip().lower() == name and key not in names.values()]
            if len(matches) > 1:
                raise UsageError(
                    f"{' and '.join(map(shown, matches))} could both be the column {ours!r}: say which with "
                    f"--columns {ours}=NAME (in Python: columns={{{ours!r}: NAME}})"
                )
            if matches:
                names[ours] = matches[0]
                break
    return names


def peek(
    rows: Iterator[JsonLine | RowError],
    fields: Mapping[str, Sequence[str]],
    columns: Mapping[str, str],
    *,
    labelled: bool = False,
    notify: Notify | None = None,
) -> tuple[dict[str, str], Iterator[JsonLine | RowError]]:
    """Find the columns of a file from its first rows; return them with an iterator over all rows.

    `fields` and `columns` as for `find_columns`. In a file of questions with their answers (`labelled`) the
    column `answer` may mean `answers`; beside `samples` or a `prediction` it is the model's. `notify` gets
    notes on the names found.

    SemcalWarning if most cells of `answers` hold several answers that are not written as a list.
    """
    first = list(islice(rows, FIRST))
    objects = [row.data for row in first if isinstance(row, JsonLine)]
    keys = list(dict.fromkeys(key for cells in objects for key in cells))
    if labelled and _OF_A_MODEL.isdisjoint(key.strip().lower() for key in keys):
        fields = {**fields, "answers": (*fields["answers"], "answer")}
    settled = len(first) < FIRST or set(columns.values()) <= set(keys)
    present = columns if settled else {ours: name for ours, name in columns.items() if name in keys}
    names = {**columns, **find_columns(keys, fields, present)} if objects else dict(columns)
    for ours, theirs in names.items():
        if notify and theirs != ours and ours in keys:
            notify(f"columns: {theirs!r} replaces {ours!r}, which is ignored")
    understood = [f"{theirs!r} as {ours}" for ours, theirs in names.items() if ours not in columns]
    if understood and notify:
        notify(f"columns: {', '.join(understood)}")
    if "answers" in fields:
        _warn_of_several([cells.get(names.get("answers", "answers")) for cells in objects])
    missing = {
        name: ours for ours, aliases in fields.items() if ours not in names for name in (ours, *aliases)
    }
    return names, chain(first, _without_late(rows, frozenset(keys), missing))


def _without_late(
    rows: Iterable[JsonLine | RowError], keys: frozenset[str], missing: Mapping[str, str]
) -> Iterator[JsonLine | RowError]:
    """Refuse rows with a column that would be lost because it appears after the first rows."""
    for row in rows:
        if isinstance(row, JsonLine) and not row.data.keys() <= keys:
            for key in row.data:
                ours = missing.get(key.strip().lower(), key)
                if key not in keys and key != ours:
                    yield row.error(
                        f"its column {shown(key)} is in none of the first {FIRST} rows, which determine "
                        f"the columns: call it {ours!r}, or give --columns {ours}={key[:40]}"
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


def rename(rows: Iterable[JsonLine | RowError], columns: Mapping[str, str]) -> Iterator[JsonLine | RowError]:
    """Rename the columns of rows to ours, in place; a column that had that name before is dropped."""
    names = {theirs: ours for ours, theirs in columns.items() if ours != theirs}
    for row in rows:
        if isinstance(row, JsonLine) and (present := {key: names[key] for key in row.data if key in names}):
            replaced = present.values() - present.keys()
            cells = {present.get(key, key): value for key, value in row.data.items() if key not in replaced}
            yield JsonLine(row.line, cells)
        else:
            yield row
