"""Base class of the mixins of `Model`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ..model import Model


class ModelMixin:
    """A mixin of `Model`: one group of methods, which may call all others."""

    @property
    def _model(self) -> Model:
        """`self`, typed as the whole `Model`."""
        return cast("Model", self)
