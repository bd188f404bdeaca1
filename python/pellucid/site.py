"""`Site`: an activation inside a trace. Reading it records a value, writing it edits the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .errors import MissingAttribute, PlanError, SiteError
from .native import methods_of
from .saes import SaeView
from .selection import SELECT_ALL, Subscript, parse_subscript
from .values import PENDING, Value, join_scopes

if TYPE_CHECKING:
    from .recorder import Recorder
    from .site_table import SiteInfo


@methods_of(_core.Site)
class Site(_core.Site, Value):
    """An activation inside a trace: a value that can also be written.

    It is the activation at the time of the access: after earlier writes, before later ones.

    This class body is never instantiated: `methods_of` attaches its methods to the native class
    `_core.Site`, which replaces it.
    """

    __slots__ = ()

    @property
    def _rank(self) -> int:  # type: ignore[override]
        # A selection of experts has the columns of one slot.
        by_expert = self._select is not None and len(self._select) > len(SELECT_ALL)
        rank = 2 if by_expert or self._info.kind == "flat" else 3
        return rank if self._squeeze is None else rank - self._squeeze.count(0)

    @property
    def sae(self) -> SaeView:
        """The activations of the SAE that is attached here: `sae.acts`, `sae.pre`, `sae.recon`,
        `sae.error`, `sae.out`.
        """
        from .views import View  # a view creates sites

        return SaeView(View(self._recorder, self._scope), self._info.address)

    # Reading.

    def _save_general(self) -> Value:
        """Slow path of `save`: a part of a site, or a site that was read or saved before."""
        if self._result is not None:
            return self if self._saved_at == self._order else self._duplicate().save()
        recorder, scope, order = self._recorder, self._scope, self._order
        if self._node is None and self._squeeze is None and (scope is None or scope.steps is None):
            recorder.add_capture((order, self._metric, "capture", self._info.address, self._select, self))
        else:
            recorder.add_save(self, self._read())
        self._saved_at, self._result = order, PENDING
        return self

    def _save_sparse(self) -> Value:
        """`save(sparse=True)`: captures the nonzero elements."""
        if self._result is not None or self._node is not None:
            return self._duplicate().save(sparse=True)
        site, scope = self._info.address, self._scope
        if self._metric is not None:
            raise PlanError("gradients are not sparse", "save the gradient without `sparse`", site=site)
        if self._squeeze is not None:
            raise PlanError(
                "a sparse value keeps the axes of positions and units", "use slices or lists: acts[:, -1:]", site=site
            )
        if scope is not None and scope.steps is not None:
            raise PlanError(
                "steps are not saved sparsely", "save the site of all steps, outside of `t.step`", site=site
            )
        self._recorder.add_capture((self._order, None, "capture", site, self._select, self, "sparse"))
        self._saved_at, self._result = self._order, PENDING
        return self

    def _duplicate(self) -> Site:
        return Site(self._recorder, self._scope, self._info, self._order, self._select, self._squeeze, self._metric)

    copy = _duplicate  # type: ignore[assignment]

    def _read(self) -> int:
        if self._node is None:
            recorder = self._recorder
            tap = recorder.add_tap(self._order, self._metric, "read", self._info.address, self._select)
            self._node = recorder.add_value("read", tap)
            if self._squeeze is not None:
                self._node = recorder.add_value("index", self._node, self._squeeze)
        return self._node

    def __getitem__(self, key: Any) -> Value:
        if self._recorder.closed:
            return Value.__getitem__(self, key)
        selected = self._parse_subscript(key)
        if selected is None:
            return Value.__getitem__(self, key)
        recorder = self._recorder
        part = Site(recorder, selected.scope, self._info, self._order, selected.select, selected.squeeze, self._metric)
        return part if selected.picks is None else part._index(selected.picks)

    def _parse_subscript(self, key: Any) -> Subscript | None:
        """Parses a subscript of a whole site; `None` if this is already a part of one."""
        whole = self._scope is not None and self._squeeze is None and self._select in (None, self._scope.select)
        return (
            parse_subscript(self._info, self._scope, key, self._recorder) if whole and self._scope is not None else None
        )

    # Writing.

    def __setitem__(self, key: Any, value: Any) -> None:
        selected = self._parse_subscript(key)
        if selected is None:
            raise PlanError("nested subscripts cannot be written", "use one subscript: site[:, -1, 3]")
        recorder, info = self._recorder, self._info
        if selected.picks is None:
            if not already_written(value, recorder, info, selected.select, self._metric):
                part = Site(
                    recorder, selected.scope, info, self._order, selected.select, selected.squeeze, self._metric
                )
                part._write("set", value)
        else:
            now = Site(recorder, selected.scope, info, self._next_order(), selected.select, None, self._metric)
            by, _, _ = now._as_operand(value)
            node = recorder.add_value("put", now._read(), selected.picks, by)
            now._write("set", Value(recorder, selected.scope, node, now._rank))
        self._refresh()

    # Experts.

    @property
    def experts(self) -> ExpertSlots:
        """The slots that hold an expert, for edits and saves of `expert_out` and `expert_weights`.

        `t.layers[3].expert_out.experts[5] = 0` ablates expert 5 wherever the router chooses it;
        `….experts[[5, 2]].save()` is `[positions, experts, width]`, zero where an expert is not
        chosen. On `router_logits` these are the columns of the experts.
        """
        return ExpertSlots(self)

    def replace(self, experts: Mapping[int, int]) -> None:
        """Runs other experts in place of chosen ones, at `expert_indices`.

        `replace({5: 2})` runs expert 2 in place of expert 5, `replace({5: 2, 2: 5})` swaps both. The
        weights stay those of the router's choice.
        """
        if not isinstance(experts, Mapping):
            raise PlanError(f"{experts!r} does not map experts to experts", "write {5: 2}", site=self._info.address)
        numbers = [*experts.keys(), *experts.values()]
        if not all(isinstance(number, (int, np.integer)) and number >= 0 for number in numbers):
            raise PlanError(f"{experts!r} does not map experts to experts", "write {5: 2}", site=self._info.address)
        pairs = {int(chosen): int(runs) for chosen, runs in experts.items()}
        recorder, address = self._recorder, self._info.address
        order = self._next_order()
        recorder.add_tap(order, self._metric, "replace", address, self._select, pairs)
        recorder.writes.setdefault(address, []).append(order)
        self._refresh()

    def _next_order(self) -> int:
        """The next sequence number; gradient taps keep the number of the value they differentiate."""
        order = self._recorder.next_order()
        return order if self._metric is None else self._order

    def _refresh(self) -> None:
        """Makes this object refer to the activation after the last write."""
        self._order, self._node = self._next_order(), None

    def _write(self, action: str, value: Any, *arguments: Any, at: str | None = None) -> None:
        recorder, info = self._recorder, self._info
        if value is None and action != "skip":
            raise PlanError("None is not an array", "pass a number, an array or a value", site=info.address)
        if isinstance(value, Value) and value._recorder is not recorder and isinstance(value._result, list):
            value = value.value
        per_row = self._split_rows(value)
        if per_row is not None:
            select = self._select or SELECT_ALL
            for row, of_row in per_row:
                one = Site(recorder, None, info, self._order, ([row], *select[1:]), self._squeeze, self._metric)
                one._write(action, of_row, *arguments, at=at)
        else:
            operand = None if value is None else self._operand(value)
            order = self._next_order()
            recorder.add_tap(order, self._metric, action, at or info.address, self._select, operand, *arguments)
            if self._metric is None:
                recorder.writes.setdefault(info.address, []).append(order)
        self._written_at = recorder.order

    def _split_rows(self, value: Any) -> list[tuple[int, Any]] | None:
        """Splits a list of arrays, or an array with a row axis, into `(row, array)` pairs; else
        `None`.
        """
        arrays = value if isinstance(value, list) and value and isinstance(value[0], np.ndarray) else None
        if (
            isinstance(value, np.ndarray)
            and self._scope is not None
            and value.ndim == self._rank + 1
            and len(value) > 1
        ):
            arrays = list(value)
        if arrays is None:
            return None
        scope = self._scope
        rows = (scope.rows if scope is not None else None) or range(len(self._recorder.rows))
        if len(rows) != len(arrays):
            raise PlanError(
                f"{len(arrays)} arrays for {len(rows)} rows", "pass one array per row", site=self._info.address
            )
        return list(zip(rows, arrays, strict=True))

    def _operand(self, value: Any) -> float | int:
        """A number as a float; anything else as the node of a value with the selection's shape."""
        recorder = self._recorder
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = convert.scalar(value)
            recorder.check_finite(number, self._info.address)
            return number
        value = as_value(recorder, value)
        constant: tuple[Any, ...] = recorder.values[value._node] if type(value) is Value else ("read",)
        if constant[0] == "constant":
            recorder.check_finite(constant[1], self._info.address)
        if constant[0] == "constant" and value._rank == self._rank + 1 and getattr(constant[1], "shape", (0,))[0] == 1:
            # The array has a row axis of length 1.
            value = value._index((0,))
        node = value._read()
        drop = self._squeeze
        if drop is not None and any(pick == 0 for pick in drop[1:]):
            # The tap's selection keeps the axes that an integer picked, with length 1: add them.
            picks = tuple(None if pick == 0 else slice(None) for pick in drop)
            rank = self._rank if value._rank is None else value._rank
            missing = self._rank - rank
            node = recorder.add_value("index", node, picks[missing:]) if missing < len(picks) else node
        return node

    def _update(self, action: str, value: Any, *arguments: Any) -> Site:
        self._write(action, value, *arguments)
        if self._metric is None:
            self._order = self._recorder.order
        self._node = None
        return self

    def __iadd__(self, value: Any) -> Site:
        return self._update("add", value, 1.0)

    def __isub__(self, value: Any) -> Site:
        return self._update("add", value, -1.0)

    def __imul__(self, value: Any) -> Site:
        if isinstance(value, Value):
            return self._update("set", self * value)
        factor = convert.scalar(value) if isinstance(value, (int, float)) else convert.array(value)
        self._recorder.check_finite(factor, self._info.address)
        return self._update("scale", factor) if isinstance(factor, float) else self._update("set", self * factor)

    def __itruediv__(self, value: Any) -> Site:
        if not isinstance(value, Value) and not np.all(convert.array(value)) and not self._recorder.allow_nan:
            raise PlanError("division by zero", "divide by numbers other than zero", site=self._info.address)
        return self._update("set", self / value)

    def __imatmul__(self, value: Any) -> Site:
        return self._update("set", self @ value)

    def __call__(self, value: Any) -> Value:
        """Applies the model's final norm or unembedding to a value: `t.lm_head(t.final_norm(h))`."""
        if self._info.address not in ("final_norm", "lm_head"):
            raise SiteError(
                f"`{self._info.address}` is an activation, not a module", "call a layer, its attn or its mlp"
            )
        return through(self._recorder, value, self._module_input("input"), self._info.address)

    # Modules of the whole model, as Hugging Face names them: `t.lm_head.output`.

    @property
    def output(self) -> Site:
        """The output of the final norm or of the unembedding: this site itself."""
        self._module_input("output")
        return self

    @property
    def input(self) -> Site:
        """The input of the final norm or of the unembedding."""
        from .views import View  # a view creates sites

        return View(self._recorder, self._scope)[self._module_input("input")]

    def _module_input(self, name: str) -> str:
        last = len(self._recorder.layers) - 1
        before = {"final_norm": f"layers.{last}.resid_post", "lm_head": "final_norm"}.get(self._info.address)
        if before is None:
            raise MissingAttribute(
                f"`{self._info.address}` is an activation, so it has no {name!r}",
                "use the activation itself; layers, attn and mlp have input and output",
            )
        return before

    # Gradients.

    @property
    def grad(self) -> Site:
        """The gradient of the open `backward()` block's loss at this site.

        Can be read and written.
        """
        return self.gradient_of(self._recorder.current_metric())

    @grad.setter
    def grad(self, value: Any) -> None:
        if not already_written(value, self._recorder, self._info, self._select, self._recorder.backward):
            self.grad._write("set", value)

    def gradient_of(self, metric: int) -> Site:
        """The gradient of a metric at this site: with respect to the activation after its last
        write.
        """
        writes = [order for order in self._recorder.writes.get(self._info.address, ()) if order <= self._order]
        last_write = writes[-1] if writes else 0
        return Site(self._recorder, self._scope, self._info, last_write, self._select, self._squeeze, metric)


