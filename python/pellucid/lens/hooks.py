"""Hooks: Python functions that see an activation while the model runs, and may return another in its place.

A hook gets the whole batch, `[batch, positions, …]`. The engine calls it once, in the middle of the one forward pass, when all
prompts have reached its site. With a metric, hooks are settled one by one instead, because gradients are linear in recorded
operations only: a run up to the hook's site shows the batch there, and the array that the hook returned is written as a constant in
the runs after it. Backward hooks are settled the same way, from the last site to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..convert import array as as_array
from ..errors import InputError, PlanError
from ..selection import Scope
from ..values import Value
from ..views import View
from .names import Names, hook_name, sites_matching

if TYPE_CHECKING:
    from .. import _core
    from ..model import Model
    from ..sites import SiteInfo
    from ..trace import Block

HookFunction = Callable[[np.ndarray, "HookPoint"], Any]
HookList = Sequence[tuple[Names, HookFunction]]
Metric = Callable[[Any], Value]
"""A number to take gradients of: given the recording block, an expression over its sites."""


class HookPoint:
    """Where a hook is called: `hook.name`, `hook.layer()`, and `hook.ctx` to keep things in for the time of a run."""

    def __init__(self, site: SiteInfo) -> None:
        self.site = site
        self.name = hook_name(site)
        self.ctx: dict[Any, Any] = {}

    def layer(self) -> int:
        """The layer it is in."""
        if self.site.layer is None:
            raise PlanError("this hook is in no layer", "use hook.name", site=self.name)
        return self.site.layer

    def __repr__(self) -> str:
        return f"HookPoint({self.name!r})"


class Hook(NamedTuple):
    """A function at a place."""

    point: HookPoint
    function: HookFunction

    def applied(self, batch: np.ndarray) -> np.ndarray:
        """What the function makes of a batch: what it returned or, where it returned nothing, what it left in its argument."""
        mine = np.array(batch)
        returned = self.function(mine, self.point)
        try:
            made = mine if returned is None else as_array(returned)
        except PlanError:
            raise PlanError(
                f"the hook {_name_of(self.function)} returned {type(returned).__name__}, which is not an array of numbers",
                "return an array of the activation's own shape, or None to leave it",
                site=self.point.name,
            ) from None
        if made.shape != batch.shape:
            raise PlanError(
                f"the hook {_name_of(self.function)} returned shape {list(made.shape)}, and here stands {list(batch.shape)}",
                "return an array of the activation's own shape, or None to leave it",
                site=self.point.name,
            )
        return made

    def of_one_prompt(self, activation: np.ndarray) -> np.ndarray:
        """The same for a single prompt, as the engine hands it over: without the axis of the batch."""
        return self.applied(activation[None])[0]


def hooks_of(model: Model, listed: HookList) -> list[Hook]:
    """Hooks of a list of pairs: in forward order, and at one place in the list's order."""
    points: dict[str, HookPoint] = {}
    found = []
    for number, pair in enumerate(listed):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not callable(pair[1]):
            raise PlanError(
                f"hook {number} is {pair!r}", "hooks are pairs: (name or function of names, function(activation, hook))"
            )
        for site in sites_matching(model, pair[0]):
            point = points.setdefault(site.address, HookPoint(site))
            found.append(Hook(point, pair[1]))
    order = {site.address: place for place, site in enumerate(model.sites)}
    return sorted(found, key=lambda hook: order[hook.point.site.address])


def record(block: Block, hooks: Sequence[Hook], rows: int = 1) -> None:
    """Has the engine call each hook once, with the activations of all `rows` prompts."""
    for hook in hooks:
        address = hook.point.site.address
        if rows == 1:
            block[address] = block.call(hook.of_one_prompt, block[address])
            continue
        batch = block.call(hook.applied, block[address].stack_rows())
        for row in range(rows):
            View(block._recorder, Scope((row,), True))[address] = batch[row]


def see_to(block: Block, hooks: Sequence[Hook]) -> None:
    """Has a run go as far as its hooks: it would end where nobody reads any further, and they would not be called."""
    for address in {hook.point.site.address for hook in hooks}:
        block[address].save()


