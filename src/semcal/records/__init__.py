"""JSON Lines files, and atomic writing."""

from semcal.records.atomic import (
    LOCK,
    atomic_folder,
    atomic_write,
    clear_folder,
    file_lock,
    is_stream,
    own_files,
    part_folder,
    remove_leftovers,
)
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
    "LOCK",
    "Row",
    "atomic_folder",
    "atomic_write",
    "canonical",
    "clear_folder",
    "dumps",
    "file_lock",
    "is_stream",
    "own_files",
    "parse_float",
    "part_folder",
    "read_object",
    "read_rows",
    "remove_leftovers",
    "row_of",
    "write_rows",
    "writing",
]
