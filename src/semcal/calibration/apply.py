"""Apply a calibration: to stored rows, and beside which settings and to which model (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from semcal.calibration.calibrated import Calibration
from semcal.errors import InputError, SemcalWarning, UsageError, shown
from semcal.hub_names import NLI_MODEL, is_hub_id
from semcal.measuring import MeasureOptions, check_measurable, measure_at, measure_rows
from semcal.models.equivalence import Equivalence, address_of, names_a_server
from semcal.models.language_model import Sampler
from semcal.models.sampling import default_max_new_tokens
from semcal.recalibration.attentive import AnyRecalibrator, fingerprint
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.temperature import temperature_of
from semcal.rows import Row, rows_by_temperature


def as_calibration(calibration: Any) -> Calibration:
    """Return a calibration: as it is, or loaded from its directory, id or name."""
    if isinstance(calibration, str | Path):
        return Calibration.from_pretrained(calibration)
    if isinstance(calibration, Calibration):
        return calibration
    raise UsageError(
        f"the calibration is {shown(calibration)}; give what semcal.calibrate returns, or the directory that "
        "it was saved in"
    )


def check_beside(calibration: Calibration, settings: Mapping[str, object]) -> None:
    """Refuse settings that a calibration makes itself: UsageError that names them.

    `settings` maps names, such as "m" or "--m", to values, None where they were left out. Few-shot examples
    are free where the calibration is of stored samples and does not know them, and so is `abstain_below`
    where it has no threshold.
    """
    free = {"few_shot"} if calibration.provenance is None else set()
    free |= {"abstain_below"} if calibration.threshold is None else set()
    names = [
        name
        for name, value in settings.items()
        if value is not None and name.removeprefix("--").replace("-", "_") not in free
    ]
    if names:
        it = "it" if len(names) == 1 else "them"
        raise UsageError(
            f"{', '.join(names)} given beside a calibration, which sets {it} itself; leave {it} out, or "
            f"calibrate again with {it}"
        )


def equivalence_of(
    calibration: Calibration, equivalence: Equivalence | str | Path | None = None
) -> Equivalence | str | Path:
    """Return the equivalence of a calibration: the one that is given if it has its name, else the name.

    Directories go by their last part. UsageError if the names differ, or if nothing is given and the
    directory is not there.
    """
    name, embedded = calibration.equivalence, NLI_MODEL.embedded.names()
    if equivalence is not None:
        other = str(equivalence) if isinstance(equivalence, str | Path) else address_of(equivalence)
        moved = Path(other).name == Path(name).name and name not in embedded and other not in embedded
        if other != name and not moved:
            raise UsageError(
                f"the calibration was made with the equivalence {shown(name)}, not {shown(other)}, which "
                "would find other meanings; leave it out, or calibrate again with it"
            )
        return equivalence
    here = name in ("exact", *embedded) or names_a_server(name) or is_hub_id(name) or Path(name).is_dir()
    if not here:
        raise UsageError(
            f"the calibration was made with the NLI model {shown(name)}, which is no directory here; give it "
            "as the equivalence (--equivalence)"
        )
    return name


def check_equivalence(calibration: Calibration, judge: Equivalence, *, force: bool = False) -> None:
    """Raise UsageError if it was made with another revision of the equivalence; with `force` warn.

    Where its revision was not recorded nothing is said.
    """
    made = calibration.equivalence_revision
    if made in (None, judge.revision):
        return
    other = (
        f"the calibration was made with revision {shown(made)} of the equivalence {shown(judge.name)}, not "
        f"{shown(judge.revision)}, which may find other meanings"
    )
    if not force:
        raise UsageError(f"{other}; give that revision, or calibrate again with this one")
    warnings.warn(f"{other}: its probabilities may not hold here", SemcalWarning, stacklevel=3)


def is_made_for(calibration: Calibration, model: Sampler) -> bool:
    """Whether it was made with these weights and this prompt, as far as one knows."""
    try:
        _check_made_for(calibration, model)
    except UsageError:
        return False
    return True


def _check_made_for(calibration: Calibration, model: Sampler) -> None:
    if (made := calibration.provenance) is not None:
        prompt = calibration.asking.hash(model)
        made.check(model=model.name, revision=model.revision, prompt_hash=prompt, what="calibration")


def check_model(calibration: Calibration, model: Sampler, *, force: bool = False) -> None:
    """Raise UsageError unless it was made with these weights and this prompt; warn where nobody knows.

    With `force` another model or prompt is warned about, and a calibration of stored samples passes.
    """
    made = calibration.provenance
    if made is None:
        text = (
            f"the calibration was made from stored samples: whether they came from {model.name}, with this "
            "prompt and at this temperature, cannot be checked, and for others its probabilities do not hold"
        )
        if not force:
            warnings.warn(text, SemcalWarning, stacklevel=3)
        return
    try:
        _check_made_for(calibration, model)
    except UsageError:
        if not force:
            raise
        other = "prompt" if made.revision == model.revision else f"model ({made.model}, not {model.name})"
        lost = (
            "its probabilities do" if calibration.threshold is None else "its probabilities and threshold do"
        )
        warnings.warn(
            f"the calibration was made for another {other}: {lost} not hold here", SemcalWarning, stacklevel=3
        )


def what_cannot_be_checked(calibration: Calibration, *, sampled_by: bool = False) -> str:
    """Say what stored rows must be for its probabilities to hold, as they do not tell.

    With `sampled_by` they tell what they were sampled by, and where the calibration knows its model that was
    checked.
    """
    made, own = calibration.provenance, calibration.temperature
    clustered = f"clustered with {calibration.equivalence} ({calibration.linkage})"
    if sampled_by and made is not None:
        return f"the rows are taken to be {clustered}, as the calibration was made"
    source = "the model of the calibration" if made is None else made.model
    at = "at the same temperature" if own is None else f"at T = {own:g}"
    at = at if calibration.recalibrator is None else "under its recalibrator"
    also = "".join(f" and {t:g}" for t in calibration.temperatures)
    at += f" and at T = {also.removeprefix(' and ')}" if also and own is None else also
    return (
        f"the rows do not tell whether they were sampled from {source} with its prompt {at}, and "
        f"{clustered}; if not, the probabilities do not hold"
    )


#: What the options of `semcal sample` call what stands in `sampled_by`.
OPTIONS = {"m": "--m", "max_new_tokens": "--max-new-tokens", "temperature": "--temperature"}


def check_sampled_by(
    row: Row,
    made: Provenance | None,
    under: AnyRecalibrator | None,
    calibration: Calibration | None = None,
    *,
    what: str = "the calibration",
) -> None:
    """Raise UsageError if a row says that it was sampled otherwise than what is to be used with it.

    `made` names the model and the prompt, `under` what took the place of a temperature, and a `calibration`
    its number of draws, temperature and token limit. What the row does not say is not checked; `what` it is
    compared with stands in the message.
    """
    by = row.sampled_by
    name = f"question {row.id!r}"
    if made is not None and by.model is not None and by.revision is not None and by.prompt_hash is not None:
        try:
            made.check(model=by.model, revision=by.revision, prompt_hash=by.prompt_hash, what="calibration")
        except UsageError:
            models = [
                f"{model} (revision {shown(revision[:20])})"
                for model, revision in ((by.model, by.revision), (made.model, made.revision))
            ]
            differs = f"{models[0]}, and {what} is of {models[1]}"
            if by.revision == made.revision:
                differs = f"another prompt (system message, few-shot examples or template) than {what}"
            raise UsageError(
                f"{name} was sampled with {differs}; use what sampled it, or sample anew"
            ) from None
    expected: dict[str, object] = {}
    if calibration is not None:
        limit = calibration.max_new_tokens or default_max_new_tokens(open_book=row.context is not None)
        expected = {"m": calibration.m, "max_new_tokens": limit, "temperature": calibration.temperature}
    if under is not None:
        at_temperature = by.temperature is not None and temperature_of(under) is not None
        if at_temperature:
            expected["temperature"] = temperature_of(under)
        else:
            expected["recalibrator"] = fingerprint(under)
    if expected.get("temperature") is None or row.has("temperatures"):
        expected.pop("temperature", None)
    for key, value in expected.items():
        stated = getattr(by, key)
        if stated is None and (by.temperature is None or key != "recalibrator"):
            continue  # the row does not say
        if stated != value:
            raise UsageError(
                f"{name} was sampled with {OPTIONS.get(key, key)} {shown(stated)}, and {what} is of "
                f"{shown(value)}; use what sampled it, or sample anew"
            )


def check_calibratable(row: Row) -> None:
    """Raise InputError unless `calibrated_rows` can measure the row."""
    check_measurable(row)
    _ = row.samples, row.sampled_by
    if row.has("answer") and not row.has("probability"):
        answer = shown(row.json["answer"])
        raise InputError(
            f"'answer' is there already ({answer}), and the calibrated answer would take its place; rename "
            "it, to 'answers' if it is the reference"
        )


def drawn_for(calibration: Calibration, rows: Sequence[Row]) -> dict[float | None, list[Row]]:
    """Split rows into those at each temperature that the calibration reads, that of the answer first.

    UsageError if a row lacks one.
    """
    first = calibration.temperature
    rows_at: dict[float | None, list[Row]] = {t: [] for t in (first, *calibration.temperatures)}
    for row in rows:
        split = rows_by_temperature([row])
        if calibration.recalibrator is not None and None not in split:
            raise UsageError(
                f"question {row.id!r} has draws at temperatures, and the answer of the calibration is "
                "sampled under its recalibrator; leave 'temperatures' out where the draws are"
            )
        of_answer = None if None in split else next(iter(split)) if first is None else first
        for t, chosen_rows in rows_at.items():
            chosen = of_answer if t == first else t
            if chosen not in split:
                raise UsageError(
                    f"question {row.id!r} has no draws at T = {chosen:g}, and the calibration reads "
                    "some; calibrate again for draws at one temperature (--temperatures 1), or use "
                    "`semcal ask`, which draws at all of them"
                )
            chosen_rows.append(split[chosen][0])
    return rows_at


def calibrated_rows(
    rows: Sequence[Row], calibration: Calibration, *, t_alpha: float = 0.5, g_alpha: float = 0.5
) -> list[Row]:
    """Measure clustered rows, and add `answer`, `probability`, `threshold` and `abstained`.

    UsageError if a row has another number of draws than the calibration was made with, or lacks a
    temperature.
    """
    for row in rows:
        check_sampled_by(row, calibration.provenance, calibration.recalibrator, calibration)
    options = MeasureOptions(t_alpha, g_alpha, calibration.temperature)
    try:
        decisions = calibration.decisions(measure_at(drawn_for(calibration, rows), options))
    except InputError as error:
        raise UsageError(str(error)) from error
    return [row.add(decision) for row, decision in zip(measure_rows(rows, options), decisions)]


@dataclass(frozen=True)
class CalibrationStep:
    """Measures clustered rows and applies a calibration: `calibrated_rows`."""

    name: ClassVar[str] = "measure"
    calibration: Calibration
    t_alpha: float = 0.5
    g_alpha: float = 0.5

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Measure and apply."""
        return calibrated_rows(rows, self.calibration, t_alpha=self.t_alpha, g_alpha=self.g_alpha)
