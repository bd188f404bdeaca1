"""The examples run and print the output shown in their docstring."""

import contextlib
import io
import re
import runpy
import textwrap

import pytest
from conftest import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def close(one: str, other: str) -> bool:
    """Whether two words are numbers that differ by at most one in the last digit (CPUs round
    differently).
    """
    numbers = [re.fullmatch(r"[+-]?\d+(?:\.(\d+))?", word.strip("[](),;")) for word in (one, other)]
    if None in numbers:
        return False
    printed, expected = numbers
    return abs(float(printed.group()) - float(expected.group())) <= 1.01 * 10 ** -len(expected.group(1) or "")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(str(path), run_name="__main__")
    documented = re.search(r"\n\n((?:    .*\n?)+)\Z", names["__doc__"])
    assert documented is not None, "the docstring must end with the output of the example"
    expected, found = textwrap.dedent(documented.group(1)).split(), printed.getvalue().split()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == other or close(one, other), f"printed {one}, documented {other}"


def test_there_is_an_example_for_each_method():
    assert {path.stem for path in EXAMPLES} >= {
        "attention_heads",
        "induction_heads",
        "logit_lens",
        "patching",
        "steering",
    }
