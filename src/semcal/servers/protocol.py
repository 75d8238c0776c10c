"""What is said to a server and what it answers: its profile, bodies of requests, choices with their tokens.

Every request states what would otherwise truncate or bend the distribution. Replies of either endpoint are
read without what a model thought before it answered.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from semcal.errors import SemcalWarning, shown
from semcal.meaning.answer import split_reasoning
from semcal.models.distribution import uniforms
from semcal.models.protocols import Prompt
from semcal.rows import Json
from semcal.servers.client import ServerRequest

#: What switches truncation and penalties off, under all the names that servers have for them.
NEUTRAL: Json = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
}


@dataclass(frozen=True)
class ServerProfile:
    """What one model behind one server does. `semcal probe` prints it.

    Whatever could not be found out has the value that promises least.
    """

    url: str
    model: str
    server: str = "unknown"  # "llama.cpp", "vLLM", "SGLang", "TGI", "Ollama", ...
    version: str | None = None
    max_length: int | None = None  # tokens of prompt and answer
    vocabulary: int | None = None  # its size, where the server tells it or lists all of it
    #: Fields of every request: all of `NEUTRAL` that the server takes, with values that it takes.
    neutral: Json = field(default_factory=lambda: dict(NEUTRAL))
    max_n: int = 1  # the largest n of one request that gave n choices
    seed: bool = False  # the same request with the same seed gives the same answer
    choices_differ: bool = False  # the choices of one request with a seed differ from each other
    log_probs: Literal["raw", "scaled", "masked"] | None = None  # of a draw at T other than 1
    scaled_on_request: bool = False  # post_sampling_probs: those at T, per request (llama.cpp)
    top_log_probs: int = 0  # alternatives that a token may have at most
    whole_vocabulary: bool = False  # they may be all tokens
    chosen_ids: bool = False  # logprob_token_ids: log-probabilities of tokens that the request names
    scores_prompt: Literal["prompt_logprobs", "echo"] | None = None  # teacher forcing, at T = 1
    forced_raw: bool = False  # a token that logit_bias forces has its raw log-probability (llama.cpp)
    token_ids_in: bool = False  # /completions takes a prompt of token ids
    token_ids_out: bool = False  # the ids of drawn tokens come back
    end_included: bool = False  # the end of turn has a log-probability of its own
    prefix_cached: bool | None = None  # None: unknown
    truncated_to: str | None = None  # how draws are cut although every request asks for the whole vocabulary
    max_temperature: float | None = None  # the largest that is accepted; None: no limit was met

    @property
    def together(self) -> int:
        """How many answers to ask for in one request.

        One of llama.cpp: after n > 1 its build b11549 answers others from a wrong cache now and then, and its
        `usage`, of one answer of n, cannot show that a token has lost its entry.
        """
        return self.max_n if self.choices_differ and self.server != "llama.cpp" else 1

    @property
    def slots(self) -> int | None:
        """How many prompts llama.cpp has in work, each with what it keeps of the last one; None: unknown.

        It refuses an n above that; the probe goes to `MOST_CHOICES`.
        """
        is_known = self.server == "llama.cpp" and self.prefix_cached and 1 < self.max_n < MOST_CHOICES
        return self.max_n if is_known else None


#: The largest n that the probe asks for.
MOST_CHOICES = 10
#: More than a template adds to a turn, in tokens.
_A_TURN = 16


@dataclass(frozen=True)
class AnswerRequest:
    """What a request asks for. Only `schema` constrains answers; log-probabilities are not asked for then.

    `at_temperature` asks for log-probabilities at T where the server gives them on request (llama.cpp),
    `forced` for this token in place of a drawn one.
    """

    temperature: float  # 0: the most likely token at every step
    max_tokens: int
    n: int = 1
    seed: int | None = None
    log_probs: bool = True
    alternatives: int = 1  # the most likely tokens that are listed at each step
    token_ids: tuple[int, ...] = ()  # further tokens that are listed (`ServerProfile.chosen_ids`)
    at_temperature: bool = False
    forced: int | None = None
    schema: Json | None = None  # the answers are JSON documents that are valid under it


def request_seeds(seed: int, question_id: str, *, m: int, steps: int = 1, first: int = 0) -> list[list[int]]:
    """Seeds of 31 bits for requests, (m, steps): from `uniforms`, with its parameters."""
    u = uniforms(seed, question_id, m=m, steps=steps, first=first)
    seeds: list[list[int]] = (u * 2**31).astype(int).tolist()
    return seeds


def request_for(profile: ServerProfile, prompt: Prompt, answer: AnswerRequest) -> ServerRequest:
    """Ask for answers to a prompt: its token ids go to /completions, or its chat to /chat/completions."""
    in_chat = not prompt.token_ids
    fields = {
        "model": profile.model,
        **profile.neutral,
        "temperature": answer.temperature,
        "n": None if answer.n == 1 else answer.n,
        "seed": answer.seed,
        "logit_bias": None if answer.forced is None else {str(answer.forced): 100},
        "response_format": None
        if answer.schema is None
        else {"type": "json_schema", "json_schema": {"name": "answer", "schema": answer.schema}},
    }
    if profile.log_probs is not None and answer.log_probs:
        fields |= _log_probs(profile, answer, in_chat=in_chat)
    if profile.server == "llama.cpp":  # whose command line may have set others
        fields["samplers"] = ["temperature"]
    fields["return_token_ids"] = True if profile.server == "vLLM" else None
    limit = "max_completion_tokens" if in_chat and profile.server == "OpenAI" else "max_tokens"
    if in_chat:
        fields["messages"] = [{"role": turn.role, "content": turn.content} for turn in prompt.chat]
        longest = sum(len(turn.content.encode(errors="replace")) + _A_TURN for turn in prompt.chat)
    else:
        fields["prompt"], longest = list(prompt.token_ids), len(prompt.token_ids)
    fields[limit] = answer.max_tokens
    path = "/chat/completions" if in_chat else "/completions"
    return ServerRequest(path, {}, longest, answer.n * answer.max_tokens).with_fields(fields)


def _log_probs(profile: ServerProfile, answer: AnswerRequest, *, in_chat: bool) -> Json:
    """What asks for log-probabilities; never for 0 alternatives, which some servers take for none at all."""
    k = max(1, answer.alternatives)
    on_request = answer.at_temperature and profile.scaled_on_request
    return {
        "logprobs": True if in_chat else k,
        "top_logprobs": k if in_chat and profile.top_log_probs else None,
        # Two tokens may have one text, and half a character has none.
        "return_tokens_as_token_ids": True if profile.server == "vLLM" else None,
        "logprob_token_ids": list(answer.token_ids) if profile.chosen_ids and answer.token_ids else None,
        **({"post_sampling_probs": True, "samplers": ["temperature"]} if on_request else {}),
    }


@dataclass
class ReplyCount:
    """Counts of replies of a server that leave their answer or their end open."""

    thought: int = 0  # answers that came after thinking
    cut: int = 0  # thinking alone: the reply ended before an answer came
    unknown: int = 0  # answers without a known finish_reason

    def add(self, choices: Sequence[ReplyChoice], limit: int) -> None:
        """Count choices; warn once of thinking without an answer, and once of ends that are unknown."""
        thought = [choice.refusal != "" for choice in choices if choice.reasoning]
        cut, unknown = thought.count(False), [choice.finished for choice in choices].count(None)
        reasons = []
        if cut and not self.cut:
            reasons.append(
                f"{cut} of {len(thought)} answers were still being thought about when the reply ended (the "
                f"limit is {limit} tokens), and count as no answer; give a larger --max-new-tokens (such as "
                "4000), or switch thinking off at the server"
            )
        if unknown and not self.unknown:
            reasons.append(
                f"{unknown} of {len(choices)} answers came without a known finish_reason, so it is unknown "
                f"whether the limit of {limit} tokens cut them: their 'finished' is null, and their "
                "likelihood too, unless their tokens show the end; compare with a larger --max-new-tokens"
            )
        for reason in reasons:
            warnings.warn(reason, SemcalWarning, stacklevel=4)
        self.thought, self.cut = self.thought + len(thought), self.cut + cut
        self.unknown += unknown


#: Log-probabilities from here down are what JSON has in place of minus infinity.
_LEAST = -9999.0
#: How far above 0 a log-probability, and above 1 a probability, may lie by rounding.
_ROUNDING = 1e-4
#: finish_reason, in any case: the end of turn was drawn, or the limit was reached.
_FINISHED = dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), True)
_FINISHED |= dict.fromkeys(("length", "model_length", "max_tokens"), False)
#: A tool was called after the answer.
_FINISHED |= dict.fromkeys(("tool_calls", "function_call", "tool_use"), True)
#: The answer was withheld; with a text it was cut somewhere.
_WITHHELD = ("content_filter", "refusal", "safety", "sensitive", "recitation")
#: The server gave up.
_FAILED = ("error", "abort", "aborted", "cancelled", "network_error", "insufficient_system_resource")
#: How vLLM writes a token where it is asked for ids (return_tokens_as_token_ids).
_ID = re.compile(r"token_id:(\d{1,10})")
#: Whole numbers that may be an index or a token id.
_IDS = range(2**31)
_BLANKS = re.compile(r"[\s▁]+")


@dataclass(frozen=True)
class TokenEntry:
    """One generated token as the server reports it; an entry may lack what it does not tell."""

    text: str
    log_prob: float  # raw or at T, as the profile says; -inf where the server says no more than "unlikely"
    token_id: int | None = None
    #: The alternatives with their log-probabilities, by token id where it is known, else by text.
    top: Mapping[int | str, float] = field(default_factory=dict)
    piece: bytes | None = field(default=None, compare=False, repr=False)  # its text; None where ids are told

    @property
    def key(self) -> int | str:
        """What stands for the token: its id where that is known, else its text."""
        return self.text if self.token_id is None else self.token_id


@dataclass(frozen=True)
class ReplyChoice:
    """One answer of a reply."""

    text: str  # without the reasoning before it; "" if there is no answer
    finished: bool | None  # it ended by itself: finish_reason "stop", not "length"; None: not told
    reasoning: str = ""  # what it thought before the answer (reasoning_content, <think>...</think>)
    #: Of the answer; None without log-probabilities, and after thinking: they are not those of the answer
    #: given the question.
    entries: tuple[TokenEntry, ...] | None = None
    tokens: int = 0  # generated, those of the reasoning included; 0 where the reply does not say
    token_ids: tuple[int, ...] | None = None  # those that the reply lists beside the entries
    complete: bool = False  # the reply shows that every token of the answer has its entry
    #: What stands in place of an answer: a refusal, or "" for null, no text and reasoning alone.
    refusal: str | None = None


def parse_choices(reply: Json, *, log_probs: bool = True) -> list[ReplyChoice]:
    """Read the choices of a reply of /chat/completions or /completions, in the order of their index.

    Where one has no index, or two have the same, they stand in the order of the list. ValueError that says
    what is damaged: a missing key, a wrong type. Without `log_probs` those of the reply are not looked at.
    """
    if not reply.get("choices") and "error" in reply:
        raise ValueError(f"the reply is an error: {shown(reply['error'])}")
    read, indices = list[ReplyChoice](), list[int]()
    for choice in _get(reply, "choices", list):
        if not isinstance(choice, Mapping):
            raise ValueError(f"a choice is {shown(choice)}, not an object")
        indices += [] if choice.get("index") is None else [_get(choice, "index", int)]
        read.append(_choice(choice, log_probs=log_probs))
    if len(set(indices)) == len(read):
        read = [read[indices.index(place)] for place in sorted(indices)]
        if sorted(indices) != list(range(len(read))):
            raise ValueError(f"the choices are numbered {shown(sorted(indices))}, not from 0 on")
    if not read:
        raise ValueError("'choices' is empty")
    usage = reply.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    adds_up = counted == sum(choice.tokens for choice in read)
    alone = counted if len(read) == 1 and type(counted) is int else 0
    return [
        replace(choice, tokens=max(choice.tokens, alone), complete=_is_complete(choice, adds_up=adds_up))
        for choice in read
    ]


def _choice(choice: Json, *, log_probs: bool) -> ReplyChoice:
    """A choice, without what the whole reply tells of it."""
    written, reasoning, refusal = _texts(choice)
    thought, text = split_reasoning(written) if written else ("", written)
    reasoning = "\n".join(filter(None, (reasoning, thought)))
    is_answer = text is not None and bool(text.strip())
    reason = choice.get("finish_reason")
    name = reason.casefold() if isinstance(reason, str) else ""
    finished = _FINISHED.get(name, True if name in _WITHHELD and not is_answer else None)
    is_unknown = reason in (None, "") or (name and is_answer and name not in (*_FAILED, *_WITHHELD))
    if choice.get("error") or (finished is None and not is_unknown):
        cause = f" ({shown(choice['error'])})" if choice.get("error") else ""
        raise ValueError(f"an answer did not end: finish_reason is {shown(reason)}{cause}")
    entries, token_ids = _entries(choice.get("logprobs") if log_probs else None), choice.get("token_ids")
    if token_ids is not None:
        token_ids = tuple(_typed(token_id, int, "a token id") for token_id in _typed(token_ids, list, ""))
    tokens = max(len(entries or ()), len(token_ids or ()))
    read = ReplyChoice(text if text is not None and is_answer else "", finished, reasoning, tokens=tokens)
    read = read if is_answer else replace(read, refusal=refusal)
    return read if reasoning or text != written else replace(read, entries=entries, token_ids=token_ids)


def without_ids(request: ServerRequest) -> ServerRequest:
    """The request without the fields that would put a number in the place of a token's text."""
    return request.with_fields(dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids")))


def listed_tokens(reply: Json) -> dict[str, float]:
    """The log-probabilities of the tokens that a chat's answer may begin with, by their text.

    Of tokens with one text the likelier counts. ValueError where they are damaged, or none are listed.
    """
    try:
        first = reply["choices"][0]["logprobs"]["content"][0]
        entries = (first, *(first.get("top_logprobs") or ()))
        listed = [(_get(entry, "token", str), float(entry["logprob"])) for entry in entries]
    except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"the first token of the answer has no listed alternatives ({error!r})") from None
    if not all(log_prob <= _ROUNDING for _, log_prob in listed):  # NaN is not
        raise ValueError(f"a log-probability is above 0: {shown(listed)}")
    return {text: min(0.0, log_prob) for text, log_prob in sorted(listed, key=lambda item: item[1])}


