"""HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table with a header row."""
    line = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{line}</tr></thead><tbody>{body}</tbody></table>"


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """A title and a two-column table of names and values."""
    lines = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in pairs
    )
    return f"<div><b>{escape(title)}</b><table>{lines}</table></div>"


def array_stats(array: np.ndarray) -> tuple[str, str, str]:
    """Shape, mean and standard deviation (of the finite elements) of an array, as strings."""
    shape = "[" + ", ".join(str(length) for length in array.shape) + "]"
    finite = array[np.isfinite(array)]
    if finite.size == 0:
        return shape, "-", "-"
    return shape, f"{finite.mean():.4g}", f"{finite.std():.4g}"
