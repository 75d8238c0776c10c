"""Jobs as tasks on Ray: a local cluster, or one that is there.

A task holds nothing between calls but what it has read from the run folder and of the models, which every
node must be able to reach.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from semcal.errors import MissingExtraError, UsageError, WorkerError
from semcal.registry import PLUGINS
from semcal.workers import ONE_THREAD, JobOutcome, State, Task, ThreadedExecutor, run_pickled

#: Stands for a cluster of this machine, that ends with the run.
LOCAL = "local"
#: How often a task is begun whose process or node dies.
ATTEMPTS = 4


def do(load: bytes, directory: str, job: bytes, plugins: Sequence[str] = ()) -> JobOutcome:
    """Do one job in a process of the cluster; names of models and data may be relative to `directory`."""
    os.chdir(directory)
    return run_pickled(load, job, plugins, lambda _: None)


class RayExecutor(ThreadedExecutor[State]):
    """The processes of a Ray cluster at an address: "local", "auto" (this machine's cluster) or another.

    `load` and `n_workers` are as for processes; on the device "cuda" a task takes a GPU. MissingExtraError if
    Ray is not installed, UsageError if there is no cluster at the address.
    """

    def __init__(
        self,
        address: str,
        load: Callable[[], State],
        *,
        n_workers: int | None = None,
        device: str | None = None,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "ray") from error
        self._ray: Any = ray
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, address, n_workers)
        count = n_workers or int(ray.cluster_resources().get("CPU", 1))
        needs = {"num_cpus": 1, "num_gpus": int((device or "cpu").startswith("cuda"))}
        self._do = ray.remote(**needs, max_retries=0, max_calls=0)(do)
        self._load = pickle.dumps(load)
        super().__init__(2 * count)  # so that the next task is there when one ends
        self.n_workers = self.n_processes = count

    def _run(self, task: Task) -> JobOutcome:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                with self._lock:
                    self.retries += 1
            begun = self._do.remote(self._load, str(Path.cwd()), pickle.dumps(task.job), [*PLUGINS])
            while not self._ray.wait([begun], timeout=1.0)[0]:
                if self._cancelled:
                    raise CancelledError
            try:
                outcome: JobOutcome = self._ray.get(begun)
                return outcome
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().partition("\n")[0]
        raise WorkerError(
            f"a Ray task died at the same piece of work ({task.stage}) {ATTEMPTS} times; the last reason: "
            f"{reason}"
        )

    def _stop(self) -> None:
        """Leave the cluster; a local one ends."""
        if self._own:
            self._ray.shutdown()


def _connect(ray: Any, address: str, n_workers: int | None) -> None:
    """Start a local cluster of one-threaded processes, or join the one that is there."""
    quiet: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {"address": address}
    if address == LOCAL and n_workers is not None:
        quiet["num_cpus"] = n_workers
    try:
        ray.init(
            **quiet, log_to_driver=False, logging_level="error", runtime_env={"env_vars": dict(ONE_THREAD)}
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster at {address!r} ({' '.join(str(error).split())[:300]}); start one with "
            "ray start --head, or give --ray local"
        ) from error
