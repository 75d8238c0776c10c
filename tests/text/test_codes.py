"""Formulas, identifiers, addresses and units in normal forms; forms of codes; months of other languages."""

from __future__ import annotations

import pytest

from semcal.text.normal_form import asks_for_code, code_form, letter_form, normal_form
from semcal.text.values import values_differ


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("p+q", "p + q"),
        ("p - q", "p - q"),
        ("(p + q) * 2", "( p + q ) * 2"),
        ("e^{3} - 1", "e3 - 1"),
        ("1 − 1/e", "1 - 1 / e"),
        ("p && q", "p && q"),
        ("!ready", "!ready"),
        ("run_all()", "run_all"),
        ("D:\\logs\\a.txt", "d:\\logs\\a.txt"),
        ("/var/log", "/var/log"),
        ("j.doe@example.org", "j.doe@example.org"),
        ("8 MW", "8 megawatt"),
        ("8 mW", "8 mw"),
    ],
)
def test_signs_of_codes_and_formulas_stay(text: str, form: str) -> None:
    assert normal_form(text) == form
    assert normal_form(form) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("AC/DC", "acdc"),
        ("McDonald", "mcdonald"),
        ("iPhone", "iphone"),
        ("B-52", "b52"),
        ("Type O+", "type o+"),
        ("C++", "c++"),
        ("M*A*S*H", "mash"),
        ("UTC+8", "utc+8"),
        ("Yahoo!", "yahoo"),
        ("Vitamin A + C", "vitamin a c"),
        ("3 - 1", "3-1"),
        ("10 - 15 km", "10-15 km"),
        ("9/11", "9/11"),
        ("MV Orlin", "mv orlin"),
        ("7000+ (as of 2022)", "7000 as of 2022"),
    ],
)
def test_names_and_ranges_are_no_formulas(text: str, form: str) -> None:
    assert normal_form(text) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("9. November 1989", "1989-11-09"),
        ("le 3 août 1904", "le 1904-08-03"),
        ("3 de marzo de 1904", "1904-03-03"),
        ("1er mai 1904", "1904-05-01"),
        ("3 dicembre 1904", "1904-12-03"),
        ("3 de março de 1904", "1904-03-03"),
        ("3 maart 1904", "1904-03-03"),
        ("Oktober 1904", "1904-10"),
        ("Mars 2020", "mars 2020"),
        ("in 1268 Marco Polo left", "in 1268 marco polo left"),
        ("2 Mai Tais", "2 mai tais"),
    ],
)
def test_months_of_other_languages_are_read_beside_a_day_or_year(text: str, form: str) -> None:
    assert normal_form(text) == form


def test_days_of_different_months_differ_in_any_language() -> None:
    assert values_differ(normal_form("14 juillet"), normal_form("14 juin"))
    assert values_differ(normal_form("am 3. Oktober"), normal_form("am 3. November"))
    assert not values_differ(normal_form("3 octubre"), normal_form("October 3"))


def test_the_form_of_a_code_keeps_case_and_dots() -> None:
    assert code_form('"kx7".') == "kx7" != code_form("KX7")
    assert code_form("2.10") != code_form("2.1")
    assert letter_form(" Kx7. ") == "Kx7."


def test_a_question_or_all_labels_show_that_codes_are_asked_for() -> None:
    assert asks_for_code("Which version is it?", ["2.10"])
    assert asks_for_code("Which one?", ["kx71", "j.doe@example.org"])
    assert not asks_for_code("Which version of the tale?", ["The Old Mill"])
    assert not asks_for_code("What dress code was set?", ["2.10"])
    assert not asks_for_code("Which one?", ["kx71", "Turin"])
