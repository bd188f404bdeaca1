"""Everything that a directory or file tells without being loaded."""

from __future__ import annotations

import json
from html import escape
from os import PathLike, fspath
from typing import Any

from . import _core


class Report:
    """What a directory or file is, whether it runs, and what it would need.

    Its facts are attributes, of the names that `pellucid inspect --json` has: `category`, `support`, `parameters`, `problems`, …
    Printed, it is a card. `pellucid.strategies` tells what each way to load it would do.
    """

    def __init__(self, facts: dict[str, Any], card: str) -> None:
        self._facts = facts
        self._card = card

    @property
    def runs(self) -> bool:
        """Whether it will run as it is."""
        return self._facts["support"] == "native" and not self._facts["problems"]

    def to_dict(self) -> dict[str, Any]:
        """All facts, as plain data of the caller's own."""
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
    """Tells what a directory or file is and whether it will run, from names, settings and headers; executes nothing.

    Args:
        path: A directory or file, whatever is in it.
        assume: Say whether a model whose own type is not native fits this family.

    Only a path that is not there, or a family that does not exist, is an error; what is damaged, incomplete or unknown is described.
    """
    facts, card = _core.inspect_path(fspath(path), assume)
    return Report(json.loads(facts), card)


def inspect_schema() -> dict[str, Any]:
    """The JSON schema of `Report.to_dict()`."""
    return json.loads(_core.inspect_schema())
