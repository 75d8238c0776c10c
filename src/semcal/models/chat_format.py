"""Conversion between chats and tokens, from the tokenizer of a model and never from its name.

Two formats share one interface. `TemplateFormat` renders with the chat template of the tokenizer.
`PlainFormat`, for base models without a template, renders with `semcal.data.question.plain_text`. In both,
the tokens of an answer are those that a rendering with the answer adds to the prompt. The end of turn is the
common end of renderings of different answers. docs/decisions/turns.md explains the rules.

Templates are programs in a checkpoint. They run in Jinja's sandbox, which limits neither time nor memory.
Therefore loading a model tests its template with limits of both, and a rendering must not be much longer than
its messages.

Special tokens: a tokenizer replaces its special tokens in a text first, also in texts of users. If a text of
a user contains a special token ("<|eot_id|>"), a placeholder is rendered for it. The text between the
template's special tokens is then encoded by a copy of the tokenizer whose special tokens have names that no
text contains.

Segments: the text between two special tokens is encoded independently. Therefore a chat is split before
special tokens, and the first turns of all chats are encoded only once.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import warnings
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import chain, pairwise, takewhile
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, Tokenizer

from semcal.data.question import Turn, plain_text
from semcal.errors import InputError, ModelError, SemcalWarning, shown
from semcal.files import HALF
from semcal.meaning.answer import opened_reasoning, split_reasoning
from semcal.models.protocols import Generation

_Ids = tuple[int, ...]

#: Private-use characters, which no template changes; a character that is not in the texts marks placeholders.
_MARKS = tuple(map(chr, range(0xE000, 0xF900)))
_MAX_SEGMENTS, _MAX_PROMPTS = 512, 512  # cached encodings


class SpecialTokens:
    """The tokens of a tokenizer with a special meaning, which a text of a user must not invoke.

    These are the special tokens of the tokenizer, the tokens that end a text for the model (`ends`), and
    added tokens in the chat template that look like marks: they contain a letter or digit and a sign.
    """

    def __init__(self, tokenizer: Any, template: str = "", ends: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        added = {int(i): token for i, token in tokenizer.added_tokens_decoder.items()}
        named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens)
        self._ids = {str(text): int(i) for i, text in named if i is not None} | {
            str(token.content): i
            for i, token in added.items()
            if token.special or i in ends or (str(token.content) in template and _is_mark(str(token.content)))
        }
        texts = sorted(filter(None, self._ids), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._splitting = frozenset(self._ids.values()) - {tokenizer.unk_token_id}
        self._secret = secrets.token_hex(16)
        #: Text before a part, so that the part is not encoded as the beginning of a text.
        self._anchor = f"{self._secret}-before"

    def find(self, text: str) -> tuple[str, ...]:
        """Return the distinct special tokens in a text."""
        return tuple(dict.fromkeys(self._pattern.findall(text)))

    def encode(self, text: str) -> Any:
        """Encode a text of a user as plain text, without additions; None if it has no special token.

        InputError if it has a special token and the tokenizer is not based on the tokenizers library.
        """
        if self._pattern.search(text) is None:
            return None
        return self._plain(text).encode(text, add_special_tokens=False)

    def hide(self, texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the texts with placeholders for special tokens, and the special token by placeholder."""
        if not any(map(self._pattern.search, texts)):
            return list(texts), {}
        mark = next(mark for mark in _MARKS if not any(mark in text for text in texts))
        spelled = dict.fromkeys(token for text in texts for token in self.find(text))
        names = {token: f"{mark}{number}{mark}" for number, token in enumerate(spelled)}
        hidden_texts = [self._pattern.sub(lambda match: names[match[0]], text) for text in texts]
        return hidden_texts, {name: token for token, name in names.items()}

    def encode_rendered(self, rendered: str, hidden: Mapping[str, str]) -> _Ids:
        """Encode a rendered chat without additions; placeholders are encoded as the texts that they hide."""
        plain = self._plain(*hidden.values())
        encoding = self._tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = tuple(encoding["input_ids"]), encoding["offset_mapping"]
        places = [place for place, token in enumerate(ids) if token in self._splitting]
        token_ids: list[int] = []
        for before, after in zip([-1, *places], [*places, len(ids)]):
            start = spans[before][1] if before >= 0 else 0
            part = rendered[start : spans[after][0] if after < len(ids) else len(rendered)]
            if any(name in part for name in hidden):
                anchor = self._anchor if before >= 0 else ""
                text = anchor + re.sub("|".join(hidden), lambda match: hidden[match[0]], part)
                token_ids += plain.encode(text, add_special_tokens=False).ids[bool(anchor) :]
            else:
                token_ids += ids[before + 1 : after]
            token_ids += ids[after : after + 1]
        return tuple(token_ids)

    def _plain(self, *texts: str) -> Tokenizer:
        """Return the copy of the tokenizer without special tokens."""
        if not getattr(self._tokenizer, "is_fast", False):
            tokens = ", ".join(repr(token) for text in texts for token in self.find(text))
            raise InputError(
                f"the text contains the special token {tokens}, which this model's tokenizer cannot encode "
                "as plain text (it is not based on the tokenizers library). Remove it from the text"
            )
        return self._renamed

    @cached_property
    def _renamed(self) -> Tokenizer:
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        content = json.loads(backend.to_str())
        _rename(content, {token: f"{self._secret}{i}" for token, i in self._ids.items()})
        plain = Tokenizer.from_str(json.dumps(content))
        plain.add_tokens([AddedToken(self._anchor, normalized=False)])
        return plain


