"""What a block records: taps and values, as tuples that the engine takes all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core, convert
from .errors import PlanError, RecordError

if TYPE_CHECKING:
    from .model import Model
    from .results import Cache
    from .selection import Scope
    from .trace import Session
    from .values import Value

OPEN, WAITING, DONE, FAILED = "open", "waiting", "done", "failed"


class Recorder(_core.Record):
    """The record of one block.

    Every access to a site and every write takes the next `place`; taps are handed over in the order of their places. So a value that
    was taken before a write is the old one, whenever it is used.
    """

    __slots__ = (
        "allow_nan",
        "backward",
        "caches",
        "entered",
        "failure",
        "later",
        "layers",
        "metrics",
        "model",
        "padded",
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
        """Values that come back, each with its node; what a tap captures comes back to the site in the tap itself."""
        self.writes: dict[str, list[int]] = {}
        """For each site the places at which it is written."""
        self.metrics: list[int] = []
        self.backward: int | None = None
        self.later: list[tuple[int, Value]] = []
        """Constants that an earlier block of the session will have computed by then."""
        self.caches: list[tuple[Cache, tuple[str, ...], Scope]] = []
        """What is captured by patterns, after everything else."""
        self.entered = False
        self.session: Session | None = None
        """The session at whose end the block runs, if it is in one."""
        self.seconds: Any = None
        self.state = OPEN
        self.failure: BaseException | None = None

    def ended(self, state: str, failure: BaseException | None = None) -> None:
        """Closes the record: the block has run, or never will."""
        self.state, self.failure, self.closed = state, failure, True

    def capture(self, tap: tuple[Any, ...]) -> None:
        """Records a tap that hands a site's activation over as it lies, which no value of an expression does."""
        if self.state is not OPEN and self.state is not WAITING:
            self.refuse("no more values can be saved")
        self.taps.append(tap)

    def tap(self, *tap: Any) -> int:
        """Records a tap: place, action, site, selection, and what the action takes."""
        if self.state is not OPEN and not (self.state is WAITING and tap[2] == "read"):
            self.refuse("no more taps can be recorded")
        self.taps.append(tap)
        return len(self.taps) - 1

    def value(self, *expression: Any) -> int:
        """Records a value."""
        if self.state is not OPEN and self.state is not WAITING:
            self.refuse("no more values can be recorded")
        self.values.append(expression)
        return len(self.values) - 1

    def keep(self, value: Value, node: int) -> None:
        """Records that a value comes back."""
        if self.state is not OPEN and self.state is not WAITING:
            self.refuse("no more values can be saved")
        self.saves.append((value, node))

    def constant(self, value: Any) -> int:
        """Records numbers from outside the block: of Python, numpy, torch, or of an earlier block."""
        from .values import Value

        if not isinstance(value, Value):
            return self.value("constant", value if isinstance(value, (int, float)) else convert.array(value))
        if value._recorder.state is WAITING:
            value.save()
            self.later.append((len(self.values), value))
            return self.value("constant", None)
        return self.value("constant", value._one_result())

    def places_of(self, text: str, rows: list[int] | None) -> Any:
        """The positions that a word (`last`, `prompt`, `generated`) or the text of a token means in the rows of a view."""
        if text in ("last", "prompt", "generated", "all"):
            return text
        among = range(len(self.rows)) if rows is None else rows
        if len(among) != 1:
            raise PlanError(
                f"the token {text!r} stands at other positions in each row", "name it in the view of one row"
            )
        token = self.model.to_single_token(text)
        places = [place for place, found in enumerate(self.rows[among[0]]) if found == token]
        if not places:
            raise PlanError(f"the token {text!r} does not occur in row {among[0]}", "choose a token of the prompt")
        return places

    def metric(self, value: Value) -> int:
        """Records a number that gradients are of."""
        node = value._read()
        if node not in self.metrics:
            self.metrics.append(node)
        return self.metrics.index(node)

    def current_metric(self) -> int:
        """The metric whose block is open."""
        if self.backward is None:
            raise RecordError(
                "there is no gradient here", "take .grad inside `with loss.backward():`, or use t.gradient"
            )
        return self.backward

    def refuse(self, what: str) -> None:
        """Says why a block takes nothing more."""
        if self.state is FAILED:
            raise RecordError(f"the block raised {self.failure!r}, and nothing of it ran: {what}") from self.failure
        if self.state is DONE:
            raise RecordError(
                f"the block has ended: {what}",
                "take .value of what was saved and go on with numpy, or begin another block: saved values can be used in it",
            )
        raise RecordError(f"the block has ended, and runs when its session ends: {what}")
