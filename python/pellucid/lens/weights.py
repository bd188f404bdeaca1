"""Weights in TransformerLens' shapes: inputs before outputs, heads on an axis of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..convert import array as as_array
from ..errors import InputError, SiteError
from .base import Part
from .factored import FactoredMatrix

if TYPE_CHECKING:
    from ..model import Model


def weight_of(model: Model, site: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The weight of the op that makes a site, as it is used (`[outputs, inputs]`, or a norm's gain), and its bias."""
    weight, bias = model._core.weight_of(model.sites[site].address)
    return weight.numpy(), None if bias is None else bias.numpy()


def projection_of(model: Model, site: str) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as `[inputs, outputs]`, and its bias, which is zero where there is none."""
    matrix, bias = weight_of(model, site)
    return matrix.T, np.zeros(len(matrix), np.float32) if bias is None else bias


def norm_of(model: Model, site: str) -> tuple[np.ndarray, np.ndarray]:
    """The gain and bias of the norm that makes a site; 1 and 0 where it has none."""
    try:
        gain, bias = weight_of(model, site)
    except SiteError:
        before_gain = site.replace("_in", "_normed").replace("final_norm", "final_normed")
        if before_gain not in model.sites:
            raise
        gain, bias = np.ones(model.width, np.float32), None
    return gain, np.zeros_like(gain) if bias is None else bias


def norm_before(model: Model, layer: int, sublayer: str) -> str | None:
    """The sublayer under whose name the norm before `attn` or `mlp` of a layer is found: its own, the one both share, or none."""
    points = model.sites.of_layer[layer]
    if f"{sublayer}_scale" in points:
        return sublayer
    shared = "attn_scale" in points and "resid_mid" not in points
    return "attn" if shared else None


class Norm:
    """A norm: its gain `w` and bias `b`."""

    def __init__(self, model: Model, site: str) -> None:
        self._model = model
        self._site = site

    @property
    def w(self) -> np.ndarray:
        """What it multiplies by, as it is used: on families that store the gain less one, with the one added."""
        return norm_of(self._model, self._site)[0]

    @property
    def b(self) -> np.ndarray:
        """What it adds."""
        return norm_of(self._model, self._site)[1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._site!r})"


class FinalNorm(Norm):
    """The norm before the unembedding, which can be called."""

    def __call__(self, stream: Any) -> np.ndarray:
        """What the model's own final norm makes of vectors of the stream, gain and bias included."""
        array = as_array(stream)
        model = self._model
        if array.shape[-1:] != (model.width,):
            raise InputError(f"vectors of shape {list(array.shape)}", f"the stream of this model is {model.width} wide")
        with model.without_edits().trace([0]) as block:
            normed = block.final_norm(array.reshape(-1, model.width)).save()
        return np.asarray(normed.value).reshape(array.shape)


class Attention:
    """The attention weights of a layer. Key heads that serve several query heads are repeated for each of them."""

    def __init__(self, model: Model, layer: int) -> None:
        self._model = model
        self._layer = layer

    def _by_head(self, point: str) -> tuple[np.ndarray, np.ndarray]:
        """A projection into heads as `[heads, width, head width]`, and its bias as `[heads, head width]`."""
        sites = self._model.sites
        heads, width = sites[f"layers.{self._layer}.{point}"].inner
        matrix, bias = projection_of(self._model, f"layers.{self._layer}.{point}")
        by_head = matrix.reshape(-1, heads, width).swapaxes(0, 1)
        bias = bias.reshape(heads, width)
        repeated = sites[f"layers.{self._layer}.z"].inner[0] // heads
        return (by_head, bias) if repeated == 1 else (by_head.repeat(repeated, 0), bias.repeat(repeated, 0))

    @property
    def W_Q(self) -> np.ndarray:
        """Queries: `[heads, width, head width]`."""
        return self._by_head("q")[0]

    @property
    def W_K(self) -> np.ndarray:
        """Keys: `[heads, width, head width]`."""
        return self._by_head("k")[0]

    @property
    def W_V(self) -> np.ndarray:
        """Values: `[heads, width, head width]`."""
        return self._by_head("value")[0]

    @property
    def W_O(self) -> np.ndarray:
        """Output: `[heads, head width, width]`."""
        heads, width = self._model.sites[f"layers.{self._layer}.z"].inner
        return projection_of(self._model, f"layers.{self._layer}.attn_out")[0].reshape(heads, width, -1)

    @property
    def b_Q(self) -> np.ndarray:
        """Biases of queries: `[heads, head width]`."""
        return self._by_head("q")[1]

    @property
    def b_K(self) -> np.ndarray:
        """Biases of keys: `[heads, head width]`."""
        return self._by_head("k")[1]

    @property
    def b_V(self) -> np.ndarray:
        """Biases of values: `[heads, head width]`."""
        return self._by_head("value")[1]

    @property
    def b_O(self) -> np.ndarray:
        """Biases of the output: `[width]`."""
        return projection_of(self._model, f"layers.{self._layer}.attn_out")[1]

    @property
    def OV(self) -> FactoredMatrix:
        """What each head copies, as two factors: `W_V @ W_O`."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """What each head looks for, before rotation and biases, as two factors: `W_Q @ W_K.T`."""
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-1, -2))


class MLP:
    """The MLP weights of a layer."""

    def __init__(self, model: Model, layer: int) -> None:
        self._model = model
        self._layer = layer

    def _projection(self, point: str) -> tuple[np.ndarray, np.ndarray]:
        return projection_of(self._model, f"layers.{self._layer}.{point}")

    @property
    def _linear(self) -> str:
        """What TransformerLens calls the way in: of a gated MLP the branch that is multiplied."""
        gated = "mlp_pre_linear" in self._model.sites.of_layer[self._layer]
        return "mlp_pre_linear" if gated else "mlp_pre"

    def _gate(self) -> tuple[np.ndarray, np.ndarray]:
        if self._linear == "mlp_pre":
            raise SiteError(f"the MLP of layer {self._layer} is not a gated one", "use W_in")
        return self._projection("mlp_pre")

    @property
    def W_in(self) -> np.ndarray:
        """Into the neurons: `[width, neurons]`."""
        return self._projection(self._linear)[0]

    @property
    def W_gate(self) -> np.ndarray:
        """The gate of a gated MLP: `[width, neurons]`."""
        return self._gate()[0]

    @property
    def W_out(self) -> np.ndarray:
        """Out of the neurons: `[neurons, width]`."""
        return self._projection("mlp_out")[0]

    @property
    def b_in(self) -> np.ndarray:
        """Biases into the neurons: `[neurons]`."""
        return self._projection(self._linear)[1]

    @property
    def b_gate(self) -> np.ndarray:
        """Biases of the gate: `[neurons]`."""
        return self._gate()[1]

    @property
    def b_out(self) -> np.ndarray:
        """Biases out of the neurons: `[width]`."""
        return self._projection("mlp_out")[1]


class Block:
    """The weights of a layer: `attn`, `mlp`, and the norms before them, `ln1` and `ln2`."""

    def __init__(self, model: Model, layer: int) -> None:
        self.attn = Attention(model, layer)
        self.mlp = MLP(model, layer)
        self.ln1 = Norm(model, f"layers.{layer}.attn_in")
        self.ln2 = Norm(model, f"layers.{layer}.mlp_in")


class Blocks:
    """The layers, as holders of weights."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getitem__(self, layer: int) -> Block:
        layers = len(self)
        if not -layers <= layer < layers:
            raise SiteError(f"there is no layer {layer}", f"this model's layers are 0 to {layers - 1}")
        return Block(self._model, layer % layers)

    def __len__(self) -> int:
        return self._model.layers

    def __iter__(self) -> Iterator[Block]:
        return (self[layer] for layer in range(len(self)))


