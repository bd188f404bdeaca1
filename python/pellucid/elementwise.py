"""Elementwise functions, reshapes and torch spellings of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core, convert, saved
from .errors import PlanError
from .native import methods_of
from .selection import FULL_SLICE

if TYPE_CHECKING:
    from .values import Value


@methods_of(_core.Value)
class Elementwise(_core.Value):
    """Methods of `Value`, which `methods_of` attaches to the native class."""

    __slots__ = ()

    def _map(self, function: str) -> Any:
        if self._recorder.closed:
            return saved.apply(function, self)
        return self._derive(self._rank, "map", function, self._read())

    def __neg__(self) -> Value:
        return self._map("neg")

    def __abs__(self) -> Value:
        return self._map("abs")

    def __invert__(self) -> Value:
        return self._map("not")

    def exp(self) -> Value:
        """Elementwise exponential."""
        return self._map("exp")

    def log(self) -> Value:
        """Elementwise natural logarithm."""
        return self._map("log")

    def sqrt(self) -> Value:
        """Elementwise square root."""
        return self._map("sqrt")

    def square(self) -> Value:
        """Elementwise square."""
        return self._map("square")

    def abs(self) -> Value:
        """Elementwise absolute value."""
        return self._map("abs")

    def sign(self) -> Value:
        """Elementwise sign: -1, 0 or 1."""
        return self._map("sign")

    def tanh(self) -> Value:
        """Elementwise hyperbolic tangent."""
        return self._map("tanh")

    def sigmoid(self) -> Value:
        """Elementwise sigmoid."""
        return self._map("sigmoid")

    def relu(self) -> Value:
        """Elementwise ReLU."""
        return self._map("relu")

    def gelu(self) -> Value:
        """Elementwise GELU."""
        return self._map("gelu")

    def silu(self) -> Value:
        """Elementwise SiLU: `x * sigmoid(x)`."""
        return self._map("silu")

    # Shapes.

    def reshape(self, *shape: Any) -> Value:
        """Reshapes.

        If the value has rows, the first entry of the shape stands for them and must be -1.
        """
        new_shape = tuple(convert.integers(shape[0] if len(shape) == 1 else shape, "a length of the shape"))
        if self._scope is not None:
            if not new_shape or new_shape[0] != -1:
                raise PlanError(f"invalid shape {new_shape}", "the row axis stays first: start the shape with -1")
            new_shape = new_shape[1:]
        if any(length < -1 for length in new_shape):
            raise PlanError(f"invalid shape {new_shape}", "lengths are at least 0; one may be -1")
        return self._derive(len(new_shape), "reshape", self._read(), new_shape)

    view = reshape

    def permute(self, *axes: Any) -> Value:
        """Permutes the axes. If the value has rows, axis 0 is the rows and must stay first."""
        axes = tuple(convert.integers(axes[0] if len(axes) == 1 else axes, "an axis"))
        if self._rank is not None:
            rank = self._rank + (self._scope is not None)
            if sorted(axis % rank if -rank <= axis < rank else -1 for axis in axes) != list(range(rank)):
                raise PlanError(f"{axes} is no order of {rank} axes", "name each axis once; axis 0 is the rows")
            axes = tuple(axis % rank for axis in axes)
        if self._scope is not None:
            if not axes or axes[0] != 0:
                raise PlanError(f"invalid order of axes {axes}", "the row axis stays first: start with 0")
            axes = tuple(axis - 1 for axis in axes[1:])
        return self._derive(len(axes), "permute", self._read(), axes)

    def swapaxes(self, first: int, second: int) -> Value:
        """Exchanges two axes, as in numpy and torch."""
        if self._rank is None:
            raise PlanError("the number of axes is unknown here", "use permute")
        rank = self._rank + (self._scope is not None)
        pair = [convert.integer(axis, "an axis") for axis in (first, second)]
        if any(not -rank <= axis < rank for axis in pair):
            raise PlanError(f"axes {first} and {second} of {rank} axes", "axis 0 is the rows, -1 the last axis")
        axes = list(range(rank))
        axes[pair[0]], axes[pair[1]] = axes[pair[1]], axes[pair[0]]
        return self.permute(*axes)

    def transpose(self, *axes: int) -> Value:
        """Raises: numpy and torch mean different things by it."""
        raise PlanError(
            "transpose means another thing in numpy than in torch",
            "use swapaxes(a, b), permute(…), or .T for the last two axes",
        )

    def unsqueeze(self, dim: int) -> Value:
        """Inserts an axis of length 1, as in torch."""
        if self._rank is None:
            raise PlanError("the number of axes is unknown here", "index with None")
        rank = self._rank + (self._scope is not None)
        axis = convert.integer(dim, "dim")
        if not -rank - 1 <= axis <= rank or (self._scope is not None and axis in (0, -rank - 1)):
            raise PlanError(f"invalid new axis {dim}", "use 1 or more (axis 0 is the rows), or -1 for the last")
        axis %= rank + 1
        return self._index((*(FULL_SLICE for _ in range(axis - (self._scope is not None))), None))

    def pow(self, exponent: Any) -> Value:
        """Elementwise power."""
        return self**exponent

    def detach(self) -> Value:
        """The same value without its gradient."""
        return self._map("detach")

    def clone(self) -> Value:
        """`copy`, as in torch."""
        return self.copy()

    def _unchanged(self, *arguments: Any, **options: Any) -> Value:
        """This value: values are f32 arrays in CPU memory."""
        return self

    cpu = contiguous = float = to = _unchanged

    @property
    def T(self) -> Value:
        """The transpose of the last two axes."""
        if self._rank is None or self._rank < 2:
            raise PlanError("the number of axes is unknown here, or less than 2", "use permute")
        axes = list(range(self._rank))
        axes[-2:] = axes[-1], axes[-2]
        return self._derive(self._rank, "permute", self._read(), tuple(axes))
