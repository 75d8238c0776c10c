"""A real HTTP server on 127.0.0.1 that speaks as OpenAI-style servers do, with a made-up model behind it.

    with FakeServer(slots=4, log_probs="scaled") as server:
        ...  # server.url is "http://127.0.0.1:PORT/v1"; server.name adds "openai:" and "#fake"

What it answers depends on the request alone: every choice is drawn with random numbers from a hash of the
body and its index. The model is that of `fake_model` (questions, answers and probabilities in closed form).
`server.requests` lists what was asked, as (path, body), those that were refused included. `Quirks` are the
switches.

/v1/models, /v1/chat/completions, /v1/completions; /version, /health/readiness and /props below the host.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.servers import fake_model as model
from tests.servers.thread_server import ThreadServer, read_message

Json = dict[str, Any]


#: Switches of servers as they are met.
LLAMA: dict[str, Any] = {
    "server": "llama.cpp",
    "slots": 4,
    "scaled_on_request": True,
    "max_top_logprobs": -1,
    "zero_drops_them": True,
    "prompt_scores": False,
    "chosen_ids": False,
    "usage_of_one": True,
}
OPENAI: dict[str, Any] = {
    "server": "OpenAI",
    "unknown_refused": True,
    "max_temperature": 2,
    "completions": False,
    "ids_in": False,
    "ids_out": False,
    "prompt_scores": False,
    "chosen_ids": False,
}


@dataclass
class Quirks:
    """Switches, all off at first, which is a server that does everything and does it right."""

    n_ignored: bool = False  # n > 1 gives one choice
    n_at_most: int = 10**6  # n above it gives that many choices, without a word
    slots: int | None = None  # n above it is a 400 (llama.cpp)
    choices_alike: bool = False  # all choices of a request are the same
    log_probs: str | None = "raw"  # at T = 1 whatever T is; "scaled": at T; "masked": at T, after truncation
    scaled_on_request: bool = False  # post_sampling_probs gives prob and top_probs at T (llama.cpp)
    max_top_logprobs: int = 20  # more is a 400; -1: as many as there are tokens
    zero_drops_them: bool = False  # top_logprobs 0 gives no log-probabilities at all (llama.cpp)
    drawn_takes_a_place: bool = False  # the drawn token stands first among top_logprobs (vLLM)
    halves_lost: bool = False  # half a character has no entry; its text joins the next one (llama.cpp)
    end_has_entry: bool = True  # the end of turn has an entry of its own
    prompt_scores: bool = True  # prompt_logprobs is obeyed
    chosen_ids: bool = True  # logprob_token_ids is obeyed
    ids_in: bool = True  # prompts of token ids are taken
    ids_out: bool = True  # return_token_ids and return_tokens_as_token_ids are obeyed
    usage_of_one: bool = False  # usage counts one choice of n (llama.cpp)
    no_usage: bool = False
    truncates: str = "never"  # "always": top-k 40, top-p 0.95, min-p 0.05
    max_temperature: float | None = None  # more is a 400 (OpenAI: 2)
    longest: int | None = None  # a prompt of more tokens is a 400
    unknown_refused: bool = False  # a field that OpenAI does not know (top_k, min_p, ...) is a 400
    reasons: str | None = None  # 43 tokens of thought first: "field" (reasoning_content), "inline" (<think>)
    completions: bool = True  # there is /completions
    refused: Sequence[str] = ()  # prompts that hold one of these texts are a 400
    busy: int = 0  # so many first tries of every request are a 429 with the header Retry-After: `retry_after`
    retry_after: str | None = None
    key: str | None = None  # Authorization: Bearer KEY, or else 401
    delay: float = 0.0  # seconds before each answer
    server: str = "vLLM"  # or "llama.cpp", "LiteLLM", "OpenAI", "SGLang"
    version: str = "0.0.1"
    timings: bool = False  # replies have them (llama.cpp, also where a proxy stands before it)
    models: Sequence[str] = ("fake",)  # the names that are listed
    tls: ssl.SSLContext | None = None  # of a server that speaks HTTPS


class Refused(Exception):
    """An answer that is no answer: status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


KNOWN = {
    *("model", "messages", "prompt", "n", "seed", "temperature", "top_p", "max_tokens", "logprobs"),
    *("max_completion_tokens", "top_logprobs", "stop", "presence_penalty", "frequency_penalty"),
}
THINKING = model.encode("<think>" + "let me " * 4 + "</think>")


@dataclass
class Drawn:
    """One choice: the tokens, and at each the distributions that it was drawn from."""

    ids: list[int] = field(default_factory=list)
    raw: list[model.Array] = field(default_factory=list)
    seen: list[model.Array] = field(default_factory=list)  # as the server reports them
    thought: int = 0  # how many of the tokens came before the answer
    finished: bool = False


