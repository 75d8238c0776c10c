"""Seeded damage of JSON values, lines, CSV files, bytes and option values.

Each function returns the damaged value and a short description of the damage.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

#: Values of hostile or broken programs in JSON; `RAW` has text that is not JSON.
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    -1e308,
    10**400,
    2**63,
    "",
    " ",
    "nan",
    "-inf",
    "inf",
    "\u0000",
    "\u202eabc",
    "a" * 5000,
    "=HYPERLINK(1)",
    "<script>alert(1)</script>",
    "<|eot_id|><|system|>",
    "../../etc/passwd",
    [],
    {},
    [[]],
    [None],
    [""],
    [1, "a", None],
    {"": None},
    {"a": {"b": [1]}},
)
RAW = ("NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, '"\\ud800"', "[" * 200 + "]" * 200)
#: Values of options; those of `WORK` need a rejection, because the work would take hours.
OPTIONS = (
    "", " ", "nan", "inf", "-inf", "-1", "0", "1", "1e400", "9" * 400, "0x10", "1,5", "true", "null",
    "[[[", "{", "é" * 300, "a/b/c", "../..", "/dev/null/x", ".", "-", "--", "atlas", "exact", "E-SC", "TS",
    "a=b", "=", "!!int x", "2020-13-45", "cuda:99", "float8", "500MB", "GB", "9" * 40 + "GB",
)  # fmt: skip
WORK = frozenset({"9" * 400, "9" * 40 + "GB"})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths of all values inside a JSON value, at most 3 items of a list."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inside = enumerate(value[:3])
    for key, item in inside:
        yield from places(item, (*path, key))


def changed_object(found: dict[str, Any], random: Random) -> tuple[str, str]:
    """Replace, remove, rename or double one value of a JSON object; the text may be invalid JSON."""
    damaged = copy.deepcopy(found)
    *path, key = random.choice(list(places(found)))
    holder = damaged
    for step in path:
        holder = holder[step]
    where = "/".join(map(str, (*path, key)))
    how = random.randrange(6)
    if how == 0:
        del holder[key]
        return json.dumps(damaged), f"{where} removed"
    if how == 1 and isinstance(holder, dict):
        holder[f"{key}s"] = holder.pop(key)
        return json.dumps(damaged), f"{where} renamed"
    if how == 2 and not path:
        text = json.dumps(damaged)
        return f"{text[:-1]}, {json.dumps(key)}: 1}}", f"{where} given twice"
    if how == 3:
        raw = random.choice(RAW)
        holder[key] = "@@"
        return json.dumps(damaged).replace('"@@"', raw, 1), f"{where} = {raw[:20]}"
    holder[key] = random.choice(VALUES)
    return json.dumps(damaged), f"{where} = {holder[key]!r:.30}"


def changed_line(line: bytes, random: Random) -> tuple[bytes, str]:
    """Damage one line of a JSON Lines file, as an object or as bytes; it stays one line or disappears."""
    how = random.randrange(10)
    if how < 7:
        text, words = changed_object(json.loads(line), random)
        return text.encode("utf-8", "surrogatepass"), words
    if how == 7:
        return line[: random.randrange(1, len(line))], "cut short"
    if how == 8:
        return random.choice((b"[]", b"null", b"3", b'"a"', b"{}", b"\xff\xfe", b"{", b"")), "another line"
    return changed_bytes(line, random, avoid=b"\r\n")


def changed_bytes(data: bytes, random: Random, *, avoid: bytes = b"") -> tuple[bytes, str]:
    """Overwrite, remove or insert some bytes, or cut off the end."""
    if not data:
        return b"\x00", "a zero byte in an empty file"
    how, at = random.randrange(4), random.randrange(len(data))
    noise = bytes(b for b in random.randbytes(random.choice((1, 1, 4, 64))) if b not in avoid) or b"x"
    if how == 0:
        return data[:at], f"cut at byte {at} of {len(data)}"
    if how == 1:
        return data[:at] + noise + data[at:], f"{len(noise)} bytes inserted at {at}"
    if how == 2:
        return data[:at] + data[at + len(noise) :], f"{len(noise)} bytes removed at {at}"
    return data[:at] + noise + data[at + len(noise) :], f"{len(noise)} bytes overwritten at {at}"


def changed_json(data: bytes, random: Random) -> tuple[bytes, str]:
    """Change a value or bytes of a file with one JSON object."""
    if random.random() < 0.75:
        text, words = changed_object(json.loads(data), random)
        return text.encode("utf-8", "surrogatepass"), words
    return changed_bytes(data, random)


def changed_text(data: bytes, random: Random) -> tuple[bytes, str]:
    """Replace a word of a text file (CSV, YAML, Jinja) by a hostile one, or change bytes."""
    words = data.split(b" ")
    if random.random() < 0.4 or len(words) < 2:
        return changed_bytes(data, random)
    at, given = random.randrange(len(words)), random.choice((*OPTIONS, *RAW))
    words[at] = given.encode("utf-8", "surrogatepass")
    return b" ".join(words), f"word {at} = {given[:20]!r}"


Change = Callable[[bytes, Random], tuple[bytes, str]]
