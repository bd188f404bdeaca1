"""numpy and torch functions of values, other than ufuncs: recorded if a value has a method for
them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from . import _core, saved
from .errors import RecordError

_SAME_NAME = [
    "abs",
    "argmax",
    "clamp",
    "clip",
    "exp",
    "gelu",
    "log",
    "log_softmax",
    "max",
    "mean",
    "min",
    "norm",
    "permute",
    "relu",
    "reshape",
    "sigmoid",
    "sign",
    "silu",
    "softmax",
    "sqrt",
    "square",
    "std",
    "sum",
    "swapaxes",
    "take",
    "tanh",
    "topk",
    "unsqueeze",
    "var",
    "view",
]

_METHODS = {**{name: name for name in _SAME_NAME}, "amax": "max", "amin": "min", "absolute": "abs"}
"""Name of a numpy or torch function → method of a value."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "truediv": operator.truediv,
    "true_divide": operator.truediv,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
}
"""Name of a function of two arguments → operator."""

_HINTS = {
    "values": "max and min give the values, argmax the indices; topk(k) has .values and .indices",
    "indices": "argmax gives the indices of max; topk(k) has .values and .indices",
    "squeeze": "index the axis of length 1 with an integer: value[:, 0]",
    "flatten": "use reshape(-1, length): the row axis stays first",
    "einsum": "use @, or t.call(function, value) with numpy arrays",
    "cuda": "values are in CPU memory",
    "requires_grad": "gradients are read at sites: `with loss.backward(): site.grad`",
    "requires_grad_": "gradients are read at sites: `with loss.backward(): site.grad`",
    "retain_grad": "gradients are read at sites: `with loss.backward(): site.grad`",
    "size": "use .shape",
    "output": "this is a computed value; layers, attn and mlp have input and output",
    "input": "this is a computed value; layers, attn and mlp have input and output",
    "data": "use .value after the block",
    "half": "values are f32",
    "double": "values are f32",
    "bfloat16": "values are f32",
    "long": "index values (argmax, topk) are int64 in .value",
    "int": "index values (argmax, topk) are int64 in .value",
}


def hint_for(name: str) -> str:
    """How to get what an attribute that values do not have gives in numpy or torch."""
    return _HINTS.get(
        name, "t.call(function, value) calls a Python function with numpy arrays; after the block use .value"
    )


def call(value: Any, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Calls a numpy or torch function with values among its arguments."""
    name, module = function.__name__, getattr(function, "__module__", None) or ""
    anchor = value if value is not None else _first_value(arguments)
    if anchor is None or (anchor._recorder.closed and saved.recording(anchor, arguments) is None):
        plain = _torch if value is None else _plain
        return function(*map(plain, arguments), **{key: plain(item) for key, item in options.items()})
    combine = _OPERATORS.get(name.strip("_"))
    if combine is not None and len(arguments) == 2:
        open_value = saved.recording(anchor, arguments)
        anchor = anchor if open_value is None else open_value
        return combine(*(anchor._constant(argument) for argument in arguments))
    joined = _join(name, arguments, options)
    if joined is not None:
        return joined
    method = _METHODS.get(name)
    if method is None or not arguments or not isinstance(arguments[0], _core.Value):
        package = "torch" if module.startswith("torch") or value is None else "numpy"
        raise RecordError(f"{package}'s {name} is not recorded", hint_for(name))
    names = {"a_min": "min", "a_max": "max"}
    given = {
        names.get(key, key): item
        for key, item in options.items()
        if item is not None and item is not False and not key.startswith("_")
    }
    if value is None and name in ("var", "std"):
        given.setdefault("correction", 1)  # torch's default, which a value refuses
    bound: Callable[..., Any] = getattr(arguments[0], method)
    try:
        return bound(*arguments[1:], **given)
    except TypeError as problem:
        raise RecordError(f"{name} of a value: {problem}", f"see help(pellucid.Value.{method})") from None


def _join(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`where`, `concatenate` and `stack`, which are functions of a block."""
    from .views import view_of  # a view creates values

    if name == "where" and len(arguments) == 3:
        return view_of(_first_value(arguments)).where(*arguments)
    if name in ("concatenate", "concat", "cat", "stack") and arguments and isinstance(arguments[0], (list, tuple)):
        axis = options.get("axis", options.get("dim", arguments[1] if len(arguments) > 1 else 0))
        view = view_of(_first_value(tuple(arguments[0])))
        return view.stack(arguments[0], axis) if name == "stack" else view.concat(arguments[0], axis)
    return None


def _first_value(arguments: tuple[Any, ...]) -> Any:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            found = _first_value(tuple(argument))
            if found is not None:
                return found
        elif isinstance(argument, _core.Value) and not argument._recorder.closed:
            return argument
    return next((argument for argument in arguments if isinstance(argument, _core.Value)), None)


def _torch(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return type(argument)(_torch(item) for item in argument)
    return argument.torch() if isinstance(argument, _core.Value) else argument  # type: ignore[attr-defined]


def _plain(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return type(argument)(_plain(item) for item in argument)
    return saved.plain(argument)
