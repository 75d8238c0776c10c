"""The logits processor divides by T, and does nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from transformers import LogitsProcessorList

from semcal.errors import FitError, UsageError
from semcal.export import TemperatureProcessor
from semcal.recalibration import SE, Base, Provenance, Temperature, TemperatureScaling, save_pretrained
from semcal.recalibration.recalibrators import single_temperature

PROVENANCE = Provenance("tiny", "abc123", {}, "p0", "made-up", "d0", 3)


@pytest.fixture
def fitted(tmp_path: Path) -> tuple[Path, float]:
    z = torch.randn((50, 6), generator=torch.Generator().manual_seed(0)) * 3
    ts = TemperatureScaling().fit(z, z.argmax(1) * (torch.arange(50) % 4 > 0))
    save_pretrained(ts, tmp_path / "ts", provenance=PROVENANCE)
    return tmp_path / "ts", ts.temperature_


def test_scores_are_logits_over_t_and_inputs_stay(fitted: tuple[Path, float]) -> None:
    directory, t = fitted
    ids, z = torch.tensor([[1, 2]]), torch.tensor([[2.0, -3.0, -torch.inf]])
    kept = ids.clone(), z.clone()
    assert torch.equal(TemperatureProcessor.from_pretrained(directory)(ids, z), kept[1] / t)
    assert torch.equal(ids, kept[0])
    assert torch.equal(z, kept[1])


def test_generate_draws_from_exactly_logits_over_t(fitted: tuple[Path, float]) -> None:
    directory, t = fitted
    model = tiny_models.model("llama")
    processor = TemperatureProcessor.from_pretrained(directory)
    output = model.generate(
        input_ids=torch.tensor([[1, 9, 11]]),
        attention_mask=torch.ones((1, 3), dtype=torch.long),
        logits_processor=LogitsProcessorList([processor]),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=4,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    for scores, logits in zip(output.scores, output.logits):
        assert torch.equal(scores, logits / t)


@pytest.mark.parametrize("t", [0.0, -1.0, float("nan"), float("inf")])
def test_no_other_number_is_a_temperature(t: float) -> None:
    with pytest.raises(UsageError, match="temperature"):
        TemperatureProcessor(t)


def test_base_se_and_ts_have_a_single_temperature() -> None:
    fitted = TemperatureScaling().fit(torch.eye(4) * 3, [0, 1, 2, 0])
    temperatures = [single_temperature(one) for one in (Base(), SE(), Temperature(1.7), fitted)]
    assert temperatures == [1.0, 0.5, 1.7, fitted.temperature_]


def test_methods_without_a_single_temperature_are_refused() -> None:
    class Diagonal:
        method = "Platt"

    with pytest.raises(UsageError, match="Platt"):
        single_temperature(Diagonal())
    with pytest.raises(FitError, match="fit"):
        single_temperature(TemperatureScaling())
