"""Which questions wait, and when they enter the forest beside those that are still going.

Decided by counts of tokens alone, so that the same call takes the same steps every time. At first a question
counts with the longest answers that its draws could have; once trees have grown, with what these came to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Queue", "Trees"]


class Trees:
    """How many tokens a question's tree comes to hold, by what those planted so far have grown.

    Parameters
    ----------
    draws : int
        Draws of a question, under all recalibrators.
    steps : int
        The most tokens that a draw can have.

    Examples
    --------
    >>> trees = Trees(draws=10, steps=4)
    >>> trees.remaining()
    40.0
    >>> trees.plant(2)
    >>> trees.grow([0, 6], [0, 16])
    >>> trees.remaining()  # 6 / 2 at the first step, and 16 / 2 draws that may have three tokens more
    27.0
    """

    def __init__(self, draws: int, steps: int) -> None:
        self._steps = steps
        self._planted: list[tuple[int, int]] = []  # age and number of those planted together
        self._trees = [1] + [0] * steps  # by depth: how many came so far, their tokens, their draws
        self._tokens = [0] * (steps + 1)
        self._draws = [draws] + [0] * steps

    def plant(self, count: int) -> None:
        """So many questions have been planted."""
        self._planted.append((0, count))

    def uproot(self, count: int) -> None:
        """So many of those planted last have been put back."""
        while count:
            age, planted = self._planted.pop()
            if planted > count:
                self._planted.append((age, planted - count))
            count -= min(count, planted)

    def grow(self, tokens: Sequence[int], draws: Sequence[int]) -> None:
        """One step is done: by depth, how many tokens it added and how many draws stand on them."""
        self._planted = [(age + 1, count) for age, count in self._planted if age < self._steps]
        for age, count in self._planted:
            self._trees[age] += count
        for depth, (more, standing) in enumerate(zip(tokens, draws, strict=True)):
            self._tokens[depth] += more
            self._draws[depth] += standing

    def remaining(self, age: int = 0) -> float:
        """Tokens that a tree of so many steps is to grow yet; as if no draw ended where none has come to."""
        known = [depth for depth, count in enumerate(self._trees) if count]
        grown = sum(self._tokens[depth] / self._trees[depth] for depth in known if depth > age)
        last = known[-1]
        return grown + (self._steps - max(last, age)) * self._draws[last] / self._trees[last]


class Queue:
    """Questions that wait, shorter prompts first.

    Parameters
    ----------
    tokens : sequence of int
        By question: tokens of the prompt that are held for it alone.
    budget : int
        Tokens that may be held.
    lump : int
        Tokens of prompts that are worth a pass of their own.

    Examples
    --------
    >>> queue = Queue([30, 20, 40], budget=100, lump=50)
    >>> queue.entering(10)  # of 20 and 30 tokens, and 10 of the trees of each
    2
    >>> queue.take(2), queue.entering(10, rows=1, columns=20)
    ([1, 0], 1)
    """

    def __init__(self, tokens: Sequence[int], *, budget: int, lump: int) -> None:
        self.tokens, self.budget, self._lump = tokens, budget, lump
        self._waiting = deque(sorted(range(len(tokens)), key=lambda i: (tokens[i], i)))

    def __len__(self) -> int:
        return len(self._waiting)

    def entering(self, tree: float, *, rows: int = 0, columns: int = 0, trees: float = 0.0) -> int:
        """How many questions may enter, with a tree of so many tokens each.

        None if they are too few to be worth a pass; one at least where no other is.

        Parameters
        ----------
        tree : float
            Tokens of the tree of one that enters.
        rows, columns : int
            How many questions are there, and room for how many tokens the prompts of these have.
        trees : float
            Tokens that the trees of all these hold, or are to hold.
        """
        fit = 0
        for i in self._waiting:
            columns = max(columns, self.tokens[i])
            if (rows + fit + 1) * columns + trees + (fit + 1) * tree > self.budget:
                break
            fit += 1
        if not rows:
            return max(fit, min(1, len(self)))
        worthwhile = fit == len(self) or sum(self.tokens[i] for i in list(self._waiting)[:fit]) >= self._lump
        return fit if worthwhile else 0

    def take(self, count: int) -> list[int]:
        """The next questions."""
        return [self._waiting.popleft() for _ in range(count)]

    def put_back(self, questions: Sequence[int]) -> None:
        """Let these (in the order in which they were taken) be the next again."""
        self._waiting.extendleft(reversed(questions))

    def staying(self, costs: Sequence[int]) -> int:
        """How many questions of these costs, the first at least, may hold all that they need."""
        return max(1, sum(total <= self.budget for total in accumulate(costs)))
