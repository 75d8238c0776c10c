"""A figure inside a page keeps every mark, and says nothing twice."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from semcal.experiment.report.page import inline_svg
from semcal.plotting import METHOD_COLOURS


@pytest.fixture(scope="module")
def svg() -> str:
    """Bars with and without length, a hatch, markers, mathematics, a dollar."""
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    errors = np.array([0.1, np.nan, np.nan])
    axes.errorbar([1, 2, 3], [1, 2, 3], yerr=errors, fmt="o", color=METHOD_COLOURS["TS"], label="a < b")
    axes.bar([1], [2], hatch="//", color=METHOD_COLOURS["Base"])
    axes.set_title("$\\bar{s}$ & so on")
    return inline_svg(figure, "f1", "what it <shows>")


def test_it_is_well_formed_and_needs_no_other_file(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == "what it <shows>"
    assert "http" not in svg
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("f1-") for name in ids)
    assert set(re.findall(r"(?:href=\"|url\()#([\w-]+)", svg)) == set(ids)


def test_every_marker_and_bar_is_there_and_what_has_no_length_is_not(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert all(path.get("d") for path in root.iter("path"))
    markers = [use for use in root.iter("use") if _style(root, use).count("var(--m-ts)")]
    assert len(markers) == 3
    bars = [path for path in root.iter("path") if "stroke: var(--m-ts)" in _style(root, path)]
    assert len([path for path in bars if path.get("clip-path")]) == 1
    assert "var(--m-base)" in svg


def test_groups_that_say_nothing_are_gone_and_styles_stand_once(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert all(group.attrib and len(group) for group in root.iter("g"))
    styles = [element.get("style") for element in root.iter() if element.get("style")]
    assert len(set(styles)) == len(styles)


def _style(root: ElementTree.Element, element: ElementTree.Element) -> str:
    """The style of an element, its own or that of its class."""
    sheet = root.findtext("style") or ""
    found = re.search(rf"\.{element.get('class')}{{([^}}]*)}}", sheet)
    return (element.get("style") or "") + (found[1] if found else "")
