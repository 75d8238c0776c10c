"""Rows on disk: JSON Lines in and out, whole files or none."""

from semcal.records.jsonl import (
    Row,
    canonical,
    dumps,
    parse_float,
    read_object,
    read_rows,
    row_of,
    write_rows,
    writing,
)

__all__ = [
    "Row",
    "canonical",
    "dumps",
    "parse_float",
    "read_object",
    "read_rows",
    "row_of",
    "write_rows",
    "writing",
]
