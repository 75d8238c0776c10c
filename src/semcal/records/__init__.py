"""Rows on disk: JSON Lines in and out, whole files or none."""

from semcal.records.jsonl import Row, dumps, parse_float, read_object, read_rows, write_rows, writing

__all__ = ["Row", "dumps", "parse_float", "read_object", "read_rows", "write_rows", "writing"]
