"""Activations of a run by name, and the sums and projections that are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import display
from ..errors import Error, InputError, SiteError
from ..results import to_torch
from .decomposition import Decomposition
from .names import hook_name, site_named
from .selecting import pick_of, sliced

if TYPE_CHECKING:
    from ..model import Model

GRADIENT = "_grad"
"""What the name of a gradient ends with."""


class NotCached(Error, KeyError):
    """An activation that this run did not keep."""


class ActivationCache(Decomposition, Mapping[str, np.ndarray]):
    """Activations of a run as arrays `[batch, positions, …]`, by TransformerLens' names, short forms, or the sites' own.

    `cache["blocks.5.hook_resid_post"]`, `cache["resid_post", 5]`, `cache["resid_post", -1]`, `cache["layers.5.resid_post"]` are one
    array. Queries, keys, values and `z` are `[batch, positions, heads, width]`; patterns are `[batch, heads, queries, keys]`.
    """

    def __init__(
        self,
        model: Model,
        values: dict[str, np.ndarray],
        gradients: dict[str, np.ndarray] | None = None,
        *,
        metric: float | None = None,
        lengths: Sequence[int] = (),
        has_batch_dim: bool = True,
    ) -> None:
        self.model = model
        self.metric = metric
        """The number that gradients are of."""
        self.lengths = list(lengths)
        """How many tokens each prompt has; past them stand zeros."""
        self.has_batch_dim = has_batch_dim
        self._values = values
        self._gradients = gradients or {}

    # A mapping.

    def __getitem__(self, key: Any) -> np.ndarray:
        is_gradient = isinstance(key, str) and key.endswith(GRADIENT)
        site = site_named(self.model, key[: -len(GRADIENT)] if is_gradient else key)
        found = (self._gradients if is_gradient else self._values).get(site.address)
        if found is None:
            remedy = "run with incl_bwd=True and a metric" if is_gradient else "have names_filter take it in"
            raise NotCached("this run did not keep it", remedy, site=hook_name(site) + GRADIENT * is_gradient)
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
        except (NotCached, SiteError):
            return False
        return True

    def torch(self, key: Any) -> Any:
        """An activation as a torch tensor."""
        return to_torch(self[key])

    # The batch.

    def remove_batch_dim(self) -> ActivationCache:
        """Takes the axis of the batch away from a batch of one."""
        if self.has_batch_dim:
            sizes = {len(array) for array in self._values.values()}
            if sizes - {1}:
                raise InputError(f"a batch of {max(sizes)} keeps its axis", "choose one: apply_slice_to_batch_dim(0)")
            self.apply_slice_to_batch_dim(0)
        return self

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> ActivationCache:
        """Keeps some prompts of the batch; a single number takes the axis away."""
        if not self.has_batch_dim:
            raise InputError("this cache has no axis for the batch", "it is a single prompt's already")
        pick = pick_of(batch_slice, "batch_slice")
        for arrays in (self._values, self._gradients):
            for address, array in arrays.items():
                arrays[address] = sliced(array, pick, 0)
        self.lengths = np.atleast_1d(sliced(np.asarray(self.lengths), pick, 0)).tolist()
        self.has_batch_dim = not isinstance(pick, int)
        return self

    # How it looks.

    def __repr__(self) -> str:
        batch = "" if self.has_batch_dim else ", without an axis for the batch"
        gradients = f" and {len(self._gradients)} gradients" if self._gradients else ""
        return f"ActivationCache of {len(self._values)} activations{gradients}{batch}"

    def _repr_html_(self) -> str:
        return display.table(
            ("name", "shape", "mean", "deviation"), [(name, *display.numbers(array)) for name, array in self.items()]
        )
