"""The fields of a row (design.md, file contracts), checked once and with a reason when they are wrong.

A row may hold, in place of answers, why a server gave none.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semcal.errors import InputError, QuestionError, SemcalWarning, shown
from semcal.qa.questions import reference_text
from semcal.records import parse_float
from semcal.semantics.ragged import ABOVE_ZERO

Data = Mapping[str, Any]


def _required(data: Data, key: str, made_by: str) -> Any:
    if key not in data:
        raise InputError(f"no {key!r}; {made_by}")
    return data[key]


def _strings(data: Data, key: str, made_by: str) -> list[str]:
    value = _required(data, key, made_by)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{key!r} must be a list of strings, got {shown(value)}")
    return value


def identity(data: Data) -> str:
    """The row's id as text."""
    value = _required(data, "id", "every row needs an id of its own")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InputError(f"'id' must be a string or a whole number, got {shown(value)}")
    return str(value)


def question_of(data: Data) -> str:
    """The row's question."""
    value = _required(data, "question", "every row needs its question")
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"'question' must be a text that is not empty, got {shown(value)}")
    return value


def context_of(data: Data) -> str | None:
    """The row's passage, if it has one."""
    value = data.get("context")
    if value is None or isinstance(value, str):
        return value
    raise InputError(f"'context' must be the passage as a text, or null, got {shown(value)}")


def samples_of(data: Data) -> list[str]:
    """The sampled answers, at least one; an answer may be empty."""
    samples = _strings(data, "samples", "it holds the sampled answers, as `semcal sample` writes them")
    if not samples:
        raise InputError("'samples' is empty: at least one sampled answer is needed")
    return samples


def clusters_of(data: Data, m: int | None = None) -> list[list[int]]:
    """The clusters: lists of sample indices that hold each of 0 … m − 1 once."""
    value = _required(data, "clusters", "run `semcal cluster` first")
    if not isinstance(value, list) or not all(isinstance(c, list) and c for c in value):
        raise InputError(f"'clusters' must be a list of non-empty lists, got {shown(value)}")
    if not value:
        raise InputError("'clusters' is empty: it must hold every sample index once")
    members = [member for cluster in value for member in cluster]
    if not all(isinstance(member, int) and not isinstance(member, bool) for member in members):
        raise InputError(f"'clusters' must hold sample indices (whole numbers), got {shown(value)}")
    expected = len(members) if m is None else m
    if sorted(members) != list(range(expected)):
        raise InputError(
            f"'clusters' must hold every sample index from 0 to {expected - 1} once, got {shown(value)}"
        )
    return value


def log_likelihoods_of(data: Data, m: int) -> list[float] | None:
    """The length-normalised log-likelihoods of m samples, or None where one of them is not known."""
    value = data.get("log_likelihoods")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != m:
        raise InputError(f"'log_likelihoods' must hold {m} numbers, one a sample, got {shown(value)}")
    known = [number for number in map(_log_likelihood, value) if number is not None]
    if m and known == [-math.inf] * m:
        raise InputError("'log_likelihoods' are all -inf: at least one sample must have a likelihood above 0")
    return known if len(known) == m else None


def finished_of(data: Data, m: int) -> list[bool]:
    """Whether each of m samples ended before the token limit; all where the row does not say."""
    value = data.get("finished", [True] * m)
    if not isinstance(value, list) or [type(one) for one in value] != [bool] * m:
        wanted = f"'finished' must hold true or false for each of {m} samples, or be left out"
        raise InputError(f"{wanted}; got {shown(value)}")
    return value


def temperatures_of(data: Data) -> list[float | None] | None:
    """The temperature of each sample, or None where the row does not say.

    That of a sample is None where it was drawn under the recalibrator that `sampled_by` names.
    """
    value = data.get("temperatures")
    if value is None:
        return None
    m = len(samples_of(data))
    if not isinstance(value, list) or len(value) != m:
        raise InputError(f"'temperatures' must hold {m} numbers, one a sample, got {shown(value)}")
    free = "recalibrator" in sampled_by_of(data)
    return [None if one is None and free else _temperature(one) for one in value]


#: What lies beside the file of a calibration: its recalibrator, if there is one, and what was sampled.
RECALIBRATOR, SAMPLES = "recalibrator", "samples.jsonl"
#: The types of what `sampled_by` may hold.
SAMPLED_BY: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("command", "model", "revision", "prompt_hash", "recalibrator"), (str,)),
    **dict.fromkeys(("m", "seed", "max_new_tokens"), (int,)),
    "temperature": (int, float),
}


