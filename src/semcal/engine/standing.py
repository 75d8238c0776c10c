"""The questions that stand in a forest, and their draws: who enters, what is chosen, who goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.admission import Queue, Trees
from semcal.engine.choosing import Rules, chosen_by
from semcal.engine.forest import Forest, LevelForest
from semcal.engine.tree import Frontier, advance, begin, steps_of
from semcal.engine.walked import Draws, Walk

__all__ = ["Asked", "Standing", "Uniforms"]

Uniforms = Callable[[int], NDArray[np.float64]]
"""From the index of a question to its uniforms (m, steps)."""


@dataclass(frozen=True)
class Asked:
    """The questions of a call.

    Attributes
    ----------
    prompts : sequence of sequence of int
        Of each all tokens of the prompt.
    uniforms : callable
        Its uniforms.
    m, steps : int
        Draws under each recalibrator, and the most tokens of one.
    """

    prompts: Sequence[Sequence[int]]
    uniforms: Uniforms
    m: int
    steps: int


class Standing:
    """Questions of a call that stand in a forest.

    Parameters
    ----------
    trunk : Forest
        A forest of the shared prefix alone.
    asked : Asked
        All questions.
    queue : Queue
        Those that wait.
    rules : Rules
        How draws choose.
    """

    def __init__(self, trunk: Forest, asked: Asked, queue: Queue, rules: Rules) -> None:
        self._trunk, self._asked, self._queue, self._rules = trunk, asked, queue, rules
        self._most = asked.m * asked.steps * len(rules.recalibrators)
        self._trees = Trees(asked.m * len(rules.recalibrators), asked.steps)
        self._enders = np.array(sorted(rules.stops), dtype=np.int64)
        riders = list(trunk.riders)
        self._rider = torch.tensor([riders.index(r) if r in riders else -1 for r in rules.recalibrators])
        self._clear()

    def _clear(self) -> None:
        self._forest = self._trunk.empty()
        self._questions: list[int] = []  # by row
        self._u = np.zeros((0, self._asked.m, self._asked.steps))
        self._walked, self._draws = self._unknown(0), self._first(range(0))
        self._frontier = Frontier.none()

    def _unknown(self, questions: int) -> Walk:
        shape = questions, len(self._rules.recalibrators), self._asked.m, self._asked.steps
        return Walk.unknown(*shape, closers=len(self._rules.closers))

    def _first(self, rows: range, node: int = 0) -> Draws:
        return Draws.first(rows, len(self._rules.recalibrators), self._asked.m, node=node)

    def __len__(self) -> int:
        """How many draws are going."""
        return len(self._draws)

    def admit(self) -> None:
        """Let questions that wait enter, if there is room and it is worth a pass."""
        if not (count := self._entering()):
            return
        if len(self):
            self._compact()
        else:
            self._clear()
        self._plant(self._queue.take(count))

    def _entering(self) -> int:
        """How many may enter; what those that have ended still hold does not count."""
        if not isinstance(self._forest, LevelForest):  # its rows are as long as the largest tree needs
            return 0 if len(self) else self._queue.entering(self._most)
        if not self._queue:
            return 0
        ages = dict(zip(self._draws.row.tolist(), self._draws.step.tolist(), strict=True))
        held = len(self._frontier.compacted(torch.unique(self._draws.node))[1]) if ages else 0
        return self._queue.entering(
            self._trees.remaining(),
            rows=len(ages),
            columns=max((self._queue.tokens[self._questions[row]] for row in ages), default=0),
            trees=held + sum(map(self._trees.remaining, ages.values())),
        )

    def _plant(self, questions: Sequence[int]) -> None:
        row, node = len(self._questions), len(self._frontier.row)
        planted = begin(self._forest, [self._asked.prompts[i] for i in questions], row)
        self._frontier = self._frontier.beside(planted)
        self._draws = self._draws.beside(self._first(range(row, row + len(questions)), node))
        self._walked = self._walked.beside(self._unknown(len(questions)))
        self._u = np.concatenate([self._u, [self._asked.uniforms(i) for i in questions]])
        self._questions.extend(questions)
        self._trees.plant(len(questions))

    def _compact(self) -> None:
        """Forget the questions that have ended, and what no draw that is going stands on."""
        nodes, node = torch.unique(self._draws.node, return_inverse=True)
        rows, row = np.unique(self._draws.row, return_inverse=True)
        self._frontier, slots = self._frontier.compacted(nodes)
        if isinstance(self._forest, LevelForest):
            self._forest.compact(torch.from_numpy(rows), slots)
        self._draws = replace(self._draws, row=row, node=node)
        self._walked, self._u = self._walked[rows], self._u[rows]
        self._questions = [self._questions[row] for row in rows]

    def step(self) -> list[tuple[int, Walk]]:
        """Let every draw choose, and run what goes on; the questions that have ended by that."""
        draws, steps = self._draws, self._asked.steps
        u = torch.from_numpy(self._u[draws.row, draws.draw, np.minimum(draws.step, steps - 1)])
        which = torch.from_numpy(draws.which)
        read = self._frontier.read
        chosen = chosen_by(self._forest, read, self._rules, node=draws.node, which=which, u=u)
        drawing = draws.step < steps
        self._walked.note(draws, chosen.closers)
        self._walked.record(draws[drawing], chosen.tokens[drawing], chosen.log_probs[drawing])
        going = drawing & ~np.isin(chosen.tokens, self._enders)
        last = going & (draws.step == steps - 1)
        going[last] = self._beyond(draws[last])
        ended = np.setdiff1d(draws.row, draws.row[going]).tolist()
        found = [(self._questions[row], self._walked[row]) for row in ended]
        self._draws = draws[going]
        self._go_on(torch.from_numpy(chosen.tokens[going]))
        return found

    def _beyond(self, draws: Draws) -> list[bool]:
        """Whether something is to be read behind the last tokens of draws that have met the limit."""
        beyond, tokens = self._rules.beyond, self._walked.tokens[draws.row, draws.which, draws.draw]
        return [beyond is not None and beyond(tuple(drawn)) for drawn in tokens.tolist()]

    def _go_on(self, token: Tensor) -> None:
        """Run the tokens that the draws have chosen, each distinct one once."""
        if not len(self):
            self._trees.grow([], [])
            return
        token = self._within_budget(token)
        rider = self._rider[torch.from_numpy(self._draws.which)]
        self._frontier, node = advance(self._forest, self._frontier, self._draws.node, token, rider=rider)
        self._draws = replace(self._draws, step=self._draws.step + 1, node=node)
        depths = (self._frontier.path >= 0).sum(1).bincount().tolist()
        self._trees.grow(depths, np.bincount(self._draws.step, minlength=len(depths)).tolist())

    def _within_budget(self, token: Tensor) -> Tensor:
        """Put questions back, those that came last first, until what is to be run can be held."""
        if not isinstance(self._forest, LevelForest) or self._fits(self._forest, token):
            return token
        self._compact()
        if self._fits(self._forest, token):
            return token
        parent, *_ = steps_of(self._forest, self._draws.node, token)
        rows = len(self._questions)
        new = torch.bincount(self._frontier.row[parent], minlength=rows)
        costs = int(self._forest.lengths.max()) + self._frontier.slots_of(rows) + new
        staying = self._queue.staying(costs.tolist())
        self._queue.put_back(self._questions[staying:])
        self._trees.uproot(rows - staying)
        stays = self._draws.row < staying
        self._draws, token = self._draws[stays], token[torch.from_numpy(stays)]
        self._compact()
        return token

    def _fits(self, forest: LevelForest, token: Tensor) -> bool:
        """Whether what the draws go on to can be held."""
        room = self._queue.budget - forest.tokens_held
        return len(token) <= room or len(steps_of(forest, self._draws.node, token)[0]) <= room
