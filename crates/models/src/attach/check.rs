//! The test of an autoencoder on a model: does it reconstruct the activations of its site?

use crate::error::Result;
use crate::sae::{SaeCheck, SaeInfo, SaeRole, Tried};
use crate::tokenizer::Tokenizer;
use pellucid_engine::sae::Sae;
use pellucid_engine::{Action, Model, Plan, Point, RunOptions, Site, Tap};
use pellucid_kernels::Pool;
use std::collections::{BTreeSet, HashMap};

/// The text that is reconstructed.
const TEXT: &str = "Once there was a small town by the sea. Every morning the baker opened his shop, and the smell \
of fresh bread filled the street. In 1912 a doctor named Anna came to live there. She had studied in London and \
spoke three languages. \"Good morning,\" she said to everyone she met. The children asked her many questions: how do \
birds fly, why is the sky blue, and what is inside the earth?";

/// Maximum number of tokens of the text.
const MAX_TOKENS: usize = 96;

/// Explained variance above which no other site is tried.
pub(super) const ENOUGH: f64 = 0.95;

/// Weights of an encoder above which only neighboring layers are tried: a reconstruction takes a
/// noticeable time.
const LARGE: usize = 1 << 25;

/// Reconstructs the activations of a short text at the declared sites, and under the most likely
/// other assumptions if that explains little.
pub(super) fn check(
    model: &Model,
    tokenizer: &Tokenizer,
    sae: &Sae,
    info: &SaeInfo,
    (read, write): (Site, Site),
) -> Result<SaeCheck> {
    let tokens = encode(tokenizer, info.prepend_bos != Some(false))?;
    let (x, y) = (capture(model, &tokens, read)?, capture(model, &tokens, write)?);
    let (x, y) = (&x[sae.d_in()..], &y[sae.d_out()..]);
    let explained_variance = explained(sae, x, y);
    let mut check = SaeCheck {
        site: write,
        tokens: tokens.len() - 1,
        explained_variance,
        l0: l0(sae, x),
        declared_l0: info.declared_l0,
        tried: Vec::new(),
    };
    if explained_variance > ENOUGH {
        return Ok(check);
    }
    let mut tried = |assumption: String, explained_variance: f64| {
        check.tried.push(Tried { assumption, explained_variance });
    };
    let near = if sae.n_features() * sae.d_in() > LARGE { 2 } else { usize::MAX };
    let sites = other_sites(model, info.role, write, near);
    let inputs: Vec<Site> =
        sites.iter().map(|&site| if read == write { site } else { Site { layer: site.layer, ..read } }).collect();
    let captured = capture_all(model, &tokens, &[sites.clone(), inputs.clone()].concat())?;
    for (site, input) in sites.iter().zip(&inputs) {
        let (Some(x), Some(y)) = (captured.get(input), captured.get(site)) else { continue };
        if x.len() == tokens.len() * sae.d_in() && y.len() == tokens.len() * sae.d_out() {
            tried(format!("at {site}"), explained(sae, &x[sae.d_in()..], &y[sae.d_out()..]));
        }
    }
    if read == write {
        let centered = center(x, sae.d_in());
        let explained = explained(sae, &centered, &centered);
        tried("with centered activations (trained on processed weights, center_writing_weights)".into(), explained);
    }
    let other = encode(tokenizer, info.prepend_bos == Some(false))?;
    if other != tokens {
        let (x, y) = (capture(model, &other, read)?, capture(model, &other, write)?);
        let with = if info.prepend_bos == Some(false) { "with a BOS token" } else { "without a BOS token" };
        tried(with.into(), explained(sae, &x[sae.d_in()..], &y[sae.d_out()..]));
    }
    check.tried.sort_by(|a, b| b.explained_variance.total_cmp(&a.explained_variance));
    Ok(check)
}

pub(super) fn encode(tokenizer: &Tokenizer, special: bool) -> Result<Vec<u32>> {
    let mut tokens = tokenizer.encode(TEXT, special)?;
    tokens.truncate(MAX_TOKENS);
    Ok(tokens)
}

