"""The memory that calls may take."""

from __future__ import annotations

from . import _core
from .errors import InputError


def set_memory_limit(limit: str) -> None:
    """Sets the memory that later loads, runs and generations of this process may take.

    A call that would need more is refused before it allocates anything. The default is the
    environment variable `PELLUCID_MEMORY_LIMIT`, else 90 % of the available memory.

    Args:
        limit: A share of the memory that is available when a call starts (`"80%"`), a size of the
            whole process (`"12GB"`), or `"none"`.
    """
    if not isinstance(limit, str):
        raise InputError(f"{limit!r} is not a memory limit", 'write a text: "80%", "12GB" or "none"')
    _core.set_memory_limit(limit)
