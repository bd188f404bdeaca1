"""The examples run, and print what their first lines say."""

import contextlib
import io
import re
import runpy
import textwrap

import pytest
from conftest import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def close(one: str, other: str) -> bool:
    """Whether words are numbers that differ by one in their last digit at most, as another processor may round them."""
    numbers = [re.fullmatch(r"[+-]?\d+(?:\.(\d+))?", word.strip("[](),;")) for word in (one, other)]
    if None in numbers:
        return False
    found, told = numbers
    return abs(float(found.group()) - float(told.group())) <= 1.01 * 10 ** -len(told.group(1) or "")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(str(path), run_name="__main__")
    told = re.search(r"\n\n((?:    .*\n?)+)\Z", names["__doc__"])
    assert told is not None, "the docstring ends with what the example prints"
    expected, found = textwrap.dedent(told.group(1)).split(), printed.getvalue().split()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == other or close(one, other), f"{one} is printed, {other} is said"


def test_there_is_one_for_each_method():
    assert {path.stem for path in EXAMPLES} >= {
        "attention_heads",
        "induction_heads",
        "logit_lens",
        "patching",
        "steering",
    }