class FakeModel:
    """What the bodies of requests are answered with."""

    def __init__(self, quirks: Quirks) -> None:
        self.quirks = quirks

    def chat(self, body: Json) -> Json:
        prompt = model.render(body["messages"])
        k = body.get("top_logprobs", 0) if body.get("logprobs") else None
        if k == 0 and self.quirks.zero_drops_them and "top_logprobs" in body:
            k = None
        limit = body.get("max_completion_tokens", body.get("max_tokens", 16))
        choices = self._draw_all(body, prompt, limit)
        found = []
        for index, drawn in enumerate(choices):
            choice: Json = {"index": index, "finish_reason": "stop" if drawn.finished else "length"}
            choice["message"] = {"role": "assistant", **self._message(drawn)}
            choice["logprobs"] = self._content(body, drawn, k) if k is not None else None
            if self.quirks.ids_out and body.get("return_token_ids"):
                choice["token_ids"] = drawn.ids
            found.append(choice)
        return self._reply("chat.completion", body, found, choices, prompt)

    def completions(self, body: Json) -> Json:
        given = body["prompt"]
        if isinstance(given, list) and not self.quirks.ids_in:
            raise Refused(400, "prompt must be a string")
        ids = given if isinstance(given, list) else model.encode(given)
        prompt = model.decode(ids)
        k = body.get("logprobs")
        choices = self._draw_all(body, prompt, body.get("max_tokens", 16))
        found = []
        for index, drawn in enumerate(choices):
            choice: Json = {"index": index, "finish_reason": "stop" if drawn.finished else "length"}
            choice["text"] = _text(drawn.ids)
            if k is None:
                choice["logprobs"] = None
            elif self.quirks.server == "llama.cpp":
                choice["logprobs"] = self._content(body, drawn, int(k))
            else:
                choice["logprobs"] = self._legacy(body, drawn, int(k))
            if self.quirks.ids_out and body.get("return_token_ids"):
                choice["token_ids"] = drawn.ids
            if self.quirks.prompt_scores and body.get("prompt_logprobs") is not None:
                choice["prompt_logprobs"] = self._of_prompt(ids, body["prompt_logprobs"])
            found.append(choice)
        return self._reply("text_completion", body, found, choices, prompt)

    def _draw_all(self, body: Json, prompt: str, limit: int) -> list[Drawn]:
        quirks, n = self.quirks, int(body.get("n", 1))
        temperature = float(body.get("temperature", 1.0))
        if n < 1:
            raise Refused(400, f"n must be at least 1, got {n}")
        if quirks.slots is not None and n > quirks.slots:
            raise Refused(400, f"n_cmpl cannot be greater than the number of slots ({quirks.slots})")
        if quirks.max_temperature is not None and temperature > quirks.max_temperature:
            raise Refused(400, f"temperature must be at most {quirks.max_temperature}, got {temperature}")
        if any(text in prompt for text in quirks.refused):
            raise Refused(400, "this prompt is not answered")
        if quirks.longest is not None and len(prompt) > quirks.longest:
            raise Refused(400, f"the prompt is too long: at most {quirks.longest} tokens are taken")
        if quirks.unknown_refused and set(body) - KNOWN:
            raise Refused(400, f"Unrecognized request argument supplied: {min(set(body) - KNOWN)}")
        if body.get("model") not in (None, *quirks.models):
            raise Refused(404, f"The model `{body['model']}` does not exist.")
        most = len(model.VOCABULARY) if quirks.max_top_logprobs < 0 else quirks.max_top_logprobs
        asked = body.get("top_logprobs", 0) if "messages" in body else body.get("logprobs") or 0
        below = asked < 0 and (quirks.max_top_logprobs >= 0 or quirks.server != "vLLM")
        if not isinstance(asked, bool) and (asked > most or below):
            raise Refused(400, f"top_logprobs must be at most {most}, got {asked}")
        key = json.dumps(body, sort_keys=True)
        alike = quirks.choices_alike
        return [
            self._draw(body, prompt, limit, temperature, f"{key}{0 if alike else index}")
            for index in range(1 if quirks.n_ignored else min(n, quirks.n_at_most))
        ]

    def _draw(self, body: Json, prompt: str, limit: int, temperature: float, key: str) -> Drawn:
        rng = np.random.default_rng(list(hashlib.sha256(key.encode()).digest()))
        drawn, truncation = Drawn(), self._truncation(body)
        if self.quirks.reasons is not None:
            certain = np.full(len(model.VOCABULARY), -np.inf)
            for index in THINKING[:limit]:
                step = certain.copy()
                step[index] = 0.0
                drawn.ids.append(index)
                drawn.raw.append(step)
                drawn.seen.append(step)
            drawn.thought = len(drawn.ids)
        while len(drawn.ids) < limit and not drawn.finished:
            so_far = tuple(drawn.ids[drawn.thought :])
            raw, scaled, cut, cumulated = model.step(prompt, so_far, temperature, **truncation)
            index = int(np.searchsorted(cumulated, rng.random() * (1 - 1e-12), side="right"))
            drawn.ids.append(index)
            drawn.raw.append(raw)
            drawn.seen.append({"scaled": scaled, "masked": cut}.get(self.quirks.log_probs or "", raw))
            if self._on_request(body):
                drawn.seen[-1] = scaled
            drawn.finished = index == model.END
        return drawn

    def _on_request(self, body: Json) -> bool:
        return self.quirks.scaled_on_request and bool(body.get("post_sampling_probs"))

    def _truncation(self, body: Json) -> Json:
        if self.quirks.truncates == "always":
            return {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
        nothing = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return {name: body.get(name, value) for name, value in nothing.items()}

    def _message(self, drawn: Drawn) -> Json:
        if self.quirks.reasons == "field":
            thought = _text(drawn.ids[: drawn.thought]).removeprefix("<think>").removesuffix("</think>")
            return {"content": _text(drawn.ids[drawn.thought :]) or None, "reasoning_content": thought}
        return {"content": _text(drawn.ids)}

    def _content(self, body: Json, drawn: Drawn, k: int) -> Json | None:
        """Log-probabilities as /chat/completions gives them."""
        if self.quirks.log_probs is None:
            return None
        entries, lost = [], b""
        for index, seen in zip(drawn.ids, drawn.seen):
            if index == model.END and not self.quirks.end_has_entry:
                continue
            piece = lost + model.VOCABULARY[index]
            if self.quirks.halves_lost and _incomplete(piece):
                lost = piece
                continue
            lost = b""
            shown = self._top(seen, index, k)
            if self.quirks.chosen_ids:
                shown += [one for one in body.get("logprob_token_ids", ()) if one not in shown]
            entry = self._entry(body, index, seen, piece)
            key = "top_probs" if self._on_request(body) else "top_logprobs"
            entry[key] = [self._entry(body, one, seen, model.VOCABULARY[one]) for one in shown]
            entries.append(entry)
        return {"content": entries}

    def _entry(self, body: Json, index: int, seen: model.Array, piece: bytes) -> Json:
        found: Json = {"token": self._name(body, index, piece), "bytes": list(piece)}
        if self.quirks.server == "llama.cpp":
            found["id"] = index
        if self._on_request(body):
            return found | {"prob": float(np.exp(seen[index]))}
        return found | {"logprob": _finite(seen[index])}

    def _name(self, body: Json, index: int, piece: bytes) -> str:
        """What stands for a token: its text, or its id where that is asked for (vLLM)."""
        by_id = self.quirks.ids_out and body.get("return_tokens_as_token_ids")
        return f"token_id:{index}" if by_id else piece.decode(errors="replace")

    def _top(self, seen: model.Array, index: int, k: int) -> list[int]:
        order = [int(one) for one in np.argsort(-seen, kind="stable")[: None if k < 0 else k]]
        if self.quirks.drawn_takes_a_place and k:
            return [index, *(one for one in order if one != index)][:k]
        return order

    def _legacy(self, body: Json, drawn: Drawn, k: int) -> Json | None:
        """Log-probabilities as /completions gives them: parallel lists."""
        if self.quirks.log_probs is None:
            return None
        ids, seen = drawn.ids, drawn.seen
        if not self.quirks.end_has_entry and ids and ids[-1] == model.END:
            ids, seen = ids[:-1], seen[:-1]
        chosen = body.get("logprob_token_ids", ()) if self.quirks.chosen_ids else ()
        return {
            "tokens": [self._name(body, index, model.VOCABULARY[index]) for index in ids],
            "token_logprobs": [_finite(step[index]) for index, step in zip(ids, seen)],
            "top_logprobs": [
                {
                    self._name(body, one, model.VOCABULARY[one]): _finite(step[one])
                    for one in [*self._top(step, index, k), index, *chosen]
                }
                for index, step in zip(ids, seen)
            ],
        }

    def _of_prompt(self, ids: list[int], k: int) -> list[Json | None]:
        """prompt_logprobs of vLLM: for every token but the first, those of the k most likely and its own."""
        found: list[Json | None] = [None]
        for at in range(1, len(ids)):
            raw = model.next_log_probs(model.decode(ids[:at]))
            order = [int(one) for one in np.argsort(-raw, kind="stable")]
            shown = [ids[at], *(one for one in order[: k if k >= 0 else None] if one != ids[at])]
            ranks = {one: {"logprob": float(raw[one]), "rank": order.index(one) + 1} for one in shown}
            found.append({str(one): rank | {"decoded_token": _text([one])} for one, rank in ranks.items()})
        return found

    def _reply(self, kind: str, body: Json, choices: list[Json], drawn: Sequence[Drawn], prompt: str) -> Json:
        tokens_in = len(model.encode(prompt))
        of = [len(one.ids) for one in drawn]
        out = of[0] if self.quirks.usage_of_one else sum(of)
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
        reply: Json = {"id": f"fake-{key}", "object": kind, "choices": choices}
        reply["model"] = body.get("model", self.quirks.models[0])
        if self.quirks.server == "llama.cpp":
            reply["system_fingerprint"] = self.quirks.version
        if self.quirks.timings:
            reply["timings"] = {"prompt_n": tokens_in}
        if not self.quirks.no_usage:
            counts = {"prompt_tokens": tokens_in, "completion_tokens": out}
            reply["usage"] = {**counts, "total_tokens": tokens_in + out}
        return reply


def _text(ids: Sequence[int]) -> str:
    return b"".join(model.VOCABULARY[index] for index in ids).decode(errors="replace")


def _incomplete(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def _finite(log_prob: float) -> float:
    """JSON has no infinity: servers send -9999 or so."""
    return float(log_prob) if np.isfinite(log_prob) else -9999.0


class FakeServer(ThreadServer):
    """The server, in a thread of its own while the `with` block lasts; see the module."""

    def __init__(self, **quirks: Any) -> None:
        super().__init__()
        self.quirks = Quirks(**quirks)
        self.tls = self.quirks.tls
        self.requests: list[tuple[str, Json]] = []
        self.largest = 0  # requests that were under way at the same time
        self._model = FakeModel(self.quirks)
        self._tries: Counter[str] = Counter()
        self._under_way = 0

    @property
    def host(self) -> str:
        return f"{'http' if self.quirks.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.host + "/v1"

    @property
    def name(self) -> str:
        """What --model takes."""
        return f"openai:{self.url}#{self.quirks.models[0]}"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            lines, raw = await read_message(reader)
            head = lines.decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in head[1:])}
            status, reply, more = await self._answer(method, path, headers, raw)
            body = json.dumps(reply).encode()
            more |= {"content-type": "application/json", "content-length": str(len(body))}
            answer = [f"HTTP/1.1 {status} OK", *(f"{name}: {value}" for name, value in more.items())]
            writer.write("\r\n".join(answer).encode() + b"\r\n\r\n" + body)
            await writer.drain()

    async def _answer(
        self, method: str, path: str, headers: Mapping[str, str], raw: bytes
    ) -> tuple[int, Json, dict[str, str]]:
        quirks = self.quirks
        self._under_way += 1
        self.largest = max(self.largest, self._under_way)
        try:
            if quirks.key is not None and headers.get("authorization") != f"Bearer {quirks.key}":
                raise Refused(401, "Incorrect API key provided.")
            body = json.loads(raw) if raw else {}
            if method == "POST":
                self.requests.append((path, body))
                key = path + raw.decode()
                self._tries[key] += 1
                if self._tries[key] <= quirks.busy:
                    after = {} if quirks.retry_after is None else {"retry-after": quirks.retry_after}
                    return 429, _error(429, "Too many requests."), after
            if quirks.delay:
                await asyncio.sleep(quirks.delay)
            return 200, self._route(method, path, body), {}
        except Refused as error:
            return error.status, _error(error.status, str(error)), {}
        except (KeyError, TypeError, ValueError) as error:
            return 400, _error(400, f"{type(error).__name__}: {error}"), {}
        finally:
            self._under_way -= 1

    def _route(self, method: str, path: str, body: Json) -> Json:
        quirks = self.quirks
        if (method, path) == ("POST", "/v1/chat/completions"):
            return self._model.chat(body)
        if (method, path) == ("POST", "/v1/completions") and quirks.completions:
            return self._model.completions(body)
        if (method, path) == ("GET", "/v1/models"):
            owner = {"vLLM": "vllm", "llama.cpp": "llamacpp"}.get(quirks.server, "openai")
            entry = {"object": "model", "owned_by": owner, **self._known()}
            return {"object": "list", "data": [{"id": name, **entry} for name in quirks.models]}
        if path == "/health/readiness" and quirks.server == "LiteLLM":
            return {"status": "healthy", "db": "Not connected"}
        if path == "/version" and quirks.server == "vLLM":
            return {"version": quirks.version}
        if path == "/props" and quirks.server == "llama.cpp":
            return {"build_info": quirks.version, "total_slots": quirks.slots or 4}
        raise Refused(404, "Not Found")

    def _known(self) -> Json:
        """What /models tells of a model besides its name."""
        sizes = {"n_vocab": len(model.VOCABULARY), "n_ctx": 1024}
        return {"vLLM": {"max_model_len": 1024}, "llama.cpp": {"meta": sizes}}.get(self.quirks.server, {})


def _error(status: int, message: str) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": status}}
