"""Sites inside a block: reading them gives values, writing to them changes the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .errors import PlanError, SiteError
from .native import methods_of
from .selection import EVERYTHING, Selected, subscript
from .values import AWAITED, Value, joined

if TYPE_CHECKING:
    from .record import Recorder
    from .sites import SiteInfo


@methods_of(_core.Site)
class Site(_core.Site, Value):
    """A site in a block: a value that can also be written.

    It is the activation as it stood when it was taken: after writes that came before, before writes that came after.
    """

    __slots__ = ()

    @property
    def _rank(self) -> int:  # type: ignore[override]
        rank = 2 if self._info.kind == "flat" else 3
        return rank if self._drop is None else rank - self._drop.count(0)

    # Reading.

    def _save_part(self) -> Value:
        """Saves a site that is not simply taken whole: a part of it, one that was read or saved before."""
        if self._result is not None:
            return self if self._kept == self._place else self._again().save()
        recorder, scope, place = self._recorder, self._scope, self._place
        if self._node is None and self._drop is None and (scope is None or scope.steps is None):
            recorder.capture((place, self._metric, "capture", self._info.address, self._select, self))
        else:
            recorder.keep(self, self._read())
        self._kept, self._result = place, AWAITED
        return self

    def _again(self) -> Site:
        return Site(self._recorder, self._scope, self._info, self._place, self._select, self._drop, self._metric)

    copy = _again  # type: ignore[assignment]

    def _read(self) -> int:
        if self._node is None:
            recorder = self._recorder
            tap = recorder.tap(self._place, self._metric, "read", self._info.address, self._select)
            self._node = recorder.value("read", tap)
            if self._drop is not None:
                self._node = recorder.value("index", self._node, self._drop)
        return self._node

    def __getitem__(self, key: Any) -> Value:
        if self._recorder.closed:
            self._recorder.refuse("no part of a site can be taken any more")
        selected = self._selected(key)
        if selected is None:
            return Value.__getitem__(self, key)
        recorder = self._recorder
        part = Site(recorder, selected.scope, self._info, self._place, selected.select, selected.drop, self._metric)
        return part if selected.picks is None else part._index(selected.picks)

    def _selected(self, key: Any) -> Selected | None:
        """What a subscript means for the tap; nothing where this is itself a part of the site."""
        whole = self._scope is not None and self._drop is None and self._select in (None, self._scope.select)
        return subscript(self._info, self._scope, key, self._recorder) if whole and self._scope is not None else None

    # Writing.

    def __setitem__(self, key: Any, value: Any) -> None:
        selected = self._selected(key)
        if selected is None:
            raise PlanError(
                "a part of a part of a site is written", "write all of the subscript at once: site[:, -1, 3]"
            )
        recorder, info = self._recorder, self._info
        if selected.picks is None:
            if not just_written(value, recorder, info, selected.select, self._metric):
                part = Site(recorder, selected.scope, info, self._place, selected.select, selected.drop, self._metric)
                part._write("set", value)
        else:
            now = Site(recorder, selected.scope, info, self._next(), selected.select, None, self._metric)
            by, _, _ = now._other(value)
            node = recorder.value("put", now._read(), selected.picks, by)
            now._write("set", Value(recorder, selected.scope, node, now._rank))
        self._follow()

    def _next(self) -> int:
        """The place of what is recorded now; everything about one value's gradient has that value's place."""
        place = self._recorder.next_place()
        return place if self._metric is None else self._place

    def _follow(self) -> None:
        """From here on this is what stands at the site now."""
        self._place, self._node = self._next(), None

    def _write(self, action: str, value: Any, *arguments: Any, at: str | None = None) -> None:
        recorder, info = self._recorder, self._info
        if value is None and action != "skip":
            raise PlanError("None is not an array of numbers", "give numbers, arrays or values", site=info.address)
        if isinstance(value, Value) and value._recorder is not recorder and isinstance(value._result, list):
            value = value.value
        per_row = self._per_row(value)
        if per_row is not None:
            select = self._select or EVERYTHING
            for row, of_row in per_row:
                one = Site(recorder, None, info, self._place, ([row], *select[1:]), self._drop, self._metric)
                one._write(action, of_row, *arguments, at=at)
        else:
            operand = None if value is None else self._operand(value)
            place = self._next()
            recorder.tap(place, self._metric, action, at or info.address, self._select, operand, *arguments)
            if self._metric is None:
                recorder.writes.setdefault(info.address, []).append(place)
        self._written = recorder.place

    def _per_row(self, value: Any) -> list[tuple[int, Any]] | None:
        """Arrays of its own for each row, where a list or an array with an axis of rows was given."""
        arrays = value if isinstance(value, list) and value and isinstance(value[0], np.ndarray) else None
        if (
            isinstance(value, np.ndarray)
            and self._scope is not None
            and value.ndim == self._rank + 1
            and len(value) > 1
        ):
            arrays = list(value)
        if arrays is None:
            return None
        scope = self._scope
        rows = (scope.rows if scope is not None else None) or range(len(self._recorder.rows))
        if len(rows) != len(arrays):
            raise PlanError(
                f"{len(arrays)} arrays for {len(rows)} rows", "give one array for each row", site=self._info.address
            )
        return list(zip(rows, arrays, strict=True))

    def _operand(self, value: Any) -> float | int:
        """A number as it is, anything else as the node of a value in the selection's shape."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        recorder = self._recorder
        value = as_value(recorder, value)
        constant: tuple[Any, ...] = recorder.values[value._node] if type(value) is Value else ("read",)
        if constant[0] == "constant" and value._rank == self._rank + 1 and getattr(constant[1], "shape", (0,))[0] == 1:
            # An array with an axis of one row.
            value = value._index((0,))
        node = value._read()
        drop = self._drop
        if drop is not None and any(pick == 0 for pick in drop[1:]):
            # The axes that single numbers picked are there in the selection, with length one.
            picks = tuple(None if pick == 0 else slice(None) for pick in drop)
            known = self._rank if value._rank is None else value._rank
            missing = self._rank - known
            node = recorder.value("index", node, picks[missing:]) if missing < len(picks) else node
        return node

    def _update(self, action: str, value: Any, *arguments: Any) -> Site:
        self._write(action, value, *arguments)
        if self._metric is None:
            self._place = self._recorder.place
        self._node = None
        return self

    def __iadd__(self, value: Any) -> Site:
        return self._update("add", value, 1.0)

    def __isub__(self, value: Any) -> Site:
        return self._update("add", value, -1.0)

    def __imul__(self, value: Any) -> Site:
        if isinstance(value, (int, float)):
            return self._update("scale", float(value))
        return self._update("set", self * value)

    def __itruediv__(self, value: Any) -> Site:
        return self._update("set", self / value)

    def __imatmul__(self, value: Any) -> Site:
        return self._update("set", self @ value)

    def __call__(self, value: Any) -> Value:
        """What the model's own final norm or head makes of a value: `t.lm_head(t.final_norm(h))`."""
        last = len(self._recorder.layers) - 1
        before = {"final_norm": f"layers.{last}.resid_post", "lm_head": "final_norm"}.get(self._info.address)
        if before is None:
            raise SiteError(
                f"`{self._info.address}` is an activation, not a module", "call a layer, its attn or its mlp"
            )
        return through(self._recorder, value, before, self._info.address)

    # Gradients.

    @property
    def grad(self) -> Site:
        """The gradient here of the number whose `backward()` block this is; it can be read and written as a site can."""
        return self.gradient_of(self._recorder.current_metric())

    @grad.setter
    def grad(self, value: Any) -> None:
        if not just_written(value, self._recorder, self._info, self._select, self._recorder.backward):
            self.grad._write("set", value)

    def gradient_of(self, metric: int) -> Site:
        """The gradient of a metric here: of the value that the last write before made, with all that was read of it."""
        written = [place for place in self._recorder.writes.get(self._info.address, ()) if place <= self._place]
        made = written[-1] if written else 0
        return Site(self._recorder, self._scope, self._info, made, self._select, self._drop, metric)


