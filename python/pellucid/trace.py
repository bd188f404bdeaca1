"""Blocks: what is written inside `with model.trace(…)` is recorded, and runs once at its end."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .errors import PlanError, RecordError
from .places import Site
from .record import DONE, FAILED, OPEN, WAITING, Recorder
from .results import Cache, Captures, Generated
from .selection import Scope
from .values import Value
from .views import Layers, View, _set

if TYPE_CHECKING:
    from .model import Model


class Block(View):
    """A block that records. Subclasses say what happens at its end."""

    # The layers are an attribute of its own while the block is open; before and after, `__getattr__` is asked for them.
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
        """Seconds that the engine took, after the block; of a generation those of the prompts and of the steps."""
        return self._recorder.seconds

    @property
    def tokens(self) -> list[Any]:
        """The tokens of each row."""
        return self._recorder.rows

    @property
    def batch(self) -> View:
        """All rows, in the order in which they were given; also inside a row's own block."""
        return View(self._recorder, Scope(None, False))

    def row(self, prompts: Any) -> Rows:
        """Adds a prompt (or a list of them), and is a block in which only its rows are seen and written."""
        return Rows(self, prompts)

    def cache(self, *patterns: str) -> Cache:
        """Captures every site that the patterns mean, as it is after all writes, in the rows of this place."""
        cache = Cache()
        self._recorder.caches.append((cache, patterns or ("layers.*.resid_post",), self._scope))
        return cache

    def gradient(self, of: Value, at: Any) -> Any:
        """The gradient of a number at a site, or at each of several."""
        metric = self._recorder.metric(of)
        if isinstance(at, (list, tuple)):
            return [self.gradient(of, one) for one in at]
        if isinstance(at, str):
            at = self[at]
        if not isinstance(at, Site):
            raise RecordError("gradients are taken at sites", "give sites of this block, or their names")
        return at.gradient_of(metric)

    def weight_grad(self, name: str, of: Value | None = None) -> Value:
        """The gradient of a number with respect to a weight, in the weight's own shape: a sum over all tokens of all rows.

        Args:
            name: The weight's name; `model.weights` lists them.
            of: The number; where it is left out, that whose `backward()` block this is.
        """
        recorder = self._recorder
        metric = recorder.current_metric() if of is None else recorder.metric(of)
        shape = recorder.model.weights.get(name)
        node = recorder.value("weight_grad", metric, name)
        return Value(recorder, None, node, None if shape is None else len(shape))

    def metric(self, value: Value) -> Value:
        """Makes a number one that gradients are of; `value.backward()` and `t.gradient` do so by themselves."""
        self._recorder.metric(value)
        return value

    # The block's life.

    def __enter__(self) -> Any:
        if self._recorder.entered:
            raise RecordError("a block runs once", "make another one")
        self._recorder.entered = True
        # Kept while the block is open; afterwards the circle would keep the block.
        _set(self, "layers", Layers(self, len(self._recorder.layers)))
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, traceback: Any) -> None:
        recorder = self._recorder
        object.__delattr__(self, "layers")
        if failure is not None:
            recorder.ended(FAILED, failure)
        elif recorder.session is not None:
            recorder.state = WAITING
        else:
            self._finish()

    def _finish(self) -> None:
        """Runs what was recorded, and hands out what came back."""
        recorder = self._recorder
        try:
            self._run(recorder)
        except BaseException as failure:
            recorder.ended(FAILED, failure)
            raise
        self._done(recorder)

    def _done(self, recorder: Recorder) -> None:
        recorder.ended(DONE)
        # Saved values keep the recorder; what it was made of goes.
        recorder.taps, recorder.values, recorder.saves, recorder.later = [], [], [], []

    def _plan(self, recorder: Recorder) -> Any:
        """What was recorded, as a plan; what caches want comes after everything else."""
        for node, value in recorder.later:
            recorder.values[node] = ("constant", value._one_result())
        after = recorder.place + 1
        caches = [(patterns, scope.select) for _, patterns, scope in recorder.caches]
        cached = [(after, None, "capture", pattern, select) for patterns, select in caches for pattern in patterns]
        taps = recorder.taps + cached if cached else recorder.taps
        return _core.Plan.from_record(taps, recorder.values, recorder.saves, recorder.metrics, recorder.allow_nan)

    def _hand_out(self, recorder: Recorder, run: Any) -> None:
        run.hand_out()
        tap = len(recorder.taps)
        for cache, patterns, scope in recorder.caches:
            captured = [one for at in range(tap, tap + len(patterns)) for one in run.captured(at)]
            tap += len(patterns)
            find = recorder.model._core.find
            cache._captures = Captures(find, captured, scope.single, recorder.padded, run.passed_over)

    def _run(self, recorder: Recorder) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name != "layers":
            return View.__getattr__(self, name)
        if not self._recorder.entered:
            raise RecordError("nothing is recorded outside the block", "write `with model.trace(…) as t:`")
        return Layers(self, len(self._recorder.layers))

    def __del__(self) -> None:
        recorder = getattr(self, "_recorder", None)
        if recorder is not None and not recorder.entered:
            warnings.warn("a block was made and never entered, so nothing ran: use it in `with`", RuntimeWarning, 2)


