"""Rows of files and hub data sets, as `JsonLine | RowError`, one at a time, and the names of their columns.

A row that cannot be read is a `RowError` with its number, and reading goes on. A source that cannot be read
at all (no such file, a broken archive, a hub out of reach) is an `InputError`.
"""

from __future__ import annotations

import csv
import gzip
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TextIO

from semcal.errors import InputError, MissingExtraError, RowError, SemcalWarning, UsageError, shown
from semcal.files import LONGEST, JsonLine, check_ending, check_start, parse, read_rows, row_of
from semcal.registry import check_name

Notify = Callable[[str], None]
"""Function that shows the user a note about a file."""

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
    check_ending(path)
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise InputError(f"{path}: unknown format. Rename the file (known endings: {known}).")


def read_source_rows(
    source: str | Path,
    *,
    format: str | None = None,
    names: Collection[str] = (),
    notify: Notify | None = None,
) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a local file, of an example set, or of JSON Lines on standard input ("-").

    The default `format`, one of `FORMATS`, is that of the ending. `names`, known names of columns in lower
    case, help to find the delimiter of CSV. `notify` is called with notes about the file. InputError if the
    file does not exist, is damaged as a whole, or has an unknown format. UsageError if `format` is unknown.
    MissingExtraError for Parquet without pyarrow.
    """
    source = find_source(source)
    path, is_stream = Path(source), str(source) == "-"
    if not is_stream and not path.is_file():
        raise InputError(f"{path}: the file does not exist. Check the path.")
    form = check_name(format or ("jsonl" if is_stream else find_format(path)), FORMATS, what="format")
    if form == "jsonl":
        yield from read_rows(source)
        return
    if is_stream:
        raise UsageError(f"standard input must be JSON Lines, not {form}. Name a file instead.")
    try:
        if form == "parquet":
            yield from _parquet(path)
        elif form == "json":
            yield from _json(path)
        else:
            with _text(path) as handle:
                usual = "\t" if form == "tsv" else ","
                yield from _delimited(handle, path, usual=usual, names=names, notify=notify)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged ({error}). Make or fetch it again.") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Open text, gzipped or not; bytes that are not UTF-8 become lone surrogates, reported by row."""
    zipped = path.suffix.lower() == ".gz"
    if not zipped:
        with path.open("rb") as handle:
            check_start(handle.read(8), path)
    opened = gzip.open if zipped else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        yield handle


# CSV, TSV and Parquet

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: Maximum number of characters of the header that determine the delimiter.
WIDEST = 100_000


