"""Collects the events of all processes into one record for each fixture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
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


@dataclass
class Problem:
    """The first failed, skipped or interrupted setup or teardown with a given message."""

    status: str
    message: str
    test: str
    count: int = 1


@dataclass
class FixtureRecord:
    """Everything known about one fixture."""

    facts: dict[str, Any]
    uses: int = 0
    dynamic_uses: int = 0
    running: int = 0
    """Setups that have started and not ended."""
    setups: Measured = field(default_factory=Measured)
    params: dict[str, Measured] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    teardown_seconds: float = 0.0
    dependencies: set[str] = field(default_factory=set)
    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)

    def add_problem(self, status: str, message: str | None, test: str) -> None:
        """Counts a status other than `ok`."""
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

    def add(self, event: tuple[Any, ...]) -> None:
        """Applies an event of the recorder."""
        kind, *values = event
        getattr(self, f"_{kind}")(*values)

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
        record.statuses[status] += 1
        if status != "ok":
            record.add_problem(status, message, test)
        if requested_by is not None:
            self.fixtures[requested_by].dependencies.add(key)

    def _teardown(self, key: str, seconds: float, status: str, message: str | None, test: str) -> None:
        record = self.fixtures[key]
        record.teardown_seconds += seconds
        if status != "ok":
            name = "teardown failed" if status == "failed" else f"teardown {status}"
            record.statuses[name] += 1
            record.add_problem(name, message, test)

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
