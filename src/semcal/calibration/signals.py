"""Signals: statements of a model about its answer, as features of a calibration (spec section 11).

Each signal is an entry of `SIGNALS`. Most signals ask the model once or twice more for each question. Their
values are kept in the row under `signals`, with the answer. `token-scores` reads the samples only.

For `question-probe` the row keeps a hidden state of a local model: that of the last token of the prompt,
before any answer (compare P(IK) of Kadavath et al. 2022, arXiv 2207.05221). The probe is a logistic
regression with a ridge on the principal components of the states. It is learned from the labels of a
calibration, and its probability is a feature of the answers.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats
from semcal.calibration.features import MOST_LACKING, AnsweredRow, AnswerFeatures, Feature, answered_rows
from semcal.data.question import Turn
from semcal.errors import InputError, QuestionError, SemcalWarning, UsageError, shown
from semcal.measuring import representative
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import FEW, expit, fit_slopes, fold_masks
from semcal.models.prompting import PromptConfig, common_prefix
from semcal.models.protocols import LanguageModel, Prompt, Sampler, SampleRequest, ServerSampler
from semcal.registry import Catalogue, check_name
from semcal.rows import QUESTION_PROBE, AnswerKind, Row, RowsAt
from semcal.steps import Stage, Step, WorkerState, run_stages
from semcal.store import Store
from semcal.workers import Progress, SerialExecutor

#: Largest number of meanings in one multiple-choice question, the most frequent first.
MOST_OPTIONS = 10
#: Token limit of a reply that states a probability, and its pattern.
REPLY_TOKENS = 8
STATED_NUMBER = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)\.?")
#: Number of questions whose values are stored together.
BLOCK = 64
NONE_OF_THESE = "none of these"
#: Token scores of an answer whose tokens are unknown.
UNKNOWN = (None, None)
#: Share of the layers before the hidden state of a question.
DEPTH = 2 / 3


@dataclass(frozen=True)
class Assessment:
    """An answer that a model is asked about."""

    row: Row
    turns: tuple[Turn, ...]  # the chat that asks the question, without examples
    answer: str
    others: tuple[str, ...]  # the other meanings of the samples, the most frequent first

    def prompt(self, model: Sampler, text: str) -> Prompt:
        """Return the prompt with a text after the question."""
        *before, last = self.turns
        turns = (*before, replace(last, content=f"{last.content}\n\n{text}"))
        return Prompt(self.row.id, model.encode(turns), turns)


Ask = Callable[[Sampler, Sequence[Assessment]], list[float | None]]
"""Return the value of each answer, in [0, 1]; None for a failure."""
Value: TypeAlias = "float | list[float] | None"


@dataclass(frozen=True)
class Signal:
    """A signal and its features."""

    name: str
    features: tuple[Feature, ...]
    #: Returns the values; None for values that are read from the samples.
    ask: Callable[[Sampler, Sequence[Assessment]], Sequence[Value]] | None = None
    reads_letters: bool = False  # needs log-probabilities of the first token of an answer
    reads_states: bool = False  # needs hidden states, which only local models have

    def check(self, model: Sampler) -> None:
        """Raise UsageError if the model cannot provide the signal."""
        if self.reads_states and not model.capabilities.states:
            raise UsageError(
                f"--signal {self.name}: {model.name} is a server, which provides no hidden states. Load the "
                "checkpoint with --model DIR, or use --signal verbalised"
            )
        if self.reads_letters and not model.capabilities.next_tokens:
            raise UsageError(
                f"--signal {self.name}: {model.name} does not provide log-probabilities of option letters. "
                "Use --signal verbalised, which needs none"
            )

    def is_in(self, answered: AnsweredRow) -> bool:
        """Return whether the row holds the signal (or null) for its answer."""
        if self.ask is None:
            return answered.token_scores is not None or answered.log_likelihood is None
        return self.name in answered.row.signals_of(answered.text)

    @property
    def remedy(self) -> str:
        """The command that writes the signal, for messages."""
        if self.ask:
            return "Run `semcal ask`, which computes it"
        return "Run `semcal sample`, which writes it as 'token_scores'"


#: All signals by name.
SIGNALS: Catalogue[Signal] = Catalogue("signal")


def signals_named(names: Iterable[str]) -> tuple[Signal, ...]:
    """Return the signals with these names, without repetition; UsageError for an unknown name."""
    return tuple(SIGNALS[check_name(name, SIGNALS, what="signal")] for name in dict.fromkeys(names))


def first_letters(
    model: Sampler, prompts: Sequence[Prompt], counts: Sequence[int]
) -> list[list[float] | None]:
    """Return the probability of each of the first option letters, normalized; None if unknown."""
    if not model.capabilities.states:
        listed = cast("ServerSampler", model).next_tokens(prompts)
        return [
            None if isinstance(tokens, QuestionError) else _normalized(_letters_of(tokens, count))
            for tokens, count in zip(listed, counts)
        ]
    from semcal.models.distribution import Temperature

    reader = cast("LanguageModel", model)
    answers = [
        [reader.encode_answer(prompt.chat, letter) for letter in ascii_uppercase[:count]]
        for prompt, count in zip(prompts, counts)
    ]
    long = {error.question_id for error in reader.invalid_prompts(prompts, answers)}
    fitting = [k for k, prompt in enumerate(prompts) if prompt.question_id not in long]
    probabilities: list[list[float] | None] = [None] * len(prompts)
    if not fitting:
        return probabilities
    scores = reader.score(
        [prompts[k] for k in fitting], [answers[k] for k in fitting], recalibrator=Temperature(1.0)
    )
    for k, of_letters in zip(fitting, scores):
        end = common_prefix(answers[k]) + 1  # up to the first token that differs between letters
        probabilities[k] = _normalized([math.fsum(log_probs[:end]) for log_probs in of_letters])
    return probabilities


def _letters_of(tokens: Mapping[str, float], count: int) -> list[float]:
    """Return the log-probability of each letter; −inf for a letter that is not listed."""
    log_probs = dict.fromkeys(ascii_uppercase[:count], 0.0)
    for text, log_prob in tokens.items():
        if (letter := text.strip("\u0120\u2581 \n")) in log_probs:
            log_probs[letter] += math.exp(log_prob)
    return [math.log(p) if p else -math.inf for p in log_probs.values()]


def _normalized(log_probs: Sequence[float]) -> list[float] | None:
    peak = max(log_probs)
    if peak == -math.inf:
        return None
    weights = [math.exp(log_prob - peak) for log_prob in log_probs]
    return [weight / math.fsum(weights) for weight in weights]


def _choose(
    model: Sampler,
    assessments: Sequence[Assessment],
    options_of: Callable[[Assessment], Sequence[str]],
    text: str,
) -> list[float | None]:
    """Return the probability of the first option of a multiple-choice question, the mean of two orders."""
    by_order: list[list[float | None]] = []
    for backwards in (False, True):
        options = [list(options_of(item)) for item in assessments]
        prompts = []
        for item, of_item in zip(assessments, options):
            order = of_item[::-1] if backwards else of_item
            listed = "\n".join(f"{letter}) {option}" for letter, option in zip(ascii_uppercase, order))
            others = "; ".join(item.others[: MOST_OPTIONS - 1]) or "none"
            prompts.append(item.prompt(model, text.format(answer=item.answer, others=others, options=listed)))
        letters = first_letters(model, prompts, [len(of_item) for of_item in options])
        place = -1 if backwards else 0
        by_order.append([None if p is None else p[place] for p in letters])
    return [None if a is None or b is None else (a + b) / 2 for a, b in zip(*by_order)]


def ask_self_assessment(model: Sampler, assessments: Sequence[Assessment]) -> list[float | None]:
    """Return the probability that the model chooses the answer among all meanings (arXiv 2606.03846).

    The meanings and "none of these" are options of one multiple-choice question, asked in two orders.
    """

    def options_of(item: Assessment) -> list[str]:
        return [item.answer, *item.others[: MOST_OPTIONS - 1], NONE_OF_THESE]

    text = "Which of these answers is right?\n{options}\nReply with its letter alone."
    return _choose(model, assessments, options_of, text)


def ask_p_true(model: Sampler, assessments: Sequence[Assessment]) -> list[float | None]:
    """Return the probability that the model calls the answer right (arXiv 2207.05221).

    The prompt lists the other meanings. The options yes and no are asked in both orders.
    """
    text = (
        "Proposed answer: {answer}\nOther answers that were given: {others}\n"
        "Is the proposed answer right?\n{options}\nReply with its letter alone."
    )
    return _choose(model, assessments, lambda _: ("yes", "no"), text)


def ask_verbalised(model: Sampler, assessments: Sequence[Assessment]) -> list[float | None]:
    """Return the probability that the model states as a whole number from 0 to 100 (`parse_stated`)."""
    from semcal.models.distribution import Temperature

    text = (
        "Proposed answer: {answer}\nHow likely is it that the proposed answer is right? "
        "Reply with a whole number from 0 to 100 alone."
    )
    prompts = [item.prompt(model, text.format(answer=item.answer)) for item in assessments]
    own = Temperature(1.0)
    request = SampleRequest(prompts, [own], m=1, max_new_tokens=REPLY_TOKENS)
    long = {error.question_id for error in model.invalid_prompts_for_sampling(request)}
    fitting = [prompt for prompt in prompts if prompt.question_id not in long]
    replies = model.greedy(fitting, recalibrator=own, max_new_tokens=REPLY_TOKENS) if fitting else []
    stated = {
        prompt.question_id: parse_stated(reply.text)
        for prompt, reply in zip(fitting, replies)
        if not isinstance(reply, QuestionError)
    }
    return [stated.get(prompt.question_id) for prompt in prompts]


def parse_stated(text: str) -> float | None:
    """Return the probability that a text states; None unless the text is one number from 0 to 100.

    The number is in percent, as the prompt asks: "1" is 0.01. Exception: a number of at most 1 with a decimal
    point and without a percent sign is a probability, since the prompt asks for a whole number.

    >>> [parse_stated(text) for text in (" 85%.", "0.85", "0.85%", "1", "1.0", "85 or so", "120")]
    [0.85, 0.85, 0.0085, 0.01, 1.0, None, None]
    """
    stated = STATED_NUMBER.fullmatch(text.strip())
    if stated is None or (number := float(stated[1])) > 100:
        return None
    return number if "." in stated[1] and not stated[2] and number <= 1 else number / 100


def read_states(model: Sampler, assessments: Sequence[Assessment]) -> list[list[float] | None]:
    """Return the hidden state of each question; None if the prompt is too long."""
    reader = cast("LanguageModel", model)
    prompts = [Prompt(item.row.id, model.encode(item.turns), item.turns) for item in assessments]
    long = {error.question_id for error in reader.invalid_prompts(prompts, [[()]] * len(prompts))}
    fitting = [prompt for prompt in prompts if prompt.question_id not in long]
    states = dict(zip((prompt.question_id for prompt in fitting), reader.prompt_states(fitting, DEPTH)))
    return [states.get(prompt.question_id) for prompt in prompts]


def register_signal(name: str, ask: Ask, *, reads_letters: bool = False) -> None:
    """Register a signal of one feature: the value, in [0, 1], that `ask` returns for each answer.

    `reads_letters` says that it needs log-probabilities of the first token of a reply. UsageError if the name
    is taken.
    """

    def read(answered: AnsweredRow) -> float | None:
        return cast("float | None", answered.row.signals_of(answered.text).get(name))

    SIGNALS.register(Signal(name, (Feature(name, read, is_share=True),), ask, reads_letters))


register_signal("self-assessment", ask_self_assessment, reads_letters=True)
register_signal("p-true", ask_p_true, reads_letters=True)
register_signal("verbalised", ask_verbalised)
#: The calibration computes the value from the state, with its `QuestionProbe`.
SIGNALS.register(
    Signal(
        QUESTION_PROBE,
        (Feature(QUESTION_PROBE, lambda _: None, is_share=True),),
        read_states,
        reads_states=True,
    )
)
SIGNALS.register(
    Signal(
        "token-scores",
        (
            Feature("smallest-token", lambda it: (it.token_scores or UNKNOWN)[0], is_share=True),
            Feature("mean-token", lambda it: (it.token_scores or UNKNOWN)[1], is_share=True),
        ),
    )
)


@dataclass(frozen=True)
class SignalStep(Step):
    """Ask a model about the `answer` of each row and its `others`, and add the values as `signals`."""

    name: ClassVar[str] = "signals"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    signals: tuple[str, ...]
    prompt: PromptConfig

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Return the rows with their signals."""
        prompt = replace(self.prompt, few_shot=())
        assessments = [
            Assessment(row, prompt.chat(row.to_question()), row["answer"], tuple(row["others"]))
            for row in rows
        ]
        columns = {
            signal.name: signal.ask(models.model, assessments)
            for signal in signals_named(self.signals)
            if signal.ask is not None
        }
        progress(len(rows))
        return [
            row.set(signals=dict(zip(columns, values))) for row, values in zip(rows, zip(*columns.values()))
        ]


