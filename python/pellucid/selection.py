"""Subscripts of sites: which rows, positions, heads, units and keys they mean.

A subscript begins with the rows. What a tap can select itself is left to it, so that only the selected numbers are ever copied;
other subscripts (a reversed slice, part of a head) are taken from the whole value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import PlanError
from .sites import SiteInfo

if TYPE_CHECKING:
    from .record import Recorder

WHOLE = slice(None)

Select = tuple[Any, Any, Any, Any, Any, Any]
"""Rows, positions, steps, heads, units and keys of a tap; `None` for all."""

EVERYTHING: Select = (None, None, None, None, None, None)


class Scope:
    """The rows and steps that a view sees."""

    __slots__ = ("rows", "select", "single", "steps")

    def __init__(
        self, rows: tuple[int, ...] | None, single: bool, steps: int | slice | list[int] | None = None
    ) -> None:
        self.rows = rows
        """The rows of the call; all where absent."""
        self.single = single
        """One prompt that was not in a list: its values come without the axis of rows."""
        self.steps = steps
        selected_steps = [steps] if isinstance(steps, int) else steps
        nothing = rows is None and steps is None
        self.select: Select | None = None if nothing else (_list(rows), None, selected_steps, None, None, None)


def _list(rows: tuple[int, ...] | None) -> list[int] | None:
    return None if rows is None else list(rows)


class Selected(NamedTuple):
    """What a subscript means."""

    select: Select | None
    """What the tap selects."""
    scope: Scope | None
    """The rows that are left; `None` where one row was picked, whose value every row can use."""
    drop: tuple[Any, ...] | None
    """An index of what the tap selects that takes away the axes which a single number picked."""
    picks: tuple[Any, ...] | None
    """An index of the whole value, where a tap cannot select it."""


def subscript(info: SiteInfo, scope: Scope, key: Any, recorder: Recorder) -> Selected:
    """Reads a subscript of a whole site."""
    rank = 4 if info.kind != "flat" else 3
    picks = expand(key, rank)
    rows, inner_scope = _rows(scope, picks[0])
    inner = picks[1:]
    base = (rows, None, scope.select[2] if scope.select else None, None, None, None)
    chosen = None if any(pick is None for pick in inner) else _by_tap(info, scope, base, inner, recorder)
    if chosen is None:
        select = None if base == EVERYTHING else base
        return Selected(select, inner_scope, None, inner)
    drop = tuple(0 if isinstance(pick, int) else WHOLE for pick in inner)
    while drop and drop[-1] == WHOLE:
        drop = drop[:-1]
    return Selected(None if chosen == EVERYTHING else chosen, inner_scope, drop or None, None)


def expand(key: Any, rank: int) -> tuple[Any, ...]:
    """A subscript with one pick for each axis (and for each new one); masks and arrays become lists of places."""
    picks = [_plain(pick) for pick in (key if isinstance(key, tuple) else (key,))]
    given = sum(pick is not None and pick is not Ellipsis for pick in picks)
    if given > rank or sum(pick is Ellipsis for pick in picks) > 1:
        raise PlanError(f"an index of {given} axes, and there are {rank}", "the first axis is the rows")
    if Ellipsis not in picks:
        picks.append(Ellipsis)
    at = picks.index(Ellipsis)
    return (*picks[:at], *(WHOLE for _ in range(rank - given)), *picks[at + 1 :])


def _plain(pick: Any) -> Any:
    if pick is None or pick is Ellipsis or (isinstance(pick, (int, slice, str)) and not isinstance(pick, bool)):
        return pick
    if isinstance(pick, (list, tuple, range, np.ndarray, np.integer)) or hasattr(pick, "tolist"):
        places = np.asarray(pick)
        if places.dtype == bool and places.ndim == 1:
            return np.nonzero(places)[0].tolist()
        if places.dtype.kind in "iu" and places.ndim <= 1:
            return places.tolist()
    raise PlanError(
        f"{pick!r} does not index an axis", "index with numbers, slices, lists of numbers, masks, or a token's text"
    )


def _rows(scope: Scope, pick: Any) -> tuple[list[int] | None, Scope | None]:
    """The rows of the call that a pick among the scope's rows means."""
    if isinstance(pick, slice) and pick == WHOLE:
        return _list(scope.rows), scope
    if scope.rows is None:
        if isinstance(pick, int) and pick >= 0:
            return [pick], None
        if isinstance(pick, list) and all(row >= 0 for row in pick):
            return pick, Scope(tuple(pick), False, scope.steps)
        if scope.single and pick == -1:
            return [0], None
        raise PlanError(
            f"rows {pick!r} of a batch",
            "pick rows by numbers from 0, or all of them with a colon: the first axis is the rows",
        )
    if isinstance(pick, str) or pick is None:
        raise PlanError(f"{pick!r} does not pick rows", "the first axis is the rows")
    try:
        rows = [scope.rows[pick]] if isinstance(pick, int) else np.asarray(scope.rows)[pick].tolist()
    except IndexError:
        raise PlanError(f"there is no row {pick}: this view has {len(scope.rows)}", "rows count from 0") from None
    return rows, None if isinstance(pick, int) else Scope(tuple(rows), False, scope.steps)


def _by_tap(info: SiteInfo, scope: Scope, base: Select, inner: tuple[Any, ...], recorder: Recorder) -> Select | None:
    """What a tap selects for picks of the inner axes, if it can."""
    rows, _, steps, *_ = base

    def named(pick: Any) -> Any:
        return recorder.places_of(pick, rows) if isinstance(pick, str) else pick

    try:
        if info.kind == "attention":
            heads, queries, keys = inner
            return (
                rows,
                _positions(named(queries), scope),
                steps,
                _places(heads, info.inner[0]),
                None,
                _positions(named(keys), None),
            )
        positions = _positions(named(inner[0]), scope)
        if info.kind == "heads":
            if inner[2] != WHOLE:
                return None
            return (rows, positions, steps, _places(inner[1], info.inner[0]), None, None)
        return (rows, positions, steps, None, _places(inner[1], info.inner[0]), None)
    except _BeyondTaps:
        return None


class _BeyondTaps(Exception):
    """A pick that a tap cannot select."""


def _positions(pick: Any, scope: Scope | None) -> Any:
    if isinstance(pick, slice) and pick == WHOLE:
        return None
    if scope is not None and scope.steps is not None:
        # A step has one position: the one that it computes.
        if pick in (0, -1):
            return None
        raise PlanError(
            f"position {pick!r} of a step", "a step has one position: take [:, -1], or leave the subscript out"
        )
    if isinstance(pick, int):
        return [pick]
    if isinstance(pick, slice) and pick.step is not None and pick.step < 1:
        raise _BeyondTaps
    return pick


def _places(pick: Any, length: int) -> list[int] | None:
    """Places along an axis of known length, from its start."""
    if isinstance(pick, str):
        raise PlanError(f"{pick!r} does not index this axis", "a token's text picks positions")
    if isinstance(pick, slice):
        return None if pick == WHOLE else list(range(length))[pick]
    places = [pick] if isinstance(pick, int) else pick
    for place in places:
        if not -length <= place < length:
            raise PlanError(f"there is no place {place} on an axis of {length}", "places count from 0")
    return [place % length for place in places]
