"""Former name of `pellucid.transformer_lens`, kept for existing programs."""

from .transformer_lens import *  # noqa: F403
from .transformer_lens import TransformerLensApi as Lens  # noqa: F401