def _is_complete(choice: ReplyChoice, *, adds_up: bool) -> bool:
    """Whether no token has lost its entry, as one that is half a character does (llama.cpp).

    So the text must be that of the entries. A character of several tokens has its bytes in the last entry: it
    counts only where `adds_up`: the number of tokens is known apart from them, and is that of the entries.
    """
    entries, text = choice.entries, choice.text
    if entries is None or choice.token_ids is not None:
        return entries is not None and len(choice.token_ids or ()) == len(entries)
    if "�" in text or not (adds_up or text.isascii()):
        return False
    pieces = [entry.piece for entry in entries]
    return _squeezed(text.encode()) in (
        _joined(pieces),
        _joined([None] if choice.finished is False else pieces[:-1]),
    )


def _joined(pieces: Sequence[bytes | None]) -> str | None:
    """The text of entries without white space, which servers add and strip; None where it is not told."""
    known_pieces = [piece for piece in pieces if piece is not None]
    return _squeezed(b"".join(known_pieces)) if len(known_pieces) == len(pieces) else None


def _squeezed(text: bytes) -> str:
    return _BLANKS.sub("", text.decode(errors="replace"))


def _texts(choice: Json) -> tuple[str | None, str, str]:
    """The text of a choice, None if it has none, and what fields of their own hold: reasoning, a refusal."""
    if "message" not in choice:
        return (None if _get(choice, "text", object) is None else _get(choice, "text", str)), "", ""
    message = _get(choice, "message", Mapping)
    content, refusal = message.get("content"), _joined_parts(message.get("refusal"), "refusal")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(content, list):
        kinds = [_get(_typed(part, Mapping, "a part of the content"), "type", str) for part in content]
        reasoning = reasoning or [p for p, kind in zip(content, kinds) if kind in ("thinking", "reasoning")]
        refusal = refusal or _joined_parts(
            [p for p, kind in zip(content, kinds) if kind == "refusal"], "refusal"
        )
        content = [part for part, kind in zip(content, kinds) if kind in ("text", "output_text")] or None
    text = None if content is None else _joined_parts(content, "content")
    if message.get("tool_calls") and not refusal:
        refusal = f"tool_calls: {shown(message['tool_calls'])}"
    return text, _joined_parts(reasoning, "reasoning"), refusal


