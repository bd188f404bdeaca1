"""Positions of a cache, the batch of it, and where a run stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, PlanError
from ..results import stacked

if TYPE_CHECKING:
    from ..model import Model
    from ..places import Site
    from ..sites import SiteInfo
    from ..values import Value

Pick = int | slice | list[int] | None
"""A choice along an axis: one place (which drops the axis), a slice, places, or everything."""


def pick_of(given: Any, what: str = "pos_slice") -> Pick:
    """A choice as it may be written: a number, a slice or its bounds as a tuple, a list, an array or a mask."""
    if given is None or isinstance(given, slice):
        return given
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        return int(given)
    if isinstance(given, tuple):
        return slice(*given)
    places = np.asarray(given)
    if places.ndim == 1 and places.dtype == bool:
        places = np.nonzero(places)[0]
    if places.ndim != 1 or places.dtype.kind not in "iu" or places.size == 0:
        raise PlanError(f"{what} is {given!r}", "give a number, a slice, bounds as a tuple, or a list of numbers")
    return [int(place) for place in places]


def check_positions(pick: Pick, lengths: Sequence[int]) -> None:
    """Refuses positions that a prompt does not have."""
    if pick is None:
        return
    for row, length in enumerate(lengths):
        if isinstance(pick, slice):
            problem = None if range(length)[pick] else f"{pick} is empty"
        else:
            places = [pick] if isinstance(pick, int) else pick
            problem = next((f"{place} is out of range" for place in places if not -length <= place < length), None)
        if problem is not None:
            raise InputError(
                f"pos_slice {problem} in prompt {row}, which has {length} tokens",
                f"its positions are 0 to {length - 1}, or -{length} to -1 from the end",
            )


def sliced(array: np.ndarray, pick: Pick, axis: int) -> np.ndarray:
    """A choice of places along an axis."""
    if pick is None:
        return array
    index: list[Any] = [slice(None)] * array.ndim
    index[axis] = pick
    try:
        return array[tuple(index)]
    except IndexError:
        raise PlanError(
            f"{pick} is out of range on an axis of {array.shape[axis]}", "choose places that this cache holds"
        ) from None


def at_positions(site: Site, info: SiteInfo, pick: Pick) -> Value:
    """The chosen positions of a site; of attention, the chosen queries."""
    if pick is None:
        return site
    return site[:, :, pick] if info.kind == "attention" else site[:, pick]


def batched(rows: list[np.ndarray]) -> np.ndarray:
    """Arrays of each prompt as one with an axis for the batch; shorter ones are filled up with zeros at their ends."""
    if len(rows) == 1:
        return rows[0][None]
    batch = stacked(rows)
    batch.flags.writeable = False
    return batch


def check_lengths(rows: list[Any], padded: bool, remedy: str) -> None:
    """Refuses prompts that do not make one array, unless they are to be filled up."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1 and not padded:
        lengths_said = ", ".join(str(length) for length in lengths[:-1]) + f" and {lengths[-1]}"
        raise InputError(f"prompts of {lengths_said} tokens do not make one array", remedy)


def layer_to_stop_at(model: Model, stop_at_layer: int | None) -> int | None:
    """The first layer that does not run; negative ones count from the end."""
    layers = model.layers
    if stop_at_layer is None:
        return None
    if isinstance(stop_at_layer, bool) or not isinstance(stop_at_layer, int) or not -layers <= stop_at_layer <= layers:
        raise InputError(
            f"stop_at_layer={stop_at_layer!r}, and this model has {layers} layers",
            f"0 to {layers} stop before that layer, -1 to -{layers} count from the end",
        )
    return stop_at_layer % layers if stop_at_layer < 0 else stop_at_layer


def stream_before(model: Model, layer: int) -> str:
    """The site of the stream that enters a layer, or that leaves the last."""
    return f"layers.{layer}.resid_pre" if layer < model.layers else f"layers.{layer - 1}.resid_post"


def runs_before(site: SiteInfo, layer: int | None) -> bool:
    """Whether a site is computed by a run that stops before a layer; the stream that enters the layer is."""
    if layer is None:
        return True
    if site.layer is None:
        return site.address in ("embed", "pos_embed")
    return site.layer < layer
