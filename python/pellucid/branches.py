"""Branches: re-runs of one prompt with small edits, each from the first layer and position it
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _core, convert
from .errors import InputError
from .recorder import FAILED, Recorder
from .trace import Block

if TYPE_CHECKING:
    from .model import Model


class Branch(Block):
    """A trace of the base's prompt that recomputes only what its edits change.

    Bit-identical to a whole run.
    """

    __slots__ = ("_base",)

    def __init__(self, base: Base, allow_nan: bool = False) -> None:
        Block.__init__(self, base.model, base.tokens, False, allow_nan)
        object.__setattr__(self, "_base", base)

    def _run(self, recorder: Recorder) -> None:
        (run,) = self._base._core.branches([self._plan(recorder)])
        recorder.seconds = run.seconds
        self._assign_results(recorder, run)


class Base:
    """A run of one prompt that stores every layer's input and KV cache for its branches."""

    def __init__(self, model: Model, prompt: Any) -> None:
        rows, single = convert.rows(model._core, prompt)
        if not single:
            raise InputError("a base has one prompt", "create one base per prompt")
        self.model = model
        self.tokens = rows[0]
        self._core = _core.base(model._core, rows, model.edits)

    def branch(self, *, allow_nan: bool = False) -> Branch:
        """A `with` block like `Model.trace`, for the base's prompt."""
        return Branch(self, allow_nan)

    def sweep(self, record: Callable[..., Any], over: Iterable[Any]) -> list[Any]:
        """Runs many branches in one batch: calls `record(t, item)` for each item, with its own
        trace `t`.

        Returns the list of `record`'s return values, such as saved values, which then have their
        `.value`. A tuple item is unpacked: `record(t, *item)`.
        """
        blocks: list[Branch] = []
        returned = []
        for item in over:
            block = Branch(self)
            block._recorder.entered = True
            returned.append(record(block, *item) if isinstance(item, tuple) else record(block, item))
            blocks.append(block)
        try:
            runs = self._core.branches([block._plan(block._recorder) for block in blocks])
        except BaseException as failure:
            for block in blocks:
                block._recorder.close(FAILED, failure)
            raise
        for block, run in zip(blocks, runs, strict=True):
            block._assign_results(block._recorder, run)
            block._release(block._recorder)
        return returned
