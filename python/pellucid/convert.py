"""Converts inputs from Python, numpy and torch: prompts to token rows, values to arrays.

Anything that cannot be converted exactly (a float as a token id, a number beyond the range of f32)
raises an error of this package.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
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

_PROMPT_HINT = "pass a text, a list of token ids, or a list of these"


# Values.


def array(value: Any, *, copy: bool = False) -> np.ndarray:
    """Converts numbers, lists, numpy arrays and torch tensors of any dtype (bf16 too) to an f32
    array; with `copy`, always to a new one.
    """
    if hasattr(value, "detach") and hasattr(value, "is_complex"):
        # A torch tensor. numpy has no bf16, so torch converts it to f32.
        if value.is_complex():
            raise PlanError("a complex tensor is not an array of numbers", "pass its real part: tensor.real")
        value = value.detach().double().cpu().numpy() if value.dtype.itemsize > 4 else value.detach().float().cpu()
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise PlanError("a masked array has elements without a value", "fill them: array.filled(0)")
    try:
        result = np.asarray(value)
        # Reject these kinds: `astype` would parse strings as numbers and turn `None` into NaN.
        if result.dtype.kind not in "OSUcmM":
            return _to_f32(result, copy)
        reason = f"numpy converts it to dtype {result.dtype}"
    except (TypeError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        reason = str(error)
    raise PlanError(
        f"{type(value).__name__} is not an array of numbers: {reason}", "pass numbers, arrays or values of this block"
    )


def _to_f32(values: np.ndarray, copy: bool) -> np.ndarray:
    """Converts to f32; raises if a finite element becomes infinite."""
    if values.dtype == np.float32 or values.dtype.kind == "b" or values.dtype.itemsize < 4:
        return values.astype(np.float32, copy=copy)
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    overflow = np.isinf(result) & np.isfinite(values)
    if overflow.any():
        raise PlanError(f"{values[overflow].flat[0]!s} is beyond the range of f32", "the largest f32 is about 3.4e38")
    return result


def scalar(value: float) -> float:
    """Checks a Python number: raises if it is finite and beyond the range of f32."""
    try:
        result = float(value)
    except OverflowError:
        result = np.inf
    if abs(result) > _F32_MAX and value not in (np.inf, -np.inf):
        raise PlanError(f"{value!r} is beyond the range of f32", "the largest f32 is about 3.4e38")
    return result


_F32_MAX = float(np.finfo(np.float32).max)


# Options.


def integer(value: Any, name: str, *, hint: str | None = None) -> int:
    """Converts an integer of any library; floats, booleans and texts raise."""
    try:
        if not isinstance(value, (bool, np.bool_)):
            number = operator.index(value)
            if abs(number) < 1 << 62:
                return number
            raise InputError(f"{name} is {number}, which is out of range", hint or f"pass a smaller {name}")
    except TypeError:
        pass
    raise InputError(f"{name} is {_shown(value)}, which is not an integer", hint or f"pass an integer as {name}")


def integers(values: Any, name: str) -> list[int]:
    """Converts one integer or several to a list."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        return [integer(values, name)]
    return [integer(value, name) for value in values]


