"""Helpers for `pos_slice`, `batch_slice`, padding and `stop_at_layer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import convert
from ..errors import InputError, PlanError
from ..results import stack_padded

if TYPE_CHECKING:
    from ..model import Model
    from ..site import Site
    from ..site_table import SiteInfo
    from ..values import Value

AxisIndex = int | slice | list[int] | None
"""An index of one axis: an integer (drops the axis), a slice, a list of indices, or `None` for all.
"""


def parse_axis_index(index: Any, argument: str = "pos_slice") -> AxisIndex:
    """Normalizes an integer, a slice or its bounds as a tuple, a list, an array or a boolean mask."""
    if index is None or isinstance(index, slice):
        return index
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        return int(index)
    if isinstance(index, tuple) and 1 <= len(index) <= 3:
        return slice(*(None if bound is None else convert.integer(bound, argument) for bound in index))
    indices = np.asarray(index)
    if indices.ndim == 1 and indices.dtype == bool:
        indices = np.nonzero(indices)[0]
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or indices.size == 0:
        raise PlanError(
            f"{argument} is {index!r}", "pass an integer, a slice, bounds as a tuple, or a list of integers"
        )
    return [int(one) for one in indices]


def check_positions(index: AxisIndex, lengths: Sequence[int]) -> None:
    """Raises if a prompt does not have the positions."""
    if index is None:
        return
    for row, length in enumerate(lengths):
        if isinstance(index, slice):
            problem = None if range(length)[index] else f"{index} is empty"
        else:
            positions = [index] if isinstance(index, int) else index
            problem = next((f"{at} is out of range" for at in positions if not -length <= at < length), None)
        if problem is not None:
            raise InputError(
                f"pos_slice {problem} in prompt {row}, which has {length} tokens",
                f"its positions are 0 to {length - 1}, or -{length} to -1 from the end",
            )


def selected_counts(index: AxisIndex, rows: list[Any]) -> list[int] | None:
    """The number of selected positions of each prompt; `None` if an integer removes the axis."""
    if isinstance(index, int):
        return None
    return [
        len(range(len(row))[index]) if isinstance(index, slice) else len(row if index is None else index)
        for row in rows
    ]


def select_of_prompts(array: np.ndarray, index: AxisIndex, axis: int, lengths: Sequence[int]) -> np.ndarray:
    """Indexes the position axis of a padded batch `[…, batch, …]`, each prompt by its own length.

    The batch axis is the first. Prompts with fewer selected positions are zero-padded at the end.
    """
    if index is None:
        return array
    check_positions(index, lengths)
    rows = []
    for row, length in zip(array, lengths, strict=True):
        full: list[Any] = [slice(None)] * row.ndim
        full[axis] = slice(length)
        rows.append(index_axis(row[tuple(full)], index, axis))
    return stack_padded(rows)


def crop_padding(array: np.ndarray, kind: str, positions: Sequence[int] | None, lengths: Sequence[int]) -> np.ndarray:
    """Removes positions that are padding in every prompt of a (part of a) batch."""
    if positions is None or not lengths:
        return array
    full: list[Any] = [slice(None)] * array.ndim
    full[-3 if kind == "heads" else -2] = slice(max(positions))
    if kind == "attention":
        full[-1] = slice(max(lengths))
    return array[tuple(full)]


def index_axis(array: np.ndarray, index: AxisIndex, axis: int) -> np.ndarray:
    """Indexes one axis of an array."""
    if index is None:
        return array
    full: list[Any] = [slice(None)] * array.ndim
    full[axis] = index
    try:
        return array[tuple(full)]
    except IndexError:
        raise PlanError(
            f"{index} is out of range for an axis of length {array.shape[axis]}", "use indices that this cache has"
        ) from None


def select_positions(site: Site, info: SiteInfo, index: AxisIndex) -> Value:
    """Selects positions of a site; for attention scores and patterns, query positions."""
    if index is None:
        return site
    return site[:, :, index] if info.kind == "attention" else site[:, index]


def stack_batch(rows: list[np.ndarray]) -> np.ndarray:
    """Stacks the arrays of the prompts along a batch axis, zero-padding shorter ones at the end."""
    if len(rows) == 1:
        return rows[0][None]
    batch = stack_padded(rows)
    batch.flags.writeable = False
    return batch


def check_lengths(rows: list[Any], padded: bool, remedy: str) -> None:
    """Raises for prompts of unequal length, unless they are to be padded."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1 and not padded:
        listed = ", ".join(str(length) for length in lengths[:-1]) + f" and {lengths[-1]}"
        raise InputError(f"prompts of {listed} tokens do not form one array", remedy)


def resolve_stop_layer(model: Model, stop_at_layer: int | None) -> int | None:
    """Resolves `stop_at_layer`, the first layer that does not run; negative values count from the
    end.
    """
    layers = model.n_layers
    if stop_at_layer is None:
        return None
    stop_at_layer = convert.integer(stop_at_layer, "stop_at_layer")
    if not -layers <= stop_at_layer <= layers:
        raise InputError(
            f"stop_at_layer={stop_at_layer!r}, but this model has {layers} layers",
            f"0 to {layers} stop before that layer, -1 to -{layers} count from the end",
        )
    return stop_at_layer % layers if stop_at_layer < 0 else stop_at_layer


def resid_site_before(model: Model, layer: int) -> str:
    """The site of the residual stream before a layer, or after the last one."""
    return f"layers.{layer}.resid_pre" if layer < model.n_layers else f"layers.{layer - 1}.resid_post"


def is_computed_before(site: SiteInfo, layer: int | None) -> bool:
    """Whether a run that stops before `layer` computes the site."""
    if layer is None:
        return True
    if site.layer is None:
        return site.address in ("embed", "pos_embed")
    return site.layer < layer
