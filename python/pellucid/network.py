"""`Network`: a builder for small networks that can be traced like any model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core, convert
from .errors import InputError
from .model import Model
from .trace import Trace


class Network:
    """Builds a network part by part. Each part has a name, reads earlier parts, and is a site.

    ```python
    net = pellucid.Network()
    net.input("x", 5)
    net.linear("hidden", "x", 10, bias=True)
    net.activation("active", "hidden", "relu")
    net.linear("y", "active", 2)
    model = net.build({"hidden": w1, "hidden.bias": b1, "y": w2})
    with model.trace(np.ones((1, 5))) as t:
        t["hidden"][:, :, 3] = 0
        y = t["y"].save()
    ```
    """

    def __init__(self) -> None:
        self._core = _core.Network()
        self._input: str | None = None

    def _add(self, kind: str, name: str, *inputs: str, **options: Any) -> str:
        self._core.add(kind, name, list(inputs), options)
        return name

    def input(self, name: str, width: int) -> str:
        """The input: vectors `[tokens, width]` per row, passed to `trace`.

        A network has at most one; otherwise it reads tokens.
        """
        if self._input is not None:
            raise InputError(
                f"the network already has the input {self._input!r}", "concatenate the inputs before passing them"
            )
        self._input = self._add("input", name, width=width)
        return name

    def embedding(self, name: str, rows: int, width: int) -> str:
        """Token embedding: looks up tokens in the table `[rows, width]`, the weight `name`."""
        return self._add("embedding", name, rows=rows, width=width)

    def positions(self, name: str, rows: int, width: int) -> str:
        """Position embedding: looks up positions in the table `[rows, width]`, the weight `name`."""
        return self._add("positions", name, rows=rows, width=width)

    def linear(self, name: str, x: str, outputs: int, *, bias: bool = False, weight: str | None = None) -> str:
        """A linear map with the weight `name` (`[outputs, inputs]`) and optional `name.bias`;
        `weight` shares another part's weight.
        """
        options = {} if weight is None else {"weight": weight}
        return self._add("linear", name, x, outputs=outputs, bias=bias, **options)

    def activation(self, name: str, x: str, function: str) -> str:
        """An activation function, by its Hugging Face name: `relu`, `gelu`, `gelu_new`, `silu`,
        `sigmoid`, `tanh`, …
        """
        return self._add("activation", name, x, function=function)

    def layer_norm(self, name: str, x: str, *, eps: float = 1e-5, bias: bool = True) -> str:
        """A layer norm with the weights `name.gain` and `name.bias`; `name.scale` and `name.normed`
        are sites too.
        """
        return self._add("norm", name, x, eps=eps, bias=bias)

    def rms_norm(self, name: str, x: str, *, eps: float = 1e-5) -> str:
        """An RMS norm with the weight `name.gain`; `name.scale` and `name.normed` are sites too."""
        return self._add("norm", name, x, eps=eps, rms=True)

    def add(self, name: str, a: str, b: str) -> str:
        """The sum of two parts."""
        return self._add("add", name, a, b)

    def multiply(self, name: str, a: str, b: str) -> str:
        """The elementwise product of two parts."""
        return self._add("multiply", name, a, b)

    def scale(self, name: str, x: str, by: float) -> str:
        """A part times the constant `by`."""
        return self._add("scale", name, x, by=by)

    def concat(self, name: str, *parts: str) -> str:
        """Concatenates parts along the last axis."""
        return self._add("concat", name, *parts)

    def attention(self, name: str, q: str, k: str, v: str, heads: int, kv_heads: int | None = None) -> str:
        """Causal attention; `name.scores` and `name.probs` are sites too."""
        return self._add("attention", name, q, k, v, heads=heads, kv_heads=kv_heads or heads)

    def build(self, weights: Mapping[str, Any], name: str = "network") -> NetworkModel:
        """Builds the model from weights by name."""
        arrays = {key: convert.array(value) for key, value in weights.items()}
        return NetworkModel(self._core.build(name, arrays), self._input)


class NetworkModel(Model):
    """A built network.

    If it has an input, `trace` takes vectors: `[tokens, width]`, or a list of such arrays.
    """

    def __init__(self, core: Any, input_name: str | None) -> None:
        Model.__init__(self, core)
        self.input = input_name
        """The input site; `None` if the network reads tokens."""

    def trace(self, prompts: Any = None, **options: Any) -> Trace:
        """Like `Model.trace`; `prompts` are vectors if the network has an input."""
        if self.input is None:
            return Model.trace(self, prompts, **options)
        several = isinstance(prompts, (list, tuple)) and len(prompts) > 0 and np.ndim(prompts[0]) == 2
        arrays = [convert.array(row) for row in (prompts if several else [prompts])]
        for row, array in enumerate(arrays):
            if array.ndim != 2 or len(array) == 0:
                raise InputError(f"row {row} has shape {array.shape}", "pass one array [tokens, width] per row")
        tokens: Any = [[0] * len(array) for array in arrays]
        block = Model.trace(self, tokens if several else tokens[0], **options)
        return InputTrace(block, self.input, arrays)


class InputTrace(Trace):
    """A trace that writes the input vectors first."""

    __slots__ = ("_arrays", "_name")

    def __init__(self, block: Trace, name: str, arrays: list[Any]) -> None:
        object.__setattr__(self, "_recorder", block._recorder)
        object.__setattr__(self, "_scope", block._scope)
        object.__setattr__(self, "_options", block._options)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_arrays", arrays)
        # `block` is never entered: this object replaces it. Suppresses its warning.
        block._recorder.entered = True

    def __enter__(self) -> Any:
        self._recorder.entered = False
        Trace.__enter__(self)
        self[self._name] = self._arrays[0] if self._scope.single else self._arrays
        return self
