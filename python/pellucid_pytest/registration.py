"""Registers the plugins of a session: the recorder where tests run, the reporter where the report is
written. With pytest-xdist these are different processes.
"""

from __future__ import annotations

import pytest

from .distribution import Receiver, Sender, is_worker
from .memory import Memory
from .outputs import parse_outputs
from .recorder import Recorder
from .reporter import Reporter

MIN_PYTEST = (8, 0)


def register(config: pytest.Config) -> None:
    """Registers the plugins that this process needs."""
    if pytest.version_tuple[:2] < MIN_PYTEST:
        raise pytest.UsageError(
            f"--pellucid-fixtures needs pytest {MIN_PYTEST[0]} or later, this is {pytest.__version__}\n\n"
            "hint: pip install --upgrade pytest"
        )
    plugins = config.pluginmanager
    if is_worker(config):
        sender = Sender(config)
        plugins.register(sender, "pellucid-fixture-sender")
        plugins.register(Recorder(config, Memory(), sender.events.append), "pellucid-fixture-recorder")
        return
    outputs = parse_outputs(config.getoption("--pellucid-fixtures"), config.invocation_params.dir)
    memory = Memory()
    reporter = Reporter(outputs, memory.source)
    plugins.register(Recorder(config, memory, reporter.add), "pellucid-fixture-recorder")
    plugins.register(reporter, "pellucid-fixture-reporter")
    plugins.register(Receiver(reporter), "pellucid-fixture-receiver")
