"""The world of Atlas, its wordings and its question sets: the same everywhere, disjoint, complete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semcal.demo import questions as stored
from semcal.demo.questions import load_set
from semcal.errors import UsageError
from tools.atlas.questions import data_files

_FINGERPRINT = """
import hashlib, sys
from semcal.demo.questions import SETS, load_set
from tools.atlas.questions import facts_by_use
from tools.atlas.world import build_world
text = repr((build_world().facts, facts_by_use()["training"], [load_set(name) for name in SETS]))
assert "torch" not in sys.modules
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_world_and_questions_are_those_that_the_shipped_models_learnt():
    prints = {
        subprocess.run(
            [sys.executable, "-c", _FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {"1b2e4e6e8fe495043d972397d6675c26a8a5fdad1ed8f8562f1859dbf73eed06"}


def test_the_package_holds_exactly_what_the_generator_makes():
    folder = Path(stored.__file__).parent
    for name, text in data_files().items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run python -m tools.atlas.questions"


def test_an_unknown_set_is_refused_with_the_names_of_the_known():
    with pytest.raises(UsageError, match="atlas-reading"):
        load_set("atlas-history")
