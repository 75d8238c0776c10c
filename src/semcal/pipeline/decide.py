"""Answer or abstain with as few draws and NLI pairs as decide it: `SemanticUQ(decide=True)`, `ask --decide`.

The draws are taken in rounds, and are the first of the m that would be taken otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from semcal.engine.clustering import Verdicts
from semcal.engine.deciding import Group, PartOfDraws, Rule, settle
from semcal.engine.equivalence import ExactMatch
from semcal.errors import QuestionError, UsageError
from semcal.metrics.frequencies import Floats
from semcal.pipeline.answer import Answer, Meaning
from semcal.pipeline.assess import CALIBRATED
from semcal.pipeline.sample import default_max_new_tokens
from semcal.pipeline.sample_features import representative
from semcal.qa.first_answer import first_answer
from semcal.qa.normal_form import normal_form

if TYPE_CHECKING:
    from semcal.engine.drawing import Truncation
    from semcal.engine.equivalence import Equivalence
    from semcal.engine.language_model import Sampler
    from semcal.pipeline.calibrated import Calibration
    from semcal.pipeline.prompting import PromptConfig
    from semcal.qa.questions import Question
    from semcal.recalibration.attentive import AnyRecalibrator


@dataclass(frozen=True)
class DecisionRule:
    """The confidence that each count of m draws would have, and the threshold that decides."""

    confidences: Floats  # (m + 1,), of the counts 0 … m
    threshold: float
    measure: str

    @classmethod
    def of(
        cls, m: int, measure: str, threshold: float | None, calibration: Calibration | None
    ) -> DecisionRule:
        """That of some settings.

        UsageError unless there is a threshold, and the confidence rises with the answer's share and reads
        nothing else.
        """
        values = np.arange(m + 1) / m
        if calibration is not None:
            values, threshold = _mapped(values, calibration), _threshold_of(calibration, threshold)
        elif measure != "E-SC":
            raise UsageError(
                "to decide early, the confidence must be the answer's share of the draws (E-SC); "
                f"{measure} reads likelihoods, which draws that are left may change"
            )
        if threshold is None:
            raise UsageError(
                "to decide early, a threshold is needed: give abstain_below (--abstain-below), or a "
                "calibration that has one"
            )
        return cls(values, threshold, measure if calibration is None else CALIBRATED)

    def counts(self, *, linked: bool) -> Rule:
        """The same of counts."""
        enough = np.flatnonzero(self.confidences >= self.threshold)
        m = len(self.confidences) - 1
        return Rule(m, max(1, int(enough[0])) if len(enough) else m + 1, linked)


def _mapped(shares: Floats, calibration: Calibration) -> Floats:
    """The probabilities of shares, which must rise with them."""
    read = calibration.map.candidate
    if read.features == ("E-SC",):
        values = calibration.map.predict({"E-SC": shares})
        if (np.diff(values) >= 0).all():
            return values
    raise UsageError(
        "to decide early, the calibration's map must rise with the answer's share (E-SC) and read nothing "
        f"else; {read.name} does not, so that draws that are left may move its probability either way; leave "
        "the calibration out and give a threshold of the share"
    )


def _threshold_of(calibration: Calibration, given: float | None) -> float | None:
    if calibration.threshold is None:
        return given
    if calibration.threshold.threshold is None:
        raise UsageError(
            "no threshold of the calibration was shown to hold its risk, so that every answer abstains and "
            "nothing is left to decide; calibrate again with a larger risk"
        )
    return calibration.threshold.threshold


@dataclass
class Drawn:
    """The draws of one question so far."""

    question: Question
    part: PartOfDraws
    texts: list[str] = field(default_factory=list)  # first answers
    failure: QuestionError | None = None

    def _texts_of(self, group: Group) -> tuple[str, ...]:
        return tuple(self.texts[i] for i in group.draws)

    def answer(self, rule: DecisionRule) -> Answer:
        """What was decided; the confidence is known where its bounds agree."""
        outcome = self.part.outcome
        leading, *others = sorted(self.part.groups, key=lambda group: group is not outcome.answer)
        groups = [leading, *sorted(others, key=lambda group: group.rank, reverse=True)]
        meanings = [
            Meaning(representative(self.texts, one.draws), None, None, self._texts_of(one)) for one in groups
        ]
        low, high = (float(rule.confidences[count]) for count in (outcome.low, outcome.high))
        return Answer(
            id=self.question.id,
            question=self.question.question,
            text=meanings[0].text,
            confidence=low if low == high else None,
            measure=rule.measure,
            abstained=not outcome.answered,
            threshold=rule.threshold,
            entropy=None,
            meanings=tuple(meanings),
            by_measure={},
            row={**self.question.row(), "samples": self.texts, "log_likelihoods": None, "clusters": None},
            bounds=(low, high),
            m=len(rule.confidences) - 1,
        )


def draw_and_decide(
    model: Sampler,
    questions: Sequence[Question],
    rule: DecisionRule,
    *,
    equivalence: Equivalence,
    linkage: str,
    progress: Callable[[int], None] | None = None,
    **sampling: Any,
) -> tuple[list[Drawn], int]:
    """Draw until each question is decided; return the draws, and the number of NLI calls.

    The decisions are those of all m draws: a question that is answered is answered with the same meaning,
    and one that abstains abstains. With the random numbers of each draw its own, the draws are the first of
    the m; over a server they are others, distributed alike. `sampling` goes to `_draw`.
    """
    exact = isinstance(equivalence, ExactMatch)
    counts = rule.counts(linked=linkage == "components" and not exact)
    verdicts = Verdicts(equivalence)
    drawn = [
        Drawn(question, PartOfDraws(question.question, counts, linkage=linkage, exact=exact))
        for question in questions
    ]
    left = drawn
    while left:
        for (_, first, m), group in groupby(sorted(left, key=_together), key=_together):
            _draw(model, list(group), first, m, **sampling)
        left = [one for one in left if one.failure is None]
        settle([one.part for one in left], verdicts)
        left = [one for one in left if one.part.next_draws]
        if progress is not None:
            progress(len(drawn) - len(left))
    return drawn, verdicts.calls


def _together(one: Drawn) -> tuple[bool, int, int]:
    """What questions that are sampled together share: a passage, draws so far, draws next."""
    return one.question.context is not None, len(one.texts), one.part.next_draws


def _draw(
    model: Sampler,
    together: Sequence[Drawn],
    first: int,
    m: int,
    *,
    recalibrator: AnyRecalibrator,
    asking: PromptConfig,
    seed: int,
    max_new_tokens: int | None,
    truncation: Truncation | None,
) -> None:
    """Take the draws `first`, …, `first` + `m` − 1 of some questions; likelihoods are not needed."""
    longest = max_new_tokens
    if longest is None:
        longest = default_max_new_tokens(open_book=together[0].question.context is not None)
    ((found,),) = model.sample_runs(
        asking.prompts(model, [one.question for one in together]),
        recalibrators=[recalibrator],
        seeds=[seed],
        m=m,
        first=first,
        max_new_tokens=longest,
        truncation=truncation,
    )
    for one, draws in zip(together, found):
        if isinstance(draws, QuestionError):
            one.failure = draws
            continue
        texts = [first_answer(draw.text).text for draw in draws]
        one.texts += texts
        one.part.add([normal_form(text) for text in texts])
