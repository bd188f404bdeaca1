"""Weights and caches after the simplifications that TransformerLens makes when it loads a model.

None of them changes what a model says (`center_unembed` shifts all logits of a position alike). Here they are asked for one by one, are
recorded, and are arithmetic on arrays: the model itself always runs as it was trained.
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

STREAM = (
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
"""Points that are (parts of) the stream, which centred writing weights leave with mean zero."""


class ProcessedWeights:
    """Weights of a model, processed. `record` says how; `cache` and `logits` give activations the same treatment."""

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
                "center_writing_weights changes what this model says: its norms do not subtract the mean",
                "leave it out; it goes with LayerNorm only",
            )
        if center_unembed and not _logits_are_scaled_at_most(model):
            raise InputError(
                "center_unembed changes what this model says: it caps its logits", "leave it out, and centre the logits"
            )

    @property
    def record(self) -> tuple[str, ...]:
        """What was done, in this order, to the weights as they were trained."""
        steps = ("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases")
        return tuple(step for step in steps if getattr(self, step))

    # Weights that read the stream.

    @property
    def W_Q(self) -> np.ndarray:
        """Queries: `[layers, heads, width, head width]`."""
        return self._into_heads("Q")[0]

    @property
    def b_Q(self) -> np.ndarray:
        """Biases of queries: `[layers, heads, head width]`."""
        return self._into_heads("Q")[1]

    @property
    def W_K(self) -> np.ndarray:
        """Keys: `[layers, heads, width, head width]`."""
        return self._into_heads("K")[0]

    @property
    def b_K(self) -> np.ndarray:
        """Biases of keys: `[layers, heads, head width]`."""
        return self._into_heads("K")[1]

    @property
    def W_V(self) -> np.ndarray:
        """Values: `[layers, heads, width, head width]`."""
        return self._into_heads("V")[0]

    @property
    def b_V(self) -> np.ndarray:
        """Biases of values: `[layers, heads, head width]`."""
        bias = self._into_heads("V")[1]
        return np.zeros_like(bias) if self.fold_value_biases else bias

    @property
    def W_in(self) -> np.ndarray:
        """Into the neurons: `[layers, width, neurons]`."""
        return self._into_neurons("in")[0]

    @property
    def b_in(self) -> np.ndarray:
        """Biases into the neurons: `[layers, neurons]`."""
        return self._into_neurons("in")[1]

    @property
    def W_gate(self) -> np.ndarray:
        """The gate of a gated MLP: `[layers, width, neurons]`."""
        return self._into_neurons("gate")[0]

    @property
    def b_gate(self) -> np.ndarray:
        """Biases of the gate: `[layers, neurons]`."""
        return self._into_neurons("gate")[1]

    @property
    def W_U(self) -> np.ndarray:
        """The unembedding: `[width, vocabulary]`."""
        return self._unembedding()[0]

    @property
    def b_U(self) -> np.ndarray:
        """Biases of the unembedding: `[vocabulary]`."""
        return self._unembedding()[1]

    # Weights that write into it.

    @property
    def W_E(self) -> np.ndarray:
        """The token embeddings: `[vocabulary, width]`."""
        return self._written(self.model.W_E)

    @property
    def W_pos(self) -> np.ndarray:
        """The position embeddings: `[positions, width]`."""
        return self._written(self.model.W_pos)

    @property
    def W_O(self) -> np.ndarray:
        """Attention's output: `[layers, heads, head width, width]`."""
        return self._written(self.model.W_O)

    @property
    def b_O(self) -> np.ndarray:
        """Biases of attention's output: `[layers, width]`."""
        bias = self.model.b_O
        if self.fold_value_biases:
            bias = bias + np.einsum("lhe,lhed->ld", self._into_heads("V")[1], self.model.W_O)
        return self._written(bias)

    @property
    def W_out(self) -> np.ndarray:
        """Out of the neurons: `[layers, neurons, width]`."""
        return self._written(self.model.W_out)

    @property
    def b_out(self) -> np.ndarray:
        """Biases out of the neurons: `[layers, width]`."""
        return self._written(self.model.b_out)

    @property
    def OV(self) -> FactoredMatrix:
        """What each head copies, as two factors."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """What each head looks for, before rotation and biases, as two factors."""
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-1, -2))

    # Activations that go with them.

    def logits(self, logits: Any) -> np.ndarray:
        """Logits as a model with these weights has them."""
        array = as_array(logits)
        return array - array.mean(axis=-1, keepdims=True) if self.center_unembed else array

    def cache(self, cache: ActivationCache) -> ActivationCache:
        """A cache as a model with these weights would have filled it. Gradients have no such counterpart, and are left out.

        Folded norms hand on what they have before the gain (`attn_normed`, which TransformerLens calls `ln1.hook_normalized`); centred
        weights write vectors of mean zero; folded biases are missing from values and `z`. Everything else is as it was.
        """
        values = {address: self._seen(cache, address) for address in cache._values}
        return ActivationCache(self.model, values, lengths=cache.lengths, has_batch_dim=cache.has_batch_dim)

    def _seen(self, cache: ActivationCache, address: str) -> np.ndarray:
        site = self.model.sites[address]
        if self.fold_ln and site.point in _BEFORE_GAIN and self._normed_before(address):
            return cache[address[: -len(site.point)] + _BEFORE_GAIN[site.point]]
        array = cache[address]
        if self.fold_value_biases and site.layer is not None and site.point in ("value", "z", "head_out"):
            array = array - self._value_bias(site.layer, site.point)
        if self.center_writing_weights and site.point in STREAM and array.shape[-1] == self.model.width:
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

    # How they are made.

    def _into_heads(self, name: str) -> Pair:
        weight, bias = getattr(self.model, f"W_{name}"), getattr(self.model, f"b_{name}")
        gain, shift = self._norms("attn")
        return self._folded(weight, bias, gain[:, None], shift[:, None])

    def _into_neurons(self, name: str) -> Pair:
        weight, bias = getattr(self.model, f"W_{name}"), getattr(self.model, f"b_{name}")
        return self._folded(weight, bias, *self._norms("mlp"))

    def _unembedding(self) -> Pair:
        has_norm = "final_scale" in self.model.sites
        width = self.model.width
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
            # What it reads has mean zero, so its own mean over the stream is never seen.
            weight = weight - weight.mean(axis=-2, keepdims=True)
        return weight, bias

    def _norms(self, sublayer: str) -> Pair:
        """Gains and biases of the norms before a sublayer, of all layers; 1 and 0 where there is none."""
        width = self.model.width
        gains, shifts = [], []
        for layer in range(self.model.layers):
            own = norm_before(self.model, layer, sublayer)
            gain, shift = np.ones(width, np.float32), np.zeros(width, np.float32)
            if own is not None:
                gain, shift = norm_of(self.model, f"layers.{layer}.{own}_in")
            gains.append(gain)
            shifts.append(shift)
        return np.stack(gains), np.stack(shifts)

    def _written(self, weight: np.ndarray) -> np.ndarray:
        return weight - weight.mean(axis=-1, keepdims=True) if self.center_writing_weights else weight

    def __repr__(self) -> str:
        return f"ProcessedWeights of {self.model.name!r}: {', '.join(self.record) or 'nothing done'}"


_BEFORE_GAIN = {"attn_in": "attn_normed", "mlp_in": "mlp_normed", "final_norm": "final_normed"}


def _logits_are_scaled_at_most(model: Model) -> bool:
    """Whether logits are the bare unembedding but for a factor; found by looking at one token."""
    seen = model.without_edits().run([0], capture=["lm_head", "logits"])
    bare, logits = seen["lm_head"].ravel(), seen["logits"].ravel()
    factor = float(logits @ bare) / max(float(bare @ bare), 1e-30)
    return np.allclose(bare * factor, logits, rtol=1e-4, atol=1e-4)