/// The other sites at which an autoencoder may belong: its point at layers at most `near` away, and
/// other points of its layer.
fn other_sites(model: &Model, role: SaeRole, site: Site, near: usize) -> Vec<Site> {
    let program = model.program();
    let layers = 0..program.architecture().layers.len();
    let layers = layers.filter(|layer| site.layer.is_none_or(|own| layer.abs_diff(own) <= near));
    let same = layers.map(|layer| Site { layer: Some(layer), ..site });
    let points = [
        Point::MlpOut,
        Point::MlpOutPost,
        Point::ResidPre,
        Point::ResidMid,
        Point::ResidPost,
        Point::AttnOut,
        Point::AttnOutPost,
        Point::MlpIn,
        Point::MlpNormed,
        Point::Z,
    ];
    let points = if role == SaeRole::Transcoder { &points[..2] } else { &points[..] };
    let others = points.iter().map(|&point| Site { point, ..site });
    let mut seen: Vec<_> = program.edge_of(site).into_iter().collect();
    same.chain(others)
        .filter(|&site| {
            // Two names of one edge are one candidate.
            let edge = program.edge_of(site).filter(|edge| !seen.contains(edge));
            seen.extend(edge);
            edge.is_some()
        })
        .collect()
}

/// The activations of a site, `[tokens, width]`.
fn capture(model: &Model, tokens: &[u32], site: Site) -> Result<Vec<f32>> {
    Ok(capture_all(model, tokens, &[site])?.remove(&site).unwrap_or_default())
}

/// The activations of several sites in one run, `[tokens, width]` each. Sites that the model lacks
/// are left out.
pub(super) fn capture_all(model: &Model, tokens: &[u32], sites: &[Site]) -> Result<HashMap<Site, Vec<f32>>> {
    let known: BTreeSet<Site> = sites.iter().copied().filter(|&site| model.program().edge_of(site).is_some()).collect();
    let plan = Plan::of(known.iter().map(|site| Tap::new(site.to_string(), Action::Capture(None))));
    let run = model.run(&[tokens.to_vec()], &plan, &RunOptions::default())?;
    Ok(run.captures.into_iter().map(|capture| (capture.site, capture.array.values().to_vec())).collect())
}

/// Explained variance of `y` by the reconstructions from `x`.
fn explained(sae: &Sae, x: &[f32], y: &[f32]) -> f64 {
    let mut recon = vec![0.0; y.len()];
    sae.reconstruct(&Pool::global(), x, &mut recon);
    explained_variance(y, &recon, sae.d_out())
}

/// `1 − Σ‖y − recon‖² / Σ‖y − mean‖²` over tokens of a width.
pub(super) fn explained_variance(y: &[f32], recon: &[f32], width: usize) -> f64 {
    let tokens = (y.len() / width).max(1);
    let mut mean = vec![0.0_f64; width];
    for line in y.chunks_exact(width) {
        mean.iter_mut().zip(line).for_each(|(sum, &y)| *sum += f64::from(y) / tokens as f64);
    }
    let (mut error, mut variance) = (0.0, 0.0);
    for (line, recon) in y.chunks_exact(width).zip(recon.chunks_exact(width)) {
        for ((&y, &recon), mean) in line.iter().zip(recon).zip(&mean) {
            error += (f64::from(y) - f64::from(recon)).powi(2);
            variance += (f64::from(y) - mean).powi(2);
        }
    }
    1.0 - error / variance.max(f64::MIN_POSITIVE)
}

/// Mean number of active features of a token.
fn l0(sae: &Sae, x: &[f32]) -> f64 {
    let (pool, tokens) = (Pool::global(), x.len() / sae.d_in());
    let mut active = 0;
    // A few tokens at a time: features are many.
    for x in x.chunks(16 * sae.d_in()) {
        let mut acts = vec![0.0; x.len() / sae.d_in() * sae.n_features()];
        sae.encode(&pool, x, &mut acts);
        sae.activate(&pool, &mut acts);
        active += acts.iter().filter(|&&f| f != 0.0).count();
    }
    active as f64 / tokens.max(1) as f64
}

/// Subtracts its mean from each token.
fn center(x: &[f32], width: usize) -> Vec<f32> {
    let mut centered = x.to_vec();
    for token in centered.chunks_exact_mut(width) {
        let mean = token.iter().sum::<f32>() / width as f32;
        token.iter_mut().for_each(|x| *x -= mean);
    }
    centered
}
