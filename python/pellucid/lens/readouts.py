"""Short ways to common answers, as nnterp has them: lenses, steering, skipping, activations of a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import convert
from ..convert import array as as_array
from ..errors import InputError, SiteError
from .base import Part
from .decomposition import as_type

if TYPE_CHECKING:
    from ..model import Model


class Readouts(Part):
    """The part of a model that answers common questions in one call."""

    def project_on_vocab(self, stream: Any) -> np.ndarray:
        """Logits of vectors of the stream, by the model's own final norm and unembedding; `unembed` under nnterp's name."""
        return self._model.unembed(stream)

    def next_token_probs(self, prompts: Any) -> np.ndarray:
        """The probabilities of what comes after each prompt: `[prompts, vocabulary]`."""
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
        """What the model would say after each prompt if it ended at each layer: `[prompts, layers, vocabulary]`.

        Args:
            prompts: As in `trace`; of any lengths, the last position of each is read.
            layers: Which layers; all by default. The last one's answer is the model's own.
            return_type: `"probs"`, `"log_probs"` or `"logits"`.
        """
        streams = self.get_token_activations(prompts, layers=layers)
        return as_type(self._model.unembed(streams.swapaxes(0, 1)), return_type)

    def get_token_activations(
        self,
        prompts: Any,
        *,
        layers: Iterable[int] | None = None,
        position: int = -1,
        point: str = "resid_post",
    ) -> np.ndarray:
        """An activation at one position of every prompt: `[layers, prompts, width]`. Layers past the last of them do not run.

        Args:
            prompts: As in `trace`; of any lengths.
            layers: Which layers; all by default.
            position: The position in each prompt; negative ones count from its end.
            point: The kind of activation.
        """
        rows, _ = convert.rows(self._model._core, prompts)
        chosen = range(self._model.layers) if layers is None else [_checked(self._model, layer) for layer in layers]
        with self._model.trace(rows) as block:
            saved = [block[f"layers.{layer}.{point}"][:, position].save() for layer in chosen]
        return np.stack([np.stack(one.value) for one in saved])

    def steer(
        self,
        layers: int | Iterable[int],
        vector: Any,
        *,
        factor: float = 1.0,
        positions: Any = None,
    ) -> Model:
        """The model with `factor * vector` added to what leaves each of some layers, as a standing edit; this one stays as it is.

        Args:
            layers: A layer, or several.
            vector: As wide as the stream.
            factor: What it is multiplied by.
            positions: Which positions; all by default, generated ones too.
        """
        array = as_array(vector)
        if array.shape != (self._model.width,):
            raise InputError(
                f"a steering vector of shape {list(array.shape)}", f"this model's stream is {self._model.width} wide"
            )
        with self._model.edit() as block:
            for layer in [layers] if isinstance(layers, int) else layers:
                place = block.layers[_checked(self._model, layer)]
                if positions is None:
                    place.resid_post += factor * array
                else:
                    place.resid_post[:, positions] += factor * array
        return block.model

    def skip_layers(self, first: int, last: int) -> Model:
        """The model without layers `first` to `last`, both included: what enters the first leaves the last."""
        first, last = _checked(self._model, first), _checked(self._model, last)
        if first > last:
            raise InputError(f"layers {first} to {last} are none", "give the first layer to skip, then the last")
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
        """What the model reads in its own activations: `[sources, layers, vocabulary]` probabilities after a target prompt.

        For each source and layer, the stream at `position` of the source is written over the same layer's at `target_position` of
        the target, and the target is run to its end. All of them go through in one pass.

        Args:
            sources: Prompts to look into.
            target: A prompt that has the model say what it sees, such as `"cat cat; bird bird; x"`.
            layers: Which layers; all by default.
            position: Where to look in the sources.
            target_position: Where to put it in the target.
        """
        chosen = list(
            range(self._model.layers) if layers is None else [_checked(self._model, layer) for layer in layers]
        )
        seen = self.get_token_activations(list(sources), layers=chosen, position=position)
        answers = []
        with self._model.trace() as block:
            for source in range(len(sources)):
                for place, layer in enumerate(chosen):
                    with block.row(target):
                        block.layers[layer].resid_post[:, target_position] = seen[place, source]
                        answers.append(block.logits[:, -1].softmax().save())
        return np.stack([answer.value for answer in answers]).reshape(len(sources), len(chosen), -1)


def _checked(model: Model, layer: int) -> int:
    if not -model.layers <= layer < model.layers:
        raise SiteError(f"there is no layer {layer}", f"this model's layers are 0 to {model.layers - 1}")
    return layer % model.layers
