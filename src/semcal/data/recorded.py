"""Logs of other programs as rows for `semcal cluster`: lm-eval, inspect, OpenAI's batch files.

A log-likelihood is used if the file states T = 1 and top_p = 1, states no other change of the distribution,
and lists all tokens of the answer and its end of turn. (At T = 1, raw and scaled log-probabilities are
equal.) A question with a missing reply is a bad row. A refusal, or a reply without text or choices, has no
answer.

A log also holds one answer of its own: the text that lm-eval's filter extracted and its metric judged, the
first epoch of inspect with its score, or the only reply to a question of a batch.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from semcal.data.datasets import load_questions, parse_list
from semcal.data.question import Question, RowData, passage_key
from semcal.errors import InputError, RowError, UsageError, shown
from semcal.files import LONGEST, JsonLine, inside, parse, read_rows, row_of
from semcal.meaning.answer import AnswerFormat, AnswerSpan

_Rows = Iterator[JsonLine | RowError]

#: Files that can run code when they are opened: endings, and first bytes.
_PICKLES = (".man", ".pkl", ".pickle", ".joblib", ".pt", ".pth")
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
#: Maximum number of bytes of all members of a log, unpacked.
LARGEST = 4_000_000_000
#: The last question of a prompt without blank lines.
_LAST_QUESTION = re.compile(r"(?:^|\n)(?:Question|Q):\s*(\S[^\n]*)\n(?:Answer|A):$")
_SAMPLE = re.compile(r"(.+)#(\d{1,9})")
#: Output of lm-eval's filters if they find nothing.
_NOT_EXTRACTED = "[invalid]"
#: Settings that do not change the distribution; temperature and top_p must be stated.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("temperature", "top_p"), (1,)),
    **dict.fromkeys(("min_p", "frequency_penalty", "presence_penalty"), (None, 0)),
    "top_k": (None, 0, -1),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
}


@dataclass
class _Reply:
    text: str | None
    choice: Any = None  # with its log-probabilities
    refusal: str | None = None
    extracted: str | None = None  # the answer that the log extracted from the text, if it differs


@dataclass
class _Answers:
    """The recorded replies to one question, and their sampling settings."""

    line: int
    question: str | None = None
    answers: list[str] | None = None
    context: str | None = None
    settings: RowData = field(default_factory=dict)  # temperature, top_p, … that the file states
    replies: dict[tuple[int, int], _Reply] = field(default_factory=dict)  # by (request, choice)
    # answer and verdict of the log, by request
    stated: dict[int, tuple[str | None, bool | None]] = field(default_factory=dict)
    fault: str | None = None  # the first reason why the question is a bad row
    read_by: AnswerFormat | None = None  # None: the answer that the log extracted, else auto

    def fail(self, reason: str) -> None:
        """Make the question a bad row, for the first reason."""
        self.fault = self.fault or reason

    def add(self, request: int, choices: Any, stored: RowData) -> None:
        """Add the choices of a reply in the order of their `index`; without choices it has no answer."""
        if not isinstance(choices, list):
            raise InputError(f"no answer: expected a list of choices, got {shown(choices)}")
        if (request, 0) in self.replies:
            raise InputError(f"sample {request} occurs twice. Keep one.")
        places = [inside(choice, "index") for choice in choices]
        if all(type(place) is int for place in places) and len(set(places)) == len(places):
            choices = [choice for _, choice in sorted(zip(places, choices), key=lambda pair: pair[0])]
        self.replies[request, 0] = _Reply(None)
        for number, choice in enumerate(choices):
            self.replies[request, number] = _reply(choice, stored)

    def answer(self, reply: _Reply) -> str | None:
        """Return the answer in a reply, None if it has none."""
        if reply.extracted == _NOT_EXTRACTED and self.read_by is None:
            return None
        found = self._found(reply.text if self.read_by or reply.extracted is None else reply.extracted)
        return None if found is None else found.text

    def _found(self, text: str | None) -> AnswerSpan | None:
        return (self.read_by or AnswerFormat()).read(text, self.question or "")

    def row(self, name: str, *, given: bool) -> JsonLine | RowError:
        """Return the row, with the log's own answer if `given`."""
        alone = given and (len(self.replies) <= 1 or self.settings.get("temperature") == 0)
        try:
            if self.fault is not None:
                raise InputError(self.fault)
            stated = self._own_answer() if given else {}
            samples = {} if alone else self._samples()
        except InputError as error:
            return RowError(self.line, str(error), name)
        row = {
            "id": name,
            "question": self.question,
            "context": self.context,
            "answers": self.answers or None,
            **stated,
            **samples,
        }
        return row_of(self.line, {key: value for key, value in row.items() if value is not None})

    def _samples(self) -> RowData:
        temperature = self.settings.get("temperature")
        if temperature == 0:
            raise InputError(
                "decoded greedily (T = 0): such answers are not samples. Sample at T > 0, or import them as "
                "answers to check (--answer given)."
            )
        replies = [self.replies[key] for key in sorted(self.replies)]
        samples, refusals = list(map(self.answer, replies)), [reply.refusal for reply in replies]
        likely = [self._log_likelihood(reply) for reply in replies]
        missing = any(value is None and text is not None for value, text in zip(likely, samples))
        known = any(value is not None for value in likely) and not missing
        return {
            "generations": [reply.text or "" for reply in replies],
            "samples": samples,
            "answer_format": (self.read_by or AnswerFormat()).name,
            "refusals": refusals if any(refusals) else None,
            "log_likelihoods": likely if known else None,
            "temperatures": None if not temperature else [temperature] * len(replies),
        }

    def _log_likelihood(self, reply: _Reply) -> float | None:
        """Mean log-probability of the answer's tokens and its end of turn; None if uncertain."""
        entries, text = inside(reply.choice, "logprobs", "content"), reply.text or ""
        found = self._found(reply.text)
        plain = all(self.settings.get(key) in values for key, values in _PLAIN.items())
        finished = "stop" in (inside(reply.choice, "finish_reason"), inside(reply.choice, "stop_reason"))
        complete = found is not None and found.text == self.answer(reply) and not text[found.end :].strip()
        if not (plain and finished and complete and isinstance(entries, list) and entries):
            return None
        tokens, values = zip(*((inside(entry, "token"), inside(entry, "logprob")) for entry in entries))
        if not all(isinstance(token, str) for token in tokens) or "".join(tokens[:-1]) != text:
            return None
        begins = accumulate(map(len, tokens[:-1]), initial=0)
        start = found.start if found is not None else 0
        places = [k for k, at in enumerate(begins) if at <= start and not text[at:start].strip()]
        values = values[places[0] :] if places else ()
        # the bound keeps the sum finite, too
        finite = all(type(value) in (int, float) and -1e300 < value <= 0 for value in values)
        return math.fsum(values) / len(values) if values and finite else None

    def _own_answer(self) -> RowData:
        if self.stated:
            text, correct = self.stated[min(self.stated)]
        elif len(self.replies) == 1:
            text, correct = self.answer(next(iter(self.replies.values()))), None
        else:
            raise InputError(f"--answer given: it has {len(self.replies)} replies. Keep one.")
        if text is None:
            raise InputError("the log's own answer is empty (null, a refusal, reasoning alone)")
        return {"answer": text, "correct": correct}


