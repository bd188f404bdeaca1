"""Weight processing as in TransformerLens' `from_pretrained`: folding norms and biases, centering.

No step changes the model's predictions (`center_unembed` shifts all logits of a position equally).
Each step is requested explicitly and computed on copies of the arrays; the model itself always runs
with its original weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..convert import array as as_array
from ..errors import InputError
from .activation_cache import ActivationCache
from .factored import FactoredMatrix
from .weights import norm_before, norm_of

if TYPE_CHECKING:
    from ..model import Model

Pair = tuple[np.ndarray, np.ndarray]
"""A weight and its bias."""

RESIDUAL_POINTS = (
    "embed",
    "pos_embed",
    "resid_pre",
    "resid_mid",
    "resid_post",
    "attn_out",
    "attn_out_post",
    "mlp_out",
    "mlp_out_post",
    "head_out",
)
"""The residual stream and its summands: mean zero with `center_writing_weights`."""


class ProcessedWeights:
    """Processed weights of a model.

    `record` lists the steps; `cache` and `logits` convert activations accordingly.
    """

    def __init__(
        self,
        model: Model,
        *,
        fold_ln: bool,
        center_writing_weights: bool,
        center_unembed: bool,
        fold_value_biases: bool,
    ) -> None:
        self.model = model
        self.fold_ln = fold_ln
        self.center_writing_weights = center_writing_weights
        self.center_unembed = center_unembed
        self.fold_value_biases = fold_value_biases
        if center_writing_weights and model.cfg.normalization_type != "LN":
            raise InputError(
                "center_writing_weights would change this model's output: its norms do not subtract the mean",
                "omit it; it is valid for LayerNorm only",
            )
        if center_unembed and not _logits_are_linear(model):
            raise InputError(
                "center_unembed would change this model's output: it has a logit soft cap",
                "omit it and center the logits",
            )

    @property
    def record(self) -> tuple[str, ...]:
        """The processing steps, in order."""
        steps = ("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases")
        return tuple(step for step in steps if getattr(self, step))

    # Weights that read the residual stream.

    @property
    def W_Q(self) -> np.ndarray:
        """Query weights: `[layers, heads, d_model, d_head]`."""
        return self._into_heads("Q")[0]

    @property
    def b_Q(self) -> np.ndarray:
        """Query biases: `[layers, heads, d_head]`."""
        return self._into_heads("Q")[1]

    @property
    def W_K(self) -> np.ndarray:
        """Key weights: `[layers, heads, d_model, d_head]`."""
        return self._into_heads("K")[0]

    @property
    def b_K(self) -> np.ndarray:
        """Key biases: `[layers, heads, d_head]`."""
        return self._into_heads("K")[1]

    @property
    def W_V(self) -> np.ndarray:
        """Value weights: `[layers, heads, d_model, d_head]`."""
        return self._into_heads("V")[0]

    @property
    def b_V(self) -> np.ndarray:
        """Value biases: `[layers, heads, d_head]`."""
        bias = self._into_heads("V")[1]
        return np.zeros_like(bias) if self.fold_value_biases else bias

    @property
    def W_in(self) -> np.ndarray:
        """MLP input weights: `[layers, d_model, d_mlp]`."""
        return self._into_neurons("in")[0]

    @property
    def b_in(self) -> np.ndarray:
        """MLP input biases: `[layers, d_mlp]`."""
        return self._into_neurons("in")[1]

    @property
    def W_gate(self) -> np.ndarray:
        """Gate weights of a gated MLP: `[layers, d_model, d_mlp]`."""
        return self._into_neurons("gate")[0]

    @property
    def b_gate(self) -> np.ndarray:
        """Gate biases: `[layers, d_mlp]`."""
        return self._into_neurons("gate")[1]

    @property
    def W_U(self) -> np.ndarray:
        """Unembedding: `[d_model, d_vocab]`."""
        return self._unembedding()[0]

    @property
    def b_U(self) -> np.ndarray:
        """Unembedding bias: `[d_vocab]`."""
        return self._unembedding()[1]

    # Weights that write to the residual stream.

    @property
    def W_E(self) -> np.ndarray:
        """Token embedding: `[d_vocab, d_model]`."""
        return self._centered(self.model.W_E)

    @property
    def W_pos(self) -> np.ndarray:
        """Position embedding: `[n_ctx, d_model]`."""
        return self._centered(self.model.W_pos)

    @property
    def W_O(self) -> np.ndarray:
        """Attention output weights: `[layers, heads, d_head, d_model]`."""
        return self._centered(self.model.W_O)

    @property
    def b_O(self) -> np.ndarray:
        """Attention output biases: `[layers, d_model]`."""
        bias = self.model.b_O
        if self.fold_value_biases:
            bias = bias + np.einsum("lhe,lhed->ld", self._into_heads("V")[1], self.model.W_O)
        return self._centered(bias)

    @property
    def W_out(self) -> np.ndarray:
        """MLP output weights: `[layers, d_mlp, d_model]`."""
        return self._centered(self.model.W_out)

    @property
    def b_out(self) -> np.ndarray:
        """MLP output biases: `[layers, d_model]`."""
        return self._centered(self.model.b_out)

    @property
    def OV(self) -> FactoredMatrix:
        """The OV circuits, as a factored matrix."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """The QK circuits, without rotary embedding and biases, as a factored matrix."""
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-1, -2))

    # Matching activations.

    def logits(self, logits: Any) -> np.ndarray:
        """Converts logits to those of a model with these weights."""
        array = as_array(logits)
        return array - array.mean(axis=-1, keepdims=True) if self.center_unembed else array

    def cache(self, cache: ActivationCache) -> ActivationCache:
        """Converts a cache to that of a model with these weights. Gradients are dropped.

        With `fold_ln`, norm outputs are those before the gain (`attn_normed`, TransformerLens'
        `ln1.hook_normalized`). With `center_writing_weights`, the residual stream has mean zero.
        With `fold_value_biases`, `v`, `z` and head results lack `b_V`. All else is unchanged.
        """
        values = {address: self._convert(cache, address) for address in cache._values}
        return ActivationCache(self.model, values, lengths=cache.lengths, has_batch_dim=cache.has_batch_dim)

    def _convert(self, cache: ActivationCache, address: str) -> np.ndarray:
        site = self.model.sites[address]
        if self.fold_ln and site.point in _BEFORE_GAIN and self._normed_before(address):
            return cache[address[: -len(site.point)] + _BEFORE_GAIN[site.point]]
        array = cache[address]
        if self.fold_value_biases and site.layer is not None and site.point in ("value", "z", "head_out"):
            array = array - self._value_bias(site.layer, site.point)
        if self.center_writing_weights and site.point in RESIDUAL_POINTS and array.shape[-1] == self.model.d_model:
            array = array - array.mean(axis=-1, keepdims=True)
        return array

    def _normed_before(self, address: str) -> bool:
        site = self.model.sites[address]
        return address[: -len(site.point)] + _BEFORE_GAIN[site.point] in self.model.sites

    def _value_bias(self, layer: int, point: str) -> np.ndarray:
        bias = self._into_heads("V")[1][layer]
        if point == "value":
            heads = self.model.sites[f"layers.{layer}.value"].inner[0]
            return bias[:: len(bias) // heads]
        return bias if point == "z" else np.einsum("he,hed->hd", bias, self.model.W_O[layer])

    # Helpers.

    def _into_heads(self, name: str) -> Pair:
        weight, bias = getattr(self.model, f"W_{name}"), getattr(self.model, f"b_{name}")
        gain, shift = self._norms("attn")
        return self._folded(weight, bias, gain[:, None], shift[:, None])

    def _into_neurons(self, name: str) -> Pair:
        weight, bias = getattr(self.model, f"W_{name}"), getattr(self.model, f"b_{name}")
        return self._folded(weight, bias, *self._norms("mlp"))

    def _unembedding(self) -> Pair:
        has_norm = "final_scale" in self.model.sites
        width = self.model.d_model
        gain, shift = norm_of(self.model, "final_norm") if has_norm else (np.ones(width), np.zeros(width))
        weight, bias = self._folded(self.model.W_U, self.model.b_U, gain, shift)
        if self.center_unembed:
            weight, bias = weight - weight.mean(axis=-1, keepdims=True), bias - bias.mean()
        return weight, bias

    def _folded(self, weight: np.ndarray, bias: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> Pair:
        if not self.fold_ln:
            return weight, bias
        bias = bias + (shift[..., None, :] @ weight)[..., 0, :]
        weight = weight * gain[..., None]
        if self.model.cfg.normalization_type == "LN":
            # The input has mean zero, so the mean of the weight over d_model has no effect.
            weight = weight - weight.mean(axis=-2, keepdims=True)
        return weight, bias

    def _norms(self, sublayer: str) -> Pair:
        """Gains and biases `[layers, d_model]` of the norms before a sublayer; 1 and 0 if there is
        none.
        """
        width = self.model.d_model
        gains, shifts = [], []
        for layer in range(self.model.n_layers):
            norm = norm_before(self.model, layer, sublayer)
            gain, shift = np.ones(width, np.float32), np.zeros(width, np.float32)
            if norm is not None:
                gain, shift = norm_of(self.model, f"layers.{layer}.{norm}_in")
            gains.append(gain)
            shifts.append(shift)
        return np.stack(gains), np.stack(shifts)

    def _centered(self, weight: np.ndarray) -> np.ndarray:
        return weight - weight.mean(axis=-1, keepdims=True) if self.center_writing_weights else weight

    def __repr__(self) -> str:
        return f"ProcessedWeights of {self.model.name!r}: {', '.join(self.record) or 'unprocessed'}"


_BEFORE_GAIN = {"attn_in": "attn_normed", "mlp_in": "mlp_normed", "final_norm": "final_normed"}


def _logits_are_linear(model: Model) -> bool:
    """Whether logits are the unembedding's output up to a constant factor (no soft cap); tested on
    one token.
    """
    captures = model.without_edits().run([0], capture=["lm_head", "logits"])
    unembedded, logits = captures["lm_head"].ravel(), captures["logits"].ravel()
    factor = float(logits @ unembedded) / max(float(unembedded @ unembedded), 1e-30)
    return np.allclose(unembedded * factor, logits, rtol=1e-4, atol=1e-4)
