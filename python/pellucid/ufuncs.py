"""numpy ufuncs of values: those with a `Value` equivalent are recorded, all others raise."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .errors import RecordError

_RECORDED: dict[str, Callable[..., Any]] = {
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
"""numpy ufunc name → equivalent operation on values."""


def recorded_function(ufunc: Any, method: str, options: dict[str, Any]) -> Callable[..., Any]:
    """The operation on values that a numpy ufunc call stands for."""
    function = _RECORDED.get(ufunc.__name__)
    if function is None or method != "__call__" or options:
        called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        arguments = f" with {', '.join(options)}" if options else ""
        raise RecordError(
            f"numpy's {called}{arguments} is not recorded",
            "use methods of the value, or t.call with a function of numpy arrays; after the block use .value",
        )
    return function
