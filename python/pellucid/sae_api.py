"""`SaeApi`: the methods of a model that attach and splice sparse autoencoders."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any

from . import _core, convert
from .errors import InputError
from .saes import Sae

if TYPE_CHECKING:
    from .model import Model
    from .transformer_lens import ActivationCache


class SaeApi:
    """Attaching sparse autoencoders, and the API of SAELens."""

    _core: _core.Model
    _edits: tuple[_core.Plan, ...]

    def attach(
        self,
        sae: Sae | str | PathLike[str] = "builtin",
        site: str | None = None,
        *,
        splice: bool = False,
        error_term: bool = False,
        unchecked: bool = False,
    ) -> Model:
        """A copy of the model with a sparse autoencoder or transcoder attached.

        Its features become sites: `t.layers[3].resid_post.sae.acts` in a trace,
        `layers.3.resid_post/sae.acts` elsewhere. The copy shares the weights; this model is
        unchanged. The SAE is first tested on a short text: one that reconstructs worse than the
        mean, or that fits another site far better, is refused. `model.sae_checks` has the numbers.

        Args:
            sae: An `Sae` or its path; the SAE of the built-in model if omitted. The path of a
                cross-layer transcoder is its directory: all its layers are attached.
            site: The site to attach it at, if not the one that its files declare.
            splice: Let every run continue with the reconstruction instead of the activation.
            error_term: With `splice`, add the error of the reconstruction, so that only edits of
                features matter.
            unchecked: Attach it without the test.
        """
        before = self.saes
        if site is not None:
            site = convert.text(site, "the site")
        if isinstance(sae, Sae):
            core, remarks = _core.attach_sae(self._core, sae._core, site, unchecked)
        else:
            core, remarks = _core.attach_path(self._core, convert.path(sae, "the SAE"), site, unchecked)
        for remark in remarks:
            warnings.warn(remark, stacklevel=2)
        model = type(self)(core, self._edits)
        attached = [site for site in model.saes if site not in before]
        return model.spliced(attached, error_term=error_term) if splice else model

    def detach(self, site: str | None = None) -> Model:
        """A copy of the model without the SAE at `site`, or without any.

        All layers of a cross-layer transcoder are detached together.
        """
        if site is not None:
            site = convert.text(site, "the site")
        return type(self)(_core.detach_sae(self._core, site), self._edits)

    @property
    def sae_records(self) -> list[dict[str, Any]]:
        """The attached SAEs: path, site, kind, number of features, and the test of each, as the
        command line records them with its results.
        """
        return json.loads(_core.attached_saes(self._core))

    @property
    def saes(self) -> dict[str, int]:
        """The sites at which SAEs are attached, with their numbers of features."""
        return {record["site"]: record["features"] for record in self.sae_records}

    @property
    def sae_checks(self) -> dict[str, dict[str, Any] | None]:
        """Result of the test of each attached SAE, by site; `None` if it was not tested."""
        return {record["site"]: record["check"] for record in self.sae_records}

    def spliced(self, sites: Iterable[str] | None = None, *, error_term: bool = False) -> Model:
        """A copy of the model that continues with the reconstructions of attached SAEs.

        Args:
            sites: The sites of the SAEs; all attached ones if omitted.
            error_term: Add the error of each reconstruction, so that only edits of features matter.
        """
        chosen = (
            list(self.saes)
            if sites is None
            else [sites]
            if isinstance(sites, str)
            else convert.items(sites, "sites", "pass a list of sites")
        )
        if not chosen:
            raise InputError("no SAE is attached", "attach one first: model.attach(path)")
        how = "recon+error" if error_term else "recon"
        return self.edit({"taps": [{"site": site, "splice": how} for site in chosen]})

    def _with_saes(self, saes: Any, error_term: bool) -> Model:
        model = self
        for sae in saes if isinstance(saes, (list, tuple)) else [saes]:
            model = model.attach(sae, splice=True, error_term=error_term)
        return model

    def run_with_saes(self, prompts: Any, saes: Any = (), *, use_error_term: bool = False, **options: Any) -> Any:
        """Runs prompts with SAEs spliced in, as SAELens' `run_with_saes`; returns what `model(…)`
        returns.

        Args:
            prompts: As in `trace`.
            saes: An SAE or path, or several, spliced at the sites that they declare.
            use_error_term: Add the error of each reconstruction.
            options: As in `model(…)`.
        """
        return self._with_saes(saes, use_error_term)(prompts, **options)

    def run_with_cache_with_saes(
        self, prompts: Any, saes: Any = (), *, use_error_term: bool = False, **options: Any
    ) -> tuple[Any, ActivationCache]:
        """Like `run_with_cache`, with SAEs spliced in; the cache also has their activations, such as
        `blocks.8.hook_resid_pre.hook_sae_acts_post`.
        """
        return self._with_saes(saes, use_error_term).run_with_cache(prompts, **options)