class ExpertSlots:
    """The slots of a site by the number of their expert: `site.experts[5]`, `site.experts[[2, 3]]`."""

    __slots__ = ("_site",)

    def __init__(self, site: Site) -> None:
        self._site = site

    def __getitem__(self, experts: int | Sequence[int]) -> Site:
        site = self._site
        numbers = convert.integers(experts, "an expert")
        if any(number < 0 for number in numbers):
            raise PlanError(f"{experts!r} are not experts", "experts are integers from 0", site=site._info.address)
        select = (*(site._select or SELECT_ALL), numbers)
        return Site(site._recorder, site._scope, site._info, site._order, select, site._squeeze, site._metric)

    def __setitem__(self, experts: int | Sequence[int], value: Any) -> None:
        site, slots = self._site, self[experts]
        if not already_written(value, site._recorder, site._info, slots._select, site._metric):
            slots._write("set", value)
        site._refresh()


def already_written(value: Any, recorder: Recorder, info: SiteInfo, select: Any, metric: int | None = None) -> bool:
    """Whether an assignment is the second half of `site += x`, whose `__iadd__` has already
    written.
    """
    return (
        isinstance(value, Site)
        and value._recorder is recorder
        and value._written_at == recorder.order
        and value._info is info
        and value._select == select
        and value._metric == metric
    )


def as_value(recorder: Recorder, value: Any) -> Value:
    """Converts a number, array, tensor or value of another block to a value of this block."""
    if isinstance(value, Value) and value._recorder is recorder:
        return value
    node = recorder.add_constant(value)
    rank = value._rank if isinstance(value, Value) else getattr(recorder.values[node][1], "ndim", 0)
    return Value(recorder, None, node, rank)


def combine_values(values: Sequence[Value], rank: int | None, *expression: Any) -> Value:
    """Records a value computed from several values."""
    scope = None
    for value in values:
        scope = join_scopes(scope, value._scope)
    recorder = values[0]._recorder
    return Value(recorder, scope, recorder.add_value(*expression), rank)


def through(recorder: Recorder, value: Any, start: str, end: str) -> Value:
    """Applies the model's ops from site `start` to site `end` to a value."""
    of, sites = as_value(recorder, value), recorder.model.sites
    first, last = sites[start], sites[end]
    return combine_values([of], 2 if last.kind == "flat" else 3, "through", of._read(), first.address, last.address)
