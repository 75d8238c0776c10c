"""What carries out a command: worker processes for blocks of rows, or a server with options of its own."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from semcal.cli.console import debug, info, note_in_progress
from semcal.cli.options import ApiKeyFileOption, add_options, countable
from semcal.cli.rows import Item
from semcal.engine.equivalence import names_a_server
from semcal.errors import UsageError
from semcal.pipeline.progress import note_block, note_resumed
from semcal.pipeline.store import UnfinishedWork

if TYPE_CHECKING:
    from semcal.engine.servers.settings import ServerSettings
    from semcal.pipeline.executor import Executor, Job
    from semcal.pipeline.worker_state import WorkerPlan, WorkerState

#: Stages whose jobs use the NLI model.
NLI_STAGES = ("cluster", "nli", "plain")
Rows = Sequence[Mapping[str, Any]]
Anything = TypeVar("Anything")


def choose_workers(
    asked: int | None,
    label: str,
    *,
    device: str | None,
    blocks: int | None,
    model: str | None = None,
    equivalence: str | None = None,
    at_once: bool = False,
) -> WorkerPlan:
    """Choose how many processes a command uses, `at_once` or when that pays; -v says so."""
    from semcal.cli.options import weights_of
    from semcal.pipeline.worker_state import WorkerPlan, cores, plan_workers, uses_cpu

    if names_a_server(model) or names_a_server(equivalence):
        if asked is not None:
            raise UsageError("one process asks a server; leave --workers out, and use --concurrency")
        return WorkerPlan(1, cores(), "a server answers")
    weights = weights_of(model=model, equivalence=equivalence)
    plan = plan_workers(asked, weights=weights, blocks=blocks, on_cpu=uses_cpu(device))
    surely = at_once or plan.asked or plan.n_workers == 1
    debug(f"{label}: {'' if surely else 'up to '}{plan}")
    return plan


@contextmanager
def open_executor(
    plan: WorkerPlan,
    load: Callable[[], Anything],
    *,
    at_once: bool = False,
    devices: tuple[str | None, str | None] = (None, None),
) -> Iterator[tuple[Executor[Anything], Callable[[], Anything]]]:
    """Give the executor, and what loads this process's own state; say at the end what memory it took.

    Workers that were asked for start `at_once`, and this process loads nothing before it is asked to; workers
    that were chosen start when that pays. One process whose language model and NLI model have a device each
    (`devices`) clusters while it samples.
    """
    from semcal.pipeline.executor import SerialExecutor, TwoDeviceExecutor
    from semcal.pipeline.process_executor import AdaptiveExecutor, ProcessExecutor

    state = cache(partial(_loaded, load, plan.n_threads))
    chosen: Executor[Anything]
    if plan.n_workers > 1 and (at_once or plan.asked):
        chosen = ProcessExecutor(load, plan.n_workers)
    elif plan.n_workers > 1:
        chosen = AdaptiveExecutor(load, plan.n_workers, state())
    else:
        chosen = TwoDeviceExecutor(state(), NLI_STAGES) if _differ(*devices) else SerialExecutor(state())
    with chosen as executor:
        yield executor, state
        show_peak(executor)


def _loaded(load: Callable[[], Anything], n_threads: int) -> Anything:
    """The state of a process that uses so many threads, or fewer if PyTorch was told to (OMP_NUM_THREADS)."""
    state = load()
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_num_threads(min(n_threads, torch.get_num_threads()))
    return state


def _differ(device: str | None, nli_device: str | None) -> bool:
    """Whether the NLI model was given a device that the language model is not on."""
    if nli_device is None:
        return False
    from semcal.engine.loading import choose_device

    return choose_device(device) != choose_device(nli_device)


def show_peak(executor: Executor[Any]) -> None:
    """Say with -v how much memory was used at most."""
    of = f" of this process and {executor.n_processes} more" if executor.n_processes else ""
    debug(f"peak memory{of}: {executor.peak_memory}")


def peeked(items: Iterable[Anything], block: int, limit: int | None) -> tuple[Iterator[Anything], int | None]:
    """The items up to the limit, and the number of blocks that they make: 0, 1, or None for more."""
    rest = islice(items, limit)
    first = list(islice(rest, block + 1))
    return chain(first, rest), None if len(first) > block else min(1, len(first))


@dataclass(frozen=True)
class RowBlocks(Generic[Item]):
    """The blocks of a row command as jobs, a few ahead of what is written."""

    executor: Executor[WorkerState]
    job_of: Callable[[Sequence[Item]], Job]
    inputs: Callable[[Item], Mapping[str, Any]]  # what stands for an item where finished blocks are kept
    stage: str  # the command
    then: Callable[[Any], Rows] = list  # turns what a job gives into rows, in this process
    unfinished: UnfinishedWork = field(default_factory=partial(UnfinishedWork, None, {}, fresh=False))

    def __call__(
        self, blocks: Iterable[list[Item]], update: Callable[[int], None]
    ) -> Iterator[tuple[list[Item], Callable[[], Rows]]]:
        """Each block in order with a function that returns its rows; the next ones are begun meanwhile."""
        n_done: Counter[int] = Counter()

        def progress(number: int, count: int) -> None:
            n_done[number] = count
            update(n_done.total())

        note_block(update)
        waiting: deque[tuple[list[Item], Callable[[], Rows]]] = deque()
        for number, block in enumerate(blocks):
            waiting.append((block, self._begin(block, partial(progress, number), update)))
            if len(waiting) >= self.executor.n_ahead:
                yield waiting.popleft()
        yield from waiting

    def _begin(
        self, block: Sequence[Item], progress: Callable[[int], None], update: Callable[[int], None]
    ) -> Callable[[], Rows]:
        inputs = [self.inputs(item) for item in block]
        found = self.unfinished.find(inputs)
        if found is not None:
            note_resumed(update, len(block))
            progress(len(block))
            return lambda: found

        def keep(result: Any) -> Rows:
            progress(len(block))
            note_block(update)
            return self.unfinished.keep(inputs, self.then(result))

        job = self.job_of(block)
        return self.executor.submit(job, stage=self.stage, then=keep, progress=progress).result


ServerOptions = Mapping[str, Any]
"""The options of servers that a command was given."""
NO_SERVER: ServerOptions = MappingProxyType({})


def _option(kind: Any, name: str, metavar: str, text: str) -> Any:
    callback = countable if kind is int else None
    return Annotated[kind | None, typer.Option(name, metavar=metavar, callback=callback, help=text)]


_OPTIONS: dict[str, Any] = {
    "tokenizer": _option(
        str, "--tokenizer", "DIR", "The server's model as a directory or hub id: token ids are sent."
    ),
    "api_key_file": ApiKeyFileOption,
    "concurrency": _option(int, "--concurrency", "N", "Requests to a server at a time: 16 by default."),
    "retries": _option(int, "--retries", "N", "How often a request that fails is tried again: 5 by default."),
    "timeout": _option(float, "--timeout", "SECONDS", "How long a try may take: 120 by default."),
    "allow_truncation": Annotated[
        bool,
        typer.Option("--allow-truncation", help="Sample although a server truncates; it is recorded."),
    ],
    "max_tokens_total": _option(
        int, "--max-tokens-total", "N", "Stop before servers have read and written more tokens, all together."
    ),
    "max_cost": _option(float, "--max-cost", "COST", "Stop before more is spent, by the prices."),
    "price_in": _option(float, "--price-in", "PRICE", "Of a million prompt tokens."),
    "price_out": _option(float, "--price-out", "PRICE", "Of a million completion tokens."),
}


def takes_server_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of servers, which it takes together as `server`."""

    @wraps(command)
    def run(**options: Any) -> int:
        server = {name: options.pop(name, None) for name in _OPTIONS}
        return command(**options, server=server)

    add_options(run, command, _OPTIONS, instead_of="server")
    return run


