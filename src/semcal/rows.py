"""Rows: a question and its samples, clusters, measures, decision and grades (design.md, file contracts).

Each part of a row has a step that adds it:

- `Draws`, `Tokens`: m answers of a model (`models.sampling.SampleStep`);
- `Clusters`: the samples grouped by meaning (`models.clustering.ClusterStep`);
- `Measures`: the share of each meaning, weighted by likelihoods in seven ways (`measuring.MeasureStep`);
- `Decision`: the answer, the probability that it is right, and whether the answer is given
  (`calibration.compatibility.CalibrationStep`);
- `Grades`: correctness by reference answers (`grading.grade.GradeStep`).

This module alone knows the keys of the files. A row keeps the JSON object that it was read from. Each part is
read from the object on first use and checked once; an InputError names the key, the value and the remedy.
`add` returns a row with further parts; all other keys stay as they are.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

from semcal.data.question import Question, Ties, Turn, group_of, reference_text, ties_of, turns_of
from semcal.errors import InputError, QuestionError, RowError, SemcalWarning, shown
from semcal.files import Json as Json
from semcal.files import JsonObject, parse_float
from semcal.measures.formulas import ABOVE_ZERO
from semcal.registry import check_name

AnswerKind: TypeAlias = Literal["modal", "greedy", "given"]
"""The answer is the most frequent meaning of the samples, the model's at T = 0, or the row's own."""

ANSWER_KINDS: tuple[AnswerKind, ...] = ("modal", "greedy", "given")
#: The keys of a stated answer: its text, its log-likelihood, the cluster of equal meaning, its token scores.
STATED = {
    "greedy": ("greedy", "greedy_log_likelihood", "greedy_cluster", "greedy_token_scores"),
    "given": ("answer", "answer_log_likelihood", "answer_cluster", "answer_token_scores"),
}
#: Verdicts in the cells of a table.
VERDICTS = {
    **dict.fromkeys(("true", "1", "1.0"), True),
    **dict.fromkeys(("false", "0", "0.0"), False),
    "": None,
}
#: Key of the signals of answers: a list of {answer, signal: number, hidden state or null}.
SIGNALS_KEY = "signals"
#: Name of the signal that is a hidden state, a list of numbers.
QUESTION_PROBE = "question-probe"
#: Key of a row without answers: the reason why a server gave none.
FAILED = "semcal_error"
#: Files beside a calibration: its recalibrator, if any, and its samples.
RECALIBRATOR, SAMPLES = "recalibrator", "samples.jsonl"
#: Name of the measure that lists `probability` and `answer_correct` of a row.
CALIBRATED = "Calibrated"
#: The fields of a row with one entry per sample.
PER_SAMPLE = (
    *("samples", "log_likelihoods", "normal_forms", "likelihood", "finished", "token_scores", "token_counts"),
    *("generations", "token_ids", "token_log_probs", "token_texts", "refusals", "prompt_variants"),
)
#: Text for a sample or a question without an answer.
NO_ANSWER = "no answer"
#: Keys of samples that sampling does not replace.
OF_DRAWS = (
    *("temperatures", "clusters", "normal_forms", SIGNALS_KEY, "token_scores", "token_counts"),
    *("answer_format", "refusals", "prompt_variants", *STATED["greedy"], *STATED["given"][2:]),
)

TokenScores: TypeAlias = list[float]
"""The smallest and the mean probability of the tokens of an answer, including its end of turn."""


@dataclass(frozen=True)
class Draws:
    """The m samples of a question, and the sampling settings."""

    samples: Sequence[str | None]  # the answers; None if the generation has no answer
    #: Length-normalized (nats a token); None if unknown, or without an answer.
    log_likelihoods: Sequence[float | None] | None
    likelihood: Sequence[str | None] | None  # "sampled" or "rescored"
    finished: Sequence[bool | None] = ()  # true if the sample ended before the token limit; None if unknown
    temperatures: Sequence[float | None] | None = None  # None if all were sampled with one recalibrator
    token_scores: Sequence[TokenScores | None] | None = None
    answer_format: str | None = None  # name of the answer format
    refusals: Sequence[str | None] | None = None  # texts of a server in place of an answer
    prompt_variants: Sequence[int] | None = None  # variant of the prompt of each; None without variants


@dataclass(frozen=True)
class StatedAnswer:
    """An answer that does not come from the samples: another program's, or the model's at T = 0."""

    text: str | None  # None if the model's reply at T = 0 has no answer
    log_likelihood: float | None = None  # of the model, length-normalized (nats a token)
    cluster: int | None = None  # cluster of equal meaning, if any
    token_scores: TokenScores | None = None


@dataclass(frozen=True)
class Tokens:
    """The generations of the samples with their tokens; None if a server does not return them."""

    prompt_token_ids: Sequence[int] | None
    generations: Sequence[str]
    token_ids: Sequence[Sequence[int]] | None
    token_log_probs: Sequence[Sequence[float] | None] | None
    truncated_to: str | None = None  # accepted truncation of the distribution by a server
    token_texts: Sequence[Sequence[str] | None] | None = None  # of structured answers


@dataclass(frozen=True)
class Clusters:
    """Samples grouped by meaning: lists of sample indices with each of 0 … m − 1 once."""

    normal_forms: Sequence[str]  # "" for a sample without an answer
    clusters: Sequence[Sequence[int]]
    clustered_by: Json | None = None  # name and revision of the equivalence, and the linkage


@dataclass(frozen=True)
class Measures:
    """Confidences and entropies by measure; None if a measure is undefined."""

    confidences: Mapping[str, Sequence[float | None] | None]  # of each cluster
    confidence: Mapping[str, float | None]  # of the top cluster
    top_cluster: Mapping[str, int | None]
    semantic_entropy: Mapping[str, float | None]  # nats
    tied: int | None = None  # meanings that share the first place of E-SC, if more than one


@dataclass(frozen=True)
class Decision:
    """The answer, the probability that it is right, and the decision to give it."""

    answer: str | None  # None if the most frequent meaning is "no answer"
    probability: float | None
    score: float | None  # share of samples
    threshold: float | None  # if there are several thresholds, that of the largest risk
    abstained: bool | None  # None without a threshold
    decision: str | None = None  # "answer", "review" or "abstain", if there are several thresholds
    thresholds: Sequence[Json] | None = None  # {risk, delta, threshold, n} of each, the strictest first
    risk: float | None = None  # promised risk of a single threshold
    calibration: str | None = None  # id of the calibration
    reason: str | None = None  # reason for a missing answer


@dataclass(frozen=True, kw_only=True)
class Grades:
    """Correctness of answers and the rules that decided, by measure or for a prediction."""

    answer_correct: bool | None = None  # for the answer of a `Decision`
    correct: bool | Mapping[str, bool | None]  # for a prediction, or by measure
    rule: str | Mapping[str, str | None] | None = None
    cluster_correct: Sequence[bool] | None = None  # for each cluster

    def of_measure(self, measure: str) -> bool | None:
        """Return the correctness of a measure's answer, None if the measure is undefined."""
        return self.correct.get(measure) if isinstance(self.correct, Mapping) else self.correct


