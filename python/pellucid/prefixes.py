"""The prefix cache: later calls reuse the KV cache of prompts with the same first tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core, convert

if TYPE_CHECKING:
    from .model import Model


class Prefixes:
    """A prefix cache of one model, created by `Model.prefix` or `Model.prefixes`.

    A call reuses the KV cache of the tokens its prompts share with a cached prefix, as far as the
    call neither reads nor writes activations there. Results are bit-identical.
    """

    def __init__(self, model: Model, core: _core.Prefixes) -> None:
        self._model = model
        self._core = core

    def add(self, prompts: Any) -> None:
        """Computes prompts and adds them to the cache."""
        self._core.add(self._model._core, convert.rows(self._model._core, prompts)[0])

    def clear(self) -> None:
        """Drops all cached prefixes."""
        self._core.clear()

    @property
    def kept(self) -> int:
        """The number of cached prefixes."""
        return self._core.counts()[0]

    @property
    def bytes(self) -> int:
        """Their size in bytes."""
        return self._core.counts()[1]

    @property
    def hits(self) -> int:
        """The number of prompts that reused a prefix."""
        return self._core.counts()[2]

    @property
    def tokens(self) -> int:
        """The number of tokens that were reused instead of computed."""
        return self._core.counts()[3]

    def __repr__(self) -> str:
        return (
            f"Prefixes({self.kept} kept, {self.bytes / 1e6:.1f} MB, {self.tokens} tokens saved in {self.hits} prompts)"
        )
