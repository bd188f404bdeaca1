"""Values of a block: what stands for numbers that the run will compute.

A value records what is done with it. Its first axis is the rows; axes and subscripts count it as axis 0, and results come without it
for a single prompt. Numbers, numpy arrays, torch tensors and saved values of earlier blocks can be used as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core, display, results, ufuncs
from .errors import PlanError, RecordError
from .native import methods_of
from .selection import WHOLE, Scope, expand

AWAITED = ...
"""In the place of a result that the run has yet to give."""


@methods_of(_core.Value)
class Value(_core.Value):
    """A value of a block. Save it to have its numbers after the block."""

    __slots__ = ()

    __hash__ = object.__hash__

    # What comes back.

    def save(self) -> Value:
        """Keeps what the value is now: after the block `.value` has it, and nothing changes it any more."""
        if self._result is not None:
            return self if self._kept == self._node else self.copy().save()
        self._kept = self._node
        self._recorder.keep(self, self._node)
        self._result = AWAITED
        return self

    @property
    def value(self) -> Any:
        """The numbers: a read-only numpy array without the axis of rows for one prompt, a list of them for several."""
        return results.organise(self._finished(), self._scope, self._recorder.padded)

    @property
    def shape(self) -> Any:
        """The shape of `.value`; a list of them for several prompts."""
        return results.shapes(self._finished(), self._scope)

    def torch(self) -> Any:
        """The numbers as torch tensors of their own: writing to them changes nothing here."""
        return results.to_torch(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype, copy=copy if copy else None)

    def __dlpack__(self, **options: Any) -> Any:
        return results.dlpack(self.value, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return results.CPU

    def _finished(self) -> Any:
        if self._result is None:
            raise RecordError("this value was not saved", "call .save() on it inside the block")
        if self._result is AWAITED:
            recorder = self._recorder
            if recorder.failure is not None:
                raise RecordError(
                    f"the block raised {recorder.failure!r}, so this value was never computed"
                ) from recorder.failure
            raise RecordError(
                "the block has not run yet", "read .value after the with block (of its session) has ended"
            )
        return self._result

    def _one_result(self) -> Any:
        """The one array of a saved value, to be used in another block."""
        result = self._finished()
        if isinstance(result, list):
            raise PlanError(
                "this value has an array for each row or step, and one is needed here", "pick one: value.value[0]"
            )
        return result

    # How it is read by others.

    def _read(self) -> int:
        """Its node in the record."""
        return self._node

    def _other(self, value: Any) -> tuple[int, Scope | None, int | None]:
        """Node, scope and rank of an operand."""
        recorder = self._recorder
        if isinstance(value, Value):
            if value._recorder is recorder:
                return value._read(), value._scope, value._rank
            return recorder.constant(value), None, value._rank
        node = recorder.constant(value)
        return node, None, getattr(recorder.values[node][1], "ndim", 0)

    def _derived(self, rank: int | None, *expression: Any, scope: Any = AWAITED) -> Value:
        recorder = self._recorder
        return Value(recorder, self._scope if scope is AWAITED else scope, recorder.value(*expression), rank)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """numpy's functions, and its operators between arrays and values."""
        own = ufuncs.own(ufunc, method, options)
        return own(*(operand if isinstance(operand, Value) else self._constant(operand) for operand in operands))

    def _constant(self, numbers: Any) -> Value:
        node, _, rank = self._other(numbers)
        return Value(self._recorder, None, node, rank)

    def copy(self) -> Value:
        """The same value; updating one leaves the other as it is."""
        return Value(self._recorder, self._scope, self._read(), self._rank)

    # Arithmetic.

    def _combine(self, how: str, other: Any, swapped: bool = False) -> Value:
        mine = self._read()
        theirs, scope, rank = self._other(other)
        pair = (theirs, mine) if swapped else (mine, theirs)
        return self._derived(_widest(self._rank, rank), "combine", how, *pair, scope=joined(self._scope, scope))

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
        """The larger of each pair of numbers."""
        return self._combine("maximum", other)

    def minimum(self, other: Any) -> Value:
        """The smaller of each pair of numbers."""
        return self._combine("minimum", other)

    def clip(self, least: Any, most: Any) -> Value:
        """Each number, but not below `least` nor above `most`."""
        return self.maximum(least).minimum(most)

    def __matmul__(self, other: Any) -> Value:
        mine = self._read()
        theirs, scope, rank = self._other(other)
        return self._derived(_product(self._rank, rank), "matmul", mine, theirs, scope=joined(self._scope, scope))

    def __rmatmul__(self, other: Any) -> Value:
        theirs, scope, rank = self._other(other)
        mine = self._read()
        return self._derived(_product(rank, self._rank), "matmul", theirs, mine, scope=joined(self._scope, scope))

    # Functions of each number.

    def _map(self, function: str) -> Value:
        return self._derived(self._rank, "map", function, self._read())

    def __neg__(self) -> Value:
        return self._map("neg")

    def __abs__(self) -> Value:
        return self._map("abs")

    def __invert__(self) -> Value:
        return self._map("not")

    def exp(self) -> Value:
        """e to the power of each number."""
        return self._map("exp")

    def log(self) -> Value:
        """The natural logarithm of each number."""
        return self._map("log")

    def sqrt(self) -> Value:
        """The square root of each number."""
        return self._map("sqrt")

    def square(self) -> Value:
        """The square of each number."""
        return self._map("square")

    def abs(self) -> Value:
        """Each number without its sign."""
        return self._map("abs")

    def sign(self) -> Value:
        """-1, 0 or 1 for each number."""
        return self._map("sign")

    def tanh(self) -> Value:
        """The hyperbolic tangent of each number."""
        return self._map("tanh")

    def sigmoid(self) -> Value:
        """The logistic function of each number."""
        return self._map("sigmoid")

    def relu(self) -> Value:
        """Each number, or 0 where it is negative."""
        return self._map("relu")

    def gelu(self) -> Value:
        """The Gaussian error linear unit of each number."""
        return self._map("gelu")

    def silu(self) -> Value:
        """Each number times its logistic function."""
        return self._map("silu")

    # Summaries.

    def _axis(self, axis: int) -> int:
        """An axis as the engine counts it, which knows one row at a time."""
        return axis if axis < 0 or self._scope is None else axis - 1

    def _fold(self, how: str, axis: int | None, keepdims: bool) -> Value:
        if axis is None:
            of = self
            if self._scope is not None and not self._scope.single:
                of = self._derived(1, "reshape", self._read(), (-1,))._across("concat", 1)
            return of._derived(self._rank if keepdims else 0, "fold", how, of._read(), None, keepdims, scope=None)
        if axis == 0 and self._scope is not None:
            return self._across("stack", None if self._rank is None else self._rank + 1)._fold(how, 0, keepdims)
        rank = self._rank if keepdims or self._rank is None else self._rank - 1
        return self._derived(rank, "fold", how, self._read(), self._axis(axis), keepdims)

    def _across(self, how: str, rank: int | None) -> Value:
        return self._derived(rank, "across", how, self._read(), scope=None)

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The sum along an axis, or of all numbers."""
        return self._fold("sum", axis, keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The mean along an axis, or of all numbers."""
        return self._fold("mean", axis, keepdims)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The largest number along an axis, or of all."""
        return self._fold("max", axis, keepdims)

    def min(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The smallest number along an axis, or of all."""
        return self._fold("min", axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The place of the largest number along an axis, or of all; its `.value` has whole numbers."""
        return self._fold("argmax", axis, keepdims)

    def norm(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The square root of the sum of squares along an axis, or of all numbers."""
        return self._fold("norm", axis, keepdims)

    def var(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The mean squared distance from the mean along an axis, or of all numbers."""
        return self._fold("var", axis, keepdims)

    def softmax(self, axis: int = -1) -> Value:
        """Softmax along an axis."""
        return self._derived(self._rank, "softmax", self._read(), self._inner_axis(axis), False)

    def log_softmax(self, axis: int = -1) -> Value:
        """The logarithm of softmax along an axis."""
        return self._derived(self._rank, "softmax", self._read(), self._inner_axis(axis), True)

    def _inner_axis(self, axis: int) -> int:
        if axis == 0 and self._scope is not None:
            raise PlanError("this does not go along the rows", "join the rows first: value.stack_rows()")
        return self._axis(axis)

    def topk(self, k: int) -> tuple[Value, Value]:
        """The `k` largest numbers of the last axis, in falling order, and their places."""
        of = self._read()
        return self._derived(self._rank, "topk", of, k, False), self._derived(self._rank, "topk", of, k, True)

    def stack_rows(self) -> Value:
        """All rows as one array, which every row can use; the rows must be equally long."""
        return self._across("stack", None if self._rank is None else self._rank + 1)

    # Shapes and parts.

    def reshape(self, *shape: int) -> Value:
        """The same numbers in another shape. Of a value with rows, the first entry stands for them and is -1."""
        wanted = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if self._scope is not None:
            if not wanted or wanted[0] != -1:
                raise PlanError(f"a shape of {wanted}", "the rows stay as they are: begin the shape with -1 for them")
            wanted = wanted[1:]
        return self._derived(len(wanted), "reshape", self._read(), wanted)

    def permute(self, *axes: int) -> Value:
        """The axes in another order; axis 0 of a value with rows is theirs and stays."""
        if self._scope is not None:
            if not axes or axes[0] != 0:
                raise PlanError(f"an order of axes {axes}", "the axis of the rows stays first: begin with 0")
            axes = tuple(axis - 1 for axis in axes[1:])
        return self._derived(len(axes), "permute", self._read(), axes)

    @property
    def T(self) -> Value:
        """The last two axes exchanged."""
        if self._rank is None or self._rank < 2:
            raise PlanError("the last two axes are not known here", "use permute")
        axes = list(range(self._rank))
        axes[-2:] = axes[-1], axes[-2]
        return self._derived(self._rank, "permute", self._read(), tuple(axes))

    def take(self, places: Any) -> Value:
        """For each place (a token's number, say) the number there along the last axis."""
        mine = self._read()
        theirs, scope, rank = self._other(places)
        return self._derived(rank, "take", mine, theirs, scope=joined(self._scope, scope))

    def __getitem__(self, key: Any) -> Value:
        if self._scope is None:
            picks = key if isinstance(key, tuple) else (key,)
            return self._index(expand(picks, _axes(self._rank, picks)))
        picks = expand(key, _axes(None if self._rank is None else self._rank + 1, key))
        return self._of_rows(picks[0])._index(picks[1:])

    def _of_rows(self, pick: Any) -> Value:
        """Some of the rows, as one array that every row can use."""
        if isinstance(pick, slice) and pick == WHOLE:
            return self
        if isinstance(pick, int):
            rows = self._scope.rows if self._scope is not None else None
            if rows is not None and not -len(rows) <= pick < len(rows):
                raise PlanError(f"there is no row {pick}: this value has {len(rows)}", "rows count from 0")
            if rows is None and pick == -1 and self._scope is not None and self._scope.single:
                pick = 0
            row = pick if rows is None else rows[pick]
            return self._derived(self._rank, "row", self._read(), row, scope=None)
        return self.stack_rows()._index((pick,))

    def _index(self, picks: tuple[Any, ...]) -> Value:
        if all(isinstance(pick, slice) and pick == WHOLE for pick in picks):
            return self
        rank = self._rank
        if rank is not None:
            rank += sum(pick is None for pick in picks) - sum(isinstance(pick, int) for pick in picks)
        return self._derived(rank, "index", self._read(), picks)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Updates this value (not the model): later uses see the update, earlier ones do not."""
        rank = None if self._rank is None else self._rank + (self._scope is not None)
        picks = expand(key, _axes(rank, key))
        if self._scope is not None:
            if not (isinstance(picks[0], slice) and picks[0] == WHOLE):
                raise PlanError("an update takes every row", "write a colon for the rows, or work in a row's own block")
            picks = picks[1:]
        by, scope, _ = self._other(value)
        self._node = self._recorder.value("put", self._read(), picks, by)
        self._scope = joined(self._scope, scope)

    # Gradients.

    def backward(self) -> Any:
        """A block in which `.grad` of a site is the gradient of this number there."""
        from .gradients import Backward

        return Backward(self)

    @property
    def grad(self) -> Any:
        """Only sites have gradients."""
        raise RecordError("gradients are taken at sites, and this value is computed from them", "take .grad of a site")

    # What it is not.

    def __bool__(self) -> bool:
        raise RecordError(
            "this value is not known while the block is recorded", "use t.where, or t.call with a function that decides"
        )

    def __iter__(self) -> Any:
        raise RecordError(
            "how long this value is is not known while the block is recorded",
            "index it instead; after the block, go through .value",
        )

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        if self._result is None:
            return "<a value of a block, not saved>"
        if self._result is AWAITED:
            return "<a value of a block that has not run>"
        return f"Value({self.value!r})"

    def _repr_html_(self) -> str:
        if self._result is None or self._result is AWAITED:
            return repr(self)
        value = self.value
        arrays = value if isinstance(value, list) else [value]
        return display.table(("shape", "mean", "deviation"), [display.numbers(np.asarray(array)) for array in arrays])


def joined(a: Scope | None, b: Scope | None) -> Scope | None:
    """The scope of what is computed from both."""
    if a is None or (b is not None and a.single and not b.single):
        return b
    return a


def _widest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _product(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    return max(a, b) if min(a, b) > 1 else max(a, b) - 1


def _axes(rank: int | None, key: Any) -> int:
    """How many axes an index may have; where it is not known, as many as it has."""
    if rank is not None:
        return rank
    picks = key if isinstance(key, tuple) else (key,)
    if Ellipsis in picks:
        raise PlanError("an index with … into a value of unknown shape", "write a colon for each axis")
    return sum(pick is not None for pick in picks)
