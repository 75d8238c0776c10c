"""Conversion between chats and tokens, from the tokenizer of a model and never from its name.

Two formats share one interface. `TemplateFormat` renders with the chat template of the tokenizer.
`PlainFormat`, for base models without a template, renders with `semcal.data.question.plain_text`. In both,
the tokens of an answer are those that a rendering with the answer adds to the prompt. The end of turn is the
common end of renderings of different answers. docs/decisions/turns.md explains the rules.

Special tokens: a tokenizer replaces its special tokens in a text first, also in texts of users. Therefore a
blank is put into each special token ("< |eot_id|>") before a template is rendered. Texts without a template
are encoded without special tokens.
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

from semcal.data.question import Turn, plain_text
from semcal.errors import InputError, ModelError, SemcalWarning
from semcal.meaning.answer import opened_reasoning, split_reasoning
from semcal.models.protocols import Generation

_Ids = tuple[int, ...]

_MAX_PROMPTS = 512  # cached encodings
#: A text that no template contains, to test if a rendering includes the text of a turn.
_PROBE = "Quartermill"
_REMEDY = "Correct chat_template in the files of the tokenizer, or use another checkpoint"


def chat_format(tokenizer: Any, eos: Iterable[int]) -> ChatFormat:
    """Return the format of a tokenizer; `eos` are the tokens that end a text for the model."""
    kind = TemplateFormat if getattr(tokenizer, "chat_template", None) else PlainFormat
    return kind(tokenizer, frozenset(eos))


class ChatFormat(ABC):
    """Chats, answers and ends of turn in the tokens of one model; `eos` are the tokens that end a text."""

    opened: str = ""  # the mark at the end of prompts that opens reasoning

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.eos = eos

    @property
    @abstractmethod
    def stops(self) -> frozenset[int]:
        """Tokens that end the turn if sampled."""

    @property
    @abstractmethod
    def end_of_turn(self) -> _Ids:
        """Tokens that close a given answer; the last of them is a stop."""

    @abstractmethod
    def encode(self, turns: Sequence[Turn]) -> _Ids:
        """Return the prompt: a whole chat up to the beginning of the answer."""

    @abstractmethod
    def encode_answer(self, turns: Sequence[Turn], answer: str) -> _Ids:
        """Return the tokens of an answer after the prompt, with one end of turn."""

    @abstractmethod
    def _closed(self, tokens: _Ids, text: str, /) -> _Ids:
        """Return sampled tokens, whose text is `text`, with the end of turn."""

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a prompt's tokens, special tokens included."""
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens, without special tokens and without the end of turn."""
        tokens = list(token_ids)
        if tokens and tokens[-1] in self._newlines:
            return self._decode(tokens).partition("\n")[0]
        if tokens and tokens[-1] in self.stops:
            tokens.pop()
        return self._decode(tokens)

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each sampled token; the last token of a character has the character."""
        pieces, before = [], ""
        for count in range(1, len(token_ids) + 1):
            text = self.text(token_ids[:count])
            text = before if text.endswith("\ufffd") else text
            pieces.append(text[len(before) :])
            before = text
        return tuple(pieces)

    def refusal(self, text: str) -> str | None:
        """Return "" if a generation only continues the reasoning that its prompt opens; else None."""
        return "" if self.opened and split_reasoning(self.opened + text)[1] is None else None

    def lead(self, generation: Generation, start: int) -> _Ids:
        """Return sampled tokens of ``generation.text[:start]``; its last blanks may belong to the answer."""
        text = generation.text[:start]
        tokens, prefix = self._sampled_prefix(generation.token_ids, text)
        before = text.rstrip(" ")
        blank = not text[len(prefix) :].strip()
        return tokens if blank else tokens + self._piece(prefix, before[len(prefix) :])

    def complete(self, generation: Generation, end: int, start: int = 0, ended: bool = True) -> _Ids:
        """Return tokens of ``generation.text[:end]`` and the end of turn; they begin with those of `lead`.

        Sampled tokens before the cut are kept; a piece of a token is encoded again. Unless `ended`, the token
        at the cut is kept as well, and no end of turn is added.
        """
        if not 0 <= end <= len(generation.text):
            raise InputError(
                f"end: got {end}, but the text has {len(generation.text)} characters. Pass 0 to that number"
            )
        text = generation.text[:end]
        tokens, lead = generation.token_ids, self.lead(generation, start)
        if tokens[: len(lead)] != lead:
            before = text[:start].rstrip(" ")
            cut = lead + self._piece(before, text[len(before) :])
            return self._closed(cut, text) if ended else cut
        if end == len(generation.text) and (generation.finished or not ended):
            return tokens
        if not ended:
            return tokens[: bisect_left(range(len(tokens)), end, key=lambda k: len(self._decode(tokens[:k])))]
        if generation.finished and tokens[-1] not in self._newlines:
            tokens = tokens[:-1]
        prefix_tokens, prefix = self._sampled_prefix(tokens, text)
        if prefix != text:
            prefix_tokens += self._piece(prefix, text[len(prefix) :])
        return self._closed(prefix_tokens, text)

    def _sampled_prefix(self, tokens: _Ids, text: str) -> tuple[_Ids, str]:
        """Return the longest run of sampled tokens that `text` begins with, and the text of the run."""
        count, prefix = 0, ""
        for k in range(1, len(tokens) + 1):
            decoded = self._decode(tokens[:k])
            if text.startswith(decoded) and decoded != prefix:
                count, prefix = k, decoded
            if len(decoded) > len(text) + 1:
                break
        return tokens[:count], prefix

    def _piece(self, prefix: str, continuation: str) -> _Ids:
        tokens, prefix_tokens = self._plain(prefix + continuation), self._plain(prefix)
        follows = tokens[: len(prefix_tokens)] == prefix_tokens
        return tokens[len(prefix_tokens) :] if follows else self._plain(continuation)

    @cached_property
    def _special_texts(self) -> re.Pattern[str]:
        added = self.tokenizer.added_tokens_decoder.items()
        ends = (token for number, token in added if token.special or number in self.eos)
        texts = {str(token) for token in (*self.tokenizer.all_special_tokens, *ends)}
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")

    def _defused(self, text: str) -> str:
        return self._special_texts.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _plain(self, text: str) -> _Ids:
        """Encode a text without additions; special tokens in it are encoded as text."""
        text = self._defused(text)
        return tuple(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @cached_property
    def _lead(self) -> _Ids:
        tokens, bare = tuple(self.tokenizer("a")["input_ids"]), self._plain("a")
        return next((tokens[:i] for i in range(len(tokens)) if tokens[i : i + len(bare)] == bare), ())

    @property
    def _newlines(self) -> frozenset[int]:
        """Stops with a newline in their text; text before the newline belongs to the answer."""
        return frozenset()

    def _tokens_with_newline(self) -> frozenset[int]:
        ids = range(len(self.tokenizer))
        texts = self.tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
        return frozenset(i for i, text in zip(ids, texts) if "\n" in text) - self.eos


class TemplateFormat(ChatFormat):
    """Chats in the template of the tokenizer."""

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        super().__init__(tokenizer, eos)
        self._prompt = lru_cache(_MAX_PROMPTS)(lambda chat: self._one_bos(self._render(chat, ask=True)))
        try:
            prompt = self._text([Turn("user", _PROBE)])
        except ModelError:  # a template that rejects this chat may accept others
            return
        if _PROBE not in prompt:
            raise ModelError(f"chat template: it drops the text of the user. {_REMEDY}")
        self.opened = opened_reasoning(prompt)
        if self.opened:
            warnings.warn(
                f"chat template: prompts end inside {self.opened}, so the model reasons before it answers; "
                "reasoning that reaches the token limit counts as no answer. Increase --max-new-tokens (such "
                "as 4000), or use a checkpoint without reasoning",
                SemcalWarning,
                stacklevel=3,
            )

    def encode(self, turns: Sequence[Turn]) -> _Ids:
        """Encode the chat up to the beginning of the assistant's answer, with at most one BOS."""
        return self._prompt(tuple(turns))

    def encode_answer(self, turns: Sequence[Turn], answer: str) -> _Ids:
        """Return the ids that a rendering with the answer adds to the prompt, up to the end of turn."""
        prompt = self.encode(turns)
        tokens = self._one_bos(self._render([*turns, Turn("assistant", answer)], ask=False))
        cut = len(tokens) - len(self._tail)
        if tokens[: len(prompt)] == prompt and tokens[cut:] == self._tail and cut >= len(prompt):
            return tokens[len(prompt) : cut] + self.end_of_turn
        return self._plain(answer) + self.end_of_turn

    @cached_property
    def stops(self) -> frozenset[int]:
        """The model's ends of text and the template's end of turn."""
        return self.eos | frozenset(self.end_of_turn[-1:]) | self._newlines

    @cached_property
    def end_of_turn(self) -> _Ids:
        """The template's tail up to its first special token, or first newline, or else an end of text."""
        for enders in (self._special, self._tail_newlines):
            for i, token in enumerate(self._tail):
                if token in enders:
                    return self._tail[: i + 1]
        return tuple(sorted(self.eos)[:1])

    def _closed(self, tokens: _Ids, _: str, /) -> _Ids:
        return tokens + self.end_of_turn

    @cached_property
    def _tail(self) -> _Ids:
        """The template's text after an answer: the common end of renderings of different answers."""
        user = Turn("user", "a")
        answers = [Turn("assistant", text) for text in ("Yes", "12", "no!")]
        renderings = [self._render([user, answer], ask=False) for answer in answers]
        backwards = zip(*(reversed(ids) for ids in renderings))
        length = len(list(takewhile(lambda tokens: len(set(tokens)) == 1, backwards)))
        return renderings[0][len(renderings[0]) - length :]

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder
        return self.eos | frozenset(self.tokenizer.all_special_ids) | {i for i in added if added[i].special}

    @cached_property
    def _tail_newlines(self) -> frozenset[int]:
        return frozenset(i for i in self._tail if "\n" in self._decode([i]))

    @cached_property
    def _newlines(self) -> frozenset[int]:
        """Stops with a newline; none unless the template ends turns with a newline."""
        ends_in_newline = self.end_of_turn and self.end_of_turn[-1] in self._tail_newlines - self._special
        return self._tokens_with_newline() if ends_in_newline else frozenset()

    @cached_property
    def _takes_system(self) -> bool:
        """True if the template renders a system message; some reject it, some drop it silently."""
        try:
            return _PROBE in self._text([Turn("system", _PROBE), Turn("user", "a")])
        except ModelError:
            return False

    def _text(self, turns: Sequence[Turn], *, ask: bool = True) -> str:
        """Render turns with the template; ModelError if it rejects them or fails."""
        messages = [{"role": turn.role, "content": self._defused(turn.content)} for turn in turns]
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=ask, enable_thinking=False
            )
        except Exception as error:  # a template may raise anything
            roles = ", ".join(turn.role for turn in turns)
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(
                f"chat template: it rejects the turns {roles} ({reason[:200]}). {_REMEDY}"
            ) from error
        return text

    def _render(self, turns: Sequence[Turn], *, ask: bool) -> _Ids:
        text = self._text(self._roles(turns), ask=ask)
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _roles(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns; a system message that the template does not render joins the first user turn."""
        turns = list(turns)
        if len(turns) < 2 or turns[0].role != "system" or self._takes_system:
            return turns
        system, *turns = turns
        place = next(place for place, turn in enumerate(turns) if turn.role == "user")
        turns[place] = Turn("user", f"{system.content}\n\n{turns[place].content}")
        return turns

    def _one_bos(self, ids: _Ids) -> _Ids:
        if (bos := self.tokenizer.bos_token_id) is None:
            return ids
        start = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        takes_bos = start > 0 or bos in self._lead
        return ((bos,) if takes_bos else ()) + ids[start:]


class PlainFormat(ChatFormat):
    """Chats as plain text for base models: the turn ends with the newline after the answer."""

    def encode(self, turns: Sequence[Turn]) -> _Ids:
        """Encode the plain text after the tokens that the tokenizer adds before a text (at most one BOS)."""
        bos = self.tokenizer.bos_token_id
        lead = self._lead if bos is None or bos in self._lead else (bos, *self._lead)
        return lead + self._plain(plain_text(turns))

    def encode_answer(self, turns: Sequence[Turn], answer: str) -> _Ids:
        """Return the ids that the answer adds to the prompt, up to the token with the newline after it."""
        prompt = self._plain(plain_text(turns))
        tokens = self._plain(plain_text([*turns, Turn("assistant", answer)]) + self._between)
        if tokens[: len(prompt)] != prompt:
            return self._until_newline(self._plain(f" {answer}{self._between}"), answer)
        return self._until_newline(tokens[len(prompt) :], answer)

    @cached_property
    def stops(self) -> frozenset[int]:
        """The model's ends of text and every token with a newline."""
        return self.eos | self._newlines

    @cached_property
    def end_of_turn(self) -> _Ids:
        """The encoded newline between two turns."""
        return self._until_newline(self._plain(f"a.{self._between}")[len(self._plain("a.")) :], "")

    def _closed(self, tokens: _Ids, text: str, /) -> _Ids:
        """Return the tokens and a newline, or a merged last token if the tokenizer merges them (".\\n")."""
        encoded, n = self._until_newline(self._plain(text + self._between), text), len(tokens)
        merged = len(encoded) == n and encoded[:-1] == tokens[:-1]
        return encoded if merged or encoded[:n] == tokens else tokens + self.end_of_turn

    def _until_newline(self, ids: _Ids, answer: str) -> _Ids:
        """Cut after the first newline that is not part of the answer."""
        for k in range(1, len(ids) + 1):
            if self._decode(ids[:k]).count("\n") > answer.count("\n"):
                return ids[:k]
        return ids

    @cached_property
    def _newlines(self) -> frozenset[int]:
        return self._tokens_with_newline()

    @cached_property
    def _between(self) -> str:
        """The text between an answer and the next turn, with the beginning of that turn."""
        turns = [Turn("user", "a"), Turn("assistant", "b"), Turn("user", "Question")]
        return plain_text(turns).removeprefix(plain_text(turns[:2]))
