"""Kept prefixes: beginnings of prompts that later calls need not compute again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core, convert

if TYPE_CHECKING:
    from .model import Model


class Prefixes:
    """Beginnings of prompts of one model. A call takes over what its prompts share with them, where it reads and writes nothing there; what
    comes back has the same bits. `Model.prefix` and `Model.prefixes` make them."""

    def __init__(self, model: Model, core: _core.Prefixes) -> None:
        self._model = model
        self._core = core

    def add(self, prompts: Any) -> None:
        """Computes prompts and keeps them."""
        self._core.add(self._model._core, convert.rows(self._model._core, prompts)[0])

    def clear(self) -> None:
        """Lets go of everything."""
        self._core.clear()

    @property
    def kept(self) -> int:
        """How many prefixes are kept."""
        return self._core.counts()[0]

    @property
    def bytes(self) -> int:
        """The bytes that they take."""
        return self._core.counts()[1]

    @property
    def hits(self) -> int:
        """How many prompts took something over."""
        return self._core.counts()[2]

    @property
    def tokens(self) -> int:
        """How many tokens were not computed again."""
        return self._core.counts()[3]

    def __repr__(self) -> str:
        return (
            f"Prefixes({self.kept} kept, {self.bytes / 1e6:.1f} MB, {self.tokens} tokens saved in {self.hits} prompts)"
        )