RowPart: TypeAlias = Draws | Tokens | Clusters | Measures | Decision | Grades
#: Fields of parts that a row leaves out if they are None: those that are None by default.
_LEFT_OUT = {item.name for part in get_args(RowPart) for item in fields(part) if item.default is None}


@dataclass(frozen=True)
class SampledBy:
    """The known sampling settings of a row: the key `sampled_by`."""

    model: str | None = None
    revision: str | None = None
    prompt_hash: str | None = None
    temperature: float | None = None
    recalibrator: str | None = None  # fingerprint of a recalibrator without a single temperature
    command: str | None = None
    m: int | None = None
    seed: int | None = None
    max_new_tokens: int | None = None

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("command", "model", "revision", "prompt_hash", "recalibrator"), (str,)),
        **dict.fromkeys(("m", "seed", "max_new_tokens"), (int,)),
        "temperature": (int, float),
    }

    def to_json(self) -> dict[str, str | float]:
        """Return the known settings as an object of a file."""
        return {key: value for key, value in vars(self).items() if value is not None}


def _required(json: Json, key: str, made_by: str) -> Any:
    if key not in json:
        raise InputError(f"no {key!r}; {made_by}")
    return json[key]


def _invalid(key: str, expected: str, value: Any) -> InputError:
    return InputError(f"{key!r} must be {expected}, got {shown(value)}")


