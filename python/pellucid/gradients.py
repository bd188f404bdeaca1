"""`with loss.backward():` blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import RecordError

if TYPE_CHECKING:
    from .values import Value


class Backward:
    """Inside `with loss.backward():`, `.grad` of a site is the gradient of `loss`.

    Only records; the trace runs later.
    """

    __slots__ = ("_metric", "_recorder")

    def __init__(self, loss: Value) -> None:
        self._recorder = loss._recorder
        self._metric = self._recorder.add_metric(loss)

    def __enter__(self) -> Backward:
        if self._recorder.backward is not None:
            raise RecordError("backward blocks cannot be nested", "end the first before starting the next")
        self._recorder.backward = self._metric
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.backward = None
