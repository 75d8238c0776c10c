"""Where the weights that come with the package lie."""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "language_model_dir",
    "mistral_model_dir",
    "nli_model_dir",
    "qwen2_model_dir",
    "recalibrator_dir",
    "settings_file",
]

_HERE = Path(__file__).parent


def language_model_dir() -> Path:
    """The Hugging Face directory of the embedded language model."""
    return _HERE / "language_model"


def qwen2_model_dir() -> Path:
    """The same in the shape of Qwen2, made with a seed of its own."""
    return _HERE / "qwen2_model"


def mistral_model_dir() -> Path:
    """The same in the shape of Mistral."""
    return _HERE / "mistral_model"


def nli_model_dir() -> Path:
    """The Hugging Face directory of the embedded NLI model."""
    return _HERE / "nli_model"


def recalibrator_dir() -> Path:
    """The recalibrator of the embedded language model, as `semcal fit` wrote it."""
    return _HERE / "recalibrator"


def settings_file() -> Path:
    """The settings of `semcal demo`, for `semcal run`."""
    return _HERE / "demo.yaml"
