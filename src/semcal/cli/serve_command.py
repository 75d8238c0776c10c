"""`semcal serve`: answers with calibrated probabilities behind OpenAI's interface of chat completions."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from typer import Option

from semcal.cli import options as opt
from semcal.cli.ask import promise
from semcal.cli.config_file import setting
from semcal.cli.console import info, is_quiet
from semcal.errors import UsageError, naming_extra
from semcal.reply_log import ReplyLog

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration
    from semcal.calibration.fields import FieldCalibration
    from semcal.calibration.watch import PromiseWatch
    from semcal.serve.configuration import ServeSettings
    from semcal.serve.documents import DocumentSource
    from semcal.serve.engine import AnswerSource
    from semcal.serve.service import Service
    from semcal.uncertainty import SemanticUQ

#: Number of examples of each of two sets on the page of the embedded model.
EXAMPLES = 3


@dataclass(frozen=True)
class ServeOptions:
    """The options of `semcal serve`; the variable SEMCAL_SERVE_NAME also sets each of them."""

    model: str | None = opt.MODEL
    calibration: str | None = opt.CALIBRATION
    fallback: str | None = Option(
        None,
        metavar="MODEL",
        help="Stronger model for questions whose answer is below the threshold, in the form of --model "
        "(default: none).",
    )
    fallback_calibration: str | None = Option(None, metavar="DIR", help="Calibration of the stronger model.")
    host: str | None = Option(None, help="Address of the server (default: 127.0.0.1; others need a key).")
    port: int | None = Option(None, help="Port of the server, or 0 for a free port (default: 8000).")
    keys: Path | None = Option(
        None,
        metavar="FILE",
        help="File of the keys of clients, one per line (default: the keys in SEMCAL_SERVE_KEYS).",
    )
    label_keys: Path | None = Option(
        None,
        metavar="FILE",
        help="File of keys that are required for labels and allow nothing else (default: the keys in "
        "SEMCAL_SERVE_LABEL_KEYS).",
    )
    log: Path | None = Option(
        None,
        metavar="FILE",
        help="SQLite file for the log of replies and labels, which replicas on one machine may share "
        "(default: none).",
    )
    no_answers: bool = Option(False, "--no-answers", help="Do not log the normal form of answers.")
    log_texts: bool = Option(False, "--log-texts", help="Log questions and samples as well.")
    audit: float | None = Option(
        None, metavar="SHARE", help="Share of replies to mark for labels, such as 0.05 (default: none)."
    )
    abstain: str | None = Option(
        None,
        help="Form of an abstention: sentence (default), refusal, pass (with the answer) or error.",
    )
    abstain_text: str | None = setting(
        help='The sentence of an abstention (default: "I am not sure enough to answer this.").'
    )
    uncovered: str | None = Option(
        None,
        help="Reaction to requests that the calibration does not cover: refuse (default), or answer "
        "without a probability.",
    )
    on_alarm: str | None = Option(
        None,
        help="Reaction to an alarm of the watch: abstain (default), or flag (only in /ready).",
    )
    cors: list[str] | None = Option(
        None, metavar="ORIGIN", help="Origin of web pages that may send requests; may be repeated."
    )
    queue: int | None = setting(help="Largest number of waiting questions (default: 1000).")
    request_timeout: float | None = Option(
        None,
        metavar="SECONDS",
        help="Time limit of a request, in seconds (default: 120).",
    )
    grace: float | None = setting(
        help="Time limit of running requests after SIGTERM, in seconds (default: 120)."
    )
    max_connections: int | None = setting(
        help="Largest number of connections (default: 500), below the limit of open files (ulimit -n)."
    )
    max_body: int | None = setting(help="Largest size of a request in bytes (default: 1000000).")
    max_characters: int | None = setting(
        help="Largest number of characters in all messages of a request (default: 100000)."
    )
    equivalence: str | None = opt.EQUIVALENCE
    few_shot: Path | None = setting(
        help="File of answered questions that precede each question (default: those of the calibration)."
    )
    system: str | None = opt.SYSTEM
    template: Path | None = opt.TEMPLATE
    max_new_tokens: int | None = opt.RARE_MAX_NEW_TOKENS
    seed: int = opt.RARE_SEED
    force: bool = opt.FORCE
    cache: Path | None = opt.CACHE
    device: str | None = opt.DEVICE
    nli_device: str | None = opt.NLI_DEVICE
    dtype: str | None = opt.DTYPE
    memory: str | None = opt.MEMORY


def command(options: ServeOptions, server: opt.ServerOptions) -> int:
    """Serve OpenAI-style chat completions, with the probability that the answer is right.

    The object semcal in the reply holds the probability and the decision to abstain. With a calibration of
    fields, answers are documents with its schema. Requests that the calibration does not cover are rejected.
    Without --model, the embedded Atlas model answers.
    """
    with naming_extra("semcal serve"):
        from semcal.serve.endpoints import HttpServer, listening
    settings = _settings(options)
    with _logging_to_stderr(), listening(settings) as bound:
        service = _service(options, server, settings)
        host, port = bound.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{port}"
        info(f"serve: {' and '.join(service.models)} at {url}/v1; a page to try it at {url}/")
        web_server = HttpServer(service)
        web_server.answer(bound)
    info("serve: stopped")
    sys.stderr.flush()
    os._exit(0)  # without waiting for a pass that no client waits for


def _settings(options: ServeOptions) -> ServeSettings:
    from semcal.serve.configuration import LABEL_KEYS, ServeSettings, read_keys

    names = {field.name for field in fields(ServeSettings)} - {"keys", "label_keys"}
    values = vars(options)
    chosen = {name: values[name] for name in names & values.keys() if values[name] is not None}
    keys, label_keys = read_keys(options.keys), read_keys(options.label_keys, variable=LABEL_KEYS)
    return ServeSettings(**chosen, answers=not options.no_answers, keys=keys, label_keys=label_keys)


def _service(options: ServeOptions, server: opt.ServerOptions, settings: ServeSettings) -> Service:
    """Return the model with its calibration, its log and its watch."""
    from semcal.calibration.calibration import Calibration
    from semcal.serve.engine import ScoreSource
    from semcal.serve.service import Service

    if options.model is None and options.calibration is None:
        info(
            "serve: the embedded model, which knows a fictional world, answers; pass your model with --model"
        )
        options = replace(options, model=opt.ATLAS, calibration=opt.ATLAS)
    calibration = None if options.calibration is None else opt.open_any_calibration(options.calibration)
    score = None if calibration is None else calibration.score
    if score is not None and (options.model or options.fallback):
        raise UsageError(
            f"--model: the calibration is of the score {score.name!r}, which requests bring; omit it"
        )
    if calibration is None or options.calibration is None or (options.model is None and score is None):
        raise UsageError(
            "--model and --calibration require each other, since a calibration holds for one model. Run "
            "`semcal calibrate LABELED --model MODEL --out DIR` for the calibration."
        )
    log, watch = _log(options, calibration)
    uq: AnswerSource
    if not isinstance(calibration, Calibration):
        uq, lines = _of_documents(options, server, calibration), [one for _, one in calibration.promises]
    else:
        lines = [*map(promise, calibration.all_thresholds)]
        if score is not None:
            uq = cast("SemanticUQ", ScoreSource(calibration))
        else:
            uq = _with_calibration(options, server, calibration)
    for line in lines:
        info(f"serve: {line}")
    model = opt.ATLAS if options.model == opt.ATLAS else uq.model.name
    names = (model, Path(options.calibration).name or "calibration")
    fallback, examples = _fallback(options, server), list[str]()
    if options.calibration == opt.ATLAS:
        from semcal.demo.questions import load_set

        sets = map(load_set, ("atlas-trivia", "atlas-rare"))
        examples = [question.question for one in sets for question in one.test[:EXAMPLES]]
    return Service(
        *(uq, settings),
        names=names,
        fallback=fallback,
        log=log,
        watch=watch,
        examples=examples,
    )


def _log(
    options: ServeOptions, calibration: Calibration | FieldCalibration
) -> tuple[ReplyLog | None, PromiseWatch | None]:
    """Return the open log, and the watch with the labels of the calibration's own replies."""
    from semcal.calibration.watch import PromiseWatch

    if options.log is None:
        if options.audit:
            raise UsageError("--audit requires a log of replies; pass --log FILE")
        return None, None
    log, watch = ReplyLog(options.log), PromiseWatch.of(calibration)
    watch.read(log, (calibration.id,))
    if watch.shift is not None:
        info(f"serve: {watch.shift}")
    if watch.alarm:
        info(f"serve: the labels in {options.log} raise an alarm; docs/alarm.md lists remedies")
    return log, watch


