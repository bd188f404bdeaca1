"""A pytest plugin that measures fixtures: `pytest --pellucid-fixtures=report.md`.

Pytest imports every installed plugin at startup, in every project. So this module imports nothing
but the standard library, and the modules next to it only if the option is given. It is a package of
its own because importing anything below `pellucid` loads the engine and numpy. docs/fixtures.md is
the guide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pytest

__all__ = ["category"]

CATEGORY_ATTRIBUTE = "pellucid_fixture_category"
CATEGORIES_INI = "pellucid_fixture_categories"

Function = TypeVar("Function", bound=Callable[..., Any])


def category(name: str) -> Callable[[Function], Function]:
    """Sets the category of a fixture in the report; write it below `@pytest.fixture`.

    ```python
    @pytest.fixture(scope="session")
    @pellucid_pytest.category("Real Model")
    def gpt2(): ...
    ```
    """

    def set_category(function: Function) -> Function:
        setattr(function, CATEGORY_ATTRIBUTE, name)
        return function

    return set_category


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option and the ini key."""
    group = parser.getgroup("pellucid", "time and memory of fixtures")
    group.addoption(
        "--pellucid-fixtures",
        action="append",
        default=[],
        metavar="FILE",
        help="Measure every fixture (time, memory, uses) and write a report. The extension selects the format: "
        ".md, .json or .html. May be given several times.",
    )
    parser.addini(
        CATEGORIES_INI,
        "Categories of fixtures in the report, one per line: `Category = pattern pattern …`. A pattern with a slash "
        "matches the path of the file that defines the fixture, any other the fixture's name.",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the measuring plugins if a report is requested."""
    if config.getoption("--pellucid-fixtures"):
        from .registration import register

        register(config)
