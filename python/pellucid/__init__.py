"""See through a language model: read and change any activation while it runs or generates.

```python
import pellucid

model = pellucid.load()  # the small built-in model; or pass a directory, a GGUF file, a pulled name
with model.trace("Once upon a time, there was a little") as t:
    h = t.layers[2].resid_post.save()
    t.layers[3].mlp_out[:, -1] = 0
    logits = t.logits[:, -1].save()
h.value  # a numpy array, zero-copy; h.torch() if torch is installed
```
"""

from __future__ import annotations

import os

from . import _core, transformer_lens
from . import identify as identify  # former name of quick reports, not in __all__
from . import lens as lens  # former name of transformer_lens, not in __all__
from ._core import Plan
from .chat import Chat, MessageSpan
from .engine import Engine, EngineLoad, Request, Token, fetch
from .errors import (
    Error,
    InputError,
    InternalError,
    Interrupted,
    LoadError,
    MissingAttribute,
    NotCaptured,
    PlanError,
    RecordError,
    ServerError,
    SiteError,
)
from .evaluation import Evaluation, Metric
from .inspection import (
    Report,
    inspect,
    inspect_schema,
    register_architecture,
    register_architectures,
    registered_architectures,
)
from .loading import Attempt, Tokenizer, load_tokenizer, pull, strategies
from .loading import load_with_strategies as load_with_strategies  # deprecated, not in __all__
from .memory import set_memory_limit
from .model import Model, load
from .network import Network, NetworkModel
from .prefixes import Prefixes
from .remote import connect
from .results import Cache, Captures, Generated, Mark
from .saes import Sae, load_sae
from .sessions import Op, Session, op, session_schema
from .site_table import SiteInfo, Sites
from .sparse import SparseArray
from .steering import SteeringVectors
from .stores import Store, open_store
from .transformer_lens import ActivationCache
from .values import Value

__version__ = _core.version()

__all__ = [
    "ActivationCache",
    "Attempt",
    "Cache",
    "Captures",
    "Chat",
    "Engine",
    "EngineLoad",
    "Error",
    "Evaluation",
    "Generated",
    "InputError",
    "InternalError",
    "Interrupted",
    "LoadError",
    "Mark",
    "MessageSpan",
    "Metric",
    "MissingAttribute",
    "Model",
    "Network",
    "NetworkModel",
    "NotCaptured",
    "Op",
    "Plan",
    "PlanError",
    "Prefixes",
    "RecordError",
    "Report",
    "Request",
    "Sae",
    "ServerError",
    "Session",
    "SiteError",
    "SiteInfo",
    "Sites",
    "SparseArray",
    "SteeringVectors",
    "Store",
    "Token",
    "Tokenizer",
    "Value",
    "connect",
    "fetch",
    "inspect",
    "inspect_schema",
    "load",
    "load_sae",
    "load_tokenizer",
    "op",
    "open_store",
    "pull",
    "register_architecture",
    "register_architectures",
    "registered_architectures",
    "session_schema",
    "set_memory_limit",
    "strategies",
    "transformer_lens",
]

# A forked child does not inherit the thread pool; the engine restarts it on the first run.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.after_fork)
