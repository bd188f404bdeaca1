"""Runs pytest on sample projects and reads the fixture reports; used by `test_fixture_*.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MIB = 2**20
PLUGIN = ("-p", "pellucid_pytest")


def run(pytester: pytest.Pytester, *arguments: str, report: str = "report.json") -> pytest.RunResult:
    """Runs pytest in a process of its own, with a report."""
    return pytester.runpytest_subprocess(*PLUGIN, f"--pellucid-fixtures={report}", *arguments)


def read(pytester: pytest.Pytester, report: str = "report.json") -> dict:
    """A JSON report."""
    return json.loads(Path(pytester.path, report).read_text(encoding="utf-8"))


def rows(pytester: pytest.Pytester) -> dict[str, dict]:
    """The rows of the JSON report by fixture name."""
    by_name: dict[str, dict] = {}
    for row in read(pytester)["fixtures"]:
        assert row["name"] not in by_name, "two rows for one name"
        by_name[row["name"]] = row
    return by_name