def just_written(value: Any, recorder: Recorder, info: SiteInfo, select: Any, metric: int | None = None) -> bool:
    """Whether an assignment is the end of `site += x`: Python assigns what was updated, and it has been written already."""
    return (
        isinstance(value, Site)
        and value._recorder is recorder
        and value._written == recorder.place
        and value._info is info
        and value._select == select
        and value._metric == metric
    )


def as_value(recorder: Recorder, value: Any) -> Value:
    """A value of this block of whatever can be one."""
    if isinstance(value, Value) and value._recorder is recorder:
        return value
    node = recorder.constant(value)
    rank = value._rank if isinstance(value, Value) else getattr(recorder.values[node][1], "ndim", 0)
    return Value(recorder, None, node, rank)


def made_of(values: Sequence[Value], rank: int | None, *expression: Any) -> Value:
    """A value that is computed from several."""
    scope = None
    for value in values:
        scope = joined(scope, value._scope)
    recorder = values[0]._recorder
    return Value(recorder, scope, recorder.value(*expression), rank)


def through(recorder: Recorder, value: Any, start: str, end: str) -> Value:
    """What the model's own ops make of a value between two sites."""
    of, sites = as_value(recorder, value), recorder.model.sites
    first, last = sites[start], sites[end]
    return made_of([of], 2 if last.kind == "flat" else 3, "through", of._read(), first.address, last.address)
