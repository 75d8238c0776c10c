"""The benchmark for GPUs runs on a tiny model without one, and says what it needs."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu


def test_every_row_is_measured_on_a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    setting = gpu.Setting(gpu.TINY, "cpu", torch.float32, questions=6, batches=(2,), rows=(40,))
    rows = list(gpu.rows(setting))
    assert [row["what"].split()[0].rstrip(",") for row in rows] == [
        *["sampling"] * 2,
        "transformers",
        "generate",
        "features",
        "exact",
    ]
    assert all(row["seconds"] > 0 and row["memory, MB"] is None for row in rows)
