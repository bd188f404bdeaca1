"""Native classes whose methods are written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def methods_of(native: type) -> Callable[[Class], Class]:
    """A decorator that gives what a class defines to the native class it inherits, which then takes its name.

    The engine makes the objects itself. Were they of a Python subclass, each would cost a call of that class, and a block makes one for
    every site that it touches.
    """

    def give(written: Class) -> Class:
        for name, member in vars(written).items():
            if name not in ("__slots__", "__qualname__"):
                setattr(native, name, member)
        return native  # type: ignore[return-value]

    return give
