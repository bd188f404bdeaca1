"""Parses subscripts of sites into selections of rows, positions, heads, units and keys.

The first axis is the rows. Whatever a tap can select is left to the tap, so that only the selected
elements are copied. Other subscripts (a reversed slice, part of a head) index the whole activation.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import convert
from .errors import PlanError
from .site_table import SiteInfo

if TYPE_CHECKING:
    from .recorder import Recorder

FULL_SLICE = slice(None)

TapSelection = tuple[Any, ...]
"""`(rows, positions, steps, heads, units, keys)` of a tap; `None` selects all. A tap on experts has
their numbers as a seventh element.
"""

SELECT_ALL: TapSelection = (None, None, None, None, None, None)


class Scope:
    """The rows and steps of a view."""

    __slots__ = ("rows", "select", "single", "steps")

    def __init__(
        self, rows: tuple[int, ...] | None, single: bool, steps: int | slice | list[int] | None = None
    ) -> None:
        self.rows = rows
        """Row indices in the call; `None` for all."""
        self.single = single
        """The call has one prompt that is not in a list: results have no row axis."""
        self.steps = steps
        selected_steps = [steps] if isinstance(steps, int) else steps
        everything = rows is None and steps is None
        self.select: TapSelection | None = None if everything else (_list(rows), None, selected_steps, None, None, None)


def _list(rows: tuple[int, ...] | None) -> list[int] | None:
    return None if rows is None else list(rows)


class Subscript(NamedTuple):
    """A parsed subscript."""

    select: TapSelection | None
    """The selection of the tap; `None` for everything."""
    scope: Scope | None
    """The remaining rows; `None` if an integer picked one row, whose value is available to every
    row.
    """
    squeeze: tuple[Any, ...] | None
    """An index into the selection that drops the axes picked by an integer."""
    picks: tuple[Any, ...] | None
    """An index into the whole activation, if a tap cannot select it."""


def parse_subscript(info: SiteInfo, scope: Scope, key: Any, recorder: Recorder) -> Subscript:
    """Parses a subscript of a whole site."""
    rank = 4 if info.kind != "flat" else 3
    picks = expand_index(key, rank)
    rows, inner_scope = _select_rows(scope, picks[0])
    inner = picks[1:]
    base = (rows, None, scope.select[2] if scope.select else None, None, None, None)
    chosen = None if any(pick is None for pick in inner) else _tap_selection(info, scope, base, inner, recorder)
    if chosen is None:
        select = None if base == SELECT_ALL else base
        return Subscript(select, inner_scope, None, tuple(_resolve_words(pick, rows, recorder) for pick in inner))
    squeeze = tuple(0 if isinstance(pick, int) else FULL_SLICE for pick in inner)
    while squeeze and squeeze[-1] == FULL_SLICE:
        squeeze = squeeze[:-1]
    return Subscript(None if chosen == SELECT_ALL else chosen, inner_scope, squeeze or None, None)


def expand_index(key: Any, rank: int) -> tuple[Any, ...]:
    """Expands a subscript to one entry per axis (and per new axis).

    Masks and arrays become lists of indices.
    """
    picks = [_normalize_index(pick) for pick in (key if isinstance(key, tuple) else (key,))]
    count = sum(pick is not None and pick is not Ellipsis for pick in picks)
    if count > rank or sum(pick is Ellipsis for pick in picks) > 1:
        raise PlanError(f"an index of {count} axes for {rank} axes", "the first axis is the rows")
    if Ellipsis not in picks:
        picks.append(Ellipsis)
    at = picks.index(Ellipsis)
    return (*picks[:at], *(FULL_SLICE for _ in range(rank - count)), *picks[at + 1 :])


def _normalize_index(pick: Any) -> Any:
    if isinstance(pick, slice):
        return _normalize_slice(pick)
    if pick is None or pick is Ellipsis or isinstance(pick, (str, Mapping)):
        return pick
    if isinstance(pick, int) and not isinstance(pick, bool):
        return convert.integer(pick, "an index")
    if isinstance(pick, (list, tuple, range, np.ndarray, np.integer)) or hasattr(pick, "tolist"):
        indices = np.asarray(pick)
        if indices.dtype == bool and indices.ndim == 1:
            return np.nonzero(indices)[0].tolist()
        if indices.dtype.kind in "iu" and indices.ndim <= 1:
            return indices.tolist()
        if indices.size == 0 and indices.ndim == 1:
            return []
    raise PlanError(
        f"{pick!r} does not index an axis",
        "use integers, slices, lists of integers, masks, a token's text, or messages",
    )


def _normalize_slice(pick: slice) -> slice:
    """Converts the bounds, which may be integers of numpy or torch."""
    bounds = (pick.start, pick.stop, pick.step)
    if all(bound is None or (type(bound) is int and abs(bound) < 1 << 62) for bound in bounds) and pick.step != 0:
        return pick
    try:
        converted = [None if bound is None else operator.index(bound) for bound in bounds]
        # Bounds beyond any length mean the same as these.
        converted = [bound if bound is None else max(min(bound, 1 << 62), -(1 << 62)) for bound in converted]
    except TypeError:
        raise PlanError(f"the slice [{_shown(pick)}] has bounds that are not integers", "use integers") from None
    if converted[2] == 0:
        raise PlanError(f"the slice [{_shown(pick)}] has step 0", "use a step other than 0")
    return slice(*converted)


def _select_rows(scope: Scope, pick: Any) -> tuple[list[int] | None, Scope | None]:
    """Resolves an index into the scope's rows to row indices of the call."""
    if isinstance(pick, slice) and pick == FULL_SLICE:
        return _list(scope.rows), scope
    if scope.single:
        check_row_of_one_prompt(pick)
    if scope.rows is None:
        if isinstance(pick, int) and pick >= 0:
            return [pick], None
        if isinstance(pick, list) and all(row >= 0 for row in pick):
            _check_unique(pick)
            return pick, Scope(tuple(pick), False, scope.steps)
        raise PlanError(
            f"invalid row index {_shown(pick)}",
            "the first axis is the rows: use integers from 0, or a colon for all; [:, -1] is the last position",
        )
    if isinstance(pick, (str, Mapping)) or pick is None:
        raise PlanError(f"{pick!r} does not index rows", "the first axis is the rows; [:, …] selects positions")
    try:
        rows = [scope.rows[pick]] if isinstance(pick, int) else np.asarray(scope.rows)[pick].tolist()
    except IndexError:
        raise PlanError(f"there is no row {pick}: this view has {len(scope.rows)}", "rows count from 0") from None
    _check_unique(rows)
    return rows, None if isinstance(pick, int) else Scope(tuple(rows), False, scope.steps)


