"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]

MAX_UNUSED = 30
MAX_PARAMS = 30
NO_VALUE = "-"
ESCAPES = str.maketrans({**{character: f"\\{character}" for character in "\\|*<`"}, "\n": " ", "\r": " "})

STATUS_MARKS = {
    "ok": "✅",
    "failed": "❌",
    "teardown failed": "❌",
    "skipped": "⏭️",
    "interrupted": "⏹️",
    "running": "⏳",
}


def render(report: dict[str, Any]) -> str:
    """The whole page."""
    parts = [header(report), statistics(report["summary"]), details(report["fixtures"])]
    parts += [parameters(report["fixtures"]), problems(report["fixtures"]), insights(report), advice(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(report: dict[str, Any]) -> str:
    """Title and facts of the session."""
    session, summary = report["session"], report["summary"]
    facts = [
        ("Generated", session["generated"]),
        ("Session", describe_session(session)),
        ("Python", f"{session['python']}, pytest {session['pytest']}, {session['platform']}"),
        ("Memory", session["memory"]),
        ("GPU Available", str(session["gpu"] is not None)),
    ]
    if session["gpu"] is not None:
        facts.append(("GPU Device", session["gpu"]))
    facts.append(("Total Fixtures Analyzed", str(summary["fixtures"])))
    # Two spaces at the end break the line.
    lines = [f"**{name}:** {escape(value)}" for name, value in facts]
    notes = "".join(f"\n\n> **Note:** {escape(note)}" for note in session["notes"])
    return "# Fixture Benchmark Report\n\n" + "  \n".join(lines) + notes


def describe_session(session: dict[str, Any]) -> str:
    """Tests, time and end of a session in one line."""
    deselected = f" ({session['deselected']} deselected)" if session["deselected"] else ""
    workers = f" on {session['workers']} workers" if session["workers"] else ""
    return f"{session['tests']} tests{deselected}{workers}, {seconds(session['seconds'])} s, {session['ended']}"


def statistics(summary: dict[str, Any]) -> str:
    """Counts, by category and by scope."""
    lines = [
        "## Summary Statistics",
        "",
        f"- **Total Fixtures:** {summary['fixtures']}",
        f"- **Used Fixtures:** {summary['used']} ({summary['used_percent']:.1f}%)",
        f"- **Unused Fixtures:** {summary['unused']}",
        f"- **Time in Setup:** {seconds(summary['setup_seconds'])} s",
        f"- **Time in Teardown:** {seconds(summary['teardown_seconds'])} s",
    ]
    if summary["unused_plugin_fixtures"]:
        lines.append(f"- **Not Listed:** {summary['unused_plugin_fixtures']} unused fixtures of pytest and plugins")
    for title, name, key in (("By Category", "Category", "by_category"), ("By Scope", "Scope", "by_scope")):
        rows = [
            [escape(row["name"]), row["count"], row["used"], f"{row['used_percent']:.1f}%", seconds(row["seconds"])]
            for row in summary[key]
        ]
        lines += ["", f"### {title}", "", *table([name, "Count", "Used", "Usage %", "Time (s)"], rows)]
    return "\n".join(lines)


def details(fixtures: list[Row]) -> str:
    """The table of all fixtures."""
    columns = ["Fixture Name", "Uses", "Setups", "Type", "Scope", "Category", "Init Time (s)", "With Deps (s)"]
    columns += ["Teardown (s)", "Memory Δ (MB)", "Peak Δ (MB)", "GPU Δ (MB)", "Status"]
    rows = [
        [
            escape(row["name"]),
            row["uses"],
            row["setups"],
            row["type"],
            row["scope"],
            escape(row["category"]),
            seconds(row["init_seconds"]),
            seconds(row["with_dependencies_seconds"]),
            seconds(row["teardown_seconds"] / row["setups"]) if row["setups"] else NO_VALUE,
            megabytes(row["memory_bytes"]),
            megabytes(row["peak_bytes"]),
            megabytes(row["gpu_bytes"]),
            escape(status_text(row["status"])),
        ]
        for row in fixtures
    ]
    note = (
        "Init and teardown times are means over setups and exclude other fixtures; With Deps adds the init times of "
        "all fixtures that this one needs. Memory columns have the largest change by one setup; 1 MB is 10⁶ bytes."
    )
    return "\n".join(["## Detailed Fixture Analysis", "", note, "", *table(columns, rows)])


def parameters(fixtures: list[Row]) -> str:
    """The slowest parameters of parametrized fixtures."""
    found = [(row, param) for row in fixtures for param in row["params"]]
    if not found:
        return ""
    found.sort(key=lambda pair: -pair[1]["init_seconds"])
    columns = ["Fixture Name", "Parameter", "Setups", "Init Time (s)", "Memory Δ (MB)", "Peak Δ (MB)", "GPU Δ (MB)"]
    rows = [
        [escape(row["name"]), escape(param["id"]), param["setups"], seconds(param["init_seconds"])]
        + [megabytes(param[column]) for column in ("memory_bytes", "peak_bytes", "gpu_bytes")]
        for row, param in found[:MAX_PARAMS]
    ]
    lines = ["### By Parameter", "", *table(columns, rows)]
    if len(found) > MAX_PARAMS:
        lines += ["", f"… and {len(found) - MAX_PARAMS} faster ones"]
    return "\n".join(lines)


def problems(fixtures: list[Row]) -> str:
    """Messages of failed, skipped and interrupted setups and teardowns."""
    lines = [
        f"- **{escape(row['name'])}** ({escape(row['location'])}) {problem['status']}{times(problem['count'])}: "
        f"{escape(problem['message'])}; first in {escape(problem['test'])}"
        for row in fixtures
        for problem in row["problems"]
    ]
    return "\n".join(["### Failed and Skipped", "", *lines]) if lines else ""


def insights(report: dict[str, Any]) -> str:
    """The slowest fixtures and those with the most memory."""
    slow = [
        f"- **{escape(row['name'])}**: {seconds(row['init_seconds'])}s (Category: {escape(row['category'])})"
        for row in report["slowest"]
    ]
    large = [
        f"- **{escape(row['name'])}**: {megabytes(row['memory_bytes'])}MB (Category: {escape(row['category'])})"
        for row in report["most_memory"]
    ]
    lines = ["## Performance Insights", "", f"### Slowest Fixtures (Top {len(slow)})", ""]
    lines += slow or ["No fixture was set up."]
    lines += ["", f"### Most Memory Intensive (Top {len(large)})", ""]
    lines += large or ["No setup was seen to add memory."]
    return "\n".join(lines)


def advice(report: dict[str, Any]) -> str:
    """High-impact targets and unused fixtures."""
    lines = ["## Optimization Recommendations", "", "### High-Impact Optimization Targets", ""]
    if report["targets"]:
        lines += ["Setup and teardown of these fixtures take at least 1 % of the session:", ""]
        lines += [f"- **{escape(row['name'])}**: {escape(describe_target(row))}" for row in report["targets"]]
    else:
        lines.append("No fixture takes 1 % of the session.")
    unused = [row for row in report["fixtures"] if not row["used"]]
    if unused:
        session = report["session"]
        lines += ["", "### Unused Fixtures Consider for Removal", ""]
        lines.append(f"Found {len(unused)} fixtures that none of the {session['tests']} collected tests use:")
        lines.append("")
        lines += [
            f"- **{escape(row['name'])}**: {escape(row['category'])}, {row['scope']} scope, {escape(row['location'])}"
            for row in unused[:MAX_UNUSED]
        ]
        if len(unused) > MAX_UNUSED:
            lines.append(f"- ... and {len(unused) - MAX_UNUSED} more")
    return "\n".join(lines)


def describe_target(row: Row) -> str:
    """Cost of a fixture, and the time that a wider scope would save."""
    text = (
        f"{seconds(row['total_seconds'])} s, {100 * row['share']:.0f}% of the session; {row['uses']} uses, "
        f"{row['setups']} setups, {row['scope']} scope, {row['category']}"
    )
    if row["saving_seconds"] >= row["total_seconds"] / 2:
        text += f"; session scope would save {seconds(row['saving_seconds'])} s if tests do not change its value"
    return text


def status_text(status: str) -> str:
    """A status with its mark."""
    mark = STATUS_MARKS.get(status.split(" (")[0])
    return f"{mark} {status}" if mark else status


def table(columns: list[str], rows: Iterable[list[Any]]) -> list[str]:
    """Lines of a table; its cells are escaped where they need it."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join("-" * (len(column) + 2) for column in columns) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def escape(text: Any) -> str:
    """Text in one line, in which Markdown finds no markup."""
    return str(text).translate(ESCAPES)


def times(count: int) -> str:
    """` 3 times`, or nothing for once."""
    return f" {count} times" if count > 1 else ""


def seconds(value: float | None) -> str:
    """Seconds with three decimals, with six below a millisecond."""
    if value is None:
        return NO_VALUE
    return f"{value:.6f}" if 0 < value < 1e-3 else f"{value:.3f}"


def megabytes(value: int | None) -> str:
    """Bytes as megabytes with one decimal, without a negative zero."""
    if value is None:
        return NO_VALUE
    text = f"{value / 1e6:.1f}"
    return "0.0" if text == "-0.0" else text
