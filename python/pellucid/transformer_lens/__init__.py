"""The TransformerLens API: activation caches, hooks, weights and residual stream decompositions.

`Model` inherits all of it. It is built on traces: a cache is a trace that saves sites, a hook is a
function that a trace calls.
"""

from __future__ import annotations

from ..errors import NotCaptured as NotCached
from .activation_cache import ActivationCache
from .api import TransformerLensApi
from .config import Config
from .factored import FactoredMatrix
from .hooks import HookPoint
from .names import get_act_name
from .processing import ProcessedWeights

__all__ = [
    "ActivationCache",
    "Config",
    "FactoredMatrix",
    "HookPoint",
    "NotCached",
    "ProcessedWeights",
    "TransformerLensApi",
    "get_act_name",
]