def items(values: Any, name: str, hint: str) -> list[Any]:
    """Converts an iterable other than a text to a list."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise InputError(f"{name} is {_shown(values)}, which is not a list", hint)
    return list(values)


def choice(value: Any, name: str, options: Sequence[str | None]) -> Any:
    """Checks that a value is one of a few words."""
    if not (value is None or isinstance(value, str)) or value not in options:
        raise InputError(f"invalid {name}={_shown(value)}", f"use {', '.join(map(repr, options))}")
    return value


def finite(value: Any, name: str) -> float:
    """Checks a finite number of any library."""
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) <= _F32_MAX:
        return float(number)
    raise InputError(f"{name} is {_shown(value)}", f"pass a finite number as {name}")


def text(value: Any, name: str) -> str:
    """Checks that a value is a text that the engine can take: without lone surrogates."""
    if not isinstance(value, str):
        hint = f"decode it first: {name}.decode()" if isinstance(value, (bytes, bytearray)) else "pass a string"
        raise InputError(f"{name} is {_shown(value)}, which is not a text", hint)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name} has a lone surrogate at index {error.start}, which is not a character",
                'replace such characters: text.encode("utf-8", "replace").decode()',
            ) from None
    return value


def path(value: Any, name: str = "the path") -> str:
    """Converts a path to a text."""
    if not isinstance(value, (str, PathLike)):
        raise InputError(f"{name} is {_shown(value)}, which is not a path", "pass a string or a pathlib.Path")
    given = fspath(value)
    return text(given.decode() if isinstance(given, bytes) else given, name)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"a {type(value).__name__}"


# Prompts.


def rows(core: _core.Model, prompts: Any) -> tuple[list[Any], bool]:
    """Converts prompts to rows of tokens; also returns whether it was a single prompt, not a list.

    Lists are copied: the caller may change them before the block runs.
    """
    if type(prompts) is list and prompts and type(prompts[0]) is int:
        return [prompts[:]], True
    if isinstance(prompts, str) or _is_chat(prompts):
        return [tokens(core, prompts)], True
    if isinstance(prompts, (bytes, bytearray, memoryview)):
        raise _bytes_prompt(prompts)
    if _dimensions(prompts) >= 1:
        return _array_rows(core, prompts)
    if _is_tokens(prompts):
        return [tokens(core, prompts)], True
    if isinstance(prompts, Sequence):
        return [tokens(core, prompt) for prompt in prompts], False
    if isinstance(prompts, Iterable) and not isinstance(prompts, Mapping):
        raise InputError(f"a {type(prompts).__name__} is not a list of prompts", "pass a list: list(prompts)")
    raise InputError(f"{_shown(prompts)} is not a prompt", _PROMPT_HINT)


def tokens(core: _core.Model, prompt: Prompt) -> Any:
    """Converts one prompt to tokens."""
    if isinstance(prompt, str):
        return core.encode(text(prompt, "the prompt"), True)
    if _is_chat(prompt):
        return chat(core, {"messages": list(prompt)})
    if isinstance(prompt, Chat):
        return prompt
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        raise _bytes_prompt(prompt)
    if type(prompt) is list and all(type(token) is int for token in prompt):
        return prompt[:]
    if isinstance(prompt, Sequence) or _dimensions(prompt) >= 1:
        return token_ids(prompt)
    raise InputError(f"{_shown(prompt)} is not a prompt", "pass a text or a list of token ids")


def token_ids(tokens: Any) -> list[int]:
    """Converts one-dimensional token ids of any library to a list of integers."""
    listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(listed, list):
        listed = list(listed) if isinstance(listed, Iterable) and not isinstance(listed, (str, bytes)) else [listed]
    for index, token in enumerate(listed):
        if type(token) is not int:
            if isinstance(token, (list, tuple, np.ndarray)):
                raise InputError("token ids of two axes, and one row is needed here", "pass one row: tokens[0]")
            listed[index] = integer(
                token, f"token {index}", hint="token ids are whole numbers from 0: round or cast them first"
            )
    return listed


def _array_rows(core: _core.Model, prompts: Any) -> tuple[list[Any], bool]:
    """Converts an array or tensor of token ids `[pos]` or `[batch, pos]`, or an array of texts."""
    dimensions = _dimensions(prompts)
    listed = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    if dimensions == 1 and listed and all(isinstance(item, str) for item in listed):
        return [tokens(core, item) for item in listed], False
    if dimensions == 1:
        return [token_ids(listed)], True
    if dimensions == 2:
        return [token_ids(row) for row in listed], False
    raise InputError(f"an array of {dimensions} axes is not a prompt", "token ids are [pos] or [batch, pos]")


def _bytes_prompt(prompt: Any) -> InputError:
    return InputError(f"{type(prompt).__name__} is not a prompt", "decode it first: prompt.decode()")


def chat(core: _core.Model, conversation: dict[str, Any]) -> Chat:
    """Encodes a conversation: `messages`, options of the rendering and variables of the template."""
    try:
        written = json.dumps(conversation, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the conversation is not JSON: {error}", "messages and template variables are strings, numbers and lists"
        ) from None
    return Chat(core.chat(text(written, "the conversation")))


def _is_tokens(prompts: Any) -> bool:
    if not isinstance(prompts, Sequence) or len(prompts) == 0 or isinstance(prompts[0], (str, Mapping)):
        return False
    return isinstance(prompts[0], float) or _dimensions(prompts[0]) == 0


def _is_chat(prompts: Any) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], Mapping)


def _dimensions(value: Any) -> int:
    if isinstance(value, int):
        return 0
    dimensions = getattr(value, "ndim", None)
    return dimensions if isinstance(dimensions, int) else -1
