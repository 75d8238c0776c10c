"""The answer to one question, with one confidence: what `SemanticUQ` returns and `semcal ask` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from semcal.pipeline.assess import CALIBRATED
from semcal.pipeline.measure import representative
from semcal.semantics.measures import TIE

if TYPE_CHECKING:
    from semcal.pipeline.calibrated import CalibratedAnswer
    from semcal.recalibration.attentive import AnyRecalibrator


@dataclass(frozen=True, repr=False)
class Meaning:
    """One meaning among the sampled answers."""

    text: str  # its commonest wording
    share: float | None  # under the measure that chose the answer (with a calibration E-SC)
    probability: float | None  # that it is right; None without a calibration
    samples: tuple[str, ...]  # all wordings that were sampled, with repetitions

    def __repr__(self) -> str:
        p = "" if self.probability is None else f", probability={_rounded(self.probability)}"
        return f"Meaning({self.text!r}, share={_rounded(self.share)}{p}, samples={len(self.samples)})"


class MeasureAnswer(NamedTuple):
    """The answer that one measure prefers, and its share; both None where the measure is undefined."""

    answer: str | None
    confidence: float | None


@dataclass(frozen=True, repr=False)
class Answer:
    """What came of one question.

    Attributes
    ----------
    id, question : str
        As asked.
    text : str
        The commonest wording of the meaning that is answered.
    confidence : float or None
        Of that answer: with a calibration the probability that it is right, else its share under `measure`.
        None where the measure is undefined.
    measure : str
        What `confidence` is: a measure, or "Calibrated".
    abstained : bool or None
        Whether `confidence` lies below `threshold`, or is undefined; None without a threshold. True as well
        where the calibration was asked for a threshold and none could be shown to hold.
    threshold : float or None
    entropy : float or None
        Semantic entropy (nats) under the measure that chose the answer (with a calibration E-SC).
    meanings : tuple of Meaning
        The answer's first, then by share.
    by_measure : mapping of str to MeasureAnswer
        For each measure its own answer, and the confidence in that.
    row : mapping
        Everything else, as `semcal sample | cluster | measure` would have written it.
    bounds : tuple of two floats, optional
        Where the question was decided early: what the confidence of all `m` draws is at least, and at most.
        `confidence` is None unless they agree, and so are the entropy, shares, probabilities, and what else
        takes all draws; meanings are as far as they were told apart.
    m : int, optional
        The draws that would have been taken; `row` holds those that were.
    tied : int, optional
        How many meanings share the first place, where several do: the draws do not agree on any answer.
    score : float, optional
        With a calibration the answer's share of the draws, by which answers are ordered under a constant.
    map : str, optional
        What made the probability, such as "logistic(…)"; "none(E-SC)" is the share itself.

    Examples
    --------
    >>> import semcal
    >>> (found,) = semcal.score([{"question": "Who wrote it?", "samples": ["Ana", "Bo", "Ana"]}])
    >>> found, found.meanings[1]
    (Answer('Ana', confidence=0.667), Meaning('Bo', share=0.333, samples=1))
    """

    id: str
    question: str
    text: str
    confidence: float | None
    measure: str
    abstained: bool | None
    threshold: float | None
    entropy: float | None
    meanings: tuple[Meaning, ...]
    by_measure: Mapping[str, MeasureAnswer]
    row: Mapping[str, Any]
    bounds: tuple[float, float] | None = None
    m: int | None = None
    tied: int | None = None
    score: float | None = None
    map: str | None = None

    def __repr__(self) -> str:
        abstained = "" if self.abstained is None else f", abstained={self.abstained}"
        known = _rounded(self.confidence)
        if self.bounds is not None and self.confidence is None:
            known = " to ".join(map(_rounded, self.bounds))
        return f"Answer({self.text!r}, confidence={known}{abstained})"

    def record(self, recalibrator: AnyRecalibrator) -> dict[str, Any]:
        """The answer as `semcal ask` writes it."""
        from semcal.recalibration.temperature import solver_of, temperature_of

        early = {} if self.bounds is None else {"confidence_bounds": list(self.bounds), "m": self.m}
        return {
            "id": self.id,
            "question": self.question,
            "method": recalibrator.method,
            "temperature": temperature_of(recalibrator),
            "solver": solver_of(recalibrator),
            "answer": self.text,
            "confidence": self.confidence,
            **early,
            **({} if self.tied is None else {"tied": self.tied}),
            **({} if self.score is None else {"score": self.score, "map": self.map}),
            "measure": self.measure,
            "abstained": self.abstained,
            "threshold": self.threshold,
            "entropy": self.entropy,
            "meanings": [vars(meaning) for meaning in self.meanings],
            "by_measure": {name: one._asdict() for name, one in self.by_measure.items()},
            **{key: self.row[key] for key in ("samples", "log_likelihoods", "clusters")},
        }


def _rounded(value: float | None) -> str:
    return "None" if value is None else f"{value:.3g}"


def answer_of(
    row: Mapping[str, Any], measure: str, calibrated: CalibratedAnswer | None, threshold: float | None
) -> Answer:
    """Return the answer of a measured row under a measure, with its probability if that is known."""
    texts = [representative(row, cluster) for cluster in row["clusters"]]
    if calibrated is not None:
        texts[calibrated.meaning] = calibrated.text
    shares = row["confidences"][measure] or [None] * len(texts)
    found = [
        Meaning(
            text,
            share,
            None if calibrated is None else calibrated.probabilities[k],
            tuple(row["samples"][i] for i in row["clusters"][k]),
        )
        for k, (text, share) in enumerate(zip(texts, shares))
    ]
    top = calibrated.meaning if calibrated else row["top_cluster"][measure] or 0
    confidence = calibrated.probability if calibrated else row["confidence"][measure]
    abstained = calibrated.abstained if calibrated else None
    if threshold is not None and abstained is None:
        abstained = confidence is None or confidence < threshold
    tied = sum(share is not None and share >= max(shares) - TIE for share in shares)
    return Answer(
        id=str(row["id"]),
        question=row["question"],
        text=texts[top],
        confidence=confidence,
        measure=CALIBRATED if calibrated else measure,
        abstained=abstained,
        threshold=threshold,
        entropy=row["semantic_entropy"][measure],
        meanings=(found[top], *sorted(found[:top] + found[top + 1 :], key=lambda one: -(one.share or 0.0))),
        by_measure={
            name: MeasureAnswer(None if k is None else texts[k], row["confidence"][name])
            for name, k in row["top_cluster"].items()
        },
        row=row,
        tied=tied if tied > 1 else None,
        score=calibrated.score if calibrated else None,
        map=calibrated.map if calibrated else None,
    )
