"""`SteeringVectors`: one direction per layer, from a file or extracted from pairs of prompts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .errors import InputError

if TYPE_CHECKING:
    from .model import Model


class SteeringVectors:
    """One direction per layer, added to the residual stream of a run or a generation.

    Vectors can be scaled, added and subtracted; a layer that one operand lacks counts as zero.

    ```python
    happy = pellucid.SteeringVectors.load("happy.gguf")
    model.generate("One day,", steer=1.5 * happy).text
    ```

    Attributes:
        directions: The direction of each layer, an f32 array `[width]`.
        point: The point of the layers that is steered.
        info: How the vectors were made: `model_type`, `fingerprint`, `method`, `positions`, `pairs`,
            `scale`; files of other programs have only some of these.
        quality: For extracted vectors, the measurements of each layer: `layer`, `norm`,
            `activation_norm`, `explained`, `separation`, `accuracy`, `held_out_accuracy`.
    """

    def __init__(
        self,
        directions: dict[int, Any],
        point: str = "resid_post",
        info: dict[str, Any] | None = None,
        quality: list[dict[str, Any]] | None = None,
    ) -> None:
        if not isinstance(directions, Mapping):
            raise InputError(f"{type(directions).__name__} does not map layers to directions", "pass {layer: array}")
        converted = {convert.integer(layer, "a layer"): convert.array(each) for layer, each in directions.items()}
        for layer, direction in converted.items():
            if direction.ndim != 1:
                problem = f"the direction of layer {layer} has shape {list(direction.shape)}"
                raise InputError(problem, "pass a vector [d_model]")
            bad = np.flatnonzero(~np.isfinite(direction))
            if bad.size:
                found = "NaN" if np.isnan(direction[bad[0]]) else "infinity"
                raise InputError(f"the direction of layer {layer} has {found} at index {bad[0]}", "use finite numbers")
        self.directions = dict(sorted(converted.items()))
        self.point = convert.text(point, "point")
        self.info = dict(info or {})
        self.quality = quality

    @classmethod
    def load(cls, path: str | PathLike[str]) -> SteeringVectors:
        """Reads a safetensors file, or a GGUF control vector of llama.cpp or repeng."""
        return cls._from_tuple(_core.read_steering(convert.path(path)))

    @classmethod
    def _from_tuple(cls, vectors: Any, quality: list[dict[str, Any]] | None = None) -> SteeringVectors:
        point, directions, info = vectors
        return cls({layer: array.numpy() for layer, array in directions}, point, json.loads(info), quality)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the vectors to a `.safetensors` file, or to a `.gguf` file for llama.cpp and
        repeng.
        """
        file = _core.steering_file(convert.path(path), self.point, list(self.directions.items()), json.dumps(self.info))
        Path(path).write_bytes(file)

    @property
    def layers(self) -> list[int]:
        """The layers that have a direction."""
        return list(self.directions)

    def select(self, layers: Iterable[int]) -> SteeringVectors:
        """The vectors of some layers."""
        wanted = convert.integers(layers, "a layer")
        missing = [layer for layer in wanted if layer not in self.directions]
        if missing:
            raise InputError(f"there is no direction for layer {missing[0]}", f"the layers are {self.layers}")
        return self._with({layer: self.directions[layer] for layer in wanted})

    def taps(self) -> list[dict[str, Any]]:
        """The taps of a plan that adds the directions; zero directions need none."""
        return [{"site": address, "add": {"vector": direction.tolist()}} for address, direction in self._nonzero()]

    def check(self, model: Model) -> None:
        """Raises an error if the vectors do not fit the model; warns if they were made for another
        one.
        """
        directions = [(layer, self.directions[layer]) for layer in self.layers if self.directions[layer].any()]
        if directions:
            warning = _core.check_steering(model._core, self.point, directions, json.dumps(self.info))
            if warning is not None:
                warnings.warn(warning, stacklevel=3)

    def _nonzero(self) -> Iterator[tuple[str, np.ndarray]]:
        for layer, direction in self.directions.items():
            if direction.any():
                yield f"layers.{layer}.{self.point}", direction

    # Arithmetic, as in repeng.

    def _with(self, directions: dict[int, Any]) -> SteeringVectors:
        return SteeringVectors(directions, self.point, self.info)

    def _combine(self, other: Any, factor: float) -> Any:
        if not isinstance(other, SteeringVectors):
            return NotImplemented
        if other.point != self.point:
            raise InputError(f"vectors for {self.point} and for {other.point} cannot be added", "steer with both")
        combined = dict(self.directions)
        for layer, direction in other.directions.items():
            before = combined.get(layer, np.zeros_like(direction))
            if before.shape != direction.shape:
                raise InputError(
                    f"layer {layer} has {before.size} and {direction.size} elements", "use vectors of one model"
                )
            combined[layer] = before + np.float32(factor) * direction
        # The sum has no method of its own; it keeps what both operands agree on.
        info = {key: value for key, value in self.info.items() if other.info.get(key) == value}
        return SteeringVectors(combined, self.point, info)

    def __add__(self, other: Any) -> SteeringVectors:
        return self._combine(other, 1.0)

    def __sub__(self, other: Any) -> SteeringVectors:
        return self._combine(other, -1.0)

    def __mul__(self, factor: Any) -> SteeringVectors:
        if not isinstance(factor, (int, float, np.integer, np.floating)):
            return NotImplemented
        if not np.isfinite(factor):
            raise InputError(f"vectors times {factor}", "scale them by a finite number")
        return self._with({layer: np.float32(factor) * direction for layer, direction in self.directions.items()})

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> SteeringVectors:
        return self * (1 / divisor)

    def __neg__(self) -> SteeringVectors:
        return self * -1

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SteeringVectors)
            and (self.point, self.layers) == (other.point, other.layers)
            and all(np.array_equal(self.directions[layer], other.directions[layer]) for layer in self.layers)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        width = next((direction.size for direction in self.directions.values()), 0)
        return f"<SteeringVectors for {self.point} of layers {self.layers}, width {width}>"


def extract(
    model: Model, pairs: Iterable[Any], method: str, layers: Iterable[int] | None, positions: Any, point: str
) -> SteeringVectors:
    """Implements `Model.extract_steering`."""
    rows: list[Any] = []
    for index, pair in enumerate(convert.items(pairs, "pairs", "pass a list of (positive, negative) prompts")):
        if isinstance(pair, dict) and pair.keys() == {"positive", "negative"}:
            pair = (pair["positive"], pair["negative"])
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(
                f"pair {index + 1} is not a pair of prompts",
                'pass (positive, negative), or {"positive": …, "negative": …}',
            )
        rows += [convert.tokens(model._core, prompt) for prompt in pair]
    wanted = None if layers is None else convert.integers(layers, "a layer")
    if wanted is not None and any(layer < 0 for layer in wanted):
        raise InputError(f"there is no layer {min(wanted)}", f"this model's layers are 0 to {model.n_layers - 1}")
    vectors, quality = _core.extract_steering(
        model._core,
        rows,
        convert.text(method, "method"),
        wanted,
        convert.text(str(positions), "positions"),
        convert.text(point, "point"),
    )
    return SteeringVectors._from_tuple(vectors, json.loads(quality))
