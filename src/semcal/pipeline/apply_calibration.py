"""Apply a calibration: to stored rows, and beside which settings and to which model (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semcal.engine.equivalence import Equivalence, address_of, names_a_server
from semcal.engine.language_model import Sampler
from semcal.errors import InputError, SemcalWarning, UsageError, shown
from semcal.hub_names import NLI_MODEL, is_hub_id
from semcal.pipeline.calibrated import Calibration
from semcal.pipeline.measure import check_measurable, measure_at, measure_rows, rows_by_temperature
from semcal.pipeline.rows import clusters_of, identity, sampled_by_of, samples_of
from semcal.pipeline.sample import default_max_new_tokens
from semcal.recalibration.attentive import AnyRecalibrator, fingerprint
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.temperature import temperature_of

Row = Mapping[str, Any]


def as_calibration(given: Any) -> Calibration:
    """Return a calibration: as it is, or loaded from its directory, id or name."""
    if isinstance(given, str | Path):
        return Calibration.from_pretrained(given)
    if isinstance(given, Calibration):
        return given
    raise UsageError(
        f"the calibration is {shown(given)}; give what semcal.calibrate returns, or the directory that it "
        "was saved in"
    )


def check_beside(calibration: Calibration, given: Mapping[str, Any]) -> None:
    """Refuse settings that a calibration makes itself: UsageError that names them.

    `given` maps names, such as "m" or "--m", to values, None where they were left out. Few-shot examples are
    free where the calibration is of stored samples and does not know them, and so is `abstain_below` where it
    has no threshold.
    """
    free = {"few_shot"} if calibration.provenance is None else set()
    free |= {"abstain_below"} if calibration.threshold is None else set()
    names = [
        name
        for name, value in given.items()
        if value is not None and name.removeprefix("--").replace("-", "_") not in free
    ]
    if names:
        it = "it" if len(names) == 1 else "them"
        raise UsageError(
            f"{', '.join(names)} given beside a calibration, which sets {it} itself; leave {it} out, or "
            f"calibrate again with {it}"
        )


def equivalence_of(
    calibration: Calibration, given: Equivalence | str | Path | None = None
) -> Equivalence | str | Path:
    """Return the equivalence of a calibration: `given` if that has its name, else the name to load.

    Directories go by their last part. UsageError if the names differ, or if nothing is given and the
    directory is not there.
    """
    name, embedded = calibration.equivalence, NLI_MODEL.embedded.names()
    if given is not None:
        other = str(given) if isinstance(given, str | Path) else address_of(given)
        moved = Path(other).name == Path(name).name and name not in embedded and other not in embedded
        if other != name and not moved:
            raise UsageError(
                f"the calibration was made with the equivalence {shown(name)}, not {shown(other)}, which "
                "would find other meanings; leave it out, or calibrate again with it"
            )
        return given
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
    by = sampled_by_of(row)
    name = f"question {identity(row)!r}"
    if made is not None and {"model", "revision", "prompt_hash"} <= by.keys():
        model, revision, prompt = (str(by[key]) for key in ("model", "revision", "prompt_hash"))
        try:
            made.check(model=model, revision=revision, prompt_hash=prompt, what="calibration")
        except UsageError:
            differs = f"{model} (revision {shown(revision[:20])}), and {what} is of {made.model} (revision "
            differs += f"{shown(made.revision[:20])})"
            if revision == made.revision:
                differs = f"another prompt (system message, few-shot examples or template) than {what}"
            raise UsageError(
                f"{name} was sampled with {differs}; use what sampled it, or sample anew"
            ) from None
    expected: dict[str, Any] = {}
    if calibration is not None:
        open_book = row.get("context") is not None
        limit = calibration.max_new_tokens or default_max_new_tokens(open_book=open_book)
        expected = {"m": calibration.m, "max_new_tokens": limit, "temperature": calibration.temperature}
    if under is not None:
        of_sample = "temperature" in by and temperature_of(under) is not None
        under_name = temperature_of(under) if of_sample else fingerprint(under)
        expected |= {"temperature" if of_sample else "recalibrator": under_name}
    if expected.get("temperature") is None or "temperatures" in row:
        expected.pop("temperature", None)
    for key, value in expected.items():
        stated = by.get(key, value if "temperature" not in by or key != "recalibrator" else None)
        if stated != value:
            raise UsageError(
                f"{name} was sampled with {OPTIONS.get(key, key)} {shown(stated)}, and {what} is of "
                f"{shown(value)}; use what sampled it, or sample anew"
            )


def check_calibratable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless `calibrated_rows` can measure the row."""
    check_measurable(row)
    clusters_of(row, len(samples_of(row)))
    sampled_by_of(row)
    if "answer" in row and "probability" not in row:
        raise InputError(
            f"'answer' is there already ({shown(row['answer'])}), and the calibrated answer would take its "
            "place; rename it, to 'answers' if it is the reference"
        )


def drawn_for(calibration: Calibration, rows: Sequence[Mapping[str, Any]]) -> dict[float | None, list[Row]]:
    """Split rows into those at each temperature that the calibration reads, that of the answer first.

    UsageError if a row lacks one.
    """
    first = calibration.temperature
    drawn: dict[float | None, list[Row]] = {t: [] for t in (first, *calibration.temperatures)}
    for row in rows:
        split = rows_by_temperature([row])
        if calibration.recalibrator is not None and None not in split:
            raise UsageError(
                f"question {identity(row)!r} has draws at temperatures, and the answer of the calibration is "
                "sampled under its recalibrator; leave 'temperatures' out where the draws are"
            )
        own = None if None in split else next(iter(split)) if first is None else first
        for t, of_one in drawn.items():
            chosen = own if t == first else t
            if chosen not in split:
                raise UsageError(
                    f"question {identity(row)!r} has no draws at T = {chosen:g}, and the calibration reads "
                    "some; calibrate again for draws at one temperature (--temperatures 1), or use "
                    "`semcal ask`, which draws at all of them"
                )
            of_one.append(split[chosen][0])
    return drawn


def calibrated_rows(
    rows: Sequence[Mapping[str, Any]], calibration: Calibration, *, t_alpha: float = 0.5, g_alpha: float = 0.5
) -> list[dict[str, Any]]:
    """Measure clustered rows, and add `answer`, `probability`, `threshold` and `abstained`.

    UsageError if a row has another number of draws than the calibration was made with, or lacks a
    temperature.
    """
    alphas: Any = {"t_alpha": t_alpha, "g_alpha": g_alpha}
    for row in rows:
        check_sampled_by(row, calibration.provenance, calibration.recalibrator, calibration)
    drawn = drawn_for(calibration, rows)
    measured = measure_at(drawn, **alphas)
    try:
        found = calibration.apply(measured)
    except InputError as error:
        raise UsageError(str(error)) from error
    limit = calibration.threshold
    return [
        {
            **row,
            "answer": one.text,
            "probability": one.probability,
            "score": one.score,
            "threshold": None if limit is None else limit.threshold,
            "abstained": one.abstained,
        }
        for row, one in zip(measure_rows(rows, temperature=calibration.temperature, **alphas), found)
    ]