def add_signals(
    rows: RowsAt,
    names: Sequence[str],
    model: Sampler,
    prompt: PromptConfig,
    kind: AnswerKind = "modal",
    *,
    temperatures: Sequence[float | None] | None = None,
    keep: Store | None = None,
    progress: Progress | None = None,
) -> RowsAt:
    """Ask a model about the answers of measured rows, and return the rows with the signals.

    The answers are those at each of some `temperatures`, by default the first. Finished blocks are stored in
    `keep`. `progress` receives the number of questions whose first answer is done. A value is None if a
    server failed, a prompt was too long or a reply was unreadable; a warning counts these. UsageError if the
    model cannot provide a signal.
    """
    asked = [signal for signal in signals_named(names) if signal.ask is not None]
    for signal in asked:
        signal.check(model)
    if not asked:
        return rows
    step = SignalStep(tuple(signal.name for signal in asked), prompt)
    stage = Stage((step,), {"model": model.revision, "prompt": prompt.hash(model)} if keep else {})
    values: dict[tuple[str, str], Mapping[str, Value]] = {}
    added = dict(rows)
    for t in [next(iter(rows))] if temperatures is None else temperatures:
        answered = answered_rows({t: rows[t], **rows}, kind)
        with_answer = [item for item in answered if item.text is not None]
        pending = [_to_assess(item) for item in with_answer if (item.row.id, item.text) not in values]
        for block in run_stages(
            stage.blocks(pending, BLOCK),
            workers=SerialExecutor(WorkerState(model)),
            store=keep,
            progress=progress if progress and not values else lambda _: None,
        ):
            values |= {(row.id, row["answer"]): row["signals"] for row in block.rows}
        added[t] = [
            item.row if item.text is None else item.row.add_signals(item.text, values[item.row.id, item.text])
            for item in answered
        ]
    for name in step.signals:
        if lacking := sum(of_answer[name] is None for of_answer in values.values()):
            text = f"{lacking} of {len(values)} answers have no {name!r}, since no reply could be read"
            warnings.warn(text, SemcalWarning, stacklevel=3)
    return added