def server_settings(given: ServerOptions, *names: str | None) -> ServerSettings | None:
    """How servers are asked; without a server among the names None, and UsageError for an option of one."""
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    if not any(names_a_server(name) for name in names):
        for name in chosen:
            raise UsageError(
                f"--{name.replace('_', '-')} is for a model behind a server (openai:URL#NAME); leave it out"
            )
        return None
    from semcal.engine.servers.settings import JUDGE_KEY_VARIABLE, Endpoint, ServerSettings, read_api_key

    key = read_api_key(chosen.pop("api_key_file", None))
    hosts = {Endpoint.parse(name).host: None for name in names if name is not None and names_a_server(name)}
    if key is not None and len(hosts) > 1 and JUDGE_KEY_VARIABLE not in os.environ:
        raise UsageError(
            f"the API key would be sent to {' and '.join(hosts)}; give what decides on meanings and grades "
            f"its own by {JUDGE_KEY_VARIABLE} (empty: none)"
        )
    return ServerSettings(api_key=key, **chosen)


@contextmanager
def spending(label: str, **asked: object) -> Iterator[None]:
    """Show in progress what `model`, `equivalence` and `grader` spend on servers, and say it at the end."""
    clients: dict[Any, str] = {}
    for role, inner in asked.items():
        for part in ("judge", "equivalence", "inner"):
            inner = getattr(inner, part, inner)
        if (client := getattr(inner, "client", None)) is not None:
            clients.setdefault(client, role)

    def spent() -> list[str]:
        several = len(clients) > 1
        used = {one: role for one, role in clients.items() if one.usage.requests}
        return [f"{role}: {one.usage.text()}" if several else one.usage.text() for one, role in used.items()]

    if not clients:
        yield
        return
    try:
        with note_in_progress(lambda: "; ".join(spent())):
            yield
    finally:
        for one in spent():
            info(f"{label}: {one}")
        thinking = getattr(asked.get("model"), "thinking", None)
        if thinking is not None and thinking.answers:
            cut = f", {thinking.cut} of them cut off by the token limit" if thinking.cut else ""
            info(f"{label}: {thinking.answers} answers came after thinking, which is left out{cut}")
        for client in clients:  # now, not when they are collected: there Python ignores Ctrl-C
            client.close()
