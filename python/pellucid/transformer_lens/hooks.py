"""Hooks: Python functions that receive an activation during a run and may replace it.

A hook receives the whole batch, `[batch, pos, …]`. The engine calls it once, during the forward
pass, when all prompts have reached its site. With a metric this is not possible, because a Python
function has no gradient. Then each hook is evaluated in a separate run up to its site, and the
array it returns is written as a constant in all later runs (`EvaluatedHooks`). Backward hooks are
evaluated the same way, from the last site to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import convert
from ..convert import array as as_array
from ..errors import InputError, PlanError
from ..selection import Scope
from ..values import Value
from ..views import View
from .names import Names, hook_name, match_sites

if TYPE_CHECKING:
    from .. import _core
    from ..model import Model
    from ..site_table import SiteInfo
    from ..trace import Block

HookFunction = Callable[[np.ndarray, "HookPoint"], Any]
HookList = Sequence[tuple[Names, HookFunction]]
Metric = Callable[[Any], Value]
"""A function that records a scalar to differentiate, from the sites of the trace it receives."""


class HookPoint:
    """The point at which a hook is called: `hook.name`, `hook.layer()`, and `hook.ctx`, a dict for
    the hook's own data.
    """

    def __init__(self, site: SiteInfo) -> None:
        self.site = site
        self.name = hook_name(site)
        self.ctx: dict[Any, Any] = {}

    def layer(self) -> int:
        """The layer index."""
        if self.site.layer is None:
            raise PlanError("this hook is not in a layer", "use hook.name", site=self.name)
        return self.site.layer

    def __repr__(self) -> str:
        return f"HookPoint({self.name!r})"


class Hook(NamedTuple):
    """A hook function and its point."""

    point: HookPoint
    function: HookFunction

    def apply(self, batch: np.ndarray) -> np.ndarray:
        """Calls the function on a copy of the batch; returns its result, or the copy if it returns
        `None`.
        """
        argument = np.array(batch)
        returned = self.function(argument, self.point)
        try:
            result = argument if returned is None else as_array(returned)
        except PlanError:
            raise PlanError(
                f"the hook {_name_of(self.function)} returned {type(returned).__name__}, which is not an array of numbers",
                "return an array of the activation's shape, or None to keep it",
                site=self.point.name,
            ) from None
        if result.shape != batch.shape:
            raise PlanError(
                f"the hook {_name_of(self.function)} returned shape {list(result.shape)} for an activation of shape {list(batch.shape)}",
                "return an array of the activation's shape, or None to keep it",
                site=self.point.name,
            )
        return result

    def apply_to_one_prompt(self, activation: np.ndarray) -> np.ndarray:
        """Like `apply`, for a single prompt's activation without batch axis, as the engine passes
        it.
        """
        return self.apply(activation[None])[0]


def resolve_hooks(model: Model, listed: HookList) -> list[Hook]:
    """Resolves `(name, function)` pairs to hooks in forward order; at the same site in list order."""
    points: dict[str, HookPoint] = {}
    hooks = []
    for number, pair in enumerate(convert.items(listed, "the list of hooks", "pass [(name, function)]")):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not callable(pair[1]):
            raise PlanError(
                f"hook {number} is {pair!r}",
                "hooks are pairs: (name or predicate on names, function(activation, hook))",
            )
        for site in match_sites(model, pair[0]):
            point = points.setdefault(site.address, HookPoint(site))
            hooks.append(Hook(point, pair[1]))
    order = {site.address: index for index, site in enumerate(model.sites)}
    return sorted(hooks, key=lambda hook: order[hook.point.site.address])


def record_hooks(block: Block, hooks: Sequence[Hook], rows: int = 1) -> None:
    """Records a call of each hook, with the activations of all `rows` prompts."""
    for hook in hooks:
        address = hook.point.site.address
        if rows == 1:
            block[address] = block.call(hook.apply_to_one_prompt, block[address])
            continue
        batch = block.call(hook.apply, block[address].stack_rows())
        for row in range(rows):
            View(block._recorder, Scope((row,), True))[address] = batch[row]


def keep_hooks_reachable(block: Block, hooks: Sequence[Hook]) -> None:
    """Saves the hooked sites: a run ends after the last site that is read, so later hooks would not
    be called.
    """
    for address in {hook.point.site.address for hook in hooks}:
        block[address].save()


def record_metric(block: Block, metric: Metric | None) -> Value | None:
    """Calls the metric function on the trace and checks that it returns a recorded value."""
    if metric is None:
        return None
    value = metric(block)
    if not isinstance(value, Value):
        raise InputError(
            f"the metric returned {type(value).__name__}, not a recorded value",
            "compute it from sites of the trace: lambda t: (t.logits[:, -1, yes] - t.logits[:, -1, no]).sum()",
        )
    return value


class EvaluatedHooks:
    """Hooks evaluated beforehand, for runs with gradients: the arrays to write, in forward order."""

    def __init__(self, model: Model, rows: list[Any], metric: Metric | None) -> None:
        self._model = model
        self._rows = rows
        self._metric = metric
        self._forward: list[tuple[str, list[np.ndarray]]] = []
        self._backward: list[tuple[str, list[np.ndarray]]] = []

    def evaluate(self, forward: Sequence[Hook], backward: Sequence[Hook], gradients: Sequence[SiteInfo]) -> None:
        """Runs the prompts up to each hook's site and calls the hook with the batch there."""
        for hook in forward:
            self._evaluate(hook, self._forward, backward=False)
        self._check_gradients([*gradients, *(hook.point.site for hook in backward)])
        for hook in reversed(backward):
            self._evaluate(hook, self._backward, backward=True)

    def _check_gradients(self, sites: Sequence[SiteInfo]) -> None:
        """Raises if a gradient would flow through a hook: a Python function is not differentiable."""
        order = {site.address: index for index, site in enumerate(self._model.sites)}
        for address, _ in self._forward:
            for site in sites:
                if order[site.address] < order[address]:
                    raise InputError(
                        f"the gradient at `{hook_name(site)}` would flow through the hook at "
                        f"`{hook_name(self._model.sites[address])}`, a Python function without gradient",
                        "take gradients only at later sites, or edit the activation with recorded operations in a trace",
                    )

    def _evaluate(self, hook: Hook, writes: list[tuple[str, list[np.ndarray]]], *, backward: bool) -> None:
        address = hook.point.site.address
        with self._model.trace(self._rows) as block:
            metric = self.write(block)
            site = block[address]
            if backward and metric is not None:
                site = site.gradient_of(block._recorder.add_metric(metric))
            saved = site.save()
        before = np.stack(saved.value)
        after = hook.apply(before)
        if not np.array_equal(before, after, equal_nan=True):
            writes.append((address, list(after)))

    def write(self, block: Block) -> Value | None:
        """Records the writes of the hooks evaluated so far; returns the metric, if there is one."""
        for address, arrays in self._forward:
            block[address] = arrays
        metric = record_metric(block, self._metric)
        if metric is not None:
            metric_index = block._recorder.add_metric(metric)
            for address, arrays in self._backward:
                block[address].gradient_of(metric_index)._write("set", arrays)
        return metric


