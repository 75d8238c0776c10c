"""The example set: questions about the real world, each with ten stored samples of a language model.

`tools/real_examples.py` in the repository makes the samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Commands and functions that read rows take the name "real" for this file.
PATH = Path(__file__).with_name("real.jsonl")


def load() -> list[dict[str, Any]]:
    """Return the rows of the example set, one for each question.

    A row holds `id`, `question`, `answers` (the references), `topic`, ten `samples` with their
    `log_likelihoods`, and `sampled_by`, the model and its settings.

    Examples
    --------
    >>> rows = load()
    >>> rows[0]["question"], rows[0]["answers"]
    ('What is the capital of Australia?', ['Canberra'])
    """
    return [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
