"""Weights in TransformerLens shapes: `[inputs, outputs]`, with a separate head axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import convert
from ..convert import array as as_array
from ..errors import InputError, SiteError
from .factored import FactoredMatrix
from .mixin import ModelMixin

if TYPE_CHECKING:
    from ..model import Model


def weight_of(model: Model, site: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The weight (`[outputs, inputs]`, or a norm's gain) and bias of the op whose output is `site`."""
    weight, bias = model._core.weight_of(model.sites[site].address)
    return weight.numpy(), None if bias is None else bias.numpy()


def projection_of(model: Model, site: str) -> tuple[np.ndarray, np.ndarray]:
    """The matrix `[inputs, outputs]` and bias of a projection; the bias is zero if there is none."""
    matrix, bias = weight_of(model, site)
    return matrix.T, read_only(np.zeros(len(matrix), np.float32)) if bias is None else bias


def norm_of(model: Model, site: str) -> tuple[np.ndarray, np.ndarray]:
    """The gain and bias of the norm whose output is `site`; 1 and 0 if it has none."""
    try:
        gain, bias = weight_of(model, site)
    except SiteError:
        before_gain = site.replace("_in", "_normed").replace("final_norm", "final_normed")
        if before_gain not in model.sites:
            raise
        gain, bias = read_only(np.ones(model.d_model, np.float32)), None
    return gain, read_only(np.zeros_like(gain)) if bias is None else bias


def read_only(array: np.ndarray) -> np.ndarray:
    """The array, made read-only: a write to a copy of a weight would not change the model."""
    array.flags.writeable = False
    return array


def norm_before(model: Model, layer: int, sublayer: str) -> str | None:
    """The prefix of the sites of the norm before `attn` or `mlp`: its own, `attn` if both share one
    norm, or `None`.
    """
    points = model.sites.of_layer[layer]
    if f"{sublayer}_scale" in points:
        return sublayer
    shared = "attn_scale" in points and "resid_mid" not in points
    return "attn" if shared else None


class Norm:
    """The weights of a norm: gain `w` and bias `b`."""

    def __init__(self, model: Model, site: str) -> None:
        self._model = model
        self._site = site

    @property
    def w(self) -> np.ndarray:
        """The gain as applied: `1 + weight` in families that store it so (Gemma)."""
        return norm_of(self._model, self._site)[0]

    @property
    def b(self) -> np.ndarray:
        """The bias."""
        return norm_of(self._model, self._site)[1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._site!r})"


class FinalNorm(Norm):
    """The final norm. Callable."""

    def __call__(self, stream: Any) -> np.ndarray:
        """Applies the final norm, gain and bias included, to residual stream vectors
        `[…, d_model]`.
        """
        array = as_array(stream)
        model = self._model
        if array.shape[-1:] != (model.d_model,):
            raise InputError(
                f"vectors of shape {list(array.shape)}", f"the last axis must be {model.d_model}, the model's d_model"
            )
        with model.without_edits().trace([0]) as block:
            normed = block.final_norm(array.reshape(-1, model.d_model)).save()
        return np.asarray(normed.value).reshape(array.shape)


