"""Resolves TransformerLens activation names to sites."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from .. import convert
from ..errors import SiteError

if TYPE_CHECKING:
    from ..model import Model
    from ..site_table import SiteInfo, Sites

Names = str | tuple[object, ...] | Callable[[str], bool]
"""A name, a short form such as `("resid_post", 5)`, or a predicate on names."""

NamesFilter = None | Names | Iterable[Names]

_ACTIVATIONS = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_mid": "mid",
    "mlp_post": "post",
}
_MODULES = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_IN_ATTENTION = {"k", "v", "q", "z", "rot_k", "rot_q", "result", "pattern", "attn_scores"}
_IN_MLP = {"pre", "post", "mid", "pre_linear"}
_IN_NORMS = {"scale", "normalized"}

COSTLY = {"head_out", "lm_head", "logits", "mixer_state"}
"""Points that a cache without a filter omits, because they are much larger than the others.

Name them to cache them.
"""


def get_act_name(name: str, layer: int | str | None = None, layer_type: str | None = None) -> str:
    """Expands a short name to the full TransformerLens name: `("k", 6)`, `"k6"`,
    `("scale", 4, "ln1")`.
    """
    name = convert.text(name, "the activation's name")
    if layer is not None and not isinstance(layer, str):
        layer = convert.integer(layer, "the layer")
    if ("." in name or name.startswith("hook_")) and layer is None and layer_type is None:
        return name
    short = re.fullmatch(r"([a-z_]*[a-z])(\d+)([a-z]\w*)?", name)
    if short is not None and layer is None:
        name, layer, layer_type = short.group(1), short.group(2), short.group(3)
    name = _ACTIVATIONS.get(name, name)
    if name in _IN_ATTENTION:
        module = "attn"
    elif name in _IN_MLP:
        module = "mlp"
    elif name in _IN_NORMS and layer is None:
        module = "ln_final"
    else:
        module = _MODULES.get(layer_type or "", layer_type or "")
    block = f"blocks.{layer}." if layer is not None else ""
    return f"{block}{module + '.' if module else ''}hook_{name}"


def hook_name(site: SiteInfo) -> str:
    """The TransformerLens name of a site, or its address if TransformerLens has none."""
    for alias in site.aliases:
        if alias.startswith(("blocks.", "hook_", "ln_final.")):
            return alias
    return site.address


def find_sites(model: Model, name: object) -> list[SiteInfo]:
    """The sites that a name, pattern or short form matches."""
    if isinstance(name, tuple):
        return [_resolve_short_form(model, name)]
    if not isinstance(name, str):
        raise SiteError(f"{name!r} is not the name of a hook", 'write "blocks.5.hook_resid_post" or ("resid_post", 5)')
    known = _by_name(model.sites)
    if name in known:
        return [known[name]]
    try:
        return model.sites.find(name)
    except SiteError:
        full = get_act_name(name)
        if full not in known:
            raise
        return [known[full]]


def find_site(model: Model, name: object) -> SiteInfo:
    """The single site that a name matches."""
    found = find_sites(model, name)
    if len(found) != 1:
        raise SiteError(f"`{name}` matches {len(found)} sites, but one is needed here", "name a layer")
    return found[0]


def match_sites(model: Model, names: NamesFilter) -> list[SiteInfo]:
    """The sites that match a filter, in forward order, without duplicates; raises if there are
    none.
    """
    if names is None:
        return [site for site in model.sites if site.point not in COSTLY]
    if callable(names):
        found = [site for site in model.sites if names(hook_name(site))]
        if not found:
            some = ", ".join(f"`{hook_name(site)}`" for site in list(model.sites)[:4])
            raise SiteError("the filter matches no hook name", f"names look like {some}; model.sites lists all")
        return found
    hint = 'pass a name, a pattern, ("z", 5), a list of these, or a predicate'
    each = [names] if isinstance(names, (str, tuple)) else convert.items(names, "names_filter", hint)
    if not each:
        raise SiteError("an empty list of names matches no hook", "name a hook, or omit the filter for all")
    addresses = {site.address for name in each for site in _match_one(model, name)}
    return [site for site in model.sites if site.address in addresses]


def _match_one(model: Model, name: object) -> list[SiteInfo]:
    return match_sites(model, name) if callable(name) else find_sites(model, name)


def _resolve_short_form(model: Model, parts: tuple[object, ...]) -> SiteInfo:
    """The site of `("resid_post", 5)` or `("scale", 4, "ln1")`; negative layers count from the end."""
    name, layer, kind = (*parts, None, None)[:3]
    if layer is not None:
        try:
            layer = operator.index(layer)
        except TypeError:
            layer = False
    if not isinstance(name, str) or isinstance(layer, bool) or len(parts) > 3:
        raise SiteError(f"{parts!r} is not a short form", 'write ("resid_post", 5) or ("scale", 4, "ln1")')
    if layer is not None:
        layers = model.n_layers
        if not -layers <= layer < layers:
            raise SiteError(f"{parts!r}: there is no layer {layer}", f"this model's layers are 0 to {layers - 1}")
        layer %= layers
    full = get_act_name(name, layer, kind if isinstance(kind, str) else None)
    known = _by_name(model.sites)
    address = name if layer is None else f"layers.{layer}.{name}"
    return known.get(full) or known.get(address) or model.sites[full]


_KNOWN: WeakKeyDictionary[Sites, dict[str, SiteInfo]] = WeakKeyDictionary()


def _by_name(sites: Sites) -> dict[str, SiteInfo]:
    """Sites by address and alias; cached per site table, which edited models share."""
    known = _KNOWN.get(sites)
    if known is None:
        known = {name: site for site in sites for name in (site.address, *site.aliases)}
        _KNOWN[sites] = known
    return known
