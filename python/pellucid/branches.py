"""Branches: one prompt run again and again with small changes, each from where it begins to differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _core, convert
from .errors import InputError
from .record import FAILED, Recorder
from .trace import Block

if TYPE_CHECKING:
    from .model import Model


class Branch(Block):
    """A block like a trace of the base's prompt; it runs from the middle, with the bits of a whole run."""

    __slots__ = ("_base",)

    def __init__(self, base: Base, allow_nan: bool = False) -> None:
        Block.__init__(self, base.model, base.tokens, False, allow_nan)
        object.__setattr__(self, "_base", base)

    def _run(self, recorder: Recorder) -> None:
        (run,) = self._base._core.branches([self._plan(recorder)])
        recorder.seconds = run.seconds
        self._hand_out(recorder, run)


class Base:
    """A run of one prompt that keeps what enters each layer, its keys and its values, so that branches need not compute them."""

    def __init__(self, model: Model, prompt: Any) -> None:
        rows, single = convert.rows(model._core, prompt)
        if not single:
            raise InputError("branches start from one prompt", "make a base for each prompt")
        self.model = model
        self.tokens = rows[0]
        self._core = _core.base(model._core, rows, model.edits)

    def branch(self, *, allow_nan: bool = False) -> Branch:
        """A block like `Model.trace` of the base's prompt."""
        return Branch(self, allow_nan)

    def sweep(self, record: Callable[..., Any], over: Iterable[Any]) -> list[Any]:
        """Many branches in one batch: `record(t, item)` writes and saves in a block of its own for each item.

        What it returns (saved values, say) comes back in a list, with the numbers there. An item that is a tuple is handed over as
        several arguments.
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
                block._recorder.ended(FAILED, failure)
            raise
        for block, run in zip(blocks, runs, strict=True):
            block._hand_out(block._recorder, run)
            block._done(block._recorder)
        return returned
