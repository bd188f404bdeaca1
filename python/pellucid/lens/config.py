"""Facts of a model under TransformerLens' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..model import Model
    from ..sites import SiteInfo


class Config:
    """What a model is: `model.cfg.n_layers`, `d_model`, … Where layers differ, the first that has such a part."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def _first(self, point: str) -> SiteInfo | None:
        return next((points[point] for points in self._model.sites.of_layer if point in points), None)

    def _inner(self, point: str, axis: int) -> int | None:
        site = self._first(point)
        return None if site is None else site.inner[axis]

    @property
    def model_name(self) -> str:
        """What it is called."""
        return self._model.name

    @property
    def n_layers(self) -> int:
        """How many layers it has."""
        return self._model.layers

    @property
    def d_model(self) -> int:
        """The width of its stream."""
        return self._model.width

    @property
    def d_vocab(self) -> int:
        """How many tokens it knows."""
        return self._model.vocabulary

    @property
    def n_ctx(self) -> int | None:
        """How many positions it has, if it sets a limit."""
        return self._model.context

    @property
    def n_heads(self) -> int | None:
        """How many query heads a layer has."""
        return self._inner("z", 0)

    @property
    def n_key_value_heads(self) -> int | None:
        """How many key heads a layer has; `None` where each query head has its own, as in TransformerLens."""
        keys = self._inner("k", 0)
        return None if keys == self.n_heads else keys

    @property
    def d_head(self) -> int | None:
        """The width of a head."""
        return self._inner("rot_q", 1)

    @property
    def d_mlp(self) -> int | None:
        """How many neurons a layer has."""
        return self._inner("mlp_act", 0)

    @property
    def attn_only(self) -> bool:
        """Whether no layer has an MLP."""
        return self._first("mlp_out") is None

    @property
    def gated_mlp(self) -> bool:
        """Whether MLPs have a gate."""
        return self._first("mlp_pre_linear") is not None

    @property
    def parallel_attn_mlp(self) -> bool:
        """Whether attention and MLP both read what enters the layer."""
        return (
            self._first("attn_out") is not None
            and self._first("mlp_out") is not None
            and self._first("resid_mid") is None
        )

    @property
    def normalization_type(self) -> str | None:
        """`LN` where norms subtract the mean, `RMS` where they do not, `None` without a final norm; found by looking at one token."""
        return self._model._normalization

    def __repr__(self) -> str:
        names = ("model_name", "n_layers", "d_model", "n_heads", "d_head", "d_mlp", "d_vocab", "n_ctx")
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def normalization_of(model: Model) -> str | None:
    """Whether the final norm subtracts the mean, seen from what it does with one token."""
    if "final_scale" not in model.sites:
        return None
    before = f"layers.{model.layers - 1}.resid_post"
    seen = model.without_edits().run([0], capture=[before, "final_scale", "final_normed"])
    divided = seen[before] / seen["final_scale"]
    return "RMS" if np.allclose(divided, seen["final_normed"], rtol=1e-4, atol=1e-4) else "LN"
