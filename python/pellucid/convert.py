"""Converts inputs from Python, numpy and torch: prompts to token rows, values to arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .chat import Chat
from .errors import InputError, PlanError

if TYPE_CHECKING:
    from . import _core

Prompt = Any
"""A text, a list of token ids, an array of them, or a conversation (a list of
`{"role": …, "content": …}`).
"""


def array(value: Any) -> np.ndarray:
    """Converts numbers, lists, numpy arrays and torch tensors of any dtype (bf16 too) to an f32
    array.
    """
    if hasattr(value, "detach"):
        # A torch tensor. numpy has no bf16, so torch converts it to f32.
        return value.detach().float().cpu().numpy()
    try:
        result = np.asarray(value)
        # Reject these kinds: `astype` would parse strings as numbers and turn `None` into NaN.
        if result.dtype.kind not in "OSUcmM":
            return result.astype(np.float32, copy=False)
        reason = f"numpy converts it to dtype {result.dtype}"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise PlanError(
        f"{type(value).__name__} is not an array of numbers: {reason}", "pass numbers, arrays or values of this block"
    )


def rows(core: _core.Model, prompts: Any) -> tuple[list[Any], bool]:
    """Converts prompts to rows of tokens; also returns whether it was a single prompt, not a list."""
    if type(prompts) is list and prompts and type(prompts[0]) is int:
        return [prompts], True
    if isinstance(prompts, str) or _is_tokens(prompts) or _is_chat(prompts):
        return [tokens(core, prompts)], True
    if _dimensions(prompts) == 2:
        return [tokens(core, row) for row in prompts], False
    if isinstance(prompts, Sequence):
        return [tokens(core, prompt) for prompt in prompts], False
    raise InputError(
        f"{type(prompts).__name__} is not a prompt", "pass a text, a list of token ids, or a list of these"
    )


def tokens(core: _core.Model, prompt: Prompt) -> Any:
    """Converts one prompt to tokens."""
    if isinstance(prompt, str):
        return core.encode(prompt, True)
    if _is_chat(prompt):
        return chat(core, {"messages": list(prompt)})
    if type(prompt) is list or isinstance(prompt, Chat):
        return prompt
    if isinstance(prompt, (Sequence, np.ndarray)) or hasattr(prompt, "tolist"):
        return [int(token) for token in prompt]
    raise InputError(f"{type(prompt).__name__} is not a prompt", "pass a text or a list of token ids")


def chat(core: _core.Model, conversation: dict[str, Any]) -> Chat:
    """Encodes a conversation: `messages`, options of the rendering and variables of the template."""
    try:
        text = json.dumps(conversation)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the conversation is not JSON: {error}", "messages and template variables are strings, numbers and lists"
        ) from None
    return Chat(core.chat(text))


def _is_tokens(prompts: Any) -> bool:
    if isinstance(prompts, Sequence):
        return len(prompts) > 0 and not isinstance(prompts[0], (str, Mapping)) and _dimensions(prompts[0]) == 0
    return _dimensions(prompts) == 1


def _is_chat(prompts: Any) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], Mapping)


def _dimensions(value: Any) -> int:
    if isinstance(value, int):
        return 0
    dimensions = getattr(value, "ndim", None)
    return dimensions if isinstance(dimensions, int) else -1
