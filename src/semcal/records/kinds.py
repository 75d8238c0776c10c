"""Recognises files that hold no rows of text, by ending or first bytes, and says how to convert them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from semcal.errors import InputError

__all__ = ["check_ending", "check_json_lines", "check_start"]

_PANDAS = (
    "python -c \"import pandas; pandas.{reader}('{name}')"
    ".to_json('rows.jsonl', orient='records', lines=True)\""
)


@dataclass(frozen=True)
class _Kind:
    """A kind of file that is not supported, with what to do; `start` is a pattern of its first bytes."""

    what: str
    remedy: str
    endings: tuple[str, ...] = ()
    start: bytes | None = None


_KINDS = (
    _Kind(
        "a spreadsheet",
        f"save it as CSV (UTF-8) there, or convert it: {_PANDAS.replace('{reader}', 'read_excel')}",
        (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"),
    ),
    _Kind("a Numbers document", "export it as CSV there (File > Export To > CSV)", (".numbers",)),
    _Kind(
        "a pickle, which can run any code when it is opened",
        f"where you trust it, convert it: {_PANDAS.replace('{reader}', 'read_pickle')}",
        (".pkl", ".pickle", ".joblib"),
    ),
    _Kind(
        "an Arrow or Feather file",
        f"convert it: {_PANDAS.replace('{reader}', 'read_feather')}",
        (".arrow", ".feather"),
        b"ARROW1",
    ),
    _Kind(
        "an archive, or a spreadsheet",
        "unpack it and name the file inside; save a spreadsheet as CSV (UTF-8)",
        start=b"PK\x03\x04",
    ),
    _Kind(
        "an archive",
        "unpack it and name the file inside (gzip alone, as in rows.jsonl.gz, is read as it is)",
        (".zip", ".7z", ".rar", ".tar", ".tgz", ".bz2", ".xz", ".zst"),
    ),
    _Kind("gzipped, though its name does not end in .gz", "rename it", start=b"\x1f\x8b\x08"),
    _Kind("a Parquet file", "rename it to {name}.parquet", start=b"PAR1"),
    _Kind("UTF-16 text", "save it as UTF-8", start=b"\xff\xfe[^\x00]\x00"),
    _Kind("UTF-16 text", "save it as UTF-8", start=b"\xfe\xff\x00[^\x00]"),
)


def check_ending(path: Path) -> None:
    """Raise InputError, with how to convert it, for a file whose ending is not that of rows of text.

    Examples
    --------
    >>> check_ending(Path("answers.zip"))
    Traceback (most recent call last):
    semcal.errors.InputError: answers.zip is an archive: unpack it and name the file inside (gzip alone, ...
    """
    name = path.name.lower().removesuffix(".gz")
    for kind in _KINDS:
        if name.endswith(kind.endings):
            raise InputError(f"{path} is {kind.what}: {kind.remedy.replace('{name}', path.name)}")


def check_start(start: bytes, source: str | Path) -> None:
    """Refuse, as `check_ending` does, a file whose first bytes are not those of rows of text."""
    for kind in _KINDS:
        if kind.start is not None and re.match(kind.start, start):
            what = "standard input" if str(source) == "-" else source
            raise InputError(f"{what} is {kind.what}: {kind.remedy.replace('{name}', Path(source).name)}")


def check_json_lines(source: str) -> None:
    """Refuse, as `check_ending` does, a table where rows need lists and objects."""
    name = Path(source).name
    for ending, reader in ((".csv", "read_csv"), (".tsv", "read_table"), (".parquet", "read_parquet")):
        if name.lower().removesuffix(".gz").endswith(ending):
            convert = _PANDAS.replace("{reader}", reader).replace("{name}", name)
            raise InputError(f"{source} is no file of JSON Lines, which rows are read from: {convert}")
