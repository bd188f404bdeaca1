"""Collects events and writes the report: at the end of the session, when it is interrupted or
terminated, and now and then while it runs, in case the process is killed.
"""

from __future__ import annotations

import gc
import platform
from collections import deque
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from .markdown import seconds
from .memory import gpu_name
from .outputs import write
from .records import Records
from .summary import summarize
from .termination import TerminationHandler

CHECKPOINT_SECONDS = 10.0
CHECKPOINT_SECONDS_PER_FIXTURE = 0.05
"""Time between reports that are written while the session runs: a row takes up to 0.1 ms, so they
take at most 0.2 % of the session.
"""
MAX_PENDING = 2000

ENDS = {
    pytest.ExitCode.OK: "all tests passed",
    pytest.ExitCode.TESTS_FAILED: "some tests failed",
    pytest.ExitCode.INTERRUPTED: "interrupted",
    pytest.ExitCode.INTERNAL_ERROR: "internal error of pytest",
    pytest.ExitCode.USAGE_ERROR: "usage error",
    pytest.ExitCode.NO_TESTS_COLLECTED: "no tests collected",
}


class Reporter:
    """Records of all processes, and the files of the report."""

    def __init__(self, outputs: list[Path], memory_source: str) -> None:
        self.outputs = outputs
        self.memory_source = memory_source
        self.records = Records()
        self.pending: deque[tuple[Any, ...]] = deque()
        self.workers: set[str] = set()
        self.notes: list[str] = []
        self.gpu: str | None = None
        self.errors: list[str] = []
        self.summary: dict[str, Any] | None = None
        self.slowest: list[dict[str, Any]] = []
        self.clock = perf_counter
        self.started = self.clock()
        self.last_written = self.started
        self.next_checkpoint = self.started + CHECKPOINT_SECONDS
        self.termination = TerminationHandler(self._write_before_end)

    def add(self, event: tuple[Any, ...]) -> None:
        """Takes an event, and writes a report of the session so far if the last one is old.

        Events wait in a list: the first one after a test finds cold caches, and takes several times
        as long as one of many.
        """
        self.pending.append(event)
        if len(self.pending) >= MAX_PENDING:
            self.apply()
        now = self.clock()
        if now >= self.next_checkpoint:
            self.apply()
            interval = CHECKPOINT_SECONDS + len(self.records.fixtures) * CHECKPOINT_SECONDS_PER_FIXTURE
            if now >= self.last_written + interval and self.records.tests is not None:
                self.write("still running", ["the session had not ended when this report was written"])
                self.last_written = now
            self.next_checkpoint = self.last_written + interval

    def apply(self) -> None:
        """Applies the events that wait. A signal may interrupt it and call it again."""
        while self.pending:
            self.records.add(self.pending.popleft())

    def write(self, ended: str, notes: list[str]) -> None:
        """Writes all files."""
        # A report allocates much and frees it at once; collections would take half of its time.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self.apply()
            report = self._summarize(ended, notes)
            self.errors = [error for path in self.outputs if (error := try_write(path, report))]
            self.summary, self.slowest = report["summary"], report["slowest"]
        finally:
            if was_enabled:
                gc.enable()

    def _summarize(self, ended: str, notes: list[str]) -> dict[str, Any]:
        session = {
            "generated": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
            "ended": ended,
            "seconds": self.clock() - self.started,
            "workers": len(self.workers),
            "python": platform.python_version(),
            "pytest": pytest.__version__,
            # `platform.platform` searches the interpreter's file for the version of libc.
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "memory": self.memory_source,
            "gpu": self.gpu or gpu_name(),
            "notes": [*notes, *self.notes],
        }
        return summarize(self.records, session)

    def pytest_sessionstart(self) -> None:
        """Writes the report on SIGTERM, unless the project handles it."""
        self.termination.install()

    def _write_before_end(self) -> None:
        self.write("terminated by SIGTERM", ["the session was terminated before its end"])

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> Generator[None, Any, Any]:
        """Writes the report, after pytest's last teardowns and before its summary."""
        result = yield
        ended = next((text for code, text in ENDS.items() if code == exitstatus), f"exit status {exitstatus}")
        notes = ["the session was interrupted before its end"] if exitstatus == pytest.ExitCode.INTERRUPTED else []
        self.write(ended, notes)
        return result

    def pytest_unconfigure(self) -> None:
        """Restores the action of SIGTERM."""
        self.termination.remove()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the totals and the files."""
        summary, slowest = self.summary, self.slowest
        if summary is None:
            return
        terminalreporter.section("fixtures")
        terminalreporter.write_line(
            f"{summary['fixtures']} fixtures, {summary['used']} used: {seconds(summary['setup_seconds'])} s in setup, "
            f"{seconds(summary['teardown_seconds'])} s in teardown"
        )
        if slowest:
            names = ", ".join(f"{row['name']} {seconds(row['init_seconds'])} s" for row in slowest[:3])
            terminalreporter.write_line(f"slowest: {names}")
        for error in self.errors:
            terminalreporter.write_line(f"error: {error}", red=True)
        if not self.errors:
            terminalreporter.write_line(f"report: {', '.join(str(path) for path in self.outputs)}")


def try_write(path: Path, report: dict[str, Any]) -> str | None:
    """Writes one file; returns the error, if any."""
    try:
        write(path, report)
    except OSError as error:
        return f"cannot write the fixture report `{path}`: {error}"
    return None
