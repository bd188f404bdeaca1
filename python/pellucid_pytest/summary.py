"""Turns records into the data of a report: plain dictionaries, which are also the JSON report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .records import FixtureRecord, Measured, Records

SCHEMA_VERSION = 1
TOP = 5
MAX_TARGETS = 10
MIN_SHARE = 0.01
"""A high-impact target takes at least this share of the session."""
MIN_MEMORY = 50_000
"""Bytes below which a change of memory would be shown as 0.0 MB."""
BAD_STATUSES = ("failed", "teardown failed", "interrupted", "teardown interrupted", "skipped", "teardown skipped")
"""Statuses other than `ok`, the worst first."""
SCOPES = ("session", "package", "module", "class", "function")

Row = dict[str, Any]


def summarize(records: Records, session: dict[str, Any]) -> dict[str, Any]:
    """The report of a session."""
    rows = [row_of(key, records) for key, record in records.fixtures.items() if is_relevant(record)]
    rows.sort(key=lambda row: (-row["uses"], -row["total_seconds"], row["name"], row["location"]))
    seconds = session["seconds"]
    used = [row for row in rows if row["used"]]
    return {
        "schema": SCHEMA_VERSION,
        "session": {**session, "tests": records.tests or 0, "deselected": records.deselected},
        "summary": {
            "fixtures": len(rows),
            "used": len(used),
            "unused": len(rows) - len(used),
            "used_percent": percent(len(used), len(rows)),
            "unused_plugin_fixtures": len(records.fixtures) - len(rows),
            "setup_seconds": sum(row["setup_seconds"] for row in rows),
            "teardown_seconds": sum(row["teardown_seconds"] for row in rows),
            "by_category": group(rows, "category", sorted),
            "by_scope": group(rows, "scope", lambda scopes: sorted(scopes, key=SCOPES.index)),
        },
        "fixtures": rows,
        "slowest": top(rows, "init_seconds", 0),
        "most_memory": top(rows, "memory_bytes", MIN_MEMORY),
        "targets": targets(rows, seconds),
        "unused": [row["name"] for row in rows if not row["used"]],
    }


def is_relevant(record: FixtureRecord) -> bool:
    """Whether a fixture has a row: those of plugins and of pytest only if they are used."""
    return record.facts["project"] or is_used(record)


def is_used(record: FixtureRecord) -> bool:
    """Whether a collected test uses a fixture, or another fixture has requested it."""
    return bool(record.uses or record.dynamic_uses or record.setups.count or record.running)


def row_of(key: str, records: Records) -> Row:
    """The row of one fixture; times in seconds, memory in bytes."""
    record = records.fixtures[key]
    facts, setups = record.facts, record.setups
    needed = [records.fixtures[other] for other in records.closure(key)]
    return {
        "name": facts["name"],
        "location": facts["location"],
        "uses": record.uses + record.dynamic_uses,
        "dynamic_uses": record.dynamic_uses,
        "used": is_used(record),
        "type": type_of(record),
        "scope": facts["scope"],
        "category": facts["category"],
        "setups": setups.count,
        "init_seconds": setups.mean,
        "shortest_seconds": setups.shortest,
        "longest_seconds": setups.longest,
        "with_dependencies_seconds": sum(other.setups.mean or 0.0 for other in needed) if setups.count else None,
        "setup_seconds": setups.seconds,
        "teardown_seconds": record.teardown_seconds,
        "total_seconds": setups.seconds + record.teardown_seconds,
        "memory_bytes": setups.memory,
        "peak_bytes": setups.peak,
        "gpu_bytes": setups.gpu,
        "status": status_of(key, records),
        "statuses": dict(record.statuses),
        "problems": [asdict(problem) for problem in record.problems.values()],
        "dependencies": sorted(records.fixtures[other].facts["name"] for other in record.dependencies),
        "params": [{"id": name, **measured_row(measured)} for name, measured in record.params.items()],
    }


def measured_row(measured: Measured) -> Row:
    """The measurements of one parameter."""
    return {
        "setups": measured.count,
        "init_seconds": measured.mean,
        "shortest_seconds": measured.shortest,
        "longest_seconds": measured.longest,
        "memory_bytes": measured.memory,
        "peak_bytes": measured.peak,
        "gpu_bytes": measured.gpu,
    }


def type_of(record: FixtureRecord) -> str:
    """How the fixture is requested and how it provides its value."""
    facts = record.facts
    ways = [way for way, count in (("static", record.uses), ("dynamic", record.dynamic_uses)) if count]
    words = [" and ".join(ways) or "static"]
    if facts["kind"] != "return":
        words.append(facts["kind"])
    if facts["autouse"]:
        words.append("autouse")
    params = max(facts["params"], len(record.params))
    if params:
        words.append(f"{params} param{'s' if params > 1 else ''}")
    return ", ".join(words)


def status_of(key: str, records: Records) -> str:
    """The worst status, with its number if only some setups have it."""
    record = records.fixtures[key]
    if record.running:
        return "running"
    for status in BAD_STATUSES if record.problems else ():
        count = record.statuses.get(status)
        if count:
            total = record.setups.count
            return status if count == total else f"{status} ({count} of {total})"
    if record.setups.count:
        return "ok"
    if not record.uses + record.dynamic_uses:
        return "unused"
    for other in sorted(records.closure(key) - {key}):
        needed = records.fixtures[other]
        for status in ("failed", "interrupted", "skipped"):
            if needed.statuses.get(status):
                return f"not run ({needed.facts['name']} {status})"
    return "not run"


def group(rows: list[Row], column: str, order: Callable[[set[str]], list[str]]) -> list[Row]:
    """Counts and times by category or scope."""
    groups = []
    for name in order({row[column] for row in rows}):
        members = [row for row in rows if row[column] == name]
        used = sum(row["used"] for row in members)
        seconds = sum(row["total_seconds"] for row in members)
        usage = percent(used, len(members))
        groups.append({"name": name, "count": len(members), "used": used, "used_percent": usage, "seconds": seconds})
    return groups


def top(rows: list[Row], column: str, minimum: float) -> list[Row]:
    """The rows with the largest values of a column above `minimum`."""
    measured = [row for row in rows if (row[column] or 0) > minimum]
    measured.sort(key=lambda row: -row[column])
    return [{"name": row["name"], column: row[column], "category": row["category"]} for row in measured[:TOP]]


def targets(rows: list[Row], session_seconds: float) -> list[Row]:
    """The fixtures whose setups and teardowns take most of the session.

    `saving_seconds` is the time that session scope would save: all setups but one for each
    parameter.
    """
    found = []
    for row in sorted(rows, key=lambda row: -row["total_seconds"]):
        share = row["total_seconds"] / session_seconds if session_seconds > 0 else 0.0
        if share < MIN_SHARE or len(found) == MAX_TARGETS:
            break
        distinct = max(len(row["params"]), 1)
        repeated = max(row["setups"] - distinct, 0) if row["scope"] != "session" else 0
        saving = row["total_seconds"] * repeated / row["setups"] if row["setups"] else 0.0
        names = ("name", "uses", "setups", "scope", "category", "total_seconds")
        found.append({**{name: row[name] for name in names}, "share": share, "saving_seconds": saving})
    return found


def percent(part: int, whole: int) -> float:
    """`part` in percent of `whole`."""
    return 100.0 * part / whole if whole else 0.0
