"""Results of a run: arrays that share the engine's memory, by row, step and site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _core, convert, display
from .chat import Chat, MessageSpan, positions_in
from .errors import InputError, NotCaptured, RecordError, SiteError
from .sparse import SparseArray

if TYPE_CHECKING:
    from .selection import Scope

CPU = (1, 0)
"""DLPack device `(kDLCPU, 0)`."""


def to_numpy(array: Any) -> Any:
    """A read-only view of an engine array; index arrays are converted to int64.

    A sparse capture becomes a `SparseArray`.
    """
    if isinstance(array, _core.SparseArray):
        return SparseArray(array)
    view = array.numpy()
    return view.astype(np.int64) if array.is_integer else view


def arrange(result: Any, scope: Scope | None, padded: bool, convert: Any = to_numpy) -> Any:
    """Arranges a result: an array for one prompt, a list for several.

    With several steps, each entry is a list of arrays.
    """
    if not isinstance(result, list):
        array = convert(result)
        return [array] if scope is not None and not scope.single else array
    by_row: dict[int | None, list[Any]] = {}
    for row, _, array in result:
        by_row.setdefault(row, []).append(convert(array))
    if not result and (scope is None or scope.steps is None):
        raise RecordError("nothing was selected: this subscript is empty", "check the bounds of its slices and lists")
    if not result:
        raise RecordError(
            "this was not computed: no row reached the step", "generate more tokens, or use earlier steps"
        )
    in_steps = scope is not None and scope.steps is not None and not isinstance(scope.steps, int)
    rows: list[Any] = [arrays if in_steps or len(arrays) > 1 else arrays[0] for arrays in by_row.values()]
    if scope is None or scope.single:
        return rows[0]
    return stack_padded(rows) if padded and isinstance(rows[0], np.ndarray) else rows


def arrange_shapes(result: Any, scope: Scope | None) -> Any:
    """Like `arrange`, with shapes instead of arrays."""
    return arrange(result, scope, False, lambda array: array.shape)


def stack_padded(arrays: list[np.ndarray], fill: float = 0.0) -> np.ndarray:
    """Stacks arrays of several rows, padding shorter ones at their end."""
    shape = np.max([array.shape for array in arrays], axis=0)
    out = np.full((len(arrays), *shape), fill, dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(length) for length in array.shape)] = array
    return out


def to_torch(value: Any) -> Any:
    """Copies arrays to torch tensors: results are read-only, and torch has no read-only tensors."""
    import torch  # type: ignore[import-not-found]

    if isinstance(value, list):
        return [to_torch(array) for array in value]
    if isinstance(value, SparseArray):
        return value.to_torch()
    return torch.from_numpy(np.array(value))


def dlpack(value: Any, options: dict[str, Any]) -> Any:
    """Exports an array by DLPack. The receiver may write to it, so it is a copy."""
    if isinstance(value, list):
        raise BufferError("there are several arrays: export one of .value")
    if options.get("copy") is False:
        raise BufferError("results are read-only and DLPack arrays are writable: allow a copy")
    if options.get("dl_device") not in (None, CPU):
        raise BufferError("results are in CPU memory")
    return np.array(value).__dlpack__()


def array_stats(array: Any) -> tuple[Any, ...]:
    """Shape and statistics of an engine array, for tables."""
    if isinstance(array, _core.SparseArray):
        _, *stats = display.array_stats(array.values.numpy())
        return (f"{array.shape} sparse", *stats)
    return display.array_stats(array.numpy())


class Mark(NamedTuple):
    """A position at which the condition of a `mark` held."""

    name: str
    """Name of the mark."""
    site: str
    """Site of the condition."""
    row: int
    """Row of the call."""
    position: int
    """Position in the row."""
    value: float
    """Dot product of the activation and the direction."""


def spans_of(prompt: Any) -> list[MessageSpan]:
    """The spans of the messages of a prompt, which must be a chat."""
    if not isinstance(prompt, Chat):
        raise InputError("the prompt is not a chat, so it has no messages", "give the prompt as a list of messages")
    return prompt.spans


class Captures(Mapping[str, Any]):
    """Captured activations by site: `captures["layers.3.resid_post"]`, or by any alias."""

    def __init__(
        self, find: Any, captured: list[Any], single: bool, padded: bool, passed_over: list[str], prompts: list[Any]
    ) -> None:
        self._find = find
        self._prompts = prompts
        self._rows: dict[str, list[int]] = {}
        self._single = single
        self._padded = padded
        self._arrays: dict[str, list[Any]] = {}
        self.positions: dict[str, list[list[int]]] = {}
        """For each site, the captured positions of each row."""
        self.seconds: float | None = None
        """Seconds spent in the engine (`Model.run` only)."""
        self.marks: list[Mark] = []
        """Positions at which the plan's marks held (`Model.run` only)."""
        self.passed_over = passed_over
        """Sites that patterns skipped because their layer does not have the point."""
        for site, row, positions, array, units in captured:
            self._rows.setdefault(site, []).append(row)
            self._arrays.setdefault(site, []).append((array, units))
            self.positions.setdefault(site, []).append(positions)

    def _address(self, name: str) -> str:
        if isinstance(name, str) and name in self._arrays:
            return name
        addresses = self._find(convert.text(name, "the site"))
        captured = [address for address in addresses if address in self._arrays]
        if not captured:
            raise NotCaptured(
                f"{name!r} was not captured", "name it in `capture` or `t.cache`; .keys() lists the sites"
            )
        if len(addresses) > 1:
            raise NotCaptured(f"{name!r} matches {len(addresses)} sites", "name one of them, or loop over .items()")
        return addresses[0]

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self._address(name))
        except (NotCaptured, SiteError):
            return False

    def __getitem__(self, name: str) -> Any:
        name = self._address(name)
        values = [to_numpy(array) for array, _ in self._arrays[name]]
        units = [to_numpy(units) for _, units in self._arrays[name] if units is not None]
        return (self._join_rows(values), self._join_rows(units)) if units else self._join_rows(values)

    def _join_rows(self, rows: list[Any]) -> Any:
        if self._single:
            return rows[0]
        return stack_padded(rows) if self._padded and isinstance(rows[0], np.ndarray) else rows

    @property
    def spans(self) -> Any:
        """The `MessageSpan` of each message of the prompt, a chat; a list for several prompts."""
        spans = [spans_of(prompt) for prompt in self._prompts]
        return spans[0] if self._single else spans

    def message(self, message: int, site: str | None = None, part: str = "content", *, layer: int | None = None) -> Any:
        """The captured activations of one message at a site; a list for several prompts.

        Negative indices count from the last message; `part` is `header`, `content`, `footer` or
        `all`. `layer=3` stands for the site `layers.3.resid_post`.
        """
        if (site is None) == (layer is None):
            raise InputError("message() takes a site or a layer", "message(0, layer=3)")
        if layer is not None:
            layer = convert.integer(layer, "layer")
        name = self._address(f"layers.{layer}.resid_post" if site is None else site)
        # Attention sites are [heads, queries, keys]; others start with the positions.
        axis = 1 if name.endswith(("attn_scores", "attn_probs")) else 0
        values = []
        for row, positions, (array, units) in zip(
            self._rows[name], self.positions[name], self._arrays[name], strict=True
        ):
            if units is not None or isinstance(array, _core.SparseArray) or array.shape[axis] != len(positions):
                raise InputError(f"{name} was reduced, so it has no positions", "capture it whole")
            wanted = positions_in(self._prompts[row], {"message": message, "part": part})
            index = {position: at for at, position in enumerate(positions)}
            missing = [position for position in wanted if position not in index]
            if missing:
                raise InputError(
                    f"position {missing[0]} of message {message} was not captured at {name}",
                    "capture all positions of the message",
                )
            values.append(np.take(to_numpy(array), [index[position] for position in wanted], axis=axis))
        return self._join_rows(values)

    def torch(self, name: str) -> Any:
        """A captured activation as torch tensors (copies), bfloat16 if it was stored so."""
        arrays = self._arrays[self._address(name)]
        bits = [None if isinstance(array, _core.SparseArray) else array.bf16_bits() for array, _ in arrays]
        if self._padded or not bits or any(each is None for each in bits):
            return to_torch(self[name])
        import torch  # type: ignore[import-not-found]

        rows = [torch.from_numpy(np.array(each).view(np.int16)).view(torch.bfloat16) for each in bits]
        return rows[0] if self._single else rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)} sites"

    def _repr_html_(self) -> str:
        rows = []
        for site, arrays in self._arrays.items():
            rows += [(site, row, *array_stats(array)) for row, (array, _) in enumerate(arrays)]
        return display.table(("site", "row", "shape", "mean", "std"), rows)