class Rows(View):
    """Some rows of a block, which were added with it."""

    __slots__ = ("_block", "_outer")

    def __init__(self, block: Block, prompts: Any) -> None:
        recorder = block._recorder
        if recorder.state is not OPEN:
            recorder.refuse("no more rows can be added")
        if block._scope.rows is not None:
            raise RecordError("a row inside another row's block", "end the first block before the next begins")
        added, single = convert.rows(recorder.model._core, prompts)
        first = len(recorder.rows)
        recorder.rows = recorder.rows + added
        View.__init__(self, recorder, Scope(tuple(range(first, first + len(added))), single, block._scope.steps))
        _set(self, "_block", block)
        _set(self, "_outer", None)

    def __enter__(self) -> Rows:
        if self._block._scope.rows is not None:
            raise RecordError("a row inside another row's block", "end the first block before the next begins")
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
        run = _core.run(model._core, recorder.rows, self._plan(recorder), model.edits, *self._options)
        recorder.seconds = run.seconds
        self._hand_out(recorder, run)


class Scan(Block):
    """The shapes of what a trace would give, checked as it would be, without weights."""

    __slots__ = ()

    def _run(self, recorder: Recorder) -> None:
        model = recorder.model
        for value, found in _core.scan(model._core, recorder.rows, self._plan(recorder), model.edits):
            value._result = [(row, None, ShapeOnly(shape)) for row, shape in found]


class ShapeOnly:
    """In the place of numbers that a scan does not compute."""

    __slots__ = ("shape",)

    def __init__(self, shape: list[int] | None) -> None:
        self.shape = None if shape is None else tuple(shape)

    is_integer = False

    def numpy(self) -> Any:
        """Refuses."""
        raise RecordError("a scan knows shapes and no numbers", "use .shape, or trace instead of scan")


class PlanBlock(Block):
    """Records a plan without running it: `model.plan()`, `model.edit()`."""

    __slots__ = ("_recorded",)

    def _run(self, recorder: Recorder) -> None:
        plan = self._plan(recorder)
        if plan.saves or recorder.caches:
            raise RecordError(
                "a plan that stands by itself has nobody to save for", "save in a trace of the edited model"
            )
        _set(self, "_recorded", plan)

    def _finished(self) -> Any:
        if self._recorder.state is not DONE:
            raise RecordError("the block has not ended", "take the plan after the with block")
        return self._recorded

    @property
    def plan(self) -> Any:
        """The plan, after the block."""
        return self._finished()

    @property
    def model(self) -> Model:
        """The model with this plan as a standing edit, after the block."""
        return self._recorder.model.edit(self._finished())


class Steps:
    """The steps of a generation: `t.steps[0]` is where the first new token is chosen."""

    __slots__ = ("_block",)

    def __init__(self, block: Generation) -> None:
        self._block = block

    def __getitem__(self, steps: Any) -> StepView:
        return StepView(self._block, steps)