def _to_assess(answered: AnsweredRow) -> Row:
    """Return a row of the question, its answer and the other meanings."""
    row = answered.row
    others = [cluster for number, cluster in enumerate(row.clusters) if number != answered.meaning]
    texts = [
        representative(row.samples, cluster, row.log_likelihoods)
        for cluster in sorted(filter(row.has_answer, others), key=len, reverse=True)
    ]
    question = {name: row[name] for name in ("id", "question", "context", "messages") if row.has(name)}
    return Row({**question, "answer": answered.text, "others": texts}, row.line)


def check_signals(names: Sequence[str], answered: Sequence[AnsweredRow]) -> None:
    """Raise InputError for a row that lacks a signal for its answer."""
    for signal in signals_named(names):
        for item in answered:
            if item.text is not None and not signal.is_in(item):
                raise InputError(
                    f"question {item.row.id!r} has no signal {signal.name!r} for its answer "
                    f"{shown(item.text)}, which the calibration reads. {signal.remedy}"
                )


def check_any_signals(names: Sequence[str], answered: Sequence[AnsweredRow]) -> None:
    """Raise UsageError for a signal that no row holds for its answer."""
    for signal in signals_named(names):
        if not any(signal.is_in(item) for item in answered):
            remedy = "Calibrate with --model" if signal.ask else signal.remedy
            raise UsageError(f"signals: no row holds {signal.name!r} for its answer. {remedy}")


