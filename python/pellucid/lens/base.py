"""What the parts of a model have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ..model import Model


class Part:
    """A part of `Model`: methods about one thing, which stand on the others."""

    @property
    def _model(self) -> Model:
        """The whole model that this is a part of."""
        return cast("Model", self)
