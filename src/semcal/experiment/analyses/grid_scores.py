"""The scores of a finished run: what every analysis starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses.columns import Columns, one_member_correct, read_columns
from semcal.experiment.analyses.pair_scores import BOOTSTRAPPED, Key, MetricOptions, PairScores, stack_runs
from semcal.experiment.finished import FinishedRun, Pair
from semcal.qa.questions import several

__all__ = ["GridScores"]

#: Resamples of the questions at each number of draws, at most. The claim looks as far out as 1 in 680.
RESAMPLES_BY_DRAWS = 1000


class GridScores:
    """The scores of a finished run; files are read, and resamples drawn, when first needed.

    Parameters
    ----------
    run : FinishedRun
    pairs, by_draws : mapping, optional
        Results of `pair` and of `by_draws` that are known already.
    """

    def __init__(
        self,
        run: FinishedRun,
        pairs: Mapping[Pair, PairScores] | None = None,
        by_draws: Mapping[Pair, dict[int, PairScores]] | None = None,
    ) -> None:
        self.run = run
        self._columns: dict[tuple[Any, ...], Columns] = {}
        self._pairs = dict(pairs or {})
        self._by_draws = dict(by_draws or {})

    def columns(
        self, model: str, dataset: str, candidate: str, number: int = 0, *, draws: int | None = None
    ) -> Columns:
        """The rows of one candidate and run as arrays."""
        key = (model, dataset, candidate, number, None if draws == self.run.m else draws)
        if key not in self._columns:
            self._columns[key] = read_columns(self.run, model, dataset, candidate, number=number, draws=draws)
        return self._columns[key]

    def runs_of(
        self, model: str, dataset: str, candidate: str, *, draws: int | None = None, first: int | None = None
    ) -> list[Columns]:
        """The columns of every run that there is at a number of draws, or of the first of them."""
        numbers = [
            number
            for number in range(self.run.runs)
            if draws in (None, self.run.m)
            or self.run.samples_path(model, dataset, candidate, number, draws=draws).exists()
        ]
        return [self.columns(model, dataset, candidate, number, draws=draws) for number in numbers[:first]]

    def chosen(self, model: str, dataset: str, *, draws: int | None = None) -> dict[Key, str]:
        """(method, measure) → the candidate in use, at m draws or at another number of them."""
        return {
            (method, measure): self.run.choice(model, dataset, method, measure, draws=draws)["candidate"]
            for method in self.run.methods
            for measure in self.run.measures
        }

    def pair(self, model: str, dataset: str) -> PairScores:
        """The scores of one model on one data set."""
        if (model, dataset) not in self._pairs:
            chosen = self.chosen(model, dataset)
            self._pairs[model, dataset] = self.scored(model, dataset, chosen, one_member=True)
        return self._pairs[model, dataset]

    def by_draws(self, model: str, dataset: str) -> dict[int, PairScores]:
        """The scores at each number of draws, on the runs that have them all; none if there is m alone."""
        if (model, dataset) not in self._by_draws:
            self._by_draws[model, dataset] = self._at_all_draws(model, dataset)
        return self._by_draws[model, dataset]

    def _at_all_draws(self, model: str, dataset: str) -> dict[int, PairScores]:
        names = set(self.chosen(model, dataset).values())
        numbers = set.intersection(*(set(self.run.draws_of(model, dataset, name)) for name in names))
        if len(numbers) < 2:
            return {}
        chosen = {draws: self.chosen(model, dataset, draws=draws) for draws in sorted(numbers)}
        runs = min(
            len(self.runs_of(model, dataset, name, draws=draws))
            for draws, candidates in chosen.items()
            for name in set(candidates.values())
        )
        options: dict[str, Any] = {"resamples": RESAMPLES_BY_DRAWS, "bootstrapped": ("ace", "auroc")}
        return {
            draws: self.scored(model, dataset, candidates, draws=draws, runs=runs, **options)
            for draws, candidates in chosen.items()
        }

    def scored(
        self,
        model: str,
        dataset: str,
        candidates: Mapping[Key, str],
        *,
        draws: int | None = None,
        resamples: int | None = None,
        bootstrapped: tuple[str, ...] = BOOTSTRAPPED,
        runs: int | None = None,
        one_member: bool = False,
    ) -> PairScores:
        """Score some (label, measure) → candidate on the questions that all have in common.

        With `draws` at another number of draws than m, with `runs` on so many of the runs alone; `resamples`
        is at most what the settings say. With `one_member`, at m draws and of all runs, the arrays have
        `one_member_correct`.
        """
        columns = {
            key: self.runs_of(model, dataset, name, draws=draws, first=runs)
            for key, name in candidates.items()
        }
        if len({one.ids for found in columns.values() for one in found}) > 1:
            raise StoreError(
                f"the sample files of {model} on {dataset} in {self.run.folder} hold different questions, or "
                "the same in another order: delete them and run `semcal run` again"
            )
        options = self._options(dataset, resamples, bootstrapped)
        arrays, counts = stack_runs(columns, options.vanilla)
        if one_member:
            names = {candidates[key] for key in arrays}
            correct = {name: one_member_correct(self.run, model, dataset, name) for name in sorted(names)}
            arrays = {
                key: replace(one, one_member_correct=correct[candidates[key]][key[1]][:, counts])
                for key, one in arrays.items()
            }
        ties = next(iter(columns.values()))[0].ties if arrays else ()
        return PairScores(
            arrays=arrays,
            n=int(counts.sum()),
            undefined=int((~counts).sum()),
            options=options,
            groups=several(tie for tie, counted in zip(ties, counts) if counted),
        )

    def _options(self, dataset: str, resamples: int | None, bootstrapped: tuple[str, ...]) -> MetricOptions:
        settings = self.run.settings
        return MetricOptions(
            bins=self.run.bins,
            ace=settings["evaluation"].get("ace", "sound"),
            auroc_one_class=settings["evaluation"].get("auroc_one_class"),
            vanilla=settings.get("grading", {}).get("vanilla", "greedy"),
            resamples=min(resamples or self.run.resamples, self.run.resamples),
            # with the data set's index in the seed, resamples of different questions are independent
            seed=(self.run.seed, self.run.datasets.index(dataset)),
            bootstrapped=bootstrapped,
        )
