"""English words that several readers need: the months, and the little words of grammar."""

from __future__ import annotations

__all__ = ["MONTHS", "STOP_WORDS"]

_NAMES = (
    "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sept sep"
    "|october oct|november nov|december dec"
)

MONTHS = {name: n for n, names in enumerate(_NAMES.split("|"), start=1) for name in names.split()}
"""Each name in lower case and the number of its month."""

_CLOSED_CLASSES = """
a an the this that these those
i you he she it we they me him her us them my your his its our their mine yours hers ours theirs
myself yourself himself herself itself ourselves themselves who whom whose which what
am is are was were be been being do does did done has have had having
can could may might must shall should will would
and or nor but if than then so as because while although though unless until
of in on at by for with from to into onto upon about against between through during before after
above below under over within without along across behind beyond among around near per via
not no there here when where why how both each either neither some any all such only also too very
just again ever never
"""

STOP_WORDS = frozenset(_CLOSED_CLASSES.split())
"""Words that link and point rather than name: the closed classes of grammar."""
