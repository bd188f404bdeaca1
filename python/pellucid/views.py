"""Views of a model inside a block: its layers, its modules, some of its rows, some of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .errors import PlanError, RecordError, SiteError
from .places import Site, as_value, just_written, made_of, through
from .selection import Scope
from .values import Value

if TYPE_CHECKING:
    from .record import Recorder
    from .sites import SiteInfo

_set = object.__setattr__


class View(_core.BlockView):
    """The model as some rows and steps of a block see it: `view.layers[5].resid_post`, `view.logits`, `view["resid_post5"]`."""

    __slots__ = ()

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        _set(self, "_recorder", recorder)
        _set(self, "_scope", scope)

    @property
    def layers(self) -> Layers:
        """The layers; negative numbers count from the last."""
        return Layers(self, len(self._recorder.layers))

    def _info(self, name: str) -> SiteInfo:
        return self._recorder.model.sites[name]

    def _site(self, info: SiteInfo) -> Site:
        if not self._recorder.entered:
            raise RecordError("nothing is recorded outside the block", "write `with model.trace(…) as t:`")
        return self._take(info)

    def _write(self, info: SiteInfo, value: Any) -> None:
        if not just_written(value, self._recorder, info, self._scope.select):
            self._site(info)._write("set", value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._site(self._info(name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._write(self._info(name), value)

    def __getitem__(self, name: str) -> Site:
        """A site by its address, or by its name in TransformerLens, interp-engine or Hugging Face."""
        return self._site(self._info(name))

    def __setitem__(self, name: str, value: Any) -> None:
        self._write(self._info(name), value)

    @property
    def sites(self) -> View:
        """The sites by name: `t.sites["layers.5.resid_post"]` is `t["layers.5.resid_post"]`."""
        return self

    # Functions of several values.

    def _value(self, value: Any) -> Value:
        return as_value(self._recorder, value)

    def constant(self, value: Any) -> Value:
        """Numbers from outside the block as a value."""
        return self._value(value)

    def where(self, condition: Any, then: Any, otherwise: Any) -> Value:
        """Numbers of `then` where the condition holds, else of `otherwise`."""
        values = [self._value(value) for value in (condition, then, otherwise)]
        ranks = [value._rank for value in values if value._rank is not None]
        return made_of(values, max(ranks) if len(ranks) == 3 else None, "where", *(value._read() for value in values))

    def concat(self, values: Sequence[Any], axis: int = -1) -> Value:
        """Values one after the other along an axis."""
        values = [self._value(value) for value in values]
        if not values:
            raise PlanError("nothing to put together", "give at least one value")
        with_rows = next((value for value in values if value._scope is not None), values[0])
        axis = with_rows._inner_axis(axis)
        return made_of(values, with_rows._rank, "concat", [value._read() for value in values], axis)

    def stack(self, values: Sequence[Any], axis: int = 1) -> Value:
        """Values beside each other along a new axis; axis 1 is the first after the rows."""
        values = [self._value(value) for value in values]
        scoped = any(value._scope is not None for value in values)
        place = axis - 1 if scoped and axis > 0 else axis
        if place < 0 or (scoped and axis == 0):
            raise PlanError(
                f"a new axis at {axis}", "count from the front; axis 0 is the rows' and 1 the first after it"
            )
        new = (*(slice(None) for _ in range(place)), None)
        return self.concat([value._index(new) for value in values], axis)

    def call(self, function: Callable[..., Any], *values: Any) -> Value:
        """What a Python function makes of values: it is called for each row with numpy arrays, and gives one back."""
        if not callable(function):
            raise PlanError(f"{function!r} is not a function", "give the function first, then the values it takes")
        if not values:
            raise PlanError("a function of nothing", "give it at least one value of this block")
        of = [self._value(value) for value in values]
        return made_of(of, None, "call", function, [value._read() for value in of])

    def unembed(self, stream: Any) -> Value:
        """Logits of vectors of the stream, by the model's own end: final norm, unembedding, scale and soft cap."""
        value = self._value(stream)
        return made_of([value], value._rank, "unembed", value._read())

    def through(self, value: Any, start: str, end: str) -> Value:
        """What the model's own ops make of a value between two sites."""
        return through(self._recorder, value, start, end)

    def __repr__(self) -> str:
        return f"<a view of {self._recorder.model!r} inside a block>"


