"""On a GPU: the kernels agree with matrix products, and the engine with one plain forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from tiny_engine import VARIANTS, assert_same, token_ids

from semcal.models import CausalLanguageModel, Prompt
from semcal.models.engine.network import checked_kernel, kernel_for
from semcal.models.protocols import SampleRequest
from semcal.recalibration import ATS, SE, Base, BlockShape, Platt, Temperature
from semcal.recalibration.exact_solver import fit_temperatures, mean_loss_of
from semcal.recalibration.sgd_solver import fit_ats, fit_platt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPE = BlockShape(32, 48, heads=4, key_value_heads=2, head_dim=8)
PROMPTS = [Prompt(f"q{i}", (*range(5, 20), *range(8, 10 + 2 * i))) for i in range(6)]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)
ARCHITECTURES = [name for name in VARIANTS if not name.endswith(("tied", "scaled"))]
variants = pytest.mark.parametrize("variant", ARCHITECTURES)


def on(device: str, variant: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny network of its own on a device."""
    family, options = VARIANTS[variant]
    return tiny_models.model(family, vocabulary=40, **options).to(device, dtype)


def language_model(network: Any, **options: Any) -> CausalLanguageModel:
    return CausalLanguageModel(network, tiny_models.tokenizer(), name="tiny", **options)


@dtypes
@pytest.mark.parametrize("width", [8, 64, 80, 128, 256])
def test_each_kernel_is_sound_on_the_device(dtype: torch.dtype, width: int) -> None:
    expected = kernel_for("cuda", dtype, width)
    assert expected is not None
    assert checked_kernel(torch.device("cuda"), dtype, width) is expected


@dtypes
@variants
def test_draws_have_the_log_probabilities_of_a_plain_forward_pass(variant: str, dtype: torch.dtype) -> None:
    network = on("cuda", variant, dtype)
    model = language_model(network)
    assert model.attention == "three levels"
    methods = [Base(), Temperature(2.5)]
    [found] = model.sample(SampleRequest(PROMPTS, recalibrators=methods, seeds=[3], m=5, max_new_tokens=6))
    for method, of_prompts in zip(methods, found, strict=True):
        for prompt, draws in zip(PROMPTS, of_prompts, strict=True):
            for draw in draws:
                ids = torch.tensor([[*prompt.token_ids, *draw.token_ids]], device="cuda")
                with torch.no_grad():
                    logits = network(ids, attention_mask=torch.ones_like(ids)).logits[0]
                log_probs = (logits.double() / method.temperature).log_softmax(-1)[
                    len(prompt.token_ids) - 1 :
                ]
                expected = [float(log_probs[i, token]) for i, token in enumerate(draw.token_ids)]
                np.testing.assert_allclose(draw.token_log_probs, expected, rtol=0, atol=TOLERANCE[dtype])


@variants
def test_draws_beams_and_scores_are_those_of_the_processor(variant: str) -> None:
    gpu, cpu = (language_model(on(device, variant)) for device in ("cuda", "cpu"))
    request = SampleRequest(PROMPTS, recalibrators=[Base(), SE()], seeds=[1, 2], m=4, max_new_tokens=5)
    assert_same(gpu.sample(request), cpu.sample(request))
    beams = [token_ids(way.beam(PROMPTS, recalibrator=Base(), max_new_tokens=4)) for way in (gpu, cpu)]
    assert beams[0] == beams[1]
    answers = [[(6, 7, 8), (6, 7, 9, 4), ()], [], [(4,)], [(30, 31)], [(5,)], [(9, 9)]]
    scores = [way.score(PROMPTS, answers, recalibrator=SE()) for way in (gpu, cpu)]
    np.testing.assert_allclose(
        *(np.hstack([t for of in found for t in of]) for found in scores), rtol=0, atol=1e-4
    )


ANSWERS = [[(6, 7, 8), (6, 7, 9, 4)], [(5,)], [(4,)], [(30, 31)], [(5,)], [(9, 9)]]


def trained(method: str) -> ATS | Platt:
    """A recalibrator with weights of its own, on the processor, as a file gives it."""
    module = ATS(SHAPE) if method == "ATS" else Platt(40)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)), alpha=0.2)
    return module.freeze(None)


@pytest.mark.parametrize("method", ["ATS", "Platt"])
def test_trained_recalibrators_draw_and_score_as_on_the_processor(method: str) -> None:
    found = []
    for device in ("cuda", "cpu"):
        model, recalibrator = language_model(on(device, "llama")), trained(method)
        request = SampleRequest(PROMPTS, recalibrators=[recalibrator], seeds=[1], m=4, max_new_tokens=5)
        [[draws]] = model.sample(request)
        scores = model.score(PROMPTS, ANSWERS, recalibrator=recalibrator)
        features = model.features(PROMPTS, ANSWERS, whole=True)
        loss = mean_loss_of(model, features, recalibrator)
        found.append(
            ([d.token_ids for q in draws for d in q], np.hstack([t for q in scores for t in q]), loss)
        )
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-4)
    assert found[0][2] == pytest.approx(found[1][2], abs=1e-4)


@pytest.mark.parametrize("method", ["TS", "ATS", "Platt"])
def test_fits_are_those_of_the_processor(method: str) -> None:
    losses = []
    for device in ("cuda", "cpu"):
        model = language_model(on(device, "llama"))
        features = model.features(PROMPTS, ANSWERS, whole=True)
        if method == "TS":
            [fit] = fit_temperatures(features, model.logits, losses=[("NLL", None)])
            losses.append(fit.certificate.temperature)
        elif method == "ATS":
            losses.append(
                mean_loss_of(model, features, fit_ats(features, model.logits, shape=SHAPE).recalibrator)
            )
        else:
            losses.append(mean_loss_of(model, features, fit_platt(features, model.logits).recalibrator))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
