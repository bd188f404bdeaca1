"""`Sae`: sparse autoencoders and transcoders, read from any published format."""

from __future__ import annotations

import json
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .errors import InputError
from .results import to_numpy

if TYPE_CHECKING:
    from .site import Site
    from .views import View


class Sae:
    """A sparse autoencoder or transcoder.

    `pellucid.load_sae(path)` reads one; `model.attach(sae)` makes its features sites of a model.
    Arrays have tokens (and batches) on their leading axes.
    """

    def __init__(self, core: _core.Sae) -> None:
        self._core = core
        self.cfg: dict[str, Any] = json.loads(core.info)
        """Kind, sizes, normalization, hook points, sites and base model, as its files declare them."""
        self.d_in, self.d_out, self.n_features = core.sizes
        self.n_targets: int = core.n_targets
        """Number of layers that it writes: 1, or more for cross-layer transcoders and crosscoders."""

    @property
    def site(self) -> str | None:
        """The site that it reconstructs, as its files declare it."""
        sites = self.cfg["sites_out"] or self.cfg["sites_in"]
        return sites[0] if len(sites) == 1 else None

    def encode(self, x: Any) -> np.ndarray:
        """Activations of the features, `[…, n_features]`, for inputs `[…, d_in]`."""
        return to_numpy(self._core.encode(_floats(x), False))

    def encode_pre(self, x: Any) -> np.ndarray:
        """Pre-activations of the features, `[…, n_features]`."""
        return to_numpy(self._core.encode(_floats(x), True))

    def decode(self, acts: Any, x: Any = None, *, target: int = 0) -> np.ndarray:
        """Reconstructions, `[…, d_out]`, of activations `[…, n_features]`.

        Args:
            acts: Activations of the features.
            x: The inputs, which an SAE that normalizes each token or has a skip path needs.
            target: Which of the layers that it writes, for a crosscoder or one layer of a
                cross-layer transcoder.
        """
        return to_numpy(self._core.decode(_floats(acts), None if x is None else _floats(x), _target(target)))

    def __call__(self, x: Any) -> np.ndarray:
        return self.decode(self.encode(x), x)

    @property
    def W_enc(self) -> np.ndarray:
        """The encoder, `[d_in, n_features]`; a copy."""
        return to_numpy(self._core.encoder()).T

    @property
    def W_dec(self) -> np.ndarray:
        """The decoder, one row per feature, `[n_features, d_out]`; a copy."""
        return to_numpy(self._core.decoder())

    @property
    def b_enc(self) -> np.ndarray:
        """The encoder bias, `[n_features]`."""
        return _read_only(self._core.biases()[0])

    @property
    def b_dec(self) -> np.ndarray:
        """The decoder bias, `[d_out]`."""
        return _read_only(self._core.biases()[1])

    def __repr__(self) -> str:
        where = f" at {self.site}" if self.site else ""
        return f"Sae({self.cfg['kind']}, {self.n_features} features of {self.d_in} channels{where})"


def load_sae(path: str | PathLike[str] = "builtin") -> Sae:
    """Reads a sparse autoencoder or transcoder of any published format, see docs/saes.md.

    Args:
        path: Its directory or weights file; the SAE of the built-in model if omitted.
    """
    return Sae(_core.Sae.open(convert.path(path)))


class SaeView:
    """The activations of an attached SAE inside a trace: `t.layers[3].resid_post.sae.acts`."""

    __slots__ = ("_address", "_view")

    def __init__(self, view: View, address: str) -> None:
        object.__setattr__(self, "_view", view)
        object.__setattr__(self, "_address", address)

    def __getattr__(self, name: str) -> Site:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._view[f"{self._address}/sae.{name}"]

    def __setattr__(self, name: str, value: Any) -> None:
        self._view[f"{self._address}/sae.{name}"] = value

    def __repr__(self) -> str:
        return f"<SAE at {self._address}: pre, acts, recon, error, out>"


def _floats(x: Any) -> np.ndarray:
    return np.ascontiguousarray(convert.array(x))


def _target(target: Any) -> int:
    number = convert.integer(target, "target")
    if number < 0:
        raise InputError(f"target is {target}", "targets count from 0")
    return number


def _read_only(values: list[float]) -> np.ndarray:
    array = np.array(values, dtype=np.float32)
    array.flags.writeable = False
    return array
