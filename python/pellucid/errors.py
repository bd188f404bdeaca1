"""What can go wrong. Every error says what the problem is, where, and what to do about it."""

from __future__ import annotations


class Error(Exception):
    """The root of all errors of this package.

    Attributes:
        problem: What is wrong.
        hint: What to do about it, where there is something to say.
        tap: The number of the tap in the plan, where it is about one.
        site: The site as it was written, where it is about one.
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
        place = "" if named else f"`{self.site}`: "
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{place}{self.problem}{hint}"


class SiteError(Error, AttributeError):
    """A site, point, layer or pattern that this model does not have."""


class PlanError(Error, ValueError):
    """A plan that cannot work: a selection that does not exist, shapes that do not fit, values that wait for each other."""


class InputError(Error, ValueError):
    """Prompts, tokens or options that the model cannot take."""


class LoadError(Error, OSError):
    """A model that cannot be found, read or run."""


class RecordError(Error, RuntimeError):
    """Something that does not go at this place of a block, or before its end, or after it failed."""


class Interrupted(Error, RuntimeError):
    """A run that was stopped from outside. Ctrl-C itself arrives as `KeyboardInterrupt`."""
