"""`HooksMixin`: `model(…)`, `run_with_cache`, `run_with_hooks` and `hooks`, as in TransformerLens."""

from __future__ import annotations

from collections.abc import Sequence
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
from .hooks import (
    EvaluatedHooks,
    Hook,
    HookList,
    Metric,
    hooks_on,
    install_hooks,
    keep_hooks_reachable,
    record_hooks,
    record_metric,
    resolve_hooks,
    suspend_hooks,
)
from .mixin import ModelMixin
from .names import NamesFilter, hook_name, match_sites
from .slicing import (
    AxisIndex,
    check_lengths,
    check_positions,
    is_computed_before,
    parse_axis_index,
    resid_site_before,
    resolve_stop_layer,
    select_positions,
    selected_counts,
    stack_batch,
)

if TYPE_CHECKING:
    from .. import _core
    from ..model import Model
    from ..site_table import SiteInfo
    from ..trace import Block

RETURN_TYPES = ("logits", "loss", "both", None)


@dataclass
class RunRequest:
    """The parameters of a run."""

    rows: list[Any]
    output: str | None
    """Address of the site to return: `logits`, or the residual stream where the run stops."""
    loss: bool = False
    sites: list[SiteInfo] = field(default_factory=list)
    """Sites to cache."""
    positions: AxisIndex = None
    forward: list[Hook] = field(default_factory=list)
    backward: list[Hook] = field(default_factory=list)
    metric: Metric | None = None
    gradients: bool = False
    """Cache gradients of `metric` at `sites`, too."""


@dataclass
class RunOutput:
    """The results of a run; arrays are `[batch, …]`, by site address."""

    output: np.ndarray | None
    loss: np.ndarray | None
    values: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    metric: float | None


