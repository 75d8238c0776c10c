"""TS fitted over a server: from log-probabilities of the reference answers, asked for block by block."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semcal.data.question import Question
from semcal.errors import FitError, QuestionError, ServerError, UsageError
from semcal.models.language_model import PromptConfig
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.calibration_set import CalibrationSet, provenance_of
from semcal.recalibration.exact_fit import fit_temperatures
from semcal.recalibration.features import CalibrationFeatures
from semcal.recalibration.losses import T_MAX, check_loss
from semcal.recalibration.provenance import Provenance, check_enough, warn_if_few
from semcal.recalibration.server_fit import GoldTokens, ServerFit, fit_by_losses
from semcal.recalibration.temperature import TemperatureScaling
from semcal.servers.gold import GoldQuestion, PartitionRequests, Route, Row, choose_route
from semcal.servers.sampler import ServerModel
from semcal.store import Stage, Store

#: The routes in words.
ROUTES: dict[Route, str] = {
    "one token": "the likeliest token at each position, raw and at T",
    "whole vocabulary": "the log-probabilities of the whole vocabulary",
}

#: Questions whose requests are sent together, and whose replies are kept together.
BLOCK = 8
#: Log-probabilities of whole vocabularies that are held at once (2 GB).
MOST_NUMBERS = 2**29


@dataclass(frozen=True)
class OverServer:
    """A temperature fitted over a server, as in `semcal.recalibration.fitting.Fit`."""

    recalibrator: TemperatureScaling
    provenance: Provenance
    report: Mapping[str, Any]  # losses, error and interval, route and its error


def plan_over_server(model: ServerModel, labelled: CalibrationSet, *, loss: str = "NLL") -> str:
    """Say what `fit_over_server` would ask: its route, requests and prompt tokens."""
    route, gold = _route(model, loss, None), _gold(labelled)
    first, later = PartitionRequests(model.client, model.profile).counts(gold, route)
    more = f", then {later:,} at each of five temperatures or more" if later else ""
    tokens = sum(
        len(question.prompt) + len(beginning) for question in gold for beginning in question.beginnings
    )
    return f"fit T by {ROUTES[route]}: {first:,} requests{more} (all positions: {tokens:,} prompt tokens)"


def fit_over_server(
    model: ServerModel,
    questions: Sequence[Question],
    *,
    asking: PromptConfig,
    data: str,
    loss: str = "NLL",
    alpha: float | None = None,
    route: Route | None = None,
    seed: int = 0,
    versions: Mapping[str, str | None],
    keep: Path | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
    progress: ShowProgress = True,
) -> OverServer:
    """Fit T to labelled questions by what a server tells of their answers' tokens.

    The parameters are those of `semcal.fit`; loss SS takes the whole vocabulary. `route` is by default the
    first that the server allows, and `keep` a folder for what the server said, from which the same call
    resumes. UsageError without a tokenizer, ServerError if the server gives too little or cannot be reached.
    FitError if fewer than 5 questions are left, or T is beyond what the server accepts.
    """
    check_loss(loss, alpha)
    chosen = _route(model, loss, route)
    labelled = CalibrationSet.of(model, questions, asking=asking, on_bad_question=on_bad_question)
    warn_if_few(len(labelled.questions))
    settings = {"model": model.revision, "url": model.profile.url}
    stage = Stage(None if keep is None else Store(keep), "partitions", settings)
    groups = labelled.groups()
    with shown_progress(progress, "fit", len(labelled.questions)) as update:
        requests = PartitionRequests(model.client, model.profile)
        rows_of = _RowsOfQuestions(requests, _gold(labelled), stage, update, on_bad_question)
        if chosen == "whole vocabulary":
            fitted = _by_whole_vocabulary(rows_of, loss=loss, alpha=alpha, groups=groups, seed=seed)
        else:
            fitted = _by_one_token(rows_of, groups)
    fit, most = fitted.fit, model.profile.max_temperature
    if fit.certificate.at_bound and most is not None and math.isclose(fit.temperature, most):
        raise FitError(
            f"T lies above {most:g}, the highest that {model.profile.url} takes; "
            "see that the answers belong to the questions"
        )
    error = {"standard_error": fit.standard_error, "interval": fit.report()["interval"]}
    by = {"route": chosen, "route_error": fitted.route_error}
    provenance = provenance_of(
        model,
        [labelled.questions[i] for i in rows_of.kept],
        asking=asking,
        data=data,
        seed=seed,
        versions=versions,
        server={"url": model.profile.url, **by, **error},
    )
    of_groups = {} if groups is None else {"n_groups": fit.n_clusters}
    report = {**fit.report(), **of_groups, **by, "n_tokens": fit.n_tokens}
    return OverServer(TemperatureScaling.from_fit(fit), provenance, report)


def _route(model: ServerModel, loss: str, route: Route | None) -> Route:
    if model.format is None:
        raise UsageError("T is fitted to the tokens of answers; give the model's tokenizer: --tokenizer DIR")
    if loss == "NLL":
        return choose_route(model.profile, route)
    try:
        return choose_route(model.profile, "whole vocabulary")
    except ServerError as error:
        raise UsageError(f"SS needs all logits: {error}; leave --loss out") from error


def _gold(labelled: CalibrationSet) -> list[GoldQuestion]:
    rows = zip(labelled.questions, labelled.prompts, labelled.answers)
    return [GoldQuestion(question.id, prompt.token_ids, tuple(answers)) for question, prompt, answers in rows]


@dataclass
class _RowsOfQuestions:
    """Rows of all questions from the server or the store, and which questions failed so far."""

    requests: PartitionRequests
    questions: Sequence[GoldQuestion]
    stage: Stage
    progress: Callable[[int], None] | None
    on_bad_question: Callable[[QuestionError], None] | None
    failed: set[int] = field(default_factory=set)

    @property
    def kept(self) -> list[int]:
        """The questions that did not fail."""
        return [i for i in range(len(self.questions)) if i not in self.failed]

    def rows(self, ask: Callable[[list[int]], Sequence[Row]], *, key: Sequence[Any]) -> dict[int, Row]:
        """The rows of all questions that have not failed, by their numbers; `ask` is given some numbers."""
        numbers, rows = self.kept, dict[int, Row]()
        stage = replace(self.stage, settings={**self.stage.settings, "asked": list(key)})
        for start in range(0, len(numbers), BLOCK):
            block = numbers[start : start + BLOCK]
            inputs = [asdict(self.questions[i]) for i in block]
            rows |= zip(block, stage.rows(inputs, partial(ask, block)))
            if self.progress is not None:
                self.progress(start + len(block))
        for i in [i for i, row in rows.items() if "failed" in row]:
            error = QuestionError(self.questions[i].id, rows.pop(i)["failed"])
            if self.on_bad_question is None:
                raise error
            self.on_bad_question(error)
            self.failed.add(i)
        return rows

    def of(self, numbers: Sequence[int]) -> list[GoldQuestion]:
        """Some questions."""
        return [self.questions[i] for i in numbers]

    def by_token(self, rows: Mapping[int, Row], key: str) -> NDArray[np.float64]:
        """The values of all questions' tokens behind each other (N,); NaN where a question failed."""
        values = [
            value
            for i, question in enumerate(self.questions)
            for value in (rows[i][key] if i in rows else [math.nan] * len(question.tokens))
        ]
        return np.array(values)

    def gold(self, raw: Mapping[int, Row], groups: NDArray[np.intp] | None) -> GoldTokens:
        """The tokens of all questions."""
        counts = [len(question.tokens) for question in self.questions]
        return GoldTokens(
            question=np.repeat(np.arange(len(counts)), counts),
            weight=np.repeat([1 / len(question.answers) for question in self.questions], counts),
            log_probs=self.by_token(raw, "log_probs"),
            groups=groups,
        )