def _joined_parts(value: Any, name: str) -> str:
    """The text of a string, a part of a message ({"text": …}), or a list of parts."""
    if isinstance(value, list):
        return "".join(_joined_parts(part, name) for part in value)
    if isinstance(value, Mapping):
        keys = ("text", "thinking", "reasoning", "refusal")
        return _joined_parts(next((value[key] for key in keys if value.get(key)), ""), name)
    return _typed(value or "", str, name)  # type: ignore[no-any-return]


def _entries(logprobs: Any) -> tuple[TokenEntry, ...] | None:
    """Entries of {content: [{token, logprob, bytes, top_logprobs}]}, or with prob and top_probs (llama.cpp).

    Or of the parallel lists {tokens, token_logprobs, top_logprobs}, which LiteLLM may add as null. None where
    they are not told: [], false, null or a number in the place of one.
    """
    if not isinstance(logprobs, Mapping):
        return None
    if logprobs.get("tokens") is None:
        listed = logprobs.get("content")
        if listed is None or not all(map(_is_told, _typed(listed, list, "logprobs.content"))):
            return None
        return tuple(map(_entry, listed))
    tokens, values = _get(logprobs, "tokens", list), _get(logprobs, "token_logprobs", list)
    if None in values:
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(values) == len(_typed(tops, list, "top_logprobs")):
        raise ValueError(f"{len(tokens)} tokens have {len(values)} log-probabilities and {len(tops)} lists")
    entries = []
    for token, value, top in zip(tokens, values, tops):
        alternatives = _typed(top or {}, Mapping, "top_logprobs").items()
        listed = [{"token": text, "logprob": log_prob} for text, log_prob in alternatives]
        entries.append(_entry({"token": token, "logprob": value, "top_logprobs": listed}))
    return tuple(entries)


