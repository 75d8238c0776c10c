"""Gain of a calibration from signals, the model's judgments of its answers, with ten samples and with two.

    semcal calibrate QUESTIONS --model MODEL --few-shot FILE --config sampling.temperatures=1 --out DIR
    python -m benchmarks signals --model MODEL --calibration DIR [--draws 10 2] [--signal NAME...]

The samples are those of DIR/samples.jsonl, or of a file of `semcal sample` (--samples), or the first two of
them. The model judges its answers for each number of samples, by all signals or the named ones; finished
blocks stay in --keep. Gain and AUROC of the calibrated probability are out of fold, with all requested
features independent of cross-validation; 95% intervals of the difference to no signal are bootstrapped over
questions. "chosen" is the automatic choice of `semcal calibrate`.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import NotRun
from benchmarks._damage import semcal
from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import Calibration, CalibrationConfig, requested_features
from semcal.calibration.features import AnswerFeatures, answered_rows, candidates_for, features_of
from semcal.calibration.learning import calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.calibration.signals import SIGNALS, add_signals, learn_probe
from semcal.cli.console import progress
from semcal.demo.questions import load_set
from semcal.errors import SemcalWarning
from semcal.files import write_rows
from semcal.grading.grade import grade_texts
from semcal.grading.rules import RuleGrader
from semcal.inputs import as_equivalence
from semcal.metrics.probability_maps import Labelled, MapCandidate, predict_out_of_fold
from semcal.models.clustering import ClusterConfig
from semcal.models.load import load_model
from semcal.models.prompting import PromptConfig
from semcal.rows import QUESTION_PROBE, Row
from semcal.store import Store

NUMBERS = (10, 2)
RESAMPLES = 2000
QUICK = {"RESAMPLES": 20}
HEAD = ("draws", "signal", "gain", "above none", "AUROC", "above none", "known")


def with_all(candidates: Sequence[MapCandidate], requested: Sequence[str]) -> list[MapCandidate]:
    """Return the candidates with all requested features, and their fallbacks."""
    plain = [candidate for candidate in candidates if not set(candidate.features) & set(requested)]
    reading = [candidate for candidate in candidates if set(requested) <= set(candidate.features)]
    return [plain[0], *reading] if requested else plain


def out_of_fold(features: AnswerFeatures, correct: Floats, requested: Sequence[str]) -> Floats:
    """Return the probabilities of a calibration with these features."""
    labelled = Labelled(features.values, correct, with_all(candidates_for(features), requested))
    return predict_out_of_fold([labelled])[0]


def learnable(features: AnswerFeatures, correct: Floats, requested: Sequence[str]) -> bool:
    """Return whether four of five parts of the answers suffice for a map with these features."""
    reading = [trial for trial in candidates_for(features) if set(requested) <= set(trial.features)]
    rarer = 0.8 * min(correct.sum(), (1 - correct).sum())
    return any(trial.fewest <= rarer for trial in reading)


def interval(p: Floats, rival: Floats, correct: Floats) -> tuple[list[float], list[float]]:
    """Return 95% intervals over questions of the differences of gain and AUROC."""
    rng, differences = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(correct), size=len(correct))
        if 0 < correct[chosen].sum() < len(chosen):
            pair = [
                (metrics.gain(q[chosen], correct[chosen]), metrics.auroc(q[chosen], correct[chosen]))
                for q in (p, rival)
            ]
            differences.append(np.subtract(*pair))
    low, high = np.percentile(differences, [2.5, 97.5], axis=0)
    return [low[0], high[0]], [low[1], high[1]]


def show(m: int, name: str, p: Floats, none: Floats, correct: Floats, known: float) -> None:
    """Print a row of the table."""
    gain, auroc = interval(p, none, correct)
    values = metrics.gain(p, correct), metrics.auroc(p, correct)
    above = [
        value - rival
        for value, rival in zip(values, (metrics.gain(none, correct), metrics.auroc(none, correct)))
    ]
    cells = [
        f"{values[0]:.3f}",
        f"{above[0]:+.3f} [{gain[0]:.3f}, {gain[1]:.3f}]",
        f"{values[1]:.3f}",
        f"{above[1]:+.3f} [{auroc[0]:.3f}, {auroc[1]:.3f}]",
        f"{known:.2f}",
    ]
    print(f"| {m} | {name} | {' | '.join(cells)} |", flush=True)


def embedded_calibration(folder: Path, labels: int) -> Path:
    """Calibrate the embedded model on a few of its questions, for quick runs."""
    labelled, out = folder / "labelled.jsonl", folder / "calibration"
    write_rows(labelled, (question.row() for question in load_set("atlas-rare").calibration_train[:labels]))
    how = ("--model", "atlas", "--config", "sampling.temperatures=1", "--risk", "0.5")
    ended = semcal("calibrate", labelled, *how, "--out", out)
    if ended.code:
        raise RuntimeError(ended.fault or ended.stderr)
    return out


def quick_runs(folder: Path) -> list[list[str]]:
    calibration = str(embedded_calibration(folder, 80))
    return [
        ["--model", "atlas", "--calibration", calibration, "--draws", "10", "--keep", str(folder / "kept")]
    ]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks signals", description=__doc__)
    parser.add_argument("--model", help="model of the samples, which judges its answers")
    parser.add_argument("--dtype", help="number format of a local model, such as bfloat16")
    parser.add_argument("--calibration", type=Path, help="folder with samples.jsonl")
    parser.add_argument("--samples", type=Path, help="in place of it: samples with the default prompt")
    parser.add_argument("--keep", type=Path, default=Path("runs/bench-signals"), help="finished blocks")
    parser.add_argument(
        "--draws", type=int, nargs="+", default=NUMBERS, help="numbers of samples; 10 and 2 by default"
    )
    parser.add_argument("--signal", nargs="+", choices=SIGNALS, default=[*SIGNALS], help="all by default")
    options = parser.parse_args(arguments)
    names = options.signal
    if not (options.model and (options.calibration or options.samples)):
        raise NotRun("--model and --calibration or --samples")
    warnings.simplefilter("ignore", SemcalWarning)
    model, equivalence = load_model(options.model, dtype=options.dtype), as_equivalence(None)
    folder = options.calibration
    asking = PromptConfig() if folder is None else Calibration.from_pretrained(folder).prompt
    lines = (options.samples or folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    draws = [Row(json.loads(line)) for line in lines]
    print(f"| {' | '.join(HEAD)} |\n| ---: | --- | {' | '.join(['---:'] * (len(HEAD) - 2))} |")
    for m in options.draws:
        rows = measure_samples(draws, ClusterConfig(equivalence), m=m, temperatures=[])
        with progress("signals", len(draws)) as tell:
            rows = add_signals(rows, names, model, asking, keep=Store(options.keep), progress=tell)
        grader = RuleGrader()
        first = next(iter(rows.values()))
        groups = {name: (name,) for name in names} | ({"all": tuple(names)} if len(names) > 1 else {})
        every = features_of(rows, "modal")
        answers = zip(first, every.answers)
        correct = np.array(
            [grade_texts(grader, row.question, [text], row.answers).correct for row, text in answers], float
        )
        none = out_of_fold(every, correct, ())
        show(m, "none", none, none, correct, 1.0)
        for name, signals in groups.items():
            requested = requested_features((), signals)
            features = features_of(rows, "modal", requested)
            if QUESTION_PROBE in signals:
                answered, every_row = answered_rows(rows, "modal"), np.ones(len(correct), dtype=bool)
                _, features = learn_probe(features, answered, correct, every_row, None, 0)
            read = [feature.name for feature in requested]
            if not learnable(features, correct, read):
                print(f"| {m} | {name} | too few correct or wrong answers for these features |", flush=True)
                continue
            known = min(1 - float(np.isnan(features.values[feature]).mean()) for feature in read)
            p = out_of_fold(features, correct, [feature for feature in read if feature in features.values])
            show(m, name, p, none, correct, known)
        chosen = calibrate_rows(
            rows, ClusterConfig(equivalence), config=CalibrationConfig(signals=tuple(names))
        )
        about = f"{len(correct)} questions, {correct.mean():.3f} right"
        print(f"\nChosen with {m} draws ({about}): {chosen.report.chosen}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
