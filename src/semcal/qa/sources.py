"""Rows of any file or hub data set, as `Row | RowError`, one at a time (spec.md, section 9).

A row that cannot be read is reported with its number and the rest goes on; what makes the whole
source unreadable (no such file, a broken archive, a hub out of reach) is an `InputError`.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from semcal.errors import InputError, MissingExtraError, RowError, UsageError
from semcal.records import Row, read_rows
from semcal.registry import check_name

__all__ = ["BUILT_IN", "FORMATS", "HubDataset", "find_format", "read_hub_rows", "read_source_rows"]

FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "parquet": (".parquet",),
}
"""Names of the formats that are read, with the file endings that mean them (.gz may follow)."""


@dataclass(frozen=True)
class HubDataset:
    """Where a data set lies on the Hugging Face hub, and what its columns are called there.

    Parameters
    ----------
    path : str
        "owner/name" on the hub.
    subset : str or None
        Its configuration, where it has several.
    columns : mapping of str to str
        Our name of a column → the data set's.
    """

    path: str
    subset: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)


BUILT_IN = {
    "triviaqa": HubDataset(
        "mandarjoshi/trivia_qa", "unfiltered.nocontext", {"id": "question_id", "answers": "answer"}
    ),
    "nq-open": HubDataset("google-research-datasets/nq_open", None, {"answers": "answer"}),
    "squad": HubDataset("rajpurkar/squad"),
}
"""The paper's data sets by name."""


def find_format(path: Path) -> str:
    """Return the format that the ending of `path` means; a name without one means JSON Lines.

    Raises
    ------
    InputError
        If the ending is none of those known.

    Examples
    --------
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
    raise InputError(f"cannot tell the format of {path} from its name: rename it (known endings: {known})")


def read_source_rows(source: str | Path, *, format: str | None = None) -> Iterator[Row | RowError]:
    """Yield the rows of a local file.

    Parameters
    ----------
    source : str or Path
        A file, or "-" for JSON Lines on standard input.
    format : str, optional
        One of `FORMATS`; by default the file's ending decides.

    Raises
    ------
    InputError
        If the file does not exist, is broken as a whole, or is of no known format.
    UsageError
        If `format` is none of those known.
    MissingExtraError
        For Parquet without pyarrow.
    """
    path = Path(source)
    if str(source) == "-":
        form = format or "jsonl"
    else:
        if not path.is_file():
            raise InputError(f"no such file: {path}")
        form = format or find_format(path)
    readers = {"jsonl": read_rows, "json": _json, "csv": _csv, "tsv": _tsv, "parquet": _parquet}
    reader = readers[check_name(form, readers, what="format")]
    if str(source) == "-" and reader is not read_rows:
        raise UsageError(f"standard input is read as JSON Lines, not as {form}; name a file instead")
    try:
        yield from reader(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged ({error}); make or fetch it again") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Open text, gzipped or not; bytes that are not UTF-8 become lone surrogates, to be reported by row."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        yield handle


# JSON: a list of rows, SQuAD's nested file, or JSON Lines under another name


def _json(path: Path) -> Iterator[Row | RowError]:
    with _text(path) as handle:
        text = handle.read()
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        yield from read_rows(path)
        return
    if isinstance(data, dict) and isinstance(data.get("data"), list):
        yield from _squad(data["data"])
    elif isinstance(data, list):
        yield from _objects(data)
    else:
        yield from _objects([data])


def _objects(items: Iterable[Any]) -> Iterator[Row | RowError]:
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            yield Row(number, item)
        else:
            yield RowError(number, f"expected a JSON object, got {type(item).__name__}")


def _squad(articles: list[Any]) -> Iterator[Row | RowError]:
    """Rows of SQuAD's own JSON, articles → paragraphs → questions, numbered through the file."""
    numbers = count(1)
    for article in articles:
        for paragraph in _children(article, "paragraphs"):
            for entry in _children(paragraph, "qas"):
                number = next(numbers)
                if not isinstance(entry, dict):
                    yield RowError(number, "expected SQuAD's data → paragraphs → qas, each a list of objects")
                    continue
                row = {"title": article.get("title"), "context": paragraph.get("context"), **entry}
                yield Row(number, row | {"answers": _squad_answers(entry.get("answers"))})


