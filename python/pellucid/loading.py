"""Downloads, loading strategies, and tokenizers without a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from . import _core, convert
from .errors import InputError
from .model import Model, load


def pull(name: str) -> str:
    """Downloads a model by name (`smollm2-135m`, or a Hugging Face id) unless cached; returns its
    path for `load`.
    """
    return fspath(_core.pull(convert.text(name, "the model's name")))


@dataclass(frozen=True)
class Attempt:
    """A loading strategy and its outcome for a model."""

    strategy: str
    """`native family`, `mapped custom type`, `assumed family`, `adapter merge` or `GGUF`, tried in
    this order.
    """
    outcome: str
    """`taken`, `passed over` (does not apply), `failed` (applies, but cannot load it) or
    `not needed` (an earlier one was taken).
    """
    reason: str
    """The reason for the outcome."""

    def __str__(self) -> str:
        return f"{self.strategy}: {self.outcome}" + ("" if self.outcome == "not needed" else f": {self.reason}")


def strategies(name: str | PathLike[str], *, assume: str | None = None) -> list[Attempt]:
    """The outcome of each loading strategy for a model, from its configuration and headers only.

    Args:
        name: A Hugging Face directory, a GGUF file, an adapter directory or the name of a pulled
            model.
        assume: The family to load a model of unknown type as.
    """
    family = None if assume is None else convert.text(assume, "assume")
    return [Attempt(*attempt) for attempt in _core.strategies(convert.path(name), family)]


def load_with_strategies(name: str | PathLike[str], **options: Any) -> Model:
    """Deprecated: `load` does the same."""
    warnings.warn("load_with_strategies is deprecated: load does the same", DeprecationWarning, stacklevel=2)
    return load(name, **options)


class Tokenizer:
    """A tokenizer without its model. Thread-safe."""

    def __init__(self, core: _core.Tokenizer) -> None:
        self._core = core

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Encodes a text; `special` adds the tokenizer's special tokens (such as BOS)."""
        return self._core.encode(convert.text(text, "the text"), special)

    def decode(self, tokens: Iterable[int], *, skip_special: bool = True) -> str:
        """Decodes tokens to text."""
        return self._core.decode(self._check(convert.token_ids(tokens)), skip_special)

    def _check(self, tokens: list[int]) -> list[int]:
        for token in tokens:
            if not 0 <= token < 1 << 32:
                raise InputError(f"there is no token {token}", "token ids are whole numbers from 0")
        return tokens

    def token_text(self, token: int) -> str:
        """The text of one token inside a longer text, leading space included."""
        return self._core.token_text(self._check([convert.integer(token, "the token")])[0])

    def find(self, text: str) -> int | None:
        """The single token with this text, leading space included; `None` if there is none."""
        return self._core.find_token(convert.text(text, "the token's text"))

    @property
    def vocab_size(self) -> int:
        """Vocabulary size, added tokens included."""
        return self._core.vocab_size

    @property
    def bos(self) -> int | None:
        """The beginning-of-text token."""
        return self._core.special[0]

    @property
    def eos(self) -> Sequence[int]:
        """The end-of-text tokens, the default one first."""
        return self._core.special[1]

    @property
    def pad(self) -> int | None:
        """The padding token; `eos[0]` if the files name none, see `pad_from_eos`."""
        return self._core.special[2]

    @property
    def unk(self) -> int | None:
        """The unknown token."""
        return self._core.special[3]

    @property
    def pad_from_eos(self) -> bool:
        """Whether `pad` is `eos[0]` because the files name no padding token."""
        return self._core.pad_from_eos

    @property
    def origin(self) -> str:
        """The file it was loaded from."""
        return fspath(self._core.origin)

    @property
    def base(self) -> str | None:
        """The base model whose tokenizer this is, if the path has none of its own."""
        return self._core.base

    def __repr__(self) -> str:
        base = f", base={self.base!r}" if self.base else ""
        return f"Tokenizer({self.origin!r}, {self.vocab_size} tokens{base})"


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """Loads the tokenizer of a directory or GGUF file, in any format.

    For an adapter or SAE, loads that of its base model if available locally.

    Never falls back to another model's tokenizer: if there is none, `LoadError` lists the files
    that were searched.
    """
    return Tokenizer(_core.Tokenizer.load(convert.path(path)))
