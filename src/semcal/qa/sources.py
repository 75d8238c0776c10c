"""Rows of any file or hub data set, as `Row | RowError`, one at a time (spec.md, section 9).

A row that cannot be read is reported with its number and reading goes on; a source that cannot be read at
all (no such file, a broken archive, a hub out of reach) is an `InputError`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from semcal.errors import InputError, MissingExtraError, RowError, UsageError
from semcal.qa.tables import Notify, encoding_fault, read_delimited, read_parquet
from semcal.records import Row, read_rows, row_of
from semcal.records.jsonl import check_ending, check_start
from semcal.records.parsing import parse
from semcal.registry import Registry, check_name

FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "parquet": (".parquet",),
}
"""Formats with their file endings (.gz may follow)."""

#: Maximum characters of a file that is read in one piece, as a JSON list has to be.
LARGEST = 500_000_000


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub."""

    path: str  # owner/name
    subset: str | None = None  # its configuration, where it has several
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # our name → the data set's


BUILT_IN = {
    "triviaqa": HubDataset(
        "mandarjoshi/trivia_qa", "unfiltered.nocontext", {"id": "question_id", "answers": "answer"}
    ),
    "nq-open": HubDataset("google-research-datasets/nq_open", None, {"answers": "answer"}),
    "squad": HubDataset("rajpurkar/squad"),
}
"""The paper's data sets by name."""

#: The question sets of the embedded world; they come in parts.
ATLAS = Registry(
    "data set",
    dict.fromkeys(("atlas-trivia", "atlas-rare", "atlas-reading"), "semcal.demo.questions:load_set"),
)


def find_format(path: Path) -> str:
    """Return the format of a file from its ending; without one it is JSON Lines.

    InputError if the ending is unknown, or that of a spreadsheet, an archive or the like.

    >>> find_format(Path("questions.jsonl.gz")), find_format(Path("Train.CSV"))
    ('jsonl', 'csv')
    """
    name = path.name.lower().removesuffix(".gz")
    for form, endings in FORMATS.items():
        if name.endswith(endings):
            return form
    if not Path(name).suffix:
        return "jsonl"
    check_ending(path)
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise InputError(f"cannot tell the format of {path} from its name: rename it (known endings: {known})")


def read_source_rows(
    source: str | Path,
    *,
    format: str | None = None,
    names: Collection[str] = (),
    notify: Notify | None = None,
) -> Iterator[Row | RowError]:
    """Yield the rows of a local file, or of JSON Lines on standard input ("-").

    The ending decides the `format`, one of `FORMATS`, if none is given. The delimiter of CSV is found from
    `names`, known names of columns in lower case; `notify` is called with notes about the file.

    InputError if the file does not exist, is damaged as a whole, or has an unknown format. UsageError if
    `format` is unknown. MissingExtraError for Parquet without pyarrow.
    """
    path = Path(source)
    if str(source) == "-":
        form = format or "jsonl"
    else:
        if not path.is_file():
            raise InputError(f"no such file: {path}")
        form = format or find_format(path)
    check_name(form, FORMATS, what="format")
    if form == "jsonl":
        yield from read_rows(source)
        return
    if str(source) == "-":
        raise UsageError(f"standard input is read as JSON Lines, not as {form}; name a file instead")
    try:
        if form == "parquet":
            yield from read_parquet(path)
        elif form == "json":
            yield from _json(path)
        else:
            with _text(path) as handle:
                usual = "\t" if form == "tsv" else ","
                yield from read_delimited(handle, path, usual=usual, names=names, notify=notify)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged ({error}); make or fetch it again") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Open text, gzipped or not; bytes that are not UTF-8 become lone surrogates, reported by row."""
    zipped = path.suffix.lower() == ".gz"
    with path.open("rb") as handle:
        if not zipped:
            check_start(handle.read(8), path)
    opened = gzip.open if zipped else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        yield handle


# JSON: a list of rows, SQuAD's nested file, or JSON Lines under another name


def _json(path: Path) -> Iterator[Row | RowError]:
    with _text(path) as handle:
        text = handle.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise InputError(
            f"{path} holds more than {LARGEST} characters, too many to be read in one piece: write it as "
            "JSON Lines (.jsonl), one object a line"
        )
    try:
        data, odd = parse(text)
    except InputError as error:
        if not _first_line_is_an_object(text):
            raise InputError(f"{path}: {error}") from None
        yield from read_rows(path)
        return
    odd = odd or encoding_fault(text) != ""
    if type(data) is dict and isinstance(data.get("data"), list):
        yield from _squad(data["data"], odd)
    else:
        items = data if isinstance(data, list) else [data]
        yield from (row_of(number, item, odd=odd) for number, item in enumerate(items, start=1))


def _first_line_is_an_object(text: str) -> bool:
    first = text.strip().split("\n", 1)[0].strip()
    return first.startswith("{") and first.endswith("}")


def _squad(articles: list[Any], odd: bool) -> Iterator[Row | RowError]:
    """Rows of SQuAD's own JSON, articles → paragraphs → questions, numbered through the file."""
    numbers = count(1)
    for article in articles:
        for paragraph in _children(article, "paragraphs"):
            for entry in _children(paragraph, "qas"):
                number = next(numbers)
                if not isinstance(entry, dict):
                    reason = "expected SQuAD's data → paragraphs → qas, each a list of objects, no key twice"
                    yield RowError(number, reason)
                    continue
                own = {"title": article.get("title"), "context": paragraph.get("context")}
                answers = {"answers": _squad_answers(entry.get("answers"))}
                row = row_of(number, entry, odd=odd)
                yield row if isinstance(row, RowError) else row_of(number, own | entry | answers, odd=odd)


def _children(parent: Any, key: str) -> list[Any]:
    """The list under `key`; [None] if there is none, which is reported as one bad row."""
    found = parent.get(key) if type(parent) is dict else None  # and not one with a key twice
    return found if isinstance(found, list) else [None]


def _squad_answers(answers: Any) -> Any:
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        return [answer.get("text") for answer in answers]
    return answers


# The Hugging Face hub


def read_hub_rows(
    dataset: HubDataset, *, split: str = "train", names: Collection[str] = ()
) -> Iterator[Row | RowError]:
    """Yield the rows of a split of a data set on the Hugging Face hub, numbered from 1.

    Only the columns `names` (in lower case) and those of `dataset.columns` are read.

    MissingExtraError if the package `datasets` is not installed. InputError if the hub cannot be reached, or
    has no such data set, subset or split.
    """
    rows = _load_from_hub(dataset, split)
    wanted = {*names, *(theirs.lower() for theirs in dataset.columns.values())}
    present = [name for name in rows.column_names if name.strip().lower() in wanted]
    for number, row in enumerate(rows.select_columns(present), start=1):
        yield Row(number, dict(row))


def _load_from_hub(dataset: HubDataset, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    try:
        return load_dataset(dataset.path, dataset.subset, split=split, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot load {dataset.path} (subset {dataset.subset}, split {split}) from the Hugging Face hub: "
            f"{error}. Check the name and the network, or give a local file (JSONL, CSV, Parquet)"
        ) from error
