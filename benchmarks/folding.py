"""What folding a temperature into weights costs, on the embedded model: `python -m benchmarks folding`.

The embedded Atlas model is saved in each dtype, with a tied and an untied head, and T is folded in. Shown is
the largest difference between the folded logits and logits/T, relative to the largest of logits/T, and what
computing the logits in that dtype instead of float32 changes by itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from semcal.demo.paths import language_model_dir
from semcal.export import fold
from semcal.export.folding import tolerance

TEMPERATURES = (0.5, 0.8, 1.1, 1.289, 1.7, 2.5, 5.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def save(directory: Path, dtype: torch.dtype, *, tied: bool) -> Path:
    """The Atlas model in this dtype, with this head."""
    source = language_model_dir()
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if not tied and model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    model.to(dtype).save_pretrained(directory)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(directory)
    return directory


@torch.no_grad()
def noise(directory: Path, dtype: torch.dtype) -> float:
    """How far logits computed in `dtype` are from those computed in float32."""
    ids = torch.randint(5, 500, (4, 16), generator=torch.Generator().manual_seed(0))
    exact, rounded = (
        transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=kind)(input_ids=ids).logits.float()
        for kind in (torch.float32, dtype)
    )
    return float((rounded - exact).abs().max() / exact.abs().max())


def results() -> list[dict[str, Any]]:
    """One row for each dtype and head."""
    transformers.utils.logging.disable_progress_bar()
    return [row(dtype, tied=tied) for dtype in DTYPES for tied in (True, False)]


def row(dtype: torch.dtype, *, tied: bool) -> dict[str, Any]:
    """The worst fold over all temperatures, and what it is to be compared with."""
    with tempfile.TemporaryDirectory() as folder:
        model = save(Path(folder) / "model", dtype, tied=tied)
        errors = [fold(model, Path(folder) / f"T{t}", temperature=t).error for t in TEMPERATURES]
        return {
            "dtype": str(dtype).removeprefix("torch."),
            "head": "tied" if tied else "untied",
            "folding": f"{max(errors):.1e}",
            "allowed": f"{tolerance(torch.float32, dtype):.1e}",
            "computing in that dtype": f"{noise(model, dtype):.1e}",
        }
