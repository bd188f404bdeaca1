"""The sites of a model, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from . import display

if TYPE_CHECKING:
    from . import _core


class SiteInfo(NamedTuple):
    """What is known of a site."""

    address: str
    """Its name, such as `layers.5.resid_post`."""
    kind: str
    """How a token's numbers lie there: `flat`, `heads`, or `attention` (a matrix of queries by keys for each head)."""
    inner: tuple[int, ...]
    """The lengths of its axes besides tokens."""
    meaning: str
    """What it is, in one sentence."""
    aliases: tuple[str, ...]
    """What other libraries call exactly this tensor."""

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Its shape for one prompt, with `tokens` for the length of the text."""
        return (*self.inner, "tokens", "tokens") if self.kind == "attention" else ("tokens", *self.inner)

    @property
    def point(self) -> str:
        """The kind of activation."""
        return self.address.rsplit(".", 1)[-1]

    @property
    def layer(self) -> int | None:
        """Its layer, if it is in one."""
        return int(self.address.split(".")[1]) if self.address.startswith("layers.") else None


class Sites:
    """Every site of a model, in forward order. `sites["blocks.5.hook_resid_post"]` finds by any name."""

    def __init__(self, core: _core.Model) -> None:
        self._core = core
        table = [
            SiteInfo(a, kind, tuple(inner), meaning, tuple(names)) for a, kind, inner, meaning, names in core.sites()
        ]
        self.by_address = {site.address: site for site in table}
        layers = core.dimensions[0]
        self.of_model = {site.address: site for site in table if site.layer is None}
        self.of_layer: list[dict[str, SiteInfo]] = [{} for _ in range(layers)]
        for site in table:
            if site.layer is not None:
                self.of_layer[site.layer][site.point] = site

    def __getitem__(self, name: str) -> SiteInfo:
        found = self.by_address.get(name)
        return found if found is not None else self.by_address[self._core.find(name)[0]]

    def find(self, pattern: str) -> list[SiteInfo]:
        """The sites that an address, pattern (`layers.*.z`) or alias means."""
        return [self.by_address[address] for address in self._core.find(pattern)]

    def __iter__(self) -> Iterator[SiteInfo]:
        return iter(self.by_address.values())

    def __len__(self) -> int:
        return len(self.by_address)

    def __contains__(self, name: str) -> bool:
        return name in self.by_address

    def __repr__(self) -> str:
        return "\n".join(f"{site.address}  {_shape(site)}  {site.meaning}" for site in self)

    def _repr_html_(self) -> str:
        rows = [(site.address, _shape(site), site.meaning, ", ".join(site.aliases)) for site in self]
        return display.table(("site", "shape", "meaning", "also called"), rows)


def _shape(site: SiteInfo) -> str:
    return "[" + ", ".join(str(length) for length in site.shape) + "]"
