"""The part of a model that is worked with as in TransformerLens."""

from __future__ import annotations

from functools import cached_property

from .config import Config, normalization_of
from .processing import ProcessedWeights
from .readouts import Readouts
from .runs import Running
from .weights import Weights


class Lens(Running, Weights, Readouts):
    """What `Model` has from TransformerLens and nnterp."""

    @property
    def cfg(self) -> Config:
        """Facts of this model under TransformerLens' names: `cfg.n_layers`, `cfg.d_model`, …"""
        return Config(self._model)

    @cached_property
    def _normalization(self) -> str | None:
        return normalization_of(self._model)

    def processed(
        self,
        *,
        fold_ln: bool = False,
        center_writing_weights: bool = False,
        center_unembed: bool = False,
        fold_value_biases: bool = False,
    ) -> ProcessedWeights:
        """Weights after the simplifications that are asked for, with a record of them. The model itself runs as it was trained.

        Args:
            fold_ln: Norms' gains and biases go into the matrices after them.
            center_writing_weights: What is written into the stream has mean zero, which a norm that subtracts the mean never sees.
            center_unembed: Logits have mean zero, which no probability sees.
            fold_value_biases: Biases of values go into the bias of the output.
        """
        return ProcessedWeights(
            self._model,
            fold_ln=fold_ln,
            center_writing_weights=center_writing_weights,
            center_unembed=center_unembed,
            fold_value_biases=fold_value_biases,
        )
