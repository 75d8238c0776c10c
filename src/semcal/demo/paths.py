"""Paths of the embedded models; some are in the installed package, others in the repository only."""

from __future__ import annotations

from pathlib import Path

from semcal.errors import ModelError

_HERE = Path(__file__).parent


def language_model_dir() -> Path:
    """Return the Hugging Face directory of the embedded language model, in the shape of Llama."""
    return _HERE / "language_model"


def qwen2_model_dir() -> Path:
    """Return the directory of a model in the shape of Qwen2 with another seed; ModelError if missing."""
    return _in_repository("qwen2_model", "atlas-qwen2")


def mistral_model_dir() -> Path:
    """Return the directory of a model in the shape of Mistral; ModelError if missing."""
    return _in_repository("mistral_model", "atlas-mistral")


def nli_model_dir() -> Path:
    """Return the Hugging Face directory of the embedded NLI model."""
    return _HERE / "nli_model"


def equivalence_model_dir() -> Path:
    """Return the folder of the embedded equivalence model, `semcal.load_equivalence("default")`."""
    return _HERE.parent / "equivalence_model"


def recalibrator_dir() -> Path:
    """Return the directory of the embedded language model's recalibrator, made by `semcal fit`."""
    return _HERE / "recalibrator"


def calibration_dir() -> Path:
    """Return the directory of the embedded language model's calibration, made by `semcal calibrate`."""
    return _HERE / "calibration"


def settings_file(*, quick: bool = False) -> Path:
    """Return the settings of `semcal demo` for `semcal run`; with `quick`, of `semcal demo --quick`."""
    return _HERE / ("quick.yaml" if quick else "demo.yaml")


def _in_repository(folder: str, name: str) -> Path:
    path = _HERE / folder
    if not path.is_dir():
        raise ModelError(
            f"{name!r} is in the repository, not in the installed package. Clone the repository and pass "
            f"its directory src/semcal/demo/{folder}, or use 'atlas'."
        )
    return path