def _verdict(value: Any) -> bool | None:
    """Return the verdict of a score; None unless it is 0, 1 or a letter of inspect."""
    named = {"C": True, "I": False, "N": False}.get(value) if isinstance(value, str) else None
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else named


def _text(content: Any, stored: RowData) -> str:
    """Return a text or the text parts of a message; references to attachments are resolved."""
    if isinstance(content, list):
        texts = (inside(part, "text") for part in content if inside(part, "type") == "text")
        return "".join(_text(text if isinstance(text, str) else None, stored) for text in texts)
    text = content
    if isinstance(content, str) and content.startswith("attachment://"):
        text = stored.get(content.removeprefix("attachment://"))
    if not isinstance(text, str):
        raise InputError(f"expected a text, got {shown(content)}")
    return text


def _reply(choice: Any, stored: RowData) -> _Reply:
    """Return the text of a choice without reasoning, and its refusal, which may be a part of the content."""
    message, content = inside(choice, "message"), inside(choice, "message", "content")
    is_choice = isinstance(choice, Mapping) and ("message" in choice or "text" in choice)
    if not is_choice or not isinstance(message, Mapping | None):
        raise InputError(f"expected a choice with a message or a text, got {shown(choice)}")
    content = inside(choice, "text") if content is None else content
    refusals = [inside(message, "refusal")]
    if isinstance(content, list):
        refused = [part for part in content if inside(part, "refusal")]
        refusals += [inside(part, "text") or inside(part, "refusal") for part in refused]
        content = [part for part in content if inside(part, "type") == "text" and part not in refused] or None
    text = None if content is None else _text(content, stored)
    refusal = "".join(one for one in refusals if isinstance(one, str)) or None
    ends = (inside(choice, "finish_reason"), inside(choice, "stop_reason"))
    is_refused = refusal is not None or "content_filter" in ends
    return _Reply(None if is_refused and not (text or "").strip() else text, choice, refusal)


