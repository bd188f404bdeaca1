"""The model's dimensions and features under TransformerLens names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..model import Model
    from ..site_table import SiteInfo


class Config:
    """`model.cfg`: `n_layers`, `d_model`, … If layers differ, a value is that of the first layer
    that has the module.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def _first(self, point: str) -> SiteInfo | None:
        return next((points[point] for points in self._model.sites.of_layer if point in points), None)

    def _inner(self, point: str, axis: int) -> int | None:
        site = self._first(point)
        return None if site is None else site.inner[axis]

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self._model.n_layers

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self._model.d_model

    @property
    def d_vocab(self) -> int:
        """Vocabulary size."""
        return self._model.vocab_size

    @property
    def n_ctx(self) -> int | None:
        """Context length; `None` if the model has no limit."""
        return self._model.n_ctx

    @property
    def n_heads(self) -> int | None:
        """Number of query heads per layer."""
        return self._inner("z", 0)

    @property
    def n_key_value_heads(self) -> int | None:
        """Number of key-value heads per layer; `None` without grouped-query attention, as in
        TransformerLens.
        """
        keys = self._inner("k", 0)
        return None if keys == self.n_heads else keys

    @property
    def d_head(self) -> int | None:
        """Dimension of a head."""
        return self._inner("rot_q", 1)

    @property
    def d_mlp(self) -> int | None:
        """Number of MLP neurons per layer."""
        return self._inner("mlp_act", 0)

    @property
    def attn_only(self) -> bool:
        """Whether no layer has an MLP."""
        return self._first("mlp_out") is None

    @property
    def gated_mlp(self) -> bool:
        """Whether the MLPs are gated."""
        return self._first("mlp_pre_linear") is not None

    @property
    def parallel_attn_mlp(self) -> bool:
        """Whether attention and MLP both read the layer's input."""
        return (
            self._first("attn_out") is not None
            and self._first("mlp_out") is not None
            and self._first("resid_mid") is None
        )

    @property
    def normalization_type(self) -> str | None:
        """`LN` (LayerNorm), `RMS` (RMSNorm), or `None` without a final norm.

        Determined by running one token.
        """
        return self._model._normalization

    @property
    def device(self) -> str:
        """`cpu`: the engine runs on the CPU."""
        return "cpu"

    def __repr__(self) -> str:
        names = ("model_name", "n_layers", "d_model", "n_heads", "d_head", "d_mlp", "d_vocab", "n_ctx")
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def normalization_of(model: Model) -> str | None:
    """`LN` if the final norm subtracts the mean, else `RMS`; tested on one token."""
    if "final_scale" not in model.sites:
        return None
    before = f"layers.{model.n_layers - 1}.resid_post"
    captures = model.without_edits().run([0], capture=[before, "final_scale", "final_normed"])
    divided = captures[before] / captures["final_scale"]
    return "RMS" if np.allclose(divided, captures["final_normed"], rtol=1e-4, atol=1e-4) else "LN"
