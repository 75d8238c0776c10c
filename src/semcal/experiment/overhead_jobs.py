"""The job of a grid that times recalibrators on the same sampled answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from semcal.experiment.question_sets import questions_of
from semcal.experiment.shelf import Shelf
from semcal.pipeline.executor import Progress
from semcal.pipeline.prompting import Asking
from semcal.recalibration import Base

__all__ = ["overhead"]

#: Of each recalibrator the fastest round counts: of so many, or of more as long as they take no more seconds.
LEAST, MOST, SECONDS = 3, 30, 4.0


def overhead(shelf: Shelf, spec: Mapping[str, Any], tell: Progress) -> list[dict[str, Any]]:
    """CPU seconds that each recalibrator takes for the likelihoods of answers that Base has drawn.

    Prompt and answers are read each time, as they are when answers are drawn, so what is more than Base's
    time is the recalibrator's own. Rows are {method, candidate, tokens, seconds}, Base's first.
    """
    del tell
    model, questions = shelf.model(spec), questions_of(spec["questions"])
    prompts = Asking(questions_of(spec["few_shot"])).prompts(model, questions)
    how = {"m": spec["m"], "seed": 0, "max_new_tokens": spec["longest"]}
    (drawn,) = model.sample(prompts, recalibrators=[Base()], **how)
    answers = [[one.token_ids for one in of_question] for of_question in drawn]
    tokens = sum(len(answer) for of_question in answers for answer in of_question)
    tried = {one["name"]: (one["method"], shelf.recalibrator(one)) for one in spec["recalibrators"]}
    seconds = dict.fromkeys(tried, float("inf"))
    started = time.process_time()
    for number in range(MOST):
        if number >= LEAST and time.process_time() - started > SECONDS:
            break
        for name, (_, recalibrator) in tried.items():
            begun = time.process_time()
            model.score(prompts, answers, recalibrator=recalibrator)
            seconds[name] = min(seconds[name], time.process_time() - begun)
    return [
        {"method": method, "candidate": name, "tokens": tokens, "seconds": seconds[name]}
        for name, (method, _) in tried.items()
    ]
