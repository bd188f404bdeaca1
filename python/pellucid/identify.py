"""Former API of quick queries; `pellucid.inspect(path, quick=True)` answers all of them.

The queries never raise for a bad path or a damaged file, execute no code and read no tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from . import _core
from .inspection import register_architecture, register_architectures, registered_architectures

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

register_file = register_architectures


@dataclass(frozen=True)
class ModelInfo:
    """Basic metadata of a model."""

    name: str
    """The name of its directory or file."""
    size: int | None
    """Number of parameters, from the weight files' headers."""
    is_quantized: bool
    """Whether the weights are quantized."""
    has_talker: bool
    """Whether it has speech output."""
    architecture: str | None
    """`architectures[0]` of `config.json`."""
    model_type: str | None
    """`model_type` of `config.json`."""
    is_supported: bool
    """Whether its family is supported."""
    has_custom_files: bool
    """Whether it contains Python code (never executed)."""
    error: str | None
    """Why it is not recognized or not supported."""


@dataclass(frozen=True)
class SupportCheck:
    """Whether a model is supported, and why not."""

    supported: bool
    """Whether its family is supported.

    `pellucid.inspect` also checks that the files are complete.
    """
    tier: str
    """`native`, `inspect-only` or `unsupported`."""
    has_custom_files: bool
    """Whether it contains Python code (never executed)."""
    architecture: str | None
    """`architectures[0]` of `config.json`."""
    model_type: str | None
    """`model_type` of `config.json`."""
    category: str
    """As `detect_model_category` returns it."""
    error: str | None
    """Why it is not supported."""


def get_model_info(path: Path) -> ModelInfo:
    """Returns basic metadata; problems are reported in `error`."""
    return ModelInfo(**_query("get_model_info", path))


def is_model_supported(path: Path) -> SupportCheck:
    """Whether a model is supported, and why not."""
    return SupportCheck(**_query("is_model_supported", path))


def is_omni_model(path: Path) -> bool:
    """Whether a model is omni-modal: several output modalities, a thinker and a talker, or an omni
    model type.
    """
    return _query("is_omni_model", path)


def detect_model_category(path: Path) -> str:
    """The category: `transformers`, `vision_encoder`, `audio_encoder`, `asr`, `diffusers`, `sae`,
    `adapter`, `embedding` or `unknown`.
    """
    return _query("detect_model_category", path)


def is_sae_model(path: Path) -> bool:
    """Whether the path contains sparse autoencoders or transcoders, in any layout and directory
    depth.
    """
    return _query("is_sae_model", path)


def get_sae_base_model(path: Path) -> str | None:
    """The model that SAEs were trained on, if their files name it."""
    return _query("get_sae_base_model", path)


def is_diffusers_model(path: Path) -> bool:
    """Whether this is a pipeline of the `diffusers` library, or a component of one."""
    return _query("is_diffusers_model", path)


def is_vision_encoder(path: Path) -> bool:
    """Whether this is an image encoder without text output."""
    return _query("is_vision_encoder", path)


def is_asr_model(path: Path) -> bool:
    """Whether this is a speech recognition model."""
    return _query("is_asr_model", path)


def _query(name: str, path: Path) -> Any:
    return json.loads(_core.identify_path(name, fspath(path)))
