"""From chats to tokens and back. The form of a model's turns is read off its tokenizer, never its name.

Two formats share one interface. `TemplateFormat` renders with the tokenizer's own chat template,
`PlainFormat`, for base models without one, with `semcal.qa.questions.plain_text`. Both find the answer's
tokens as what a rendering with the answer adds to the prompt's token ids, and the end of turn as what
renderings of unlike answers end with. docs/decisions/turns.md has the rules and their reasons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from jinja2.exceptions import TemplateError

from semcal.engine.language_model import Generation
from semcal.engine.tokenization import SegmentCache, SpecialTokens, check_template, render, segment_cache_for
from semcal.errors import InputError, ModelError
from semcal.qa.questions import Turn, plain_text

_Ids = tuple[int, ...]

#: Cached prompts: each is encoded again with its answers, and when its block is sampled.
_MAX_PROMPTS = 512


def chat_format(tokenizer: Any, eos: Iterable[int]) -> ChatFormat:
    """The format of a tokenizer; `eos` are the tokens that end a text for the model."""
    kind = TemplateFormat if getattr(tokenizer, "chat_template", None) else PlainFormat
    return kind(tokenizer, frozenset(eos))


class ChatFormat(ABC):
    """Chats, answers and ends of turn in the tokens of one model; `eos` are the tokens that end a text."""

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.eos = eos
        self.special_tokens = SpecialTokens(tokenizer, str(getattr(tokenizer, "chat_template", "")), eos)

    @property
    @abstractmethod
    def stops(self) -> frozenset[int]:
        """Tokens that end the turn when drawn."""

    @property
    @abstractmethod
    def end_of_turn(self) -> _Ids:
        """Tokens that close a given answer; the last of them is a stop."""

    @abstractmethod
    def encode(self, turns: Sequence[Turn]) -> _Ids:
        """The prompt: a whole chat up to where the answer begins."""

    @abstractmethod
    def encode_answer(self, turns: Sequence[Turn], answer: str) -> _Ids:
        """The answer's tokens after that prompt, and the end of turn once."""

    @abstractmethod
    def _closed(self, kept: _Ids, text: str, /) -> _Ids:
        """`kept` sampled tokens, whose text is `text`, and the end of turn."""

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of drawn tokens, without special tokens and without the end of turn."""
        drawn = list(token_ids)
        if drawn and drawn[-1] in self._newlines:
            return self._decode(drawn).partition("\n")[0]
        if drawn and drawn[-1] in self.stops:
            drawn.pop()
        return self._decode(drawn)

    def lead(self, generation: Generation, start: int) -> _Ids:
        """Tokens of ``generation.text[:start]``, as far as they were sampled; blanks may be the answer's."""
        text = generation.text[:start]
        kept, said = self._kept(generation.token_ids, text)
        before = text.rstrip(" ")
        return kept if not text[len(said) :].strip() else kept + self._piece(said, before[len(said) :])

    def complete(self, generation: Generation, end: int, start: int = 0) -> _Ids:
        """Tokens of ``generation.text[:end]`` and the end of turn, the first of them those of `lead`.

        Sampled tokens that lie before the cut are kept; a piece of a token is encoded again.
        """
        if not 0 <= end <= len(generation.text):
            raise InputError(
                f"cut at {end}, but the text has {len(generation.text)} characters; give 0 to that number"
            )
        text = generation.text[:end]
        drawn, lead = generation.token_ids, self.lead(generation, start)
        if drawn[: len(lead)] != lead:
            before = text[:start].rstrip(" ")
            return self._closed(lead + self._piece(before, text[len(before) :]), text)
        if generation.finished:
            if end == len(generation.text):
                return drawn
            if drawn[-1] not in self._newlines:
                drawn = drawn[:-1]
        kept, said = self._kept(drawn, text)
        if said != text:
            kept += self._piece(said, text[len(said) :])
        return self._closed(kept, text)

    def _kept(self, drawn: _Ids, text: str) -> tuple[_Ids, str]:
        """The longest run of drawn tokens that `text` begins with, and its text."""
        count, said = 0, ""
        for k in range(1, len(drawn) + 1):
            so_far = self._decode(drawn[:k])
            if text.startswith(so_far) and so_far != said:
                count, said = k, so_far
            if len(so_far) > len(text) + 1:
                break
        return drawn[:count], said

    def _piece(self, said: str, rest: str) -> _Ids:
        """Tokens of `rest` where it follows `said`."""
        whole, before = self._plain(said + rest), self._plain(said)
        return whole[len(before) :] if whole[: len(before)] == before else self._plain(rest)

    def _plain(self, text: str) -> _Ids:
        """The tokens of a text, nothing added; special tokens that it spells are encoded as text."""
        encoding = self.special_tokens.encode(text)
        if encoding is not None:
            return tuple(encoding.ids)
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @cached_property
    def _lead(self) -> _Ids:
        """The tokens that the tokenizer itself puts in front of a text."""
        whole, bare = tuple(self.tokenizer("a")["input_ids"]), self._plain("a")
        return next((whole[:i] for i in range(len(whole)) if whole[i : i + len(bare)] == bare), ())

    @property
    def _bos(self) -> int | None:
        bos: int | None = self.tokenizer.bos_token_id
        return bos

    @property
    def _newlines(self) -> frozenset[int]:
        """Stops because of a newline in their text; text before the newline belongs to the answer."""
        return frozenset()

    def _tokens_with_newline(self) -> frozenset[int]:
        ids = range(len(self.tokenizer))
        texts = self.tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
        return frozenset(i for i, text in zip(ids, texts) if "\n" in text) - self.eos


