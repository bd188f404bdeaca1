"""The report as one HTML file without external resources; tables sort by a click on a heading."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from .markdown import MAX_PARAMS, NO_VALUE, describe_session, describe_target, megabytes, times

Row = dict[str, Any]

STYLE = Path(__file__).with_name("page.css")

STATUS_CLASSES = {"ok": "good", "failed": "bad", "teardown failed": "bad", "unused": "quiet"}

SORT = """
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.ariaSort === "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.ariaSort = up ? "ascending" : "descending";
    const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => isNaN(a) || isNaN(b) ? b.localeCompare(a) : b - a;
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(value(a), value(b)) * (up ? -1 : 1));
    table.tBodies[0].append(...rows);
  }));
}
"""


def render(report: dict[str, Any]) -> str:
    """The whole page."""
    session, summary, fixtures = report["session"], report["summary"], report["fixtures"]
    body = [
        "<h1>Fixture Benchmark Report</h1>",
        f'<p class="quiet">{escape(describe_session(session))}<br>{escape(session["generated"])} · '
        f"Python {escape(session['python'])} · pytest {escape(session['pytest'])} · {escape(session['platform'])} · "
        f"memory: {escape(session['memory'])} · GPU: {escape(session['gpu'] or 'none')}</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in session["notes"]),
        "<h2>Summary Statistics</h2>",
        cards(summary),
        '<div class="columns">',
        *groups(summary),
        "</div>",
        "<h2>Detailed Fixture Analysis</h2>",
        '<p class="quiet">Init and teardown times are means over setups and exclude other fixtures; With Deps adds '
        "the init times of all fixtures that this one needs. Memory columns have the largest change by one setup; "
        "1 MB is 10⁶ bytes.</p>",
        details(fixtures),
        parameters(fixtures),
        problems(fixtures),
        "<h2>Performance Insights</h2>",
        '<div class="columns">',
        ranking("Slowest Fixtures", report["slowest"], "init_seconds", duration),
        ranking("Most Memory Intensive", report["most_memory"], "memory_bytes", lambda size: f"{megabytes(size)} MB"),
        "</div>",
        "<h2>Optimization Recommendations</h2>",
        targets(report["targets"]),
        unused(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Fixture Benchmark Report</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n"
        + "\n".join(part for part in body if part)
        + f"\n<script>{SORT}</script>\n</html>\n"
    )


def cards(summary: dict[str, Any]) -> str:
    """The totals."""
    values = [
        (summary["fixtures"], "Total Fixtures"),
        (f"{summary['used']} ({summary['used_percent']:.1f}%)", "Used Fixtures"),
        (summary["unused"], "Unused Fixtures"),
        (duration(summary["setup_seconds"]), "Time in Setup"),
        (duration(summary["teardown_seconds"]), "Time in Teardown"),
    ]
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{escape(str(value))}</b><span>{name}</span></div>' for value, name in values)
        + "</div>"
    )


def groups(summary: dict[str, Any]) -> Iterable[str]:
    """The tables by category and by scope."""
    for title, name, key in (("By Category", "Category", "by_category"), ("By Scope", "Scope", "by_scope")):
        longest = max((row["seconds"] for row in summary[key]), default=0.0)
        rows = [
            [
                cell(row["name"], "text"),
                number(row["count"]),
                number(row["used"]),
                number(f"{row['used_percent']:.1f}%", row["used_percent"]),
                number(duration(row["seconds"]), row["seconds"], longest),
            ]
            for row in summary[key]
        ]
        yield f"<div><h3>{title}</h3>{table([name, 'Count', 'Used', 'Usage %', 'Time'], rows)}</div>"


def details(fixtures: list[Row]) -> str:
    """The table of all fixtures."""
    columns = ["Fixture Name", "Uses", "Setups", "Type", "Scope", "Category", "Init Time", "With Deps", "Teardown"]
    columns += ["Memory Δ (MB)", "Peak Δ (MB)", "GPU Δ (MB)", "Status"]
    slowest = max((row["init_seconds"] or 0.0 for row in fixtures), default=0.0)
    largest = max((row["memory_bytes"] or 0 for row in fixtures), default=0)
    rows = []
    for row in fixtures:
        teardown = row["teardown_seconds"] / row["setups"] if row["setups"] else None
        status = row["status"]
        status_class = STATUS_CLASSES.get(status.split(" (")[0], "warn")
        rows.append(
            [
                f'<td class="name"><b>{escape(row["name"])}</b><small>{escape(row["location"])}</small></td>',
                number(row["uses"]),
                number(row["setups"]),
                cell(row["type"], "text"),
                cell(row["scope"]),
                cell(row["category"], "text"),
                number(duration(row["init_seconds"]), row["init_seconds"], slowest),
                number(duration(row["with_dependencies_seconds"]), row["with_dependencies_seconds"]),
                number(duration(teardown), teardown),
                number(megabytes(row["memory_bytes"]), row["memory_bytes"], largest),
                number(megabytes(row["peak_bytes"]), row["peak_bytes"]),
                number(megabytes(row["gpu_bytes"]), row["gpu_bytes"]),
                cell(status, f"text {status_class}"),
            ]
        )
    return table(columns, rows)


def parameters(fixtures: list[Row]) -> str:
    """The slowest parameters of parametrized fixtures."""
    found = [(row, param) for row in fixtures for param in row["params"]]
    if not found:
        return ""
    found.sort(key=lambda pair: -pair[1]["init_seconds"])
    slowest = found[0][1]["init_seconds"]
    rows = [
        [
            f'<td class="name"><b>{escape(row["name"])}</b></td>',
            cell(param["id"], "text"),
            number(param["setups"]),
            number(duration(param["init_seconds"]), param["init_seconds"], slowest),
            number(megabytes(param["memory_bytes"]), param["memory_bytes"]),
            number(megabytes(param["peak_bytes"]), param["peak_bytes"]),
        ]
        for row, param in found[:MAX_PARAMS]
    ]
    columns = ["Fixture Name", "Parameter", "Setups", "Init Time", "Memory Δ (MB)", "Peak Δ (MB)"]
    more = f'<p class="quiet">… and {len(found) - MAX_PARAMS} faster ones</p>' if len(found) > MAX_PARAMS else ""
    return f"<h3>By Parameter</h3>{table(columns, rows)}{more}"


def problems(fixtures: list[Row]) -> str:
    """Messages of failed, skipped and interrupted setups and teardowns."""
    items = [
        f"<code>{escape(row['name'])}</code> {escape(problem['status'])}{times(problem['count'])}: "
        f'{escape(problem["message"])}; <span class="quiet">first in {escape(problem["test"])}</span>'
        for row in fixtures
        for problem in row["problems"]
    ]
    return f"<h3>Failed and Skipped</h3>{bullets(items)}" if items else ""


def ranking(title: str, rows: list[Row], column: str, text: Any) -> str:
    """The largest values of a column."""
    items = [
        f'<code>{escape(row["name"])}</code> {text(row[column])} <span class="quiet">({escape(row["category"])})</span>'
        for row in rows
    ]
    return f"<div><h3>{title} (Top {len(items)})</h3>{bullets(items) or '<p>None.</p>'}</div>"


def targets(rows: list[Row]) -> str:
    """The fixtures that take most of the session."""
    items = [f"<code>{escape(row['name'])}</code> {escape(describe_target(row))}" for row in rows]
    text = "Setup and teardown of these fixtures take at least 1 % of the session:"
    none = "<p>No fixture takes 1 % of the session.</p>"
    return f"<h3>High-Impact Optimization Targets</h3>{f'<p>{text}</p>{bullets(items)}' if items else none}"


def unused(report: dict[str, Any]) -> str:
    """The fixtures that no collected test uses."""
    items = [
        f'<code>{escape(row["name"])}</code> <span class="quiet">{escape(row["category"])}, {escape(row["scope"])} '
        f"scope, {escape(row['location'])}</span>"
        for row in report["fixtures"]
        if not row["used"]
    ]
    if not items:
        return ""
    text = f"Found {len(items)} fixtures that none of the {report['session']['tests']} collected tests use:"
    return f"<h3>Unused Fixtures Consider for Removal</h3><p>{text}</p>{bullets(items)}"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A table of finished cells. A heading is aligned like the cells below it."""
    samples = rows[0] if rows else [""] * len(columns)
    classes = ["number" if sample.startswith('<td class="number') else "" for sample in samples]
    head = "".join(
        f'<th scope="col" class="{css_class}"><button>{escape(column)}</button></th>'
        for column, css_class in zip(columns, classes, strict=True)
    )
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def bullets(items: list[str]) -> str:
    """A list of finished items."""
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def cell(text: Any, css_class: str = "") -> str:
    """A cell of text."""
    return f'<td class="{css_class}">{escape(str(text))}</td>'


def number(text: Any, value: float | None = None, largest: float = 0) -> str:
    """A right-aligned cell that sorts by its value, with a bar if the largest value is given."""
    is_missing = text == NO_VALUE
    sort_value = -1e300 if is_missing else text if value is None else value
    bar = ""
    if value is not None and value > 0 and largest > 0:
        bar = f' style="--share: {100 * value / largest:.1f}%"'
    return f'<td class="number{" bar" if bar else ""}" data-value="{sort_value}"{bar}>{escape(str(text))}</td>'


def duration(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return NO_VALUE
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
