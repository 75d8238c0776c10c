"""Rows of Parquet files: cells as JSON holds them, a row with a cell that cannot be read reported."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, time
from decimal import Decimal
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from semcal.errors import InputError, MissingExtraError, RowError, shown
from semcal.qa.columns import check_different
from semcal.records import Row, row_of

__all__ = ["read_parquet"]


def read_parquet(path: Path) -> Iterator[Row | RowError]:
    """Yield the rows of a Parquet file, numbered from 1.

    Raises
    ------
    InputError
        If it is no Parquet file, or two of its columns are called alike.
    MissingExtraError
        Without pyarrow.
    """
    arrow, parquet = _pyarrow()
    numbers = count(1)
    try:
        with parquet.ParquetFile(path) as file:
            check_different(file.schema_arrow.names, path)
            for batch in file.iter_batches(batch_size=1024):
                for index in range(batch.num_rows):
                    yield _row(batch.slice(index, 1), next(numbers))
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error


def _row(row: Any, number: int) -> Row | RowError:
    cells: dict[str, Any] = {}
    bad = None
    for name in row.schema.names:
        try:
            cells[name] = _json_value(row.column(name).to_pylist()[0])
        except UnicodeDecodeError as error:
            bad = bad or f"{shown(name)} is not UTF-8 ({error.reason}): write the file with texts in UTF-8"
        except OverflowError:
            bad = bad or f"{shown(name)} holds a date outside the years 1 to 9999: mend it, or leave it out"
        except (TypeError, ValueError) as error:  # a ValueError of pyarrow among them
            bad = bad or f"{shown(name)} cannot be read ({error}): leave that column out"
    return row_of(number, cells) if bad is None else Row(number, cells).error(bad)


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
    raise TypeError(f"a cell holds {type(cell).__name__}, which JSON cannot hold")


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    return pyarrow, pyarrow.parquet