def _is_mark(text: str) -> bool:
    """Return whether an added token looks like a mark, not like a word, a blank or a sign.

    >>> [_is_mark(text) for text in ("<think>", "[INST]", "user", "  ", "...")]
    [True, True, False, False, False]
    """
    return bool(re.search(r"\w", text) and re.search(r"[^\w\s]", text))


def _rename(content: Any, names: Mapping[str, str]) -> None:
    for added in content["added_tokens"]:
        added["content"] = names.get(added["content"], added["content"])
    model, vocabulary = content["model"], content["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    else:
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))]


def segment_encoder(tokenizer: Any) -> Callable[[str], _Ids] | None:
    """Return a function that encodes the segments of a text, each only once, without additions.

    A segment begins at a special token that is matched literally and does not change the text before it. The
    result is None if the ids may differ from those of the whole text: if the tokenizer is not based on the
    tokenizers library, or in a test of a text with all such tokens.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    added = tokenizer.added_tokens_decoder.values()
    begins = {
        str(token.content)
        for token in added
        if token.special and not (token.normalized or token.lstrip or token.single_word)
    }
    texts = sorted((str(token.content) for token in added), key=len, reverse=True)
    marks = re.compile("|".join(map(re.escape, texts)))

    @lru_cache(_MAX_SEGMENTS)
    def encode_segment(segment: str) -> _Ids:
        return tuple(tokenizer(segment, add_special_tokens=False)["input_ids"])

    def encode(text: str) -> _Ids:
        starts = [match.start() for match in marks.finditer(text) if match[0] in begins]
        ends = sorted({0, *starts, len(text)})
        return tuple(chain.from_iterable(encode_segment(text[start:end]) for start, end in pairwise(ends)))

    sample = "".join(f"a {mark} b\n{mark}{mark}c {mark}\n d" for mark in sorted(begins))
    expected = tokenizer(sample, add_special_tokens=False)["input_ids"]
    return encode if begins and encode(sample) == tuple(expected) else None


#: Maximum characters of a template, and of its additions to messages.
LONGEST_TEMPLATE, MOST_CHARACTERS = 10**5, 10**6
#: Limits of a test: executed lines of the compiled template, and bytes of memory.
MOST_STEPS, MOST_BYTES = 10**6, 2**28
#: Texts that no template contains, to test if a rendering includes the text of a turn.
_PROBE, _OTHER_PROBE = "Quartermill", "Sullbridge"


def render(tokenizer: Any, turns: Sequence[Turn], *, ask: bool = True, parts: Container[str] = ()) -> str:
    """Render a chat with the template of the tokenizer; turns of the roles in `parts` are lists of parts.

    TemplateError if the template rejects the turns; ModelError if it fails otherwise, or its text is much
    longer than the turns.
    """
    contents = [
        [{"type": "text", "text": turn.content}] if turn.role in parts else turn.content for turn in turns
    ]
    messages = [{"role": turn.role, "content": content} for turn, content in zip(turns, contents)]
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=ask, enable_thinking=False
        )
    except TemplateError:
        raise
    except Exception as error:  # a template may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"chat template: it fails ({reason[:200]}). {_REMEDY}") from error
    most = MOST_CHARACTERS + 2 * sum(len(turn.content) for turn in turns)
    if not isinstance(text, str) or len(text) > most:
        raise ModelError(f"chat template: it writes more than {most} characters. {_REMEDY}")
    return text


def check_template(tokenizer: Any) -> frozenset[str]:
    """Render small chats, and return the roles whose turns the template accepts only as lists of parts.

    ModelError if the template is too long, fails, takes too many steps or too much memory, or drops the text
    of the user. A template that rejects the chat fails later, when it is used.
    """
    template = str(tokenizer.chat_template)
    if len(template) > LONGEST_TEMPLATE:
        raise ModelError(
            f"chat template: got {len(template)} characters, expected at most {LONGEST_TEMPLATE}. {_REMEDY}"
        )
    _check_whole(template)
    question, reply = Turn("user", _PROBE), Turn("assistant", _OTHER_PROBE)
    if _writes(tokenizer, [question], _PROBE) is not False:
        return frozenset()
    parts = frozenset({"user"})
    if not _writes(tokenizer, [question], _PROBE, parts):
        raise ModelError(
            f"chat template: it drops the text of the user, as a text and as a list of parts. {_REMEDY}"
        )
    for turns in ([Turn("system", _OTHER_PROBE), question], [question, reply, question]):
        if not _writes(tokenizer, turns, _OTHER_PROBE, parts):
            parts |= {turn.role for turn in turns}
    return parts


def _writes(tokenizer: Any, turns: Sequence[Turn], text: str, parts: Container[str] = ()) -> bool | None:
    """Return whether the rendering of a small chat contains a text; None if the template rejects the chat."""
    try:
        with _limited_steps(), _limited_memory():
            rendered = render(tokenizer, turns, parts=parts)
    except TemplateError:
        return None
    _check_whole(rendered)
    return text in rendered


def _check_whole(text: str) -> None:
    if half := HALF.search(text):
        raise ModelError(
            f"chat template: it writes half a character ({shown(half[0])}), which is not text. {_REMEDY}"
        )


_REMEDY = "Correct chat_template in the files of the tokenizer, or use another checkpoint"


@contextmanager
def _limited_steps() -> Iterator[None]:
    """Limit the number of lines of compiled templates that run in this thread."""
    before, steps = sys.gettrace(), 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        nonlocal steps
        if frame.f_code.co_filename != "<template>":
            return None
        steps += 1
        if steps > MOST_STEPS:
            raise RuntimeError(f"more than {MOST_STEPS} steps for a chat of one word")
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most if soft < 0 else min(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def chat_format(tokenizer: Any, eos: Iterable[int]) -> ChatFormat:
    """Return the format of a tokenizer; `eos` are the tokens that end a text for the model."""
    kind = TemplateFormat if getattr(tokenizer, "chat_template", None) else PlainFormat
    return kind(tokenizer, frozenset(eos))


class ChatFormat(ABC):
    """Chats, answers and ends of turn in the tokens of one model; `eos` are the tokens that end a text."""

    takes_messages = True  # True if the model accepts chats
    opened: str = ""  # the mark at the end of prompts that opens reasoning

    @property
    def takes_system(self) -> bool:
        """True if a system message has its own place."""
        return True

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.eos = eos
        self.special_tokens = SpecialTokens(tokenizer, str(getattr(tokenizer, "chat_template", "")), eos)

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

    def _plain(self, text: str) -> _Ids:
        """Encode a text without additions; special tokens in it are encoded as text."""
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
        self._parts = check_template(tokenizer)
        with suppress(TemplateError):
            self.opened = opened_reasoning(render(tokenizer, [Turn("user", _PROBE)], parts=self._parts))
        if self.opened:
            warnings.warn(
                f"chat template: prompts end inside {self.opened}, so the model reasons before it answers; "
                "reasoning that reaches the token limit counts as no answer. Increase --max-new-tokens (such "
                "as 4000), or use a checkpoint without reasoning",
                SemcalWarning,
                stacklevel=3,
            )
        self._prompt = lru_cache(_MAX_PROMPTS)(lambda chat: self._one_bos(self._render(chat, ask=True)))

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
    def _encode_segments(self) -> Callable[[str], _Ids] | None:
        return segment_encoder(self.tokenizer)

    @cached_property
    def takes_system(self) -> bool:
        """True if the template renders a system message; some reject it, some drop it silently."""
        turns = [Turn("system", "Tell me."), Turn("user", "a")]
        try:
            text = render(self.tokenizer, turns, parts=self._parts)
        except TemplateError:
            return False
        return "Tell me." in text

    def _render(self, turns: Sequence[Turn], *, ask: bool) -> _Ids:
        turns = self._roles(turns)
        contents, hidden = self.special_tokens.hide([turn.content for turn in turns])
        turns = [Turn(turn.role, text) for turn, text in zip(turns, contents)]
        try:
            text = render(self.tokenizer, turns, ask=ask, parts=self._parts)
        except TemplateError as error:
            roles = ", ".join(turn.role for turn in turns)
            raise ModelError(f"chat template: it rejects the turns {roles}: {error}") from error
        if hidden:
            return self.special_tokens.encode_rendered(text, hidden)
        if self._encode_segments is not None:
            return self._encode_segments(text)
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _roles(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns; a system message that the template does not render joins the first user turn."""
        turns = list(turns)
        if len(turns) < 2 or turns[0].role != "system" or self.takes_system:
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

    takes_messages = False

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
