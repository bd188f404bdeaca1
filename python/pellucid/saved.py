"""Saved values after their block: arithmetic and functions on their arrays.

A result of one prompt has no row axis, while inside the block axis 0 is the rows. So subscripts and
axes counted from the front would mean something else after the block: those are refused, everything
else works as on the array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .errors import PlanError, RecordError

if TYPE_CHECKING:
    from .values import Value

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "matmul": operator.matmul,
    "minimum": np.minimum,
    "maximum": np.maximum,
}

_APPLY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "not": np.logical_not,
    "detach": np.array,
    **{name: getattr(np, name) for name in ("abs", "exp", "log", "sqrt", "square", "sign", "tanh")},
}


def recording(value: Value, operands: tuple[Any, ...]) -> Value | None:
    """The operand whose block records an operation: `value`, unless its block has ended and that of
    another operand has not. `None` if all blocks have ended.
    """
    recorder = value._recorder
    if recorder.session is None and not recorder.closed:
        return value
    for other in operands:
        if isinstance(other, _core.Value) and other._recorder is not recorder and other._recorder.state == "open":
            return other  # type: ignore[return-value]
    return None if recorder.closed else value


def plain(operand: Any) -> Any:
    """The array of a saved value; other operands as they are."""
    if not isinstance(operand, _core.Value):
        return operand
    value = operand.value  # type: ignore[attr-defined]
    if isinstance(value, list):
        raise RecordError(
            "this value has an array for each prompt or step", "use them one by one: for array in value.value"
        )
    return value


def combine(how: str, a: Value, b: Any, swapped: bool) -> Any:
    """An operator between the arrays of saved values."""
    array = _computed(a)
    # With a tensor the result is a tensor, as numpy arrays and tensors do not combine.
    pair = (a.torch() if hasattr(b, "is_complex") else array, plain(b))
    return _COMBINE[how](*(reversed(pair) if swapped else pair))


def apply(function: str, value: Value) -> Any:
    """An elementwise function of the array of a saved value."""
    if function not in _APPLY:
        value._recorder.raise_closed(f"{function} is no longer recorded")
    return _APPLY[function](_computed(value))


def fold(how: str, value: Value, axis: Any, keepdims: bool) -> Any:
    """A reduction of the array of a saved value."""
    array = _computed(value)
    if axis is not None and axis >= 0 and _lost_row_axis(value):
        raise PlanError(
            f"axis {axis} of a saved value: inside the block axis 0 is the rows, and `.value` has no row axis",
            f"count from the end (axis=-1), or use value.value.{how}(axis={axis})",
        )
    if how == "norm":
        return np.linalg.norm(array.ravel() if axis is None else array, axis=axis, keepdims=keepdims)
    return getattr(np, how)(array, axis=axis, keepdims=keepdims)


def index(value: Value, key: Any) -> Any:
    """A subscript of the array of a saved value."""
    if value._result is None or value._result is ...:
        value._recorder.raise_closed("this value can no longer be indexed")
    if _lost_row_axis(value):
        raise RecordError(
            "a saved value of one prompt is indexed by its array: the block has ended, and `.value` has no row axis",
            "value.value[-1] is the last position, which inside the block is value[:, -1]",
        )
    return value.value[key]


def _computed(value: Value) -> Any:
    if value._result is None or value._result is ...:
        value._recorder.raise_closed("no more values can be recorded")
    return plain(value)


def _lost_row_axis(value: Value) -> bool:
    return value._scope is not None and value._scope.single
