"""All exceptions and warnings of the package.

SemcalError
├── UsageError            a wrong option or argument (exit code 2)
├── InputError            a value that cannot be used (also a ValueError)
│   ├── RowError          one row of a file, with its line number and id
│   └── QuestionError     a question that a model cannot answer, with its id
├── ModelError            a checkpoint that cannot be loaded or used
├── FitError              a fit without enough data to learn from
├── StoreError            a file that is damaged, belongs to another program or cannot be fetched
├── ServerError           a server that cannot be reached, or lacks a needed capability
├── BudgetError           requests stopped at the limit of tokens or money
├── WorkerError           a worker process that died repeatedly on the same job
└── MissingExtraError     an optional package that is not installed (also an ImportError)

SemcalWarning (a UserWarning)
└── UndefinedWarning      a number that is undefined for these data, and therefore null
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from reprlib import Repr
from typing import Any

__all__ = [
    "BudgetError",
    "FitError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "QuestionError",
    "RowError",
    "SemcalError",
    "SemcalWarning",
    "ServerError",
    "StoreError",
    "UndefinedWarning",
    "UsageError",
    "WorkerError",
    "printable",
    "shown",
]

#: Optional package → the extra of semcal that installs it.
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "safetensors"), "models"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn", "prometheus_client"), "serve"),
    "matplotlib": "figures",
}
#: Maximum length of a value in a message.
WIDTH = 60
#: Characters that shape words and do not move the cursor: soft hyphen, joiners, marks of direction.
_JOINERS = frozenset("\u00ad\u061c\u200c\u200d\u200e\u200f")
#: Blanks, and letters that are newer than this Python, such as emoji.
_HARMLESS = ("Zs", "Cn")


class SemcalError(Exception):
    """Base class of all errors that semcal raises."""


class UsageError(SemcalError):
    """A wrong option or argument."""


class InputError(SemcalError, ValueError):
    """A value that cannot be used; the message names the value and the remedy."""


class RowError(InputError):
    """One row of a file that cannot be used, by its 1-based line (to `last`, if it has several) and id.

    Examples
    --------
    >>> print(RowError(7, "no 'question'", "b2"))
    line 7 (id 'b2'): no 'question'
    """

    def __init__(
        self, line: int, reason: str, row_id: str | int | None = None, last: int | None = None
    ) -> None:
        place = f"line {line}" if last in (None, line) else f"lines {line}-{last}"
        named = "" if row_id is None else f" (id {shown(row_id)})"
        super().__init__(f"{place}{named}: {reason}")
        self.line = line
        self.reason = reason
        self.row_id = row_id
        self.last = last

    def __reduce__(self) -> tuple[type[RowError], tuple[int, str, str | int | None, int | None]]:
        return type(self), (self.line, self.reason, self.row_id, self.last)


class QuestionError(InputError):
    """A question that a model cannot answer."""

    def __init__(self, question_id: str, reason: str) -> None:
        super().__init__(f"question {question_id!r}: {reason}")
        self.question_id = question_id
        self.reason = reason

    def __reduce__(self) -> tuple[type[QuestionError], tuple[str, str]]:
        return type(self), (self.question_id, self.reason)


class ModelError(SemcalError):
    """A checkpoint that cannot be loaded or used."""


class FitError(SemcalError):
    """A fit without enough data to learn from."""


class StoreError(SemcalError):
    """A file that is damaged, belongs to another program or cannot be fetched."""


class WorkerError(SemcalError):
    """A worker process that died repeatedly on the same job."""


class ServerError(SemcalError):
    """A server that cannot be reached, or lacks a needed capability; the message names its URL.

    `status` is the status of the HTTP reply, if a path was not found.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BudgetError(SemcalError):
    """Requests stopped at the limit of tokens or money; finished answers are kept."""


class MissingExtraError(SemcalError, ImportError):
    """An optional package that is not installed; the `extra` of semcal, if any, installs it.

    Examples
    --------
    >>> print(MissingExtraError("torch", "models", "fit"))
    fit needs torch, which is not installed; install it with: pip install 'semcal[models]'
    """

    def __init__(self, package: str, extra: str | None = None, needed_by: str | None = None) -> None:
        requirement = package if extra is None else f"'semcal[{extra}]'"
        start = f"{needed_by} needs {package}, which" if needed_by else package
        super().__init__(f"{start} is not installed; install it with: pip install {requirement}")
        self.package = package
        self.extra = extra
        self.needed_by = needed_by

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str | None, str | None]]:
        return type(self), (self.package, self.extra, self.needed_by)


@contextmanager
def naming_extra(needed_by: str) -> Iterator[None]:
    """Turn a failed import of a package in `EXTRAS` into a MissingExtraError that begins with `needed_by`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtraError(package, EXTRAS[package], needed_by) from error


class SemcalWarning(UserWarning):
    """Base class of all warnings that semcal issues."""


class UndefinedWarning(SemcalWarning):
    """A number that is undefined for these data, and therefore null (NaN)."""


class _Short(Repr):
    """A `repr` of limited length, also for huge numbers, nested lists and long texts."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = WIDTH
        self.maxlevel = self.maxdict = self.maxlist = self.maxtuple = self.maxset = 3

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002
        digits = value.bit_length() * 0.30103
        return repr(value) if digits < WIDTH else f"a whole number of about {digits:.0f} digits"


_SHORT = _Short()


def shown(value: Any) -> str:
    """Return `repr(value)` for a message, cut to about 60 characters.

    Examples
    --------
    >>> shown("two"), shown([1, 2, 3, 4]), shown(10**400)
    ("'two'", '[1, 2, 3, ...]', 'a whole number of about 400 digits')
    """
    text = _SHORT.repr(value)
    text = " ".join(text.split()) if "\n" in text else text  # reprs of arrays and tables have line breaks
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Return an untrusted text with each unprintable character replaced by U+FFFD.

    Unprintable are control characters (including C1) except those in `keep`, lone surrogates, overrides,
    embeddings and isolates of direction, and characters for private use. Blanks of any width, joiners of
    Arabic, Indic and emoji sequences, and characters unknown to this Python stay.

    Examples
    --------
    >>> printable("Ana\\x1b[2J Velis")
    'Ana�[2J Velis'
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable()
        or letter in keep
        or letter in _JOINERS
        or unicodedata.category(letter) in _HARMLESS
        else "\ufffd"
        for letter in text
    )
