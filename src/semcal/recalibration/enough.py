"""How many labelled questions a fit needs: below 5 there is none, below 50 there is a warning."""

from __future__ import annotations

import warnings

from semcal.errors import FitError, SemcalWarning

__all__ = ["FEW", "FEWEST", "check_enough", "warn_if_few"]

#: Fewer labelled questions are refused, and fewer than FEW warned of.
FEWEST, FEW = 5, 50


def check_enough(questions: int, *, of: str = "to fit to") -> None:
    """Raise FitError below FEWEST labelled questions; `of` says what they are for.

    Examples
    --------
    >>> check_enough(2)
    Traceback (most recent call last):
    semcal.errors.FitError: there are 2 labelled questions to fit to, and at least 5 are needed: ...
    """
    if questions < FEWEST:
        raise FitError(
            f"there {'is' if questions == 1 else 'are'} {questions or 'no'} labelled "
            f"question{'' if questions == 1 else 's'} {of}, and at least {FEWEST} are needed: label more "
            f"(from {FEW} on a fit is worth something, with a few hundred it is reliable)"
        )


def warn_if_few(questions: int, *, of: str = "to fit to", stacklevel: int = 3) -> None:
    """Warn below FEW labelled questions."""
    if questions < FEW:
        warnings.warn(
            f"there are only {questions} labelled questions {of}: another {questions} may give quite another "
            f"result; label {FEW} or more, better a few hundred",
            SemcalWarning,
            stacklevel=stacklevel,
        )
