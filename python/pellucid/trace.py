"""Blocks: `with model.trace(…)` and its relatives record operations and run them once, at the end."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .errors import InputError, PlanError, RecordError
from .recorder import DONE, FAILED, OPEN, WAITING, Recorder
from .reports import warn_nan
from .results import Cache, Captures, generated_rows
from .selection import Scope
from .site import Site
from .values import Value
from .views import Layers, View, _set

if TYPE_CHECKING:
    from .model import Model


class Block(View):
    """Base class of recording `with` blocks. Subclasses implement `_run`, called at the end."""

    # Set while the block is open, for fast access; before and after, `__getattr__` handles `layers`.
    __slots__ = ("layers",)

    def __init__(self, model: Model, prompts: Any, padded: bool, allow_nan: bool) -> None:
        recorder = Recorder(model, padded, allow_nan)
        single = False
        if prompts is not None:
            recorder.rows, single = convert.rows(model._core, prompts)
        _set(self, "_recorder", recorder)
        _set(self, "_scope", Scope(None, single))

    @property
    def seconds(self) -> Any:
        """Seconds spent in the engine, after the block; for a generation `(prefill, decode)`."""
        return self._recorder.seconds

    @property
    def tokens(self) -> list[Any]:
        """The tokens of each row."""
        return self._recorder.rows

    @property
    def batch(self) -> View:
        """A view of all rows, in order; also inside `with t.row(…)`."""
        return View(self._recorder, Scope(None, False))

    def row(self, prompts: Any) -> RowView:
        """Adds a prompt (or a list of prompts).

        As a `with` block, `t` reads and writes only these rows inside it.
        """
        return RowView(self, prompts)

    invoke = row
    """`row` under its nnsight name."""

    def cache(self, *patterns: str) -> Cache:
        """Captures every site that matches the patterns, after all writes, in the rows of the
        current view.
        """
        for pattern in patterns:
            self._recorder.model.sites.find(pattern)
        cache = Cache()
        self._recorder.caches.append((cache, patterns or ("layers.*.resid_post",), self._scope))
        return cache

    def gradient(self, of: Value, at: Any) -> Any:
        """The gradient of a scalar at a site, or at each of a list of sites."""
        if not isinstance(of, Value):
            raise RecordError(
                f"{type(of).__name__} has no gradient", "pass a recorded scalar, such as logits[:, -1].sum()"
            )
        metric = self._recorder.add_metric(of)
        if isinstance(at, (list, tuple)):
            return [self.gradient(of, site) for site in at]
        if isinstance(at, str):
            at = self[at]
        if not isinstance(at, Site):
            raise RecordError("gradients are taken at sites", "pass sites of this block, or their names")
        return at.gradient_of(metric)

    def weight_grad(self, name: str, of: Value | None = None) -> Value:
        """The gradient of a scalar with respect to a weight, in the weight's shape, summed over all
        tokens and rows.

        Args:
            name: The weight's name; `model.weights` lists them.
            of: The scalar; by default the loss of the open `backward()` block.
        """
        recorder = self._recorder
        name = convert.text(name, "the weight's name")
        if of is not None and not isinstance(of, Value):
            raise RecordError(
                f"{type(of).__name__} has no gradient", "pass a recorded scalar, such as logits[:, -1].sum()"
            )
        metric = recorder.current_metric() if of is None else recorder.add_metric(of)
        shape = recorder.model.weights.get(name)
        node = recorder.add_value("weight_grad", metric, name)
        return Value(recorder, None, node, None if shape is None else len(shape))

    def metric(self, value: Value) -> Value:
        """Declares a scalar to differentiate.

        `value.backward()` and `t.gradient` do this automatically.
        """
        self._recorder.add_metric(value)
        return value

    # Entering, running, leaving.

    def __enter__(self) -> Any:
        if self._recorder.entered:
            raise RecordError("a block runs once", "create another one")
        self._recorder.entered = True
        # Removed in `__exit__`: the reference cycle would keep the block alive.
        _set(self, "layers", Layers(self, len(self._recorder.layers)))
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, traceback: Any) -> None:
        recorder = self._recorder
        object.__delattr__(self, "layers")
        if failure is not None:
            recorder.close(FAILED, failure)
        elif recorder.session is not None:
            recorder.state = WAITING
        else:
            self._run_and_close()

    def _run_and_close(self) -> None:
        """Runs the recorded plan and assigns the results of the saved values."""
        recorder = self._recorder
        try:
            self._run(recorder)
        except BaseException as failure:
            recorder.close(FAILED, failure)
            raise
        self._release(recorder)

    def _release(self, recorder: Recorder) -> None:
        recorder.close(DONE)
        # Saved values keep the recorder alive; drop its contents.
        recorder.taps, recorder.values, recorder.saves, recorder.pending_constants = [], [], [], []

    def _plan(self, recorder: Recorder) -> Any:
        """The recorded plan. Captures of `t.cache` come after all other taps."""
        for node, value in recorder.pending_constants:
            recorder.values[node] = ("constant", value._single_array())
        after = recorder.order + 1
        caches = [(patterns, scope.select) for _, patterns, scope in recorder.caches]
        cached = [(after, None, "capture", pattern, select) for patterns, select in caches for pattern in patterns]
        taps = recorder.taps + cached if cached else recorder.taps
        return _core.Plan.from_record(taps, recorder.values, recorder.saves, recorder.metrics, recorder.allow_nan)

    def _assign_results(self, recorder: Recorder, run: Any) -> None:
        run.assign_saved()
        tap = len(recorder.taps)
        for cache, patterns, scope in recorder.caches:
            captured = [capture for at in range(tap, tap + len(patterns)) for capture in run.captured(at)]
            tap += len(patterns)
            find = recorder.model._core.find
            cache._captures = Captures(find, captured, scope.single, recorder.padded, run.passed_over, recorder.rows)

    def _run(self, recorder: Recorder) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name != "layers":
            return View.__getattr__(self, name)
        if not self._recorder.entered:
            raise RecordError("nothing is recorded outside the block", "use `with model.trace(…) as t:`")
        return Layers(self, len(self._recorder.layers))

    def __del__(self) -> None:
        recorder = getattr(self, "_recorder", None)
        if recorder is not None and not recorder.entered:
            warnings.warn("a block was created but never entered, so nothing ran: use it in `with`", RuntimeWarning, 2)


class RowView(View):
    """A view of the rows that `t.row` added."""

    __slots__ = ("_block", "_outer")

    def __init__(self, block: Block, prompts: Any) -> None:
        recorder = block._recorder
        if recorder.state is not OPEN:
            recorder.raise_closed("no more rows can be added")
        if block._scope.rows is not None:
            raise RecordError("`t.row` blocks cannot be nested", "end the first block before starting the next")
        added, single = convert.rows(recorder.model._core, prompts)
        first = len(recorder.rows)
        recorder.rows = recorder.rows + added
        View.__init__(self, recorder, Scope(tuple(range(first, first + len(added))), single, block._scope.steps))
        _set(self, "_block", block)
        _set(self, "_outer", None)

    def __enter__(self) -> RowView:
        if self._block._scope.rows is not None:
            raise RecordError("`t.row` blocks cannot be nested", "end the first block before starting the next")
        _set(self, "_outer", self._block._scope)
        _set(self._block, "_scope", self._scope)
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._block, "_scope", self._outer)


class Trace(Block):
    """One forward pass of prompts."""

    __slots__ = ("_options",)

    def __init__(self, model: Model, prompts: Any, padded: bool, allow_nan: bool, *options: Any) -> None:
        Block.__init__(self, model, prompts, padded, allow_nan)
        _set(self, "_options", options)

    def _run(self, recorder: Recorder) -> None:
        model = recorder.model
        edits = model.edits_for(recorder.rows)
        run = _core.run(model._core, recorder.rows, self._plan(recorder), edits, *self._options)
        recorder.seconds = run.seconds
        self._assign_results(recorder, run)
        warn_nan(run.nan)


class Scan(Block):
    """Checks a trace and infers the shapes of its saved values, without weights."""

    __slots__ = ()

    def _run(self, recorder: Recorder) -> None:
        model = recorder.model
        for value, shapes in _core.scan(
            model._core, recorder.rows, self._plan(recorder), model.edits_for(recorder.rows)
        ):
            value._result = [(row, None, ShapeOnly(shape)) for row, shape in shapes]


class ShapeOnly:
    """Stands in for an array in the results of a scan."""

    __slots__ = ("shape",)

    def __init__(self, shape: list[int] | None) -> None:
        self.shape = None if shape is None else tuple(shape)

    is_integer = False

    def numpy(self) -> Any:
        """Raises: a scan computes no values."""
        raise RecordError("a scan computes shapes, not values", "use .shape, or trace instead of scan")


class PlanBlock(Block):
    """Records a plan without running it: `model.plan()`, `model.edit()`."""

    __slots__ = ("_finished_plan",)

    def _run(self, recorder: Recorder) -> None:
        plan = self._plan(recorder)
        if plan.saves or recorder.caches:
            raise RecordError("values cannot be saved in a recorded plan", "save them in a trace of the edited model")
        _set(self, "_finished_plan", plan)

    def _require_plan(self) -> Any:
        if self._recorder.state is not DONE:
            raise RecordError("the block has not ended", "read the plan after the with block")
        return self._finished_plan

    @property
    def plan(self) -> Any:
        """The plan, after the block."""
        return self._require_plan()

    @property
    def model(self) -> Model:
        """The model with this plan as a standing edit, after the block."""
        return self._recorder.model.edit(self._require_plan())


class Steps:
    """The steps of a generation. `t.steps[0]` is the step that produces the first new token."""

    __slots__ = ("_block",)

    def __init__(self, block: Generation) -> None:
        self._block = block

    def __getitem__(self, steps: Any) -> StepView:
        return StepView(self._block, steps)


class StepView(View):
    """A view of some steps of a generation.

    As a `with` block, `t` reads and writes only these steps inside it.
    """

    __slots__ = ("_block", "_outer")

    def __init__(self, block: Generation, steps: Any) -> None:
        if isinstance(steps, slice):
            numbers = [bound for bound in (steps.start, steps.stop) if bound is not None]
        else:
            steps = steps.tolist() if isinstance(steps, (np.integer, np.ndarray)) else steps
            numbers = list(steps) if isinstance(steps, (list, tuple, range)) else [steps]
            steps = steps if isinstance(steps, int) else numbers
        if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in numbers):
            raise PlanError(f"invalid step {steps!r}", "steps count from 0, which produces the first new token")
        max_new = block._options.get("max_new")
        if max_new is not None and not isinstance(steps, slice) and any(number >= max_new for number in numbers):
            raise PlanError(f"step {steps} of a generation of at most {max_new} steps", f"steps are 0 to {max_new - 1}")
        if block._scope.steps is not None:
            raise RecordError("`t.steps` blocks cannot be nested", "end the first block before starting the next")
        View.__init__(self, block._recorder, Scope(block._scope.rows, block._scope.single, steps))
        _set(self, "_block", block)

    def __enter__(self) -> StepView:
        _set(self, "_outer", self._block._scope)
        _set(self._block, "_scope", self._scope)
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._block, "_scope", self._outer)


class Generation(Block):
    """A generation: a block like a trace, or used without `with`, `.text` and `.result` run it."""

    __slots__ = ("_generated", "_options", "_watch")

    def __init__(
        self, model: Model, prompts: Any, padded: bool, allow_nan: bool, watch: Any, options: dict[str, Any]
    ) -> None:
        _core.check_generate_options(options)
        if watch is not None and not callable(watch):
            raise InputError(f"watch is {watch!r}, which is not a function", "pass a function of row, token and text")
        Block.__init__(self, model, prompts, padded, allow_nan)
        self._recorder.generates = True
        _set(self, "_options", options)
        _set(self, "_watch", watch)
        _set(self, "_generated", None)

    @property
    def steps(self) -> Steps:
        """Selects steps to read and write at: `t.steps[1:3]`, `t.steps[0]`, `t.steps[:]`."""
        return Steps(self)

    @property
    def result(self) -> Any:
        """The `Generated` result; a list for several prompts.

        Without a `with` block, reading it runs the generation.
        """
        if not self._recorder.entered:
            with self:
                pass
        if self._generated is None:
            failure = self._recorder.failure
            if failure is not None:
                raise RecordError(f"the block raised {failure!r}; nothing was generated") from failure
            raise RecordError("nothing is generated before the block ends", "read .result after the with block")
        return self._generated[0] if self._scope.single else self._generated

    @property
    def tokens(self) -> list[Any]:
        """The new tokens; a list of lists for several prompts. Those of the prompt are
        `.result.prompt`.
        """
        result = self.result
        return [row.tokens for row in result] if isinstance(result, list) else result.tokens

    @property
    def text(self) -> Any:
        """The new text; a list for several prompts."""
        result = self.result
        return [row.text for row in result] if isinstance(result, list) else result.text

    def _run(self, recorder: Recorder) -> None:
        model = recorder.model
        run = _core.generate(model._core, recorder.rows, self._plan(recorder), model.edits, self._options, self._watch)
        recorder.seconds = run.seconds
        self._assign_results(recorder, run)
        generated = generated_rows(recorder.rows, run)
        _set(self, "_generated", generated)
        warn_nan(run.nan)

    def __repr__(self) -> str:
        return (
            repr(self.result)
            if self._generated is not None
            else "<generation that has not run: read .text, or use it in `with`>"
        )


class Session:
    """Several blocks that run at the end of the session, in order.

    Later blocks can use values of earlier ones, saved or not.
    """

    __slots__ = ("_blocks", "_model")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._blocks: list[Block] = []

    def _add(self, block: Any) -> Any:
        block._recorder.session = self
        self._blocks.append(block)
        return block

    def trace(self, *arguments: Any, **options: Any) -> Trace:
        """A trace that runs when the session ends; see `Model.trace`."""
        return self._add(self._model.trace(*arguments, **options))

    def generate(self, *arguments: Any, **options: Any) -> Generation:
        """A generation that runs when the session ends; see `Model.generate`."""
        return self._add(self._model.generate(*arguments, **options))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, traceback: Any) -> None:
        for block in self._blocks:
            recorder = block._recorder
            if failure is not None:
                recorder.close(FAILED, recorder.failure or failure)
                continue
            try:
                if recorder.state is WAITING:
                    block._run_and_close()
            except BaseException as raised:
                failure = raised
        if failure is not None and kind is None:
            raise failure