def _children(parent: Any, key: str) -> list[Any]:
    """The list under `key`; [None] where there is none, so that it is reported as one bad row."""
    if parent is None:
        return [None]
    found = parent.get(key) if isinstance(parent, dict) else None
    return found if isinstance(found, list) else [None]


def _squad_answers(answers: Any) -> Any:
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        return [answer.get("text") for answer in answers]
    return answers


# CSV


def _tsv(path: Path) -> Iterator[Row | RowError]:
    yield from _csv(path, delimiter="\t")


def _csv(path: Path, delimiter: str = ",") -> Iterator[Row | RowError]:
    with _text(path) as handle:
        records = _csv_records(handle, delimiter)
        header = next(records, None)
        if header is None:
            return
        if isinstance(header, RowError):
            raise InputError(f"the first line of {path} must name the columns: {header.reason}")
        names = [name.strip() for name in header[1]]
        for record in records:
            yield record if isinstance(record, RowError) else _csv_row(names, *record)


def _csv_records(handle: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]] | RowError]:
    """Cells of every record that is not blank, with the line on which it starts."""
    reader = csv.reader(handle, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = _next_cells(reader)
        except csv.Error as error:
            yield RowError(line, f'not CSV ({error}): cells with quotes are written "like ""this"""')
            continue
        if cells is None:
            return
        if cells:
            yield line, cells


def _next_cells(reader: Iterator[list[str]]) -> list[str] | None:
    """The next record. A cell may hold a whole book: the csv module's limit is lifted while it reads."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _csv_row(names: list[str], line: int, cells: list[str]) -> Row | RowError:
    if len(cells) != len(names):
        return RowError(line, f"expected {len(names)} cells ({', '.join(names)}), got {len(cells)}")
    return Row(line, dict(zip(names, cells)))


# Parquet


def _parquet(path: Path) -> Iterator[Row | RowError]:
    arrow, parquet = _pyarrow()
    numbers = count(1)
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for index in range(batch.num_rows):
                    yield _parquet_row(batch.slice(index, 1), next(numbers))
    except arrow.ArrowException as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error


def _parquet_row(row: Any, number: int) -> Row | RowError:
    try:
        cells = row.to_pylist()[0]
    except UnicodeDecodeError as error:
        return RowError(number, f"not UTF-8 ({error.reason}): write the file with texts in UTF-8")
    try:
        return Row(number, {name: _json_value(cell) for name, cell in cells.items()})
    except TypeError as error:
        return RowError(number, f"{error}, which JSON cannot hold: leave that column out")


def _json_value(cell: Any) -> Any:
    """What a Parquet cell is in JSON: dates and times in ISO 8601, decimals as numbers."""
    if isinstance(cell, (date, time)):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, dict):
        return {str(key): _json_value(value) for key, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_json_value(value) for value in cell]
    if cell is None or isinstance(cell, (str, int, float)):
        return cell
    raise TypeError(f"a cell holds {type(cell).__name__}")


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    return pyarrow, pyarrow.parquet


# The Hugging Face hub


def read_hub_rows(dataset: HubDataset, *, split: str = "train") -> Iterator[Row]:
    """Yield the rows of a data set on the Hugging Face hub, numbered from 1.

    Parameters
    ----------
    dataset : HubDataset
        Which one.
    split : str
        Its split, as the hub calls it: "train", "validation".

    Raises
    ------
    MissingExtraError
        If the package `datasets` is not installed.
    InputError
        If the hub cannot be reached, or has no such data set, subset or split.
    """
    rows = _load_from_hub(dataset, split)
    wanted = {
        ours: dataset.columns.get(ours, ours) for ours in ("id", "question", "answers", "context", "title")
    }
    present = [name for name in wanted.values() if name in rows.column_names]
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
