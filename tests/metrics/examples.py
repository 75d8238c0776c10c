"""Confidences and outcomes that several tests measure."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

TENTHS = st.integers(0, 10).map(lambda k: k / 10)
#: Up to forty confidences with outcomes, some of them tied.
EXAMPLES = st.lists(
    st.tuples(st.one_of(TENTHS, st.floats(0, 1)), st.booleans()), min_size=1, max_size=40
).map(lambda rows: tuple(np.array(column, float) for column in zip(*rows, strict=True)))


def drawn(seed: Any, n: int = 400, curve: Any = lambda p: p, tenths: bool = False) -> tuple[Any, Any]:
    """Confidences and outcomes whose chance of being correct is a curve of the confidence."""
    rng = np.random.default_rng(seed)
    p = rng.beta(2, 0.8, n)
    p = np.ceil(p * 10) / 10 if tenths else p
    return p, rng.uniform(size=n) < curve(p)
