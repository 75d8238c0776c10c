"""Log-probabilities at the temperature of a draw, from what servers give."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.servers.protocol import ServerProfile, TokenEntry
from semcal.servers.sampler import log_prob_at, reading_at, why_unknown

RAW = ServerProfile("http://127.0.0.1:1/v1", "small", "vLLM", log_probs="raw")
ALL = replace(RAW, whole_vocabulary=True, vocabulary=3072)


@pytest.mark.parametrize(
    ("profile", "at_one", "elsewhere"),
    [
        (replace(RAW, log_probs=None), None, None),
        (RAW, "given", None),
        (ALL, "given", "of all"),
        (replace(ALL, vocabulary=None), "given", None),
        (replace(ALL, scaled_on_request=True), "given", "on request"),
        (replace(RAW, log_probs="scaled"), "given", "given"),
        (replace(RAW, log_probs="masked", truncated_to="top_k 40"), None, None),
        (replace(RAW, truncated_to="top_k 40"), "given", None),
        (replace(RAW, scaled_on_request=True, truncated_to="top_k 40"), "given", None),
    ],
)
def test_what_a_server_gives_says_how_log_probabilities_at_t_are_had(profile, at_one, elsewhere) -> None:
    assert reading_at(profile, 1.0) == at_one
    assert {reading_at(profile, t) for t in (0.5, 1.3)} == {elsewhere}
    if elsewhere is None:
        assert "E-SC" in why_unknown(profile, 1.3)


logits = st.lists(st.floats(-30, 30), min_size=2, max_size=12)


@given(logits=logits, temperature=st.floats(0.05, 20))
def test_raw_ones_of_the_whole_vocabulary_give_those_at_t(logits: list[float], temperature: float) -> None:
    z = np.array(logits)
    raw = z - np.logaddexp.reduce(z)
    top = dict(enumerate(map(float, raw)))
    expected = z / temperature - np.logaddexp.reduce(z / temperature)
    for token_id in top:
        found = log_prob_at(
            TokenEntry("", top[0], 0, top), temperature, "of all", token_id=token_id, vocabulary=len(top)
        )
        assert found == pytest.approx(expected[token_id], abs=1e-9)


def test_a_vocabulary_that_is_not_whole_leaves_it_unknown() -> None:
    top = {0: math.log(0.6), 1: math.log(0.3)}  # a tenth is missing
    assert log_prob_at(TokenEntry("", top[0], 0, top), 2.0, "of all", vocabulary=3) is None
    nearly = {0: math.log(0.9999), 1: math.log(0.00005)}  # adds up, but of 10 tokens
    assert log_prob_at(TokenEntry("", nearly[0], 0, nearly), 2.0, "of all", vocabulary=10) is None
    drawn_instead = {0: math.log(0.7), 1: math.log(0.2999)}  # of the least likely
    found = log_prob_at(TokenEntry("", drawn_instead[0], 0, drawn_instead), 1.0, "of all", vocabulary=3)
    assert found == pytest.approx(math.log(0.7), abs=1e-3)


def test_what_is_not_listed_is_unknown() -> None:
    entry = TokenEntry("a", -0.5, 4, {4: -0.5, 6: -1.5})
    assert log_prob_at(entry, 1.0, "given", token_id=6) == -1.5
    assert log_prob_at(entry, 1.0, "given", token_id=7) is None
    assert log_prob_at(entry, 1.0, None) is None
    assert log_prob_at(TokenEntry("a", -math.inf), 1.0, "given") is None


def test_the_remedy_is_the_server_s() -> None:
    assert "--logprobs-mode processed_logprobs" in why_unknown(RAW, 1.3)
    assert "only E-SC" in why_unknown(replace(RAW, server="Ollama"), 1.3)
    assert "top_k 40" in why_unknown(replace(RAW, log_probs="masked", truncated_to="top_k 40"), 1.0)
