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

from semcal.engine.servers.partitions import GoldQuestion, PartitionRequests, Route, Row, choose_route
from semcal.engine.servers.sampler import ServerModel
from semcal.errors import FitError, QuestionError, ServerError, UsageError
from semcal.pipeline.calibration_set import CalibrationSet, provenance_of
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.store import Stage, Store
from semcal.progress import ShowProgress, shown_progress
from semcal.qa.questions import Question
from semcal.recalibration.exact_fit import fit_temperatures
from semcal.recalibration.features import CalibrationFeatures
from semcal.recalibration.losses import T_MAX, check_loss
from semcal.recalibration.provenance import Provenance, check_enough, warn_if_few
from semcal.recalibration.server_fit import (
    GoldTokens,
    Moments,
    PowerLaw,
    ServerFit,
    TopK,
    certified_interval,
    fit_by_draws,
    fit_by_losses,
    fit_by_moments,
)
from semcal.recalibration.temperature import TemperatureScaling

#: The routes in words.
ROUTES: dict[Route, str] = {
    "one token": "the likeliest token at each position, raw and at T",
    "whole vocabulary": "the log-probabilities of the whole vocabulary",
    "draws": "tokens drawn at each position",
    "top-k": "the likeliest tokens at each position",
}

#: Tokens drawn at each position in a round: they add a twentieth to the labels' error.
DRAWS = 10
#: Questions whose requests are sent together, and whose replies are kept together.
BLOCK = 8
#: Log-probabilities of whole vocabularies that are held at once (2 GB).
MOST_NUMBERS = 2**29
#: A vocabulary has so many more tokens than its tokenizer at most; more are no harm to a certified interval.
PADDING = 1024


@dataclass(frozen=True)
class OverServer:
    """A temperature fitted over a server, as in `semcal.pipeline.fitting.Fit`."""

    recalibrator: TemperatureScaling
    provenance: Provenance
    report: Mapping[str, Any]  # losses, error and interval, route and its error