class HooksMixin(ModelMixin):
    """Running and hooking, as in TransformerLens."""

    _edits: tuple[_core.Plan, ...]

    @property
    def edits(self) -> tuple[_core.Plan, ...]:
        """Standing edits: plans that every run of this model applies first, in this order; those of
        open `hooks` blocks come last.
        """
        return self._edits_with_hooks(1)

    def edits_for(self, rows: Sequence[Sequence[int]]) -> tuple[_core.Plan, ...]:
        """`edits` for a run of these prompts: a hook is called once, with all of them. Prompts of
        unequal length do not fit into one array, so it is called for each.
        """
        return self._edits_with_hooks(len(rows) if len({len(row) for row in rows}) == 1 else 1)

    def _edits_with_hooks(self, rows: int) -> tuple[_core.Plan, ...]:
        installed = hooks_on(self._model)
        if not installed:
            return self._edits
        return (*self._edits, *(hooks.plan_for(rows) for hooks in installed if hooks.forward))

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
        """Runs prompts: returns logits `[batch, pos, d_vocab]`, the loss, or the residual stream
        before a layer.

        Args:
            prompts: As in `trace`; one prompt is a batch of one.
            return_type: `"logits"`, `"loss"` (mean cross-entropy of the next tokens), `"both"` or
                `None`.
            stop_at_layer: The first layer not to run; returns its input. Negative layers count from
                the end.
            padded: Allow prompts of unequal length; results are zero-padded at the end. The run
                itself has no padding.
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
        """Runs prompts with hook functions.

        Args:
            prompts: As in `trace`. With hooks, all prompts must have the same length.
            return_type: As in `model(…)`.
            fwd_hooks: Pairs of a name (or predicate on names) and a function `f(activation, hook)`.
                It receives a writable numpy array `[batch, pos, …]` and returns a replacement, or
                modifies the array and returns `None`.
            bwd_hooks: The same for gradients of `metric`, or of the loss if that is returned.
            metric: The scalar to differentiate, from the sites of the trace:
                `lambda t: t.logits[:, -1, yes].sum()`.
            stop_at_layer: As in `model(…)`.
            padded: As in `model(…)`.
        """
        stop = resolve_stop_layer(self._model, stop_at_layer)
        request = _request(self._model, prompts, return_type, stop, padded)
        _add_hooks(self._model, request, fwd_hooks, bwd_hooks, metric, stop)
        return _return_value(_run(self._model, request), return_type, stop)

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
        """Runs prompts and caches activations; returns the output of `model(…)` and an
        `ActivationCache`.

        Args:
            prompts: As in `trace`; one prompt is a batch of one.
            return_type: As in `model(…)`; with `None`, the unembedding is not computed.
            names_filter: The activations to cache: a name, a pattern, a list of these, or a
                predicate on names. By default all but `attn.hook_result` and the logits, which are
                large; name them to cache them.
            stop_at_layer: As in `model(…)`.
            pos_slice: The positions to cache: an integer, a slice (or its bounds), or a list; for
                attention patterns, the query positions.
            incl_bwd: Also cache gradients, as `cache[name + "_grad"]`: of `metric`, or of the loss
                if that is returned.
            metric: As in `run_with_hooks`.
            remove_batch_dim: Remove the batch axis of a batch of one.
            padded: As in `model(…)`; `cache.lengths` has the length of each prompt.
            fwd_hooks: As in `run_with_hooks`; the cache holds the activations after the hooks.
            bwd_hooks: As in `run_with_hooks`.
        """
        stop = resolve_stop_layer(self._model, stop_at_layer)
        request = _request(self._model, prompts, return_type, stop, padded)
        if remove_batch_dim and len(request.rows) != 1:
            raise InputError(f"remove_batch_dim with {len(request.rows)} prompts", "use it with one prompt")
        request.sites = _sites_to_cache(self._model, names_filter, stop)
        request.positions = parse_axis_index(pos_slice)
        check_positions(request.positions, [len(row) for row in request.rows])
        request.gradients = incl_bwd
        _add_hooks(self._model, request, fwd_hooks, bwd_hooks, metric, stop)
        output = _run(self._model, request)
        cache = ActivationCache(
            self._model,
            output.values,
            output.gradients,
            metric=output.metric,
            lengths=[len(row) for row in request.rows],
            positions=selected_counts(request.positions, request.rows),
        )
        if remove_batch_dim:
            cache.remove_batch_dim()
        return _return_value(output, return_type, stop), cache

    def hooks(self, fwd_hooks: HookList = (), bwd_hooks: HookList = ()) -> AbstractContextManager[Model]:
        """A `with` block in which every run of this model calls these hooks.

        They are always removed at its end.

        Applies to this model object and this thread. `trace` and `generate` call a hook once per
        prompt (as a batch of one), and `generate` once per step with the positions of that step.
        """
        return install_hooks(self._model, fwd_hooks, bwd_hooks)


def _request(model: Model, prompts: Any, return_type: str | None, stop: int | None, padded: bool) -> RunRequest:
    convert.choice(return_type, "return_type", RETURN_TYPES)
    rows, _ = convert.rows(model._core, prompts)
    check_lengths(rows, padded, "use padded=True: results are zero-padded and each prompt has the same values as alone")
    if stop is not None:
        if return_type in ("loss", "both"):
            raise InputError("a run that stops at a layer has no loss", "omit stop_at_layer or return_type")
        return RunRequest(rows, resid_site_before(model, stop) if return_type else None)
    return RunRequest(
        rows, "logits" if return_type in ("logits", "both") else None, loss=return_type in ("loss", "both")
    )


def _add_hooks(
    model: Model,
    request: RunRequest,
    forward: HookList,
    backward: HookList,
    metric: Metric | None,
    stop: int | None,
) -> None:
    for installed in hooks_on(model):
        request.forward += installed.forward
        request.backward += installed.backward
    request.forward += resolve_hooks(model, forward)
    request.backward += resolve_hooks(model, backward)
    request.forward = _hooks_that_run(request.forward, stop)
    request.backward = _hooks_that_run(request.backward, stop)
    if request.forward or request.backward:
        check_lengths(
            request.rows, False, "a hook receives all prompts in one array: run them one by one, with the same results"
        )
    rows = request.rows
    request.metric = (
        metric if metric is not None else (lambda block: record_loss(block, rows)) if request.loss else None
    )
    if (request.gradients or request.backward) and request.metric is None:
        raise InputError(
            "gradients need a metric",
            "pass metric=lambda t: t.logits[:, -1, token].sum(), or return_type='loss'",
        )
    if not (request.gradients or request.backward):
        request.metric = None


def _hooks_that_run(hooks: list[Hook], stop: int | None) -> list[Hook]:
    reached = [hook for hook in hooks if is_computed_before(hook.point.site, stop)]
    if hooks and not reached:
        raise SiteError(
            f"a hook after stop_at_layer={stop} would never be called",
            "stop at a later layer, or hook an earlier one",
            site=hooks[0].point.name,
        )
    return reached


def _sites_to_cache(model: Model, names: NamesFilter, stop: int | None) -> list[SiteInfo]:
    sites = match_sites(model, names)
    late = [site for site in sites if not is_computed_before(site, stop)]
    by_name = names is not None and not callable(names)
    if late and (by_name or len(late) == len(sites)):
        raise SiteError(
            f"this site is after stop_at_layer={stop}",
            "stop at a later layer, or name earlier layers",
            site=hook_name(late[0]),
        )
    return [site for site in sites if site not in late]


def _run(model: Model, request: RunRequest) -> RunOutput:
    """Runs a request.

    Hooks installed on the model are part of the request, so they are suspended here.
    """
    with suspend_hooks():
        evaluated = None
        if request.backward or (request.forward and request.metric is not None):
            evaluated = EvaluatedHooks(model, request.rows, request.metric)
            evaluated.evaluate(request.forward, request.backward, request.sites if request.gradients else [])
        with model.trace(request.rows) as block:
            if evaluated is not None:
                metric = evaluated.write(block)
            else:
                record_hooks(block, request.forward, len(request.rows))
                keep_hooks_reachable(block, request.forward)
                metric = record_metric(block, request.metric)
            metric_index = None if metric is None else block._recorder.add_metric(metric)
            cached = {
                site.address: select_positions(block[site.address], site, request.positions).save()
                for site in request.sites
            }
            gradients = {
                site.address: select_positions(
                    block[site.address].gradient_of(metric_index), site, request.positions
                ).save()
                for site in request.sites
                if request.gradients and metric_index is not None
            }
            output = block[request.output].save() if request.output is not None else None
            loss = record_loss(block, request.rows).save() if request.loss else None
            metric = metric.copy().save() if metric is not None else None
    return RunOutput(
        None if output is None else stack_batch(output.value),
        None if loss is None else np.asarray(loss.value),
        {address: stack_batch(value.value) for address, value in cached.items()},
        {address: stack_batch(value.value) for address, value in gradients.items()},
        None if metric is None else float(np.sum(metric.value)),
    )


def record_loss(block: Block, rows: list[Any]) -> Value:
    """Records the mean cross-entropy of the next token over all prompts and positions."""
    short = [row for row, tokens in enumerate(rows) if len(tokens) < 2]
    if short:
        raise InputError(
            f"prompt {short[0]} has one token, so there is none to predict", "a loss needs at least two tokens"
        )
    total = None
    for row, tokens in enumerate(rows):
        view = View(block._recorder, Scope((row,), True))
        chosen = view.logits[:, :-1].log_softmax().take(np.asarray(tokens[1:])).sum()
        total = chosen if total is None else total + chosen
    assert total is not None
    return total * (-1.0 / sum(len(tokens) - 1 for tokens in rows))


def _return_value(output: RunOutput, return_type: str | None, stop: int | None) -> Any:
    if return_type == "both":
        return output.output, output.loss
    return output.loss if return_type == "loss" and stop is None else output.output