@dataclass(frozen=True, eq=False)
class Row(Mapping[str, Any]):
    """A question with its parts; as a mapping, the object of a file.

    Examples
    --------
    >>> row = Row({"id": 7, "question": "Who?", "samples": ["Ana", "Bo"], "note": "kept"})
    >>> row.id, row.samples, row.log_likelihoods
    ('7', ['Ana', 'Bo'], None)
    >>> row.add(Clusters(["ana", "bo"], [[0], [1]])).to_json()
    {'id': 7, ..., 'note': 'kept', 'normal_forms': ['ana', 'bo'], 'clusters': [[0], [1]]}
    """

    json: Json
    line: int | None = field(default=None, compare=False)  # in its file, from 1

    def to_json(self) -> JsonObject:
        """Return the row as an object of a file: the original keys, then the added ones."""
        return dict(self.json)

    def add(self, *parts: RowPart) -> Row:
        """Return the row with these parts, which replace parts of the same kind."""
        json = dict(self.json)
        for part in parts:
            keys = [item.name for item in fields(part)]
            replaces = any(key in json for key in keys if key not in _LEFT_OUT)
            for key in keys:
                value = getattr(part, key)
                if value is not None or key not in _LEFT_OUT:
                    json[key] = value
                elif replaces:
                    json.pop(key, None)
        return Row(json, self.line)

    def set(self, **values: Any) -> Row:
        """Return the row with other keys."""
        return Row({**self.json, **values}, self.line)

    def without(self, *keys: str) -> Row:
        """Return the row without some keys."""
        return Row({key: value for key, value in self.json.items() if key not in keys}, self.line)

    def has(self, *keys: str) -> bool:
        """Return whether the row has all of these keys."""
        return all(map(self.json.__contains__, keys))

    def error(self, reason: str) -> RowError | QuestionError:
        """Return the error for an unusable row, with its id and its line if known."""
        value = self.json.get("id")
        name = value if isinstance(value, (str, int)) and not isinstance(value, bool) else None
        return QuestionError(str(name), reason) if self.line is None else RowError(self.line, reason, name)

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    @property
    def id(self) -> str:
        """The row's id as text."""
        value = _required(self.json, "id", "every row needs an id of its own")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise _invalid("id", "a string or a whole number", value)
        return str(value)

    @property
    def question(self) -> str:
        """The row's question, which may be empty if there are messages."""
        if self.json.get("question") in (None, "") and self.messages:
            return ""
        value = _required(self.json, "question", "every row needs its question")
        if not isinstance(value, str) or not value.strip():
            raise _invalid("question", "a non-empty text", value)
        return value

    @cached_property
    def messages(self) -> tuple[Turn, ...]:
        """The row's chat, if it has one."""
        return turns_of(self.json.get("messages"))

    @classmethod
    def of(cls, question: Question) -> Row:
        """Return the row of a question."""
        return cls(question.row(), question.line)

    def to_question(self) -> Question:
        """Return the question of the row."""
        extra = self.without("id", "question", "context", "messages").json
        extra = {name: value for name, value in extra.items() if name != "answers" or not self.is_labelled}
        answers = tuple(self.answers) if self.is_labelled else ()
        return Question(
            self.id, self.question, answers, self.context, extra, self.line, messages=self.messages
        )

    @property
    def question_or_empty(self) -> str:
        """The question, or "" if it is missing."""
        return str(self.json.get("question") or "")

    @property
    def title(self) -> str:
        """The text to display for the row: its question, or its last message."""
        turns = self.messages[-1:] if "messages" in self.json else ()
        return self.question_or_empty or "".join(turn.content for turn in turns)

    @property
    def context(self) -> str | None:
        """The row's passage, if it has one."""
        value = self.json.get("context")
        if value is None or isinstance(value, str):
            return value
        raise _invalid("context", "the passage as a text, or null", value)

    @property
    def group(self) -> str | float | None:
        """The value of the row's field `group`, if any."""
        return group_of(self.json)

    @property
    def ties(self) -> Ties:
        """The values that tie the row to others of its passage and group."""
        return ties_of(self.json)

    @cached_property
    def answers(self) -> list[str]:
        """The reference answers, at least one."""
        value = self.json.get("answers")
        if isinstance(value, str | int | float):
            return [reference_text(value)]
        made_by = "give the reference answers, or name their column: --columns answers=NAME"
        answers = _required(self.json, "answers", made_by)
        if not answers or not isinstance(answers, list):
            expected = "a list of at least one reference answer (a document needs --schema)"
            raise _invalid("answers", expected, answers)
        return [reference_text(answer) for answer in answers]

    @property
    def is_labelled(self) -> bool:
        """True if there are reference answers; the reference of a structured answer is an object."""
        answers = self.json.get("answers")
        return bool(answers) and not isinstance(answers, Mapping)

    # ---- Draws

    @cached_property
    def samples(self) -> list[str | None]:
        """The sampled answers, at least one; None stands for a sample without an answer."""
        made_by = "it holds the sampled answers, as `semcal sample` writes them"
        value = _required(self.json, "samples", made_by)
        is_list = isinstance(value, list) and len(value) > 0
        if not is_list or not all(item is None or isinstance(item, str) for item in value):
            raise _invalid("samples", "a list of strings, or null for no answer (at least one)", value)
        texts: list[str | None] = value
        return texts

    @property
    def texts(self) -> list[str]:
        """The sampled answers, without samples that have no answer."""
        return [text for text in self.samples if text is not None]

    def has_answer(self, cluster: Sequence[int]) -> bool:
        """Return whether a cluster holds answers; False for the cluster of samples without an answer."""
        return self.json.get("samples") is None or self.samples[cluster[0]] is not None

    @property
    def m(self) -> int:
        """The number of samples, from the samples or the clusters."""
        if self.json.get("samples") is not None:
            return len(self.samples)
        return sum(map(len, self.clusters))

    @property
    def draws(self) -> Draws | None:
        """The samples, None if there are none."""
        if "samples" not in self.json:
            return None
        names = ("log_likelihoods", "temperatures", "token_scores")
        checked = {name: getattr(self, name) for name in names} | {"finished": self._finished}
        stored = {item.name: self.json.get(item.name) for item in fields(Draws)}
        return Draws(**{**stored, **checked, "samples": self.samples})

    @property
    def answer_format(self) -> str:
        """The name of the samples' answer format, "whole" by default."""
        value = self.json.get("answer_format", "whole")
        if not isinstance(value, str):
            raise _invalid("answer_format", "the name of an answer format", value)
        return value

    @cached_property
    def log_likelihoods(self) -> list[float] | None:
        """The length-normalized log-likelihoods of the samples, or None if one of them is unknown.

        For a sample without an answer, the value is null in the file and −inf here.
        """
        value = self._numbers("log_likelihoods", m := self.m)
        if value is None:
            return None
        without = [text is None for text in self.json.get("samples") or [""] * m]
        read = [-math.inf if none else _log_likelihood(number) for none, number in zip(without, value)]
        numbers = [number for number in read if number is not None]
        if m and numbers == [-math.inf] * m and not all(without):
            raise InputError("'log_likelihoods' are all -inf: one sample must have a likelihood above 0")
        return numbers if len(numbers) == m else None

    @property
    def finished(self) -> list[bool]:
        """True for each sample that ended before the token limit, or if that is unknown."""
        return [value is not False for value in self._finished]

    @property
    def _finished(self) -> list[bool | None]:
        m = len(self.samples)
        value = self.json.get("finished", [True] * m)
        if not isinstance(value, list) or len(value) != m or {*map(type, value)} - {bool, type(None)}:
            raise _invalid("finished", f"true, false or null for each of {m} samples", value)
        return value

    @cached_property
    def token_scores(self) -> list[TokenScores | None] | None:
        """The token scores of each sample (None without an answer), or None if the row has none."""
        if (value := self._numbers("token_scores", self.m)) is None:
            return None
        return [
            None if item is text is None else _token_scores(item, "token_scores")
            for item, text in zip(value, self.samples)
        ]

    @cached_property
    def token_counts(self) -> list[int | None] | None:
        """The number of tokens of each sample (None if unknown), or None if the row has none."""
        for value in (counts := self._numbers("token_counts", self.m)) or ():
            if value is not None and (type(value) is not int or value < 1):
                raise _invalid("token_counts", "whole numbers from 1 on", value)
        return counts

    @property
    def scored_tokens(self) -> list[tuple[list[str], list[float]] | None]:
        """The texts of the tokens of each sample and their log-probabilities; None if unknown.

        The texts of a sample together are its generation.
        """
        m = len(self.samples)
        texts, scores = (self._numbers(key, m) for key in ("token_texts", "token_log_probs"))
        found: list[tuple[list[str], list[float]] | None] = []
        for pieces, values in zip(texts or [None] * m, scores or [None] * m):
            if pieces is None or values is None:
                found.append(None)
                continue
            lists = isinstance(pieces, list) and isinstance(values, list) and len(pieces) == len(values)
            if not (lists and all(isinstance(piece, str) for piece in pieces)):
                raise _invalid("token_texts", "a text for each of 'token_log_probs', or left out", pieces)
            known = [
                number
                for value in values
                if (number := _log_likelihood(value, "token_log_probs")) is not None
            ]
            found.append((pieces, known) if len(known) == len(values) else None)
        return found

    @cached_property
    def temperatures(self) -> list[float | None] | None:
        """The temperature of each sample, or None if the row has none.

        The temperature of a sample is None if it was sampled with the recalibrator in `sampled_by`.
        """
        if self.json.get("temperatures") is None:
            return None
        value = self._numbers("temperatures", len(self.samples))
        free = self.sampled_by.recalibrator is not None
        return [None if item is None and free else _temperature(item) for item in value or ()]

    def _numbers(self, key: str, m: int) -> list[Any] | None:
        """Return a list with an item for each of m samples, None if missing."""
        value = self.json.get(key)
        if value is not None and (not isinstance(value, list) or len(value) != m):
            raise InputError(f"{key!r} must hold {m} numbers, one a sample, got {shown(value)}")
        return value

    @cached_property
    def sampled_by(self) -> SampledBy:
        """The sampling settings of the row, empty if unknown."""
        value = self.json.get("sampled_by") or {}
        if not isinstance(value, Mapping):
            raise _invalid("sampled_by", "an object, as `semcal sample` writes it", value)
        for key, kinds in SampledBy.KINDS.items():
            if key in value and type(value[key]) not in kinds:
                kind = "a text" if str in kinds else "a number"
                raise InputError(f"{key!r} in 'sampled_by' must be {kind}, got {shown(value[key])}")
        return SampledBy(**{key: value[key] for key in SampledBy.KINDS if key in value})

    @property
    def failure(self) -> QuestionError | None:
        """The reason why a server gave no answers, if it gave none."""
        return QuestionError(str(self.json["id"]), self.json[FAILED]) if FAILED in self.json else None

    def take(self, chosen: Sequence[int]) -> Row:
        """Return the row with some of its samples, and their clusters, without `temperatures`.

        The cluster of a stated answer is left out, as it may be gone or have another number.
        """
        place = {sample: number for number, sample in enumerate(chosen)}
        m = len(self.samples)
        json = self.without("temperatures", *(keys[2] for keys in STATED.values())).to_json()
        json |= {
            key: [self.json[key][i] for i in chosen]
            for key in PER_SAMPLE
            if isinstance(self.json.get(key), list) and len(self.json[key]) == m
        }
        if "clusters" in self.json:
            clusters = [[place[i] for i in cluster if i in place] for cluster in self.json["clusters"]]
            json["clusters"] = sorted(cluster for cluster in clusters if cluster)
        return Row(json, self.line)

    # ---- Stated answers

    def stated_answer(self, kind: AnswerKind) -> StatedAnswer:
        """Return the answer "given" or "greedy"; InputError if it is missing or not a text.

        A greedy answer may be null (no answer).
        """
        key, likelihood, cluster, scores = STATED[kind]
        source = "of `semcal sample --answer greedy`" if kind == "greedy" else "to check"
        text = _required(self.json, key, f"it is the answer {source}")
        if not isinstance(text, str) and not (kind == "greedy" and text is None):
            raise _invalid(key, f"a text, the answer {source}", text)
        value = _number(self.json.get(likelihood), likelihood)
        if value is not None and not value <= ABOVE_ZERO:
            raise InputError(f"{likelihood!r} must be the logarithm of a probability (≤ 0), got {value:g}")
        number = self.json.get(cluster)
        if number is not None and not (type(number) is int and 0 <= number < len(self.clusters)):
            raise _invalid(cluster, "the number of a cluster, or null", number)
        scored = self.json.get(scores)
        return StatedAnswer(text, value, number, None if scored is None else _token_scores(scored, scores))

    def set_stated(self, kind: AnswerKind, answer: StatedAnswer) -> Row:
        """Return the row with a stated answer."""
        key, likelihood, cluster, scores = STATED[kind]
        row = self.set(**{key: answer.text, likelihood: answer.log_likelihood, cluster: answer.cluster})
        return row if answer.token_scores is None else row.set(**{scores: answer.token_scores})

    def signals_of(self, answer: str | None) -> Json:
        """Return the signals of an answer by name; None if a signal failed."""
        value = self.json.get(SIGNALS_KEY) or []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise _invalid(SIGNALS_KEY, "a list of objects, as `semcal calibrate` writes them", value)
        for name, said in (one for item in value for one in item.items() if one[0] != "answer"):
            is_number = isinstance(said, int | float) and not isinstance(said, bool)
            is_valid, kind = is_number and 0 <= said <= 1, "a number from 0 to 1"
            if name == QUESTION_PROBE:
                is_valid, kind = _is_state(said), "a list of numbers"
            if said is not None and not is_valid:
                raise _invalid(name, f"a signal: {kind}, or null", said)
        of_answer = [item for item in value if item.get("answer") == answer]
        return {name: item[name] for item in of_answer for name in item if name != "answer"}

    def add_signals(self, answer: str, values: Json) -> Row:
        """Return the row with further signals of an answer."""
        others = [item for item in self.json.get(SIGNALS_KEY) or [] if item.get("answer") != answer]
        return self.set(**{SIGNALS_KEY: [*others, {"answer": answer, **self.signals_of(answer), **values}]})

    def has_label(self, kind: AnswerKind) -> bool:
        """Return whether the row has references, or a verdict on its given answer."""
        return self.is_labelled or (kind == "given" and self.verdict is not None)

    @property
    def verdict(self) -> bool | None:
        """The verdict of people on the row's own answer, if any."""
        value = self.json.get("correct")
        word = VERDICTS.get(value.strip().lower(), value) if isinstance(value, str) else value
        if word is None or isinstance(word, Mapping):
            return None
        if word in (0, 1):
            return bool(word)
        raise _invalid("correct", "true or false, the verdict on 'answer'", value)

    # ---- Meanings and measures

    @cached_property
    def clusters(self) -> list[list[int]]:
        """The clusters: lists of sample indices with each of 0 … m − 1 once."""
        value = _required(self.json, "clusters", "run `semcal cluster` first")
        is_nested = isinstance(value, list) and all(
            isinstance(cluster, list) and cluster for cluster in value
        )
        members = [member for cluster in value for member in cluster] if is_nested else []
        m = len(members) if self.json.get("samples") is None else len(self.samples)
        whole = all(type(member) is int for member in members)
        if not members or not whole or sorted(members) != list(range(m)):
            expected = f"non-empty lists that hold each sample index from 0 to {m - 1} once"
            raise _invalid("clusters", expected, value)
        samples = self.json.get("samples") or [""] * m
        if mixed := [c for c in value if len({samples[i] is None for i in c}) > 1]:
            raise InputError(
                f"the cluster {shown(mixed[0])} holds samples with an answer and samples without one (null); "
                "run `semcal cluster` again"
            )
        clusters: list[list[int]] = value
        return clusters

    @property
    def measured(self) -> Measures:
        """The measures of `semcal measure`; InputError if there are none."""
        keys = ("confidences", "confidence", "top_cluster", "semantic_entropy")
        confidences, confidence, top, entropy = (self.json.get(key, {}) for key in keys)
        if not any(isinstance(value, Mapping) and value for value in (confidences, confidence, top)):
            name = f"question {self.id!r}"
            raise InputError(f"{name} has no 'confidence' by measure; run `semcal measure` first")
        return Measures(confidences, confidence, top, entropy, self.json.get("tied"))

    @property
    def top_clusters(self) -> dict[str, int | None]:
        """The index of the most confident cluster by measure (None if undefined)."""
        made_by = "run `semcal measure` first, or give a 'prediction'"
        made_by += ", such as with --columns prediction=answer" if "answer" in self.json else ""
        value = _required(self.json, "top_cluster", made_by)
        if not isinstance(value, dict):
            raise _invalid("top_cluster", "an object of measures and cluster numbers", value)
        for index in value.values():
            if index is not None and not (type(index) is int and 0 <= index < len(self.clusters)):
                raise _invalid("top_cluster", f"a number in 0 … {len(self.clusters) - 1}", index)
        return dict(value)

    # ---- Decisions and grades

    @property
    def decision(self) -> Decision | None:
        """The answer with its probability, None if there is none."""
        if not self.has("answer", "probability"):
            return None
        answer, p = self.json["answer"], self.json["probability"]
        if not isinstance(answer, str) and not answer is p is None:
            raise _invalid("answer", "a text beside 'probability'", answer)
        return Decision(*(self.json.get(item.name) for item in fields(Decision)))

    @property
    def predictions(self) -> list[str] | None:
        """The predictions to grade, or None if the row holds samples and clusters instead."""
        if "prediction" not in self.json:
            return None
        value = self.json["prediction"]
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(item, str) for item in texts):
            raise _invalid("prediction", "a text, or a list of at least one text", value)
        return texts

    @property
    def graded(self) -> Grades:
        """The grades of the row; InputError if there are none."""
        if "correct" not in self.json:
            raise InputError(f"question {self.id!r} has no 'correct'; run `semcal grade` first")
        grades: dict[str, Any] = {item.name: self.json.get(item.name) for item in fields(Grades)}
        return Grades(**grades)


