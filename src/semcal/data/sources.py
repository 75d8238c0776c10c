"""Rows of files and hub data sets, as `JsonLine | RowError`, one at a time, and the names of their columns.

A row that cannot be read is a `RowError` with its number, and reading goes on. A source that cannot be read
at all (no such file, a broken archive, a hub out of reach) is an `InputError`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from itertools import chain, count, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TextIO

from semcal.errors import InputError, MissingExtraError, RowError, UsageError, shown
from semcal.files import LONGEST, JsonLine, check_start, parse, read_rows, row_of
from semcal.registry import check_name

FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "parquet": (".parquet",),
}
"""Formats with their file endings (.gz may follow)."""

#: Maximum number of characters of a JSON file, which is read in one piece.
LARGEST = 500_000_000


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub."""

    path: str  # owner/name
    subset: str | None = None  # its configuration, if it has several
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # our name → name in the data set


BUILT_IN = {
    "triviaqa": HubDataset(
        "mandarjoshi/trivia_qa", "unfiltered.nocontext", {"id": "question_id", "answers": "answer"}
    ),
    "nq-open": HubDataset("google-research-datasets/nq_open", None, {"answers": "answer"}),
    "squad": HubDataset("rajpurkar/squad"),
}
"""The paper's data sets by name."""

#: The question sets of the package.
ATLAS = ("atlas-trivia", "atlas-rare", "atlas-reading")

#: Questions with stored samples that come with the package: the address of the path of their file.
EXAMPLES = {"real": "semcal.demo.real:PATH"}


def find_source(source: str | Path) -> str | Path:
    """Return the file of an example set for its name, unless a file of that name exists; else the source."""
    is_example = str(source) in EXAMPLES and not Path(source).exists()
    return resolve_name(EXAMPLES[str(source)]) if is_example else source


def find_format(path: Path) -> str:
    """Return the format of a file from its ending; JSON Lines if it has none, InputError if it is unknown.

    >>> find_format(Path("questions.jsonl.gz")), find_format(Path("Train.CSV"))
    ('jsonl', 'csv')
    """
    name = path.name.lower().removesuffix(".gz")
    for form, endings in FORMATS.items():
        if name.endswith(endings):
            return form
    if not Path(name).suffix:
        return "jsonl"
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise InputError(f"{path}: unknown format. Convert the file to one with a known ending: {known}.")


def read_source_rows(source: str | Path) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a local file, of an example set, or of JSON Lines on standard input ("-").

    The ending of a file names its format. InputError if the file does not exist, is damaged as a whole, or
    has an unknown format. MissingExtraError for Parquet without pyarrow.
    """
    source = find_source(source)
    path = Path(source)
    if str(source) != "-" and not path.is_file():
        raise InputError(f"{path}: the file does not exist. Check the path.")
    form = find_format(path)
    if form == "jsonl":
        yield from read_rows(source)
        return
    try:
        if form == "parquet":
            yield from _parquet(path)
        elif form == "json":
            yield from _json(path)
        else:
            yield from _delimited(path, usual="\t" if form == "tsv" else ",")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged ({error}). Make or fetch it again.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error}). Save the file as UTF-8.") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Open a text in UTF-8, gzipped or not."""
    zipped = path.suffix.lower() == ".gz"
    if not zipped:
        with path.open("rb") as handle:
            check_start(handle.read(8), path)
    opened = gzip.open if zipped else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as handle:
        yield handle


# CSV, TSV and Parquet

#: Characters that may separate cells.
DELIMITERS = (",", ";", "\t", "|")


def _lines(handle: TextIO, path: Path) -> Iterator[str]:
    while line := handle.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise InputError(f"{path}: a line has more than {LONGEST:,} characters. Shorten it.")
        yield line


def _delimited(path: Path, *, usual: str) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a table whose first line names the columns.

    The delimiter is the most frequent one in the first line; the `usual` delimiter of the ending wins ties.
    """
    with _text(path) as handle:
        lines = _lines(handle, path)
        first = next(lines, "")
        if first.startswith("sep="):
            raise InputError(f"{path}: the first line is {first.strip()!r}. Delete this line of Excel.")
        delimiter = max((usual, *DELIMITERS), key=first.count)
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        columns: list[str] = []
        for line, last, cells in _records(reader):
            if isinstance(cells, csv.Error):
                reason = f'not CSV ({cells}): cells with quotes are written "like ""this"""'
                yield RowError(line, reason, last=last)
            elif not columns:
                columns = [cell.strip() or f"column {place}" for place, cell in enumerate(cells, start=1)]
                check_different(columns, path)
            elif len(cells) != len(columns):
                reason = f"expected {len(columns)} cells ({', '.join(columns)[:200]}), got {len(cells)}"
                yield RowError(line, reason, last=last)
            else:
                yield JsonLine(line, dict(zip(columns, cells)))


def _records(reader: Any) -> Iterator[tuple[int, int, list[str] | csv.Error]]:
    """Yield the first and the last line of every record that is not blank, with its cells or its fault."""
    cells: list[str] | csv.Error | None = []
    while cells is not None:
        line = reader.line_num + 1
        limit = csv.field_size_limit(LONGEST)  # a cell may hold a whole book
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells = error
        finally:
            csv.field_size_limit(limit)
        if cells:
            yield line, reader.line_num, cells


