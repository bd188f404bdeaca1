"""Collects the events of all processes into one record for each fixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Measured:
    """Setups of a fixture, or of one of its parameters."""

    count: int = 0
    seconds: float = 0.0
    """Own time of all setups."""
    shortest: float | None = None
    longest: float | None = None
    memory: int | None = None
    """Largest change of the RSS by one setup, in bytes."""
    peak: int | None = None
    gpu: int | None = None

    def add(self, seconds: float, memory: int | None, peak: int | None, gpu: int | None) -> None:
        """Adds one setup."""
        self.count += 1
        self.seconds += seconds
        self.shortest = seconds if self.shortest is None else min(self.shortest, seconds)
        self.longest = seconds if self.longest is None else max(self.longest, seconds)
        self.memory = larger(self.memory, memory)
        self.peak = larger(self.peak, peak)
        self.gpu = larger(self.gpu, gpu)

    @property
    def mean(self) -> float | None:
        """Mean time of a setup, or None before the first."""
        return self.seconds / self.count if self.count else None


@dataclass(slots=True)
class Problem:
    """The first failed, skipped or interrupted setup or teardown with a given message."""

    status: str
    message: str
    test: str
    count: int = 1


@dataclass(slots=True)
class FixtureRecord:
    """Everything known about one fixture."""

    facts: dict[str, Any]
    uses: int = 0
    dynamic_uses: int = 0
    running: int = 0
    """Setups that have started and not ended."""
    setups: Measured = field(default_factory=Measured)
    params: dict[str, Measured] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    teardown_seconds: float = 0.0
    dependencies: set[str] = field(default_factory=set)
    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)

    def add_status(self, status: str, message: str | None, test: str) -> None:
        """Counts a status; other statuses than `ok` are problems."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == "ok":
            return
        problem = self.problems.get((status, message or ""))
        if problem is not None:
            problem.count += 1
        else:
            self.problems[status, message or ""] = Problem(status, message or "", test)


class Records:
    """Records by key, filled from events."""

    def __init__(self) -> None:
        self.fixtures: dict[str, FixtureRecord] = {}
        self.tests: int | None = None
        self.deselected = 0
        self.handlers: dict[str, Callable[..., None]] = {
            "define": self._define,
            "collected": self._collected,
            "start": self._start,
            "setup": self._setup,
            "teardown": self._teardown,
            "dynamic": self._dynamic,
        }

    def add(self, event: tuple[Any, ...]) -> None:
        """Applies an event of the recorder."""
        kind, *values = event
        self.handlers[kind](*values)

    def _define(self, key: str, facts: dict[str, Any]) -> None:
        if key not in self.fixtures:
            self.fixtures[key] = FixtureRecord(facts)

    def _collected(self, counts: dict[str, Any]) -> None:
        # Every worker of pytest-xdist collects all tests; the first one counts.
        if self.tests is not None:
            return
        self.tests, self.deselected = counts["tests"], counts["deselected"]
        for key, uses in counts["uses"].items():
            self.fixtures[key].uses = uses
        for key, dependencies in counts["dependencies"].items():
            self.fixtures[key].dependencies.update(dependencies)

    def _start(self, key: str) -> None:
        self.fixtures[key].running += 1

    def _setup(
        self,
        key: str,
        param: str | None,
        seconds: float,
        memory: int | None,
        peak: int | None,
        gpu: int | None,
        status: str,
        message: str | None,
        test: str,
        requested_by: str | None,
    ) -> None:
        record = self.fixtures[key]
        record.running -= 1
        record.setups.add(seconds, memory, peak, gpu)
        if param is not None:
            record.params.setdefault(param, Measured()).add(seconds, memory, peak, gpu)
        record.add_status(status, message, test)
        if requested_by is not None:
            self.fixtures[requested_by].dependencies.add(key)

    def _teardown(self, key: str, seconds: float, status: str, message: str | None, test: str) -> None:
        record = self.fixtures[key]
        record.teardown_seconds += seconds
        if status != "ok":
            record.add_status(f"teardown {status}", message, test)

    def _dynamic(self, key: str) -> None:
        self.fixtures[key].dynamic_uses += 1

    def closure(self, key: str) -> set[str]:
        """A fixture and all fixtures that it needs, directly or indirectly."""
        found: set[str] = set()
        pending = [key]
        while pending:
            current = pending.pop()
            if current not in found:
                found.add(current)
                pending.extend(self.fixtures[current].dependencies)
        return found


def larger(left: int | None, right: int | None) -> int | None:
    """The larger of two readings, of which either may be missing."""
    if left is None or right is None:
        return left if right is None else right
    return max(left, right)