class _Lines:
    """Counted lines of a file for csv.reader; a record that grows too long is an error."""

    def __init__(self, handle: TextIO) -> None:
        self._handle = handle
        self.number = 0
        self.size = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._handle.readline(LONGEST + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.size += len(line)
        if self.size > LONGEST:
            while line and not line.endswith("\n"):
                line = self._handle.readline(LONGEST)
            raise csv.Error(f"longer than {LONGEST:,} characters")
        return line


def find_delimiter(header: str, *, usual: str = ",", names: Collection[str] = ()) -> str:
    """Return the delimiter with the most known `names` (lower case) in a header line, then the most cells.

    The `usual` delimiter of the file's ending wins ties.

    >>> find_delimiter("question;answers, all;level"), find_delimiter("question")
    (';', ',')
    """

    def score(delimiter: str) -> tuple[int, int, bool]:
        cells = next(csv.reader([header], delimiter=delimiter), [])
        return sum(cell.strip().lower() in names for cell in cells), len(cells), delimiter == usual

    return max(DELIMITERS, key=score)


def _delimited(
    handle: TextIO, path: Path, *, usual: str, names: Collection[str], notify: Notify | None
) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a file, opened with newline="", whose first line names the columns.

    `usual` and `names` are those of `find_delimiter`. `notify` is called if the delimiter is not the usual
    one. InputError if the first line cannot be read, or two columns have one name.
    """
    first = next(filter(str.strip, iter(partial(handle.readline, WIDEST), "")), "")
    delimiter = find_delimiter(first, usual=usual, names=names)
    if delimiter != usual and notify:
        notify(f"{path}: cells are separated by {DELIMITERS[delimiter]}")
    handle.seek(0)
    lines = _Lines(handle)
    records = _records(lines, delimiter)
    header = next(records, None)
    if header is None:
        return
    if isinstance(header, RowError):
        raise InputError(f"the first line of {path} must name the columns: {header.reason}")
    if fault := encoding_fault("".join(header[1])):
        raise InputError(f"the first line of {path} is {fault}")
    columns = [cell.strip() or f"column {place}" for place, cell in enumerate(header[1], start=1)]
    check_different(columns, path)
    for record in records:
        if isinstance(record, RowError):
            yield record
            continue
        line, cells = record
        row = JsonLine(line, dict(zip(columns, cells)))
        bad = next((name for name, cell in row.data.items() if encoding_fault(cell)), None)
        if len(cells) != len(columns):
            reason = f"expected {len(columns)} cells ({', '.join(columns)[:200]}), got {len(cells)}"
            yield _bad(line, reason, lines.number)
        elif bad is not None:
            yield row.error(f"{shown(bad)} is {encoding_fault(row.data[bad])}")
        else:
            yield row


def encoding_fault(text: str) -> str:
    """Return the fault of a text that was read with "surrogateescape"; "" if it is UTF-8."""
    half = None if text.isascii() else re.search("[\udc80-\udcff]", text)
    return f"not UTF-8 (byte 0x{ord(half[0]) - 0xDC00:x}): save the file as UTF-8" if half else ""


def _records(lines: _Lines, delimiter: str) -> Iterator[tuple[int, list[str]] | RowError]:
    """Yield the cells of every record that is not blank, with its first line."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line, lines.size = lines.number + 1, 0
        limit = csv.field_size_limit(2**31 - 1)  # a cell may hold a whole book
        try:
            cells = next(reader, None)
        except csv.Error as error:
            reason = f'not CSV ({error}): cells with quotes are written "like ""this"""'
            yield _bad(line, reason, lines.number)
            continue
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        if cells:
            yield line, cells


def _bad(first: int, reason: str, last: int) -> RowError:
    if last > first:
        lines = f"line {last}" if last == first + 1 else f"lines {first + 1} to {last}"
        reason = f"the quote that line {first} opens includes {lines}; {reason}"
    return RowError(first, reason, last=last)


def _parquet(path: Path) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a Parquet file, numbered from 1.

    InputError if the file is not Parquet or has two columns of one name, MissingExtraError without pyarrow.
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
                for index in range(batch.num_rows):
                    yield _parquet_row(batch.slice(index, 1), next(numbers))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the name of a column is not UTF-8 ({error.reason}). Write the file with another name."
        ) from error
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error


def _parquet_row(row: Any, number: int) -> JsonLine | RowError:
    cells = {}
    bad = None
    for name in row.schema.names:
        try:
            cells[name] = json_value(row.column(name).to_pylist()[0])
        except UnicodeDecodeError as error:
            bad = bad or f"{shown(name)} is not UTF-8 ({error.reason}). Write the file with texts in UTF-8."
        except OverflowError:
            bad = bad or f"{shown(name)} has a date outside the years 1 to 9999. Correct or remove it."
        except (TypeError, ValueError) as error:  # pyarrow raises ValueError, too
            bad = bad or f"{shown(name)} cannot be read ({error}). Leave that column out."
    return row_of(number, cells) if bad is None else JsonLine(number, cells).error(bad)


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
    odd = odd or encoding_fault(text) != ""
    if type(content) is dict and isinstance(content.get("data"), list):
        yield from _squad(content["data"], odd)
    else:
        items = content if isinstance(content, list) else [content]
        yield from (row_of(number, item, odd=odd) for number, item in enumerate(items, start=1))


def _squad(articles: list[Any], odd: bool) -> Iterator[JsonLine | RowError]:
    """Yield the rows of SQuAD's own JSON, articles → paragraphs → questions, numbered through the file."""
    numbers = count(1)
    for article in articles:
        for paragraph in _children(article, "paragraphs"):
            for entry in _children(paragraph, "qas"):
                number = next(numbers)
                if not isinstance(entry, dict):
                    reason = "expected SQuAD's data → paragraphs → qas, each a list of objects, no key twice"
                    yield RowError(number, reason)
                    continue
                passage = {"title": article.get("title"), "context": paragraph.get("context")}
                listed = entry.get("answers")
                if isinstance(listed, list) and all(isinstance(answer, dict) for answer in listed):
                    listed = [answer.get("text") for answer in listed]
                row = row_of(number, entry, odd=odd)
                cells = passage | entry | {"answers": listed}
                yield row if isinstance(row, RowError) else row_of(number, cells, odd=odd)


