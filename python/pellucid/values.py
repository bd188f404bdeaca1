"""`Value`: a lazy array inside a trace, which records the operations applied to it.

Axis 0 is the rows (prompts); the result of a single prompt has no row axis. Operands may be
numbers, numpy arrays, torch tensors and saved values of earlier blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core, display, results, ufuncs
from .errors import PlanError, RecordError
from .native import methods_of
from .selection import FULL_SLICE, Scope, expand_index

PENDING = ...
"""Placeholder for the result of a saved value before the run."""


@methods_of(_core.Value)
class Value(_core.Value):
    """A lazy array inside a trace. `save()` it to read `.value` after the block.

    This class body is never instantiated: `methods_of` attaches its methods to the native class
    `_core.Value`, which replaces it.
    """

    __slots__ = ()

    __hash__ = object.__hash__

    # Results.

    def save(self) -> Value:
        """Saves the value as it is now; read `.value` after the block.

        Later updates do not change it.
        """
        if self._result is not None:
            return self if self._saved_at == self._node else self.copy().save()
        self._saved_at = self._node
        self._recorder.add_save(self, self._node)
        self._result = PENDING
        return self

    @property
    def value(self) -> Any:
        """The result: a read-only numpy array without row axis for one prompt, a list of arrays for
        several. A `SparseArray` in the place of an array for `save(sparse=True)`.
        """
        return results.arrange(self._require_result(), self._scope, self._recorder.padded)

    @property
    def shape(self) -> Any:
        """The shape of `.value`; a list of shapes for several prompts."""
        return results.arrange_shapes(self._require_result(), self._scope)

    def torch(self) -> Any:
        """The result as torch tensors (copies)."""
        return results.to_torch(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype, copy=copy if copy else None)

    def __dlpack__(self, **options: Any) -> Any:
        return results.dlpack(self.value, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return results.CPU

    def _require_result(self) -> Any:
        if self._result is None:
            raise RecordError("this value was not saved", "call .save() on it inside the block")
        if self._result is PENDING:
            recorder = self._recorder
            if recorder.failure is not None:
                raise RecordError(
                    f"the block raised {recorder.failure!r}, so this value was never computed"
                ) from recorder.failure
            raise RecordError(
                "the block has not run yet", "read .value after the with block (or its session) has ended"
            )
        return self._result

    def _single_array(self) -> Any:
        """The array of a saved value that has exactly one, for use in another block."""
        result = self._require_result()
        if isinstance(result, list):
            raise PlanError(
                "this value has an array for each row or step, but one is needed here", "pick one: value.value[0]"
            )
        if isinstance(result, _core.SparseArray):
            raise PlanError("a sparse value cannot be an operand", "use the dense array: value.value.to_dense()")
        return result

    # Recording.

    def _read(self) -> int:
        """The node: its index in `Recorder.values`."""
        return self._node

    def _as_operand(self, value: Any) -> tuple[int, Scope | None, int | None]:
        """Node, scope and rank of an operand."""
        recorder = self._recorder
        if isinstance(value, Value):
            if value._recorder is recorder:
                return value._read(), value._scope, value._rank
            return recorder.add_constant(value), None, value._rank
        node = recorder.add_constant(value)
        return node, None, getattr(recorder.values[node][1], "ndim", 0)

    def _derive(self, rank: int | None, *expression: Any, scope: Any = PENDING) -> Value:
        recorder = self._recorder
        return Value(recorder, self._scope if scope is PENDING else scope, recorder.add_value(*expression), rank)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """numpy ufuncs, including operators with a numpy array on the left."""
        function = ufuncs.recorded_function(ufunc, method, options)
        return function(*(operand if isinstance(operand, Value) else self._constant(operand) for operand in operands))

    def _constant(self, array: Any) -> Value:
        node, _, rank = self._as_operand(array)
        return Value(self._recorder, None, node, rank)

    def copy(self) -> Value:
        """A copy; updating one does not change the other."""
        return Value(self._recorder, self._scope, self._read(), self._rank)

    # Arithmetic.

    def _combine(self, how: str, other: Any, swapped: bool = False) -> Value:
        mine = self._read()
        theirs, scope, rank = self._as_operand(other)
        pair = (theirs, mine) if swapped else (mine, theirs)
        return self._derive(
            _broadcast_rank(self._rank, rank), "combine", how, *pair, scope=join_scopes(self._scope, scope)
        )

    def __add__(self, other: Any) -> Value:
        return self._combine("add", other)

    def __radd__(self, other: Any) -> Value:
        return self._combine("add", other, True)

    def __sub__(self, other: Any) -> Value:
        return self._combine("sub", other)

    def __rsub__(self, other: Any) -> Value:
        return self._combine("sub", other, True)

    def __mul__(self, other: Any) -> Value:
        return self._combine("mul", other)

    def __rmul__(self, other: Any) -> Value:
        return self._combine("mul", other, True)

    def __truediv__(self, other: Any) -> Value:
        return self._combine("div", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._combine("div", other, True)

    def __pow__(self, other: Any) -> Value:
        return self._combine("pow", other)

    def __rpow__(self, other: Any) -> Value:
        return self._combine("pow", other, True)

    def __lt__(self, other: Any) -> Value:
        return self._combine("lt", other)

    def __le__(self, other: Any) -> Value:
        return self._combine("le", other)

    def __gt__(self, other: Any) -> Value:
        return self._combine("gt", other)

    def __ge__(self, other: Any) -> Value:
        return self._combine("ge", other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._combine("eq", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._combine("ne", other)

    def __and__(self, other: Any) -> Value:
        return self._combine("minimum", other)

    def __or__(self, other: Any) -> Value:
        return self._combine("maximum", other)

    def maximum(self, other: Any) -> Value:
        """Elementwise maximum."""
        return self._combine("maximum", other)

    def minimum(self, other: Any) -> Value:
        """Elementwise minimum."""
        return self._combine("minimum", other)

    def clip(self, least: Any, most: Any) -> Value:
        """Limits each element to the range from `least` to `most`."""
        return self.maximum(least).minimum(most)

    def __matmul__(self, other: Any) -> Value:
        mine = self._read()
        theirs, scope, rank = self._as_operand(other)
        return self._derive(
            _matmul_rank(self._rank, rank), "matmul", mine, theirs, scope=join_scopes(self._scope, scope)
        )

    def __rmatmul__(self, other: Any) -> Value:
        theirs, scope, rank = self._as_operand(other)
        mine = self._read()
        return self._derive(
            _matmul_rank(rank, self._rank), "matmul", theirs, mine, scope=join_scopes(self._scope, scope)
        )

    # Elementwise functions.

    def _map(self, function: str) -> Value:
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

    # Reductions.

    def _axis(self, axis: int) -> int:
        """Converts an axis to the engine's numbering, which has no row axis."""
        return axis if axis < 0 or self._scope is None else axis - 1

    def _fold(self, how: str, axis: int | None, keepdims: bool) -> Value:
        if axis is None:
            of = self
            if self._scope is not None and not self._scope.single:
                of = self._derive(1, "reshape", self._read(), (-1,))._across("concat", 1)
            return of._derive(self._rank if keepdims else 0, "fold", how, of._read(), None, keepdims, scope=None)
        if axis == 0 and self._scope is not None:
            return self._across("stack", None if self._rank is None else self._rank + 1)._fold(how, 0, keepdims)
        rank = self._rank if keepdims or self._rank is None else self._rank - 1
        return self._derive(rank, "fold", how, self._read(), self._axis(axis), keepdims)

    def _across(self, how: str, rank: int | None) -> Value:
        return self._derive(rank, "across", how, self._read(), scope=None)

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The sum along an axis, or of all elements."""
        return self._fold("sum", axis, keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The mean along an axis, or of all elements."""
        return self._fold("mean", axis, keepdims)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The maximum along an axis, or of all elements."""
        return self._fold("max", axis, keepdims)

    def min(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The minimum along an axis, or of all elements."""
        return self._fold("min", axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The index of the maximum along an axis, or of all elements; `.value` is int64."""
        return self._fold("argmax", axis, keepdims)

    def norm(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The L2 norm along an axis, or of all elements."""
        return self._fold("norm", axis, keepdims)

    def var(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The (population) variance along an axis, or of all elements."""
        return self._fold("var", axis, keepdims)

    def softmax(self, axis: int = -1) -> Value:
        """Softmax along an axis."""
        return self._derive(self._rank, "softmax", self._read(), self._inner_axis(axis), False)

    def log_softmax(self, axis: int = -1) -> Value:
        """Log-softmax along an axis."""
        return self._derive(self._rank, "softmax", self._read(), self._inner_axis(axis), True)

    def _inner_axis(self, axis: int) -> int:
        if axis == 0 and self._scope is not None:
            raise PlanError("not possible along axis 0, the rows", "stack the rows first: value.stack_rows()")
        return self._axis(axis)

    def topk(self, k: int) -> tuple[Value, Value]:
        """The `k` largest elements of the last axis, in descending order, and their indices."""
        of = self._read()
        return self._derive(self._rank, "topk", of, k, False), self._derive(self._rank, "topk", of, k, True)

    def stack_rows(self) -> Value:
        """All rows stacked to one array, available to every row; the rows must have equal length."""
        return self._across("stack", None if self._rank is None else self._rank + 1)

    # Shapes and indexing.

    def reshape(self, *shape: int) -> Value:
        """Reshapes.

        If the value has rows, the first entry of the shape stands for them and must be -1.
        """
        new_shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if self._scope is not None:
            if not new_shape or new_shape[0] != -1:
                raise PlanError(f"invalid shape {new_shape}", "the row axis stays first: start the shape with -1")
            new_shape = new_shape[1:]
        return self._derive(len(new_shape), "reshape", self._read(), new_shape)

    def permute(self, *axes: int) -> Value:
        """Permutes the axes. If the value has rows, axis 0 is the rows and must stay first."""
        if self._scope is not None:
            if not axes or axes[0] != 0:
                raise PlanError(f"invalid order of axes {axes}", "the row axis stays first: start with 0")
            axes = tuple(axis - 1 for axis in axes[1:])
        return self._derive(len(axes), "permute", self._read(), axes)

    @property
    def T(self) -> Value:
        """The transpose of the last two axes."""
        if self._rank is None or self._rank < 2:
            raise PlanError("the number of axes is unknown here, or less than 2", "use permute")
        axes = list(range(self._rank))
        axes[-2:] = axes[-1], axes[-2]
        return self._derive(self._rank, "permute", self._read(), tuple(axes))

    def take(self, places: Any) -> Value:
        """Gathers along the last axis: the element at each index, such as the logit of each target
        token.
        """
        mine = self._read()
        theirs, scope, rank = self._as_operand(places)
        return self._derive(rank, "take", mine, theirs, scope=join_scopes(self._scope, scope))

    def __getitem__(self, key: Any) -> Value:
        if self._scope is None:
            picks = key if isinstance(key, tuple) else (key,)
            return self._index(expand_index(picks, _index_rank(self._rank, picks)))
        picks = expand_index(key, _index_rank(None if self._rank is None else self._rank + 1, key))
        return self._index_rows(picks[0])._index(picks[1:])

    def _index_rows(self, pick: Any) -> Value:
        """Selects rows, as one array that is available to every row."""
        if isinstance(pick, slice) and pick == FULL_SLICE:
            return self
        if isinstance(pick, int):
            rows = self._scope.rows if self._scope is not None else None
            if rows is not None and not -len(rows) <= pick < len(rows):
                raise PlanError(f"there is no row {pick}: this value has {len(rows)}", "rows count from 0")
            if rows is None and pick == -1 and self._scope is not None and self._scope.single:
                pick = 0
            row = pick if rows is None else rows[pick]
            return self._derive(self._rank, "row", self._read(), row, scope=None)
        return self.stack_rows()._index((pick,))

    def _index(self, picks: tuple[Any, ...]) -> Value:
        if all(isinstance(pick, slice) and pick == FULL_SLICE for pick in picks):
            return self
        rank = self._rank
        if rank is not None:
            rank += sum(pick is None for pick in picks) - sum(isinstance(pick, int) for pick in picks)
        return self._derive(rank, "index", self._read(), picks)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Updates this value (not the model): later uses see the update, earlier ones do not."""
        rank = None if self._rank is None else self._rank + (self._scope is not None)
        picks = expand_index(key, _index_rank(rank, key))
        if self._scope is not None:
            if not (isinstance(picks[0], slice) and picks[0] == FULL_SLICE):
                raise PlanError(
                    "an update applies to every row", "use a colon for the rows, or update inside `with t.row(…)`"
                )
            picks = picks[1:]
        by, scope, _ = self._as_operand(value)
        self._node = self._recorder.add_value("put", self._read(), picks, by)
        self._scope = join_scopes(self._scope, scope)

    # Gradients.

    def backward(self) -> Any:
        """A `with` block inside which `.grad` of a site is the gradient of this scalar."""
        from .gradients import Backward

        return Backward(self)

    @property
    def grad(self) -> Any:
        """Only sites have gradients."""
        raise RecordError("gradients are taken at sites, and this is a computed value", "read .grad of a site")

    # Conversions that need the result.

    def __bool__(self) -> bool:
        raise RecordError(
            "this value is not known while the block is recorded", "use t.where, or t.call with a function that decides"
        )

    def __iter__(self) -> Any:
        raise RecordError(
            "the length of this value is not known while the block is recorded",
            "index it instead; after the block, iterate over .value",
        )

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        if self._result is None:
            return "<value of a block, not saved>"
        if self._result is PENDING:
            return "<value of a block that has not run>"
        return f"Value({self.value!r})"

    def _repr_html_(self) -> str:
        if self._result is None or self._result is PENDING:
            return repr(self)
        value = self.value
        arrays = value if isinstance(value, list) else [value]
        return display.table(("shape", "mean", "std"), [display.array_stats(np.asarray(array)) for array in arrays])


def join_scopes(a: Scope | None, b: Scope | None) -> Scope | None:
    """The scope of a value computed from both."""
    if a is None or (b is not None and a.single and not b.single):
        return b
    return a


def _broadcast_rank(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _matmul_rank(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    return max(a, b) if min(a, b) > 1 else max(a, b) - 1


def _index_rank(rank: int | None, key: Any) -> int:
    """The number of axes that an index may have; if the rank is unknown, as many as it has."""
    if rank is not None:
        return rank
    picks = key if isinstance(key, tuple) else (key,)
    if Ellipsis in picks:
        raise PlanError("`...` cannot index a value of unknown shape", "write a colon for each axis")
    return sum(pick is not None for pick in picks)
