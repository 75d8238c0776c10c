# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Score existing samples
#
# You have several sampled answers to each question, from any program, and want to know which
# answers to trust. This notebook turns a DataFrame into tables and plots, without a model.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import semcal

samples = pd.read_json("samples.jsonl", lines=True)
samples.head(3)

# %% [markdown]
# A row is a question. `samples` holds the sampled answers; everything else is optional.
# `answers` are the references for grading and calibration. All measures except E-SC need
# `log_likelihoods`: for each sample, the mean log-probability of its tokens. Other columns stay.
#
# The data are 200 questions about the fictional world of `atlas`, with ten answers each.
#
# ## Cluster, measure and grade

# %%
results = semcal.score(samples, equivalence="atlas")
results.to_df()[["question", "answer", "confidence", "correct", "entropy", "meanings"]].head()

# %% [markdown]
# Answers that mean the same form one meaning. *confidence* is the share of the largest meaning, and
# *entropy* the entropy of the shares (0: all samples agree). For your own samples, pass an NLI model such
# as `equivalence="microsoft/deberta-large-mnli"`, or `"exact"`, which compares normal forms (case, articles,
# numbers, dates) without a model.
#
# ## Plot

# %%
results.plot()
plt.show()

# %% [markdown]
# The confidences are too high: large ones lie far below the diagonal. But they are informative: 40% of all
# answers are right, and 60% of the answers on which all ten samples agree.

# %%
table = results.to_df()
bins = [n / 10 + 0.05 for n in range(11)]
shades = {"right": "#0072b2", "wrong": "#d55e00"}
groups = [table.confidence[table.correct], table.confidence[~table.correct]]
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.hist(groups, bins=bins, stacked=True, color=shades.values(), label=shades.keys(), rwidth=0.9)
ax.set(xlim=(0.04, 1.06), xlabel="confidence: share of the ten samples", ylabel="questions")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="upper left")
plt.show()

# %% [markdown]
# ## Errors by kind of question
#
# `to_df()` has a row for each question, in the order of the input, so that you can add your own columns.
# Which kinds of questions have the lowest accuracy?

# %%
by_kind = table.assign(kind=samples.relation).groupby("kind")
kinds = by_kind.agg(questions=("id", "size"), correct=("correct", "mean"), confidence=("confidence", "mean"))
kinds = kinds[kinds.questions >= 5].sort_values("correct")
kinds.style.format("{:.2f}", subset=["correct", "confidence"])

# %%
figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
ax.hlines(kinds.index, kinds.correct, kinds.confidence, color="0.8", linewidth=3)
ax.scatter(kinds.correct, kinds.index, color="#0072b2", s=50, label="correct", zorder=2)
ax.scatter(kinds.confidence, kinds.index, color="#d55e00", s=50, label="confidence", zorder=2)
ax.set(xlim=(0, 1), xlabel="share of the questions, mean confidence")
ax.spines[["top", "right", "left"]].set_visible(False)
ax.tick_params(left=False)
ax.legend(frameon=False, loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.1))
plt.show()

# %% [markdown]
# ## Calibrate
#
# Learn on one half of the samples, and test on the other. (In use, learn on all rows with references.)

# %%
calibration = semcal.score(samples[::2], "atlas").calibrate()
print(calibration.report.why)
calibrated = semcal.score(samples[1::2], calibration=calibration)
figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.6), layout="constrained")
calibrated.plot("E-SC", ax=axes[0])
calibrated.plot(ax=axes[1])
axes[0].set_title("Before")
axes[1].set_title("After")
plt.show()

# %%
names = ["accuracy", "mean_confidence", "brier", "gain", "auroc", "ace", "ace_floor_95"]
pd.DataFrame(calibrated.metrics()).T[names].style.format("{:.3f}")

# %% [markdown]
# Each row is a measure, which weights the meanings in its own way and may prefer another answer. `E-SC`
# needs no log-likelihoods. `Calibrated` has the answers of `E-SC` with a probability.
#
# ## Save the results

# %%
calibrated.to_df().to_csv("answers.csv", index=False)
