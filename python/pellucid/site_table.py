"""`SiteInfo` and `Sites`: the table of a model's sites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from . import convert, display
from .errors import Error, SiteError

if TYPE_CHECKING:
    from . import _core


class SiteInfo(NamedTuple):
    """Address, shape, meaning and aliases of a site."""

    address: str
    """The canonical name, such as `layers.5.resid_post`."""
    kind: str
    """`flat` (`[tokens, width]`), `heads` (`[tokens, heads, width]`) or `attention`
    (`[heads, queries, keys]`).
    """
    inner: tuple[int, ...]
    """The shape without token axes."""
    meaning: str
    """A one-sentence description."""
    aliases: tuple[str, ...]
    """Names of exactly this tensor in other libraries."""

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The shape for one prompt, with `"tokens"` for its length."""
        return (*self.inner, "tokens", "tokens") if self.kind == "attention" else ("tokens", *self.inner)

    @property
    def point(self) -> str:
        """The point (kind of activation), such as `resid_post`, or `resid_post/sae.acts`."""
        if "/sae." in self.address:
            return self.address.split(".", 2)[-1] if self.address.startswith("layers.") else self.address
        return self.address.rsplit(".", 1)[-1]

    @property
    def layer(self) -> int | None:
        """The layer index; `None` outside layers."""
        return int(self.address.split(".")[1]) if self.address.startswith("layers.") else None


class Sites:
    """Every site of a model, in forward order.

    `sites["blocks.5.hook_resid_post"]` accepts any alias.
    """

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
        """The single site with this address or alias; a pattern that matches several raises."""
        site = self.by_address.get(name) if isinstance(name, str) else None
        if site is not None:
            return site
        found = self.find(name)
        if len(found) > 1:
            raise SiteError(
                f"`{name}` matches {len(found)} sites, and one is needed here",
                f'loop over them: for site in model.sites.find("{name}"): t[site.address]; '
                f't.cache("{name}") captures them all',
            )
        return found[0]

    def find(self, pattern: str) -> list[SiteInfo]:
        """The sites that an address, pattern (`layers.*.z`) or alias matches."""
        if not isinstance(pattern, str):
            raise SiteError(
                f"{pattern!r} is not the name of a site", 'write "layers.5.resid_post"; `model.sites` lists them all'
            )
        return [self.by_address[address] for address in self._core.find(convert.text(pattern, "the site"))]

    def __iter__(self) -> Iterator[SiteInfo]:
        return iter(self.by_address.values())

    def __len__(self) -> int:
        return len(self.by_address)

    def __contains__(self, name: object) -> bool:
        """Whether `sites[name]` finds a site: by its address or by an alias."""
        if not isinstance(name, str):
            return False
        if name in self.by_address:
            return True
        try:
            return len(self.find(name)) == 1
        except Error:
            return False

    def __repr__(self) -> str:
        return "\n".join(f"{site.address}  {_shape(site)}  {site.meaning}" for site in self)

    def _repr_html_(self) -> str:
        rows = [(site.address, _shape(site), site.meaning, ", ".join(site.aliases)) for site in self]
        return display.table(("site", "shape", "meaning", "also called"), rows)


def _shape(site: SiteInfo) -> str:
    return "[" + ", ".join(str(length) for length in site.shape) + "]"
