"""Machines that a forecast is for: a stated GPU, and the processors at hand by a short measurement."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from semcal.pipeline.worker_plan import cores, has_gpu

__all__ = ["H100", "Machine", "this_machine"]

#: Side of the square matrices, and products, that processors are measured by: some 20 ms.
SIDE, PRODUCTS = 512, 5
#: Seconds of one processor for each answer, NLI call and question of an epoch, so that `configs/atlas.yaml`
#: is forecast as docs/grid.md has measured it.
PER_ANSWER, PER_CALL, PER_STEP = 2.5e-4, 5e-4, 1.5e-3


@dataclass(frozen=True)
class Machine:
    """What work costs on a machine.

    Attributes
    ----------
    name : str
        What it is, and how that is known.
    peak : float
        Floating-point operations per second.
    reading, drawing, training : float
        The share of them that each kind of work reaches.
    per_answer, per_call, per_step : float
        Seconds of a drawn answer, an NLI call, and a calibration question in an epoch that do not shrink
        with the model.
    """

    name: str
    peak: float
    reading: float
    drawing: float
    training: float
    per_answer: float = 0.0
    per_call: float = 0.0
    per_step: float = 0.0


H100 = Machine("one NVIDIA H100 (989 TFLOP/s in bfloat16)", 989e12, reading=0.4, drawing=0.05, training=0.2)


def this_machine(device: str | None = None) -> Machine:
    """The processors of this machine, measured by float32 matrix products of numpy.

    What does not shrink with the model is what the embedded models cost beside their products (docs/grid.md,
    Costs), shared among the processors.
    """
    count = cores()
    each = _products_per_second() * 2 * SIDE**3
    gpu = ", without its GPU, whose speed is not measured" if device != "cpu" and has_gpu() else ""
    each_does = f"{each / 1e9:.0f} GFLOP/s each in float32 products of numpy, measured now"
    return Machine(
        f"this machine ({count} processor{'s' * (count > 1)}, {each_does}{gpu})",
        each * count,
        reading=0.5,
        drawing=0.2,
        training=0.3,
        per_answer=PER_ANSWER / count,
        per_call=PER_CALL / count,
        per_step=PER_STEP / count,
    )


def _products_per_second() -> float:
    """Products of two matrices that one thread does in a second: the fastest of a few."""
    import numpy as np

    matrix = np.ones((SIDE, SIDE), np.float32)
    matrix @ matrix  # the first one starts the library
    seconds = []
    for _ in range(PRODUCTS):
        begun = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - begun)
    asked = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    threads = int(asked) if asked.isdecimal() else cores()
    return 1 / min(seconds) / max(1, min(threads, cores()))