def _question(turns: Any, stored: RowData) -> str:
    if isinstance(turns, list):
        turns = next(
            (inside(turn, "content") for turn in turns[::-1] if inside(turn, "role") == "user"), None
        )
    return _text(turns, stored)


# lm-eval: a line for each document and filter; all filters of a document have the same raw answers


def _read_lm_eval(source: str, _: str | None, given: bool, read_by: AnswerFormat | None) -> _Rows:
    versions_of: dict[str, list[Any]] = {}
    for row in read_rows(source):
        if isinstance(row, RowError):
            yield row
            continue
        name, version = str(row.data.get("doc_id")), (row.data.get("doc_hash"), row.data.get("filter"))
        versions = versions_of.setdefault(name, [])
        is_repeated = version in versions or any(version[0] != doc_hash for doc_hash, _ in versions)
        versions.append(version)
        try:
            if is_repeated:
                raise InputError("another line has this doc_id. Import the file of one task and one run.")
            if len(versions) == 1:
                entry = _of_lm_eval(row, read_by)
                if given:
                    entry.stated[0] = _filtered(row.data, entry)
                yield entry.row(name, given=given)
        except InputError as error:
            yield RowError(row.line, str(error), name)


def _of_lm_eval(row: JsonLine, read_by: AnswerFormat | None) -> _Answers:
    line, resps = row.data, row.data.get("resps")
    if "doc_id" not in line or not isinstance(resps, list):
        raise InputError("no 'doc_id' or 'resps': expected a line of samples_*.jsonl (lm_eval --log_samples)")
    texts = resps[0] if len(resps) == 1 and isinstance(resps[0], list) else resps
    if not texts or not all(isinstance(text, str | None) for text in texts):
        raise InputError(
            f"'resps' must be sampled texts, got {shown(resps)} (log-likelihoods in multiple choice). "
            "Import a task that generates."
        )
    arguments = line.get("arguments")
    if isinstance(arguments, list):  # before lm-eval 0.4.3
        first = arguments[0] if arguments and isinstance(arguments[0], list) else arguments
        arguments = {"gen_args_0": dict(zip(("arg_0", "arg_1"), first))}
    prompt = _last_turn(inside(arguments, "gen_args_0", "arg_0"))
    stated = inside(arguments, "gen_args_0", "arg_1")
    filtered = line.get("filtered_resps")
    if not isinstance(filtered, list) or len(filtered) != len(texts):
        filtered = [None] * len(texts)
    replies = [_Reply(text, extracted=_other(found, text)) for text, found in zip(texts, filtered)]
    settings = dict(stated) if isinstance(stated, Mapping) else {}
    settings |= {"temperature": 0} if settings.get("do_sample") is False else {}
    lines = filter(None, map(str.strip, prompt.split("\n"))) if isinstance(prompt, str) else ()
    end = _LAST_QUESTION.search("\n".join(lines))
    question, context = inside(line, "doc", "question"), inside(line, "doc", "context")
    if not isinstance(question, str) or not question:
        question = end[1] if end else prompt
    return _Answers(
        row.line,
        _text(question, {}),
        _aliases(line.get("target")),
        context if isinstance(context, str) else None,
        settings,
        {(number, 0): reply for number, reply in enumerate(replies)},
        read_by=read_by,
    )


