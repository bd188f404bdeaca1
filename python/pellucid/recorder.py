"""The recording of a trace: taps and values as tuples, passed to the engine in one call."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .chat import positions_in
from .errors import PlanError, RecordError

if TYPE_CHECKING:
    from .model import Model
    from .results import Cache
    from .selection import Scope
    from .trace import Session
    from .values import Value

SOFTMAX_INPUTS = ("attn_scores", "router_logits", "logits", "lm_head", "scores")
"""Points at which minus infinity excludes an element."""

OPEN, WAITING, DONE, FAILED = "open", "waiting", "done", "failed"


class Recorder(_core.Recorder):
    """Records the taps and values of one `with` block.

    Every access and every write of a site gets the next sequence number, `order`. The engine
    applies taps in this order, so a value read before a write is the old one, wherever it is used.
    """

    __slots__ = (
        "allow_nan",
        "backward",
        "caches",
        "entered",
        "failure",
        "generates",
        "layers",
        "metrics",
        "model",
        "padded",
        "pending_constants",
        "rows",
        "saves",
        "seconds",
        "session",
        "state",
        "values",
        "writes",
    )

    def __init__(self, model: Model, padded: bool = False, allow_nan: bool = False) -> None:
        self.model = model
        self.layers = model.sites.of_layer
        self.padded = padded
        self.allow_nan = allow_nan
        self.rows: list[Any] = []
        self.values: list[tuple[Any, ...]] = []
        self.saves: list[tuple[Value, int]] = []
        """Saved values with their node.

        Captured sites are not listed here: their tap refers to them.
        """
        self.writes: dict[str, list[int]] = {}
        """For each site address, the sequence numbers of its writes."""
        self.metrics: list[int] = []
        self.backward: int | None = None
        self.pending_constants: list[tuple[int, Value]] = []
        """`(node, value)`: constants that an earlier block of the session computes before this one
        runs.
        """
        self.caches: list[tuple[Cache, tuple[str, ...], Scope]] = []
        """Pattern captures (`t.cache`); their taps come after all others."""
        self.entered = False
        self.generates = False
        """Positions and steps depend on a generation."""
        self.session: Session | None = None
        """The session that runs this block at its end, if any."""
        self.seconds: Any = None
        self.state = OPEN
        self.failure: BaseException | None = None

    def close(self, state: str, failure: BaseException | None = None) -> None:
        """Ends recording: the block has run (`DONE`) or will not run (`FAILED`)."""
        self.state, self.failure, self.closed = state, failure, True

    def add_capture(self, tap: tuple[Any, ...]) -> None:
        """Records a capture tap, which returns the activation without a copy."""
        if self.state is not OPEN and self.state is not WAITING:
            self.raise_closed("no more values can be saved")
        self.taps.append(tap)

    def add_tap(self, *tap: Any) -> int:
        """Records a tap `(order, metric, action, site, selection, …)`; returns its index."""
        if self.state is not OPEN and not (self.state is WAITING and tap[2] == "read"):
            self.raise_closed("no more taps can be recorded")
        self.taps.append(tap)
        return len(self.taps) - 1

    def add_value(self, *expression: Any) -> int:
        """Records a value `(operation, operands, …)`; returns its node, the index in `values`."""
        if self.state is not OPEN and self.state is not WAITING:
            self.raise_closed("no more values can be recorded")
        self.values.append(expression)
        return len(self.values) - 1

    def add_save(self, value: Value, node: int) -> None:
        """Records that a value is saved."""
        if self.state is not OPEN and self.state is not WAITING:
            self.raise_closed("no more values can be saved")
        self.saves.append((value, node))

    def add_constant(self, value: Any) -> int:
        """Records a constant: a Python number, numpy array, torch tensor, or saved value of another
        block. Arrays are copied, because the caller may change them before the block runs.
        """
        from .values import Value

        if not isinstance(value, Value):
            number = isinstance(value, (int, float))
            return self.add_value("constant", convert.scalar(value) if number else convert.array(value, copy=True))
        other = value._recorder
        if other.state is WAITING and other.session is self.session:
            value.save()
            self.pending_constants.append((len(self.values), value))
            return self.add_value("constant", None)
        if other.state is OPEN:
            raise RecordError(
                "this value belongs to another block that is still open",
                "use it after that block has ended, or add both prompts to one block with `t.row`",
            )
        return self.add_value("constant", value._single_array())

    def check_finite(self, value: Any, site: str) -> None:
        """Raises if a number or array to be written is NaN or infinite, unless NaN is allowed.

        Minus infinity may be written to the inputs of a softmax, where it excludes an element.
        """
        if self.allow_nan or value is None or (type(value) is float and isfinite(value)):
            return
        numbers = value.numpy() if isinstance(value, _core.Array) else np.asarray(value)
        bad = ~np.isfinite(numbers)
        if not bad.any():
            return
        if site.rsplit(".", 1)[-1] in SOFTMAX_INPUTS:
            bad &= numbers != -np.inf
            if not bad.any():
                return
        found = float(numbers[bad].flat[0])
        index = np.argwhere(bad)[0].tolist()
        where = f" (at index {index} of the array)" if index else ""
        spreads = "spread to everything after it" if np.isnan(found) else "become NaN in the next norm"
        hint = "write finite numbers, or use trace(…, allow_nan=True)"
        if found == -np.inf:
            hint = "minus infinity excludes elements of a softmax: write it to attn_scores, router_logits or logits"
        name = "NaN" if np.isnan(found) else "infinity" if found > 0 else "minus infinity"
        raise PlanError(f"{name} is written here{where}, which would {spreads}", hint, site=site)

    def resolve_positions(self, text: str | Mapping[str, Any], rows: list[int] | None) -> Any:
        """Resolves a word (`last`, `prompt`, `generated`, `all`), the text of a token, or messages
        of a chat (`{"message": 2}`) to positions.
        """
        if text in ("last", "prompt", "generated", "all"):
            return text
        candidates = range(len(self.rows)) if rows is None else rows
        if isinstance(text, Mapping):
            if len(candidates) != 1:
                raise PlanError(f"the positions {dict(text)!r} differ between rows", "use them inside `with t.row(…)`")
            return positions_in(self.rows[candidates[0]], text)
        if len(candidates) != 1:
            raise PlanError(
                f"the position of token {text!r} differs between rows", "use a token's text inside `with t.row(…)`"
            )
        token = self.model.to_single_token(text)
        row = candidates[0]
        positions = [position for position, other in enumerate(self.rows[row]) if other == token]
        if not positions:
            raise PlanError(f"the token {text!r} does not occur in row {row}", "choose a token of the prompt")
        return positions

    def add_metric(self, value: Value) -> int:
        """Records a scalar to differentiate; returns its index among the metrics."""
        node = value._read()
        if node not in self.metrics:
            self.metrics.append(node)
        return self.metrics.index(node)

    def current_metric(self) -> int:
        """The metric of the open `backward()` block."""
        if self.backward is None:
            raise RecordError(
                "there is no gradient here", "read .grad inside `with loss.backward():`, or use t.gradient"
            )
        return self.backward

    def raise_closed(self, what: str) -> None:
        """Raises the error for recording after the end of the block."""
        if self.state is FAILED:
            raise RecordError(f"the block raised {self.failure!r} and did not run: {what}") from self.failure
        if self.state is DONE:
            raise RecordError(
                f"the block has ended: {what}",
                "continue with numpy on .value of saved values, or use saved values in a new block",
            )
        raise RecordError(f"the block has ended and runs at the end of its session: {what}")
