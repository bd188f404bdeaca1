"""`Value`: a lazy array inside a trace, which records the operations applied to it.

Axis 0 is the rows (prompts); the result of a single prompt has no row axis. Operands may be
numbers, numpy arrays, torch tensors and saved values of earlier blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core, display, elementwise, functions, reductions, results, saved, shapes, ufuncs  # noqa: F401
from .errors import MissingAttribute, PlanError, RecordError
from .native import methods_of
from .selection import FULL_SLICE, Scope, check_row_of_one_prompt, expand_index

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
        """The shape of `.value`; a list of shapes for several prompts.

        Inside the block, the shape with the row axis, such as `(1, 13, 128)` for one prompt. An axis
        whose length differs between rows is `None`.
        """
        if not self._recorder.closed and (self._result is None or self._result is PENDING):
            return shapes.infer(self)
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
        recorder = self._recorder
        if self._result is None:
            if not recorder.closed and recorder.failure is None:
                raise RecordError(
                    "this value was not saved, and is not known while the block is recorded",
                    "compute with recorded operations or in t.call(function, value); "
                    "or .save() it and use it after the block",
                )
            raise RecordError("this value was not saved", "call .save() on it inside the block")
        if self._result is PENDING:
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
        anchor = saved.recording(self, operands)
        if anchor is None:
            return getattr(ufunc, method)(*map(saved.plain, operands), **options)
        function = ufuncs.recorded_function(ufunc, method, options)
        return function(*(anchor._constant(operand) for operand in operands))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Other numpy functions: recorded if a value has a method for them."""
        return functions.call(self, function, arguments, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """torch functions: recorded if a value has a method for them."""
        return functions.call(None, function, arguments, options or {})

    def _constant(self, array: Any) -> Value:
        """An operand as a value of this block."""
        if isinstance(array, Value) and array._recorder is self._recorder:
            return array
        node, _, rank = self._as_operand(array)
        return Value(self._recorder, None, node, rank)

    def copy(self) -> Value:
        """A copy; updating one does not change the other."""
        return Value(self._recorder, self._scope, self._read(), self._rank)

    # Arithmetic.

    def _combine(self, how: str, other: Any, swapped: bool = False) -> Any:
        anchor = saved.recording(self, (other,))
        if anchor is not self:
            if anchor is None:
                return saved.combine(how, self, other, swapped)
            return anchor._combine(how, self, not swapped)
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

    def clip(self, min: Any = None, max: Any = None) -> Value:
        """Limits each element to the range from `min` to `max`; `None` is no limit."""
        limited = self if min is None else self.maximum(min)
        return limited if max is None else limited.minimum(max)

    clamp = clip

    def __matmul__(self, other: Any) -> Any:
        anchor = saved.recording(self, (other,))
        if anchor is not self:
            return saved.combine("matmul", self, other, False) if anchor is None else anchor.__rmatmul__(self)
        mine = self._read()
        theirs, scope, rank = self._as_operand(other)
        return self._derive(
            _matmul_rank(self._rank, rank), "matmul", mine, theirs, scope=join_scopes(self._scope, scope)
        )

    def __rmatmul__(self, other: Any) -> Any:
        anchor = saved.recording(self, (other,))
        if anchor is not self:
            return saved.combine("matmul", self, other, True) if anchor is None else anchor.__matmul__(self)
        theirs, scope, rank = self._as_operand(other)
        mine = self._read()
        return self._derive(
            _matmul_rank(rank, self._rank), "matmul", theirs, mine, scope=join_scopes(self._scope, scope)
        )

    # Shapes and indexing.

    def take(self, places: Any) -> Value:
        """Gathers along the last axis: the element at each index, such as the logit of each target
        token.
        """
        mine = self._read()
        theirs, scope, rank = self._as_operand(places)
        return self._derive(rank, "take", mine, theirs, scope=join_scopes(self._scope, scope))

    def __getitem__(self, key: Any) -> Any:
        if self._recorder.closed:
            return saved.index(self, key)
        if self._scope is None:
            picks = key if isinstance(key, tuple) else (key,)
            return self._index(expand_index(picks, _index_rank(self._rank, picks)))
        picks = expand_index(key, _index_rank(None if self._rank is None else self._rank + 1, key))
        return self._index_rows(picks[0])._index(picks[1:])

    def _index_rows(self, pick: Any) -> Value:
        """Selects rows, as one array that is available to every row."""
        if isinstance(pick, slice) and pick == FULL_SLICE:
            return self
        if self._scope is not None and self._scope.single:
            check_row_of_one_prompt(pick)
        if isinstance(pick, int):
            rows = self._scope.rows if self._scope is not None else None
            count = len(self._recorder.rows if rows is None else rows)
            # A recorded plan has no rows yet.
            if not (-count <= pick < count or (count == 0 and pick >= 0)):
                raise PlanError(f"there is no row {pick}: this value has {count}", "rows count from 0")
            row = pick % count if rows is None and count else pick if rows is None else rows[pick]
            return self._derive(self._rank, "row", self._read(), row, scope=None)
        return self.stack_rows()._index((pick,))

    def _index(self, picks: tuple[Any, ...]) -> Value:
        for pick in picks:
            if isinstance(pick, (str, Mapping)):
                raise PlanError(
                    f"{pick!r} does not index a computed value", "names of positions index sites: t.logits[:, …]"
                )
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
        if not self._recorder.closed:
            raise RecordError(
                "this value is not known while the block is recorded",
                "use t.where, or t.call with a function that decides",
            )
        return bool(saved.plain(self))

    def __iter__(self) -> Any:
        if not self._recorder.closed:
            raise RecordError(
                "the length of this value is not known while the block is recorded",
                "index it instead; after the block, iterate over .value",
            )
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def item(self) -> Any:
        """The result as a Python number, if it has one element."""
        return np.asarray(saved.plain(self)).item()

    def numpy(self) -> Any:
        """`.value`."""
        return self.value

    def tolist(self) -> Any:
        """The result as nested lists."""
        value = self.value
        return [array.tolist() for array in value] if isinstance(value, list) else value.tolist()

    @property
    def dtype(self) -> Any:
        """The dtype of the result."""
        return np.asarray(saved.plain(self)).dtype

    @property
    def ndim(self) -> int:
        """The number of axes: of the result, or inside the block with the row axis."""
        return len(self.shape)

    def __reduce__(self) -> Any:
        value = self.value
        return (list, (value,)) if isinstance(value, list) else (np.array, (value,))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if isinstance(attribute := getattr(type(self), name, None), property):
            return attribute.__get__(self)  # it raised an AttributeError: raise that one
        raise MissingAttribute(f"a value has no attribute {name!r}", functions.hint_for(name))

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
