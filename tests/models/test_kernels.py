"""Fused attention: which kernel serves what, and what happens where one is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from semcal.models.engine import network
from semcal.models.engine.network import AttentionConfig, attend


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    network.checked_kernel.cache_clear()
    yield
    network.checked_kernel.cache_clear()


@pytest.mark.parametrize(
    ("device", "dtype", "width", "expected"),
    [
        ("cpu", torch.float32, 64, network.on_cpu),
        ("cpu", torch.bfloat16, 7, network.on_cpu),
        ("cuda", torch.float16, 128, network.flash),
        ("cuda", torch.bfloat16, 256, network.flash),
        ("cuda", torch.bfloat16, 264, None),
        ("cuda", torch.float16, 20, None),
        ("cuda", torch.float32, 20, network.memory_efficient),
        ("cuda", torch.float32, 18, None),
        ("cuda", torch.float64, 64, None),
        ("mps", torch.float32, 64, None),
    ],
)
def test_every_device_and_dtype_gets_the_kernel_made_for_it(
    device: str, dtype: torch.dtype, width: int, expected: network.Kernel | None
) -> None:
    assert network.kernel_for(device, dtype, width) is expected


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(network.flash, torch.bfloat16), (network.memory_efficient, torch.float32)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_for_cuda_take_our_arguments_and_return_our_shapes(
    kernel: network.Kernel, dtype: torch.dtype, causal: bool
) -> None:
    """On tensors without data, since the schema is that of the PyTorch that is installed."""
    query = torch.empty((2, 3, 5, 64), device="meta", dtype=dtype)
    key = query if causal else torch.empty((2, 3, 40, 64), device="meta", dtype=dtype)
    gathered, mass = kernel(query, key, key, 0.125, causal)
    assert (gathered.shape, gathered.dtype) == (query.shape, dtype)
    assert (mass.shape, mass.dtype) == (query.shape[:3], torch.float32)


def test_the_kernel_of_the_processor_is_sound() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert network.checked_kernel(torch.device("cpu"), dtype, 16) is network.on_cpu


def off_by_a_little(*given: Any) -> tuple[Tensor, Tensor]:
    gathered, mass = network.on_cpu(*given)
    return gathered, mass + 0.001


def on_another_machine(*_: object) -> tuple[Tensor, Tensor]:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")


@pytest.mark.parametrize("kernel", [off_by_a_little, on_another_machine])
def test_a_kernel_that_is_wrong_gives_way_to_matrix_products(
    kernel: network.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=g) for n in (4, 9, 9))
    expected = attend(q, k, v, AttentionConfig(0.5))
    network.checked_kernel.cache_clear()
    monkeypatch.setattr(network, "kernel_for", lambda *_: kernel)
    found = attend(q, k, v, AttentionConfig(0.5))
    torch.testing.assert_close(found.output, expected.output, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.log_sum_exp, expected.log_sum_exp, rtol=0, atol=1e-5)