def _parquet(path: Path) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a Parquet file, numbered from 1.

    InputError if the file is not Parquet, cannot be read as Python values or has two columns of one name;
    MissingExtraError without pyarrow.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    numbers = count(1)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_different(file.schema_arrow.names, path)
            for batch in file.iter_batches(batch_size=1024):
                yield from map(_parquet_row, batch.to_pylist(), numbers)
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, OverflowError, ValueError) as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error


def _parquet_row(row: dict[str, Any], number: int) -> JsonLine | RowError:
    try:
        return row_of(number, {name: json_value(cell) for name, cell in row.items()})
    except TypeError as error:
        return JsonLine(number, row).error(f"{error}. Leave that column out.")


def json_value(cell: Any) -> Any:
    """Return a cell of a table as a JSON value: dates in ISO 8601, decimals as numbers, arrays as lists.

    TypeError if JSON cannot hold the value.
    """
    if isinstance(cell, (date, time)):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, Mapping):
        return {str(key): json_value(value) for key, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [json_value(value) for value in cell]
    if cell is None or isinstance(cell, (str, int, float)):
        return cell
    if hasattr(cell, "tolist"):  # NumPy's numbers and arrays
        return json_value(cell.tolist())
    raise TypeError(f"a cell has the type {type(cell).__name__}, which JSON does not support")


# JSON: a list of rows, SQuAD's nested file, or JSON Lines under another name


def _json(path: Path) -> Iterator[JsonLine | RowError]:
    with _text(path) as handle:
        text = handle.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise InputError(f"{path} has more than {LARGEST:,} characters. Write it as JSON Lines (.jsonl).")
    try:
        content, odd = parse(text)
    except InputError as error:
        first_line = text.strip().split("\n", 1)[0].strip()
        if not (first_line.startswith("{") and first_line.endswith("}")):
            raise InputError(f"{path}: {error}") from None
        yield from read_rows(path)
        return
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        content = _squad(content["data"], path)
    items = content if isinstance(content, list) else [content]
    yield from (row_of(number, item, odd=odd) for number, item in enumerate(items, start=1))


def _squad(articles: list[Any], path: Path) -> list[dict[str, Any]]:
    """Return the rows of SQuAD's own JSON, articles → paragraphs → questions."""
    try:
        return [
            {"title": article.get("title"), "context": paragraph["context"]}
            | entry
            | {"answers": [answer["text"] for answer in entry.get("answers") or ()]}
            for article in articles
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except (AttributeError, LookupError, TypeError) as error:
        expected = "expected SQuAD's data → paragraphs → qas → answers, each a list of objects"
        raise InputError(f"{path}: {expected} ({error!r}). Write other data as a list of rows.") from error


# The Hugging Face hub


def read_hub_rows(
    dataset: HubDataset, *, split: str = "train", names: Iterable[str] = ()
) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a split of a data set on the Hugging Face hub, numbered from 1.

    Only the columns `names` and those of `dataset.columns` are read. MissingExtraError if the package
    `datasets` is not installed, InputError if the hub cannot be reached, or has no such data set, subset or
    split.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    try:
        rows = load_dataset(dataset.path, dataset.subset, split=split, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot load {dataset.path} (subset {dataset.subset}, split {split}) from the Hugging Face hub: "
            f"{error}. Check the name and the network, or give a local file (JSONL, CSV, Parquet)."
        ) from error
    names = {*names, *dataset.columns.values()}
    present = [name for name in rows.column_names if name in names]
    for number, row in enumerate(rows.select_columns(present), start=1):
        yield row_of(number, dict(row))


# The names of columns

#: Number of rows at the start of a file of which one must have a renamed column.
FIRST = 64


def parse_columns(pairs: Sequence[str], fields: Iterable[str]) -> dict[str, str]:
    """Return pairs such as "question=Frage" as {our name: name in the file}.

    UsageError if a text has another form, or names an unknown column of `fields` or the same column twice.

    >>> parse_columns(["question=Frage", "answers=Die Antwort"], ("id", "question", "answers"))
    {'question': 'Frage', 'answers': 'Die Antwort'}
    """
    columns: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not (equals and theirs):
            raise UsageError(f"--columns {shown(pair)}: expected OURS=THEIRS, such as question=Frage")
        if check_name(ours.strip(), fields, what="column of --columns") in columns:
            raise UsageError(f"--columns names {ours.strip()!r} twice. Name it once.")
        columns[ours.strip()] = theirs
    return columns


def check_different(names: Sequence[str], path: Path | str) -> None:
    """Raise InputError if two columns of a file have one name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{path}: {times} columns have the name {shown(name)}. Rename or remove one.")


def rename(rows: Iterable[JsonLine | RowError], columns: Mapping[str, str]) -> Iterator[JsonLine | RowError]:
    """Rename the columns of rows: `columns` maps our names to theirs. A column of our name is dropped.

    UsageError if none of the first rows has such a column.
    """
    rows = iter(rows)
    first = list(islice(rows, FIRST))
    keys = dict.fromkeys(key for row in first if isinstance(row, JsonLine) for key in row.data)
    names = {check_name(theirs, keys, what="column"): ours for ours, theirs in columns.items() if keys}
    for row in chain(first, rows):
        if isinstance(row, JsonLine) and (present := {key: names[key] for key in row.data if key in names}):
            replaced = present.values() - present.keys()
            cells = {present.get(key, key): value for key, value in row.data.items() if key not in replaced}
            yield JsonLine(row.line, cells)
        else:
            yield row
