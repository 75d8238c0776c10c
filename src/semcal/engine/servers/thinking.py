"""What a model thinks before it answers, told apart from the answer.

Servers put it into a field of its own (reasoning_content, reasoning) or leave it in the text between marks.
Where the chat template opens it, the text holds the closing mark alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from semcal.errors import SemcalWarning

_MARKS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))


def split_thinking(text: str) -> tuple[str, str]:
    """Return what was thought, and the answer behind it: "" where the text ends inside the thinking.

    Only what a text begins with counts: an answer may name the marks.

    >>> split_thinking("<think>A lake?</think> Mirna."), split_thinking("A lake?</think>Mirna.")
    (('A lake?', 'Mirna.'), ('A lake?', 'Mirna.'))
    >>> split_thinking("<think>A la"), split_thinking(" Mirna.")
    (('A la', ''), ('', ' Mirna.'))
    """
    for opening, closing in _MARKS:
        thought, closed, answer = text.partition(closing)
        begun = thought.lstrip().startswith(opening)
        if begun or (closed and opening not in thought):
            return thought.lstrip().removeprefix(opening).strip(), answer.lstrip()
    return "", text


@dataclass
class ThinkingCount:
    """How many answers came after thinking, and in how many the token limit ended it."""

    answers: int = 0
    cut: int = 0

    def add(self, ended: Iterable[bool], limit: int) -> None:
        """Count answers after thinking, each with whether it came; warn once if any did not."""
        before, found = self.cut, list(ended)
        self.answers += len(found)
        self.cut += found.count(False)
        if not before and self.cut:
            warnings.warn(
                f"{self.cut} of {len(found)} answers were still being thought about at the limit of {limit} "
                "tokens, and are empty; give a larger --max-new-tokens (such as 4000), or switch thinking "
                "off at the server",
                SemcalWarning,
                stacklevel=4,
            )
