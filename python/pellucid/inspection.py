"""Reports about a directory or file, without loading it."""

from __future__ import annotations

import json
from html import escape
from os import PathLike
from typing import Any

from . import _core, convert
from .errors import InputError


class Report:
    """The category, support and requirements of a model directory or file.

    Its attributes are the keys of `pellucid inspect --json`: `category`, `support`, `parameters`,
    `problems`, … `print` shows a summary. `family`, `strategy`, `warnings` and `strategies` are
    those of `pellucid.load`, and `reason` is its error.
    """

    def __init__(self, facts: dict[str, Any], card: str) -> None:
        self._facts = facts
        self._card = card

    @property
    def runs(self) -> bool:
        """Whether it runs as it is."""
        return self._facts["support"] == "native" and not self._facts["problems"]

    def to_dict(self) -> dict[str, Any]:
        """All attributes as a new dict of plain data."""
        return json.loads(json.dumps(self._facts))

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("_facts", {})
        try:
            return facts[name]
        except KeyError:
            raise AttributeError(f"a report has no {name!r}; it has {', '.join(facts)}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._facts})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self._facts == other._facts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self._card.rstrip("\n")

    def _repr_html_(self) -> str:
        title, *lines = self._card.rstrip("\n").split("\n")
        verdict = lines.pop() if lines else ""
        body = "\n".join(lines)
        return f"<div><b>{escape(title)}</b><pre>{escape(body)}</pre><i>{escape(verdict)}</i></div>"


def inspect(path: str | PathLike[str], *, assume: str | None = None, quick: bool = False) -> Report:
    """Reports what a directory or file contains and whether it runs, from file names, configuration
    and headers.

    Args:
        path: Any directory or file.
        assume: Read a model of an unsupported type as this native family.
        quick: Read only file names and the configuration, in microseconds: category, support, type,
            class, family, quantization, custom code, base model of SAEs. The family may run even
            if this copy of the model is incomplete; sizes, weights and tokenizer are not reported.

    Executes no code. Raises only if the path or the family does not exist; damaged, incomplete or
    unknown files are described in the report.
    """
    if quick and assume is not None:
        raise InputError("a quick report does not read the tensors, so it takes no `assume`", "leave out `quick`")
    facts, card = _core.inspect_path(
        convert.path(path), None if assume is None else convert.text(assume, "assume"), bool(quick)
    )
    return Report(json.loads(facts), card)


def inspect_schema() -> dict[str, Any]:
    """The JSON schema of `Report.to_dict()`."""
    return json.loads(_core.inspect_schema())


def register_architecture(model_type: str, family: str) -> None:
    """Registers a model type as a native family.

    Models of this type then load as it, with a warning, if configuration and tensors fit.

    Raises `InputError` if there is no such family, or if the type is native or registered as
    another family.
    """
    _core.register_architecture(convert.text(model_type, "model_type"), convert.text(family, "family"))


def register_architectures(path: str | PathLike[str]) -> None:
    """Registers every model type of a TOML file: a table `[architectures]` with lines such as
    `acme_llm = "llama"`.

    The file named by the environment variable `PELLUCID_ARCHITECTURES` is registered automatically.
    """
    _core.register_file(convert.path(path))


def registered_architectures() -> dict[str, str]:
    """All model types that load as a native family, with the family: built-in and registered ones."""
    return dict(_core.registered_architectures())
