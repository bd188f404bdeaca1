"""Small tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of texts."""
    line = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{line}</tr></thead><tbody>{body}</tbody></table>"


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """A title and what is to be said of it."""
    lines = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td style='text-align:left'>{escape(str(what))}</td></tr>"
        for name, what in pairs
    )
    return f"<div><b>{escape(title)}</b><table>{lines}</table></div>"


def numbers(array: np.ndarray) -> tuple[str, str, str]:
    """Shape, mean and deviation of an array, as texts."""
    shape = "[" + ", ".join(str(length) for length in array.shape) + "]"
    finite = array[np.isfinite(array)]
    if finite.size == 0:
        return shape, "-", "-"
    return shape, f"{finite.mean():.4g}", f"{finite.std():.4g}"
