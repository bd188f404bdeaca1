"""numpy's functions of values: those that a value has itself are recorded, the others refused by name."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .errors import RecordError

_OWN: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "matmul": operator.matmul,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "invert": operator.invert,
    "negative": operator.neg,
    "absolute": operator.abs,
    **{name: operator.methodcaller(name) for name in ("exp", "log", "sqrt", "square", "sign", "tanh")},
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
}
"""What numpy's functions are for values."""


def own(ufunc: Any, method: str, options: dict[str, Any]) -> Callable[..., Any]:
    """What a function of numpy is for values."""
    found = _OWN.get(ufunc.__name__)
    if found is None or method != "__call__" or options:
        called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        given = f" with {', '.join(options)}" if options else ""
        raise RecordError(
            f"numpy's {called}{given} is not recorded",
            "use the value's own methods, or t.call with a function of arrays; after the block take .value",
        )
    return found
