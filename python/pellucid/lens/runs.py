"""Running a model the TransformerLens way: `model(…)`, `run_with_cache`, `run_with_hooks`, `hooks`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import convert
from ..errors import InputError, SiteError
from ..selection import Scope
from ..values import Value
from ..views import View
from .activation_cache import ActivationCache
from .base import Part
from .hooks import (
    Hook,
    HookList,
    Metric,
    Settled,
    hooks_of,
    installed,
    installed_on,
    number_of,
    record,
    see_to,
    suspended,
)
from .names import NamesFilter, hook_name, sites_matching
from .selecting import (
    Pick,
    at_positions,
    batched,
    check_lengths,
    check_positions,
    layer_to_stop_at,
    pick_of,
    runs_before,
    stream_before,
)

if TYPE_CHECKING:
    from .. import _core
    from ..model import Model
    from ..sites import SiteInfo
    from ..trace import Block

RETURN_TYPES = ("logits", "loss", "both", None)


@dataclass
class Request:
    """What a run is asked for."""

    rows: list[Any]
    output: str | None
    """The site that is returned."""
    loss: bool = False
    sites: list[SiteInfo] = field(default_factory=list)
    pick: Pick = None
    forward: list[Hook] = field(default_factory=list)
    backward: list[Hook] = field(default_factory=list)
    metric: Metric | None = None
    gradients: bool = False


@dataclass
class Outcome:
    """What a run gave: arrays of each prompt, by site."""

    output: np.ndarray | None
    loss: np.ndarray | None
    values: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    metric: float | None


class Running(Part):
    """The part of a model that runs it as TransformerLens does."""

    _edits: tuple[_core.Plan, ...]

    @property
    def edits(self) -> tuple[_core.Plan, ...]:
        """Standing edits: plans that every run of this model begins with, in this order; those of open `hooks` blocks come last."""
        standing = installed_on(self._model)
        return (*self._edits, *(one.plan for one in standing if one.plan is not None)) if standing else self._edits

    @edits.setter
    def edits(self, plans: tuple[_core.Plan, ...]) -> None:
        self._edits = plans

    def __call__(
        self,
        prompts: Any,
        return_type: str | None = "logits",
        *,
        stop_at_layer: int | None = None,
        padded: bool = False,
    ) -> Any:
        """Logits `[batch, positions, vocabulary]` of prompts, their loss, or the stream that enters a layer.

        Args:
            prompts: As in `trace`; one prompt is a batch of one.
            return_type: `"logits"`, `"loss"` (the mean of minus the log probability of each next token), `"both"` or `None`.
            stop_at_layer: The first layer not to run: what would enter it is returned. Negative layers count from the end.
            padded: Takes prompts of unequal length; shorter ones are filled up with zeros at their ends, after the run.
        """
        return self.run_with_hooks(prompts, return_type, stop_at_layer=stop_at_layer, padded=padded)

    def run_with_hooks(
        self,
        prompts: Any,
        return_type: str | None = "logits",
        *,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        metric: Metric | None = None,
        stop_at_layer: int | None = None,
        padded: bool = False,
    ) -> Any:
        """Runs prompts with functions at some of the model's activations.

        Args:
            prompts: As in `trace`. Several have to be equally long where there are hooks.
            return_type: As in `model(…)`.
            fwd_hooks: Pairs of a name (or a function of names) and a function `f(activation, hook)` that gets a numpy array
                `[batch, positions, …]` of its own; it returns another in its place, or changes it and returns `None`.
            bwd_hooks: The same for gradients, which are of `metric`, or of the loss where that is returned.
            metric: Given the recording block, a number: `lambda t: t.logits[:, -1, yes].sum()`.
            stop_at_layer: As in `model(…)`.
            padded: As in `model(…)`.
        """
        stop = layer_to_stop_at(self._model, stop_at_layer)
        request = _request(self._model, prompts, return_type, stop, padded)
        _add_hooks(self._model, request, fwd_hooks, bwd_hooks, metric, stop)
        return _returned(_run(self._model, request), return_type, stop)

    def run_with_cache(
        self,
        prompts: Any,
        return_type: str | None = "logits",
        *,
        names_filter: NamesFilter = None,
        stop_at_layer: int | None = None,
        pos_slice: Any = None,
        incl_bwd: bool = False,
        metric: Metric | None = None,
        remove_batch_dim: bool = False,
        padded: bool = False,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
    ) -> tuple[Any, ActivationCache]:
        """Runs prompts, and keeps activations: what `model(…)` returns, and an `ActivationCache`.

        Args:
            prompts: As in `trace`; one prompt is a batch of one.
            return_type: As in `model(…)`; without logits (`None`) the end of the model is not computed.
            names_filter: Which activations to keep: a name, a pattern, a list of those, or a function of names. By default all but
                `attn.hook_result` and the logits, which are large; name them to have them.
            stop_at_layer: As in `model(…)`.
            pos_slice: Which positions to keep: a number, a slice (or its bounds), or a list; of attention, which queries.
            incl_bwd: Keeps gradients, too, as `cache[name + "_grad"]`: of `metric`, or of the loss where that is returned.
            metric: Given the recording block, a number: `lambda t: t.logits[:, -1, yes].sum()`.
            remove_batch_dim: Leaves the axis of the batch out of a batch of one.
            padded: As in `model(…)`; `cache.lengths` says where each prompt ends.
            fwd_hooks: As in `run_with_hooks`; what is kept is what hooks left.
            bwd_hooks: As in `run_with_hooks`.
        """
        stop = layer_to_stop_at(self._model, stop_at_layer)
        request = _request(self._model, prompts, return_type, stop, padded)
        if remove_batch_dim and len(request.rows) != 1:
            raise InputError(f"remove_batch_dim with {len(request.rows)} prompts", "it goes with one prompt")
        request.sites = _sites_to_keep(self._model, names_filter, stop)
        request.pick = pick_of(pos_slice)
        check_positions(request.pick, [len(row) for row in request.rows])
        request.gradients = incl_bwd
        _add_hooks(self._model, request, fwd_hooks, bwd_hooks, metric, stop)
        outcome = _run(self._model, request)
        cache = ActivationCache(
            self._model,
            outcome.values,
            outcome.gradients,
            metric=outcome.metric,
            lengths=[len(row) for row in request.rows],
        )
        if remove_batch_dim:
            cache.remove_batch_dim()
        return _returned(outcome, return_type, stop), cache

    def hooks(self, fwd_hooks: HookList = (), bwd_hooks: HookList = ()) -> AbstractContextManager[Model]:
        """A block in which every run of this model has these hooks; after it none has, whatever happened.

        It holds for this model object and this thread. `trace` and `generate` call a hook for each prompt apart (a batch of one), and
        in generation for each step's positions.
        """
        return installed(self._model, fwd_hooks, bwd_hooks)


def _request(model: Model, prompts: Any, return_type: str | None, stop: int | None, padded: bool) -> Request:
    if return_type not in RETURN_TYPES:
        raise InputError(f"return_type={return_type!r}", "it is 'logits', 'loss', 'both' or None")
    rows, _ = convert.rows(model._core, prompts)
    check_lengths(
        rows, padded, "padded=True fills shorter ones up with zeros, each keeping the numbers that it has alone"
    )
    if stop is not None:
        if return_type in ("loss", "both"):
            raise InputError("a run that stops at a layer has no loss", "leave stop_at_layer or return_type out")
        return Request(rows, stream_before(model, stop) if return_type else None)
    return Request(rows, "logits" if return_type in ("logits", "both") else None, loss=return_type in ("loss", "both"))


def _add_hooks(
    model: Model,
    request: Request,
    forward: HookList,
    backward: HookList,
    metric: Metric | None,
    stop: int | None,
) -> None:
    for standing in installed_on(model):
        request.forward += standing.forward
        request.backward += standing.backward
    request.forward += hooks_of(model, forward)
    request.backward += hooks_of(model, backward)
    request.forward = _hooks_that_run(request.forward, stop)
    request.backward = _hooks_that_run(request.backward, stop)
    if request.forward or request.backward:
        check_lengths(
            request.rows, False, "a hook gets all prompts in one: run them one by one, which gives the same numbers"
        )
    rows = request.rows
    request.metric = metric if metric is not None else (lambda block: loss_of(block, rows)) if request.loss else None
    if (request.gradients or request.backward) and request.metric is None:
        raise InputError(
            "gradients of what?",
            "give metric=lambda t: t.logits[:, -1, token].sum(), an expression over the block's sites; or return_type='loss'",
        )
    if not (request.gradients or request.backward):
        request.metric = None


def _hooks_that_run(hooks: list[Hook], stop: int | None) -> list[Hook]:
    early = [hook for hook in hooks if runs_before(hook.point.site, stop)]
    if hooks and not early:
        raise SiteError(
            f"a hook after stop_at_layer={stop} would never be called",
            "stop later, or hook earlier",
            site=hooks[0].point.name,
        )
    return early


def _sites_to_keep(model: Model, names: NamesFilter, stop: int | None) -> list[SiteInfo]:
    sites = sites_matching(model, names)
    late = [site for site in sites if not runs_before(site, stop)]
    by_name = names is not None and not callable(names)
    if late and (by_name or len(late) == len(sites)):
        raise SiteError(
            f"this comes after stop_at_layer={stop}", "stop later, or ask for earlier layers", site=hook_name(late[0])
        )
    return [site for site in sites if site not in late]


def _run(model: Model, request: Request) -> Outcome:
    """Runs a request; hooks that stand on the model are among the request's own."""
    with suspended():
        settled = None
        if request.backward or (request.forward and request.metric is not None):
            settled = Settled(model, request.rows, request.metric)
            settled.settle(request.forward, request.backward, request.sites if request.gradients else [])
        with model.trace(request.rows) as block:
            if settled is not None:
                metric = settled.write(block)
            else:
                record(block, request.forward, len(request.rows))
                see_to(block, request.forward)
                metric = number_of(block, request.metric)
            number = None if metric is None else block._recorder.metric(metric)
            kept = {
                site.address: at_positions(block[site.address], site, request.pick).save() for site in request.sites
            }
            gradients = {
                site.address: at_positions(block[site.address].gradient_of(number), site, request.pick).save()
                for site in request.sites
                if request.gradients and number is not None
            }
            output = block[request.output].save() if request.output is not None else None
            loss = loss_of(block, request.rows).save() if request.loss else None
            metric = metric.copy().save() if metric is not None else None
    return Outcome(
        None if output is None else batched(output.value),
        None if loss is None else np.asarray(loss.value),
        {address: batched(value.value) for address, value in kept.items()},
        {address: batched(value.value) for address, value in gradients.items()},
        None if metric is None else float(np.sum(metric.value)),
    )


def loss_of(block: Block, rows: list[Any]) -> Value:
    """The mean, over all prompts and positions, of minus the log probability of the next token."""
    short = [row for row, tokens in enumerate(rows) if len(tokens) < 2]
    if short:
        raise InputError(f"prompt {short[0]} has one token, and so none to predict", "a loss needs at least two tokens")
    total = None
    for row, tokens in enumerate(rows):
        view = View(block._recorder, Scope((row,), True))
        chosen = view.logits[:, :-1].log_softmax().take(np.asarray(tokens[1:])).sum()
        total = chosen if total is None else total + chosen
    assert total is not None
    return total * (-1.0 / sum(len(tokens) - 1 for tokens in rows))


def _returned(outcome: Outcome, return_type: str | None, stop: int | None) -> Any:
    if return_type == "both":
        return outcome.output, outcome.loss
    return outcome.loss if return_type == "loss" and stop is None else outcome.output