def plan_over_server(model: ServerModel, labelled: CalibrationSet, *, loss: str = "NLL") -> str:
    """Say what `fit_over_server` would ask: its route, requests and prompt tokens."""
    route, gold = _route(model, loss, None), _gold(labelled)
    first, later = PartitionRequests(model.client, model.profile).counts(gold, route, n=DRAWS)
    rounds = {"one token": " at each of five temperatures or more", "draws": " in each of two rounds or more"}
    more = f", then {later:,}{rounds[route]}" if later else ""
    tokens = sum(len(one.prompt) + len(beginning) for one in gold for beginning in one.beginnings)
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
    FitError if fewer than 5 questions are left, T is beyond what the server accepts, or top-k
    log-probabilities alone leave it open.
    """
    check_loss(loss, alpha)
    chosen = _route(model, loss, route)
    labelled = CalibrationSet.of(model, questions, asking=asking, on_bad_question=on_bad_question)
    warn_if_few(len(labelled.questions))
    settings = {"model": model.revision, "url": model.profile.url}
    stage = Stage(None if keep is None else Store(keep), "partitions", settings)
    how: dict[str, Any] = {"groups": labelled.groups(), "seed": seed}
    with shown_progress(progress, "fit", len(labelled.questions)) as update:
        requests = PartitionRequests(model.client, model.profile)
        asked = _Asking(requests, _gold(labelled), stage, update, on_bad_question)
        if chosen == "whole vocabulary":
            found, top_k = _by_whole_vocabulary(asked, loss=loss, alpha=alpha, **how), None
        else:
            found, top_k = _by_nll(asked, chosen, _size(model), **how)
    fit, most = found.fit, model.profile.max_temperature
    if fit.certificate.at_bound and most is not None and math.isclose(fit.temperature, most):
        raise FitError(
            f"T lies above {most:g}, the highest that {model.profile.url} takes; "
            "see that the answers belong to the questions"
        )
    error = {"standard_error": fit.standard_error, "interval": fit.report()["interval"]}
    by = {"route": chosen, "route_error": found.route_error}
    provenance = provenance_of(
        model,
        [labelled.questions[i] for i in asked.kept],
        asking=asking,
        data=data,
        seed=seed,
        versions=versions,
        server={"url": model.profile.url, **by, **error},
    )
    of_groups = {} if how["groups"] is None else {"n_groups": fit.n_clusters}
    report = {**fit.report(), **of_groups, **by, "top_k": top_k, "n_tokens": fit.n_tokens}
    return OverServer(TemperatureScaling.from_fit(fit), provenance, report)


def _route(model: ServerModel, loss: str, wanted: Route | None) -> Route:
    if model.format is None:
        raise UsageError("T is fitted to the tokens of answers; give the model's tokenizer: --tokenizer DIR")
    if loss == "NLL":
        return choose_route(model.profile, wanted)
    try:
        return choose_route(model.profile, "whole vocabulary")
    except ServerError as error:
        raise UsageError(f"SS needs all logits: {error}; leave --loss out") from error


def _size(model: ServerModel) -> int:
    """The size of the vocabulary, or more."""
    assert model.format is not None
    return model.profile.vocabulary or len(model.format.tokenizer) + PADDING


def _gold(labelled: CalibrationSet) -> list[GoldQuestion]:
    rows = zip(labelled.questions, labelled.prompts, labelled.answers)
    return [GoldQuestion(question.id, prompt.token_ids, tuple(given)) for question, prompt, given in rows]


@dataclass
class _Asking:
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
        left, found = self.kept, dict[int, Row]()
        stage = replace(self.stage, settings={**self.stage.settings, "asked": list(key)})
        for start in range(0, len(left), BLOCK):
            some = left[start : start + BLOCK]
            inputs = [asdict(self.questions[i]) for i in some]
            found |= zip(some, stage.rows(inputs, partial(ask, some)))
            if self.progress is not None:
                self.progress(start + len(some))
        for i in [i for i, row in found.items() if "failed" in row]:
            error = QuestionError(self.questions[i].id, found.pop(i)["failed"])
            if self.on_bad_question is None:
                raise error
            self.on_bad_question(error)
            self.failed.add(i)
        return found

    def of(self, some: Sequence[int]) -> list[GoldQuestion]:
        """Some questions."""
        return [self.questions[i] for i in some]

    def gold(self, raw: Mapping[int, Row], groups: NDArray[np.intp] | None) -> GoldTokens:
        """The tokens of all questions."""
        before = np.cumsum([0, *(len(one.beginnings) for one in self.questions)])
        return GoldTokens(
            question=np.repeat(np.arange(len(self.questions)), [len(one.tokens) for one in self.questions]),
            position=np.array(
                [before[i] + at for i, one in enumerate(self.questions) for at, _ in one.tokens]
            ),
            weight=np.array([1 / len(one.answers) for one in self.questions for _ in one.tokens]),
            log_probs=np.array(self.flat(raw, "log_probs", lambda one: len(one.tokens), math.nan)),
            groups=groups,
        )

    def flat(
        self, rows: Mapping[int, Row], key: str, size: Callable[[GoldQuestion], int], blank: Any
    ) -> list[Any]:
        """The lists of all questions behind each other; `blank` in place of those that failed."""
        return [
            value
            for i, one in enumerate(self.questions)
            for value in (rows[i][key] if i in rows else [blank] * size(one))
        ]


def _by_whole_vocabulary(
    asked: _Asking, *, loss: str, alpha: float | None, groups: NDArray[np.intp] | None, seed: int
) -> ServerFit:
    """Log-probabilities are logits: the exact fit as it is."""
    size = asked.requests.profile.vocabulary or 0
    positions = sum(len(one.beginnings) for one in asked.questions)
    if positions * size > MOST_NUMBERS:
        raise FitError(
            f"{size:,} log-probabilities at {positions:,} positions are too many; fit to at most "
            f"{MOST_NUMBERS // size * len(asked.questions) // positions} questions (--limit)"
        )
    rows = asked.rows(lambda some: asked.requests.whole(asked.of(some)), key=["whole"])
    check_enough(len(rows), of="that the server answered for")
    kept = asked.of(list(rows))
    states = []
    for one, row in zip(kept, rows.values()):
        listed = dict(zip(one.beginnings, row["log_probs"]))
        own = [(), *(answer[:i] for answer in one.answers for i in range(1, len(answer)))]
        states += [np.frombuffer(b64decode(listed[beginning]), dtype=np.float32) for beginning in own]
    features = CalibrationFeatures.from_states(
        torch.from_numpy(np.stack(states)), [1] * len(kept), [one.answers for one in kept]
    )
    (exact,) = fit_temperatures(
        features,
        lambda log_probs: log_probs,
        losses=[(loss, alpha)],
        groups=None if groups is None else groups[list(rows)],
        seed=seed,
    )
    return ServerFit(exact, 0.0)


def _by_nll(
    asked: _Asking, route: Route, size: int, *, groups: NDArray[np.intp] | None, seed: int
) -> tuple[ServerFit, dict[str, Any]]:
    """T by few numbers of each token; with what its likeliest tokens say of it by themselves."""
    requests, nan = asked.requests, math.nan
    raw = asked.rows(lambda some: requests.raw(asked.of(some)), key=["raw"])
    check_enough(len(raw), of="that the server answered for")
    gold = asked.gold(raw, groups)
    top = asked.flat(raw, "top", lambda one: len(one.tokens), [])
    law, top_k = _from_top(top, gold, size, certify=requests.profile.scores_prompt != "echo")
    start, hottest = top_k["estimate"], min(requests.profile.max_temperature or T_MAX, T_MAX)

    def losses(beta: float) -> NDArray[np.float64]:
        def ask(some: list[int]) -> list[Row]:
            return requests.losses(asked.of(some), [raw[i] for i in some], 1 / beta)

        rows = asked.rows(ask, key=["losses", beta])
        return np.array(asked.flat(rows, "nll", lambda one: len(one.tokens), nan))

    def draw(beta: float) -> NDArray[np.float64]:
        def ask(some: list[int]) -> list[Row]:
            return requests.draws(asked.of(some), 1 / beta, n=DRAWS, seed=seed)

        rows = asked.rows(ask, key=["draws", beta, DRAWS, seed])
        return np.array(asked.flat(rows, "draws", lambda one: len(one.beginnings), [nan] * DRAWS))

    if route == "one token":
        return fit_by_losses(losses, gold, start=start, hottest=hottest), top_k
    if route == "draws":
        return fit_by_draws(draw, gold, law, start=start, hottest=hottest), top_k
    found, (low, high) = fit_by_moments(law, gold, start), top_k["interval"]
    if not high - low < 2 * found.fit.standard_error:
        raise FitError(
            f"the {top_k['k']} likeliest tokens leave T anywhere between {low:.3f} and {high:.3f} (estimate "
            f"with power-law tails: {start:.3f} ± {found.fit.standard_error:.3f} of the labels), and the "
            "server gives nothing that settles it; have it give log-probabilities at T (vLLM: "
            "--logprobs-mode processed_logprobs) or of more tokens (--max-logprobs)"
        )
    return replace(found, route_error=(high - low) / 2), top_k


def _from_top(
    top: Sequence[Sequence[float]], gold: GoldTokens, size: int, *, certify: bool
) -> tuple[Moments, dict[str, Any]]:
    """A(β) of each token with power-law tails; and k, the estimate of T, and the interval that holds it."""
    known = np.isfinite(gold.log_probs)
    listed = [values for values, is_known in zip(top, known) if is_known]
    target, weight = gold.log_probs[known], gold.weight[known]
    tails = TopK.of(listed, target, vocabulary=size)
    law = PowerLaw(tails)

    def moments(beta: float) -> NDArray[np.float64]:
        found = np.full((3, len(known)), np.nan)
        found[:, known] = law.moments(beta)
        return found

    interval = certified_interval(tails, target, weight) if certify else None
    k = max(map(len, listed))  # of a list that the target is not on
    return moments, {"k": k, "estimate": law.temperature(target, weight), "interval": interval}
