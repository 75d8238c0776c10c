"""Rows through a command: bad ones reported and passed over, good ones worked on in blocks, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from semcal.cli.complaints import BadRows
from semcal.cli.console import progress, say
from semcal.errors import InputError, QuestionError
from semcal.qa.datasets import Question
from semcal.records import Row, dumps, writing

__all__ = ["BlocksAhead", "Item", "checked", "good_items", "run_rows"]

Data = Mapping[str, Any]
#: What a command works on: a row of a file, or a question.
Item = TypeVar("Item", Row, Question)


@runtime_checkable
class BlocksAhead(Protocol[Item]):
    """Work on blocks that is begun before it is asked for, because others do it."""

    def __call__(self, block: Sequence[Item], /) -> Sequence[Data]:
        """The results of a block, now."""

    def ahead(
        self, parts: Iterable[list[Item]], update: Callable[[int], None], /
    ) -> Iterator[tuple[list[Item], Callable[[], Sequence[Data]]]]:
        """Each block with what gives its results, in turn; `update` is told how many items are done."""


Work: TypeAlias = Callable[[Sequence[Item]], Sequence[Data]] | BlocksAhead[Item]


def checked(
    items: Iterable[Item | InputError], check: Callable[[Any], object]
) -> Iterator[Item | InputError]:
    """Turn items whose data, or questions, `check` refuses (InputError) into the errors that they are.

    What can be known of an item by itself is asked here: blocks are cut from the items that are left.
    """
    for item in items:
        if not isinstance(item, InputError):
            try:
                check(item.data if isinstance(item, Row) else item)
            except InputError as error:
                yield _named(item, error)
                continue
        yield item


def good_items(items: Iterable[Item | InputError], bad: BadRows) -> Iterator[Item]:
    """The items that are no errors, while these are reported."""
    for item in items:
        if isinstance(item, InputError):
            bad.report(item)
        else:
            bad.pause()
            yield item


def _blocks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while block := list(islice(items, size)):
        yield block


def _named(item: Row | Question, error: InputError) -> InputError:
    return item.error(error.reason if isinstance(error, QuestionError) else str(error))


def _one_by_one(
    block: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Data]], bad: BadRows
) -> Iterator[Data]:
    """Work through a block item by item, so that the one that fails is the only one lost."""
    for item in block:
        try:
            yield from work([item])
        except InputError as error:
            bad.report(_named(item, error))


def _in_turn(
    work: Work[Item], parts: Iterator[list[Item]], update: Callable[[int], None]
) -> Iterator[tuple[list[Item], Callable[[], Sequence[Data]]]]:
    """Each block with what gives its results, in turn."""
    if isinstance(work, BlocksAhead):
        yield from work.ahead(parts, update)
    else:
        for part in parts:
            yield part, partial(work, part)


def run_rows(
    items: Iterable[Item | InputError],
    out: Path | None,
    *,
    work: Work[Item],
    label: str,
    block: int = 256,
    limit: int | None = None,
    render: Callable[[Data], str] = dumps,
) -> int:
    """Stream items through `work` to `out` (or stdout) and return the exit code.

    Parameters
    ----------
    items : iterable of Row or Question, and InputError
        The good ones are worked on, the others reported.
    out : Path or None
        A file, which appears whole or not at all; None is stdout.
    work : callable or BlocksAhead
        Maps a block of items to result rows, in the same order; may raise InputError. One that works ahead
        is given all blocks as they come.
    label : str
        What is being done, for the line of progress.
    block : int
        Items that are worked on together.
    limit : int, optional
        Read so many items, good or bad.
    render : callable
        Writes a result row as text; as JSON by default.
    """
    done = 0
    with BadRows() as bad, writing(out) as handle, progress(label, limit) as update:
        for part, wanted in _in_turn(work, _blocks(good_items(islice(items, limit), bad), block), update):
            try:
                results = list(wanted())
            except InputError:
                results = list(_one_by_one(part, work, bad))
            handle.writelines(render(result) + "\n" for result in results)
            handle.flush()
            done += len(part)
            update(done)
    if not done and not bad.count:
        say(f"{label}: the input holds no rows")
    if out is not None:
        say(f"{label}: {done} rows in {out}")
    return bad.exit_code()
