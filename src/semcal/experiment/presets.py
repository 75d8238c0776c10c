"""What the presets lay below a file of settings, and how a run differs from the paper (analyses.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from semcal.experiment.grid_settings import GridSettings

#: Preset → what it changes in the defaults, which are those of `sound`.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "sound": {},
    "paper": {
        "runs": {"count": 4, "refit": True},
        "sampling": {"max_new_tokens": {"closed_book": 10, "open_book": 10}},
        "fitting": {"solver": "sgd"},
        "selection": {"by": "brier"},
        "clustering": {"linkage": "greedy", "ties": "first"},
        "grading": {"fuzzy_above": True, "numerals": False},
        "keep": "chosen",
    },
    "reference": {
        "sampling": {
            "max_new_tokens": {"closed_book": 10, "open_book": 10},
            "top_k": 50,
            "top_p": 0.9,
            "scored_in": "prompt without passage",
        },
        "fitting": {"solver": "sgd", "warm_up": 0.05},
        "selection": {"by": "brier"},
        "grading": {
            "numerals": False,
            "rouge_l": 0.3,
            "members": 2,
            "choice": "likeliest",
            "vanilla": "beam",
        },
        "evaluation": {"ace": "reference", "auroc_one_class": 0.5},
    },
}

_MODELS = "Llama-3.1-8B-Instruct, Ministral-8B-Instruct-2410, Qwen2.5-7B-Instruct"
_NLI = "deberta-v2-xxlarge-mnli"
CHOICES = {"gain": "highest gain", "brier": "lowest Brier score"}
Sizes = Mapping[str, Mapping[str, int]]


class Deviation(BaseModel):
    """One setting in which a run differs from the paper."""

    setting: str
    here: str
    paper: str


def deviations(settings: GridSettings, sizes: Sizes) -> list[Deviation]:
    """List the settings in which a run differs from the paper; parameters as in `against_paper`."""
    return [row for row in against_paper(settings, sizes) if row.here != row.paper]


def against_paper(settings: GridSettings, sizes: Sizes) -> list[Deviation]:
    """Set a run beside the paper, setting by setting, in the order of the table of presets.

    `settings` are resolved; `sizes` are how many questions each part of each data set had. `here` equals
    `paper` where there is no difference.
    """
    sampling, fitting, grading, evaluation = (
        settings.sampling,
        settings.fitting,
        settings.grading,
        settings.evaluation,
    )
    rows = [
        ("language models", ", ".join(_last(model.path) for model in settings.models), _MODELS),
        ("NLI model", _last(settings.equivalence), _NLI),
        ("data sets", ", ".join(_last(one.source) for one in settings.datasets), "triviaqa, nq-open, squad"),
        ("calibration-train", _sizes(sizes, "calibration_train"), "59374, 61600, 59577"),
        ("calibration-validation", _sizes(sizes, "validation"), "2000 each"),
        ("test", _sizes(sizes, "test"), "2000 each"),
        ("methods", ", ".join(settings.methods), "Base, SE, TS, ATS, Platt"),
        ("runs", _runs(settings), "4, each a fit and an evaluation"),
        ("m", str(sampling.m), "10"),
        ("numbers of draws compared", _joined(sorted(sampling.counts)), "5, 10, 15, 20, 25"),
        ("candidates there", "chosen at each" if sampling.reselect else "as chosen at m", "as chosen at m"),
        ("truncation while sampling", _truncation(sampling), "none"),
        ("max_new_tokens (closed, open book)", _longest(settings), "10, 10"),
        ("linkage", settings.clustering.linkage, "greedy"),
        ("ties for the first place", f"to the {settings.clustering.ties}", "to the first"),
        ("entailment", "both directions", "both directions"),
        ("normal forms", "numbers and dates", "numbers and dates"),
        ("refusals", _refusals(settings.clustering.merge_refusals), "as any answer"),
        ("scored text", f"answer in its {sampling.scored_in}", "answer in its whole prompt"),
        ("fuzzy match", _fuzzy(grading), "above 90"),
        ("F1", _f1(grading), "above 0.5"),
        ("ROUGE-L", "off" if grading.rouge_l is None else f"above {grading.rouge_l:g}", "off"),
        ("members graded", _members(grading), "up to 4 at random"),
        ("SE_vanilla answer", "4 beams" if grading.vanilla == "beam" else "greedy", "greedy"),
        ("TS solver", _solver(fitting), "sgd, batch 4, warm-up 10 %"),
        ("ATS and Platt", _steps(fitting), "lr 1e-05, batch 4, warm-up 10 %"),
        ("losses", _losses(fitting.losses), "NLL, SS 0.1, SS 0.25, SS 0.5, SS 0.75"),
        ("weight decays", _joined(fitting.weight_decays), "0, 0.01"),
        ("a of T-SC and G-SC", _joined(settings.selection.measure_alphas), "0.5, 0.75, 1.25"),
        ("selection", CHOICES[settings.selection.by], CHOICES["brier"]),
        ("ACE", _ace(evaluation.ace), "ties averaged, weighted by size"),
        ("AUROC of one class", _one_class(evaluation.auroc_one_class), "undefined"),
        ("bins", str(evaluation.bins), "15"),
    ]
    return [Deviation(setting=setting, here=here, paper=paper) for setting, here, paper in rows]


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _joined(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _sizes(sizes: Sizes, part: str) -> str:
    found = [one[part] for one in sizes.values()]
    alike = part != "calibration_train" and len(set(found)) == 1
    return f"{found[0]} each" if alike else ", ".join(map(str, found))


def _runs(settings: GridSettings) -> str:
    runs = settings.runs
    return f"{runs.count}, each a fit and an evaluation" if runs.refit else f"{runs.count} of one fit"


def _truncation(sampling: Any) -> str:
    given = {"top-k": sampling.top_k, "top-p": sampling.top_p}
    return ", ".join(f"{name} {value:g}" for name, value in given.items() if value is not None) or "none"


def _longest(settings: GridSettings) -> str:
    return ", ".join(str(settings.max_new_tokens(open_book=open_book)) for open_book in (False, True))


def _refusals(merged: bool) -> str:
    return "one meaning" if merged else "as any answer"


def _fuzzy(grading: Any) -> str:
    how = "above" if grading.fuzzy_above else "from"
    return f"{how} {grading.fuzzy:g}" + (", not on numerals" if grading.numerals else "")


def _f1(grading: Any) -> str:
    return f"above {grading.f1:g}" + (", numerals guarded" if grading.numerals else "")


def _members(grading: Any) -> str:
    if grading.choice == "random":
        return f"up to {grading.members} at random"
    return f"the likeliest and {grading.members - 1} more"


def _solver(fitting: Any) -> str:
    return "exact" if fitting.solver == "exact" else f"sgd, {_schedule(fitting)}"


def _schedule(fitting: Any) -> str:
    return f"batch {fitting.batch_size}, warm-up {100 * fitting.warm_up:g} %"


def _steps(fitting: Any) -> str:
    return f"lr {fitting.learning_rate or 1e-5:g}, {_schedule(fitting)}"


def _losses(losses: Sequence[tuple[str, float | None]]) -> str:
    return ", ".join(loss if alpha is None else f"{loss} {alpha:g}" for loss, alpha in losses)


def _ace(kind: str) -> str:
    return "ties averaged, weighted by size" if kind == "sound" else "in the order of the rows, unweighted"


def _one_class(value: float | None) -> str:
    return "undefined" if value is None else f"{value:g}"
