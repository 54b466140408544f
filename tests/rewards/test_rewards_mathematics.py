r"""The number in the last box, and the letter of the option."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.rewards.domains import mathematics, multiple_choice, number, option
from lcrag.rewards.domains.exact_answers import boxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{1} but \boxed{2", None),
        ("42", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\u22123", -3),
        ("+ 7", 7),
        ("18.", 18),
        (".5", Fraction(1, 2)),
        ("3,5", Fraction(7, 2)),
        ("1,234,567.5", Fraction("1234567.5")),
        ("1 234 567", 1234567),
        ("1\u202f234", 1234),
        (r"1\,234", 1234),
        ("1{,}234", 1234),
        ("1'234", 1234),
        ("1.234,5", Fraction("1234.5")),
        ("1.234.567", 1234567),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"\frac34", Fraction(3, 4)),
        (r"1\frac{3}{4}", Fraction(7, 4)),
        ("1 3/4", Fraction(7, 4)),
        ("1½", Fraction(3, 2)),
        (r"\$18.00", 18),
        (r"50\%", 50),
        (r"60 \text{ km/h}", 60),
        ("5 apples", 5),
        ("1/2 cup", Fraction(1, 2)),
        ("x = 12", 12),
        (r"90^\circ", 90),
        ("٣٤٫٥", Fraction("34.5")),
        ("１２", 12),
        ("๑๒", 12),
    ],
)
def test_numbers(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "5²", "10^2", "1,23,4", "3/0", "1/2/3", "1 2", "twelve", "2, 3", "12 per 3 days"]
)
def test_what_is_no_number(text):
    assert number(text) is None


@given(st.integers(-(10**12), 10**12), st.integers(0, 999))
def test_a_number_is_read_as_python_writes_it(whole, thousandths):
    text = f"{abs(whole)}.{thousandths:03}"
    sign = "-" if whole < 0 else ""
    assert number(f"{sign}{text}") == Fraction(f"{sign}{text}")
    assert number(f"{whole:,}") == whole


@given(st.integers(-999, 999), st.integers(1, 999))
def test_fractions_in_every_way_of_writing(above, below):
    assert number(f"{above}/{below}") == number(rf"\frac{{{above}}}{{{below}}}") == Fraction(above, below)


def test_mathematics_looks_into_the_last_box():
    answers = [r"\boxed{1,000}", "1000", None, r"\boxed{9} no, \boxed{1000.0}", r"\boxed{1000} no, \boxed{1}"]
    assert mathematics(answers, [("1000",)] * 5).tolist() == [1, 0, 0, 1, 0]
    assert mathematics([r"\boxed{x^2 + 1}", r"\boxed{}"], [("x^2+1",), ("",)]).tolist() == [1, 0]
    assert mathematics([r"\boxed{0.33}"], [("1/3",)]).tolist() == [0]
    assert mathematics([], []).shape == (0,)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(b)", "B"),
        ("**B**", "B"),
        ("C) Paris", "C"),
        (r"\boxed{C}", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"not A: \boxed{D. Berlin}", "D"),
        ("Ｂ", "B"),
        ("The answer is C.", "C"),
        ("Answer: D", "D"),
        ("It must be (A), since the others are wrong", "A"),
        ("A cat", None),
        ("A. or B.", None),
        ("(A) or (B)", None),
        ("F", None),
        (r"\boxed{}", None),
    ],
)
def test_options(text, letter):
    assert option(text) == letter


def test_multiple_choice():
    assert multiple_choice(["B", "C", None, "b."], [("B",), ("B",), ("B",), ("b",)]).tolist() == [1, 0, 0, 1]
    assert multiple_choice([r"\boxed{E}", "E. None of these", "(D)"], [("E",)] * 3).tolist() == [1, 1, 0]


@pytest.mark.parametrize("text", ["3x", "3 x", "3n", "3xy", "3x + 2", r"3\pi", "3π"])
def test_a_number_with_a_variable_is_not_that_number(text):
    assert number(text) is None
    assert mathematics([rf"\boxed{{{text}}}"], [("3",)]).tolist() == [0]
    assert mathematics([rf"\boxed{{{text}}}"], [(text,)]).tolist() == [1]


@pytest.mark.parametrize("text", ["3 m", "3m", "3 km/h", "3 Stunden", "3円", "3 л", "3 °C", "3 m per second"])
def test_a_unit_is_ignored(text):
    assert number(text) == 3
