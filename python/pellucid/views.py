"""Views of the model inside a trace: layers, modules, rows and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _core, convert
from .errors import MissingAttribute, PlanError, RecordError, SiteError
from .selection import Scope
from .site import Site, already_written, as_value, combine_values, through
from .values import Value

if TYPE_CHECKING:
    from .recorder import Recorder
    from .site_table import SiteInfo
    from .steering import SteeringVectors

_set = object.__setattr__


class View(_core.View):
    """The model as seen by some rows and steps of a trace: `view.layers[5].resid_post`,
    `view.logits`, `view["resid_post5"]`.
    """

    __slots__ = ()

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        _set(self, "_recorder", recorder)
        _set(self, "_scope", scope)

    @property
    def layers(self) -> Layers:
        """The layers; negative indices count from the end."""
        return Layers(self, len(self._recorder.layers))

    def _info(self, name: str) -> SiteInfo:
        return self._recorder.model.sites[name]

    def _site(self, info: SiteInfo) -> Site:
        if not self._recorder.entered:
            raise RecordError("nothing is recorded outside the block", "use `with model.trace(…) as t:`")
        return self._access(info)

    def _write(self, info: SiteInfo, value: Any) -> None:
        if not already_written(value, self._recorder, info, self._scope.select):
            self._site(info)._write("set", value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _ROOT_MODULES:
            return ModulePath(self, name)
        if name not in self._recorder.model.sites.of_model and hasattr(type(self._recorder.model), name):
            raise MissingAttribute(
                f"{name!r} belongs to the model, and this is a block",
                f"use model.{name}; after `with model.edit() as e`, the edited model is e.model",
            )
        return self._site(self._info(name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._write(self._info(name), value)

    def __getitem__(self, name: str) -> Site:
        """A site by its address, or by its name in TransformerLens, interp-engine or Hugging Face.

        A pattern that matches several sites raises: `t.cache(pattern)` captures them all.
        """
        return self._site(self._info(name))

    def __setitem__(self, name: str, value: Any) -> None:
        self._write(self._info(name), value)

    @property
    def sites(self) -> View:
        """The sites by name: `t.sites["layers.5.resid_post"]` is `t["layers.5.resid_post"]`."""
        return self

    def steer(self, vectors: SteeringVectors) -> None:
        """Adds steering vectors to their sites, in the rows and steps of this view."""
        vectors.check(self._recorder.model)
        for address, direction in vectors._nonzero():
            self[address] += direction

    # Functions of several values.

    def _value(self, value: Any) -> Value:
        return as_value(self._recorder, value)

    def constant(self, value: Any) -> Value:
        """Converts a number, array or tensor to a value."""
        return self._value(value)

    def where(self, condition: Any, then: Any, otherwise: Any) -> Value:
        """Elements of `then` where the condition is nonzero, else of `otherwise`."""
        values = [self._value(value) for value in (condition, then, otherwise)]
        ranks = [value._rank for value in values if value._rank is not None]
        return combine_values(
            values, max(ranks) if len(ranks) == 3 else None, "where", *(value._read() for value in values)
        )

    def concat(self, values: Sequence[Any], axis: int = -1) -> Value:
        """Concatenates values along an axis."""
        values = self._list_of_values(values, "concat")
        with_rows = next((value for value in values if value._scope is not None), values[0])
        axis = with_rows._inner_axis(axis)
        return combine_values(values, with_rows._rank, "concat", [value._read() for value in values], axis)

    def _list_of_values(self, values: Any, name: str) -> list[Value]:
        if isinstance(values, _core.Value) or not isinstance(values, Sequence) or not values:
            raise PlanError(f"{name} needs at least one value in a list", f"write t.{name}([a, b])")
        return [self._value(value) for value in values]

    def stack(self, values: Sequence[Any], axis: int = 1) -> Value:
        """Stacks values along a new axis; axis 1 is the first after the rows."""
        values = self._list_of_values(values, "stack")
        axis = convert.integer(axis, "axis")
        scoped = any(value._scope is not None for value in values)
        inner = axis - 1 if scoped and axis > 0 else axis
        if not 0 <= inner <= 32 or (scoped and axis == 0):
            raise PlanError(
                f"invalid new axis {axis}", "use a positive axis; axis 0 is the rows, 1 the first after them"
            )
        new = (*(slice(None) for _ in range(inner)), None)
        return self.concat([value._index(new) for value in values], axis)

    def call(self, function: Callable[..., Any], *values: Any) -> Value:
        """Calls a Python function for each row, with the values as numpy arrays; it returns one
        array.
        """
        if not callable(function):
            raise PlanError(f"{function!r} is not a function", "pass the function first, then its arguments")
        if not values:
            raise PlanError("t.call needs at least one argument", "pass at least one value of this block")
        arguments = [self._value(value) for value in values]
        return combine_values(arguments, None, "call", function, [value._read() for value in arguments])

    def unembed(self, stream: Any) -> Value:
        """Logits of residual stream vectors: final norm, unembedding, logit scale and soft cap."""
        value = self._value(stream)
        return combine_values([value], value._rank, "unembed", value._read())

    def through(self, value: Any, start: str, end: str) -> Value:
        """Applies the model's ops from site `start` to site `end` to a value."""
        return through(self._recorder, value, start, end)

    def __repr__(self) -> str:
        return f"<view of {self._recorder.model!r} inside a block>"