def _is_told(token: Any) -> bool:
    """Return whether there is an entry that holds a value, right or damaged."""
    if isinstance(token, Mapping):
        return token.get("logprob", token.get("prob", 0)) is not None
    return token is not None and type(token) is not int


def _entry(token: Any) -> TokenEntry:
    text, token_id, piece, log_prob = _token(token)
    listed = _typed(token.get("top_logprobs", token.get("top_probs")) or [], list, "top_logprobs")
    alternatives = map(_token, listed)
    top = {(name if number is None else number): value for name, number, _, value in alternatives}
    return TokenEntry(text, log_prob, token_id, top, piece)


def _token(entry: Any) -> tuple[str, int | None, bytes | None, float]:
    """Text, id, bytes and log-probability of a token; what is not told of the first three is None."""
    text = _get(_typed(entry, Mapping, "a token"), "token", str)
    log_prob = _of_prob(entry["prob"]) if "prob" in entry else _log_prob(_get(entry, "logprob", object))
    if named := _ID.fullmatch(text):
        return "", _typed(int(named[1]), int, "a token id"), None, log_prob
    token_id, listed = entry.get("id"), entry.get("bytes")
    try:
        piece = text.encode() if listed is None else bytes(_typed(listed, list, "bytes"))
    except (TypeError, ValueError):
        raise ValueError(f"the bytes of a token are {shown(listed)}") from None
    return text, None if token_id is None else _typed(token_id, int, "a token id"), piece, log_prob


def _log_prob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:
        raise ValueError(f"a log-probability is {shown(value)}")
    return min(float(value), 0.0) if value > _LEAST else -math.inf


def _of_prob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 + _ROUNDING:
        raise ValueError(f"a probability is {shown(value)}")
    return min(math.log(value), 0.0) if value else -math.inf


def _get(container: Json, key: str, kind: type) -> Any:
    if key not in container:
        raise ValueError(f"no {key!r} in {shown(dict(container))}")
    return _typed(container[key], kind, repr(key))


def _typed(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value not in _IDS)):
        raise ValueError(f"{name} is {shown(value)}, not of type {kind.__name__} or out of range")
    return value
