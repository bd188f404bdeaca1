"""The TransformerLens way of working: caches, hooks, weights and what is computed from them.

Everything here is a part of `Model`, and stands on traces: a cache is a run that saves, a hook a function that a run calls.
"""

from __future__ import annotations

from .activation_cache import ActivationCache, NotCached
from .config import Config
from .factored import FactoredMatrix
from .hooks import HookPoint
from .names import get_act_name
from .part import Lens
from .processing import ProcessedWeights

__all__ = [
    "ActivationCache",
    "Config",
    "FactoredMatrix",
    "HookPoint",
    "Lens",
    "NotCached",
    "ProcessedWeights",
    "get_act_name",
]