def _children(parent: Any, key: str) -> list[Any]:
    """The list under `key`; [None] if it is missing, which becomes one bad row."""
    children = parent.get(key) if type(parent) is dict else None  # not a subclass: those have a key twice
    return children if isinstance(children, list) else [None]


# The Hugging Face hub


def read_hub_rows(
    dataset: HubDataset, *, split: str = "train", names: Collection[str] = ()
) -> Iterator[JsonLine | RowError]:
    """Yield the rows of a split of a data set on the Hugging Face hub, numbered from 1.

    Only the columns `names` (in lower case) and those of `dataset.columns` are read. MissingExtraError if the
    package `datasets` is not installed, InputError if the hub cannot be reached, or has no such data set,
    subset or split.
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
    names = {*names, *(theirs.lower() for theirs in dataset.columns.values())}
    present = [name for name in rows.column_names if name.strip().lower() in names]
    for number, row in enumerate(rows.select_columns(present), start=1):
        yield JsonLine(number, dict(row))


# The names of columns

#: Number of rows at the start of a file that determine the names of its columns.
FIRST = 64
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("query",),
    "samples": ("responses", "completions"),
}
"""Other accepted names of a column, in any case."""
#: In a file with one of these columns, `answer` is the answer of a model.
_OF_A_MODEL = {"samples", *COMMON_NAMES["samples"], "prediction"}
#: Several answers in one cell, not written as a list.
_SEVERAL = re.compile(r"[^\s;|]\s*[;|]\s*[^\s;|]")


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


def find_columns(
    keys: Sequence[str], fields: Mapping[str, Sequence[str]], columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the key of each of our columns that has another name in the file.

    `fields` maps our names to other accepted names, `columns` maps our names to the names given by the user.
    UsageError if the user names a missing column, or two keys could be the same column.

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
                    f"{' and '.join(map(shown, matches))} could both be the column {ours!r}. Name one with "
                    f"--columns {ours}=NAME (in Python: columns={{{ours!r}: NAME}})."
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

    `fields` and `columns` are those of `find_columns`. If the questions have answers (`labelled`), the column
    `answer` means `answers`, except in a file with `samples` or a `prediction`. `notify` is called with notes
    on the names. SemcalWarning if most cells of `answers` hold several answers that are not a list.
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
            notify(f"columns: {theirs!r} replaces {ours!r}")
    understood = [f"{theirs!r} as {ours}" for ours, theirs in names.items() if ours not in columns]
    if understood and notify:
        notify(f"columns: {', '.join(understood)}")
    if "answers" in fields:
        _warn_of_several([cells.get(names.get("answers", "answers")) for cells in objects])
    return names, chain(first, rows)


def _warn_of_several(cells: Sequence[Any]) -> None:
    texts = [cell for cell in cells if isinstance(cell, str) and not cell.lstrip().startswith("[")]
    several = [text for text in texts if _SEVERAL.search(text)]
    if len(several) > 1 and len(several) > len(cells) / 2:
        warnings.warn(
            "most cells of 'answers' seem to hold several answers in one text, such as "
            f'{shown(several[0])}, which counts as one answer. Write several as a JSON list: ["A", "B"].',
            SemcalWarning,
            stacklevel=2,
        )


def rename(rows: Iterable[JsonLine | RowError], columns: Mapping[str, str]) -> Iterator[JsonLine | RowError]:
    """Rename the columns of rows to ours, in place; a column of the same name is dropped."""
    names = {theirs: ours for ours, theirs in columns.items() if ours != theirs}
    for row in rows:
        if names and isinstance(row, JsonLine) and (present := {k: names[k] for k in row.data if k in names}):
            replaced = present.values() - present.keys()
            cells = {present.get(key, key): value for key, value in row.data.items() if key not in replaced}
            row = JsonLine(row.line, cells)
        yield row
