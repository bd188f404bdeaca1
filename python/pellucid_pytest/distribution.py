"""Transport of events from the workers of pytest-xdist to the controller.

Events travel with the report of each test phase, so a worker that crashes loses only the events
since then. The events after the last test come with the worker's final output.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from .memory import gpu_name

if TYPE_CHECKING:
    from .reporter import Reporter

EVENTS = "pellucid_fixture_events"
GPU = "pellucid_fixture_gpu"


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


class Sender:
    """Sends events; runs in a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
        self.events: list[tuple[Any, ...]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attaches the events since the last report."""
        report = yield
        setattr(report, EVENTS, self.events[:])
        self.events.clear()
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None, Any, Any]:
        """Leaves the remaining events for the controller, after pytest's last teardowns."""
        result = yield
        self.output[EVENTS] = self.events[:]
        self.output[GPU] = gpu_name()
        return result


class Receiver:
    """Hands the events of workers to the reporter; runs in the controller."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the events out of a test report."""
        events = vars(report).pop(EVENTS, None)
        if events is not None:
            self.reporter.workers.add(report.node.gateway.id)  # type: ignore[attr-defined]
            for event in events:
                self.reporter.add(event)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Takes the last events of a worker, or notes that it crashed."""
        output = getattr(node, "workeroutput", None)
        if output is None:
            self.reporter.notes.append(
                f"worker {node.gateway.id} ended without its last events ({error or 'no reason given'}); "
                "the fixture that it was setting up may be missing"
            )
            return
        for event in output.get(EVENTS, ()):
            self.reporter.add(event)
        self.reporter.gpu = self.reporter.gpu or output.get(GPU)
