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
# A language model answers questions. This notebook learns the probability that each answer is
# right, and a threshold below which the model abstains. You need the model and a few hundred questions
# with known answers.
#
# The model here is `atlas`, which is part of the package. It has 3.7 million parameters and is
# trained on a fictional world. Replace it by your model: a directory, a hub id, or a server
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
# For your own data, pass the name of a file such as `"labeled.jsonl"` or a CSV, or a DataFrame.
# `examples` precede every question, so that the model answers in a few words.
#
# ## Learn from the labeled questions
#
# `calibrate` samples ten answers to each question, clusters the answers by meaning, grades them,
# and learns the probability that an answer is right. `equivalence` names the model that decides
# whether two answers mean the same. With `risk=0.3` it also finds a threshold above which at
# most 30% of the answers are wrong.

# %%
calibration = semcal.calibrate("atlas", labelled, equivalence="atlas", few_shot=examples, risk=0.3)
print(calibration.report.why)
print(calibration.threshold.sentence)

# %% [markdown]
# The last line is a promise with 95% confidence, for questions like the labeled ones. All 360
# questions test it. The share of samples decides which answers are given, since no label chose it.
#
# ## Try it on other questions
#
# The test questions also have known answers, so we can check the probabilities.

# %%
answers = semcal.ask_many("atlas", test, calibration=calibration)
answers.to_df()[["question", "answer", "confidence", "abstained", "correct"]].head(8)

# %% [markdown]
# `E-SC` is the share of the ten samples with the meaning of the answer: the confidence without a
# calibration. Both confidences belong to the same answers, so they can be compared.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.6), layout="constrained")
answers.plot("E-SC", ax=axes[0])
answers.plot(ax=axes[1])
axes[0].set_title("Before: share of samples")
axes[1].set_title("After: calibrated")
plt.show()

# %% [markdown]
# Left: about 85% of the answers on which all ten samples agree are right. The model is sure of some
# wrong answers. Right: the line stays almost everywhere in the gray band of a calibrated confidence.

# %%
metrics = pd.DataFrame(answers.metrics(["E-SC", "Calibrated"])).T
names = ["accuracy", "mean_confidence", "brier", "gain", "auroc", "ace", "ace_floor_95"]
metrics[names].style.format("{:.3f}")

# %% [markdown]
# Accuracy is the same, and the mean confidence is now closer to it. The Brier score is lower, and
# `gain`, which combines accuracy and calibration, is higher. `ace` is the mean distance between
# confidence and accuracy. For perfectly calibrated confidences it is below `ace_floor_95` with
# probability 95%; here only the calibrated confidences reach this.
#
# ## Choose a threshold
#
# Blue: the accuracy of the answers above a threshold. Red: the share of these answers.

# %%
answers.plot(kind="selective")
plt.show()

# %%
answered = answers.to_df().query("not abstained")
print(f"{len(answered)} of {len(answers)} answered, {1 - answered.correct.mean():.0%} of them wrong")

# %% [markdown]
# Other thresholds give other shares. The following shares of the test questions are not promises:

# %%
table = answers.to_df()
trade = {}
for threshold in (0, 0.3, 0.5, 0.6, 0.7, 0.8):
    above = table[table.confidence >= threshold]
    trade[f"{threshold:.2f}"] = {
        "answered": len(above) / len(table),
        "wrong among them": 1 - above.correct.mean(),
    }
pd.DataFrame(trade).T.rename_axis("threshold").style.format("{:.0%}")

# %% [markdown]
# A promise at a lower risk needs enough labeled questions:

# %%
print(answers.metrics("Calibrated", risk=0.2)["Calibrated"]["risk"]["sentence"])

# %% [markdown]
# ## Use it
#
# A calibration is a small folder. It stores the model, the examples, the number of samples and the
# threshold, and is rejected for another model or other examples.

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
# On the command line:
#
# ```text
# semcal calibrate labeled.jsonl --model my-model --risk 0.3 --out my-calibration
# semcal ask "Who governed Ruvorkreth?" --model my-model --calibration my-calibration
# ```