def _of_documents(
    options: ServeOptions, server: opt.ServerOptions, calibration: FieldCalibration
) -> DocumentSource:
    from semcal.data.question import Question
    from semcal.serve.documents import DocumentSource

    if options.equivalence is not None:
        raise UsageError("--equivalence does not apply to a calibration of fields; omit it")
    models = opt.ModelOptions.of(replace(options, equivalence=calibration.equivalence), server)
    state = models()
    step, _ = opt.document_step(options, state.model, calibration.parsed, calibration.m, "modal")
    asking = replace(step.sampling.asking, open_book=calibration.open_book)
    sampling = replace(step.sampling, asking=asking)
    (by,) = sampling.sampled_by(state.model, [Question("", "")], "serve", [1.0])
    if (other := calibration.difference(by.to_json())) and not options.force:
        raise UsageError(
            f"--calibration: its documents were sampled with another {other}. Pass its model and prompt "
            "(--model, prompt.system), calibrate again, or apply it with --force"
        )
    return DocumentSource(state.model, state.equivalence, calibration, sampling)


def _with_calibration(
    options: ServeOptions,
    server: opt.ServerOptions,
    calibration: Calibration,
) -> SemanticUQ:
    """Return the model of the options with the settings of a calibration."""
    from semcal.calibration.compatibility import equivalence_of
    from semcal.uncertainty import SemanticUQ

    equivalence = str(equivalence_of(calibration, options.equivalence))
    models = opt.ModelOptions.of(replace(options, equivalence=equivalence), server)
    # A small model waits for its threads more than it computes, but for the second one while others are
    # answered; the fallback may be large.
    n_threads = max(2, opt.choose_workers(None, "serve", models, blocks=1).n_threads)
    state = models() if options.fallback else opt.load_with_threads(models, n_threads)
    given = ("few_shot", "system", "template", "max_new_tokens", "seed", "force")
    settings = {name: getattr(options, name) for name in given}
    return SemanticUQ(state.model, calibration=calibration, equivalence=state.equivalence, **settings)


def _fallback(options: ServeOptions, server: opt.ServerOptions) -> SemanticUQ | None:
    """Return the stronger model with the prompt of its calibration, None if there is none."""
    if options.fallback is None and options.fallback_calibration is None:
        return None
    if options.fallback is None or options.fallback_calibration is None:
        raise UsageError("--fallback and --fallback-calibration require each other; pass both")
    calibration = opt.open_calibration(options.fallback_calibration)
    second = replace(options, model=options.fallback, equivalence=None)
    return _with_calibration(second, server, calibration)


@contextmanager
def _logging_to_stderr() -> Iterator[None]:
    logger, handler = logging.getLogger("semcal.serve"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if is_quiet() else logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
