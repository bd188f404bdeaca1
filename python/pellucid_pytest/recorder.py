"""Measures setups and teardowns in the process that runs the tests, and emits them as events.

Events are tuples of plain values, because workers of pytest-xdist send them to the controller:

    ("define", key, facts)
    ("collected", counts)
    ("start", key)
    ("setup", key, param, seconds, memory, peak, gpu, status, message, test, requested_by)
    ("teardown", key, seconds, status, message, test)
    ("dynamic", key)

Pytest sets up the fixtures that a fixture names as arguments before it calls the hook, so their time
is not inside. Fixtures requested in the body, with `getfixturevalue`, are: a stack of frames
subtracts their time and memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from .definitions import Definitions, param_id
from .memory import Memory, gpu_bytes
from .uses import Uses, all_definitions, autouse_names

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureDef, SubRequest

Emit = Callable[[tuple[Any, ...]], None]

MESSAGE_LENGTH = 200


class Frame:
    """A setup or teardown that is running."""

    __slots__ = ("base", "gpu", "key", "level", "mark", "nested_seconds", "param", "peak", "started", "test")

    def __init__(self, key: str, test: str) -> None:
        self.key = key
        self.test = test
        self.param: str | None = None
        self.nested_seconds = 0.0
        """Time of setups and teardowns inside this one, with the cost of measuring them."""
        self.level = 0
        """Memory at the start."""
        self.base = 0
        """Memory at the start plus the memory that nested setups have added."""
        self.mark = 0
        """High-water mark at the start of this part of the setup."""
        self.peak = 0
        """Largest amount of memory above `base` so far."""
        self.gpu: int | None = None
        self.started = 0.0

    def observe_peak(self, high_water: int) -> None:
        """Takes over the high-water mark of the part of the setup that ends now."""
        if high_water > self.mark:
            self.peak = max(self.peak, high_water - self.base)


class Recorder:
    """Hooks that measure fixtures."""

    def __init__(self, config: pytest.Config, memory: Memory, emit: Emit) -> None:
        self.memory = memory
        self.emit = emit
        # Held here because freezegun replaces `perf_counter` in all modules.
        self.clock = perf_counter
        self.definitions = Definitions(config)
        self.uses = Uses()
        self.setups: list[Frame] = []
        self.frames: list[Frame] = []
        self.deselected = 0
        self.defined: set[str] = set()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Counts tests that were collected but will not run."""
        self.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Emits all definitions and their uses."""
        self.definitions.autouse_names = autouse_names(session)
        for fixturedef in all_definitions(session):
            self.define(fixturedef)
        counts = self.uses.count(session.items, self.definitions)
        for key in self.definitions.facts:
            self._emit_definition(key)
        self.emit(("collected", {"tests": len(session.items), "deselected": self.deselected, **counts}))

    def define(self, fixturedef: FixtureDef[Any]) -> str | None:
        """Returns the key of a definition and emits its facts once."""
        key = self.definitions.key(fixturedef)
        if key is not None:
            self._emit_definition(key)
        return key

    def _emit_definition(self, key: str) -> None:
        if key not in self.defined:
            self.defined.add(key)
            self.emit(("define", key, self.definitions.facts[key]))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: FixtureDef[Any], request: SubRequest) -> Generator[None, Any, Any]:
        """Measures a setup."""
        entered = self.clock()
        key = self.define(fixturedef)
        if key is None:
            return (yield)
        frame = self._start_setup(key, fixturedef, request)
        error: BaseException | None = None
        try:
            return (yield)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end_setup(frame, entered, error)

    def _start_setup(self, key: str, fixturedef: FixtureDef[Any], request: SubRequest) -> Frame:
        frame = Frame(key, request._pyfuncitem.nodeid)
        frame.param = param_id(fixturedef, request)
        self._time_finalizers(key, fixturedef, frame.test)
        self.emit(("start", key))
        memory = self.memory
        if self.setups:
            self.setups[-1].observe_peak(memory.level_and_peak()[1])
        frame.gpu = gpu_bytes()
        self.setups.append(frame)
        self.frames.append(frame)
        frame.level, frame.mark = memory.start()
        frame.base = frame.level
        frame.started = self.clock()
        return frame

    def _end_setup(self, frame: Frame, entered: float, error: BaseException | None) -> None:
        seconds = self.clock() - frame.started - frame.nested_seconds
        memory = self.memory
        level, high_water = memory.level_and_peak()
        frame.observe_peak(high_water)
        gpu = gpu_bytes()
        self.setups.pop()
        self.frames.pop()
        requested_by = None
        if self.setups:
            outer = self.setups[-1]
            outer.base += level - frame.level
            outer.mark = memory.start()[1]
            requested_by = outer.key
        status, message = outcome(error)
        delta = level - frame.base
        self.emit(
            (
                "setup",
                frame.key,
                frame.param,
                seconds,
                delta if memory.has_rss else None,
                max(frame.peak, delta, 0) if memory.has_peak else None,
                None if gpu is None else gpu - (frame.gpu or 0),
                status,
                message,
                frame.test,
                requested_by,
            )
        )
        if self.frames:
            self.frames[-1].nested_seconds += self.clock() - entered

    def _time_finalizers(self, key: str, fixturedef: FixtureDef[Any], test: str) -> None:
        """Measures the finalizers that are added to a definition until it is torn down.

        No hook marks the start of a teardown, so this replaces `addfinalizer` on this one object.
        The teardown of a `yield` fixture is a finalizer too, also with pytest-asyncio.
        """
        add = type(fixturedef).addfinalizer

        def add_timed(finalizer: Callable[[], object]) -> None:
            # The teardown of a fixture that depends on this one has finalizers of its own.
            is_other_teardown = isinstance(finalizer, functools.partial) and isinstance(
                getattr(finalizer.func, "__self__", None), type(fixturedef)
            )
            timed = finalizer if is_other_teardown else functools.partial(self._finalize, key, test, finalizer)
            add(fixturedef, timed)

        fixturedef.addfinalizer = add_timed  # type: ignore[method-assign]

    def pytest_fixture_post_finalizer(self, fixturedef: FixtureDef[Any]) -> None:
        """Restores `addfinalizer`: pytest itself adds a finalizer before each setup."""
        vars(fixturedef).pop("addfinalizer", None)

    def _finalize(self, key: str, test: str, finalizer: Callable[[], object]) -> None:
        frame = Frame(key, test)
        self.frames.append(frame)
        error: BaseException | None = None
        frame.started = self.clock()
        try:
            finalizer()
        except BaseException as raised:
            error = raised
            raise
        finally:
            elapsed = self.clock() - frame.started
            self.frames.pop()
            status, message = outcome(error)
            self.emit(("teardown", key, elapsed - frame.nested_seconds, status, message, test))
            if self.frames:
                self.frames[-1].nested_seconds += self.clock() - frame.started

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Counts dynamic requests of a test, before pytest forgets them."""
        for fixturedef in self.uses.dynamic(item):
            key = self.define(fixturedef)
            if key is not None:
                self.emit(("dynamic", key))


def outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Status of a setup or teardown, and its message in one line."""
    if error is None:
        return "ok", None
    if isinstance(error, KeyboardInterrupt | pytest.exit.Exception):
        status = "interrupted"
    elif isinstance(error, pytest.skip.Exception) or type(error).__name__ == "SkipTest":
        status = "skipped"
    else:
        status = "failed"
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # a broken `__str__` of a user's class
        lines = []
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return status, text[:MESSAGE_LENGTH]
