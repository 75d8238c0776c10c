"""The protocol of servers: profiles, bodies of requests, and choices of replies with their tokens.

Every request sets all fields that could otherwise truncate or change the distribution. Replies of both
endpoints are read without the reasoning before the answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from semcal.errors import shown
from semcal.files import inside
from semcal.meaning.answer import split_reasoning
from semcal.models.protocols import Prompt
from semcal.rows import Json
from semcal.servers.client import ServerRequest

#: Fields that switch truncation and penalties off, by all names that servers use.
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
    """Capabilities of one model behind one server. `semcal probe` prints them.

    An unknown capability has the most cautious value.
    """

    url: str
    model: str
    server: str = "unknown"  # "llama.cpp", "vLLM", "SGLang", "TGI", "Ollama", ...
    version: str | None = None
    max_length: int | None = None  # maximum tokens of prompt and answer
    vocabulary: int | None = None  # size of the vocabulary if known
    total_slots: int | None = None  # requests that llama.cpp answers at a time
    #: Fields of every request: the accepted fields of `NEUTRAL`, with accepted values.
    neutral: Json = field(default_factory=lambda: dict(NEUTRAL))
    max_n: int = 1  # the largest n for which one request returned n choices
    choices_differ: bool = False  # True if the choices of one request with a seed differ
    log_probs: Literal["raw", "scaled", "masked"] | None = None  # kind of log-probabilities at T other than 1
    scaled_on_request: bool = False  # post_sampling_probs: log-probabilities at T, per request (llama.cpp)
    top_log_probs: int = 0  # maximum alternatives of a token
    whole_vocabulary: bool = False  # True if the alternatives may be all tokens
    chosen_ids: bool = False  # logprob_token_ids: log-probabilities of tokens that the request names
    scores_prompt: bool = False  # prompt_logprobs: log-probabilities of the tokens of a prompt, at T = 1
    forced_raw: bool = False  # a token that logit_bias forces has its raw log-probability (llama.cpp)
    token_ids_in: bool = False  # True if /completions accepts a prompt of token ids
    token_ids_out: bool = False  # True if replies have the ids of sampled tokens
    end_included: bool = False  # True if the end of turn has its own log-probability
    prefix_cached: bool | None = None  # None: unknown
    truncated_to: str | None = None  # truncation of samples, although requests ask for the whole vocabulary
    max_temperature: float | None = None  # largest accepted temperature; None: no limit was found

    @property
    def together(self) -> int:
        """Number of samples per request.

        For llama.cpp it is 1: after n > 1 its build b11549 sometimes answers other requests from a wrong
        cache. Also, its `usage` counts only one of n answers and cannot show that a token has lost its entry.
        """
        return self.max_n if self.choices_differ and self.server != "llama.cpp" else 1

    @property
    def slots(self) -> int | None:
        """Number of slots of llama.cpp, each with its own prompt cache; None if unknown or one."""
        several = self.prefix_cached and (self.total_slots or 1) > 1
        return self.total_slots if several else None


#: The largest n that the probe tries.
MOST_CHOICES = 10
#: Upper bound of the tokens that a template adds to a turn.
_A_TURN = 16


@dataclass(frozen=True)
class AnswerRequest:
    """Settings of one request for answers.

    Only `schema` constrains the answers. Log-probabilities then describe single tokens, and their sum is not
    the likelihood of the answer under the constraint.
    `forced` is a token that replaces the sampled token.
    """

    temperature: float  # 0: the most likely token at every step
    max_tokens: int
    n: int = 1
    seed: int | None = None
    log_probs: bool = True
    alternatives: int = 1  # number of most likely tokens to list at each step
    token_ids: tuple[int, ...] = ()  # further tokens to list (`ServerProfile.chosen_ids`)
    forced: int | None = None
    schema: Json | None = None  # the answers are JSON documents that are valid under it


def request_for(profile: ServerProfile, prompt: Prompt, answer: AnswerRequest) -> ServerRequest:
    """Build the request for a prompt: token ids for /completions, otherwise a chat for /chat/completions."""
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
    if profile.server == "llama.cpp":  # its command line may have set other samplers
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
    """Return the fields for log-probabilities, never 0 alternatives: some servers then return none."""
    k = max(1, answer.alternatives)
    on_request = profile.scaled_on_request and answer.temperature not in (0, 1)
    return {
        "logprobs": True if in_chat else k,
        "top_logprobs": k if in_chat and profile.top_log_probs else None,
        # Two tokens may share a text, and half a character has no text.
        "return_tokens_as_token_ids": True if profile.server == "vLLM" else None,
        "logprob_token_ids": list(answer.token_ids) if profile.chosen_ids and answer.token_ids else None,
        **({"post_sampling_probs": True, "samplers": ["temperature"]} if on_request else {}),
    }


@dataclass
class ReplyCount:
    """Counts of replies of a server with reasoning, and without an answer or a known end."""

    thought: int = 0  # answers after reasoning
    cut: int = 0  # replies that ended during the reasoning, before an answer
    unknown: int = 0  # answers without a known finish_reason

    def add(self, choice: ReplyChoice) -> None:
        """Count a choice."""
        self.thought += bool(choice.reasoning)
        self.cut += bool(choice.reasoning) and choice.refusal == ""
        self.unknown += choice.finished is None


#: Log-probabilities at or below this value represent minus infinity, which JSON lacks.
_LEAST = -9999.0
#: Maximum rounding error of a log-probability above 0, and of a probability above 1.
_ROUNDING = 1e-4
#: finish_reason, in any case: True if the end of turn was sampled, False if the limit was reached.
_FINISHED = dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), True)
_FINISHED |= dict.fromkeys(("length", "model_length", "max_tokens"), False)
#: A tool was called after the answer.
_FINISHED |= dict.fromkeys(("tool_calls", "function_call", "tool_use"), True)
#: The answer was withheld; if it has a text, the text was cut.
_WITHHELD = ("content_filter", "refusal", "safety", "sensitive", "recitation")
#: The server failed.
_FAILED = ("error", "abort", "aborted", "cancelled", "network_error", "insufficient_system_resource")
#: Form of tokens of vLLM with return_tokens_as_token_ids.
_ID = re.compile(r"token_id:(\d{1,10})")
#: Integers that may be an index or a token id.
_IDS = range(2**31)
_BLANKS = re.compile(r"[\s▁]+")


@dataclass(frozen=True)
class TokenEntry:
    """One generated token in a reply; fields that the server does not report are empty."""

    text: str
    log_prob: float  # raw or at T, as in the profile; -inf if the server reports only a lower limit
    token_id: int | None = None
    #: The log-probabilities of alternatives, by token id if known, else by text.
    top: Mapping[int | str, float] = field(default_factory=dict)
    piece: bytes | None = field(default=None, compare=False, repr=False)  # text; None if the reply has ids

    @property
    def key(self) -> int | str:
        """The id of the token if known, else its text."""
        return self.text if self.token_id is None else self.token_id


@dataclass(frozen=True)
class ReplyChoice:
    """One answer of a reply."""

    text: str  # without the reasoning before it; "" if there is no answer
    finished: bool | None  # True for finish_reason "stop", False for "length"; None: unknown
    reasoning: str = ""  # reasoning before the answer (reasoning_content, <think>...</think>)
    #: Tokens of the answer. None without log-probabilities, and after reasoning, because these
    #: log-probabilities are not those of the answer given the question.
    entries: tuple[TokenEntry, ...] | None = None
    tokens: int = 0  # number of generated tokens, reasoning included; 0 if unknown
    token_ids: tuple[int, ...] | None = None  # token ids that the reply lists in addition to the entries
    complete: bool = False  # True if every token of the answer provably has an entry
    #: Text in place of an answer: a refusal, or "" for null, an empty text or only reasoning.
    refusal: str | None = None


def parse_choices(reply: Json, *, log_probs: bool = True) -> list[ReplyChoice]:
    """Read the choices of a reply of /chat/completions or /completions, in the order of their index.

    Choices without an index keep the order of the list. ValueError for a damaged reply: a missing key or a
    wrong type. Without `log_probs`, log-probabilities of the reply are ignored.
    """
    if not reply.get("choices") and "error" in reply:
        raise ValueError(f"the reply is an error: {shown(reply['error'])}")
    listed = [_typed(choice, Mapping, "a choice") for choice in _get(reply, "choices", list)]
    if not listed:
        raise ValueError("'choices' is empty")
    listed.sort(key=lambda choice: _typed(choice.get("index") or 0, int, "index"))
    read = [_choice(choice, log_probs=log_probs) for choice in listed]
    usage = reply.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    adds_up = counted == sum(choice.tokens for choice in read)
    alone = counted if len(read) == 1 and type(counted) is int else 0
    return [
        replace(choice, tokens=max(choice.tokens, alone), complete=_is_complete(choice, adds_up=adds_up))
        for choice in read
    ]


def _choice(choice: Json, *, log_probs: bool) -> ReplyChoice:
    """Read one choice, without the facts that need the whole reply."""
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
    """Return the request without the fields that replace the text of a token by a number."""
    return request.with_fields(dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids")))


def listed_tokens(reply: Json) -> dict[str, float]:
    """Return the log-probabilities of the first tokens of a chat answer, by text.

    If tokens share a text, the most likely token counts. ValueError if the list is damaged or missing.
    """
    try:
        first = reply["choices"][0]["logprobs"]["content"][0]
        entries = (first, *(first.get("top_logprobs") or ()))
        listed = [(_get(entry, "token", str), float(entry["logprob"])) for entry in entries]
    except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"the first token of the answer has no listed alternatives ({error!r})") from None
    if not all(log_prob <= _ROUNDING for _, log_prob in listed):  # false for NaN
        raise ValueError(f"a log-probability is above 0: {shown(listed)}")
    return {text: min(0.0, log_prob) for text, log_prob in sorted(listed, key=lambda item: item[1])}


def _is_complete(choice: ReplyChoice, *, adds_up: bool) -> bool:
    """Return whether every token has an entry; a token that is half a character may lack one (llama.cpp).

    The text must equal the text of the entries. A character of several tokens has its bytes in the last
    entry; therefore non-ASCII text also requires `adds_up`: the usage counts as many tokens as entries.
    """
    entries, text = choice.entries, choice.text
    if entries is None or choice.token_ids is not None:
        return entries is not None and len(choice.token_ids or ()) == len(entries)
    if "�" in text or not (adds_up or text.isascii()):
        return False
    pieces = [entry.piece for entry in entries]
    return squeezed(text) in (
        _joined(pieces),
        _joined([None] if choice.finished is False else pieces[:-1]),
    )


def _joined(pieces: Sequence[bytes | None]) -> str | None:
    """Return the text of entries without white space; None if unknown."""
    known_pieces = [piece for piece in pieces if piece is not None]
    if len(known_pieces) < len(pieces):
        return None
    return squeezed(b"".join(known_pieces).decode(errors="replace"))


def squeezed(text: str) -> str:
    """Return a text without white space, which servers add and strip."""
    return _BLANKS.sub("", text)


def _texts(choice: Json) -> tuple[str | None, str, str]:
    """Return the text of a choice (None without a text), its fields of reasoning, and its refusal."""
    if "message" not in choice:
        return (None if _get(choice, "text", object) is None else _get(choice, "text", str)), "", ""
    message = _get(choice, "message", Mapping)
    content, refusal = message.get("content"), _typed(message.get("refusal") or "", str, "refusal")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(content, list):
        parts = [_typed(part, Mapping, "a part of the content") for part in content]
        reasoning = reasoning or [part for part in parts if part.get("type") in ("thinking", "reasoning")]
        refusal = refusal or "".join(_get(part, "refusal", str) for part in parts if "refusal" in part)
        texts = [_get(part, "text", str) for part in parts if part.get("type") in ("text", "output_text")]
        content = "".join(texts) if texts else None
    text = None if content is None else _typed(content, str, "content")
    if message.get("tool_calls") and not refusal:
        refusal = f"tool_calls: {shown(message['tool_calls'])}"
    return text, str(reasoning or ""), refusal


def _entries(logprobs: Any) -> tuple[TokenEntry, ...] | None:
    """Read {content: [{token, logprob, bytes, top_logprobs}]}, also with prob and top_probs (llama.cpp).

    The parallel lists {tokens, token_logprobs, top_logprobs} are read, too; LiteLLM may add them as null. The
    result is None without entries, or if one has no value.
    """
    if not isinstance(logprobs, Mapping):
        return None
    if logprobs.get("tokens") is None:
        listed = _typed(logprobs.get("content") or [], list, "logprobs.content")
        values = [
            inside(token, "prob" if inside(token, "logprob") is None else "logprob") for token in listed
        ]
        if not listed or None in values:
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


def _entry(token: Any) -> TokenEntry:
    text, token_id, piece, log_prob = _token(token)
    listed = _typed(token.get("top_logprobs", token.get("top_probs")) or [], list, "top_logprobs")
    alternatives = map(_token, listed)
    top = {(name if number is None else number): value for name, number, _, value in alternatives}
    return TokenEntry(text, log_prob, token_id, top, piece)


def _token(entry: Any) -> tuple[str, int | None, bytes | None, float]:
    """Return text, id, bytes and log-probability of a token; "" or None if unknown."""
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
        raise ValueError(f"{key!r} is missing in {shown(dict(container))}")
    return _typed(container[key], kind, repr(key))


def _typed(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value not in _IDS)):
        raise ValueError(f"{name} is {shown(value)}, not of type {kind.__name__} or out of range")
    return value
