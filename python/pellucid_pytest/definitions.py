"""Facts about fixture definitions: where, which scope, which category.

A fixture is identified across processes by a key: its name, scope and place in the source. Classes
that inherit a fixture have definitions of their own in pytest, which share a key.
"""

from __future__ import annotations

import inspect
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import CATEGORIES_INI, CATEGORY_ATTRIBUTE

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureDef

XUNIT_PREFIXES = ("_xunit_", "_unittest_")
"""Names that pytest gives to `setup_module`, `setUpClass` and the like, which it runs as fixtures."""


class Definitions:
    """Keys of fixture definitions, and the facts of each key."""

    def __init__(self, config: pytest.Config) -> None:
        self.root = config.rootpath
        self.categories = parse_categories(config.getini(CATEGORIES_INI))
        self.facts: dict[str, dict[str, Any]] = {}
        self.autouse_names: set[str] = set()
        self.paths: dict[str, str | None] = {}
        self.keys: dict[FixtureDef[Any], str | None] = {}

    def key(self, fixturedef: FixtureDef[Any]) -> str | None:
        """The key of a definition; None for an argument of `parametrize`, which pytest also
        implements as a fixture.
        """
        try:
            return self.keys[fixturedef]
        except KeyError:
            key = self.keys[fixturedef] = self._add(fixturedef)
            return key

    def _add(self, fixturedef: FixtureDef[Any]) -> str | None:
        function = inspect.unwrap(fixturedef.func)
        module = getattr(function, "__module__", None) or ""
        if module == "_pytest.python" and function.__name__.startswith("get_direct_param"):
            return None
        path, line = self._location(function)
        is_xunit = fixturedef.argname.startswith(XUNIT_PREFIXES)
        if is_xunit:
            path, line = fixturedef.baseid, 0
        is_project = is_xunit or path is not None
        place = path if path is not None else module
        location = f"{place}:{line}" if line else place
        facts = {
            "name": fixturedef.argname,
            "location": location,
            "scope": fixturedef.scope,
            "category": self._category(fixturedef, function, module, path, is_xunit),
            "kind": kind_of(function),
            "params": len(fixturedef.params or ()),
            "autouse": bool(getattr(fixturedef, "_autouse", False)) or fixturedef.argname in self.autouse_names,
            "project": is_project,
        }
        key = f"{fixturedef.argname} {facts['scope']} {location}"
        self.facts.setdefault(key, facts)
        return key

    def _location(self, function: Any) -> tuple[str | None, int]:
        """The file below the project's root that defines a function, or None, and the line."""
        code = getattr(function, "__code__", None)
        if code is None:
            return None, 0
        file = code.co_filename
        if file not in self.paths:
            self.paths[file] = project_path(file, self.root)
        return self.paths[file], code.co_firstlineno

    def _category(
        self, fixturedef: FixtureDef[Any], function: Any, module: str, path: str | None, is_xunit: bool
    ) -> str:
        chosen = getattr(function, CATEGORY_ATTRIBUTE, None)
        if chosen is not None:
            return str(chosen)
        for name, patterns in self.categories:
            for pattern in patterns:
                subject = path or "" if "/" in pattern else fixturedef.argname
                if fnmatchcase(subject, pattern):
                    return name
        if is_xunit:
            return "xUnit setup"
        if path is None:
            package = module.split(".")[0]
            return "pytest" if package == "_pytest" else f"Plugin {package}"
        if path.rsplit("/", 1)[-1] == "conftest.py":
            return "Project conftest"
        is_test_module = fixturedef.baseid.split("::")[0] == path
        return "Test module" if is_test_module else "Project module"


def project_path(file: str, root: Path) -> str | None:
    """The path of a file relative to the project's root, or None for a file of another project."""
    try:
        path = Path(file).relative_to(root)
    except ValueError:
        return None
    # A virtual environment may lie inside the project.
    return None if "site-packages" in path.parts else path.as_posix()


def parse_categories(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Categories with their patterns, in the order of the ini key."""
    categories = []
    for line in lines:
        name, equals, patterns = line.partition("=")
        if not equals or not name.strip() or not patterns.split():
            raise pytest.UsageError(
                f"{CATEGORIES_INI}: cannot read the line `{line}`\n\nhint: write `Category = pattern pattern …`, "
                "for example `Real Model = gpt2* llama*` or `Data = tests/data/*`"
            )
        categories.append((name.strip(), patterns.split()))
    return categories


def kind_of(function: Any) -> str:
    """How a fixture function provides its value."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & inspect.CO_ASYNC_GENERATOR:
        return "async yield"
    if flags & inspect.CO_COROUTINE:
        return "async"
    return "yield" if flags & inspect.CO_GENERATOR else "return"


def param_id(fixturedef: FixtureDef[Any], request: Any) -> str | None:
    """The id of the parameter of a setup, as pytest shows it, or None for a plain fixture."""
    if not hasattr(request, "param"):
        return None
    param, index = request.param, request.param_index
    ids = fixturedef.ids
    if isinstance(ids, tuple | list) and index < len(ids) and ids[index] is not None:
        return str(ids[index])
    if param is None or isinstance(param, str | int | float | bool):
        return str(param)
    name = getattr(param, "__name__", None)
    return name if isinstance(name, str) else f"{fixturedef.argname}{index}"
