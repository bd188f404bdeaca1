//! Attaches cross-layer transcoders: all layers together, after a test of each layer's
//! reconstructions.

use super::check::{ENOUGH, capture_all, encode, explained_variance};
use super::{AttachOptions, SaeCheck, SaeRecord, Tried};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::sae::LoadedSae;
use crate::tokenizer::Tokenizer;
use pellucid_engine::sae::ActiveFeatures;
use pellucid_engine::{Model, Point, Remedy, Site, TranscoderLayer};
use pellucid_kernels::Pool;

impl LoadedModel {
    /// Attaches the layers of a cross-layer transcoder, given from first to last. It is refused if
    /// one of its layers would be, see [`attach_sae`](Self::attach_sae). Returns the numbers of the
    /// test, one for each layer, or none if it was left out.
    pub fn attach_cross_layer(&mut self, layers: &[LoadedSae], options: &AttachOptions) -> Result<Vec<SaeCheck>> {
        if let Some(site) = &options.site {
            return Err(Error::usage(
                format!("a cross-layer transcoder cannot be attached at `{site}`"),
                "leave the site out: each layer has its own, which its files name",
            ));
        }
        let sites = layers.iter().map(sites_of).collect::<Result<Vec<(Site, Site)>>>()?;
        let parts = layers.iter().zip(&sites).map(|(layer, &(read, write))| (layer.sae.clone(), read, write));
        let attached = self.model.attach_cross_layer(&parts.collect::<Vec<TranscoderLayer>>())?;
        let checks = match &self.tokenizer {
            Some(tokenizer) if !options.unchecked => check(&self.model, tokenizer, layers, &sites)?,
            _ => Vec::new(),
        };
        if let Some((layer, problem)) = layers.iter().zip(&checks).find_map(|(l, check)| Some((l, check.problem()?))) {
            return Err(Error::usage(format!("{}: {problem}", layer.info.path.display()), Remedy::Unchecked));
        }
        self.model = attached;
        for (index, (layer, &(_, write))) in layers.iter().zip(&sites).enumerate() {
            self.sae_records.push(SaeRecord::new(&layer.info, write, checks.get(index).cloned()));
        }
        Ok(checks)
    }
}

/// The sites that a layer reads and, in its own layer, reconstructs.
fn sites_of(layer: &LoadedSae) -> Result<(Site, Site)> {
    match (&layer.info.sites_in[..], &layer.info.sites_out[..]) {
        ([read], [write, ..]) => Ok((*read, *write)),
        _ => Err(Error::usage(
            format!("{} does not say at which sites it belongs", layer.info.path.display()),
            "add feature_input_hook and feature_output_hook to its config.yaml",
        )),
    }
}

/// Reconstructs the activations of a short text at every layer, and under the most likely other
/// assumptions if that explains little.
fn check(model: &Model, tokenizer: &Tokenizer, layers: &[LoadedSae], sites: &[(Site, Site)]) -> Result<Vec<SaeCheck>> {
    let with_bos = layers.iter().all(|layer| layer.info.prepend_bos != Some(false));
    let tokens = encode(tokenizer, with_bos)?;
    let measured = measure(model, &tokens, layers, sites)?.unwrap_or_default();
    let mut checks: Vec<SaeCheck> = measured
        .iter()
        .zip(layers)
        .zip(sites)
        .map(|((measured, layer), &(_, site))| SaeCheck {
            site,
            tokens: tokens.len() - 1,
            explained_variance: measured.explained_variance,
            l0: measured.l0,
            declared_l0: layer.info.declared_l0,
            tried: Vec::new(),
        })
        .collect();
    if checks.iter().all(|check| check.explained_variance > ENOUGH) {
        return Ok(checks);
    }
    let mut add = |assumption: &dyn Fn((Site, Site)) -> String, sites: &[(Site, Site)], measured: Vec<Measured>| {
        for ((check, &sites), measured) in checks.iter_mut().zip(sites).zip(measured) {
            let explained_variance = measured.explained_variance;
            check.tried.push(Tried { assumption: assumption(sites), explained_variance });
        }
    };
    let program = model.program();
    for read in [Point::ResidMid, Point::MlpNormed, Point::MlpIn] {
        let others: Vec<(Site, Site)> =
            sites.iter().map(|&(own, write)| (Site { point: read, ..own }, write)).collect();
        let is_new = others.iter().zip(sites).all(|(other, own)| program.edge_of(other.0) != program.edge_of(own.0));
        if let Some(measured) = measure(model, &tokens, layers, &others)?.filter(|_| is_new) {
            add(&|(read, _)| format!("reading {read}"), &others, measured);
        }
    }
    for write in [Point::MlpOut, Point::MlpOutPost] {
        let others: Vec<(Site, Site)> = sites.iter().map(|&(read, own)| (read, Site { point: write, ..own })).collect();
        let is_new = others.iter().zip(sites).all(|(other, own)| program.edge_of(other.1) != program.edge_of(own.1));
        if let Some(measured) = measure(model, &tokens, layers, &others)?.filter(|_| is_new) {
            add(&|(_, write)| format!("at {write}"), &others, measured);
        }
    }
    let other = encode(tokenizer, !with_bos)?;
    if other != tokens
        && let Some(measured) = measure(model, &other, layers, sites)?
    {
        let with = if with_bos { "without a BOS token" } else { "with a BOS token" };
        add(&|_| with.into(), sites, measured);
    }
    for check in &mut checks {
        check.tried.sort_by(|a, b| b.explained_variance.total_cmp(&a.explained_variance));
    }
    Ok(checks)
}

/// Reconstruction of one layer.
struct Measured {
    explained_variance: f64,
    l0: f64,
}

/// Reconstructs every layer of a text from the features of all layers up to it; `None` if the model
/// lacks a site or has another width there. The first token is left out.
fn measure(
    model: &Model,
    tokens: &[u32],
    layers: &[LoadedSae],
    sites: &[(Site, Site)],
) -> Result<Option<Vec<Measured>>> {
    let pool = Pool::global();
    let both: Vec<Site> = sites.iter().flat_map(|&(read, write)| [read, write]).collect();
    let captured = capture_all(model, tokens, &both)?;
    let mut features: Vec<Vec<ActiveFeatures>> = Vec::new();
    let mut measured = Vec::new();
    for (index, (layer, (read, write))) in layers.iter().zip(sites).enumerate() {
        let sae = &layer.sae;
        let (Some(x), Some(y)) = (captured.get(read), captured.get(write)) else { return Ok(None) };
        if x.len() != tokens.len() * sae.d_in() || y.len() != tokens.len() * sae.d_out() {
            return Ok(None);
        }
        let (x, y) = (&x[sae.d_in()..], &y[sae.d_out()..]);
        let (active, scales) = sae.active_features(&pool, x);
        let mut recon = vec![0.0; y.len()];
        sae.decode_active(&pool, 0, &active, &scales, x, &mut recon);
        for (earlier, features) in features.iter().enumerate() {
            let features: Vec<Option<&ActiveFeatures>> = features.iter().map(Some).collect();
            layers[earlier].sae.add_decoded(&pool, index - earlier, &features, &mut recon);
        }
        let count: usize = active.iter().map(|active| active.indices.len()).sum();
        measured.push(Measured {
            explained_variance: explained_variance(y, &recon, sae.d_out()),
            l0: count as f64 / active.len().max(1) as f64,
        });
        features.push(active);
    }
    Ok(Some(measured))
}
