"""Build configuration objects from the keywords of public functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from semcal.errors import UsageError
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.data.arguments import Questions
    from semcal.data.template import TemplateLike
    from semcal.data.variants import VaryLike
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
    vary: VaryLike


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
    """The fields of `CalibrationConfig`; `risk` is an alias of `risks`."""

    answer: AnswerKind | None
    features: Sequence[str] | None
    signals: Sequence[str] | None
    risk: float | Sequence[float] | None
    risks: float | Sequence[float] | None
    delta: float | None
    grader: Grader | str | None
    score: str | None


def configured(kind: type[_Config], config: _Config | None, options: dict[str, Any]) -> _Config:
    """Return the given configuration, or build one from the options that are its fields.

    The used options are removed from `options`; None means the default. UsageError is raised if both the
    configuration and one of its fields are given.
    """
    chosen = {name: options.pop(name) for name in options_of(kind) if name in options}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if config is None:
        return kind(**chosen)
    if not isinstance(config, kind):
        raise UsageError(
            f"expected a {kind.__name__}, got {type(config).__name__}. Pass semcal.{kind.__name__}(…)"
        )
    if chosen:
        names = ", ".join(chosen)
        raise UsageError(
            f"{names}: given together with a {kind.__name__}. Set these fields in the {kind.__name__}"
        )
    return config


def check_options(options: Mapping[str, object], known: Iterable[str], *, of: str) -> None:
    """Raise UsageError, with the nearest known name, for an unknown option."""
    for name in options:
        check_name(name, known, what=f"option of {of}")


def options_of(*kinds: type) -> list[str]:
    """Return the names of the fields of configuration classes."""
    return [name for kind in kinds for name in signature(kind).parameters]
