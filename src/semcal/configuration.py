"""Configuration objects from keywords: their fields are the options of public functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from semcal.errors import UsageError
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.data.arguments import Questions
    from semcal.data.template import TemplateLike
    from semcal.grading.rules import Grader
    from semcal.inputs import EquivalenceLike
    from semcal.models.engine.draw import Truncation
    from semcal.rows import AnswerKind

_Config = TypeVar("_Config")


class PromptKeywords(TypedDict, total=False):
    """The fields of `PromptConfig`."""

    few_shot: Questions | None
    system: str | None
    template: TemplateLike | None


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingConfig`."""

    m: int | None
    seed: int | None
    temperatures: Sequence[float] | float | None
    max_new_tokens: int | None
    truncation: Truncation | None
    answer_format: str | None


class ClusterKeywords(TypedDict, total=False):
    """The fields of `ClusterConfig`."""

    equivalence: EquivalenceLike | None
    linkage: str | None
    merge_refusals: bool | None


class CalibrationKeywords(TypedDict, total=False):
    """The fields of `CalibrationConfig`; `risk` is another name of `risks`."""

    answer: AnswerKind | None
    features: Sequence[str] | None
    signals: Sequence[str] | None
    risk: float | Sequence[float] | None
    risks: float | Sequence[float] | None
    delta: float | None
    grader: Grader | str | None


def configured(kind: type[_Config], config: _Config | None, options: dict[str, Any]) -> _Config:
    """Return a configuration: the one that is given, or one of the options that are its fields.

    Those options are taken out of `options`; None stands for the default. UsageError if the configuration is
    given beside one of its fields.
    """
    chosen = {name: options.pop(name) for name in options_of(kind) if name in options}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if config is None:
        return kind(**chosen)
    if not isinstance(config, kind):
        raise UsageError(
            f"expected a {kind.__name__}, got {type(config).__name__}; give semcal.{kind.__name__}(…)"
        )
    if chosen:
        raise UsageError(f"{', '.join(chosen)} given beside a {kind.__name__}; put them into it")
    return config


def check_options(options: Mapping[str, object], known: Iterable[str], *, of: str) -> None:
    """Raise UsageError, with the nearest known name, if an option is left that nothing takes."""
    for name in options:
        check_name(name, known, what=f"option of {of}")


def options_of(*kinds: type) -> list[str]:
    """Return the names of the keywords that configuration classes take."""
    return [name for kind in kinds for name in signature(kind).parameters]