class Attention:
    """The attention weights of a layer.

    With grouped-query attention, `W_K` and `W_V` are repeated for each query head.
    """

    def __init__(self, model: Model, layer: int) -> None:
        self._model = model
        self._layer = layer

    def _by_head(self, point: str) -> tuple[np.ndarray, np.ndarray]:
        """The weight `[heads, d_model, d_head]` and bias `[heads, d_head]` of the projection to
        `q`, `k` or `value`.
        """
        sites = self._model.sites
        heads, width = sites[f"layers.{self._layer}.{point}"].inner
        matrix, bias = projection_of(self._model, f"layers.{self._layer}.{point}")
        by_head = matrix.reshape(-1, heads, width).swapaxes(0, 1)
        bias = bias.reshape(heads, width)
        repeated = sites[f"layers.{self._layer}.z"].inner[0] // heads
        if repeated > 1:
            by_head, bias = read_only(by_head.repeat(repeated, 0)), read_only(bias.repeat(repeated, 0))
        return by_head, bias

    @property
    def W_Q(self) -> np.ndarray:
        """Query weights: `[heads, d_model, d_head]`."""
        return self._by_head("q")[0]

    @property
    def W_K(self) -> np.ndarray:
        """Key weights: `[heads, d_model, d_head]`."""
        return self._by_head("k")[0]

    @property
    def W_V(self) -> np.ndarray:
        """Value weights: `[heads, d_model, d_head]`."""
        return self._by_head("value")[0]

    @property
    def W_O(self) -> np.ndarray:
        """Output weights: `[heads, d_head, d_model]`."""
        heads, width = self._model.sites[f"layers.{self._layer}.z"].inner
        return projection_of(self._model, f"layers.{self._layer}.attn_out")[0].reshape(heads, width, -1)

    @property
    def b_Q(self) -> np.ndarray:
        """Query biases: `[heads, d_head]`."""
        return self._by_head("q")[1]

    @property
    def b_K(self) -> np.ndarray:
        """Key biases: `[heads, d_head]`."""
        return self._by_head("k")[1]

    @property
    def b_V(self) -> np.ndarray:
        """Value biases: `[heads, d_head]`."""
        return self._by_head("value")[1]

    @property
    def b_O(self) -> np.ndarray:
        """Output biases: `[d_model]`."""
        return projection_of(self._model, f"layers.{self._layer}.attn_out")[1]

    @property
    def OV(self) -> FactoredMatrix:
        """The OV circuit of each head, as a factored matrix `W_V @ W_O`."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """The QK circuit of each head, without rotary embedding and biases, as a factored matrix
        `W_Q @ W_K.T`.
        """
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-1, -2))


class MLP:
    """The MLP weights of a layer."""

    def __init__(self, model: Model, layer: int) -> None:
        self._model = model
        self._layer = layer

    def _projection(self, point: str) -> tuple[np.ndarray, np.ndarray]:
        return projection_of(self._model, f"layers.{self._layer}.{point}")

    @property
    def _up_point(self) -> str:
        """The point after `W_in`: in a gated MLP the linear branch, not the gate."""
        gated = "mlp_pre_linear" in self._model.sites.of_layer[self._layer]
        return "mlp_pre_linear" if gated else "mlp_pre"

    def _gate(self) -> tuple[np.ndarray, np.ndarray]:
        if self._up_point == "mlp_pre":
            raise SiteError(f"the MLP of layer {self._layer} is not gated", "use W_in")
        return self._projection("mlp_pre")

    @property
    def W_in(self) -> np.ndarray:
        """MLP input weights: `[d_model, d_mlp]`."""
        return self._projection(self._up_point)[0]

    @property
    def W_gate(self) -> np.ndarray:
        """Gate weights of a gated MLP: `[d_model, d_mlp]`."""
        return self._gate()[0]

    @property
    def W_out(self) -> np.ndarray:
        """MLP output weights: `[d_mlp, d_model]`."""
        return self._projection("mlp_out")[0]

    @property
    def b_in(self) -> np.ndarray:
        """MLP input biases: `[d_mlp]`."""
        return self._projection(self._up_point)[1]

    @property
    def b_gate(self) -> np.ndarray:
        """Gate biases: `[d_mlp]`."""
        return self._gate()[1]

    @property
    def b_out(self) -> np.ndarray:
        """MLP output biases: `[d_model]`."""
        return self._projection("mlp_out")[1]


class BlockWeights:
    """The weights of a layer: `attn`, `mlp`, and the norms before them, `ln1` and `ln2`."""

    def __init__(self, model: Model, layer: int) -> None:
        self.layer = layer
        self.attn = Attention(model, layer)
        self.mlp = MLP(model, layer)
        self.ln1 = Norm(model, f"layers.{layer}.attn_in")
        self.ln2 = Norm(model, f"layers.{layer}.mlp_in")

    def __repr__(self) -> str:
        return f"<weights of layer {self.layer}: attn, mlp, ln1, ln2>"


def check_layer(model: Model, layer: Any) -> int:
    """Resolves a layer index; negative ones count from the end."""
    layers = model.n_layers
    number = convert.integer(layer, "the layer", hint=f"this model's layers are 0 to {layers - 1}")
    if not -layers <= number < layers:
        raise SiteError(f"there is no layer {layer}", f"this model's layers are 0 to {layers - 1}")
    return number % layers


class BlockList:
    """`model.blocks`: the weights of each layer."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getitem__(self, layer: int) -> BlockWeights:
        return BlockWeights(self._model, check_layer(self._model, layer))

    def __len__(self) -> int:
        return self._model.n_layers

    def __iter__(self) -> Iterator[BlockWeights]:
        return (self[layer] for layer in range(len(self)))


