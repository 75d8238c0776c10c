"""The jobs of a grid as tasks on Ray: a local cluster, or one that is there.

A task is a plain function from text to text, both JSON, and holds nothing between calls but what it has read
from the run folder and of the models, which every node must be able to reach. Its results are those of any
other way of running.
"""

from __future__ import annotations

import heapq
import json
import os
import time
import warnings
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from semcal import errors
from semcal.errors import MissingExtraError, SemcalError, SemcalWarning, UsageError, WorkerError
from semcal.experiment.grid_jobs import GridJob
from semcal.experiment.shelf import Shelf
from semcal.pipeline.crews import Crew
from semcal.pipeline.footprint import SUMMED, Peak
from semcal.pipeline.processes import ONE_THREAD, Outcome, peak_memory_mb

__all__ = ["LOCAL", "RayCrew", "do"]

#: Stands for a cluster of this machine, that ends with the run.
LOCAL = "local"
#: How often a task is begun whose process or node dies.
ATTEMPTS = 4
#: What opens a shelf, where nothing else is said.
OPEN = "semcal.experiment.shelf:open_shelf"

#: The shelves of this process, by what they were opened with.
_shelves: dict[str, Shelf] = {}


def do(text: str) -> str:
    """Do one job in a process of the cluster.

    Parameters
    ----------
    text : str
        JSON: `open` and `with`, which give a shelf, `directory`, and `job`.

    Returns
    -------
    str
        JSON: `lines`, or `error` with the name of its class; `warnings`, `seconds` and `peak_mb`.
    """
    asked = json.loads(text)
    begun = time.process_time()
    answer: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer["lines"] = GridJob(**asked["job"])(_shelf(asked), lambda _: None)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the result is wanted
            answer["error"] = [type(error).__name__, str(error)]
    told = {str(one.message): type(one.message).__name__ for one in caught}
    cost = {"seconds": time.process_time() - begun, "peak_mb": peak_memory_mb()}
    return json.dumps({**answer, **cost, "warnings": told}, ensure_ascii=False)


def _shelf(asked: dict[str, Any]) -> Shelf:
    key = json.dumps([asked["open"], asked["with"]], sort_keys=True)
    if key not in _shelves:
        import torch

        torch.set_num_threads(1)
        os.chdir(asked["directory"])  # names of models and data may be relative to it
        module, _, name = asked["open"].partition(":")
        _shelves[key] = getattr(import_module(module), name)(**asked["with"])
    return _shelves[key]


class RayCrew(Crew[Shelf]):
    """The processes of a Ray cluster.

    Parameters
    ----------
    address : str
        "local", or that of a cluster ("auto" for the one of this machine).
    folder : Path
        The run folder, which every node can reach under this name.
    options : mapping
        Of `semcal.experiment.shelf.open_shelf`, but the folder.
    count : int, optional
        Tasks at a time; as many as there are processors by default.
    open : str
        "module:function" that opens a shelf.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    UsageError
        If there is no cluster at the address.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        options: dict[str, Any] | None = None,
        *,
        count: int | None = None,
        open: str = OPEN,
    ) -> None:
        super().__init__()
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "ray") from error
        self._ray: Any = ray
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, address, count)
        self.count = count or int(ray.cluster_resources().get("CPU", 1))
        device = str((options or {}).get("device") or "cpu")
        needs = {"num_cpus": 1, "num_gpus": int(device.startswith("cuda"))}
        self._do = ray.remote(**needs, max_retries=0, max_calls=0)(do)
        self._with = {
            "open": open,
            "with": {"folder": str(folder.resolve()), **(options or {})},
            "directory": str(Path.cwd()),
        }
        self._under_way: dict[Any, int] = {}
        self._attempts: dict[int, int] = {}
        self._peak = 0.0

    @property
    def peak(self) -> Peak:
        """Largest resident memory of this process and of so many times the largest task's, at most."""
        return Peak(peak_memory_mb() + self.count * self._peak, SUMMED)

    def _begin(self) -> None:
        while self._queue and len(self._under_way) < 2 * self.count:
            self._submit(heapq.heappop(self._queue)[1])

    def _submit(self, number: int) -> None:
        job = self._tasks[number].job
        assert isinstance(job, GridJob)
        text = json.dumps({**self._with, "job": asdict(job)}, ensure_ascii=False)
        self._under_way[self._do.remote(text)] = number

    def _finish(self) -> tuple[int, Outcome]:
        while True:
            self._begin()
            (ready,), _ = self._ray.wait(list(self._under_way), num_returns=1)
            number = self._under_way.pop(ready)
            try:
                answer = json.loads(self._ray.get(ready))
            except self._ray.exceptions.RayError as error:
                self._attempts[number] = self._attempts.get(number, 1) + 1
                if self._attempts[number] > ATTEMPTS:
                    return number, Outcome(error=self._lost(number, error))
                self.retries += 1
                self._submit(number)
                continue
            self._peak = max(self._peak, answer["peak_mb"])
            return number, _outcome(answer)

    def _lost(self, number: int, error: Exception) -> WorkerError:
        reason = str(error).strip().partition("\n")[0]
        return WorkerError(
            f"a Ray task died at the same piece of work ({self._tasks[number].stage}) {ATTEMPTS} times; the "
            f"last reason: {reason}"
        )

    def close(self, *, at_once: bool = False) -> None:
        """Leave the cluster; a local one ends."""
        del at_once
        if self._own:
            self._ray.shutdown()


def _connect(ray: Any, address: str, count: int | None) -> None:
    """Start a local cluster of one-threaded processes, or join the one that is there."""
    quiet = {"include_dashboard": False} if address == LOCAL else {"address": address}
    if address == LOCAL and count is not None:
        quiet["num_cpus"] = count  # type: ignore[assignment]
    try:
        ray.init(
            **quiet, log_to_driver=False, logging_level="error", runtime_env={"env_vars": dict(ONE_THREAD)}
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster at {address!r} ({' '.join(str(error).split())[:300]}); start one with "
            "ray start --head, or give --ray local"
        ) from error


def _outcome(answer: dict[str, Any]) -> Outcome:
    told = tuple(_warning(name)(text) for text, name in answer["warnings"].items())
    error = None if "error" not in answer else _error(*answer["error"])
    return Outcome(answer.get("lines"), error, told, answer["seconds"], 0.0, answer["peak_mb"])


def _warning(name: str) -> type[Warning]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else SemcalWarning


def _error(name: str, text: str) -> Exception:
    """The error of a task: of its own class where that is one of ours and takes a text."""
    if name in ("UsageError", "InputError", "ModelError", "FitError", "StoreError"):
        found: Exception = getattr(errors, name)(text)
        return found
    if hasattr(errors, name):
        return SemcalError(text)
    return RuntimeError(f"{name}: {text}")
