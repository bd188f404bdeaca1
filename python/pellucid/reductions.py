"""Reductions of values: sums, means, softmax, top-k."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core, convert, saved
from .errors import PlanError
from .native import methods_of

if TYPE_CHECKING:
    from .values import Value


class TopK(NamedTuple):
    """The result of `topk`."""

    values: Value
    """The largest elements, in descending order."""
    indices: Value
    """Their indices."""


def _reduction(how: str, meaning: str) -> Any:
    def reduce(
        self: Value, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False
    ) -> Value:
        return self._fold(how, axis if dim is None else dim, keepdims or keepdim)

    reduce.__name__ = how
    reduce.__doc__ = f"{meaning} along an axis, or of all elements. `dim` and `keepdim` are as in torch."
    return reduce


@methods_of(_core.Value)
class Reductions(_core.Value):
    """The reductions of `Value`, which `methods_of` attaches to the native class."""

    __slots__ = ()

    def _axis(self, axis: Any) -> int:
        """Converts an axis to the engine's numbering, which has no row axis."""
        try:
            number = operator.index(axis)
            if abs(number) > 32:
                raise PlanError(f"axis {axis} is out of range", "axis 0 is the rows, -1 the last axis")
        except TypeError:
            several = isinstance(axis, (tuple, list))
            raise PlanError(
                f"axis {axis!r} is not one axis", "reduce one axis after another" if several else "use an integer"
            ) from None
        if self._rank is not None:
            rank = self._rank + (self._scope is not None)
            if not -rank <= number < rank:
                raise PlanError(f"axis {axis} is out of range for {rank} axes", "axis 0 is the rows, -1 the last axis")
        return number if number < 0 or self._scope is None else number - 1

    def _is_row_axis(self, axis: Any) -> bool:
        """Whether an axis is the rows: 0, or as many from the end as there are axes."""
        if self._scope is None:
            return False
        return axis == 0 or (self._rank is not None and axis == -self._rank - 1)

    def _fold(self, how: str, axis: Any, keepdims: bool) -> Any:
        if self._recorder.closed:
            return saved.fold(how, self, axis, keepdims)
        if axis is None:
            of = self
            if self._scope is not None and not self._scope.single:
                of = self._derive(1, "reshape", self._read(), (-1,))._across("concat", 1)
            return of._derive(self._rank if keepdims else 0, "fold", how, of._read(), None, keepdims, scope=None)
        number = self._axis(axis)
        if self._is_row_axis(axis):
            return self._across("stack", None if self._rank is None else self._rank + 1)._fold(how, 0, keepdims)
        rank = self._rank if keepdims or self._rank is None else self._rank - 1
        return self._derive(rank, "fold", how, self._read(), number, keepdims)

    def _across(self, how: str, rank: int | None) -> Value:
        return self._derive(rank, "across", how, self._read(), scope=None)

    sum = _reduction("sum", "The sum")
    mean = _reduction("mean", "The mean")
    max = _reduction("max", "The maximum")
    min = _reduction("min", "The minimum")
    argmax = _reduction("argmax", "The index of the maximum (the first of equal ones; `.value` is int64)")
    norm = _reduction("norm", "The L2 norm")

    def var(
        self,
        axis: Any = None,
        keepdims: bool = False,
        *,
        dim: Any = None,
        keepdim: bool = False,
        correction: int | None = None,
    ) -> Value:
        """The population variance along an axis, or of all elements, as numpy computes it.

        torch divides by n - 1 by default, so with `dim` say `correction=0`.
        """
        if correction not in (0, None) or (dim is not None and correction is None):
            raise PlanError(
                "var and std divide by n, as in numpy; torch divides by n - 1",
                "write axis=…, or correction=0; multiply the variance by n / (n - 1) for torch's default",
            )
        return self._fold("var", axis if dim is None else dim, keepdims or keepdim)

    def std(self, axis: Any = None, keepdims: bool = False, **options: Any) -> Value:
        """The population standard deviation: the square root of `var`."""
        return self.var(axis, keepdims, **options).sqrt()

    def softmax(self, axis: Any = -1, *, dim: Any = None) -> Value:
        """Softmax along an axis (`dim` in torch)."""
        inner = self._inner_axis(axis if dim is None else dim)
        return self._derive(self._rank, "softmax", self._read(), inner, False)

    def log_softmax(self, axis: Any = -1, *, dim: Any = None) -> Value:
        """Log-softmax along an axis (`dim` in torch)."""
        inner = self._inner_axis(axis if dim is None else dim)
        return self._derive(self._rank, "softmax", self._read(), inner, True)

    def _inner_axis(self, axis: Any) -> int:
        number = self._axis(axis)
        if self._is_row_axis(axis):
            raise PlanError("not possible along axis 0, the rows", "stack the rows first: value.stack_rows()")
        return number

    def topk(self, k: int, dim: Any = -1) -> TopK:
        """The `k` largest elements of the last axis, in descending order, and their indices."""
        count = convert.integer(k, "k")
        if count < 1:
            raise PlanError(f"topk of {k} elements", "k is at least 1")
        last = -1 if self._rank is None else self._rank - 1
        if self._axis(dim) not in (-1, last):
            raise PlanError(f"topk along axis {dim}", "topk works along the last axis: permute the value first")
        of = self._read()
        return TopK(
            self._derive(self._rank, "topk", of, count, False), self._derive(self._rank, "topk", of, count, True)
        )

    def stack_rows(self) -> Value:
        """All rows stacked to one array, available to every row; the rows must have equal length."""
        return self._across("stack", None if self._rank is None else self._rank + 1)
