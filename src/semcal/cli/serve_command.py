"""`semcal serve`: answers with calibrated probabilities behind the interface of OpenAI's chat completions."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typer import Option

from semcal.arrays import as_option
from semcal.cli import options as opt
from semcal.cli.ask import promise
from semcal.cli.config_file import setting
from semcal.cli.console import info, is_quiet
from semcal.errors import MissingExtraError, UsageError
from semcal.files import JsonLine, read_rows
from semcal.models.equivalence import names_a_server
from semcal.reply_log import ReplyLog
from semcal.rows import SAMPLES

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration
    from semcal.calibration.watch import PromiseWatch
    from semcal.serve.configuration import ServeSettings
    from semcal.serve.service import Service
    from semcal.uncertainty import SemanticUQ

#: Examples of each of two sets on the page, and rows that are read for them.
EXAMPLES, READ = 3, 50


@dataclass(frozen=True)
class ServeOptions:
    """The options of `semcal serve`; each may stand in SEMCAL_SERVE_NAME as well."""

    model: str | None = opt.MODEL
    calibration: str | None = opt.CALIBRATION
    fallback: str | None = Option(
        None,
        metavar="MODEL",
        help="A stronger model, which is asked if the answer is below the threshold; named as --model is.",
    )
    fallback_calibration: str | None = Option(
        None, "--fallback-calibration", metavar="DIR", help="The calibration of the stronger model."
    )
    host: str | None = Option(None, help="Address to listen on: 127.0.0.1 by default; others need a key.")
    port: int | None = Option(None, help="Port to listen on: 8000 by default; 0 takes a free one.")
    keys: Path | None = Option(
        None, "--keys", metavar="FILE", help="Keys that clients send, one a line; else SEMCAL_SERVE_KEYS."
    )
    label_keys: Path | None = Option(
        None,
        "--label-keys",
        metavar="FILE",
        help="Keys for labels: only these may send labels, and nothing else; else SEMCAL_SERVE_LABEL_KEYS.",
    )
    log: Path | None = Option(None, "--log", metavar="FILE", help="Log of replies and labels (SQLite).")
    label_log: Path | None = Option(
        None,
        "--label-log",
        metavar="FILE",
        help="A second log, which replicas on one machine share; each of them then takes the labels of all.",
    )
    no_answers: bool = Option(False, "--no-answers", help="Do not log the normal form of answers.")
    log_texts: bool = Option(False, "--log-texts", help="Log questions and draws as well.")
    show_backend_errors: bool = setting(
        False, help="Send clients the texts of the errors of the model server: false by default."
    )
    audit: float | None = Option(
        None, metavar="SHARE", help="Share of the replies to mark for labelling, such as 0.05."
    )
    abstain: str | None = Option(
        None,
        help="Form of an abstention: sentence (by default), refusal, pass (with the answer) or error.",
    )
    abstain_text: str | None = setting(
        help='The sentence of an abstention: "I am not sure enough to answer this." by default.'
    )
    uncovered: str | None = Option(
        None,
        help="Requests that the calibration does not cover: refuse (by default), or answer, without a "
        "probability.",
    )
    on_alarm: str | None = Option(
        None,
        "--on-alarm",
        help="During an alarm of the watch: abstain (by default), or flag, in /ready alone.",
    )
    cors: list[str] | None = Option(
        None, "--cors", metavar="ORIGIN", help="Origin of pages that may ask; may be repeated."
    )
    queue: int | None = setting(help="Largest number of questions that wait: 1000 by default.")
    request_timeout: float | None = Option(
        None, "--request-timeout", metavar="SECONDS", help="Seconds that a request may take: 120 by default."
    )
    grace: float | None = setting(help="Seconds that running requests have after SIGTERM: 120 by default.")
    read_timeout: float | None = setting(
        help="Seconds that the head of a request may take to come, and then its body: 30 by default."
    )
    max_connections: int | None = setting(
        help="Largest number of connections: 1000 by default, and at most half of the files that may be open "
        "(ulimit -n)."
    )
    max_connections_per_address: int | None = setting(
        help="Largest number of connections of one address: 250 by default, and at most half of all."
    )
    max_body: int | None = setting(help="Largest size of a request in bytes: 1000000 by default.")
    max_messages: int | None = setting(help="Largest number of messages in a request: 100 by default.")
    max_characters: int | None = setting(
        help="Largest number of characters in all messages of a request: 100000 by default."
    )
    equivalence: str | None = opt.EQUIVALENCE
    answer_format: str | None = setting(
        help="The rule that reads answers: that of the calibration by default."
    )
    few_shot: Path | None = setting(help="Answered questions that stand before each question.")
    system: str | None = opt.SYSTEM
    template: Path | None = opt.TEMPLATE
    seed: int | None = setting(min=0, help="Random seed, as of semcal ask: 0 by default.")
    force: bool = opt.FORCE
    cache: Path | None = opt.CACHE
    device: str | None = opt.DEVICE
    nli_device: str | None = opt.NLI_DEVICE
    dtype: str | None = opt.DTYPE
    memory: str | None = opt.MEMORY


def command(options: ServeOptions, server: opt.ServerOptions) -> int:
    """Answer the chat completions of OpenAI's clients, with the probability that an answer is right.

    The reply's object semcal says how likely the answer is right, and whether to abstain; what the
    calibration does not cover is refused. Without --model the embedded Atlas model answers.
    """
    try:
        from semcal.serve.endpoints import HttpServer, listening
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("fastapi", "uvicorn", "prometheus_client", "starlette"):
            raise
        raise MissingExtraError(package, "serve", "semcal serve") from error
    settings = _settings(options)
    with _logging_to_stderr(), listening(settings) as bound:
        service = _service(options, server, settings)
        host, port = bound.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{port}"
        info(f"serve: {' and '.join(service.models)} at {url}/v1; a page to try it at {url}/")
        web_server = HttpServer(service)
        limits = web_server.limits
        info(f"serve: at most {limits.total} connections, {limits.per_address} of them from one address")
        web_server.answer(bound)
    if service.n_given_up:
        info(f"serve: stopped; {service.n_given_up} requests got no answer")
        sys.stderr.flush()
        os._exit(0)  # without the pass under way
    info("serve: stopped; what was asked is answered")
    return 0


def _settings(options: ServeOptions) -> ServeSettings:
    """What the server is told; what was not given is as it is by default."""
    from semcal.serve.configuration import LABEL_KEYS, ServeSettings, read_keys

    names = {field.name for field in fields(ServeSettings)} - {"keys", "label_keys"}
    values = vars(options)
    chosen = {name: values[name] for name in names & values.keys() if values[name] is not None}
    keys, label_keys = read_keys(options.keys), read_keys(options.label_keys, variable=LABEL_KEYS)
    return ServeSettings(**chosen, answers=not options.no_answers, keys=keys, label_keys=label_keys)


def _service(options: ServeOptions, server: opt.ServerOptions, settings: ServeSettings) -> Service:
    """The model with its calibration."""
    from semcal.serve.engine import ScoreSource
    from semcal.serve.service import Service

    if options.model is None and options.calibration is None:
        info("serve: the embedded model of an invented world answers; name yours with --model")
        options = replace(options, model=opt.ATLAS, calibration=opt.ATLAS)
    calibration = None if options.calibration is None else opt.open_calibration(options.calibration)
    score = None if calibration is None else calibration.score
    if score is not None and (options.model or options.fallback):
        raise UsageError(
            f"--model: the calibration is of the score {score.name!r}, which requests bring; omit it"
        )
    if calibration is None or options.calibration is None or (options.model is None and score is None):
        raise UsageError(
            "give --model and --calibration: a probability is that of one model; `semcal calibrate "
            "LABELLED --model MODEL --out DIR` learns it"
        )
    if options.log is None and (options.audit or options.label_log):
        option = "--audit" if options.audit else "--label-log"
        raise UsageError(f"{option} is of labels, which need --log FILE; give that as well")
    if options.log and options.label_log and options.log.resolve() == options.label_log.resolve():
        raise UsageError(
            f"--label-log {options.label_log} is the --log as well; give each replica a --log of its own"
        )
    log = None if options.log is None else ReplyLog(options.log)
    label_log = None if options.label_log is None else ReplyLog(options.label_log)
    if log is not None and label_log is not None:  # which may lack what this log holds already
        label_log.take_over(log.path)
    prompt = {"few_shot": options.few_shot, "system": options.system, "template": options.template}
    uq = (
        cast("SemanticUQ", ScoreSource(calibration))
        if score is not None
        else _with_calibration(options, server, calibration, options.fallback, **prompt)
    )
    for line in (*calibration.report.first, *map(promise, calibration.all_thresholds)):
        info(f"serve: {line}")
    model = opt.ATLAS if options.model == opt.ATLAS else uq.model.name
    names = (model, Path(options.calibration).name or "calibration")
    watch = None if log is None else _watch(label_log or log, calibration)
    fallback, examples = _fallback(options, server), _examples(options.calibration)
    return Service(
        *(uq, settings),
        names=names,
        fallback=fallback,
        log=log,
        label_log=label_log,
        watch=watch,
        examples=examples,
    )


def _with_calibration(
    options: ServeOptions,
    server: opt.ServerOptions,
    calibration: Calibration,
    other: str | None,
    **prompt: Any,
) -> SemanticUQ:
    """The model of the options, as it is asked with a calibration, without what is for the `other` alone."""
    from semcal.calibration.compatibility import equivalence_of
    from semcal.uncertainty import SemanticUQ

    is_served = options.model is not None and names_a_server(options.model)
    others = () if is_served or other is None else (other,)  # not two hosts: a key is for one
    equivalence = str(equivalence_of(calibration, options.equivalence))
    models = opt.ModelOptions.of(replace(options, equivalence=equivalence), server, *others)
    # A small model waits for its threads more than it computes, but for the second one while others are
    # answered; the fallback may be large.
    n_threads = max(2, opt.choose_workers(None, "serve", models, blocks=1).n_threads)
    state = models() if options.fallback else opt.load_with_threads(models, n_threads)
    as_option(options.seed or 0, "--seed", "a whole number from 0 on", low=-1, whole=True)
    prompt |= {"seed": options.seed or 0, "force": options.force, "answer_format": options.answer_format}
    return SemanticUQ(state.model, calibration=calibration, equivalence=state.equivalence, **prompt)


def _examples(calibration: str) -> list[str]:
    """Some questions that a calibration was learnt from, for the page; none where it keeps none."""
    if calibration == opt.ATLAS:
        from semcal.demo.questions import load_set

        sets = map(load_set, ("atlas-trivia", "atlas-rare"))
        return [question.question for one in sets for question in one.test[:EXAMPLES]]
    file = Path(calibration) / SAMPLES
    lines = list(islice(read_rows(file), READ)) if file.is_file() else []
    rows = [line.data for line in lines if isinstance(line, JsonLine)]
    questions = (str(row.get("question") or "") for row in rows if not row.get("context"))
    return list(filter(None, dict.fromkeys(questions)))[: 2 * EXAMPLES]


def _fallback(options: ServeOptions, server: opt.ServerOptions) -> SemanticUQ | None:
    """The stronger model with its calibration, whose prompt it is asked with; None where there is none."""
    if options.fallback is None and options.fallback_calibration is None:
        return None
    if options.fallback is None or options.fallback_calibration is None:
        raise UsageError("--fallback MODEL and --fallback-calibration DIR go together; give both")
    calibration = opt.open_calibration(options.fallback_calibration)
    second = replace(options, model=options.fallback, equivalence=None, answer_format=None)
    return _with_calibration(second, server, calibration, options.model)


def _watch(log: ReplyLog, calibration: Calibration) -> PromiseWatch:
    """The watch on the promise, with what the log holds already of the calibration's own replies."""
    from semcal.calibration.watch import PromiseWatch

    watch = PromiseWatch.of(calibration)
    watch.read(log, (calibration.id,))
    if watch.shift is not None:
        info(f"serve: {watch.shift}")
    if watch.alarm:
        info(f"serve: the labels in {log.path} raise an alarm; see docs/monitor.md")
    return watch


@contextmanager
def _logging_to_stderr() -> Iterator[None]:
    """Write the log of requests to stderr, a line of JSON each; none with -q."""
    logger, handler = logging.getLogger("semcal.serve"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if is_quiet() else logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
