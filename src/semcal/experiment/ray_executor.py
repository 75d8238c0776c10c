"""Jobs as tasks on Ray, on a local or an existing cluster.

Between calls, a task keeps only the loaded models and data of the run folder. Every node must be able to
reach them.
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
from semcal.workers import ONE_THREAD, Job, JobOutcome, Progress, State, ThreadedExecutor, run_pickled

#: Address of a cluster on this machine that ends with the run.
LOCAL = "local"
#: Maximum number of attempts at a task whose process or node dies.
ATTEMPTS = 4


def do(load: bytes, directory: str, job: bytes, plugins: Sequence[str] = ()) -> JobOutcome:
    """Do one job in a process of the cluster; names of models and data may be relative to `directory`."""
    os.chdir(directory)
    return run_pickled(load, job, plugins, lambda _: None)


class RayExecutor(ThreadedExecutor[State]):
    """The processes of a Ray cluster at an address: "local", "auto" (this machine's cluster) or another.

    `load` and `n_workers` are as for `ProcessExecutor`; on the device "cuda" a task uses a GPU.
    MissingExtraError if Ray is not installed, UsageError if there is no cluster at the address.
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
        super().__init__(2 * count)  # so that a worker is never idle
        self.n_workers = self.n_processes = count

    def _run(self, job: Job, stage: str, progress: Progress) -> JobOutcome:  # noqa: ARG002
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                with self._lock:
                    self.retries += 1
            begun = self._do.remote(self._load, str(Path.cwd()), pickle.dumps(job), [*PLUGINS])
            while not self._ray.wait([begun], timeout=1.0)[0]:
                if self._cancelled:
                    raise CancelledError
            try:
                outcome: JobOutcome = self._ray.get(begun)
                return outcome
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().partition("\n")[0]
        raise WorkerError(
            f"a Ray task died during the same job ({stage}) {ATTEMPTS} times; the last reason: {reason}"
        )

    def _stop(self) -> None:
        """Leave the cluster, and end a local one."""
        if self._own:
            self._ray.shutdown()


def _connect(ray: Any, address: str, n_workers: int | None) -> None:
    """Start a local cluster of processes with one thread, or join an existing one."""
    quiet: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {"address": address}
    if address == LOCAL and n_workers is not None:
        quiet["num_cpus"] = n_workers
    try:
        ray.init(
            **quiet, log_to_driver=False, logging_level="error", runtime_env={"env_vars": dict(ONE_THREAD)}
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"--ray: no Ray cluster at {address!r} ({' '.join(str(error).split())[:300]}). Start one with "
            "ray start --head, or pass --ray local."
        ) from error
