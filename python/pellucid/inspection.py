"""Reports about a directory or file, without loading it."""

from __future__ import annotations

import json
from html import escape
from os import PathLike, fspath
from typing import Any

from . import _core


class Report:
    """The category, support and requirements of a model directory or file.

    Its attributes are the keys of `pellucid inspect --json`: `category`, `support`, `parameters`,
    `problems`, … `print` shows a summary. `pellucid.strategies` lists the loading strategies.
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


def inspect(path: str | PathLike[str], *, assume: str | None = None) -> Report:
    """Reports what a directory or file contains and whether it runs, from file names, configuration
    and headers.

    Args:
        path: Any directory or file.
        assume: Also check whether a model of an unsupported type fits this native family.

    Executes no code. Raises only if the path or the family does not exist; damaged, incomplete or
    unknown files are described in the report.
    """
    facts, card = _core.inspect_path(fspath(path), assume)
    return Report(json.loads(facts), card)


def inspect_schema() -> dict[str, Any]:
    """The JSON schema of `Report.to_dict()`."""
    return json.loads(_core.inspect_schema())
