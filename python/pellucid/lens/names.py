"""Names of activations as TransformerLens writes them, and the sites that they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..errors import SiteError

if TYPE_CHECKING:
    from ..model import Model
    from ..sites import SiteInfo, Sites

Names = str | tuple[object, ...] | Callable[[str], bool]
"""One name, a short form such as `("resid_post", 5)`, or a function that says of each name whether it is meant."""

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
"""Points that a cache of everything leaves out: they are many times larger than the others, and have to be named."""


def get_act_name(name: str, layer: int | str | None = None, layer_type: str | None = None) -> str:
    """The full TransformerLens name of a short one: `("k", 6)`, `"k6"` and `("scale", 4, "ln1")` are such."""
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
    """What TransformerLens calls a site; where it has no name there, the site's own."""
    for alias in site.aliases:
        if alias.startswith(("blocks.", "hook_", "ln_final.")):
            return alias
    return site.address


def sites_named(model: Model, name: object) -> list[SiteInfo]:
    """The sites that a name, pattern or short form means."""
    if isinstance(name, tuple):
        return [_of_short_form(model, name)]
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


def site_named(model: Model, name: object) -> SiteInfo:
    """The one site that a name means."""
    found = sites_named(model, name)
    if len(found) != 1:
        raise SiteError(f"`{name}` means {len(found)} sites, and one is needed here", "name a layer")
    return found[0]


def sites_matching(model: Model, names: NamesFilter) -> list[SiteInfo]:
    """The sites of a filter, in forward order and once each; a filter that matches nothing is an error."""
    if names is None:
        return [site for site in model.sites if site.point not in COSTLY]
    if callable(names):
        found = [site for site in model.sites if names(hook_name(site))]
        if not found:
            some = ", ".join(f"`{hook_name(site)}`" for site in list(model.sites)[:4])
            raise SiteError("the filter is true of no hook's name", f"names are such as {some}; model.sites has all")
        return found
    each = [names] if isinstance(names, (str, tuple)) else list(names)
    if not each:
        raise SiteError("an empty list of names matches no hook", "name a hook, or leave the filter out for all")
    wanted = {site.address for name in each for site in _of_one(model, name)}
    return [site for site in model.sites if site.address in wanted]


def _of_one(model: Model, name: object) -> list[SiteInfo]:
    return sites_matching(model, name) if callable(name) else sites_named(model, name)


def _of_short_form(model: Model, parts: tuple[object, ...]) -> SiteInfo:
    """The site of `("resid_post", 5)` or `("scale", 4, "ln1")`; layers may count from the end."""
    name, layer, kind = (*parts, None, None)[:3]
    if not isinstance(name, str) or not (layer is None or isinstance(layer, int)) or len(parts) > 3:
        raise SiteError(f"{parts!r} is not a short form", 'write ("resid_post", 5) or ("scale", 4, "ln1")')
    if layer is not None:
        layers = model.layers
        if not -layers <= layer < layers:
            raise SiteError(f"{parts!r}: there is no layer {layer}", f"this model's layers are 0 to {layers - 1}")
        layer %= layers
    full = get_act_name(name, layer, kind if isinstance(kind, str) else None)
    known = _by_name(model.sites)
    own = name if layer is None else f"layers.{layer}.{name}"
    return known.get(full) or known.get(own) or model.sites[full]


_KNOWN: WeakKeyDictionary[Sites, dict[str, SiteInfo]] = WeakKeyDictionary()


def _by_name(sites: Sites) -> dict[str, SiteInfo]:
    """Sites by all of their full names; made once for a model and those that share its weights."""
    known = _KNOWN.get(sites)
    if known is None:
        known = {name: site for site in sites for name in (site.address, *site.aliases)}
        _KNOWN[sites] = known
    return known
