"""Common analyses in one call, as in nnterp: logit lens, steering, layer skipping, token
activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import convert
from ..convert import array as as_array
from ..errors import InputError
from .decomposition import convert_logits
from .mixin import ModelMixin
from .weights import check_layer

if TYPE_CHECKING:
    from ..model import Model


class ReadoutMixin(ModelMixin):
    """Common analyses as methods of `Model`."""

    def project_on_vocab(self, stream: Any) -> np.ndarray:
        """`unembed` under its nnterp name: logits of residual stream vectors."""
        return self._model.unembed(stream)

    def next_token_probs(self, prompts: Any) -> np.ndarray:
        """Next-token probabilities after each prompt: `[prompts, d_vocab]`."""
        rows, _ = convert.rows(self._model._core, prompts)
        with self._model.trace(rows) as block:
            probs = block.logits[:, -1].softmax().save()
        return np.stack(probs.value)

    def logit_lens(
        self,
        prompts: Any,
        *,
        layers: Iterable[int] | None = None,
        return_type: str = "probs",
    ) -> np.ndarray:
        """Logit lens: unembeds the residual stream after each layer, at the last position:
        `[prompts, layers, d_vocab]`.

        Args:
            prompts: As in `trace`; lengths may differ.
            layers: Layer indices; all by default. The last layer gives the model's own prediction.
            return_type: `"probs"`, `"log_probs"` or `"logits"`.
        """
        resid = self.get_token_activations(prompts, layers=layers)  # [layers, prompts, d_model]
        return convert_logits(self._model.unembed(resid.swapaxes(0, 1)), return_type)

    def get_token_activations(
        self,
        prompts: Any,
        *,
        layers: Iterable[int] | None = None,
        position: int = -1,
        point: str = "resid_post",
    ) -> np.ndarray:
        """The activation at one position of every prompt: `[layers, prompts, width]`.

        Layers after the last one are not run.

        Args:
            prompts: As in `trace`; lengths may differ.
            layers: Layer indices; all by default.
            position: The position in each prompt; negative positions count from its end.
            point: The point, such as `resid_post` (then `width` is `d_model`).
        """
        rows, _ = convert.rows(self._model._core, prompts)
        chosen = self._layers(layers)
        position = convert.integer(position, "position")
        with self._model.trace(rows) as block:
            saved = [block[f"layers.{layer}.{point}"][:, position].save() for layer in chosen]
        return np.stack([np.stack(layer.value) for layer in saved])

    def _layers(self, layers: Any) -> list[int]:
        """Resolves a layer, a list of layers, or `None` for all."""
        if layers is None:
            return list(range(self._model.n_layers))
        chosen = [check_layer(self._model, layer) for layer in convert.integers(layers, "a layer")]
        if not chosen:
            raise InputError("an empty list of layers", "name a layer, or omit layers for all")
        return chosen

    def steer(
        self,
        layers: int | Iterable[int],
        vector: Any,
        *,
        factor: float = 1.0,
        positions: Any = None,
    ) -> Model:
        """A copy of the model with a standing edit that adds `factor * vector` to `resid_post` of
        some layers.

        Args:
            layers: A layer index, or several.
            vector: The steering vector, `[d_model]`.
            factor: Scale of the vector.
            positions: Positions to steer; all by default, generated tokens included.
        """
        array = as_array(vector)
        if array.shape != (self._model.d_model,):
            raise InputError(
                f"a steering vector of shape {list(array.shape)}",
                f"the shape must be [{self._model.d_model}], the model's d_model",
            )
        factor = convert.finite(factor, "factor")
        with self._model.edit() as block:
            for layer in convert.integers(layers, "a layer"):
                target = block.layers[check_layer(self._model, layer)]
                if positions is None:
                    target.resid_post += factor * array
                else:
                    target.resid_post[:, positions] += factor * array
        return block.model

    def skip_layers(self, first: int, last: int) -> Model:
        """A copy of the model that skips layers `first` to `last`, inclusive."""
        first, last = check_layer(self._model, first), check_layer(self._model, last)
        if first > last:
            raise InputError(
                f"the layer range {first} to {last} is empty", "pass the first layer to skip, then the last"
            )
        with self._model.edit() as block:
            for layer in range(first, last + 1):
                block.layers[layer].skip()
        return block.model

    def patchscope_lens(
        self,
        sources: Sequence[Any],
        target: Any,
        *,
        layers: Iterable[int] | None = None,
        position: int = -1,
        target_position: int = -1,
    ) -> np.ndarray:
        """Patchscope: next-token probabilities `[sources, layers, d_vocab]` after patching
        activations into a target prompt.

        For each source and layer, `resid_post` at `position` of the source replaces that of the
        same layer at `target_position` of the target. All combinations run as rows of one pass.

        Args:
            sources: Prompts whose activations are decoded.
            target: A prompt that makes the model name what it reads, such as
                `"cat cat; bird bird; x"`.
            layers: Layer indices; all by default.
            position: Position in the sources.
            target_position: Position in the target.
        """
        chosen = self._layers(layers)
        if isinstance(sources, (str, bytes)):
            raise InputError("sources is one text", "pass a list of prompts")
        resid = self.get_token_activations(list(sources), layers=chosen, position=position)
        probs = []
        with self._model.trace() as block:
            for source in range(len(sources)):
                for index, layer in enumerate(chosen):
                    with block.row(target):
                        block.layers[layer].resid_post[:, target_position] = resid[index, source]
                        probs.append(block.logits[:, -1].softmax().save())
        return np.stack([saved.value for saved in probs]).reshape(len(sources), len(chosen), -1)
