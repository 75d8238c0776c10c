"""What recalibrators do to reference answers: losses and order, against literal loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.experiment.grid_steps import order_changes, token_effects
from semcal.recalibration import ATS, SE, Base, BlockShape, FitFeatures, Platt
from semcal.recalibration.exact_solver import inverse_temperatures

V, D = 17, 8
SHAPE = BlockShape(hidden_size=D, intermediate_size=12, heads=2, key_value_heads=1, head_dim=4)
ANSWERS = [[(1, 2, 3), (4, 3)], [(5, 3)], [(6, 7, 8, 3)]]


@pytest.fixture
def head() -> Any:
    weight = torch.randn(D, V, generator=torch.Generator().manual_seed(1)) * 2
    return SimpleNamespace(logits=lambda states: states @ weight)


@pytest.fixture
def features() -> FitFeatures:
    own = [3, 2, 4]
    count = sum(length + sum(len(a) - 1 for a in given) for length, given in zip(own, ANSWERS))
    generator = torch.Generator().manual_seed(2)
    states, prefix = torch.randn(count, D, generator=generator), torch.randn(2, D, generator=generator)
    return FitFeatures.from_states(states, own, ANSWERS, prefix=prefix)


@pytest.fixture
def ats() -> ATS:
    made = ATS(SHAPE, seed=3)
    torch.nn.init.normal_(made.readout.weight, std=3.0, generator=torch.Generator().manual_seed(4))
    return made


def platt() -> Platt:
    made = Platt(V)
    with torch.no_grad():
        made.bias.copy_(torch.linspace(-4, 4, V))
    return made


def test_losses_and_orders_are_those_of_a_loop_over_tokens(head, features, ats):
    recalibrators = {"Base": Base(), "SE": SE(), "ATS": ats, "Platt": platt()}
    found = token_effects(head, features, recalibrators)
    beta = inverse_temperatures(ats, features)
    for i, (row, target) in enumerate(zip(features.predicting_rows(), features.targets)):
        z = head.logits(features.states[row]).double()
        maps = {"Base": z, "SE": 2 * z, "ATS": z * beta[i].double()}
        maps["Platt"] = z + torch.linspace(-4, 4, V).double()
        for name, mapped in maps.items():
            expected = float(torch.logsumexp(mapped, 0) - mapped[target])
            assert found[name].nll[i] == pytest.approx(expected, rel=1e-6, abs=1e-5)
            assert bool(found[name].top_changed[i]) == (int(mapped.argmax()) != int(z.argmax()))
            assert bool(found[name].order_changed[i]) == (
                mapped.argsort(descending=True)[:10].tolist() != z.argsort(descending=True)[:10].tolist()
            )
    assert found["Platt"].order_changed.all()
    assert found["Platt"].top_changed.sum() > 0


def test_references_of_a_question_count_equally(head, features):
    (effects,) = token_effects(head, features, {"Base": Base()}).values()
    first = np.array([1 / 2] * 5 + [1] * 6)
    assert effects.mean_nll == pytest.approx(float((effects.nll * first).sum() / first.sum()))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), beta=st.floats(0.05, 20), rounded=st.booleans())
def test_a_temperature_changes_no_order_at_all(seed, beta, rounded):
    logits = torch.randn(5, 400, generator=torch.Generator().manual_seed(seed)) * 6
    if rounded:
        logits = logits.round()  # many ties
    top, order = order_changes(logits, torch.log_softmax(logits * beta, 1))
    assert not top.any()
    assert not order.any()


def test_a_token_that_enters_the_top_ten_changes_its_order():
    before = torch.arange(20.0).repeat(2, 1)
    after = before.clone()
    after[0, 9] = 10.5  # the eleventh passes the tenth
    after[1, 8] = 9.5  # the twelfth passes the eleventh
    top, order = order_changes(before, after)
    assert not top.any()
    assert order.tolist() == [True, False]
