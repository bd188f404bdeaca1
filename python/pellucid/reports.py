"""Warnings about the results of a run."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parent)


def warn_nan(report: Any) -> None:
    """Warns that a result has NaN, and says where NaN first appears."""
    if report is None:
        return
    result, origin = report
    if origin is None:
        began = "all activations are numbers, or could not be checked: look at the recorded computation"
    else:
        site, row, position, infinite = origin
        began = f"it first appears at `{site}`, row {row}, position {position}"
        if infinite is not None:
            began += f", after infinite values at `{infinite}`"
    warnings.warn(
        f"{result} has NaN; {began}. An edit may be too large; allow_nan=True silences this.",
        RuntimeWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    """The `stacklevel` of the first frame outside this package, as seen from the caller's
    `warnings.warn`.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
