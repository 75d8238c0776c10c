"""`semcal calibrate` of a model and of samples, and its calibrations in `ask`, `measure`, `metrics`."""

from __future__ import annotations

from tests.cli.invoking import configured
from tests.golden.invoking import store_output, store_page
from tests.golden.questions import made_up_samples, write_questions, write_rows


def write_calibrations() -> None:
    """Calibrate in all ways, and apply what was learnt."""
    _calibrate_a_model()
    _calibrate_samples()
    _ask()
    _measure()


def _calibrate_a_model() -> None:
    """The embedded model; then the samples that were kept, under a risk and with fewer draws."""
    labelled = write_questions("labelled.jsonl", "calibration_train", 24, "atlas-trivia")
    examples = write_questions("examples.jsonl", "few_shot", 4, "atlas-trivia")
    of_atlas = (labelled, "--model", "atlas", "--equivalence", "atlas")
    sampling = ("--m", 5, "--config", "sampling.max_new_tokens=24", "--few-shot", examples)
    store_output("of-a-model", "calibrate", *of_atlas, *sampling, "--out", "of-a-model")
    settings = configured("sampling.temperatures=1", "sampling.seed=3", "calibration.keep_samples=false")
    others = ("--limit", 10, "--m", 4, *settings, "--risk", 0.4)
    store_output("of-one-temperature", "calibrate", *of_atlas, *others, "--out", "of-one-temperature")
    stored = ("of-a-model/samples.jsonl", "--equivalence", "atlas")
    fewer = ("--m", 4, "--risk", 0.7, *configured("calibration.delta=0.3"))
    store_output("of-kept-samples", "calibrate", *stored, *fewer, "--out", "of-kept-samples")
    store_output("planned", "calibrate", *of_atlas, *sampling, "--out", "planned", "--dry-run")


def _calibrate_samples() -> None:
    """Samples that another program made: without a threshold, with one, and with one that none can hold."""
    samples = write_rows("samples.jsonl", made_up_samples(120))
    stored = ("calibrate", samples, "--equivalence", "exact")
    store_output("of-samples", *stored, "--out", "of-samples")
    at_risk = ("--risk", 0.5, *configured("calibration.delta=0.2"))
    store_output("of-samples-at-risk", *stored, *at_risk, "--out", "of-samples-at-risk")
    store_output("without-a-threshold", *stored, "--risk", 0.01, "--out", "without-a-threshold")
    greedy = ("--m", 4, *at_risk, *configured("cluster.linkage=greedy", "sampling.seed=2"))
    store_page("on-a-terminal", *stored, *greedy, "--out", "of-the-share")  # its map reads nothing else


def _ask() -> None:
    """A file of questions with the calibration of the model and with a threshold."""
    questions = write_questions("questions.jsonl", "test", 8, "atlas-trivia")
    calibrated = ("ask", questions, "--model", "atlas", "--calibration")
    store_output("ask", *calibrated, "of-a-model")
    store_output("ask-at-risk", *calibrated, "of-kept-samples")
    store_output("ask-embedded", "ask", questions, "--limit", 4)
    compared = ("--compare", "--temperature", 0.8, "--measure", "L-SC", "--m", 5, "--limit", 4)
    store_output("ask-compared", "ask", questions, *compared, "--equivalence", "exact")
    store_page("ask-on-a-terminal", *calibrated, "of-a-model", "--limit", 3)


def _measure() -> None:
    """Rows with the calibrated probability, graded, and the metrics of it beside the measures'."""
    clustered = store_output("cluster", "cluster", "samples.jsonl", "--equivalence", "exact")
    for name in ("of-samples", "of-samples-at-risk", "without-a-threshold"):
        measured = store_output(f"measure-{name}", "measure", "-", "--calibration", name, stdin=clustered)
        graded = store_output(f"grade-{name}", "grade", "-", stdin=measured)
        store_output(f"metrics-{name}", "metrics", "-", stdin=graded)
    at_risk = ("--risk", 0.5, *configured("calibration.delta=0.2"), "--json")
    store_output("metrics-at-risk", "metrics", "-", *at_risk, stdin=graded)
    both = ("--measure", "E-SC", "--measure", "Calibrated", "--risk", 0.4, "--ci")
    store_page("metrics-on-a-terminal", "metrics", "grade-without-a-threshold.txt", *both)
    few_bins = ("metrics", "-", "--bins", 4, "--measure", "L-SC", "--ci", *configured("sampling.seed=7"))
    store_output("metrics-of-few-bins", *few_bins, stdin=graded)