def number_of(block: Block, metric: Metric | None) -> Value | None:
    """What a metric records in a block."""
    if metric is None:
        return None
    value = metric(block)
    if not isinstance(value, Value):
        raise InputError(
            f"the metric gave {type(value).__name__}, and gradients are of a recorded expression",
            "compute it from the block's sites: lambda t: (t.logits[:, -1, yes] - t.logits[:, -1, no]).sum()",
        )
    return value


class Settled:
    """What hooks made of a batch, for runs with gradients: values to write, in the order of their sites."""

    def __init__(self, model: Model, rows: list[Any], metric: Metric | None) -> None:
        self._model = model
        self._rows = rows
        self._metric = metric
        self._forward: list[tuple[str, list[np.ndarray]]] = []
        self._backward: list[tuple[str, list[np.ndarray]]] = []

    def settle(self, forward: Sequence[Hook], backward: Sequence[Hook], gradients: Sequence[SiteInfo]) -> None:
        """Runs the prompts up to each hook, and calls it with what all of them have there."""
        for hook in forward:
            self._settle(hook, self._forward, backward=False)
        self._check_gradients([*gradients, *(hook.point.site for hook in backward)])
        for hook in reversed(backward):
            self._settle(hook, self._backward, backward=True)

    def _check_gradients(self, sites: Sequence[SiteInfo]) -> None:
        """Refuses gradients that would have to pass through what a Python function did."""
        order = {site.address: place for place, site in enumerate(self._model.sites)}
        for address, _ in self._forward:
            for site in sites:
                if order[site.address] < order[address]:
                    raise InputError(
                        f"the gradient at `{hook_name(site)}` would have to pass through the hook at "
                        f"`{hook_name(self._model.sites[address])}`, and what a Python function does has none",
                        "take gradients from there on, or change the activation in a trace, by recorded operations",
                    )

    def _settle(self, hook: Hook, made: list[tuple[str, list[np.ndarray]]], *, backward: bool) -> None:
        address = hook.point.site.address
        with self._model.trace(self._rows) as block:
            metric = self.write(block)
            seen = block[address]
            if backward and metric is not None:
                seen = seen.gradient_of(block._recorder.metric(metric))
            seen = seen.save()
        before = np.stack(seen.value)
        after = hook.applied(before)
        if not np.array_equal(before, after, equal_nan=True):
            made.append((address, list(after)))

    def write(self, block: Block) -> Value | None:
        """Writes into a block what was settled so far; gives the metric, where there is one."""
        for address, arrays in self._forward:
            block[address] = arrays
        metric = number_of(block, self._metric)
        if metric is not None:
            number = block._recorder.metric(metric)
            for address, arrays in self._backward:
                block[address].gradient_of(number)._write("set", arrays)
        return metric


class Installed(NamedTuple):
    """Hooks that stand while a `with model.hooks(…)` block is open."""

    model: Model
    forward: tuple[Hook, ...]
    backward: tuple[Hook, ...]
    plan: _core.Plan | None


_INSTALLED: ContextVar[tuple[Installed, ...]] = ContextVar("hooks", default=())
"""Of this thread (or task) alone, so that a model can be shared while one of its users has hooks on it."""


def installed_on(model: Model) -> tuple[Installed, ...]:
    """The open blocks of hooks of a model."""
    installed = _INSTALLED.get()
    return tuple(one for one in installed if one.model is model) if installed else installed


@contextmanager
def installed(model: Model, forward: HookList, backward: HookList) -> Iterator[Model]:
    """Puts hooks on a model for the time of a block."""
    found = tuple(hooks_of(model, forward))
    plan = None
    if found:
        with model.plan() as block:
            record(block, found)
        plan = block.plan
    added = Installed(model, found, tuple(hooks_of(model, backward)), plan)
    token = _INSTALLED.set((*_INSTALLED.get(), added))
    try:
        yield model
    finally:
        _INSTALLED.reset(token)


@contextmanager
def suspended() -> Iterator[None]:
    """A time in which nothing is installed, for runs that call their hooks by other means."""
    token = _INSTALLED.set(())
    try:
        yield
    finally:
        _INSTALLED.reset(token)


def _name_of(function: HookFunction) -> str:
    return f"`{getattr(function, '__qualname__', type(function).__name__)}`"