class Layers(_core.BlockLayers):
    """The layers of a view."""

    __slots__ = ()

    def _make(self, index: Any) -> Any:
        """What stands at an index that was not asked for before."""
        view = self._view
        layers = view._recorder.layers
        if isinstance(index, slice):
            return [self[layer] for layer in range(len(layers))[index]]
        if isinstance(index, (int, np.integer)) and -len(layers) <= index < len(layers):
            place = int(index) % len(layers)
            layer = Layer(view, place, layers[place])
            self._keep(layer)
            return layer
        raise SiteError(f"there is no layer {index!r}", f"this model's layers are 0 to {len(layers) - 1}")

    def __iter__(self) -> Iterator[Layer]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<the {len(self)} layers inside a block>"


class Layer(_core.BlockLayer):
    """A layer of a view: its points, its modules, and itself as a function."""

    __slots__ = ()

    def _info(self, name: str) -> SiteInfo:
        return self._of[2].get(name) or self._of[0]._info(self._address(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._of[0]._site(self._info(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _MODULES:
            raise SiteError(f"`{self._address(name)}` is a module and cannot be written", f"write {name}.output")
        self._of[0]._write(self._info(_ENDS.get(name, name)), value)

    def _address(self, name: str) -> str:
        return f"layers.{self._number()}.{name}"

    def _number(self) -> int:
        return self._of[1]

    @property
    def input(self) -> Site:
        """What enters the layer: `resid_pre`."""
        return self.__getattr__("resid_pre")

    @property
    def output(self) -> Site:
        """What leaves the layer: `resid_post`."""
        return self.__getattr__("resid_post")

    @property
    def attn(self) -> Module:
        """Its attention, as a function, with `input` and `output`."""
        return Module(self, *_MODULES["attn"])

    @property
    def self_attn(self) -> Module:
        """Its attention, by the name of most Hugging Face models."""
        return self.attn

    @property
    def mlp(self) -> Module:
        """Its MLP, as a function, with `input` and `output`."""
        return Module(self, *_MODULES["mlp"])

    def __call__(self, stream: Any) -> Value:
        """What this layer makes of a stream."""
        return self._of[0].through(stream, self._address("resid_pre"), self._address("resid_post"))

    def skip(self, value: Any = None) -> None:
        """Passes the layer over: what leaves it is `value`, or what entered it."""
        self.output._write("skip", value, at=f"layers.{self._number()}")

    def __repr__(self) -> str:
        return f"<layer {self._number()} inside a block>"


_ENDS = {"input": "resid_pre", "output": "resid_post"}
_MODULES = {
    "attn": ("attn_in", "attn_out"),
    "self_attn": ("attn_in", "attn_out"),
    "mlp": ("mlp_in", "mlp_out"),
}


class Module:
    """A part of a layer as a function of what enters it, with its input and output as sites."""

    __slots__ = ("_of",)

    _of: tuple[Layer, str, str]

    def __init__(self, layer: Layer, first: str, last: str) -> None:
        _set(self, "_of", (layer, first, last))

    def _point(self, name: str) -> str:
        if name not in _ENDS:
            raise SiteError(f"a module has no {name!r}", "it has input and output; the layer itself has all points")
        return self._of[1] if name == "input" else self._of[2]

    def __getattr__(self, name: str) -> Site:
        return getattr(self._of[0], self._point(name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of[0], self._point(name), value)

    def __call__(self, value: Any) -> Value:
        """What this module makes of a value."""
        layer, first, last = self._of
        return layer._of[0].through(value, layer._address(first), layer._address(last))


def _of_model(name: str, meaning: str) -> property:
    return property(lambda view: view._site(view._info(name)), doc=meaning)


# Attributes that are there are found much faster than those that have to be made up.
for _name, _in_layers, _meaning in _core.points():
    if _in_layers:
        setattr(Layer, _name, _core.PointOfLayer(_name, _meaning))
    else:
        setattr(View, _name, _of_model(_name, _meaning))
