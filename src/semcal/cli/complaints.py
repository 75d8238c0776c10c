"""What is wrong with rows, said on stderr: equal complaints make one line, with their count and lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from semcal.cli.console import complain
from semcal.errors import InputError, QuestionError, RowError, shown

__all__ = ["BadRows", "Complaints", "listed"]

#: Runs of lines, and ids, that a line about many rows names.
NAMED = 3
#: What may differ between complaints of one kind. A quoted word may be the name of a column, which may not.
_VALUES = re.compile(r"""\(.*?\)|question '[^']*'|\d+|'\w+'|"\w+"|'[^']*'|"[^"]*\"""", re.DOTALL)


def _kind(reason: str, row_id: str | int | None) -> str:
    """What complaints of one kind have in common: the reason without id, numbers and what was got."""
    text = reason.partition(", got ")[0]
    text = text if row_id is None else text.replace(shown(row_id), "")
    return _VALUES.sub(lambda found: found[0] if found[0][1:-1].isidentifier() else "", text)


@dataclass
class _Alike:
    """Complaints of one kind that are still to be told."""

    where: str
    reason: str
    before: int = 0
    count: int = 0
    runs: list[list[int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def add(self, first: int | None, last: int | None, row_id: str | int | None) -> None:
        """Count one more."""
        self.count += 1
        if row_id is not None and len(self.ids) <= NAMED:
            self.ids.append(shown(row_id))
        if first is None:
            return
        if self.runs and self.runs[-1][1] + 1 == first:
            self.runs[-1][1] = last or first
        elif len(self.runs) <= NAMED:
            self.runs.append([first, last or first])

    def __str__(self) -> str:
        return f"{self.where}{self._place()}{self.reason}"

    def _place(self) -> str:
        ids = listed(self.ids)
        lines = listed([str(a) if a == b else f"{a}-{b}" for a, b in self.runs])
        if self.count > 1 or self.before:
            more = "more " if self.before else ""
            rows = f"{self.count} {more}row{'' if self.count == 1 else 's'}"
            ids = f"{rows}, ids {ids}" if ids else rows
        elif not lines:
            return f"question {ids}: " if ids else ""
        elif ids:
            ids = f"id {ids}"
        named = f" ({ids})" if ids and lines else ids
        return f"line{'' if lines.isdecimal() else 's'} {lines}{named}: " if lines else f"{named}: "


def listed(names: Sequence[str]) -> str:
    """The first names, and … where there are more.

    >>> listed(["'a'", "'b'", "'c'", "'d'"])
    "'a', 'b', 'c', …"
    """
    return ", ".join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])


class Complaints:
    """Tells complaints as they come, those of one kind that follow each other in one line.

    A kind that was told is only counted when it comes again, and told once more at the end (`close`).
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Alike] = {}
        self._waiting: tuple[str, str] | None = None

    def add(
        self,
        reason: str,
        *,
        line: int | None = None,
        last: int | None = None,
        row_id: str | int | None = None,
        where: str = "",
    ) -> None:
        """Take up one complaint about a row, or about a question that has no line."""
        kind = where, _kind(reason, row_id)
        if kind != self._waiting:
            self.tell()
        if kind not in self._kinds:
            self._kinds[kind] = _Alike(where, reason)
            self._waiting = kind
        self._kinds[kind].add(line, last, row_id)

    def tell(self) -> None:
        """Print what waits for others of its kind, because something else has come."""
        if self._waiting is not None:
            alike = self._kinds[self._waiting]
            complain(str(alike))
            self._kinds[self._waiting] = _Alike(alike.where, alike.reason, alike.before + alike.count)
            self._waiting = None

    def close(self) -> None:
        """Print all that is not told yet."""
        self.tell()
        for alike in self._kinds.values():
            if alike.count:
                complain(str(alike))
        self._kinds.clear()


class BadRows:
    """Counts rows that could not be used, and says why on stderr."""

    def __init__(self) -> None:
        self.count = 0
        self._complaints = Complaints()

    def __enter__(self) -> BadRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._complaints.close()

    def report(self, error: InputError) -> None:
        """Say the reason on stderr, now or together with others of its kind."""
        self.count += 1
        if isinstance(error, RowError):
            self._complaints.add(error.reason, line=error.line, last=error.last, row_id=error.row_id)
        elif isinstance(error, QuestionError):
            self._complaints.add(error.reason, row_id=error.question_id)
        else:
            self._complaints.add(str(error))

    def pause(self) -> None:
        """Say what is held back for others of its kind: a good row has come."""
        self._complaints.tell()

    def exit_code(self) -> int:
        """0 when every row was good, else 1 with a count on stderr."""
        self._complaints.close()
        if self.count:
            rows = "row was" if self.count == 1 else "rows were"
            complain(f"{self.count} bad {rows} left out; the rest is done")
        return 1 if self.count else 0
