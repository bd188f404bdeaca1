"""Arguments of `load`: checks, spellings of other libraries, and pickles of models."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import abspath, exists
from typing import TYPE_CHECKING, Any

from . import _core, convert
from .errors import InputError, MissingAttribute

if TYPE_CHECKING:
    from .model import Model

DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float": "f32", "half": "f16"}
"""Dtypes of torch and numpy → names of storage dtypes."""

_OPTIONS = "dtype, threads, adapters, assume, lazy and kv"

_PROCESSED = "weights are loaded as trained; model.processed(fold_ln=True, …) gives processed weights"
_OPTION_HINTS = {
    "device": "the engine runs on the CPU: omit it",
    "device_map": "the engine runs on the CPU: omit it",
    "torch_dtype": "use dtype",
    "fold_ln": _PROCESSED,
    "center_unembed": _PROCESSED,
    "center_writing_weights": _PROCESSED,
    "fold_value_biases": _PROCESSED,
    "trust_remote_code": "code of a model is never run; assume=… loads an unknown type as a native family",
    "tokenizer": "the tokenizer of the model's files is used; prompts may be token ids",
    "revision": "pull the revision first, and load its directory",
    "load_in_8bit": 'use dtype="q8"',
}

_ATTRIBUTE_HINTS = {
    "tokenizer": "use to_tokens, to_str_tokens, to_string and to_single_token; pellucid.load_tokenizer(path) gives it alone",
    "config": "model.cfg has the dimensions; pellucid.inspect(path) reads the files",
    "add_hook": "use `with model.hooks(fwd_hooks=[(name, function)]):`, or model.edit() for a standing edit",
    "add_perma_hook": "use model.edit(), which gives a model with a standing edit",
    "reset_hooks": "hooks end with their `with model.hooks(…)` block, so there is nothing to reset",
    "hook_dict": "model.sites lists all sites with their TransformerLens names",
    "to": "the engine runs on the CPU; there is nothing to move",
    "cuda": "the engine runs on the CPU; there is nothing to move",
    "cpu": "the engine runs on the CPU; there is nothing to move",
    "device": "the engine runs on the CPU",
    "eval": "a model has no training mode",
    "train": "a model has no training mode",
    "parameters": "model.weights lists names and shapes, model.weight(name) is an array",
    "named_parameters": "model.weights lists names and shapes, model.weight(name) is an array",
    "state_dict": "model.weights lists names and shapes, model.weight(name) is an array",
    "load_state_dict": "use model.with_weights({name: array})",
    "forward": "call the model: model(prompt)",
    "lm_head": "inside `with model.trace(prompt) as t`, use t.logits or t.lm_head; the weight is model.W_U",
    "model": "inside `with model.trace(prompt) as t`, use t.layers[5] or t.model.layers[5]",
    "transformer": "inside `with model.trace(prompt) as t`, use t.layers[5] or t.transformer.h[5]",
    "invoke": "inside `with model.trace() as t`, use t.row(prompt)",
}


def check(
    name: Any, dtype: Any, threads: Any, adapters: Any, assume: Any, lazy: Any, kv: Any, unknown: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of `_core.Model.open`."""
    for option in unknown:
        hint = _OPTION_HINTS.get(option, f"the options are {_OPTIONS}")
        raise InputError(f"load has no option {option!r}", hint)
    if isinstance(adapters, (str, bytes)) or not isinstance(adapters, Iterable):
        raise InputError(f"adapters is {adapters!r}, which is not a list", "pass a list of directories")
    return (
        None if name is None else convert.path(name, "the model"),
        _dtype(dtype),
        threads,
        [convert.path(adapter, "an adapter") for adapter in adapters],
        None if assume is None else convert.text(assume, "assume"),
        bool(lazy),
        convert.text(kv, "kv"),
    )


def _dtype(dtype: Any) -> str:
    """The storage dtype of a name, a torch dtype or a numpy dtype."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    name = convert.text(name, "dtype").removeprefix("torch.")
    return DTYPES.get(name, name)


def attribute_hint(name: str) -> str:
    """What to use instead of an attribute that models of other libraries have."""
    return _ATTRIBUTE_HINTS.get(name, "help(pellucid.Model) lists the attributes; sites are read inside model.trace(…)")


def pickled(model: Model) -> tuple[Any, ...]:
    """The arguments of `unpickle`. Paths become absolute, so that another process finds them."""
    if model._core.server is not None:
        raise InputError(
            f"{model!r} cannot be pickled: it is a connection", "call pellucid.connect in the other process"
        )
    if model._source is None:
        raise InputError(
            f"{model!r} cannot be pickled: its weights are not those of its files",
            "pickle the model before attach or with_weights, and repeat them after loading",
        )
    name, dtype, threads, adapters, *rest = model._source
    name = abspath(name) if name is not None and exists(name) else name
    return (name, dtype, threads, [abspath(path) for path in adapters], *rest), [
        edit.to_json() for edit in model._edits
    ]


def unpickle(source: tuple[Any, ...], edits: list[str]) -> Model:
    """Loads a pickled model from its source."""
    from .model import Model  # models are pickled by this module

    plans = tuple(_core.Plan.from_json(edit) for edit in edits)
    return Model(_core.Model.open(*source), plans, source=source)


class LayerCount(int):
    """The number of layers, `model.layers`. Indexing it raises: sites are in `t.layers`."""

    def __getitem__(self, layer: Any) -> Any:
        raise MissingAttribute(
            "model.layers is the number of layers",
            f"inside `with model.trace(prompt) as t`, use t.layers[{layer!r}]; weights are in model.blocks[{layer!r}]",
        )

    def __iter__(self) -> Any:
        return self[0]

    def __len__(self) -> int:
        return int(self)
