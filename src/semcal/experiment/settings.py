"""What a comparison of methods is made with; every setting has the value of preset `sound` as default."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Deviation", "Settings", "deviations_from_paper"]


class Settings(BaseModel):
    """Settings of a comparison; unknown keys are refused.

    Attributes
    ----------
    m : int
        Draws per question.
    seed : int
        A run is a seed.
    max_new_tokens_closed_book, max_new_tokens_open_book : int
        Longest generation.
    loss, alpha
        What TS minimises.
    t_alpha, g_alpha : float
        Parameters of T-SC and G-SC.
    linkage : str
        How pairs become clusters.
    block : int
        Questions that are computed in one piece; part of what makes a run reproducible.
    resamples : int
        Bootstrap resamples of the questions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Literal["sound"] = "sound"
    m: int = Field(default=10, ge=1)
    seed: int = 0
    max_new_tokens_closed_book: int = Field(default=10, ge=1)
    max_new_tokens_open_book: int = Field(default=32, ge=1)
    loss: Literal["NLL", "SS"] = "NLL"
    alpha: float | None = None
    t_alpha: float = Field(default=0.5, gt=0)
    g_alpha: float = Field(default=0.5, gt=0)
    linkage: Literal["components", "greedy"] = "components"
    block: int = Field(default=100, ge=1)
    resamples: int = Field(default=1000, ge=100)

    def max_new_tokens(self, *, open_book: bool) -> int:
        """The longest generation of a set."""
        return self.max_new_tokens_open_book if open_book else self.max_new_tokens_closed_book


class Deviation(BaseModel):
    """One setting in which a run differs from the paper."""

    setting: str
    here: str
    paper: str


def deviations_from_paper(
    settings: Settings, *, model: str, equivalence: str, sizes: dict[str, tuple[int, int]]
) -> list[Deviation]:
    """List how a comparison differs from the paper, for its report.

    Parameters
    ----------
    model, equivalence : str
        Names of the language model and of the NLI model.
    sizes : dict
        Set → (questions fitted on, questions tested on).
    """
    shown = "; ".join(f"{name}: {fitted} / {tested}" for name, (fitted, tested) in sizes.items())
    tokens = (
        f"{settings.max_new_tokens_closed_book} closed book, {settings.max_new_tokens_open_book} open book"
    )
    rows = [
        ("language model", model, "Llama-3.1-8B, Ministral-8B and Qwen2.5-7B, instruction-tuned"),
        ("NLI model", equivalence, "DeBERTa-v2-xxlarge-mnli"),
        ("questions fitted on / tested on", shown, "about 60000 / 2000 of TriviaQA, NQ, SQuAD"),
        ("runs", "one, with intervals over questions", "four, with standard errors over runs"),
        ("TS solver", "exact", "AdamW, 2 epochs"),
        ("selection", f"one temperature by {settings.loss}", "loss and α chosen for each measure"),
        ("linkage", settings.linkage, "greedy"),
        ("longest generation (tokens)", tokens, "10"),
        ("m", str(settings.m), "10"),
    ]
    return [
        Deviation(setting=setting, here=here, paper=paper) for setting, here, paper in rows if here != paper
    ]