def _stacked_attention(name: str) -> property:
    return property(
        lambda model: stack_layers(model, lambda block: getattr(block.attn, name)), doc=_doc(Attention, name)
    )


def _stacked_mlp(name: str) -> property:
    return property(lambda model: stack_layers(model, lambda block: getattr(block.mlp, name)), doc=_doc(MLP, name))


def _doc(owner: type, name: str) -> str:
    return f"{getattr(owner, name).__doc__} Stacked over layers, `[layers, …]`."


def stack_layers(model: Any, part: Callable[[BlockWeights], np.ndarray]) -> np.ndarray:
    """Stacks a weight of all layers; raises if the shapes differ."""
    arrays = [part(block) for block in model.blocks]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise SiteError(f"the shape of this weight differs between layers: {sorted(shapes)}", "use model.blocks[layer]")
    return read_only(np.stack(arrays))


class WeightsMixin(ModelMixin):
    """The unprocessed weights in TransformerLens names and shapes, always f32."""

    W_Q = _stacked_attention("W_Q")
    W_K = _stacked_attention("W_K")
    W_V = _stacked_attention("W_V")
    W_O = _stacked_attention("W_O")
    b_Q = _stacked_attention("b_Q")
    b_K = _stacked_attention("b_K")
    b_V = _stacked_attention("b_V")
    b_O = _stacked_attention("b_O")
    W_in = _stacked_mlp("W_in")
    W_gate = _stacked_mlp("W_gate")
    W_out = _stacked_mlp("W_out")
    b_in = _stacked_mlp("b_in")
    b_gate = _stacked_mlp("b_gate")
    b_out = _stacked_mlp("b_out")

    @property
    def blocks(self) -> BlockList:
        """The weights of each layer: `model.blocks[3].attn.W_Q`."""
        return BlockList(self._model)

    @property
    def ln_final(self) -> FinalNorm:
        """The final norm: `.w`, `.b`, and callable on residual stream vectors."""
        return FinalNorm(self._model, "final_norm")

    @property
    def W_E(self) -> np.ndarray:
        """Token embedding: `[d_vocab, d_model]`."""
        return weight_of(self._model, "embed")[0]

    @property
    def W_pos(self) -> np.ndarray:
        """Position embedding: `[n_ctx, d_model]`; raises if the model has none."""
        return weight_of(self._model, self._model.sites["pos_embed"].address)[0]

    @property
    def W_U(self) -> np.ndarray:
        """Unembedding: `[d_model, d_vocab]`."""
        return projection_of(self._model, "lm_head")[0]

    @property
    def b_U(self) -> np.ndarray:
        """Unembedding bias: `[d_vocab]`."""
        return projection_of(self._model, "lm_head")[1]

    @property
    def OV(self) -> FactoredMatrix:
        """The OV circuits as a factored matrix `W_V @ W_O`, `[layers, heads, d_model, d_model]`."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """The QK circuits, without rotary embedding and biases, as a factored matrix `W_Q @ W_K.T`,
        `[layers, heads, d_model, d_model]`.
        """
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-1, -2))

    def tokens_to_residual_directions(self, tokens: Any) -> np.ndarray:
        """The columns of `W_U` for tokens `[…]` (ids, a text, or a list of texts): `[…, d_model]`."""
        if isinstance(tokens, str):
            tokens = self._model.to_single_token(tokens)
        elif isinstance(tokens, (list, tuple)) and tokens and isinstance(tokens[0], str):
            tokens = [self._model.to_single_token(token) for token in tokens]
        ids = np.asarray(tokens)
        if ids.dtype.kind not in "iu" or (ids.size and not 0 <= ids.min() <= ids.max() < self._model.vocab_size):
            raise InputError(
                f"{tokens!r} are not tokens", f"tokens are integers from 0 to {self._model.vocab_size - 1}, or texts"
            )
        return self.W_U.T[ids]