def _last_turn(prompt: Any) -> Any:
    text = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    with suppress(InputError):
        turns = parse(text)[0] if isinstance(text, str) and text.lstrip().startswith("[") else prompt
        return _question(turns, {}) if isinstance(turns, list) else text
    return text


def _other(extracted: Any, text: str | None) -> str | None:
    """Return the answer that a log extracted from a text; None if it is not a text, or all of the text."""
    return extracted if isinstance(extracted, str) and extracted.strip() != (text or "").strip() else None


def _filtered(line: RowData, entry: _Answers) -> tuple[str | None, bool | None]:
    """Return the text that the filter extracted, and the first metric's verdict on it."""
    texts = line.get("filtered_resps")
    if isinstance(texts, list) and len(texts) == 1:
        (texts,) = texts
    if not isinstance(texts, str):
        raise InputError(
            f"'filtered_resps' must be one text, got {shown(texts)}. Use a task with a filter that keeps one "
            "(take_first), or leave --answer out."
        )
    metrics = line.get("metrics")
    first = metrics[0] if isinstance(metrics, list) and metrics else None
    is_raw = all(_other(texts, reply.text) is None for reply in entry.replies.values())
    answer = entry.answer(_Reply(texts, extracted=None if is_raw else texts))
    return answer, _verdict(line.get(first) if isinstance(first, str) else None)


def _aliases(target: Any) -> list[str]:
    """Return the references, which lm-eval writes as Python prints a list, or after "####" (GSM8K)."""
    if isinstance(target, str) and (worked := re.search(r"^####[ \t]*(\S[^\n]*)\s*\Z", target, re.MULTILINE)):
        return [worked[1].rstrip()]
    if isinstance(target, str) and target.startswith("[") and target.endswith("]"):
        try:
            listed = parse_list(target)
        except InputError:
            return [target]
        return listed if all(isinstance(text, str) for text in listed) else [target]
    return [str(text) for text in (target if isinstance(target, list) else [target]) if text is not None]


# inspect: one sample for each question and epoch, in a zip file or a JSON file


def _read_inspect(source: str, _: str | None, given: bool, read_by: AnswerFormat | None) -> _Rows:
    log = (_json_log if Path(source).suffix.lower() == ".json" else _eval_log)(Path(source))
    header = next(log)
    configs = (inside(header, "eval", "model_generate_config"), inside(header, "plan", "config"))
    settings = {
        key: value for config in configs for key in _PLAIN if (value := inside(config, key)) is not None
    }
    answers: dict[str, _Answers] = {}
    for number, sample in enumerate(log, start=1):
        usual = _Answers(number, settings=settings, read_by=read_by)
        entry = answers.setdefault(str(inside(sample, "id")), usual)
        try:
            _add_epoch(entry, sample)
        except InputError as error:
            entry.fail(f"epoch {shown(inside(sample, 'epoch'))}: {error}")
    for name, entry in answers.items():
        yield entry.row(name, given=given)


def _add_epoch(entry: _Answers, sample: Any) -> None:
    if (failed := inside(sample, "error")) is not None:
        raise InputError(
            f"the run failed: {shown(inside(failed, 'message'))}. Leave it out, or run it again."
        )
    stored, epoch, target = (inside(sample, key) for key in ("attachments", "epoch", "target"))
    stored = stored if isinstance(stored, Mapping) else {}
    number = epoch if isinstance(epoch, int) else 1
    entry.add(number, inside(sample, "output", "choices"), stored)
    scores, reply = inside(sample, "scores"), entry.replies[number, 0]
    found = list(scores.values()) if isinstance(scores, Mapping) else []
    extracting = [one for one in found if _other(inside(one, "answer"), reply.text) is not None]
    score = next(iter(extracting or found), None)
    reply.extracted = _other(inside(score, "answer"), reply.text)
    question = _question(inside(sample, "input"), stored)
    if entry.question not in (None, question):
        raise InputError("its input differs from that of other epochs. Give each question its own id.")
    entry.question = question
    entry.stated[number] = entry.answer(reply), _verdict(inside(score, "value"))
    entry.answers = [_text(text, stored) for text in (target if isinstance(target, list) else [target])]


