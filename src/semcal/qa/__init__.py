"""Questions and answers as text: data sets, splits, prompts, normal form, grading."""