class TemplateFormat(ChatFormat):
    """Chats in the tokenizer's own template."""

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        super().__init__(tokenizer, eos)
        check_template(tokenizer)
        self._prompt = lru_cache(_MAX_PROMPTS)(self._encoded)

    def encode(self, turns: Sequence[Turn]) -> _Ids:
        """The chat rendered up to the start of the assistant's answer, with one BOS at most."""
        return self._prompt(tuple(turns))

    def _encoded(self, chat: tuple[Turn, ...]) -> _Ids:
        return self._one_bos(self._render(chat, ask=True))

    def encode_answer(self, turns: Sequence[Turn], answer: str) -> _Ids:
        """The ids that rendering the answer adds to the prompt's, up to the end of turn."""
        prompt = self.encode(turns)
        whole = self._one_bos(self._render([*turns, Turn("assistant", answer)], ask=False))
        cut = len(whole) - len(self._tail)
        if whole[: len(prompt)] == prompt and whole[cut:] == self._tail and cut >= len(prompt):
            return whole[len(prompt) : cut] + self.end_of_turn
        return self._plain(answer) + self.end_of_turn

    @cached_property
    def stops(self) -> frozenset[int]:
        """The model's ends of text and the template's own end of turn."""
        return self.eos | frozenset(self.end_of_turn[-1:]) | self._newlines

    @cached_property
    def end_of_turn(self) -> _Ids:
        """The template's tail up to its first special token, or first newline, or else an end of text."""
        for enders in (self._special, self._tail_newlines):
            for i, token in enumerate(self._tail):
                if token in enders:
                    return self._tail[: i + 1]
        return tuple(sorted(self.eos)[:1])

    def _closed(self, kept: _Ids, _: str, /) -> _Ids:
        return kept + self.end_of_turn

    @cached_property
    def _tail(self) -> _Ids:
        """What the template puts after an answer: the common end of renderings of unlike answers."""
        user = Turn("user", "a")
        renderings = [
            self._render([user, Turn("assistant", text)], ask=False) for text in ("Yes", "12", "no!")
        ]
        length = 0
        while len({ids[len(ids) - length - 1 :] for ids in renderings}) == 1 and length < len(renderings[0]):
            length += 1
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
        """Only where the template ends turns with a bare newline."""
        ends_in_newline = self.end_of_turn and self.end_of_turn[-1] in self._tail_newlines - self._special
        return self._tokens_with_newline() if ends_in_newline else frozenset()

    @cached_property
    def _segments(self) -> SegmentCache | None:
        return segment_cache_for(self.tokenizer)

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the template renders a system message; some refuse it, some drop it silently."""
        turns = [{"role": "system", "content": "Tell me."}, {"role": "user", "content": "a"}]
        try:
            text = render(self.tokenizer, turns, add_generation_prompt=True)
        except TemplateError:
            return False
        return "Tell me." in text

    def _render(self, turns: Sequence[Turn], *, ask: bool) -> _Ids:
        turns = self._roles(turns)
        contents, hidden = self.special_tokens.hide([turn.content for turn in turns])
        messages = [{"role": turn.role, "content": text} for turn, text in zip(turns, contents)]
        options = {"add_generation_prompt": ask, "enable_thinking": False}
        try:
            text = render(self.tokenizer, messages, **options)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(f"the model's chat template refuses the turns {roles}: {error}") from error
        if hidden:
            return self.special_tokens.encode_rendered(text, hidden)
        if self._segments is not None:
            return self._segments.encode(text)
        whole = self.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
        return tuple(whole["input_ids"])

    def _roles(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns; a system message that the template does not render joins the first user turn."""
        turns = list(turns)
        if len(turns) < 2 or turns[0].role != "system" or self._takes_system:
            return turns
        system, first, *rest = turns
        return [Turn(first.role, f"{system.content}\n\n{first.content}"), *rest]

    def _one_bos(self, ids: _Ids) -> _Ids:
        bos = self._bos
        if bos is None:
            return ids
        start = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        wanted = start > 0 or bos in self._lead
        return ((bos,) if wanted else ()) + ids[start:]


