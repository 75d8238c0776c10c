"""Labeled documents with sampled answers, made for tests: invoices whose totals are often misread."""

from __future__ import annotations

import json
import random

SCHEMA = {
    "type": "object",
    "required": ["vendor", "total", "paid"],
    "properties": {
        "vendor": {"type": "string", "description": "The company that sent the invoice"},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "items": {"type": "array", "items": {"type": "string"}},
    },
}


def rows(n=80, m=6, seed=0):
    """Rows of n documents with m samples; vendors are nearly always right, totals half of the time."""
    rng = random.Random(seed)
    made = []
    for number in range(n):
        gold = {"vendor": f"Mill {number}", "total": 100 + number, "paid": number % 2 == 0, "items": ["bolt"]}
        is_hard = rng.random() < 0.5
        samples = []
        for _ in range(m):
            document = dict(gold)
            if rng.random() < (0.8 if is_hard else 0.1):
                document["total"] = 900 + rng.randrange(2)
            if rng.random() < 0.3:
                document["vendor"] = document["vendor"].upper()
            document["items"] = ["bolt", "nut"] if is_hard else ["Bolt"]
            samples.append(json.dumps(document))
        samples[0] = "no document" if number == 3 else samples[0]
        context = f"Invoice of Mill {number}: bolt, total {100 + number}"
        made.append(
            {"id": str(number), "question": "Read it.", "context": context, "samples": samples}
            | {"answers": gold}
        )
    return made
