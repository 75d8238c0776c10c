"""Does one answer entail another? The protocol, its exact form, and the loader (spec section 5, point 4).

An equivalence decides *directed* entailment between normal forms and nothing else. Equality of normal
forms, both directions, rules about numbers and dates, and linkage are built on top of it in `clustering`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Equivalence", "ExactMatch", "Triple", "load_equivalence"]

#: (question, premise answer, hypothesis answer); the answers are normal forms.
Triple = tuple[str, str, str]


class Equivalence(Protocol):
    """Directed entailment between two answers to one question.

    Every implementation keeps three promises: verdicts come back in the order of the triples, a verdict
    depends on its own triple alone and not on the rest of the call, and the same name and revision give
    the same verdicts (they are the key under which verdicts are kept on disk).
    """

    @property
    def name(self) -> str:
        """The model's id or directory name, or what stands for it: "exact"."""
        ...

    @property
    def revision(self) -> str:
        """The commit or the hash of what decides; another revision may decide otherwise."""
        ...

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each (question, premise, hypothesis) whether the premise entails the hypothesis."""
        ...


@dataclass(frozen=True)
class ExactMatch:
    """Answers mean the same when their normal forms are equal, and only then: no model at all.

    Examples
    --------
    >>> ExactMatch().entails([("Capital of Peru?", "lima", "lima"), ("Capital of Peru?", "lima", "cusco")])
    [True, False]
    """

    name: str = "exact"
    revision: str = "1"

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each triple whether its two answers are the same string."""
        return [premise == hypothesis for _, premise, hypothesis in triples]


def load_equivalence(
    name_or_dir: str | Path,
    *,
    device: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
) -> Equivalence:
    """Load what decides whether two answers mean the same.

    Parameters
    ----------
    name_or_dir : str or Path
        "exact", "atlas" (the NLI model that comes with the package), or the directory or hub id of a
        sequence-classification checkpoint with a label "entailment" (such as those trained on MNLI).
    device : str, optional
        Where the model runs: "cpu", "cuda", "cuda:1". By default a GPU if there is one.
    revision : str, optional
        Commit, tag or branch of a hub id.
    cache : str or Path, optional
        A file in which verdicts are kept and looked up, shared by runs and processes.

    Returns
    -------
    Equivalence
        `ExactMatch`, `CrossEncoder`, or a `CachedEquivalence` around the latter.

    Raises
    ------
    ModelError
        If the checkpoint cannot be loaded or does not say which label is entailment.
    StoreError
        If the cache is damaged or is not ours.

    Examples
    --------
    >>> load_equivalence("exact").name
    'exact'
    """
    if str(name_or_dir) == "exact":
        return ExactMatch()
    from semcal.engine.nli import CrossEncoder  # torch and transformers load only from here on
    from semcal.engine.verdicts import CachedEquivalence

    encoder = CrossEncoder.from_pretrained(name_or_dir, device=device, revision=revision)
    return encoder if cache is None else CachedEquivalence(encoder, cache)