def sampled_by_of(data: Data) -> Data:
    """How the row was sampled; empty where it does not say."""
    value = data.get("sampled_by") or {}
    if not isinstance(value, Mapping):
        raise InputError(f"'sampled_by' must be an object, as `semcal sample` writes it, got {shown(value)}")
    for key, kinds in SAMPLED_BY.items():
        if key in value and type(value[key]) not in kinds:
            kind = "a text" if str in kinds else "a number"
            raise InputError(f"{key!r} in 'sampled_by' must be {kind}, got {shown(value[key])}")
    return value


def is_kept_by_calibrate(data: Data) -> bool:
    """Whether the row is one that `semcal calibrate` sampled, and kept beside its calibration."""
    return sampled_by_of(data).get("command") == "calibrate"


def _temperature(value: Any) -> float:
    try:
        number = parse_float(value)
    except InputError as error:
        raise InputError(f"'temperatures': {error}") from None
    if number is None or not 0 < number < math.inf:
        raise InputError(f"'temperatures' must be positive numbers, got {shown(value)}")
    return number


def _log_likelihood(value: Any) -> float | None:
    try:
        number = parse_float(value)
    except InputError as error:
        raise InputError(f"'log_likelihoods': {error}") from None
    if number is not None and not number <= ABOVE_ZERO:
        raise InputError(
            f"'log_likelihoods' must be natural logarithms of probabilities, at most 0, got {shown(value)}: "
            "mend it, or leave 'log_likelihoods' out"
        )
    return number


def answers_of(data: Data) -> list[str]:
    """The reference answers, at least one."""
    value = data.get("answers")
    if isinstance(value, str | int | float):
        return [reference_text(value)]
    made_by = "it holds the reference answers"
    for key in data:
        if key.lower() == "answer":
            made_by += f"; {key!r} counts as the model's"
            if {"by_measure", "probability"}.isdisjoint(data):
                made_by += f": if it is not, give --columns answers={key}"
            else:  # written by `ask` or `measure --calibration`
                made_by += "; give the questions their 'answers' before they are sampled or asked"
    answers = _required(data, "answers", made_by)
    if not answers or not isinstance(answers, list):
        raise InputError(
            f"'answers' is empty or no list of at least one reference answer, got {shown(answers)}"
        )
    return [reference_text(one) for one in answers]


def predictions_of(data: Data) -> list[str] | None:
    """The predictions to grade, or None where the row holds samples and clusters instead."""
    if "prediction" not in data:
        return None
    value = data["prediction"]
    if isinstance(value, str):
        return [value]
    predictions = _strings(data, "prediction", "")
    if not predictions:
        raise InputError("'prediction' is an empty list: give one prediction or more")
    return predictions


def top_clusters_of(data: Data, n_clusters: int) -> dict[str, int | None]:
    """For each measure the index of its most confident cluster (null where it is undefined)."""
    how = "run `semcal measure` first, or give a 'prediction'"
    how += ", such as with --columns prediction=answer" if "answer" in data else ""
    value = _required(data, "top_cluster", how)
    if not isinstance(value, dict):
        raise InputError(f"'top_cluster' must map measures to cluster numbers, got {shown(value)}")
    for measure, index in value.items():
        if index is not None and not (type(index) is int and 0 <= index < n_clusters):
            raise InputError(
                f"'top_cluster' of {measure} must be in 0 … {n_clusters - 1}, got {shown(index)}"
            )
    return dict(value)


def check_distinct(ids: Iterable[str]) -> None:
    """Raise InputError if an id of a question occurs twice."""
    seen: set[str] = set()
    for item in ids:
        if item in seen:
            raise InputError(f"the question id {item!r} occurs twice; ids must be distinct")
        seen.add(item)


def warn_of_cut_draws(cut: int, of: int) -> None:
    """Say how many draws were cut at the token limit, where they are more than a tenth."""
    if 10 * cut > of:
        helps = "give more tokens (--max-new-tokens) or examples of short answers (--few-shot)"
        said = f"{cut} of {of} draws reached the token limit before the answer ended; {helps}"
        warnings.warn(said, SemcalWarning, stacklevel=3)


#: Key of a row that holds no answers: why a server gave none.
FAILED = "semcal_error"


def failures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, QuestionError]:
    """The failure of each question that has one in any of the rows, by its id."""
    return {str(row["id"]): QuestionError(str(row["id"]), row[FAILED]) for row in rows if FAILED in row}


def warn_of_failures(failures: Mapping[str, QuestionError], of: int) -> None:
    """Name questions to which a server gave no answers; the first is raised if none got any."""
    found = list(failures.values())
    if found and len(found) == of:
        raise found[0]
    if found:
        named = ", ".join([shown(name) for name in failures][:3]) + ", …" * (len(found) > 3)
        warnings.warn(
            f"{len(found)} of {of} questions got no answers (ids {named}), and are left out: "
            f"{found[0].reason}",
            SemcalWarning,
            stacklevel=3,
        )
