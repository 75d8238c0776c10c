"""Rendering chat templates, which are programs that come with a checkpoint, safely.

They run in Jinja's sandbox, which limits neither time nor memory. So a template is tried within limits of
both when its model is loaded, and no rendering may be much longer than its messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2.exceptions import TemplateError

from semcal.errors import ModelError

__all__ = ["check_template", "render"]

Messages = Sequence[Mapping[str, str]]

#: Characters that a template may add to its messages.
MOST_CHARACTERS = 10**6
#: Limits while it is tried: lines of the compiled template that run, and bytes of memory.
MOST_STEPS, MOST_BYTES = 10**6, 2**28


def render(tokenizer: Any, messages: Messages, **options: Any) -> str:
    """The text of a chat in the tokenizer's template.

    TemplateError if the template refuses the messages; ModelError if it fails otherwise, or its text is much
    longer than the messages.
    """
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except TemplateError:
        raise
    except Exception as error:  # a template may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"the model's chat template fails ({reason[:200]}); {_REMEDY}") from error
    most = MOST_CHARACTERS + 2 * sum(len(message["content"]) for message in messages)
    if not isinstance(text, str) or len(text) > most:
        raise ModelError(f"the model's chat template writes more than {most} characters; {_REMEDY}")
    return text


def check_template(tokenizer: Any) -> None:
    """Render a small chat; ModelError if that fails, or takes too many steps or too much memory.

    A template that refuses the chat fails when it is used.
    """
    try:
        with _limited_steps(), _limited_memory():
            render(tokenizer, [{"role": "user", "content": "a"}], add_generation_prompt=True)
    except TemplateError:
        return


_REMEDY = "mend chat_template in its tokenizer's files, or use another checkpoint"


@contextmanager
def _limited_steps() -> Iterator[None]:
    """Limit how many lines of compiled templates run in this thread."""
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
    """Limit the process's additional memory, where the system can (Linux)."""
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
