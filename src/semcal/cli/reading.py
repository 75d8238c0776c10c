"""Questions and rows that commands read, their columns called by our names (--columns)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from semcal.cli.complaints import BadRows, Complaints
from semcal.cli.console import say
from semcal.cli.streams import checked
from semcal.errors import InputError, RowError
from semcal.qa.columns import COMMON_NAMES, parse_columns, peek, rename
from semcal.qa.datasets import FIELDS, Question, load_questions, read_questions
from semcal.records import Row, read_rows
from semcal.records.kinds import check_json_lines

__all__ = ["open_labelled", "open_questions", "open_rows"]

Check = Callable[[Mapping[str, Any]], object]


def open_questions(file: str, columns: Sequence[str] | None, *, label: str) -> Iterator[Question | RowError]:
    """Read questions; `columns` is the option."""
    return read_questions(file, columns=parse_columns(columns or (), FIELDS), notify=_teller(label))


def open_labelled(
    file: str, columns: Sequence[str] | None, bad: BadRows, *, label: str, limit: int | None = None
) -> list[Question]:
    """Read all questions of a file that has their answers, and say which cannot be used."""
    try:
        return load_questions(
            file,
            columns=parse_columns(columns or (), FIELDS),
            notify=_teller(label),
            on_bad_row=bad.report,
            answers_needed=True,
            limit=limit,
        )
    finally:
        bad.pause()


def open_rows(
    file: str, columns: Sequence[str] | None, check: Check, *, fields: Sequence[str], label: str
) -> Iterator[Row | InputError]:
    """Read the rows of a command that knows `fields`; those that `check` refuses become errors."""
    check_json_lines(file)
    known = {name: COMMON_NAMES.get(name, ()) for name in fields}
    found, rows = peek(read_rows(file), known, parse_columns(columns or (), fields), notify=_teller(label))
    return _known(checked(rename(rows, found), check), label)


def _teller(label: str) -> Callable[[str], None]:
    return lambda text: say(f"{label}: {text}")


def _known(rows: Iterable[Row | InputError], label: str) -> Iterator[Row | InputError]:
    """Make the log-likelihoods of a row null where one of them is, and say so."""
    notes = Complaints()
    try:
        for row in rows:
            given = row.data.get("log_likelihoods") if isinstance(row, Row) else None
            if not isinstance(row, Row) or not isinstance(given, list) or None not in given:
                notes.tell()
                yield row
                continue
            reason = f"{given.count(None)} of {len(given)} log-likelihoods unknown (null): all become null"
            error = row.error(reason)
            notes.add(reason, line=row.line, row_id=error.row_id, where=f"{label}: ")
            yield Row(row.line, {**row.data, "log_likelihoods": None})
    finally:
        notes.close()