def stated_answers(rows: Iterable[Row], kind: AnswerKind) -> list[StatedAnswer]:
    """Return the stated answer of each row; an InputError names the row."""
    answers = []
    for row in rows:
        try:
            answers.append(row.stated_answer(kind))
        except InputError as error:
            raise row.error(str(error)) from None
    return answers


def as_answer_kind(name: str) -> AnswerKind:
    """Return a checked kind of answer; UsageError if it is unknown."""
    return cast("AnswerKind", check_name(name, ANSWER_KINDS, what="kind of answer"))


def _number(value: Any, key: str) -> float | None:
    try:
        return parse_float(value)
    except InputError as error:
        raise InputError(f"{key!r}: {error}") from None


def _is_state(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) > 0
    return is_list and all(type(item) in (int, float) and math.isfinite(item) for item in value)


def _token_scores(value: Any, key: str) -> TokenScores:
    if isinstance(value, list | tuple) and len(value) == 2:
        low, mean = (_number(item, key) for item in value)
        if low is not None and mean is not None and 0 <= low <= mean + ABOVE_ZERO and mean <= 1 + ABOVE_ZERO:
            return [low, mean]
    raise _invalid(key, "the smallest and the mean probability of an answer's tokens", value)


def _temperature(value: Any) -> float:
    number = _number(value, "temperatures")
    if number is None or not 0 < number < math.inf:
        raise _invalid("temperatures", "positive numbers", value)
    return number


