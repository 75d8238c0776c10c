"""Where the embedded models lie: some in the installed package, others in the repository only."""

from __future__ import annotations

from pathlib import Path

from semcal.errors import ModelError

_HERE = Path(__file__).parent


def language_model_dir() -> Path:
    """The Hugging Face directory of the embedded language model, in the shape of Llama."""
    return _HERE / "language_model"


def qwen2_model_dir() -> Path:
    """The same in the shape of Qwen2, made with a seed of its own; ModelError where it is not installed."""
    return _in_repository("qwen2_model", "atlas-qwen2")


def mistral_model_dir() -> Path:
    """The same in the shape of Mistral; ModelError where it is not installed."""
    return _in_repository("mistral_model", "atlas-mistral")


def nli_model_dir() -> Path:
    """The Hugging Face directory of the embedded NLI model."""
    return _HERE / "nli_model"


def equivalence_model_dir() -> Path:
    """The folder of the embedded equivalence model, which `semcal.load_equivalence("default")` loads."""
    return _HERE.parent / "equivalence_model"


def recalibrator_dir() -> Path:
    """The recalibrator of the embedded language model, as `semcal fit` wrote it."""
    return _HERE / "recalibrator"


def calibration_dir() -> Path:
    """The calibration of the embedded language model, as `semcal calibrate` wrote it."""
    return _HERE / "calibration"


def settings_file(*, quick: bool = False) -> Path:
    """The settings of `semcal demo`, for `semcal run`; with `quick` those of `semcal demo --quick`."""
    return _HERE / ("quick.yaml" if quick else "demo.yaml")


def _in_repository(folder: str, name: str) -> Path:
    path = _HERE / folder
    if not path.is_dir():
        raise ModelError(
            f"{name!r} comes with the repository, not with the installed package; clone the repository and "
            f"give its directory src/semcal/demo/{folder}, or use 'atlas'"
        )
    return path
