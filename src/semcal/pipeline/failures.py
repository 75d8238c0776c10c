"""Questions to which a server gave no answers: rows that say why, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from semcal.errors import QuestionError, SemcalWarning, shown

#: Key of a row that holds no answers: why a server gave none.
FAILED = "semcal_error"


def failures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, QuestionError]:
    """The failure of each question that has one in any of the rows, by its id."""
    return {str(row["id"]): QuestionError(str(row["id"]), row[FAILED]) for row in rows if FAILED in row}


def warn_of_failures(failures: Mapping[str, QuestionError], of: int) -> None:
    """Name questions to which a server gave no answers; the first is raised if none got any."""
    found = list(failures.values())
    if found and len(found) == of:
        raise found[0]
    if found:
        named = ", ".join([shown(name) for name in failures][:3]) + ", …" * (len(found) > 3)
        warnings.warn(
            f"{len(found)} of {of} questions got no answers (ids {named}), and are left out: "
            f"{found[0].reason}",
            SemcalWarning,
            stacklevel=3,
        )