def _json_log(path: Path) -> Iterator[Any]:
    log = _parsed(path.read_bytes(), path)
    if not isinstance(inside(log, "samples"), list):
        raise InputError(f"{path} has no samples: expected an inspect log with its samples")
    yield log
    yield from log["samples"]


def _eval_log(path: Path) -> Iterator[Any]:
    """Yield the header, then the samples. The declared sizes of members are not trusted."""
    with _opened_zip(path) as log:
        names = log.namelist()
        samples = [name for name in names if name.startswith("samples/") and name.endswith(".json")]
        if not samples:
            raise InputError(f"{path} has no samples in JSON: expected an inspect log with its samples")
        header = [name for name in ("header.json", "_journal/start.json") if name in names]
        if not header:
            yield {}
        size = 0
        for name in [*header[:1], *samples]:
            with log.open(name) as member:
                raw = member.read(LONGEST + 1)
            size += len(raw)
            if len(raw) > LONGEST or size > LARGEST:
                raise InputError(
                    f"{path} unpacks to more than {LARGEST:,} bytes, or {shown(name)} in it to more than "
                    f"{LONGEST:,}. Log fewer or shorter samples in a file."
                )
            yield _parsed(raw, f"{path}: {name}")


@contextmanager
def _opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file; InputError for another, damaged or encrypted file, also while it is read."""
    if not hasattr(zipfile, "ZIP_ZSTANDARD"):  # Python reads zstd from 3.14 on
        with suppress(ImportError):
            __import__("zipfile_zstd")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not an inspect log, is damaged or encrypted, or has another compression "
            f"({str(error)[:200]}). Install zipfile-zstd if it is compressed with zstd, or run inspect log "
            "convert FILE --to json --output-dir DIR, and import the JSON file."
        ) from error


def _parsed(raw: bytes, where: str | Path) -> Any:
    try:
        return parse(raw.decode("utf-8"))[0]
    except (UnicodeDecodeError, InputError) as error:
        raise InputError(f"{where}: {error}") from None


# OpenAI's batch files: a line for each request, in any order; samples of q are "q#0", "q#1", … or choices


def _read_batch(source: str, requests: str | None, given: bool, read_by: AnswerFormat | None) -> _Rows:
    answers: dict[str, _Answers] = {}
    waiting = dict(_requests(answers, requests)) if requests else {}
    for row in read_rows(source):
        if isinstance(row, RowError) or not isinstance(row.data.get("custom_id"), str):
            no_id = "no 'custom_id': expected a line of the output file of a batch"
            yield row if isinstance(row, RowError) else RowError(row.line, no_id)
            continue
        waiting.pop(row.data["custom_id"], None)
        name, number = _question_and_sample(row.data["custom_id"])
        entry = answers.setdefault(name, _Answers(row.line))
        entry.read_by = read_by
        status = inside(row.data, "response", "status_code")
        try:
            choices = inside(row.data, "response", "body", "choices")
            if row.data.get("error") or status not in (None, 200):
                why = row.data.get("error") or inside(row.data, "response", "body", "error")
                if inside(why, "code") != "content_filter":
                    reason = shown(inside(why, "message") or why or status)
                    raise InputError(f"it failed ({reason}). Send it again.")
                choices = [
                    {"message": {"refusal": inside(why, "message")}, "finish_reason": "content_filter"}
                ]
            entry.add(number, choices, {})
        except InputError as error:
            entry.line = row.line
            entry.fail(f"request {shown(row.data['custom_id'])}: {error}")
    for request, entry in waiting.items():
        entry.fail(f"no reply to request {shown(request)} in {source}. See the error file.")
    for name, entry in answers.items():
        numbers = sorted({number for number, _ in entry.replies})
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            entry.fail(f"samples are missing: there are only numbers {shown(numbers)}")
        yield entry.row(name, given=given)


def _requests(answers: dict[str, _Answers], requests: str) -> Iterator[tuple[str, _Answers]]:
    for row in read_rows(requests):
        if isinstance(row, RowError):
            raise InputError(f"{requests}: {row}")
        body = row.data.get("body")
        request = str(row.data.get("custom_id"))
        question = _question(inside(body, "messages") or inside(body, "prompt"), {})
        settings = {key: inside(body, key) for key in _PLAIN}
        name, _ = _question_and_sample(request)
        entry = answers.setdefault(name, _Answers(row.line, question, settings=settings))
        if (entry.question, entry.settings) != (question, settings):
            entry.fail(f"request {shown(request)} differs from the other samples in question or settings")
        yield request, entry


def _question_and_sample(request: str) -> tuple[str, int]:
    """Split a custom_id into the question and the number of the sample."""
    sample = _SAMPLE.fullmatch(request)
    return (sample[1], int(sample[2])) if sample else (request, 0)


@dataclass(frozen=True)
class _Format:
    read: Callable[[str, str | None, bool, AnswerFormat | None], _Rows]
    no_likelihoods: str  # the reason if rows have no log-likelihoods


_UNSURE = "the file does not state T = 1 and top_p = 1, or does not list all tokens with the end of turn"
FORMATS = {
    "lm-eval": _Format(_read_lm_eval, "lm-eval does not store them"),
    "inspect": _Format(_read_inspect, _UNSURE),
    "openai-batch": _Format(_read_batch, f"{_UNSURE} (--requests states T)"),
}
"""The log formats that can be imported."""


def read_recorded(
    source: str,
    format: str,
    *,
    requests: str | None,
    questions: str | None,
    given: bool = False,
    answer_format: str | None = None,
) -> _Rows:
    """Yield a row {id, question, answers, generations, samples, log_likelihoods?, temperatures?} a question.

    The answers are those that the log extracted from the replies, or else those that "auto" finds. With
    `answer_format`, this format alone finds them. `requests` is the request file of a batch. `questions` is a
    file of questions with reference answers, which replace those of the source.

    With `given`, a row also has the log's own `answer`, and `correct` if the log judges it 0 or 1; it has no
    samples if this is the only answer, or T = 0. InputError if a source cannot be read as a whole, or is a
    pickle.
    """
    if requests is not None and format != "openai-batch":
        raise UsageError(f"--requests is for openai-batch, not for {format}. Leave it out.")
    read_by = None if answer_format is None else AnswerFormat(answer_format)
    _refuse_pickle(source)
    listed = () if questions is None else load_questions(questions)
    by_id = {question.id: question for question in listed if not question.numbered}
    for row in FORMATS[format].read(source, requests, given, read_by):
        yield row if isinstance(row, RowError) else _join_question(row, questions, by_id)


def _join_question(
    row: JsonLine, source: str | None, questions: Mapping[str, Question]
) -> JsonLine | RowError:
    """Join a row with the question of its id; another wording in the log becomes `prompt`."""
    text = row.data.get("question")
    if source is None:
        return row if text else row.error("its question is unknown. Give --requests or --questions.")
    question = questions.get(row.data["id"])
    if question is None:
        return row.error(f"no question with this id in {source}. Give each question the id of the log.")
    if text is not None and passage_key(question.question) not in passage_key(text):
        return row.error(
            f"its question is {shown(text)}, but the question with this id in {source} is "
            f"{shown(question.question)}. Correct the ids (lm-eval counts from 0)."
        )
    answers = {key: value for key, value in row.data.items() if key not in ("question", "answers", "context")}
    prompt = {} if text in (None, question.question) else {"prompt": text}
    return JsonLine(row.line, {**row.data, **question.row(), **answers, **prompt})


def _refuse_pickle(source: str) -> None:
    """Raise InputError for a file that could run code when it is opened."""
    path = Path(source)
    if source == "-":
        return
    if not path.is_file():
        raise InputError(f"{path}: the file does not exist. Check the path.")
    with path.open("rb") as handle:
        start = handle.read(2)
    if _PICKLE_START.match(start) or path.suffix.lower() in _PICKLES:
        raise InputError(
            f"{path} is a pickle (such as lm-polygraph's .man, or a file of torch.save), which can run any "
            "code when it is opened. If you trust it, open it in its own program and write JSON Lines {id, "
            "question, answers, samples}."
        )
