"""Taking the stream apart: what each layer, head and neuron wrote into it, and what that means for the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, PlanError, SiteError
from .selecting import pick_of, sliced
from .weights import norm_before, norm_of, projection_of

if TYPE_CHECKING:
    from ..model import Model

Labelled = np.ndarray | tuple[np.ndarray, list[str]]
"""A stack of components `[components, (batch,) positions, width]`, with their labels where they were asked for."""


class Decomposition:
    """The part of a cache that takes the stream apart. A stack's first axis is its components, before batch and positions."""

    model: Model
    has_batch_dim: bool

    def __getitem__(self, key: Any) -> np.ndarray:
        raise NotImplementedError

    # The stream as it grows.

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Any = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> Labelled:
        """The stream that enters each layer up to `layer`, and by default the one that leaves the last.

        Args:
            layer: The last layer whose input is taken; `None` or -1 for all and the end of the model.
            incl_mid: Also the stream between attention and MLP.
            apply_ln: Applies the final norm (or, for a layer, its own norm with the scale that it had).
            pos_slice: Which positions.
            mlp_input: Also what enters the MLP of `layer`.
            return_labels: Gives `(stack, labels)`.
        """
        end = self._layer(layer, mlp_input)
        last = self.model.layers
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
    ) -> Labelled:
        """What the model would say if it ended at each layer: the accumulated stream through its own final norm and unembedding.

        Args:
            layer: As in `accumulated_resid`.
            incl_mid: As in `accumulated_resid`.
            pos_slice: Which positions; the result is as wide as the vocabulary, so choose few of many.
            return_type: `"probs"`, `"log_probs"` or `"logits"`.
            return_labels: Gives `(stack, labels)`.
        """
        stack, labels = self.accumulated_resid(layer, incl_mid, pos_slice=pos_slice, return_labels=True)
        answers = as_type(self.model.unembed(stack), return_type)
        return (answers, labels) if return_labels else answers

    # What was written into it.

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: str = "all",
        apply_ln: bool = False,
        pos_slice: Any = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> Labelled:
        """What each sublayer wrote into the stream that enters `layer`; with the embeddings it adds up to that stream.

        Where a model scales or norms its embeddings, `embed` is what entered the first layer.

        Args:
            layer: `None` or -1 for the end of the model.
            mlp_input: Up to the MLP of `layer`, its attention included.
            mode: `"all"`, `"attn"` (recurrences in its place included) or `"mlp"`.
            apply_ln: As in `apply_ln_to_stack`.
            pos_slice: Which positions.
            incl_embeds: Whether embeddings are components.
            return_labels: Gives `(stack, labels)`.
        """
        if mode not in ("all", "attn", "mlp"):
            raise InputError(f"mode={mode!r}", "it is 'all', 'attn' or 'mlp'")
        end = self._layer(layer, mlp_input)
        components = self._embeddings() if incl_embeds else []
        for at in range(end + mlp_input):
            points = self.model.sites.of_layer[at]
            for point, label in _WRITES:
                wanted = mode == "all" or (mode == "mlp") == (point == "mlp_out_post")
                if wanted and point in points and not (at == end and point == "mlp_out_post"):
                    components.append((f"{at}_{label}", self[f"layers.{at}.{point}"]))
        if not components:
            raise InputError(f"nothing was written before layer {end}", "take a later layer, or incl_embeds=True")
        labels = [label for label, _ in components]
        stack = np.stack([sliced(array, pick_of(pos_slice), -2) for _, array in components])
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
    ) -> Labelled:
        """What each head wrote into the stream, of all layers before `layer`: from `attn.hook_result`, or else from `z` and `W_O`.

        Args:
            layer: `None` or -1 for all layers.
            return_labels: Gives `(stack, labels)`, with labels such as `L0H3`.
            incl_remainder: Adds the rest of the stream, so that all add up to it.
            pos_slice: Which positions.
            apply_ln: As in `apply_ln_to_stack`.
        """
        end = self._layer(layer)
        with_heads = [at for at in range(end) if "z" in self.model.sites.of_layer[at]]
        results = [sliced(self._head_results(at), pick_of(pos_slice), -3) for at in with_heads]
        labels = [
            f"L{at}H{head}" for at, result in zip(with_heads, results, strict=True) for head in range(result.shape[-2])
        ]
        return self._joined(results, labels, end, incl_remainder, pos_slice, apply_ln, return_labels)

    def get_neuron_results(self, layer: int, neuron_slice: Any = None, pos_slice: Any = None) -> np.ndarray:
        """What neurons of a layer wrote into the stream: `[…, positions, neurons, width]`, which is large."""
        neurons = pick_of(neuron_slice, "neuron_slice")
        if isinstance(neurons, int):
            neurons = [neurons]
        activation = sliced(sliced(self[f"layers.{layer}.mlp_act"], pick_of(pos_slice), -2), neurons, -1)
        out, _ = projection_of(self.model, f"layers.{layer}.mlp_out")
        return activation[..., None] * sliced(out, neurons, 0)

    def stack_neuron_results(
        self,
        layer: int | None = -1,
        pos_slice: Any = None,
        neuron_slice: Any = None,
        return_labels: bool = False,
        incl_remainder: bool = False,
        apply_ln: bool = False,
    ) -> Labelled:
        """What each neuron wrote into the stream, of all layers before `layer`. Choose positions or neurons: all are many.

        Args:
            layer: `None` or -1 for all layers.
            pos_slice: Which positions.
            neuron_slice: Which neurons of each layer.
            return_labels: Gives `(stack, labels)`, with labels such as `L0N17`.
            incl_remainder: Adds the rest of the stream.
            apply_ln: As in `apply_ln_to_stack`.
        """
        end = self._layer(layer)
        neurons = pick_of(neuron_slice, "neuron_slice")
        results, labels = [], []
        for at in range(end):
            if "mlp_act" in self.model.sites.of_layer[at]:
                results.append(self.get_neuron_results(at, neuron_slice, pos_slice))
                numbers = sliced(np.arange(self.model.sites.of_layer[at]["mlp_act"].inner[0]), neurons, 0)
                labels += [f"L{at}N{neuron}" for neuron in np.atleast_1d(numbers)]
        return self._joined(results, labels, end, incl_remainder, pos_slice, apply_ln, return_labels)

    def get_full_resid_decomposition(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: Any = None,
        return_labels: bool = False,
    ) -> Labelled:
        """The stream that enters `layer` as heads, neurons (or whole MLPs), embeddings and biases, which add up to it.

        Args:
            layer: `None` or -1 for the end of the model.
            mlp_input: Up to the MLP of `layer`, its attention included.
            expand_neurons: Neurons one by one, instead of whole MLPs.
            apply_ln: As in `apply_ln_to_stack`.
            pos_slice: Which positions.
            return_labels: Gives `(stack, labels)`.
        """
        end = self._layer(layer, mlp_input)
        pick = pick_of(pos_slice)
        heads, labels = self.stack_head_results(end + mlp_input, return_labels=True, pos_slice=pos_slice)
        stacks = [heads]
        if expand_neurons:
            neurons, of_neurons = self.stack_neuron_results(end, pos_slice, return_labels=True)
            stacks.append(neurons)
            labels += of_neurons
        for label, array in [*self._undivided(end, mlp_input, expand_neurons), *self._embeddings()]:
            stacks.append(sliced(array, pick, -2)[None])
            labels.append(label)
        stack = np.concatenate(stacks)
        # What is left are the biases of output projections, which are the same everywhere: that is checked, not assumed.
        left = sliced(self._stream(end, mlp_input), pick, -2) - stack.sum(axis=0)
        flat = left.reshape(-1, left.shape[-1])
        if np.abs(flat - flat.mean(axis=0)).max() > 1e-3 * max(1.0, float(np.abs(stack).max())):
            raise PlanError(
                "heads and neurons of this model do not add up to its stream: what they write is normed or scaled on its way",
                "use decompose_resid, whose components are what reached the stream",
            )
        stack = np.concatenate([stack, left[None]])
        labels.append("bias")
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, end, mlp_input, pos_slice)
        return (stack, labels) if return_labels else stack

    def stack_activation(
        self, activation_name: str, layer: int | None = -1, sublayer_type: str | None = None
    ) -> np.ndarray:
        """An activation of every layer before `layer` as one array."""
        return np.stack([self[activation_name, at, sublayer_type] for at in range(self._layer(layer))])

    # What it means for the logits.

    def apply_ln_to_stack(
        self,
        residual_stack: np.ndarray,
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: Any = None,
        batch_slice: Any = None,
        recompute_ln: bool = False,
    ) -> np.ndarray:
        """What a norm makes of each component when its scale is the one that it had in the run; so components still add up.

        Gains are applied (this model's weights are as they were trained, with no gain folded into the next matrix); the norm's
        bias is no component's, and is left out. Where the model has no norm, components stay as they are.

        Args:
            residual_stack: Components `[components, …, width]`.
            layer: The layer whose norm it is; `None` or -1 for the final norm.
            mlp_input: The norm before the layer's MLP, instead of the one before its attention.
            pos_slice: Which positions the stack has.
            batch_slice: Which prompts to take of the stack.
            recompute_ln: Norms each component by itself, bias included, as if it were the whole stream; of the final norm only.
        """
        end = self._layer(layer, mlp_input)
        batch = pick_of(batch_slice, "batch_slice")
        if batch is not None and self.has_batch_dim:
            residual_stack = sliced(residual_stack, batch, 1)
        if end == self.model.layers:
            scale_at, norm_at = "final_scale", "final_norm"
        else:
            own = norm_before(self.model, end, "mlp" if mlp_input else "attn")
            scale_at, norm_at = f"layers.{end}.{own}_scale", f"layers.{end}.{own}_in"
        if scale_at not in self.model.sites:
            return residual_stack
        if recompute_ln:
            if norm_at != "final_norm":
                raise InputError("recompute_ln goes with the final norm", "leave layer out")
            return self.model.ln_final(residual_stack)
        scale = sliced(self[scale_at], pick_of(pos_slice), -2)
        if batch is not None and self.has_batch_dim:
            scale = sliced(scale, batch, 0)
        gain, _ = norm_of(self.model, norm_at)
        if self.model.cfg.normalization_type == "LN":
            residual_stack = residual_stack - residual_stack.mean(axis=-1, keepdims=True)
        return residual_stack / scale * gain

    def logit_attrs(
        self,
        residual_stack: np.ndarray,
        tokens: Any,
        incorrect_tokens: Any = None,
        pos_slice: Any = None,
        batch_slice: Any = None,
    ) -> np.ndarray:
        """How much each component adds to the logit of a token, or to the difference of two.

        Args:
            residual_stack: Components before the final norm, which is applied here with the scale that it had.
            tokens: A token, its text, one for each prompt, or one for each prompt and position.
            incorrect_tokens: Of the same shape: tokens whose logit is subtracted.
            pos_slice: Which positions the stack has.
            batch_slice: Which prompts to take of the stack.
        """
        directions = self.model.tokens_to_residual_directions(tokens)
        if incorrect_tokens is not None:
            others = self.model.tokens_to_residual_directions(incorrect_tokens)
            if others.shape != directions.shape:
                raise InputError(
                    f"tokens of shape {list(directions.shape[:-1])} and incorrect_tokens of shape {list(others.shape[:-1])}",
                    "give as many of the one as of the other",
                )
            directions = directions - others
        stack = self.apply_ln_to_stack(residual_stack, -1, pos_slice=pos_slice, batch_slice=batch_slice)
        if self.has_batch_dim and stack.ndim == 4 and directions.ndim == 2 and len(directions) == stack.shape[1]:
            directions = directions[:, None]
        return np.einsum("...d,...d->...", stack, np.broadcast_to(directions, stack.shape))

    # Parts of the above.

    def _layer(self, layer: int | None, mlp_input: bool = False) -> int:
        """A layer by its number, with the number of layers for the end of the model."""
        layers = self.model.layers
        end = layers if layer is None or layer == -1 else layer
        if not 0 <= end <= layers:
            raise SiteError(f"layer={layer}, and this model has {layers}", f"0 to {layers}, or -1 for all of them")
        if mlp_input and end == layers:
            raise SiteError(
                "mlp_input at the end of the model, where there is no MLP", f"name a layer, 0 to {layers - 1}"
            )
        return end

    def _stream(self, layer: int, mlp_input: bool = False) -> np.ndarray:
        if layer == self.model.layers:
            return self["resid_post", layer - 1]
        return self["resid_mid" if mlp_input else "resid_pre", layer]

    def _stack(self, names: list[tuple[str, int]], pos_slice: Any) -> np.ndarray:
        return np.stack([sliced(self[name], pick_of(pos_slice), -2) for name in names])

    def _embeddings(self) -> list[tuple[str, np.ndarray]]:
        """What entered the first layer: rows of the tables where these are it, and otherwise as it is."""
        entered = self["resid_pre", 0]
        parts = [("embed", self["embed"])]
        if "pos_embed" in self.model.sites:
            parts.append(("pos_embed", self["pos_embed"]))
        if all(part.shape == entered.shape for _, part in parts):
            total = sum(part for _, part in parts)
            if np.allclose(total, entered, rtol=1e-4, atol=1e-5):
                return parts
        return [("embed", entered)]

    def _check_sum(self, stack: np.ndarray, layer: int, mlp_input: bool, pos_slice: Any) -> None:
        """Refuses components that do not add up to the stream, where the run kept it."""
        try:
            stream = sliced(self._stream(layer, mlp_input), pick_of(pos_slice), -2)
        except KeyError:
            return
        if not np.allclose(stack.sum(axis=0), stream, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(stream).max()))):
            raise PlanError(
                "what this model's layers write does not add up to its stream: they norm or scale the stream itself",
                "take the stream as it grows, by accumulated_resid; incl_embeds=False gives what was written",
            )

    def _undivided(self, end: int, mlp_input: bool, expand_neurons: bool) -> list[tuple[str, np.ndarray]]:
        """What was written by sublayers that are no sum of heads or neurons: recurrences, experts, and MLPs that are to stay whole."""
        found = []
        for at in range(end + mlp_input):
            points = self.model.sites.of_layer[at]
            divided = {"attn_out_post"} if "z" in points else set()
            if at == end or (expand_neurons and "mlp_act" in points):
                divided.add("mlp_out_post")
            for point, label in _WRITES:
                if point in points and point not in divided:
                    found.append((f"{at}_{label}", self[f"layers.{at}.{point}"]))
        return found

    def _head_results(self, layer: int) -> np.ndarray:
        if f"layers.{layer}.head_out" in self:  # type: ignore[operator]
            return self[f"layers.{layer}.head_out"]
        z = self[f"layers.{layer}.z"]
        out, _ = projection_of(self.model, f"layers.{layer}.attn_out")
        by_head = out.reshape(*z.shape[-2:], -1)
        return np.einsum("...hd,hdm->...hm", z, by_head)

    def _joined(
        self,
        results: list[np.ndarray],
        labels: list[str],
        layer: int,
        incl_remainder: bool,
        pos_slice: Any,
        apply_ln: bool,
        return_labels: bool,
    ) -> Labelled:
        """Results of all layers, their axis of parts put first."""
        target = sliced(self._stream(layer), pick_of(pos_slice), -2)
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
"""What a layer writes into the stream, and what TransformerLens calls it."""


def as_type(logits: np.ndarray, return_type: str) -> np.ndarray:
    """Logits as they are, or as (logarithms of) probabilities."""
    if return_type == "logits":
        return logits
    if return_type not in ("probs", "log_probs"):
        raise InputError(f"return_type={return_type!r}", "it is 'probs', 'log_probs' or 'logits'")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.exp(log_probs) if return_type == "probs" else log_probs
