"""What the codes in tables, figures and sentences mean."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["GLOSSARY"]

#: Heading → code → meaning.
GLOSSARY: Mapping[str, Mapping[str, str]] = {
    "Measures: the confidence in an answer, from several sampled ones": {
        "E-SC": "Empirical: the share of the sampled answers that have this meaning.",
        "L-SC": "Likelihood-based: the likelihoods of the answers with this meaning, added up.",
        "ML-SC": "Mean likelihood: their mean, so that many answers count no more than one.",
        "B-SC": "Bayesian: the share of the answers times the product of their likelihoods.",
        "T-SC": "Tempered: B-SC with the exponent 1/a; a below 1 is sharper.",
        "IC-SC": "Internal consistency: L-SC, less where the likelihoods of the answers differ.",
        "G-SC": "Gibbs: the share of the answers, weighted by the sum of their log-likelihoods times a.",
    },
    "Methods: what is done to the model's token probabilities": {
        "Base": "Nothing (temperature 1).",
        "SE": "Temperature 0.5, as in the work on semantic entropy.",
        "TS": "Temperature scaling: one temperature, fitted on labelled questions.",
        "TS-grid": "One temperature out of a grid from 0.5 to 4.",
        "ATS": "Attentive temperature scaling: a small network gives each token its temperature.",
        "Platt": "A factor and an offset for each token of the vocabulary.",
        "NLL": "Loss of a fit: the negative log-likelihood of the reference answers.",
        "SS": "Loss of a fit: selective smoothing, which asks for doubt where the likeliest token is wrong.",
        "T": "Temperature: above 1 it makes a distribution flatter, below 1 sharper.",
    },
    "Calibration: does a confidence of 0.8 mean right four times in five?": {
        "ACE": "Adaptive calibration error: the mean gap between confidence and accuracy, over bins of as "
        "many questions each. 0 is best.",
        "ECE": "Expected calibration error: the same over bins of equal width.",
        "CORP": "The isotonic curve of accuracy against confidence, which needs no bins.",
        "MCB": "Miscalibration: what recalibrating by the CORP curve would save of the Brier score.",
        "DSC": "Discrimination: what that curve is better than a constant confidence, in Brier score.",
        "UNC": "Uncertainty: the Brier score of a constant confidence.",
        "Brier": "Brier score: the mean squared distance of confidence from right (1) or wrong (0).",
    },
    "Discrimination: are right answers more confident than wrong ones?": {
        "AUROC": "The chance that a right answer has a higher confidence than a wrong one. 0.5 is chance.",
        "AURAC": "The mean accuracy of what is left as the least confident answers are rejected.",
        "SE_conf": "Semantic entropy as a predictor of whether the selected answer is right.",
        "SE_vanilla": "Semantic entropy as a predictor of whether the greedy answer is right.",
    },
}