def _of_attention(name: str) -> property:
    return property(
        lambda model: stacked_over(model, lambda block: getattr(block.attn, name)), doc=_doc(Attention, name)
    )


def _of_mlp(name: str) -> property:
    return property(lambda model: stacked_over(model, lambda block: getattr(block.mlp, name)), doc=_doc(MLP, name))


def _doc(owner: type, name: str) -> str:
    return f"{getattr(owner, name).__doc__} For all layers, with an axis for them in front."


def stacked_over(model: Any, part: Callable[[Block], np.ndarray]) -> np.ndarray:
    """A weight of every layer as one array; layers that differ make none."""
    arrays = [part(block) for block in model.blocks]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise SiteError(f"layers differ in this weight: shapes {sorted(shapes)}", "take it from model.blocks[layer]")
    return np.stack(arrays)


class Weights(Part):
    """The part of a model that gives its weights as TransformerLens does: as they were trained, and always f32."""

    W_Q = _of_attention("W_Q")
    W_K = _of_attention("W_K")
    W_V = _of_attention("W_V")
    W_O = _of_attention("W_O")
    b_Q = _of_attention("b_Q")
    b_K = _of_attention("b_K")
    b_V = _of_attention("b_V")
    b_O = _of_attention("b_O")
    W_in = _of_mlp("W_in")
    W_gate = _of_mlp("W_gate")
    W_out = _of_mlp("W_out")
    b_in = _of_mlp("b_in")
    b_gate = _of_mlp("b_gate")
    b_out = _of_mlp("b_out")

    @property
    def blocks(self) -> Blocks:
        """The layers, as holders of weights: `model.blocks[3].attn.W_Q`."""
        return Blocks(self._model)

    @property
    def ln_final(self) -> FinalNorm:
        """The norm before the unembedding: `.w`, `.b`, and a function of vectors of the stream."""
        return FinalNorm(self._model, "final_norm")

    @property
    def W_E(self) -> np.ndarray:
        """The token embeddings: `[vocabulary, width]`."""
        return weight_of(self._model, "embed")[0]

    @property
    def W_pos(self) -> np.ndarray:
        """The position embeddings: `[positions, width]`; an error on models without them."""
        return weight_of(self._model, self._model.sites["pos_embed"].address)[0]

    @property
    def W_U(self) -> np.ndarray:
        """The unembedding: `[width, vocabulary]`."""
        return projection_of(self._model, "lm_head")[0]

    @property
    def b_U(self) -> np.ndarray:
        """The biases of the unembedding: `[vocabulary]`."""
        return projection_of(self._model, "lm_head")[1]

    @property
    def OV(self) -> FactoredMatrix:
        """What each head copies, as two factors: `W_V @ W_O`, `[layers, heads, width, width]`."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """What each head looks for, before rotation and biases, as two factors: `W_Q @ W_K.T`, `[layers, heads, width, width]`."""
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-1, -2))

    def tokens_to_residual_directions(self, tokens: Any) -> np.ndarray:
        """The directions that unembed to tokens: `[…, width]` for tokens `[…]`, a token's text, or a list of those."""
        if isinstance(tokens, str):
            tokens = self._model.to_single_token(tokens)
        elif isinstance(tokens, (list, tuple)) and tokens and isinstance(tokens[0], str):
            tokens = [self._model.to_single_token(token) for token in tokens]
        numbers = np.asarray(tokens)
        if numbers.dtype.kind not in "iu" or (
            numbers.size and not 0 <= numbers.min() <= numbers.max() < self._model.vocabulary
        ):
            raise InputError(
                f"{tokens!r} are not tokens", f"tokens are numbers from 0 to {self._model.vocabulary - 1}, or texts"
            )
        return self.W_U.T[numbers]
