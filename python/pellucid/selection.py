"""Parses subscripts of sites into selections of rows, positions, heads, units and keys.

The first axis is the rows. Whatever a tap can select is left to the tap, so that only the selected
elements are copied. Other subscripts (a reversed slice, part of a head) index the whole activation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
        return Subscript(select, inner_scope, None, inner)
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
    if (
        pick is None
        or pick is Ellipsis
        or (isinstance(pick, (int, slice, str, Mapping)) and not isinstance(pick, bool))
    ):
        return pick
    if isinstance(pick, (list, tuple, range, np.ndarray, np.integer)) or hasattr(pick, "tolist"):
        indices = np.asarray(pick)
        if indices.dtype == bool and indices.ndim == 1:
            return np.nonzero(indices)[0].tolist()
        if indices.dtype.kind in "iu" and indices.ndim <= 1:
            return indices.tolist()
    raise PlanError(
        f"{pick!r} does not index an axis",
        "use integers, slices, lists of integers, masks, a token's text, or messages",
    )


def _select_rows(scope: Scope, pick: Any) -> tuple[list[int] | None, Scope | None]:
    """Resolves an index into the scope's rows to row indices of the call."""
    if isinstance(pick, slice) and pick == FULL_SLICE:
        return _list(scope.rows), scope
    if scope.rows is None:
        if isinstance(pick, int) and pick >= 0:
            return [pick], None
        if isinstance(pick, list) and all(row >= 0 for row in pick):
            return pick, Scope(tuple(pick), False, scope.steps)
        if scope.single and pick == -1:
            return [0], None
        raise PlanError(
            f"invalid row index {pick!r}",
            "the first axis is the rows: use integers from 0, or a colon for all",
        )
    if isinstance(pick, (str, Mapping)) or pick is None:
        raise PlanError(f"{pick!r} does not index rows", "the first axis is the rows")
    try:
        rows = [scope.rows[pick]] if isinstance(pick, int) else np.asarray(scope.rows)[pick].tolist()
    except IndexError:
        raise PlanError(f"there is no row {pick}: this view has {len(scope.rows)}", "rows count from 0") from None
    return rows, None if isinstance(pick, int) else Scope(tuple(rows), False, scope.steps)


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
    return [index % length for index in indices]