class Layers(_core.Layers):
    """The layers of a view."""

    __slots__ = ()

    def _create(self, index: Any) -> Any:
        """Creates the layer at an index on first access; raises for an invalid index."""
        view = self._view
        layers = view._recorder.layers
        if isinstance(index, slice):
            return [self[layer] for layer in range(len(layers))[index]]
        number = convert.integer(index, "the layer", hint=f"this model's layers are 0 to {len(layers) - 1}")
        if -len(layers) <= number < len(layers):
            number %= len(layers)
            layer = Layer(view, number, layers[number])
            self._store(layer)
            return layer
        raise SiteError(f"there is no layer {index!r}", f"this model's layers are 0 to {len(layers) - 1}")

    def __iter__(self) -> Iterator[Layer]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} layers inside a block>"


class Layer(_core.Layer):
    """A layer of a view: its points and modules. Call it to apply the layer to a value."""

    __slots__ = ()

    def _info(self, name: str) -> SiteInfo:
        return self._parts[2].get(name) or self._parts[0]._info(self._address(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._parts[0]._site(self._info(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _MODULES:
            raise SiteError(f"`{self._address(name)}` is a module and cannot be written", f"write {name}.output")
        self._parts[0]._write(self._info(_IO_POINTS.get(name, name)), value)

    def _address(self, name: str) -> str:
        return f"layers.{self._layer_index()}.{name}"

    def _layer_index(self) -> int:
        return self._parts[1]

    @property
    def input(self) -> Site:
        """The layer's input: `resid_pre`."""
        return self.__getattr__("resid_pre")

    @property
    def output(self) -> Site:
        """The layer's output: `resid_post`."""
        return self.__getattr__("resid_post")

    @property
    def attn(self) -> Module:
        """The attention module: callable, with `input` and `output`."""
        return Module(self, *_MODULES["attn"])

    @property
    def self_attn(self) -> Module:
        """`attn` under its name in most Hugging Face models."""
        return self.attn

    @property
    def mlp(self) -> Module:
        """The MLP module: callable, with `input` and `output`."""
        return Module(self, *_MODULES["mlp"])

    def __call__(self, stream: Any) -> Value:
        """Applies this layer to a residual stream."""
        return self._parts[0].through(stream, self._address("resid_pre"), self._address("resid_post"))

    def skip(self, value: Any = None) -> None:
        """Skips the layer: its output is `value`, or its input if omitted."""
        self.output._write("skip", value, at=f"layers.{self._layer_index()}")

    def __repr__(self) -> str:
        return f"<layer {self._layer_index()} inside a block>"


_IO_POINTS = {"input": "resid_pre", "output": "resid_post"}
_MODULES = {
    "attn": ("attn_in", "attn_out"),
    "self_attn": ("attn_in", "attn_out"),
    "mlp": ("mlp_in", "mlp_out"),
}


class Module:
    """A module of a layer: callable, with its input and output as sites."""

    __slots__ = ("_parts",)

    _parts: tuple[Layer, str, str]

    def __init__(self, layer: Layer, first: str, last: str) -> None:
        _set(self, "_parts", (layer, first, last))

    def _point(self, name: str) -> str:
        if name not in _IO_POINTS:
            raise SiteError(f"a module has no {name!r}", "it has input and output; the layer has all points")
        return self._parts[1] if name == "input" else self._parts[2]

    def __getattr__(self, name: str) -> Site:
        return getattr(self._parts[0], self._point(name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parts[0], self._point(name), value)

    def __call__(self, value: Any) -> Value:
        """Applies this module to a value."""
        layer, first, last = self._parts
        return layer._parts[0].through(value, layer._address(first), layer._address(last))


_ROOT_MODULES = ("model", "transformer", "gpt_neox", "base_model", "backbone")
"""Modules that Hugging Face models start with."""


class ModulePath:
    """A module by its Hugging Face path: `t.model.layers[5].mlp.output`, `t.transformer.h[5].output`.

    The path is resolved when its `output` or `input` is read or written.
    """

    __slots__ = ("_path", "_view")

    def __init__(self, view: View, path: str) -> None:
        _set(self, "_view", view)
        _set(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        path = f"{self._path}.{name}"
        return self._view[path] if name in ("output", "input") else ModulePath(self._view, path)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("output", "input"):
            raise SiteError(f"`{self._path}.{name}` is a module and cannot be written", f"write {name}.output")
        self._view[f"{self._path}.{name}"] = value

    def __getitem__(self, index: Any) -> ModulePath:
        layers = len(self._view._recorder.layers)
        number = convert.integer(index, "the layer")
        if not -layers <= number < layers:
            raise SiteError(f"there is no layer {index}", f"this model's layers are 0 to {layers - 1}")
        return ModulePath(self._view, f"{self._path}.{number % layers}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise SiteError(
            f"`{self._path}` is a path of modules", "read .output or .input of a module; call t.layers[5](x)"
        )

    def __repr__(self) -> str:
        return f"<module path {self._path} inside a block>"


def view_of(value: Value) -> View:
    """The view of the rows of a value."""
    return View(value._recorder, value._scope or Scope(None, False))


def _model_site_property(name: str, meaning: str) -> property:
    return property(lambda view: view._site(view._info(name)), doc=meaning)


# Descriptors and properties are much faster than `__getattr__`.
for _name, _in_layers, _meaning in _core.points():
    if _in_layers:
        setattr(Layer, _name, _core.SiteDescriptor(_name, _meaning))
    else:
        setattr(View, _name, _model_site_property(_name, _meaning))
