"""Which fixtures the collected tests use, directly or through other fixtures.

Pytest has no public interface for this; the attributes read here exist in pytest 8 and 9.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from .definitions import Definitions

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureDef

Closure = dict["FixtureDef[Any]", list["FixtureDef[Any]"]]
"""The definitions that a test uses, each with those that it requests by argument."""


class Uses:
    """Closures of fixtures by test."""

    def __init__(self) -> None:
        # Tests of one function share an info object, so its id is the key; the items keep it alive.
        self.closures: dict[int, Closure] = {}

    def closure(self, item: pytest.Item) -> Closure:
        """The definitions that a test uses according to its arguments, markers and autouse."""
        info = getattr(item, "_fixtureinfo", None)
        if info is None:
            return {}
        closure = self.closures.get(id(info))
        if closure is None:
            closure = self.closures[id(info)] = find_closure(info.initialnames, info.name2fixturedefs)
        return closure

    def count(self, items: list[pytest.Item], definitions: Definitions) -> dict[str, Any]:
        """Number of tests by fixture key, and the keys that each fixture requests."""
        uses: Counter[str] = Counter()
        dependencies: dict[str, set[str]] = {}
        for item in items:
            closure = self.closure(item)
            uses.update({key for fixturedef in closure if (key := definitions.key(fixturedef)) is not None})
        for closure in self.closures.values():
            for fixturedef, requested in closure.items():
                key = definitions.key(fixturedef)
                if key is not None:
                    keys = {definitions.key(other) for other in requested}
                    dependencies.setdefault(key, set()).update(other for other in keys if other is not None)
        return {"uses": dict(uses), "dependencies": {key: sorted(keys) for key, keys in dependencies.items()}}

    def dynamic(self, item: pytest.Item) -> list[FixtureDef[Any]]:
        """The definitions that a test has requested with `getfixturevalue` so far."""
        requested = getattr(getattr(item, "_request", None), "_fixture_defs", None)
        if not requested:
            return []
        closure = self.closure(item)
        return [fixturedef for fixturedef in requested.values() if fixturedef not in closure]


def find_closure(names: tuple[str, ...], visible: dict[str, Any]) -> Closure:
    """Follows arguments from fixture to fixture.

    A fixture that overrides another of its name, and requests that name, gets the overridden one:
    the definition at the depth at which the name occurs in the chain of requests.
    """
    closure: Closure = {}

    def visit(name: str, chain: tuple[str, ...]) -> FixtureDef[Any] | None:
        candidates = visible.get(name) or ()
        depth = chain.count(name)
        if depth >= len(candidates):
            return None
        fixturedef = candidates[-1 - depth]
        if fixturedef not in closure:
            requested = closure[fixturedef] = []
            for argument in fixturedef.argnames:
                other = visit(argument, (*chain, name))
                if other is not None:
                    requested.append(other)
        return fixturedef

    for name in names:
        visit(name, ())
    return closure


def all_definitions(session: pytest.Session) -> list[FixtureDef[Any]]:
    """Every fixture that the collected modules, conftest files and plugins define."""
    manager = session._fixturemanager
    if hasattr(manager, "_get_all_fixture_defs"):
        return list(manager._get_all_fixture_defs())
    return [fixturedef for named in manager._arg2fixturedefs.values() for fixturedef in named]


def autouse_names(session: pytest.Session) -> set[str]:
    """Names of autouse fixtures."""
    manager = session._fixturemanager
    by_node = [getattr(manager, name, {}) for name in ("_node_autousenames", "_nodeid_autousenames")]
    return {name for names_of in by_node for names in names_of.values() for name in names}
