"""Verdicts of language models behind servers, by prompts.

A language model gets an `EntailmentTask`: a prompt whose reply is one of several labels. Replies are greedy.
Their first line, without punctuation around it, must be a label, in any case. Otherwise a second request asks
for one word, with room to think. A reply that still cannot be read counts as "no". It is counted, causes a
warning, and is not cached.
"""

from __future__ import annotations

import hashlib
import os
import string
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from semcal.data.question import Turn
from semcal.errors import InputError, SemcalWarning, UsageError, shown
from semcal.models.equivalence import Triple
from semcal.models.protocols import Prompt
from semcal.rows import Json
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.servers.probing import stored_profile
from semcal.servers.protocol import AnswerRequest, ServerProfile, parse_choices, request_for
from semcal.servers.settings import JUDGE_KEY_VARIABLE, PREFIX, Endpoint, ServerSettings, read_api_key

#: Maximum tokens of a reply: the label, and for the second request the reasoning before it.
LABEL, ROOM = 10, 1024
#: Maximum verdicts in memory: more than the pairs of answers in a block.
REMEMBERED = 50_000
#: Characters that may surround a label.
_AROUND = string.whitespace + string.punctuation + "▁Ġ“”‘’„«»…"
Keep = Callable[[Triple, bool], None]


@dataclass(frozen=True)
class EntailmentTask:
    """A prompt about a triple of texts, with the labels of its replies."""

    name: str
    labels: tuple[str, ...]  # the first label means yes
    prompt: str  # with {question}, {first} and {second}

    @property
    def version(self) -> str:
        """Hash of the prompt and the labels."""
        return hashlib.sha256("\n".join((*self.labels, self.prompt)).encode()).hexdigest()[:8]

    def chat(self, triple: Triple, *, stricter: bool = False) -> tuple[Turn, ...]:
        """Return the prompt about a triple; with `stricter` it asks for exactly one word."""
        question, first, second = triple
        prompt = self.prompt if question else self.prompt.replace("Question: {question}\n", "")
        text = prompt.format(question=question.strip(), first=first, second=second)
        if stricter:
            text += f"\nReply with exactly one of these words and nothing else: {', '.join(self.labels)}."
        return (Turn("user", text),)


ENTAILMENT = EntailmentTask(
    "entailment",
    ("entailment", "neutral", "contradiction"),
    """\
Two answers to the same question are given. Assume that answer A is right. What follows for answer B?

entailment: answer B must be right as well, as it says the same or less in whatever words
contradiction: answer B must be wrong
neutral: neither follows

Question: {question}
Answer A: {first}
Answer B: {second}

Reply with one word: entailment, neutral or contradiction.""",
)


class PromptedVerdicts:
    """An `Equivalence` that asks a language model behind a server for an `EntailmentTask`.

    InputError for a triple if all attempts at the server failed; the verdicts on other triples are kept.
    """

    def __init__(
        self, client: ServerClient, profile: ServerProfile, task: EntailmentTask = ENTAILMENT
    ) -> None:
        self.client, self.profile, self.task = client, profile, task
        self.unreadable = 0  # unreadable replies so far, which count as "no"
        self._known: dict[Triple, bool] = {}
        self.name = profile.model
        self.address = f"{PREFIX}{client.endpoint.url}#{profile.model}"
        server = " ".join(filter(None, (profile.server, profile.version)))
        self.revision = f"{client.endpoint.url}; {server}; {task.name} {task.version}"

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each (question, premise, hypothesis) True if the premise entails the hypothesis."""
        verdicts = self.decide(triples)
        return [verdicts[triple] for triple in triples]

    def decide(self, triples: Sequence[Triple], keep: Keep = lambda *_: None) -> dict[Triple, bool]:
        """Decide triples; `keep` receives each verdict as soon as it is known, in any thread."""
        verdicts = {triple: self._known[triple] for triple in triples if triple in self._known}
        missing = [triple for triple in dict.fromkeys(triples) if triple not in verdicts]

        def take(triple: Triple, verdict: bool) -> None:
            verdicts[triple] = self._known[triple] = verdict
            keep(triple, verdict)

        try:
            failed, unclear = self._send(missing, take, stricter=False)
            failed_again, unread = self._send(unclear, take, stricter=True)
        finally:
            while len(self._known) > REMEMBERED:
                self._known.pop(next(iter(self._known)))
        self.unreadable += len(unread)
        if unread:
            warnings.warn(
                f"{self.name}: {len(unread)} of {len(missing)} replies are not one of "
                f"{', '.join(self.task.labels)}, also in a second request, and count as not "
                f"{self.task.labels[0]} ({self.unreadable} so far); the first is about "
                f"{shown(unread[0][1])} and {shown(unread[0][2])}",
                SemcalWarning,
                stacklevel=3,
            )
        for (question, first, second), why in (failed | failed_again).items():
            raise InputError(
                f"{self.client.endpoint.url}: the request about {shown(first)} and {shown(second)} "
                f"({shown(question)}) failed: {why.reason}"
            )
        return verdicts | dict.fromkeys(unread, False)

    def _send(
        self, triples: Sequence[Triple], take: Keep, *, stricter: bool
    ) -> tuple[dict[Triple, RequestFailed], list[Triple]]:
        """Ask about triples; return the triples that failed, and the triples whose reply is not a label."""
        labels = self.task.labels

        def decided(index: int, label: str | RequestFailed | None) -> None:
            if isinstance(label, str):
                take(triples[index], label == labels[0])

        labels_read = self.client.send_all(
            [self._request(triple, stricter=stricter) for triple in triples],
            lambda reply: read_label(reply, labels),
            on_reply=decided,
        )
        failed = {triple: why for triple, why in zip(triples, labels_read) if isinstance(why, RequestFailed)}
        return failed, [triple for triple, label in zip(triples, labels_read) if label is None]

    def _request(self, triple: Triple, *, stricter: bool) -> ServerRequest:
        room = min(ROOM, (self.profile.max_length or 2 * ROOM) // 2)
        answer = AnswerRequest(0.0, room if stricter else LABEL, log_probs=False)
        return request_for(self.profile, Prompt("", (), self.task.chat(triple, stricter=stricter)), answer)


def read_label(reply: Json, labels: Sequence[str]) -> str | None:
    """Return the label in a reply of /chat/completions, or None; ValueError if the reply is damaged."""
    text = parse_choices(reply, log_probs=False)[0].text
    lines = [line.strip(_AROUND).casefold() for line in text.splitlines() if line.strip(_AROUND)]
    return lines[0] if lines and lines[0] in labels else None


def settings_of_judge(settings: ServerSettings | None = None) -> ServerSettings:
    """Return settings for a judge or an equivalence: the settings of the model's server with another key.

    The key is SEMCAL_JUDGE_API_KEY if set (an empty value means no key), else the key of the model.
    """
    chosen = ServerSettings(api_key=read_api_key()) if settings is None else settings
    key = os.environ.get(JUDGE_KEY_VARIABLE)
    return chosen if key is None else replace(chosen, api_key=key.strip())


def load_verdicts(
    name: str, settings: ServerSettings | None = None, *, task: EntailmentTask = ENTAILMENT
) -> PromptedVerdicts:
    """Connect to openai:URL#MODEL for a task.

    ServerError if the server cannot be reached or lacks a needed function; UsageError if the name is invalid.
    """
    if not name.startswith(PREFIX):
        raise UsageError(f"{shown(name)} does not begin with {PREFIX}. Pass {PREFIX}URL#MODEL")
    client = ServerClient(Endpoint.parse(name), settings_of_judge(settings))
    return PromptedVerdicts(client, stored_profile(client), task)
