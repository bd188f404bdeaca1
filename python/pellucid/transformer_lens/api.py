"""`TransformerLensApi`: the methods that `Model` shares with TransformerLens and nnterp."""

from __future__ import annotations

from functools import cached_property

from .config import Config, normalization_of
from .processing import ProcessedWeights
from .readouts import ReadoutMixin
from .runs import HooksMixin
from .weights import WeightsMixin


class TransformerLensApi(HooksMixin, WeightsMixin, ReadoutMixin):
    """The TransformerLens and nnterp methods of `Model`."""

    @property
    def cfg(self) -> Config:
        """The model's dimensions under TransformerLens names: `cfg.n_layers`, `cfg.d_model`, …"""
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
        """Returns processed weights, as TransformerLens does at load time.

        The model itself is unchanged.

        Args:
            fold_ln: Fold the norms' gains and biases into the following matrices.
            center_writing_weights: Center the weights that write to the residual stream. LayerNorm
                subtracts the mean, so the output is the same.
            center_unembed: Center the unembedding, so that logits have mean zero. Probabilities are
                the same.
            fold_value_biases: Fold `b_V` into `b_O`.
        """
        return ProcessedWeights(
            self._model,
            fold_ln=fold_ln,
            center_writing_weights=center_writing_weights,
            center_unembed=center_unembed,
            fold_value_biases=fold_value_biases,
        )
