"""The ways to load a model, in their order, and tokenizers by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from . import _core
from .model import Model, load


@dataclass(frozen=True)
class Attempt:
    """A way to load a model, and what became of it."""

    strategy: str
    """`native family`, `mapped custom type`, `assumed family`, `adapter merge` or `GGUF`, tried in this order."""
    outcome: str
    """`taken`, `passed over` (it is not for this), `failed` (it is, and cannot) or `not needed` (an earlier one was taken)."""
    reason: str
    """Why."""

    def __str__(self) -> str:
        return f"{self.strategy}: {self.outcome}" + ("" if self.outcome == "not needed" else f": {self.reason}")


def strategies(name: str | PathLike[str], *, assume: str | None = None) -> list[Attempt]:
    """What each way to load a model would do, told from its configuration and headers alone.

    Args:
        name: A Hugging Face directory, a GGUF file, an adapter's directory or the name of a pulled model.
        assume: The family to read a model of unknown type as.
    """
    return [Attempt(*attempt) for attempt in _core.strategies(fspath(name), assume)]


def load_with_strategies(name: str | PathLike[str], **options: Any) -> Model:
    """Deprecated: `load` does the same."""
    warnings.warn("load_with_strategies is deprecated: load does the same", DeprecationWarning, stacklevel=2)
    return load(name, **options)


class Tokenizer:
    """A tokenizer without its model. Threads may share it."""

    def __init__(self, core: _core.Tokenizer) -> None:
        self._core = core

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special` adds what the tokenizer puts around it."""
        return self._core.encode(text, special)

    def decode(self, tokens: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of tokens."""
        return self._core.decode(list(tokens), skip_special)

    def token_text(self, token: int) -> str:
        """How one token reads where it stands."""
        return self._core.token_text(token)

    def find(self, text: str) -> int | None:
        """The one token that reads as this text, leading space included."""
        return self._core.find_token(text)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included."""
        return self._core.vocab_size

    @property
    def bos(self) -> int | None:
        """What begins a text."""
        return self._core.special[0]

    @property
    def eos(self) -> Sequence[int]:
        """What ends a text, the usual one first."""
        return self._core.special[1]

    @property
    def pad(self) -> int | None:
        """What fills up shorter rows elsewhere; the end of a text where the files name nothing else, see `pad_from_eos`."""
        return self._core.special[2]

    @property
    def unk(self) -> int | None:
        """What stands for text that the vocabulary cannot spell."""
        return self._core.special[3]

    @property
    def pad_from_eos(self) -> bool:
        """Whether `pad` is `eos[0]` because the files name none."""
        return self._core.pad_from_eos

    @property
    def origin(self) -> str:
        """The file that it came from."""
        return fspath(self._core.origin)

    @property
    def base(self) -> str | None:
        """The base model that it was taken from, where the path has no tokenizer of its own."""
        return self._core.base

    def __repr__(self) -> str:
        whose = f", base={self.base!r}" if self.base else ""
        return f"Tokenizer({self.origin!r}, {self.vocab_size} tokens{whose})"


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """Loads the tokenizer of a directory or GGUF file, in any form; of an adapter's or autoencoder's base model where that is at hand.

    Another model's tokenizer is never taken instead: where there is none, `LoadError` says what was looked for and where.
    """
    return Tokenizer(_core.Tokenizer.load(fspath(path)))
