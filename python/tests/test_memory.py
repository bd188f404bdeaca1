"""Calls that do not fit into memory are refused."""

import subprocess
import sys

import pytest

import pellucid

SCRIPT = """
import pellucid
model = pellucid.load()
pellucid.set_memory_limit("1MB")
try:
    model.run("Tom saw a dog.", capture="layers.*.resid_post")
except pellucid.InputError as error:
    assert "may be used" in str(error) and "set_memory_limit" in str(error), error
else:
    raise SystemExit("the run was not refused")
pellucid.set_memory_limit("none")
model.run("Tom saw a dog.", capture="layers.*.resid_post")
"""


def test_f20_a_run_that_does_not_fit_raises_an_error():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


@pytest.mark.parametrize("wrong", ["lots", "", "120%", 0.8, None])
def test_other_limits_are_errors(wrong):
    with pytest.raises(pellucid.InputError):
        pellucid.set_memory_limit(wrong)