def free_signals(names: Sequence[str], answered: Sequence[Sequence[AnsweredRow]]) -> tuple[str, ...]:
    """Return the names of further signals that all answers at each temperature already hold.

    They need no call of the model, so each calibration considers them as features.
    """
    return tuple(
        signal.name
        for signal in SIGNALS.values()
        if signal.ask is None
        and signal.name not in names
        and all(
            all(map(signal.is_in, answers))
            and sum(item.token_scores is not None for item in answers) >= (1 - MOST_LACKING) * len(answers)
            for answers in answered
        )
    )


def asks_a_model(names: Sequence[str]) -> bool:
    """Return whether some signals ask the model."""
    return any(signal.ask is not None for signal in signals_named(names))


def signals_read(names: Sequence[str], features: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the signals that some features belong to."""
    read = set(features)
    return tuple(one.name for one in signals_named(names) if read & {part.name for part in one.features})


# ---- The probe of questions --------------------------------------------------------------------------------

#: Number of principal components for up to `FEW_LABELS` labels, and for more.
COMPONENTS, FEW_LABELS, MOST_COMPONENTS = 32, 200, 128
#: Weight of half the squared norm of the slopes, for scores of variance 1: the log odds deviate by about 1.
RIDGE = 1.0


@dataclass(frozen=True)
class QuestionProbe:
    """A linear function of a state: the log odds of a correct answer."""

    weights: tuple[float, ...]
    intercept: float

    @classmethod
    def fit(cls, states: Floats, correct: Floats) -> QuestionProbe:
        """Fit the probe to states (N, d) and outcomes (N,)."""
        center, scale = states.mean(0), states.std(0)
        standard = (states - center) / np.where(scale > 0, scale, np.inf)  # a constant has no say
        _, lengths, directions = np.linalg.svd(standard, full_matrices=False)
        directions = directions[: COMPONENTS if len(states) <= FEW_LABELS else MOST_COMPONENTS]
        size = np.sqrt((lengths**2).sum() / len(states)) or 1.0
        scores, free = standard @ directions.T / size, np.zeros(len(directions))
        slopes, intercept = fit_slopes(scores, correct, free, RIDGE)
        weights = slopes @ directions / size / np.where(scale > 0, scale, np.inf)
        return cls(tuple(weights.tolist()), float(intercept - weights @ center))

    def predict(self, states: Floats) -> Floats:
        """Return the probabilities (N,) of correct answers from states (N, d); NaN for an unknown state."""
        return expit(states @ np.array(self.weights) + self.intercept)

    def add_to(self, features: AnswerFeatures, answered: Sequence[AnsweredRow]) -> AnswerFeatures:
        """Return the features with the probability of each answer."""
        p = self.predict(_states_of(answered, len(self.weights)))
        return replace(features, values={**features.values, QUESTION_PROBE: p})


def learn_probe(
    features: AnswerFeatures,
    answered: Sequence[AnsweredRow],
    correct: Floats,
    fitted: NDArray[np.bool_],
    groups: Groups | None,
    seed: int,
) -> tuple[QuestionProbe | None, AnswerFeatures]:
    """Learn a probe from the fitted answers of N, and return it with the features of all answers.

    The probability of a fitted answer is out of fold, since a map learns from it. With fewer than 5 known
    states there is no probe, and the feature stays unknown.
    """
    states = _states_of(answered)
    known = np.flatnonzero(fitted & ~np.isnan(states).any(1))
    if len(known) < FEW:
        return None, features
    of_known, right = states[known], correct[known]
    probe = QuestionProbe.fit(of_known, right)
    p = probe.predict(states)
    for rest, fold in fold_masks(right, None if groups is None else groups[known], seed):
        p[known[fold]] = QuestionProbe.fit(of_known[rest], right[rest]).predict(of_known[fold])
    return probe, replace(features, values={**features.values, QUESTION_PROBE: p})


def _states_of(answered: Sequence[AnsweredRow], width: int | None = None) -> Floats:
    """Return the states (N, d) of questions, NaN if unknown; InputError if one has another width."""
    found = [item.row.signals_of(item.text).get(QUESTION_PROBE) for item in answered]
    width = width or next((len(state) for state in found if state is not None), 1)
    for item, state in zip(answered, found):
        if state is not None and len(state) != width:
            raise InputError(
                f"question {item.row.id!r}: the state of {QUESTION_PROBE!r} has {len(state)} numbers, and "
                f"{width} are expected. Use the model of the calibration"
            )
    return np.array([[np.nan] * width if state is None else state for state in found], float)
