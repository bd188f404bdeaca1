"""A progress bar on one line of stderr."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Shows phases and progress on one line of stderr, and keeps notes."""

    def __init__(self, shown: bool, phase: str = "") -> None:
        self.shown = shown
        self.notes: list[str] = []
        self._phase = phase

    def watch(self, kind: str, value: Any) -> None:
        """Receives an event: `phase`, `progress` or `note`."""
        if kind == "note":
            self.notes.append(value)
            return
        if kind == "phase":
            self._phase = value
            value = 0.0
        if self.shown:
            filled = int(30 * value)
            sys.stderr.write(f"\r{self._phase:8} [{'━' * filled}{' ' * (30 - filled)}] {100 * value:3.0f}%")
            sys.stderr.flush()

    def end(self) -> None:
        """Clears the line."""
        if self.shown:
            sys.stderr.write("\r" + " " * 60 + "\r")
            sys.stderr.flush()
