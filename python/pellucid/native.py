"""Attaches Python methods to native classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def methods_of(native: type) -> Callable[[Class], Class]:
    """Decorator: copies the members of a class to `native`, its base class, and returns `native`.

    The decorated class itself is never instantiated. Rust creates the objects directly: a trace
    creates one per site access, and instantiating a Python subclass would cost about 1 µs each.
    """

    def attach(methods: Class) -> Class:
        for name, member in vars(methods).items():
            if name not in ("__slots__", "__qualname__"):
                setattr(native, name, member)
        return native  # type: ignore[return-value]

    return attach
