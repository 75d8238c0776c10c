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
# # Calibrate a model and choose a threshold
#
# A language model answers questions. You want to know how likely each answer is to be right, and
# from which probability on to trust it. You need the model and a few hundred questions with
# known answers.
#
# The model here is `atlas`: 3.7 million parameters, trained on an invented world, part of the
# package. Put your own in its place: a directory, a hub id, or a server
# (`openai:http://127.0.0.1:8000/v1`).

# %%
import matplotlib.pyplot as plt
import pandas as pd

import semcal
from semcal.data import load_questions

examples = load_questions("atlas-trivia", split="few_shot")
labelled = load_questions("atlas-trivia", limit=360)
test = load_questions("atlas-trivia", split="test", limit=200)
pd.DataFrame({"question": one.question, "answers": list(one.answers)} for one in labelled[:5])

# %% [markdown]
# With data of your own, give the names of files instead: `"labelled.jsonl"`, a CSV, a DataFrame.
# `examples` stand before every question, so that the model answers in a few words.
#
# ## Learn from the labelled questions
#
# `calibrate` asks each question ten times, groups the answers by meaning, checks them, and
# learns how likely an answer is to be right. `equivalence` names the model that decides
# whether two answers mean the same. With `risk=0.3` it also looks for a threshold above
# which at most 30 % of the answers are wrong.

# %%
calibration = semcal.calibrate("atlas", labelled, equivalence="atlas", few_shot=examples, risk=0.3)
print(calibration.report.why)
print(*calibration.report.advice)
print(calibration.threshold.sentence)

# %% [markdown]
# The last line is a promise with 95 % confidence, for questions like the labelled ones. It
# comes from 144 of the 360 questions, which nothing else was learnt from.
#
# ## Try it on other questions
#
# The test questions have known answers, too, so we can see whether the probabilities hold.

# %%
answers = semcal.ask_many("atlas", test, calibration=calibration)
answers.to_df()[["question", "answer", "confidence", "abstained", "correct"]].head(8)

# %% [markdown]
# `E-SC` is the share of the ten draws that gave the answer: the confidence without a
# calibration. The answers are the same, so the two can be compared.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.6), layout="constrained")
answers.plot("E-SC", ax=axes[0])
answers.plot(ax=axes[1])
axes[0].set_title("Before: the share of the draws")
axes[1].set_title("After: calibrated")
plt.show()

# %% [markdown]
# Left, of the answers that all ten draws agree on about four in five are right: the model is sure of
# some things that it has wrong. Right, the line stays in the grey band, where chance would put it.

# %%
metrics = pd.DataFrame(answers.metrics(["E-SC", "Calibrated"])).T
names = ["accuracy", "mean_confidence", "brier", "gain", "auroc", "ace", "ace_floor_95"]
metrics[names].style.format("{:.3f}")

# %% [markdown]
# Accuracy is the same, and the mean confidence has come closer to it. The Brier score is lower
# and `gain`, which counts accuracy and calibration, higher. `ace` is the mean distance between
# confidence and share correct. Perfectly calibrated confidences would stay below `ace_floor_95`
# nineteen times in twenty; only the calibrated ones do.
#
# ## Choose a threshold
#
# Blue: how many of the answers above a threshold are right. Red: how many are left.

# %%
answers.plot(kind="selective")
plt.show()

# %%
answered = answers.to_df().query("not abstained")
print(f"{len(answered)} of {len(answers)} answered, {1 - answered.correct.mean():.0%} of them wrong")

# %% [markdown]
# Any other threshold gives another trade. Without a promise, this is what the test questions say:

# %%
table = answers.to_df()
trade = {}
for threshold in (0, 0.3, 0.5, 0.7, 0.8, 0.85):
    above = table[table.confidence >= threshold]
    trade[f"{threshold:.2f}"] = {
        "answered": len(above) / len(table),
        "wrong among them": 1 - above.correct.mean(),
    }
pd.DataFrame(trade).T.rename_axis("threshold").style.format("{:.0%}")

# %% [markdown]
# For a promise at a lower risk there must be enough labelled questions:

# %%
print(answers.metrics("Calibrated", risk=0.2)["Calibrated"]["risk"]["sentence"])

# %% [markdown]
# ## Use it
#
# A calibration is a small folder. It remembers the model, the examples, the number of draws and the
# threshold, and it is refused for another model or other examples.

# %%
calibration.save_pretrained("my-calibration")
uq = semcal.SemanticUQ("atlas", calibration="my-calibration")
for question in ("Who governed Ruvorkreth?", "Where was Kulon Toreth born?"):
    answer = uq.ask(question)
    print(f"{question}  {answer.text}, right with probability {answer.confidence:.2f}")
    print(
        "  abstains" if answer.abstained else "  answers",
        "after",
        [meaning.text for meaning in answer.meanings],
    )

# %% [markdown]
# The same on the command line:
#
# ```text
# semcal calibrate labelled.jsonl --model my-model --risk 0.3 --out my-calibration
# semcal ask "Who governed Ruvorkreth?" --model my-model --calibration my-calibration
# ```