def _log_likelihood(value: Any, key: str = "log_likelihoods") -> float | None:
    number = _number(value, key)
    if number is not None and not number <= ABOVE_ZERO:
        raise _invalid(key, "natural logarithms of probabilities (at most 0), or left out", value)
    return number


def as_rows(rows: Iterable[Row | Json]) -> list[Row]:
    """Return objects of a file as rows."""
    return [row if isinstance(row, Row) else Row(row) for row in rows]


Rows: TypeAlias = Sequence[Row]
RowsAt: TypeAlias = Mapping[float | None, Rows]
"""Temperature → rows of the same questions, clustered and measured at that temperature alone.

The first entry holds the samples of the answer. Its key is None if these were sampled with a recalibrator, or
at an unknown temperature.
"""


def rows_by_temperature(rows: Sequence[Row]) -> RowsAt:
    """Split rows with samples at several `temperatures` into rows of one temperature each.

    Samples with a recalibrator come first, then those at T = 1, then the other temperatures in order of
    appearance. Clusters keep the samples of each temperature. Rows without the field have the key None.
    InputError if only some rows have `temperatures`, or a row lacks samples at one of them.

    >>> row = Row({"id": "1", "samples": ["Ana", "Bo", "Ana"], "temperatures": [0.5, 1.0, 1.0]})
    >>> {t: [row.samples for row in split] for t, split in rows_by_temperature([row]).items()}
    {1.0: [['Bo', 'Ana']], 0.5: [['Ana']]}
    """
    if not any(row.temperatures for row in rows):
        return {None: rows}
    temperatures = list(dict.fromkeys(t for row in rows for t in row.temperatures or ()))
    split: dict[float | None, Sequence[Row]] = {}
    for temperature in sorted(temperatures, key=lambda t: (t is not None, t != 1.0, temperatures.index(t))):
        rows_at = []
        for row in rows:
            chosen = [i for i, t in enumerate(row.temperatures or ()) if t == temperature]
            if not chosen:
                at = "with the recalibrator" if temperature is None else f"at T = {temperature:g}"
                raise InputError(
                    f"question {row.id!r} has no sample {at}, but others have. Sample every question at each "
                    "temperature."
                )
            rows_at.append(row.take(chosen))
        split[temperature] = rows_at
    return split


