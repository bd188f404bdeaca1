"""See through a language model: read and change any activation while it runs or generates.

```python
import pellucid

model = pellucid.load()  # the small built-in model; or a directory, a GGUF file, a pulled name
with model.trace("Once upon a time, there was a little") as t:
    h = t.layers[2].resid_post.save()
    t.layers[3].mlp_out[:, -1] = 0
    logits = t.logits[:, -1].save()
h.value  # numpy, without a copy; h.torch() where torch is there
```
"""

from __future__ import annotations

import os

from . import _core, identify, lens
from ._core import Plan
from .errors import Error, InputError, Interrupted, LoadError, PlanError, RecordError, SiteError
from .inspection import Report, inspect, inspect_schema
from .lens import ActivationCache
from .loading import Attempt, Tokenizer, load_tokenizer, strategies
from .loading import load_with_strategies as load_with_strategies  # deprecated, not in __all__
from .model import Model, load, pull
from .network import Network, NetworkModel
from .prefixes import Prefixes
from .results import Cache, Captures, Generated
from .sites import SiteInfo, Sites
from .values import Value

__version__ = _core.version()

__all__ = [
    "ActivationCache",
    "Attempt",
    "Cache",
    "Captures",
    "Error",
    "Generated",
    "InputError",
    "Interrupted",
    "LoadError",
    "Model",
    "Network",
    "NetworkModel",
    "Plan",
    "PlanError",
    "Prefixes",
    "RecordError",
    "Report",
    "SiteError",
    "SiteInfo",
    "Sites",
    "Tokenizer",
    "Value",
    "identify",
    "inspect",
    "inspect_schema",
    "lens",
    "load",
    "load_tokenizer",
    "pull",
    "strategies",
]

# Threads are not inherited by a child: the engine starts its own again when the child first runs something.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.after_fork)