class InstalledHooks(NamedTuple):
    """Hooks of an open `with model.hooks(…)` block."""

    model: Model
    forward: tuple[Hook, ...]
    backward: tuple[Hook, ...]
    plans: dict[int, _core.Plan]
    """The recorded forward hooks by the number of prompts that they receive together."""

    def plan_for(self, rows: int) -> _core.Plan:
        """The plan that calls each forward hook with `rows` prompts; 1 calls it for each prompt."""
        if rows not in self.plans:
            with self.model.plan() as block:
                record_hooks(block, self.forward, rows)
            self.plans[rows] = block.plan
        return self.plans[rows]


_INSTALLED: ContextVar[tuple[InstalledHooks, ...]] = ContextVar("hooks", default=())
"""Per thread (and asyncio task), so that other threads can use the same model without the hooks."""


def hooks_on(model: Model) -> tuple[InstalledHooks, ...]:
    """The hooks of a model's open `hooks` blocks."""
    installed = _INSTALLED.get()
    return tuple(hooks for hooks in installed if hooks.model is model) if installed else installed


@contextmanager
def install_hooks(model: Model, forward: HookList, backward: HookList) -> Iterator[Model]:
    """Installs hooks on a model for the duration of a `with` block."""
    added = InstalledHooks(model, tuple(resolve_hooks(model, forward)), tuple(resolve_hooks(model, backward)), {})
    token = _INSTALLED.set((*_INSTALLED.get(), added))
    try:
        yield model
    finally:
        _INSTALLED.reset(token)


@contextmanager
def suspend_hooks() -> Iterator[None]:
    """Removes all installed hooks for the duration of a `with` block, for runs that call their
    hooks themselves.
    """
    token = _INSTALLED.set(())
    try:
        yield
    finally:
        _INSTALLED.reset(token)


def _name_of(function: HookFunction) -> str:
    return f"`{getattr(function, '__qualname__', type(function).__name__)}`"