def check_distinct(ids: Iterable[str]) -> None:
    """Raise InputError if an id of a question occurs twice."""
    ids_before: set[str] = set()
    for item in ids:
        if item in ids_before:
            raise InputError(f"the question id {item!r} occurs twice; ids must be distinct")
        ids_before.add(item)


def count_ends(rows: Iterable[Row]) -> tuple[int, int, int]:
    """Return the counts that `warn_of_cut_draws` takes: cut samples, all samples, those without an answer."""
    ends = Counter(
        "none" if text is None else "cut" * (not ended)
        for row in rows
        for text, ended in zip(row.samples, row.finished)
    )
    return ends["cut"], ends.total(), ends["none"]


def warn_of_cut_draws(cut: int, n_draws: int, none: int = 0) -> None:
    """Warn if more than a tenth of the samples have no answer (`none`) or were cut at the token limit.

    `cut` counts cut samples that have an answer, so that each sample counts once.
    """
    if 10 * (cut + none) <= n_draws:
        return
    found = [f"{cut} of {n_draws} samples reached the token limit before the answer ended"] if cut else []
    found += [f"{none} of {n_draws} samples have no answer"] if none else []
    remedy = "give more tokens (--max-new-tokens) or examples of short answers (--few-shot)"
    if none:
        remedy += ", and check that --answer-format suits the replies"
    warnings.warn(f"{' and '.join(found)}; {remedy}", SemcalWarning, stacklevel=3)


def failures_of(rows: Iterable[Row]) -> dict[str, QuestionError]:
    """Return the failure of each question that has one in any of the rows, by its id."""
    return {failure.question_id: failure for row in rows if (failure := row.failure) is not None}


def warn_of_failures(failures: Mapping[str, QuestionError], n_questions: int) -> None:
    """Warn about questions without answers from a server; raise the first failure if all failed."""
    errors = list(failures.values())
    if errors and len(errors) == n_questions:
        raise errors[0]
    if errors:
        ids = ", ".join([shown(name) for name in failures][:3]) + ", …" * (len(errors) > 3)
        warnings.warn(
            f"{len(errors)} of {n_questions} questions got no answers (ids {ids}), and are left out: "
            f"{errors[0].reason}",
            SemcalWarning,
            stacklevel=3,
        )
