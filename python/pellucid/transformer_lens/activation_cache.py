"""`ActivationCache`: the activations of a run by name, with decompositions of the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import display
from ..errors import InputError, NotCaptured, SiteError
from ..results import to_torch
from .decomposition import DecompositionMixin
from .names import find_site, hook_name
from .slicing import crop_padding, index_axis, parse_axis_index, select_of_prompts

if TYPE_CHECKING:
    from ..model import Model

GRADIENT = "_grad"
"""Suffix of gradient names."""


class ActivationCache(DecompositionMixin, Mapping[str, np.ndarray]):
    """Activations of a run as arrays `[batch, pos, …]`, by TransformerLens name, short form or
    site.

    `cache["blocks.5.hook_resid_post"]`, `cache["resid_post", 5]`, `cache["resid_post", -1]` and
    `cache["layers.5.resid_post"]` are the same array. `q`, `k`, `v` and `z` are
    `[batch, pos, heads, d_head]`; patterns are `[batch, heads, queries, keys]`.
    """

    def __init__(
        self,
        model: Model,
        values: dict[str, np.ndarray],
        gradients: dict[str, np.ndarray] | None = None,
        *,
        metric: float | None = None,
        lengths: Sequence[int] = (),
        positions: Sequence[int] | None = None,
        has_batch_dim: bool = True,
    ) -> None:
        self.model = model
        self.metric = metric
        """The value of the metric that the gradients differentiate."""
        self.lengths = list(lengths)
        """Number of tokens of each prompt; arrays are zero-padded after them."""
        self._positions = None if positions is None else list(positions)
        """Number of cached positions of each prompt; `None` if arrays have no position axis."""
        self.has_batch_dim = has_batch_dim
        self._values = values
        self._gradients = gradients or {}

    # Mapping.

    def __getitem__(self, key: Any) -> np.ndarray:
        is_gradient = isinstance(key, str) and key.endswith(GRADIENT)
        site = find_site(self.model, key[: -len(GRADIENT)] if is_gradient else key)
        found = (self._gradients if is_gradient else self._values).get(site.address)
        if found is None:
            remedy = "run with incl_bwd=True and a metric" if is_gradient else "include it in names_filter"
            raise NotCaptured("this run did not cache it", remedy, site=hook_name(site) + GRADIENT * is_gradient)
        return found

    def __iter__(self) -> Iterator[str]:
        sites = self.model.sites
        yield from (hook_name(sites[address]) for address in self._values)
        yield from (hook_name(sites[address]) + GRADIENT for address in self._gradients)

    def __len__(self) -> int:
        return len(self._values) + len(self._gradients)

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except (NotCaptured, SiteError):
            return False
        return True

    def torch(self, key: Any) -> Any:
        """An activation as a torch tensor."""
        return to_torch(self[key])

    # Batch axis.

    def remove_batch_dim(self) -> ActivationCache:
        """Removes the batch axis of a batch of one, in place."""
        if self.has_batch_dim:
            sizes = {len(array) for array in self._values.values()}
            if sizes - {1}:
                raise InputError(
                    f"cannot remove the batch axis of {max(sizes)} prompts", "choose one: apply_slice_to_batch_dim(0)"
                )
            self.apply_slice_to_batch_dim(0)
        return self

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> ActivationCache:
        """Keeps some prompts of the batch, in place; an integer removes the batch axis."""
        if not self.has_batch_dim:
            raise InputError("this cache has no batch axis", "it already holds a single prompt")
        index = parse_axis_index(batch_slice, "batch_slice")
        lengths = np.atleast_1d(index_axis(np.asarray(self.lengths), index, 0)).tolist()
        positions = self._positions
        if positions is not None:
            positions = np.atleast_1d(index_axis(np.asarray(positions), index, 0)).tolist()
        for arrays in (self._values, self._gradients):
            for address, array in arrays.items():
                kind = self.model.sites[address].kind
                arrays[address] = crop_padding(index_axis(array, index, 0), kind, positions, lengths)
        self.lengths, self._positions = lengths, positions
        self.has_batch_dim = not isinstance(index, int)
        return self

    # Padding.

    def _select_positions(self, array: np.ndarray, pos_slice: Any, axis: int) -> np.ndarray:
        """Indexes the position axis; in a padded batch each prompt by its own length, so that
        padding is never selected.
        """
        index = parse_axis_index(pos_slice)
        if self._positions is not None and self._is_padded:
            return select_of_prompts(array, index, axis, self._positions)
        return index_axis(array, index, axis)

    @property
    def _is_padded(self) -> bool:
        return self.has_batch_dim and self._positions is not None and len(set(self._positions)) > 1

    def _real_positions(self, pos_slice: Any) -> np.ndarray | None:
        """Which positions `[batch, pos]` of a selection are not padding; `None` if all are."""
        index = parse_axis_index(pos_slice)
        if self._positions is None or not self._is_padded or isinstance(index, int):
            return None
        counts = [len(np.atleast_1d(index_axis(np.arange(count), index, 0))) for count in self._positions]
        return np.arange(max(counts)) < np.asarray(counts)[:, None]

    # Display.

    def __repr__(self) -> str:
        batch = "" if self.has_batch_dim else ", without batch axis"
        gradients = f" and {len(self._gradients)} gradients" if self._gradients else ""
        return f"ActivationCache of {len(self._values)} activations{gradients}{batch}"

    def _repr_html_(self) -> str:
        return display.table(
            ("name", "shape", "mean", "std"), [(name, *display.array_stats(array)) for name, array in self.items()]
        )