class PlainFormat(ChatFormat):
    """Chats as plain text for base models: the turn ends with the newline after the answer."""

    def encode(self, turns: Sequence[Turn]) -> _Ids:
        """What the tokenizer puts in front of any text (one BOS at most), and the plain text."""
        bos = self._bos
        lead = self._lead if bos is None or bos in self._lead else (bos, *self._lead)
        return lead + self._plain(plain_text(turns))

    def encode_answer(self, turns: Sequence[Turn], answer: str) -> _Ids:
        """The ids that the answer adds to the prompt's, up to the token that holds the newline after it."""
        prompt = self._plain(plain_text(turns))
        whole = self._plain(plain_text([*turns, Turn("assistant", answer)]) + self._between)
        if whole[: len(prompt)] != prompt:
            return self._until_newline(self._plain(f" {answer}{self._between}"), answer)
        return self._until_newline(whole[len(prompt) :], answer)

    @cached_property
    def stops(self) -> frozenset[int]:
        """The model's ends of text and every token that holds a newline."""
        return self.eos | self._newlines

    @cached_property
    def end_of_turn(self) -> _Ids:
        """The newline as it is encoded between two turns."""
        return self._until_newline(self._plain(f"a.{self._between}")[len(self._plain("a.")) :], "")

    def _closed(self, kept: _Ids, text: str, /) -> _Ids:
        """The kept tokens and a newline; where the tokenizer merges the two (".\\n"), the merged token."""
        whole, n = self._until_newline(self._plain(text + self._between), text), len(kept)
        merged = len(whole) == n and whole[:-1] == kept[:-1]
        return whole if merged or whole[:n] == kept else kept + self.end_of_turn

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
        """The text between an answer and the next turn, and that turn's beginning."""
        turns = [Turn("user", "a"), Turn("assistant", "b"), Turn("user", "Question")]
        return plain_text(turns).removeprefix(plain_text(turns[:2]))
