"""Plans as Python objects, and explanations of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _core, convert
from .chat import positions_in
from .errors import PlanError
from .steering import SteeringVectors
from .trace import PlanBlock


class Explanation:
    """What a plan does and costs: `print` it for text; `facts` has the same as a dict."""

    def __init__(self, text: str, facts: dict[str, Any]) -> None:
        self.facts = facts
        self._text = text

    def __repr__(self) -> str:
        return self._text


def capture_plan(rows: list[Any], capture: Any, positions: Any) -> _core.Plan:
    """A plan that captures sites of these rows at positions: all if `None`; by message or role if a
    mapping.
    """
    if not isinstance(capture, (str, Iterable)):
        raise PlanError(f"capture is {capture!r}", "pass a site, a pattern, or a list of these")
    each = [capture] if isinstance(capture, str) else capture
    patterns = [convert.text(pattern, "a site of capture") for pattern in each]
    if isinstance(positions, (int, np.integer)) and not isinstance(positions, bool):
        positions = [convert.integer(positions, "the position")]
    elif isinstance(positions, str):
        positions = convert.text(positions, "positions")
    elif positions is not None and not isinstance(positions, (slice, Mapping)):
        positions = convert.integers(positions, "a position")
    selects: list[Any] = [None if positions is None else (None, positions, None, None, None, None)]
    if isinstance(positions, Mapping):
        # The positions of a message differ between rows.
        found = [positions_in(row, positions) for row in rows]
        selects = [([row], at, None, None, None, None) for row, at in enumerate(found)]
    taps = [(0, None, "capture", site, select) for site in patterns for select in selects]
    return _core.Plan.from_record(taps, [], [], [], False)


def as_plan(plan: Any) -> _core.Plan:
    """Converts a `Plan`, `plan()` block, `SteeringVectors`, JSON string, dict, list of taps or
    steering spec to a `Plan`.
    """
    if isinstance(plan, _core.Plan):
        return plan
    if isinstance(plan, SteeringVectors):
        plan = plan.taps()
    if isinstance(plan, PlanBlock):
        return plan.plan
    if isinstance(plan, str):
        return _core.Plan.from_json(convert.text(plan, "the plan"))
    if isinstance(plan, Sequence) and not isinstance(plan, (bytes, bytearray)):
        plan = {"taps": list(plan)}
    elif isinstance(plan, dict) and "taps" not in plan and ("layers" in plan or "experiments" in plan):
        plan = {"steer": plan}
    if not isinstance(plan, Mapping):
        raise PlanError(f"{plan!r} is not a plan", "pass a dict, a list of taps, JSON, a Plan or a plan() block")
    try:
        text = json.dumps(plan, default=_as_list, allow_nan=False, ensure_ascii=False)
    except (TypeError, RecursionError) as problem:
        raise PlanError(f"the plan is not JSON: {problem}", "use dicts, lists, numbers, texts and arrays") from None
    except ValueError as problem:
        if "Circular" in str(problem):
            raise PlanError("the plan contains itself", "give each part a copy of its own") from None
        hint = 'replace NaN and infinite numbers; "-inf" stands for minus infinity'
        raise PlanError(f"the plan has a number that JSON does not have: {problem}", hint) from None
    return _core.Plan.from_json(convert.text(text, "the plan"))


def _as_list(value: Any) -> Any:
    """Converts arrays in a plan (numpy, torch) to lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a plan cannot hold a {type(value).__name__}")