class StepView(View):
    """Some steps of a generation; inside its block the whole generation is seen so."""

    __slots__ = ("_block", "_outer")

    def __init__(self, block: Generation, steps: Any) -> None:
        if isinstance(steps, slice):
            numbers = [bound for bound in (steps.start, steps.stop) if bound is not None]
        else:
            steps = steps.tolist() if isinstance(steps, (np.integer, np.ndarray)) else steps
            numbers = list(steps) if isinstance(steps, (list, tuple, range)) else [steps]
            steps = steps if isinstance(steps, int) else numbers
        if any(not isinstance(number, int) or number < 0 for number in numbers):
            raise PlanError(f"step {steps!r}", "steps count from 0, the one that chooses the first new token")
        most = block._options.get("max_new")
        if most is not None and not isinstance(steps, slice) and any(number >= most for number in numbers):
            raise PlanError(f"step {steps} of a generation of at most {most} steps", f"steps are 0 to {most - 1}")
        if block._scope.steps is not None:
            raise RecordError("steps inside other steps", "end the first block before the next begins")
        View.__init__(self, block._recorder, Scope(block._scope.rows, block._scope.single, steps))
        _set(self, "_block", block)

    def __enter__(self) -> StepView:
        _set(self, "_outer", self._block._scope)
        _set(self._block, "_scope", self._scope)
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._block, "_scope", self._outer)


class Generation(Block):
    """A generation: a block like a trace, or without a block the result itself."""

    __slots__ = ("_generated", "_options", "_watch")

    def __init__(
        self, model: Model, prompts: Any, padded: bool, allow_nan: bool, watch: Any, options: dict[str, Any]
    ) -> None:
        Block.__init__(self, model, prompts, padded, allow_nan)
        _set(self, "_options", options)
        _set(self, "_watch", watch)
        _set(self, "_generated", None)

    @property
    def steps(self) -> Steps:
        """The steps, to read and write at some of them: `t.steps[1:3]`, `t.steps[0]`, `t.steps[:]`."""
        return Steps(self)

    @property
    def result(self) -> Any:
        """What was generated: one for a prompt, a list for several. Outside a block, asking for it runs the generation."""
        if not self._recorder.entered:
            with self:
                pass
        if self._generated is None:
            failure = self._recorder.failure
            if failure is not None:
                raise RecordError(f"the block raised {failure!r}, and nothing was generated") from failure
            raise RecordError("nothing is generated before the block ends", "take .result after the with block")
        return self._generated[0] if self._scope.single else self._generated

    @property
    def text(self) -> Any:
        """The new text; a list for several prompts."""
        result = self.result
        return [one.text for one in result] if isinstance(result, list) else result.text

    def _run(self, recorder: Recorder) -> None:
        model = recorder.model
        run = _core.generate(model._core, recorder.rows, self._plan(recorder), model.edits, self._options, self._watch)
        recorder.seconds = run.seconds
        self._hand_out(recorder, run)
        results = zip(recorder.rows, run.rows, run.saved_work, strict=True)
        generated = [Generated(prompt, *row, *work) for prompt, row, work in results]
        _set(self, "_generated", generated)

    def __repr__(self) -> str:
        return (
            repr(self.result)
            if self._generated is not None
            else "<a generation that has not run: read .text, or use with>"
        )


class Session:
    """Several blocks that run together at its end: values of one, saved or not, can be used in the next."""

    __slots__ = ("_blocks", "_model")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._blocks: list[Block] = []

    def _added(self, block: Any) -> Any:
        block._recorder.session = self
        self._blocks.append(block)
        return block

    def trace(self, *arguments: Any, **options: Any) -> Trace:
        """A trace that runs when the session ends; see `Model.trace`."""
        return self._added(self._model.trace(*arguments, **options))

    def generate(self, *arguments: Any, **options: Any) -> Generation:
        """A generation that runs when the session ends; see `Model.generate`."""
        return self._added(self._model.generate(*arguments, **options))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, traceback: Any) -> None:
        for block in self._blocks:
            recorder = block._recorder
            if failure is not None:
                recorder.ended(FAILED, recorder.failure or failure)
                continue
            try:
                if recorder.state is WAITING:
                    block._finish()
            except BaseException as raised:
                failure = raised
        if failure is not None and kind is None:
            raise failure
