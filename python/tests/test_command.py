"""The command `pellucid` that the package installs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("pellucid")


def run(*arguments, **options):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, **options)


def test_it_runs_and_reports_usage_errors_as_the_binary_does():
    done = run("run", "Once upon a")
    assert done.returncode == 0, done.stderr
    assert '" time"' in done.stdout.splitlines()[0]
    wrong = run("run", "--model", "/no/such/model", "x")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ")
    assert "Usage: pellucid" in run("--help").stdout


def test_it_does_not_import_numpy_or_the_package(tmp_path):
    # The package and numpy of the working directory would fail to import.
    for name in ("numpy", "pellucid_pytest"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert run("--version", env=environment).returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_it():
    started = subprocess.Popen(
        [COMMAND, "lab", "noise", "--seconds", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(2)
    assert started.poll() is None
    started.send_signal(signal.SIGINT)
    # By the signal itself, which Python alone would only note.
    assert started.wait(timeout=30) == -signal.SIGINT
