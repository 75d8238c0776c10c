"""Plots of a fit: the loss against T with its certificate, and the loss of the steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from semcal.errors import UsageError
from semcal.plotting import loss_figure, steps_figure, write_figure
from semcal.recalibration.records import Certificate, GradientSteps, LossCurve, Schedule, TemperatureFit

T = tuple(np.geomspace(0.05, 20, 121).tolist())
FIT = TemperatureFit(
    "SS",
    0.25,
    certificate=Certificate(1.6, 0.5, 0.75, -3e-9, 4.25, at_bound=False, steps=3),
    log_temperature_step=2e-8,
    standard_error=0.04,
    resampled=tuple(np.linspace(1.5, 1.7, 1001).tolist()),
    curve=LossCurve(T, tuple(0.5 + np.log(np.array(T) / 1.6) ** 2)),
    n_tokens=812,
    n_questions=300,
    n_clusters=300,
)


def test_the_loss_is_drawn_around_one_and_the_optimum_with_its_interval() -> None:
    (axes,) = loss_figure(FIT).axes
    mark, curve, one, optimum = axes.lines
    assert mark.get_xdata()[0] == 1.6
    assert [float(line.get_xdata()[0]) for line in (one, optimum)] == [1.0, 1.6]
    assert [float(line.get_ydata()[0]) for line in (one, optimum)] == [0.75, 0.5]
    x = np.array(curve.get_xdata())
    assert 1 / 3 <= x.min() < 0.36
    assert 4.5 < x.max() <= 4.8
    np.testing.assert_allclose(curve.get_ydata(), 0.5 + np.log(x / 1.6) ** 2)
    away = math.exp(t.ppf(0.975, 299) * 0.04 / 1.6)
    assert axes.patches[0].get_x() == pytest.approx(1.6 / away)
    assert axes.patches[0].get_width() == pytest.approx(1.6 * away - 1.6 / away)


def test_the_certificate_is_written_beside_it() -> None:
    figure = loss_figure(FIT)
    assert figure.axes[0].get_title(loc="left") == "T = 1.6 ± 0.04, 95% interval [1.523, 1.681]"
    assert figure.axes[0].get_ylabel().endswith("SS, α = 0.25")
    below = " ".join(figure.get_supxlabel().split())
    for part in ("812 tokens of 300 questions", "slope -3.0e-09", "curvature 4.25", "log T: 2e-08"):
        assert part in below


def test_what_is_not_known_is_not_drawn() -> None:
    alone = replace(FIT, standard_error=float("nan"))
    (axes,) = loss_figure(alone).axes
    assert (axes.get_title(loc="left"), len(axes.patches)) == ("T = 1.6", 0)
    bound = replace(alone, certificate=replace(FIT.certificate, temperature=20.0, at_bound=True))
    assert "at its bound" in loss_figure(bound).axes[0].get_title(loc="left")


@pytest.mark.parametrize("count", [1, 2, 15, 200])
def test_steps_are_drawn_with_their_running_mean(count: int) -> None:
    losses = tuple(float(i % 3) for i in range(count))
    steps = GradientSteps(Schedule(1e-5), 1000, 0.01, losses)
    (axes,) = steps_figure(steps, method="ATS").axes
    dots, line = axes.lines
    np.testing.assert_allclose(dots.get_xdata(), (np.arange(count) + 0.5) * 1000 / count)
    assert dots.get_ydata().tolist() == list(losses)
    assert len(line.get_xdata()) == len(line.get_ydata())
    if count == 200:
        np.testing.assert_allclose(line.get_ydata(), 1.0, atol=0.051)
        assert axes.get_title(loc="left") == "ATS, 1000 steps in 2 epochs, learning rate 1e-05"


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_the_same_figure_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    paths = [write_figure(loss_figure(FIT), tmp_path / str(i) / f"loss.{suffix}") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes() != b""


def test_another_file_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"loss\.gif: .*\.pdf, \.png, \.svg"):
        write_figure(loss_figure(FIT), tmp_path / "loss.gif")
