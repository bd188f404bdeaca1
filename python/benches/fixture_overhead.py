"""Benchmark of the pytest plugin's overhead: python benches/fixture_overhead.py

Runs a session of 1,000 fixtures that sleep 10 ms each, with and without `--pellucid-fixtures`, in
fresh processes and in alternating order. Target: at most 1 % more. Two figures, since sleeps vary by
more than the overhead on a busy machine:

- the ratio of wall times, as the median over pairs;
- the additional CPU time, in percent of the wall time. The plugin never waits, so this is its cost
  without the noise of sleeps.

The control compares two sessions without the option. The last lines measure sessions that do not use
the option: one trivial test, with the plugin blocked and with the plugin loaded.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLUGIN = "pellucid_pytest"
PER_TEST = 10

Cost = tuple[float, float]
"""Wall and CPU seconds."""


def write_session(directory: Path, fixtures: int, milliseconds: float) -> None:
    """Writes a test module in which each test uses ten fixtures of its own; every second one
    yields.
    """
    lines = ["import time", "import pytest", ""]
    for number in range(fixtures):
        lines += ["@pytest.fixture", f"def fixture_{number}():", f"    time.sleep({milliseconds / 1000})"]
        lines += ["    yield" if number % 2 else "    return None", ""]
    for start in range(0, fixtures, PER_TEST):
        names = ", ".join(f"fixture_{number}" for number in range(start, min(start + PER_TEST, fixtures)))
        lines += [f"def test_{start}({names}): pass", ""]
    (directory / "test_session.py").write_text("\n".join(lines), encoding="utf-8")


def run(directory: Path, *arguments: str) -> Cost:
    """Runs pytest in a process of its own; returns its wall and CPU time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    # Bytecode is cached, as it is for an installed plugin.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPYCACHEPREFIX": str(directory)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare(directory: Path, rounds: int, base: list[str], changed: list[str]) -> tuple[float, float, float, float]:
    """Medians over pairs in ABBA order: ratio of wall times, its quartiles, and additional CPU time
    as a share of the base's wall time.
    """
    ratios, additional = [], []
    for number in range(rounds):
        order = [base, changed] if number % 2 == 0 else [changed, base]
        costs = {id(arguments): run(directory, *arguments) for arguments in order}
        (wall, cpu), (changed_wall, changed_cpu) = costs[id(base)], costs[id(changed)]
        ratios.append(changed_wall / wall)
        additional.append((changed_cpu - cpu) / wall)
    low, _, high = statistics.quantiles(ratios, n=4) if rounds > 1 else (ratios[0],) * 3
    return statistics.median(ratios), low, high, statistics.median(additional)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of sessions")
    parser.add_argument("--fixtures", type=int, default=1000)
    parser.add_argument("--milliseconds", type=float, default=10.0, help="sleep of each fixture")
    options = parser.parse_args()
    plugin = ["-p", PLUGIN]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write_session(directory, options.fixtures, options.milliseconds)
        report = f"--pellucid-fixtures={directory / 'report.md'}"
        run(directory, *plugin, report)  # compiles all modules
        print(f"{options.fixtures} fixtures of {options.milliseconds:g} ms, {options.rounds} pairs")
        print(f"{'':<22}  {'wall time, ratio (quartiles)':>30}  {'additional CPU time':>20}")
        for name, changed in (("with a report", [*plugin, report]), ("control: without", [*plugin])):
            ratio, low, high, cpu = compare(directory, options.rounds, [*plugin], changed)
            interval = f"{ratio:.4f} ({low:.4f} to {high:.4f})"
            print(f"{name:<22}  {interval:>30}  {100 * cpu:>18.2f} %")
        size = (directory / "report.md").stat().st_size
        assert size > options.fixtures * 50, "the report has a row for each fixture"
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "test_one.py").write_text("def test_one(): pass\n", encoding="utf-8")
        run(directory, *plugin)
        pairs = [
            (run(directory, "-p", f"no:{PLUGIN}")[1], run(directory, *plugin)[1]) for _ in range(4 * options.rounds)
        ]
        difference = statistics.median(loaded - blocked for blocked, loaded in pairs)
        blocked = statistics.median(blocked for blocked, _ in pairs)
        print(f"session without the option: {1000 * difference:+.1f} ms CPU on {1000 * blocked:.0f} ms")


if __name__ == "__main__":
    main()