def _by_whole_vocabulary(
    rows_of: _RowsOfQuestions, *, loss: str, alpha: float | None, groups: NDArray[np.intp] | None, seed: int
) -> ServerFit:
    """Log-probabilities are logits: the exact fit as it is."""
    size = rows_of.requests.profile.vocabulary or 0
    positions = sum(len(question.beginnings) for question in rows_of.questions)
    if positions * size > MOST_NUMBERS:
        raise FitError(
            f"{size:,} log-probabilities at {positions:,} positions are too many; fit to at most "
            f"{MOST_NUMBERS // size * len(rows_of.questions) // positions} questions (--limit)"
        )
    rows = rows_of.rows(lambda numbers: rows_of.requests.whole(rows_of.of(numbers)), key=["whole"])
    check_enough(len(rows), of="that the server answered for")
    questions = rows_of.of(list(rows))
    states = []
    for question, row in zip(questions, rows.values()):
        listed = dict(zip(question.beginnings, row["log_probs"]))
        beginnings = [(), *(answer[:i] for answer in question.answers for i in range(1, len(answer)))]
        states += [np.frombuffer(b64decode(listed[beginning]), dtype=np.float32) for beginning in beginnings]
    features = CalibrationFeatures.from_states(
        torch.from_numpy(np.stack(states)), [1] * len(questions), [question.answers for question in questions]
    )
    (exact,) = fit_temperatures(
        features,
        lambda log_probs: log_probs,
        losses=[(loss, alpha)],
        groups=None if groups is None else groups[list(rows)],
        seed=seed,
    )
    return ServerFit(exact, 0.0)


def _by_one_token(rows_of: _RowsOfQuestions, groups: NDArray[np.intp] | None) -> ServerFit:
    """T by the likeliest token at each position, raw and at some temperatures."""
    requests = rows_of.requests
    raw = rows_of.rows(lambda numbers: requests.raw(rows_of.of(numbers)), key=["raw"])
    check_enough(len(raw), of="that the server answered for")

    def losses(beta: float) -> NDArray[np.float64]:
        def ask(numbers: list[int]) -> list[Row]:
            return requests.losses(rows_of.of(numbers), [raw[i] for i in numbers], 1 / beta)

        return rows_of.by_token(rows_of.rows(ask, key=["losses", beta]), "nll")

    hottest = min(requests.profile.max_temperature or T_MAX, T_MAX)
    return fit_by_losses(losses, rows_of.gold(raw, groups), hottest=hottest)
