"""Decompositions of the residual stream by layer, head and neuron, and their logit attributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import convert
from ..errors import InputError, PlanError, SiteError
from .slicing import index_axis, parse_axis_index
from .weights import check_layer, norm_before, norm_of, projection_of

if TYPE_CHECKING:
    from ..model import Model

LabeledStack = np.ndarray | tuple[np.ndarray, list[str]]
"""A stack of components `[components, (batch,) pos, d_model]`, or `(stack, labels)` with
`return_labels`.
"""


class DecompositionMixin:
    """The decomposition methods of `ActivationCache`.

    Stacks are `[components, (batch,) pos, d_model]`.
    """

    model: Model
    has_batch_dim: bool

    def __getitem__(self, key: Any) -> np.ndarray:
        raise NotImplementedError

    def _select_positions(self, array: np.ndarray, pos_slice: Any, axis: int) -> np.ndarray:
        raise NotImplementedError

    def _real_positions(self, pos_slice: Any) -> np.ndarray | None:
        raise NotImplementedError

    # The residual stream after each layer.

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Any = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> LabeledStack:
        """The residual stream before each layer up to `layer`; by default also after the last
        layer.

        Args:
            layer: The last layer whose input is included; `None` or -1 for all layers and the final
                output.
            incl_mid: Include the residual stream between attention and MLP.
            apply_ln: Apply the final norm (or, with `layer`, that layer's norm with its cached
                scale).
            pos_slice: Positions to include.
            mlp_input: Include the residual stream before the MLP of `layer`.
            return_labels: Return `(stack, labels)`.
        """
        end = self._layer(layer, mlp_input)
        last = self.model.n_layers
        names: list[tuple[str, int]] = []
        labels: list[str] = []
        for at in range(end + 1):
            names.append(("resid_pre", at) if at < last else ("resid_post", last - 1))
            labels.append(f"{at}_pre" if at < last else "final_post")
            if at < last and ((incl_mid and at < end) or (mlp_input and at == end)):
                names.append(("resid_mid", at))
                labels.append(f"{at}_mid")
        stack = self._stack(names, pos_slice)
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, end, mlp_input, pos_slice, recompute_ln=end == last)
        return (stack, labels) if return_labels else stack

    def logit_lens(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        pos_slice: Any = None,
        return_type: str = "probs",
        return_labels: bool = False,
    ) -> LabeledStack:
        """Logit lens: applies the final norm and the unembedding to the residual stream before each
        layer and after the last.

        Args:
            layer: As in `accumulated_resid`.
            incl_mid: As in `accumulated_resid`.
            pos_slice: Positions to include. The result is `[…, d_vocab]`, so select few of many.
            return_type: `"probs"`, `"log_probs"` or `"logits"`.
            return_labels: Return `(stack, labels)`.
        """
        stack, labels = self.accumulated_resid(layer, incl_mid, pos_slice=pos_slice, return_labels=True)
        result = self._blank_padding(convert_logits(self.model.unembed(stack), return_type), pos_slice)
        return (result, labels) if return_labels else result

    # Components.

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: str = "all",
        apply_ln: bool = False,
        pos_slice: Any = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> LabeledStack:
        """The contribution of each sublayer to the residual stream before `layer`.

        With the embeddings they sum to it.

        If the model scales or norms its embeddings, the component `embed` is the input of layer 0.

        Args:
            layer: `None` or -1 for the final residual stream.
            mlp_input: Decompose the MLP input of `layer`, which includes its attention output.
            mode: `"all"`, `"attn"` (including recurrent mixers) or `"mlp"`.
            apply_ln: Apply `apply_ln_to_stack`.
            pos_slice: Positions to include.
            incl_embeds: Include the embeddings as components.
            return_labels: Return `(stack, labels)`.
        """
        convert.choice(mode, "mode", ("all", "attn", "mlp"))
        end = self._layer(layer, mlp_input)
        components = self._embedding_components() if incl_embeds else []
        for at in range(end + mlp_input):
            points = self.model.sites.of_layer[at]
            for point, label in _WRITES:
                included = mode == "all" or (mode == "mlp") == (point == "mlp_out_post")
                if included and point in points and not (at == end and point == "mlp_out_post"):
                    components.append((f"{at}_{label}", self[f"layers.{at}.{point}"]))
        if not components:
            raise InputError(f"there are no components before layer {end}", "use a later layer, or incl_embeds=True")
        labels = [label for label, _ in components]
        stack = np.stack([self._select_positions(array, pos_slice, -2) for _, array in components])
        if mode == "all" and incl_embeds:
            self._check_sum(stack, end, mlp_input, pos_slice)
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, end, mlp_input, pos_slice)
        return (stack, labels) if return_labels else stack

    def stack_head_results(
        self,
        layer: int | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: Any = None,
        apply_ln: bool = False,
    ) -> LabeledStack:
        """The contribution of each head of all layers before `layer`: `attn.hook_result` if cached,
        else computed from `z` and `W_O`.

        Args:
            layer: `None` or -1 for all layers.
            return_labels: Return `(stack, labels)`, with labels such as `L0H3`.
            incl_remainder: Add the rest of the residual stream as a component, so that all sum to
                it.
            pos_slice: Positions to include.
            apply_ln: Apply `apply_ln_to_stack`.
        """
        end = self._layer(layer)
        with_heads = [at for at in range(end) if "z" in self.model.sites.of_layer[at]]
        results = [self._select_positions(self._head_results(at), pos_slice, -3) for at in with_heads]
        labels = [
            f"L{at}H{head}" for at, result in zip(with_heads, results, strict=True) for head in range(result.shape[-2])
        ]
        return self._finish_stack(results, labels, end, incl_remainder, pos_slice, apply_ln, return_labels)

    def get_neuron_results(self, layer: int, neuron_slice: Any = None, pos_slice: Any = None) -> np.ndarray:
        """The contribution of each neuron of a layer: `[…, pos, neurons, d_model]`, which is large."""
        neurons = parse_axis_index(neuron_slice, "neuron_slice")
        if isinstance(neurons, int):
            neurons = [neurons]
        layer = check_layer(self.model, layer)
        activation = index_axis(self._select_positions(self[f"layers.{layer}.mlp_act"], pos_slice, -2), neurons, -1)
        out, _ = projection_of(self.model, f"layers.{layer}.mlp_out")
        return activation[..., None] * index_axis(out, neurons, 0)

    def stack_neuron_results(
        self,
        layer: int | None = -1,
        pos_slice: Any = None,
        neuron_slice: Any = None,
        return_labels: bool = False,
        incl_remainder: bool = False,
        apply_ln: bool = False,
    ) -> LabeledStack:
        """The contribution of each neuron of all layers before `layer`.

        Select positions or neurons: the full result is large.

        Args:
            layer: `None` or -1 for all layers.
            pos_slice: Positions to include.
            neuron_slice: Neurons of each layer to include.
            return_labels: Return `(stack, labels)`, with labels such as `L0N17`.
            incl_remainder: Add the rest of the residual stream as a component.
            apply_ln: Apply `apply_ln_to_stack`.
        """
        end = self._layer(layer)
        neurons = parse_axis_index(neuron_slice, "neuron_slice")
        results, labels = [], []
        for at in range(end):
            if "mlp_act" in self.model.sites.of_layer[at]:
                results.append(self.get_neuron_results(at, neuron_slice, pos_slice))
                indices = index_axis(np.arange(self.model.sites.of_layer[at]["mlp_act"].inner[0]), neurons, 0)
                labels += [f"L{at}N{neuron}" for neuron in np.atleast_1d(indices)]
        return self._finish_stack(results, labels, end, incl_remainder, pos_slice, apply_ln, return_labels)

    def get_full_resid_decomposition(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: Any = None,
        return_labels: bool = False,
    ) -> LabeledStack:
        """Decomposes the residual stream before `layer` into heads, neurons (or MLPs), embeddings
        and biases, which sum to it.

        Args:
            layer: `None` or -1 for the final residual stream.
            mlp_input: Decompose the MLP input of `layer`, which includes its attention output.
            expand_neurons: One component per neuron instead of one per MLP.
            apply_ln: Apply `apply_ln_to_stack`.
            pos_slice: Positions to include.
            return_labels: Return `(stack, labels)`.
        """
        end = self._layer(layer, mlp_input)
        heads, labels = self.stack_head_results(end + mlp_input, return_labels=True, pos_slice=pos_slice)
        stacks = [heads]
        if expand_neurons:
            neurons, neuron_labels = self.stack_neuron_results(end, pos_slice, return_labels=True)
            stacks.append(neurons)
            labels += neuron_labels
        for label, array in [*self._whole_sublayers(end, mlp_input, expand_neurons), *self._embedding_components()]:
            stacks.append(self._select_positions(array, pos_slice, -2)[None])
            labels.append(label)
        stack = np.concatenate(stacks)
        # The remainder must be the output biases, which are equal at all positions: check it.
        remainder = self._select_positions(self._resid(end, mlp_input), pos_slice, -2) - stack.sum(axis=0)
        real = self._real_positions(pos_slice)
        flat = remainder.reshape(-1, remainder.shape[-1]) if real is None else remainder[real]
        if np.abs(flat - flat.mean(axis=0)).max() > 1e-3 * max(1.0, float(np.abs(stack).max())):
            raise PlanError(
                "heads and neurons of this model do not sum to its residual stream: their output is normed or scaled first",
                "use decompose_resid, whose components are taken after that",
            )
        stack = np.concatenate([stack, remainder[None]])
        labels.append("bias")
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, end, mlp_input, pos_slice)
        return (stack, labels) if return_labels else stack

    def stack_activation(
        self, activation_name: str, layer: int | None = -1, sublayer_type: str | None = None
    ) -> np.ndarray:
        """Stacks an activation of every layer before `layer`: `[layers, …]`."""
        return np.stack([self[activation_name, at, sublayer_type] for at in range(self._layer(layer))])

    # Norms and logit attribution.

    def apply_ln_to_stack(
        self,
        residual_stack: np.ndarray,
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: Any = None,
        batch_slice: Any = None,
        recompute_ln: bool = False,
    ) -> np.ndarray:
        """Applies a norm to each component with the scale cached from the run, so that components
        still sum.

        The gain is applied, because weights are not folded here. The norm's bias belongs to no
        component and is left out. If the model has no norm there, returns the stack unchanged.

        Args:
            residual_stack: Components `[components, …, d_model]`.
            layer: The layer of the norm; `None` or -1 for the final norm.
            mlp_input: Use the norm before the layer's MLP instead of the one before its attention.
            pos_slice: The positions of the stack.
            batch_slice: Prompts to select from the stack.
            recompute_ln: Normalize each component independently, bias included, as if it were the
                whole residual stream. Final norm only.
        """
        end = self._layer(layer, mlp_input)
        batch = parse_axis_index(batch_slice, "batch_slice")
        if batch is not None and self.has_batch_dim:
            residual_stack = index_axis(residual_stack, batch, 1)
        if end == self.model.n_layers:
            scale_at, norm_at = "final_scale", "final_norm"
        else:
            norm = norm_before(self.model, end, "mlp" if mlp_input else "attn")
            scale_at, norm_at = f"layers.{end}.{norm}_scale", f"layers.{end}.{norm}_in"
        if scale_at not in self.model.sites:
            return residual_stack
        if recompute_ln:
            if norm_at != "final_norm":
                raise InputError("recompute_ln works only with the final norm", "omit layer")
            return self._blank_padding(self.model.ln_final(residual_stack), pos_slice)
        scale = self._select_positions(self[scale_at], pos_slice, -2)
        if batch is not None and self.has_batch_dim:
            scale = index_axis(scale, batch, 0)
        gain, _ = norm_of(self.model, norm_at)
        if self.model.cfg.normalization_type == "LN":
            residual_stack = residual_stack - residual_stack.mean(axis=-1, keepdims=True)
        # The scale of padding is zero, and so is the result there.
        return residual_stack / np.where(scale == 0, 1, scale) * gain

    def logit_attrs(
        self,
        residual_stack: np.ndarray,
        tokens: Any,
        incorrect_tokens: Any = None,
        pos_slice: Any = None,
        batch_slice: Any = None,
    ) -> np.ndarray:
        """The contribution of each component to the logit of a token, or to a logit difference.

        Args:
            residual_stack: Components before the final norm, which is applied here with the cached
                scale.
            tokens: A token, its text, one per prompt, or one per prompt and position.
            incorrect_tokens: Tokens whose logit is subtracted, in the same shape.
            pos_slice: The positions of the stack.
            batch_slice: Prompts to select from the stack.
        """
        directions = self.model.tokens_to_residual_directions(tokens)
        if incorrect_tokens is not None:
            others = self.model.tokens_to_residual_directions(incorrect_tokens)
            if others.shape != directions.shape:
                raise InputError(
                    f"tokens of shape {list(directions.shape[:-1])} and incorrect_tokens of shape {list(others.shape[:-1])}",
                    "pass the same shape for both",
                )
            directions = directions - others
        stack = self.apply_ln_to_stack(residual_stack, -1, pos_slice=pos_slice, batch_slice=batch_slice)
        if self.has_batch_dim and stack.ndim == 4 and directions.ndim == 2 and len(directions) == stack.shape[1]:
            directions = directions[:, None]
        try:
            directions = np.broadcast_to(directions, stack.shape)
        except ValueError:
            raise InputError(
                f"tokens of shape {list(directions.shape[:-1])} for a stack of shape {list(stack.shape)}",
                "pass one token, one per prompt, or one per prompt and position",
            ) from None
        return np.einsum("...d,...d->...", stack, directions)

    # Helpers.

    def _layer(self, layer: int | None, mlp_input: bool = False) -> int:
        """Resolves `layer`; `n_layers` stands for the end of the model."""
        layers = self.model.n_layers
        if layer is not None:
            layer = convert.integer(layer, "layer")
        end = layers if layer is None or layer == -1 else layer
        if not 0 <= end <= layers:
            raise SiteError(f"layer={layer}, but this model has {layers} layers", f"use 0 to {layers}, or -1 for all")
        if mlp_input and end == layers:
            raise SiteError(
                "mlp_input at the end of the model, where there is no MLP", f"name a layer, 0 to {layers - 1}"
            )
        return end

    def _resid(self, layer: int, mlp_input: bool = False) -> np.ndarray:
        if layer == self.model.n_layers:
            return self["resid_post", layer - 1]
        return self["resid_mid" if mlp_input else "resid_pre", layer]

    def _stack(self, names: list[tuple[str, int]], pos_slice: Any) -> np.ndarray:
        return np.stack([self._select_positions(self[name], pos_slice, -2) for name in names])

    def _blank_padding(self, stack: np.ndarray, pos_slice: Any) -> np.ndarray:
        """Sets the padding of a stack `[components, batch, pos, …]` to zero."""
        real = self._real_positions(pos_slice)
        return stack if real is None else np.where(real[..., None], stack, np.float32(0))

    def _embedding_components(self) -> list[tuple[str, np.ndarray]]:
        """`embed` and `pos_embed` if they sum to the input of layer 0; else that input as `embed`."""
        first_input = self["resid_pre", 0]
        parts = [("embed", self["embed"])]
        if "pos_embed" in self.model.sites:
            parts.append(("pos_embed", self["pos_embed"]))
        if all(part.shape == first_input.shape for _, part in parts):
            total = sum(part for _, part in parts)
            if np.allclose(total, first_input, rtol=1e-4, atol=1e-5):
                return parts
        return [("embed", first_input)]

    def _check_sum(self, stack: np.ndarray, layer: int, mlp_input: bool, pos_slice: Any) -> None:
        """Raises if the components do not sum to the residual stream (if that is cached)."""
        try:
            resid = self._select_positions(self._resid(layer, mlp_input), pos_slice, -2)
        except KeyError:
            return
        if not np.allclose(stack.sum(axis=0), resid, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(resid).max()))):
            raise PlanError(
                "the layer outputs of this model do not sum to its residual stream: it norms or scales the residual stream",
                "use accumulated_resid, or incl_embeds=False for the layer outputs alone",
            )

    def _whole_sublayers(self, end: int, mlp_input: bool, expand_neurons: bool) -> list[tuple[str, np.ndarray]]:
        """Contributions of sublayers that are not split into heads or neurons: recurrent mixers,
        experts, unexpanded MLPs.
        """
        components = []
        for at in range(end + mlp_input):
            points = self.model.sites.of_layer[at]
            split = {"attn_out_post"} if "z" in points else set()
            if at == end or (expand_neurons and "mlp_act" in points):
                split.add("mlp_out_post")
            for point, label in _WRITES:
                if point in points and point not in split:
                    components.append((f"{at}_{label}", self[f"layers.{at}.{point}"]))
        return components

    def _head_results(self, layer: int) -> np.ndarray:
        if f"layers.{layer}.head_out" in self:  # type: ignore[operator]
            return self[f"layers.{layer}.head_out"]
        z = self[f"layers.{layer}.z"]
        out, _ = projection_of(self.model, f"layers.{layer}.attn_out")
        by_head = out.reshape(*z.shape[-2:], -1)
        return np.einsum("...hd,hdm->...hm", z, by_head)

    def _finish_stack(
        self,
        results: list[np.ndarray],
        labels: list[str],
        layer: int,
        incl_remainder: bool,
        pos_slice: Any,
        apply_ln: bool,
        return_labels: bool,
    ) -> LabeledStack:
        """Concatenates `[…, heads or neurons, d_model]` of all layers, moves that axis first, adds
        remainder and norm.
        """
        target = self._select_positions(self._resid(layer), pos_slice, -2)
        stack = np.zeros((0, *target.shape), np.float32)
        if results:
            stack = np.moveaxis(np.concatenate(results, axis=-2), -2, 0)
        if incl_remainder:
            stack = np.concatenate([stack, (target - stack.sum(axis=0))[None]])
            labels = [*labels, "remainder"]
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, layer, pos_slice=pos_slice)
        return (stack, labels) if return_labels else stack


_WRITES = (("attn_out_post", "attn_out"), ("mixer_out_post", "mixer_out"), ("mlp_out_post", "mlp_out"))
"""Points that are added to the residual stream, with their TransformerLens labels."""


def convert_logits(logits: np.ndarray, return_type: str) -> np.ndarray:
    """Converts logits to `return_type`: `logits`, `probs` or `log_probs`."""
    if convert.choice(return_type, "return_type", ("probs", "log_probs", "logits")) == "logits":
        return logits
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.exp(log_probs) if return_type == "probs" else log_probs
