"""STUB until the rules are merged."""

from __future__ import annotations

import unicodedata

from semcal.text.normal_form import normal_form
from semcal.text.values import values_differ, values_read


def decide(question: str, first: str, second: str, *, cut: tuple[bool, bool] = (False, False)) -> bool | None:
    """Decide by normal forms and values."""
    forms = [normal_form(first), normal_form(second)]
    if forms[0] == forms[1]:
        return True
    read = [values_read([form], [not is_cut])[0] for form, is_cut in zip(forms, cut)]
    return False if values_differ(*read) else None


def letter_form(text: str) -> str:
    """Return a text in Unicode NFC without outer blanks."""
    return unicodedata.normalize("NFC", text).strip()
