"""Shapes of values inside a block, inferred from the recorded plan without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core
from .errors import RecordError

if TYPE_CHECKING:
    from .values import Value


def infer(value: Value) -> tuple[int | None, ...]:
    """The shape of a value with its row axis; `None` where the rows differ."""
    recorder = value._recorder
    if not recorder.rows or recorder.generates:
        raise RecordError(
            "the shape is not known while this block is recorded",
            "use model.scan(prompt), which infers shapes, or read .shape after the block",
        )
    if recorder.pending_constants:
        raise RecordError(
            "the shape depends on a block that has not run yet", "read .shape after the session has ended"
        )
    taps, values, node = list(recorder.taps), list(recorder.values), value._node
    if node is None:
        taps.append((value._order, value._metric, "read", value._info.address, value._select))
        values.append(("read", len(taps) - 1))
        if value._squeeze is not None:
            values.append(("index", len(values) - 1, value._squeeze))
        node = len(values) - 1
    plan = _core.Plan.from_record(taps, values, [(value, node)], recorder.metrics, recorder.allow_nan)
    model = recorder.model
    _, by_row = _core.scan(model._core, recorder.rows, plan, model.edits_for(recorder.rows))[-1]
    shapes: list[Any] = [shape for _, shape in by_row]
    if not shapes or any(shape is None for shape in shapes):
        raise RecordError("the shape depends on a function of t.call", "read .shape after the block")
    if value._scope is None:
        return tuple(shapes[0])
    lengths = [set(axis) for axis in zip(*shapes, strict=True)]
    return (len(shapes), *(axis.pop() if len(axis) == 1 else None for axis in lengths))
