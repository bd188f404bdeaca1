"""What comes back from a run: arrays that share the engine's memory, by row, step and site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import display
from .errors import RecordError

if TYPE_CHECKING:
    from .selection import Scope

CPU = (1, 0)
"""DLPack's name for memory of the processor."""


def numpy_of(array: Any) -> np.ndarray:
    """A read-only view of the engine's array; indices become whole numbers."""
    view = array.numpy()
    return view.astype(np.int64) if array.is_integer else view


def organise(result: Any, scope: Scope | None, padded: bool, convert: Any = numpy_of) -> Any:
    """One array for one prompt, a list for several; in place of an array a list of them, where several steps computed one."""
    if not isinstance(result, list):
        array = convert(result)
        return [array] if scope is not None and not scope.single else array
    by_row: dict[int | None, list[Any]] = {}
    for row, _, array in result:
        by_row.setdefault(row, []).append(convert(array))
    if not result:
        raise RecordError(
            "this was never computed: no row reached the step", "generate more tokens, or ask for earlier steps"
        )
    in_steps = scope is not None and scope.steps is not None and not isinstance(scope.steps, int)
    rows: list[Any] = [arrays if in_steps or len(arrays) > 1 else arrays[0] for arrays in by_row.values()]
    if scope is None or scope.single:
        return rows[0]
    return stacked(rows) if padded and not isinstance(rows[0], list) else rows


def shapes(result: Any, scope: Scope | None) -> Any:
    """The shapes of what `organise` gives."""
    return organise(result, scope, False, lambda array: array.shape)


def stacked(arrays: list[np.ndarray], fill: float = 0.0) -> np.ndarray:
    """Arrays of several rows as one, shorter ones filled up at their ends."""
    shape = np.max([array.shape for array in arrays], axis=0)
    out = np.full((len(arrays), *shape), fill, dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(length) for length in array.shape)] = array
    return out


def to_torch(value: Any) -> Any:
    """Torch tensors that own their memory. What a run gave back is read-only, and torch has no read-only tensors: so they are copies."""
    import torch  # type: ignore[import-not-found]

    if isinstance(value, list):
        return [to_torch(one) for one in value]
    return torch.from_numpy(np.array(value))


def dlpack(value: Any, options: dict[str, Any]) -> Any:
    """An array for another library by DLPack. Those who receive it may write, so it is a copy."""
    if isinstance(value, list):
        raise BufferError("several arrays: take one of them from .value")
    if options.get("copy") is False:
        raise BufferError("what a run gave back is read-only, and what is handed over may be written: allow a copy")
    if options.get("dl_device") not in (None, CPU):
        raise BufferError("what a run gave back is in the memory of the processor")
    return np.array(value).__dlpack__()


class Captures(Mapping[str, Any]):
    """Captured values by site: `captures["layers.3.resid_post"]`, also by patterns' order and other libraries' names."""

    def __init__(self, find: Any, captured: list[Any], single: bool, padded: bool, passed_over: list[str]) -> None:
        self._find = find
        self._single = single
        self._padded = padded
        self._arrays: dict[str, list[Any]] = {}
        self.positions: dict[str, list[list[int]]] = {}
        """For each site and row the positions that were captured."""
        self.seconds: float | None = None
        """Seconds that the engine took, of a run."""
        self.passed_over = passed_over
        """Sites that patterns would have meant, but that their layers do not have."""
        for site, _, positions, array, units in captured:
            self._arrays.setdefault(site, []).append((array, units))
            self.positions.setdefault(site, []).append(positions)

    def __getitem__(self, name: str) -> Any:
        if name not in self._arrays:
            found = self._find(name)
            if len(found) != 1 or found[0] not in self._arrays:
                raise KeyError(name)
            name = found[0]
        values = [numpy_of(array) for array, _ in self._arrays[name]]
        units = [numpy_of(units) for _, units in self._arrays[name] if units is not None]
        return (self._of_rows(values), self._of_rows(units)) if units else self._of_rows(values)

    def _of_rows(self, rows: list[np.ndarray]) -> Any:
        if self._single:
            return rows[0]
        return stacked(rows) if self._padded else rows

    def torch(self, name: str) -> Any:
        """A captured value as torch tensors."""
        return to_torch(self[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)} sites"

    def _repr_html_(self) -> str:
        rows = []
        for site, arrays in self._arrays.items():
            rows += [(site, row, *display.numbers(array.numpy())) for row, (array, _) in enumerate(arrays)]
        return display.table(("site", "row", "shape", "mean", "deviation"), rows)


class Cache:
    """What a block captures by a pattern: after it a mapping from sites to values."""

    def __init__(self) -> None:
        self._captures: Captures | None = None

    def _loaded(self) -> Captures:
        if self._captures is None:
            raise RecordError("the block has not run", "read the cache after the with block has ended")
        return self._captures

    def __getitem__(self, name: str) -> Any:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def __contains__(self, name: str) -> bool:
        return name in self._loaded()

    def keys(self) -> Any:
        """The sites."""
        return self._loaded().keys()

    def items(self) -> Any:
        """The sites and their values."""
        return self._loaded().items()

    def torch(self, name: str) -> Any:
        """A value as torch tensors."""
        return self._loaded().torch(name)

    def __repr__(self) -> str:
        return "<a cache of a block that has not run>" if self._captures is None else f"Cache of {len(self)} sites"

    def _repr_html_(self) -> str:
        return repr(self) if self._captures is None else self._captures._repr_html_()


class Generated:
    """What was generated from one prompt."""

    __slots__ = ("accepted", "drafted", "finish", "prompt", "reused", "text", "tokens")

    def __init__(
        self,
        prompt: Any,
        tokens: list[int],
        text: str | None,
        finish: str,
        drafted: int = 0,
        accepted: int = 0,
        reused: int = 0,
    ) -> None:
        self.prompt = prompt
        """The prompt's tokens."""
        self.tokens = tokens
        """The new tokens, the end-of-text token included."""
        self.text = text
        """Their text; `None` without a tokenizer."""
        self.finish = finish
        """Why it ended: `eos`, `length` or `stop`."""
        self.drafted = drafted
        """How many tokens were drafted by `lookup`."""
        self.accepted = accepted
        """How many of them were right."""
        self.reused = reused
        """How many tokens of the prompt were taken over from kept prefixes."""

    def __repr__(self) -> str:
        return f"Generated({self.text!r}, finish={self.finish!r})" if self.text is not None else repr(self.tokens)

    def _repr_html_(self) -> str:
        return display.facts("generated", [("text", self.text), ("tokens", self.tokens), ("finish", self.finish)])
