"""Blocks in which sites have gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import RecordError

if TYPE_CHECKING:
    from .values import Value


class Backward:
    """`with loss.backward():` makes `.grad` of a site the gradient of that loss. Nothing runs until the trace ends."""

    __slots__ = ("_metric", "_recorder")

    def __init__(self, loss: Value) -> None:
        self._recorder = loss._recorder
        self._metric = self._recorder.metric(loss)

    def __enter__(self) -> Backward:
        if self._recorder.backward is not None:
            raise RecordError("a backward block inside another", "end the first before the next begins")
        self._recorder.backward = self._metric
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.backward = None
