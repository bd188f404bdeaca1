"""Exceptions of the package. Each has the problem, its site if known, and a hint."""

from __future__ import annotations


class Error(Exception):
    """Base class of the package's exceptions.

    Attributes:
        problem: The problem.
        hint: How to fix it, if known.
        tap: Index of the tap in the plan, for errors about a tap.
        site: The site as the caller wrote it, for errors about a site.
    """

    def __init__(
        self, problem: str, hint: str | None = None, *, tap: int | None = None, site: str | None = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.tap = tap
        self.site = site

    def __str__(self) -> str:
        named = self.site is None or self.problem.startswith(f"`{self.site}`")
        prefix = "" if named else f"`{self.site}`: "
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{prefix}{self.problem}{hint}"


class SiteError(Error, AttributeError):
    """A site, point, layer or pattern that this model does not have."""


class PlanError(Error, ValueError):
    """An invalid plan: an index out of range, mismatched shapes, values in a cyclic dependency."""


class InputError(Error, ValueError):
    """Invalid prompts, tokens or options."""


class LoadError(Error, OSError):
    """A model that cannot be found, read or supported."""


class ServerError(Error, ConnectionError):
    """A server that cannot be reached, refuses the call, stops, or is of another version."""


class RecordError(Error, RuntimeError):
    """A block used wrongly: outside `with`, before it has run, or after it failed."""


class Interrupted(Error, RuntimeError):
    """A run that was interrupted. Ctrl-C raises `KeyboardInterrupt` instead."""


class NotCaptured(Error, KeyError):
    """An activation that a run did not capture or cache."""


class InternalError(Error, RuntimeError):
    """A bug of this package, such as a panic of the engine. The process and its models still work."""


class MissingAttribute(Error, AttributeError):
    """An attribute that a model, a block or a value does not have."""
