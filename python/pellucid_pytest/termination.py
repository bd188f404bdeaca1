"""Calls a function before the process ends by SIGTERM, as `timeout 60 pytest` or a CI job sends it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class TerminationHandler:
    """A handler of SIGTERM that runs a function, then lets the signal end the process.

    Python drops a signal that reaches a forked child before it has started, and a child must not
    write the report of its parent. So the default action is in place whenever the process forks.
    """

    def __init__(self, before_end: Callable[[], None]) -> None:
        self.before_end = before_end
        self.process = os.getpid()
        self.is_installed = False
        self.is_suspended = False

    def install(self) -> None:
        """Installs the handler, unless the project has its own or this is not the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        signal.signal(signal.SIGTERM, self.terminate)
        self.is_installed = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._suspend, after_in_parent=self._resume)

    def remove(self) -> None:
        """Restores the default action, unless a test has replaced the handler."""
        self._suspend()
        self.is_installed = False

    def _suspend(self) -> None:
        if self.is_installed and signal.getsignal(signal.SIGTERM) == self.terminate:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self.is_suspended = True

    def _resume(self) -> None:
        if self.is_installed and self.is_suspended:
            signal.signal(signal.SIGTERM, self.terminate)
            self.is_suspended = False

    def terminate(self, number: int, _frame: FrameType | None) -> None:
        """Handles the signal."""
        # A child that another thread has forked inherits the handler.
        if os.getpid() == self.process:
            self.before_end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