class Cache:
    """Pattern captures of a block (`t.cache`): a mapping from sites to activations, after the
    block.
    """

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

    def __contains__(self, name: object) -> bool:
        return name in self._loaded()

    def keys(self) -> Any:
        """The sites."""
        return self._loaded().keys()

    def items(self) -> Any:
        """The sites and their activations."""
        return self._loaded().items()

    def message(self, message: int, site: str | None = None, part: str = "content", *, layer: int | None = None) -> Any:
        """The activations of one message of a chat at a site; see `Captures.message`."""
        return self._loaded().message(message, site, part, layer=layer)

    def torch(self, name: str) -> Any:
        """An activation as torch tensors (copies)."""
        return self._loaded().torch(name)

    def __repr__(self) -> str:
        return "<cache of a block that has not run>" if self._captures is None else f"Cache of {len(self)} sites"

    def _repr_html_(self) -> str:
        return repr(self) if self._captures is None else self._captures._repr_html_()


class Generated:
    """The result of generating from one prompt."""

    __slots__ = ("accepted", "drafted", "finish", "marks", "prompt", "reused", "text", "tokens")

    def __init__(
        self,
        prompt: Any,
        tokens: list[int],
        text: str | None,
        finish: str,
        drafted: int = 0,
        accepted: int = 0,
        reused: int = 0,
        marks: list[Mark] | None = None,
    ) -> None:
        self.prompt = prompt
        """The prompt's tokens."""
        self.tokens = tokens
        """The new tokens, the end-of-text token included."""
        self.text = text
        """Their text; `None` without a tokenizer."""
        self.finish = finish
        """Finish reason: `eos`, `length`, `stop`, or `condition` (a `stop` tap of the plan)."""
        self.drafted = drafted
        """Number of speculative tokens proposed by `lookup`."""
        self.accepted = accepted
        """Number of speculative tokens that were accepted."""
        self.reused = reused
        """Number of prompt tokens that came from the prefix cache."""
        self.marks = marks or []
        """Positions of this row at which the plan's marks held."""

    @property
    def spans(self) -> list[MessageSpan]:
        """The tokens of each message of the prompt, a chat."""
        return spans_of(self.prompt)

    def __repr__(self) -> str:
        return f"Generated({self.text!r}, finish={self.finish!r})" if self.text is not None else repr(self.tokens)

    def _repr_html_(self) -> str:
        return display.facts("generated", [("text", self.text), ("tokens", self.tokens), ("finish", self.finish)])


def generated_rows(prompts: list[Any], generation: Any) -> list[Generated]:
    """The rows of a finished generation."""
    marks = [Mark(*mark) for mark in generation.marks]
    rows = zip(prompts, generation.rows, generation.saved_work, strict=True)
    return [
        Generated(prompt, *row, *work, marks=[mark for mark in marks if mark.row == index])
        for index, (prompt, row, work) in enumerate(rows)
    ]