def check_row_of_one_prompt(pick: Any) -> None:
    """Raises for an index of the row axis of a single prompt that was probably meant for its
    positions: it has row 0 only.
    """
    if (isinstance(pick, int) and pick == 0) or pick == [0]:
        return
    shown = _shown(pick)
    if isinstance(pick, int) and pick >= 0:
        raise PlanError(
            f"there is no row {pick}: this is one prompt, row 0",
            f"the first axis is the rows; [:, {shown}] is position {pick}",
        )
    raise PlanError(
        f"[{shown}] indexes the rows, and this is one prompt",
        f"the first axis is the rows, the second the positions: write [:, {shown}]",
    )


def _shown(pick: Any) -> str:
    """An index as it is written in a subscript."""
    if not isinstance(pick, slice):
        return repr(pick)
    parts = ["" if bound is None else str(bound) for bound in (pick.start, pick.stop)]
    return ":".join(parts if pick.step is None else [*parts, str(pick.step)])


def _check_unique(rows: list[int]) -> None:
    twice = next((row for row in rows if rows.count(row) > 1), None)
    if twice is not None:
        raise PlanError(f"row {twice} is selected twice", "select each row once")


def _tap_selection(
    info: SiteInfo, scope: Scope, base: TapSelection, inner: tuple[Any, ...], recorder: Recorder
) -> TapSelection | None:
    """The tap selection for indices of the inner axes; `None` if a tap cannot select them."""
    rows, _, steps, *_ = base

    def resolve(pick: Any) -> Any:
        return recorder.resolve_positions(pick, rows) if isinstance(pick, (str, Mapping)) else pick

    try:
        if info.kind == "attention":
            heads, queries, keys = inner
            return (
                rows,
                _positions(resolve(queries), scope),
                steps,
                _axis_indices(heads, info.inner[0]),
                None,
                _positions(resolve(keys), None),
            )
        positions = _positions(resolve(inner[0]), scope)
        if info.kind == "heads":
            if inner[2] != FULL_SLICE:
                return None
            return (rows, positions, steps, _axis_indices(inner[1], info.inner[0]), None, None)
        return (rows, positions, steps, None, _axis_indices(inner[1], info.inner[0]), None)
    except _NotSelectable:
        return None


def _resolve_words(pick: Any, rows: list[int] | None, recorder: Recorder) -> Any:
    """Resolves positions given as a word, text or messages to an index into the whole activation."""
    if not isinstance(pick, (str, Mapping)):
        return pick
    positions = recorder.resolve_positions(pick, rows)
    if positions == "generated":
        raise PlanError("generated positions cannot be combined with this subscript", "select them alone")
    return (
        {"last": slice(-1, None), "prompt": FULL_SLICE, "all": FULL_SLICE}.get(positions, positions)
        if isinstance(positions, str)
        else positions
    )


class _NotSelectable(Exception):
    """An index that a tap cannot select."""


def _positions(pick: Any, scope: Scope | None) -> Any:
    if isinstance(pick, slice) and pick == FULL_SLICE:
        return None
    if scope is not None and scope.steps is not None:
        # A generation step computes one position.
        if pick in (0, -1):
            return None
        raise PlanError(f"position {pick!r} of a step", "a step has one position: use [:, -1], or omit the subscript")
    if isinstance(pick, int):
        return [pick]
    if isinstance(pick, slice) and pick.step is not None and pick.step < 1:
        raise _NotSelectable
    # -1 may be the same position as 5, which only the length of the row tells.
    if isinstance(pick, list) and (len(set(pick)) != len(pick) or min(pick, default=0) < 0 <= max(pick, default=0)):
        raise _NotSelectable
    return pick


def _axis_indices(pick: Any, length: int) -> list[int] | None:
    """Resolves an index of an axis of known length to non-negative indices; `None` for all."""
    if isinstance(pick, (str, Mapping)):
        raise PlanError(f"{pick!r} does not index this axis", "tokens and messages pick positions")
    if isinstance(pick, slice):
        return None if pick == FULL_SLICE else list(range(length))[pick]
    indices = [pick] if isinstance(pick, int) else pick
    for index in indices:
        if not -length <= index < length:
            raise PlanError(f"index {index} is out of range for an axis of length {length}", "indices count from 0")
    resolved = [index % length for index in indices]
    if len(set(resolved)) != len(resolved):
        # A tap selects each element once; an index into the whole activation may repeat.
        raise _NotSelectable
    return resolved
