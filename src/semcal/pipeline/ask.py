"""Answers with calibrated semantic confidence: `SemanticUQ`, and the rows of `semcal ask`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.engine.clustering import LINKAGES
from semcal.engine.drawing import Truncation
from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.engine.loading import load_equivalence
from semcal.errors import InputError, UsageError
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.executor import Progress
from semcal.pipeline.fitting import Fit
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import first_repeated
from semcal.pipeline.sample import sample_mixed
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.questions import Question
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.temperature import Base, solver_of, temperature_of
from semcal.registry import check_name
from semcal.semantics import MEASURES

__all__ = ["Answer", "AskJob", "AskedRows", "Meaning", "SemanticUQ", "representative"]


def representative(samples: Sequence[str], cluster: Sequence[int]) -> str:
    """Return the commonest wording of a cluster; of equally common ones the first."""
    return Counter(samples[i] for i in cluster).most_common(1)[0][0]


@dataclass(frozen=True)
class Meaning:
    """One meaning among the sampled answers.

    Attributes
    ----------
    text : str
        Its commonest wording.
    samples : tuple of str
        All wordings that were sampled, with repetitions.
    confidences : mapping of str to float or None
        Its share under each measure.
    """

    text: str
    samples: tuple[str, ...]
    confidences: Mapping[str, float | None]


@dataclass(frozen=True)
class Answer:
    """What came of one question.

    Attributes
    ----------
    id, question : str
        As asked.
    measure : str
        The measure that chose the answer.
    text : str
        The commonest wording of the most confident meaning under `measure`.
    confidence : mapping of str to float or None
        The largest share of a meaning, under each measure; `answer.confidence["L-SC"]`.
    entropy : mapping of str to float or None
        Semantic entropy (nats) under each measure.
    meanings : tuple of Meaning
        In order of confidence under `measure`.
    row : mapping
        Everything else, as `semcal sample | cluster | measure` would have written it.
    """

    id: str
    question: str
    measure: str
    text: str
    confidence: Mapping[str, float | None]
    entropy: Mapping[str, float | None]
    meanings: tuple[Meaning, ...]
    row: Mapping[str, Any]

    def abstains(self, below: float) -> bool:
        """Whether the confidence under `measure` lies below `below` (or is undefined)."""
        confidence = self.confidence[self.measure]
        return confidence is None or confidence < below

    def best_under(self, measure: str) -> str | None:
        """The text of the most confident meaning under another measure, which may prefer another."""
        rated = [(c, one.text) for one in self.meanings if (c := one.confidences[measure]) is not None]
        return max(rated, key=lambda pair: pair[0])[1] if rated else None

    def record(self, recalibrator: AnyRecalibrator, *, abstain_below: float | None = None) -> dict[str, Any]:
        """The answer as `semcal ask` writes it."""
        abstains = {} if abstain_below is None else {"abstains": self.abstains(abstain_below)}
        return {
            "id": self.id,
            "question": self.question,
            "method": recalibrator.method,
            "temperature": temperature_of(recalibrator),
            "solver": solver_of(recalibrator),
            "answer": self.text,
            **abstains,
            "measure": self.measure,
            "confidence": self.confidence,
            "answers": {name: self.best_under(name) for name in self.confidence},
            "semantic_entropy": self.entropy,
            "meanings": [
                {"answer": meaning.text, "samples": meaning.samples, "confidences": meaning.confidences}
                for meaning in self.meanings
            ],
            **{key: self.row[key] for key in ("samples", "log_likelihoods", "clusters")},
        }


def _answer(row: Mapping[str, Any], measure: str) -> Answer:
    names = list(row["confidences"])
    meanings = [
        Meaning(
            representative(row["samples"], cluster),
            tuple(row["samples"][i] for i in cluster),
            {name: row["confidences"][name][k] if row["confidences"][name] else None for name in names},
        )
        for k, cluster in enumerate(row["clusters"])
    ]
    meanings.sort(key=lambda meaning: -(meaning.confidences[measure] or 0.0))
    return Answer(
        id=str(row["id"]),
        question=row["question"],
        measure=measure,
        text=meanings[0].text,
        confidence=row["confidence"],
        entropy=row["semantic_entropy"],
        meanings=tuple(meanings),
        row=row,
    )


class SemanticUQ:
    """Sample, cluster, measure: a language model that says how sure it is of what it means.

    Parameters
    ----------
    model : LanguageModel
        From `semcal.load_model`, or a fake.
    recalibrator : Fit, Recalibrator or ATS, optional
        From `semcal.fit`; it brings its few-shot examples with it. The model's own distribution
        (T = 1) by default.
    equivalence : Equivalence or str
        Decides which answers mean the same: "exact", or an NLI model or its directory.
    few_shot : sequence of Question, optional
        Answered examples before every question; by default those that the recalibrator was fitted with.
    m : int
        Draws per question.
    seed : int
        Random seed.
    max_new_tokens : int, optional
        Limit of a generation: 10 without a passage and 32 with one, by default.
    truncation : Truncation, optional
        Top-k and top-p while sampling; none by default.
    linkage : {"components", "greedy"}
        How pairs become clusters.
    measure : str
        The measure that chooses the answer.
    t_alpha, g_alpha : float
        The parameter of T-SC and of G-SC.

    Attributes
    ----------
    nli_calls, pairs : int
        NLI calls so far, and all ordered pairs of answers.

    Raises
    ------
    UsageError
        If the recalibrator was fitted on another model or with another prompt.

    Examples
    --------
    >>> from semcal.engine.fakes import FakeEquivalence, FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana Velis": 0.9, "Bo Tarn": 0.1}})
    >>> answer = SemanticUQ(model, equivalence="exact").ask("Who wrote it?")
    >>> answer.text, answer.confidence["E-SC"] >= 0.5
    ('Ana Velis', True)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        recalibrator: Fit | AnyRecalibrator | None = None,
        equivalence: Equivalence | str = "exact",
        few_shot: Sequence[Question] | None = None,
        m: int = 10,
        seed: int = 0,
        max_new_tokens: int | None = None,
        truncation: Truncation | None = None,
        linkage: str = "components",
        measure: str = "E-SC",
        t_alpha: float = 0.5,
        g_alpha: float = 0.5,
    ) -> None:
        if isinstance(model, str | Path):
            raise UsageError(f"the model is the path {str(model)!r}; load it first: semcal.load_model(path)")
        fitted = recalibrator if isinstance(recalibrator, Fit) else None
        self.model = model
        self.asking = fitted.asking if few_shot is None and fitted else PromptConfig(tuple(few_shot or ()))
        if fitted:
            fitted.provenance.check(
                model=model.name, revision=model.revision, prompt_hash=self.asking.hash(model)
            )
        self.recalibrator: AnyRecalibrator = fitted.recalibrator if fitted else recalibrator or Base()  # type: ignore[assignment]
        self.equivalence = load_equivalence(equivalence) if isinstance(equivalence, str) else equivalence
        self.m = m
        self.seed = seed
        self.max_new_tokens = max_new_tokens
        self.truncation = truncation
        self.linkage = check_name(linkage, LINKAGES, what="linkage")
        self.measure = check_name(measure, MEASURES, what="measure")
        self.nli_calls = self.pairs = 0
        self.t_alpha = t_alpha
        self.g_alpha = g_alpha

    def ask(self, question: str, *, context: str | None = None) -> Answer:
        """Ask one question, with its passage if there is one.

        The random numbers are derived from the seed and the question's text: the same question gets
        the same answer again.
        """
        return self.ask_many([Question(question, question, (), context)])[0]

    def ask_many(
        self, questions: Sequence[Question], *, progress: Callable[[int], None] | None = None
    ) -> list[Answer]:
        """Ask many questions with distinct ids; open-book and closed-book questions may be mixed."""
        repeated = first_repeated([question.id for question in questions])
        if repeated is not None:
            raise InputError(f"the question id {repeated!r} occurs twice; ids must be distinct")
        sampled = sample_mixed(
            self.model,
            questions,
            recalibrator=self.recalibrator,
            asking=self.asking,
            m=self.m,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            truncation=self.truncation,
            progress=progress,
        )
        rows = [{"id": q.id, "question": q.question, **s.fields()} for q, s in zip(questions, sampled)]
        rows, calls = cluster_rows(rows, equivalence=self.equivalence, linkage=self.linkage)
        self.nli_calls += calls
        self.pairs += len(questions) * self.m * (self.m - 1)
        rows = measure_rows(rows, t_alpha=self.t_alpha, g_alpha=self.g_alpha)
        return [_answer(row, self.measure) for row in rows]


@dataclass(frozen=True)
class AskedRows:
    """Rows of answers, and how many NLI calls they took of how many ordered pairs of answers."""

    records: list[dict[str, Any]]
    nli_calls: int
    pairs: int


@dataclass(frozen=True)
class AskJob:
    """Asks questions under each of several recalibrators; the rows of a question stand together."""

    questions: tuple[Question, ...]
    recalibrators: tuple[AnyRecalibrator, ...]
    options: Mapping[str, Any]  # of SemanticUQ
    abstain_below: float | None

    def __call__(self, models: WorkerState, progress: Progress) -> AskedRows:
        """Ask."""
        uqs = [
            SemanticUQ(models.model, recalibrator=one, equivalence=models.equivalence, **self.options)
            for one in self.recalibrators
        ]
        answered = [uq.ask_many(self.questions, progress=progress) for uq in uqs]
        records = [
            answer.record(recalibrator, abstain_below=self.abstain_below)
            for answers in zip(*answered)
            for recalibrator, answer in zip(self.recalibrators, answers)
        ]
        return AskedRows(records, sum(uq.nli_calls for uq in uqs), sum(uq.pairs for uq in uqs))
