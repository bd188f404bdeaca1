"""What is this directory or file, and does it run here? Quick answers to single questions; `pellucid.inspect` tells everything.

```python
from pellucid import identify

identify.detect_model_category("path/to/model")  # "transformers", "sae", "vision_encoder", …
identify.is_model_supported("path/to/model").tier  # "native", "inspect-only" or "unsupported"
identify.register_architecture("acme_llm", "llama")  # models of this type then load as Llama, if they fit
```

None of these fails on a bad path or a damaged file, executes anything, or reads a tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from . import _core

__all__ = [
    "ModelInfo",
    "SupportCheck",
    "detect_model_category",
    "get_model_info",
    "get_sae_base_model",
    "is_asr_model",
    "is_diffusers_model",
    "is_model_supported",
    "is_omni_model",
    "is_sae_model",
    "is_vision_encoder",
    "register_architecture",
    "register_file",
    "registered_architectures",
]

Path = str | PathLike[str]


@dataclass(frozen=True)
class ModelInfo:
    """What there is to know about a model at a glance."""

    name: str
    """The name of its directory or file."""
    size: int | None
    """Its parameters, counted in the headers of its weights."""
    is_quantized: bool
    """Whether its weights are quantised."""
    has_talker: bool
    """Whether it has a part that speaks."""
    architecture: str | None
    """The class that `config.json` names."""
    model_type: str | None
    """The family that `config.json` names."""
    is_supported: bool
    """Whether its family runs here."""
    has_custom_files: bool
    """Whether it brings Python code, which is never executed."""
    error: str | None
    """What keeps it from being known or run."""


@dataclass(frozen=True)
class SupportCheck:
    """Whether a model runs here, and why not."""

    supported: bool
    """Whether its family runs here; whether this copy of it is whole, `pellucid.inspect` tells."""
    tier: str
    """`native`, `inspect-only` or `unsupported`."""
    has_custom_files: bool
    """Whether it brings Python code, which is never executed."""
    architecture: str | None
    """The class that `config.json` names."""
    model_type: str | None
    """The family that `config.json` names."""
    category: str
    """What kind of thing it is."""
    error: str | None
    """Why it is not supported."""


def get_model_info(path: Path) -> ModelInfo:
    """Describes a model at a glance. What is wrong is said in `error`."""
    return ModelInfo(**_ask("get_model_info", path))


def is_model_supported(path: Path) -> SupportCheck:
    """Whether a model runs here, and why not."""
    return SupportCheck(**_ask("is_model_supported", path))


def is_omni_model(path: Path) -> bool:
    """Whether a model gives more than one kind of output, has a part that thinks and one that speaks, or is called omni by its makers."""
    return _ask("is_omni_model", path)


def detect_model_category(path: Path) -> str:
    """What kind of thing is here: `transformers`, `vision_encoder`, `audio_encoder`, `asr`, `diffusers`, `sae`, `adapter`, `embedding` or `unknown`."""
    return _ask("detect_model_category", path)


def is_sae_model(path: Path) -> bool:
    """Whether these are sparse autoencoders or transcoders, in any layout and at any depth."""
    return _ask("is_sae_model", path)


def get_sae_base_model(path: Path) -> str | None:
    """The model that autoencoders were trained on, where they say so."""
    return _ask("get_sae_base_model", path)


def is_diffusers_model(path: Path) -> bool:
    """Whether this is an image pipeline of the `diffusers` library, or a part of one."""
    return _ask("is_diffusers_model", path)


def is_vision_encoder(path: Path) -> bool:
    """Whether this is a model that looks at images and does not write."""
    return _ask("is_vision_encoder", path)


def is_asr_model(path: Path) -> bool:
    """Whether this is a model that writes down speech."""
    return _ask("is_asr_model", path)


def register_architecture(model_type: str, family: str) -> None:
    """Says that models of a type are of a native family. They then load as it, with a warning, if configuration and tensors fit.

    Raises `InputError` where there is no such family, or the type is native itself or registered as another family.
    """
    _core.register_architecture(model_type, family)


def register_file(path: Path) -> None:
    """Registers every type of a TOML file: a table `[architectures]` with lines such as `acme_llm = "llama"`.

    The file that the environment variable `PELLUCID_ARCHITECTURES` names is registered by itself.
    """
    _core.register_file(fspath(path))


def registered_architectures() -> dict[str, str]:
    """All types that stand for a native family, with it: built-in and registered ones."""
    return dict(_core.registered_architectures())


def _ask(question: str, path: Path) -> Any:
    return json.loads(_core.identify_path(question, fspath(path)))
