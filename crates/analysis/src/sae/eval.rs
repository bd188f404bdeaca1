//! Quality of an autoencoder on a corpus: reconstruction, sparsity, and the model's loss with the
//! reconstruction spliced in.

use pellucid_engine::{Action, Model, Operand, Plan, Result, RunOptions, SaePart, Site, Splice, Tap};
use serde::Serialize;

/// A feature that fires at more than this fraction of tokens is dense.
const DENSE: f64 = 0.1;

/// Options of [`evaluate`].
#[derive(Clone, Debug, Default)]
pub struct EvalOptions {
    /// Tokens that are left out of all averages, such as the BOS token. Their activations are not
    /// replaced.
    pub ignored: Vec<u32>,
}

/// Quality of an autoencoder. Averages are over tokens that are not ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SaeEval {
    /// The site that it reconstructs.
    pub site: String,
    /// Number of texts.
    pub texts: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// Mean number of active features.
    pub l0: f64,
    /// Mean sum of activations.
    pub l1: f64,
    /// `1 − Σ‖x − x̂‖² / Σ‖x − mean‖²`.
    pub explained_variance: f64,
    /// Mean of `‖x − x̂‖²`, summed over channels.
    pub mse: f64,
    /// Mean cosine of `x` and `x̂`.
    pub cosine: f64,
    /// Mean of `‖x‖`.
    pub l2_norm_in: f64,
    /// Mean of `‖x̂‖`.
    pub l2_norm_out: f64,
    /// Mean of `‖x̂‖ / ‖x‖`; below 1, reconstructions shrink.
    pub l2_ratio: f64,
    /// `mean ‖x̂‖² / mean (x · x̂)`; 1 means no shrinkage.
    pub relative_reconstruction_bias: f64,
    /// Next-token loss in nats, and divergence from the plain model.
    pub losses: Losses,
    /// Features that never fire.
    pub dead: usize,
    /// Features that fire at more than a tenth of all tokens.
    pub dense: usize,
    /// For each feature the fraction of tokens at which it fires.
    pub density: Vec<f64>,
}

/// Losses of the model with its activations replaced.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Losses {
    /// Cross-entropy of the plain model.
    pub ce_plain: f64,
    /// With the reconstruction.
    pub ce_spliced: f64,
    /// With zeros.
    pub ce_zero_ablated: f64,
    /// With the mean activation of the corpus.
    pub ce_mean_ablated: f64,
    /// `(ce_zero_ablated − ce_spliced) / (ce_zero_ablated − ce_plain)`: 1 is as good as the plain
    /// model, 0 as bad as zeros.
    pub ce_recovered: f64,
    /// Divergence from the plain model with the reconstruction, in nats.
    pub kl_spliced: f64,
    /// With zeros.
    pub kl_zero_ablated: f64,
    /// With the mean activation.
    pub kl_mean_ablated: f64,
    /// `(kl_zero_ablated − kl_spliced) / kl_zero_ablated`.
    pub kl_recovered: f64,
}

/// Evaluates the autoencoder attached at `site` on rows of tokens. `progress` receives the fraction
/// done.
pub fn evaluate(
    model: &Model,
    site: Site,
    rows: &[Vec<u32>],
    options: &EvalOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<SaeEval> {
    let mut sums = Sums::default();
    let mut losses = LossSums::default();
    let steps = (2 * rows.len()) as f32;
    for (index, row) in rows.iter().enumerate() {
        sums.add_row(model, site, row, &options.ignored)?;
        progress(index as f32 / steps);
    }
    let mean = sums.mean();
    for (index, row) in rows.iter().enumerate() {
        losses.add_row(model, site, row, &options.ignored, &mean)?;
        progress((rows.len() + index) as f32 / steps);
    }
    let mut eval = sums.finish(site, rows.len());
    eval.losses = losses.finish();
    Ok(eval)
}

/// Positions whose token is not ignored.
fn kept(row: &[u32], ignored: &[u32]) -> Vec<usize> {
    (0..row.len()).filter(|&position| !ignored.contains(&row[position])).collect()
}

/// Sums over tokens, in f64.
#[derive(Default)]
struct Sums {
    tokens: usize,
    x: Vec<f64>,
    squares: f64,
    residual: f64,
    output_squares: f64,
    products: f64,
    cosine: f64,
    norm_in: f64,
    norm_out: f64,
    ratio: f64,
    active: usize,
    l1: f64,
    firings: Vec<usize>,
}

impl Sums {
    fn add_row(&mut self, model: &Model, site: Site, row: &[u32], ignored: &[u32]) -> Result<()> {
        let sites = [site, site.sae(SaePart::Recon), site.sae(SaePart::Acts)];
        let plan = Plan::of(sites.map(|site| Tap::new(site.to_string(), Action::Capture(None))));
        let run = model.run(&[row.to_vec()], &plan, &RunOptions::default())?;
        let [x, recon, acts] = &run.captures[..] else { unreachable!("one capture for each tap and row") };
        let tokens = row.len();
        let (width, features) = (x.array.values().len() / tokens, acts.array.values().len() / tokens);
        self.x.resize(width, 0.0);
        self.firings.resize(features, 0);
        for position in kept(row, ignored) {
            let x = &x.array.values()[position * width..][..width];
            let recon = &recon.array.values()[position * width..][..width];
            self.add_token(x, recon);
            for (feature, &value) in acts.array.values()[position * features..][..features].iter().enumerate() {
                if value != 0.0 {
                    self.firings[feature] += 1;
                    self.active += 1;
                    self.l1 += f64::from(value.abs());
                }
            }
        }
        Ok(())
    }

    fn add_token(&mut self, x: &[f32], recon: &[f32]) {
        let (mut xx, mut rr, mut xr) = (0.0, 0.0, 0.0);
        for ((sum, &x), &recon) in self.x.iter_mut().zip(x).zip(recon) {
            let (x, recon) = (f64::from(x), f64::from(recon));
            *sum += x;
            xx += x * x;
            rr += recon * recon;
            xr += x * recon;
            self.residual += (x - recon) * (x - recon);
        }
        self.tokens += 1;
        self.squares += xx;
        self.output_squares += rr;
        self.products += xr;
        self.cosine += xr / (xx.sqrt() * rr.sqrt()).max(f64::MIN_POSITIVE);
        self.norm_in += xx.sqrt();
        self.norm_out += rr.sqrt();
        self.ratio += rr.sqrt() / if xx.sqrt() < 1e-4 { 1.0 } else { xx.sqrt() };
    }

    fn mean(&self) -> Vec<f32> {
        self.x.iter().map(|sum| (sum / self.tokens.max(1) as f64) as f32).collect()
    }

    fn finish(&self, site: Site, texts: usize) -> SaeEval {
        let tokens = self.tokens.max(1) as f64;
        let mean_square = self.x.iter().map(|sum| (sum / tokens).powi(2)).sum::<f64>();
        let variance = self.squares / tokens - mean_square;
        let density: Vec<f64> = self.firings.iter().map(|&count| count as f64 / tokens).collect();
        SaeEval {
            site: site.to_string(),
            texts,
            tokens: self.tokens,
            l0: self.active as f64 / tokens,
            l1: self.l1 / tokens,
            explained_variance: 1.0 - self.residual / tokens / variance.max(f64::MIN_POSITIVE),
            mse: self.residual / tokens,
            cosine: self.cosine / tokens,
            l2_norm_in: self.norm_in / tokens,
            l2_norm_out: self.norm_out / tokens,
            l2_ratio: self.ratio / tokens,
            relative_reconstruction_bias: self.output_squares / self.products,
            losses: Losses::default(),
            dead: self.firings.iter().filter(|&&count| count == 0).count(),
            dense: density.iter().filter(|&&density| density > DENSE).count(),
            density,
        }
    }
}

/// Sums of losses: of the plain model, spliced, zero-ablated, mean-ablated.
#[derive(Default)]
struct LossSums {
    /// Predicted tokens that are not ignored.
    predicted: usize,
    /// Positions that are not ignored.
    positions: usize,
    ce: [f64; 4],
    kl: [f64; 4],
}

impl LossSums {
    fn add_row(&mut self, model: &Model, site: Site, row: &[u32], ignored: &[u32], mean: &[f32]) -> Result<()> {
        let positions = kept(row, ignored);
        let name = site.to_string();
        let at = |action: Action| {
            Tap::new(&name, action).positions(positions.iter().map(|&position| position as i64).collect::<Vec<i64>>())
        };
        let everywhere = |action: Action| Tap::new(&name, action);
        let changes = [
            None,
            Some(at(Action::Splice(Splice::Recon))),
            Some(everywhere(Action::Zero)),
            Some(everywhere(Action::Set(Operand::Vector(mean.to_vec())))),
        ];
        let mut plain: Option<Vec<Vec<f64>>> = None;
        for (index, change) in changes.into_iter().enumerate() {
            let plan = Plan::of(change.into_iter().chain([Tap::new("logits", Action::Capture(None))]));
            let run = model.run(&[row.to_vec()], &plan, &RunOptions::default())?;
            let logits = run.captures[0].array.values();
            let vocab = logits.len() / row.len();
            let logprobs: Vec<Vec<f64>> = logits.chunks_exact(vocab).map(log_softmax).collect();
            for &position in &positions {
                if let Some(&next) = row.get(position + 1) {
                    self.ce[index] -= logprobs[position][next as usize];
                }
                if let Some(plain) = &plain {
                    self.kl[index] += divergence(&plain[position], &logprobs[position]);
                }
            }
            plain.get_or_insert(logprobs);
        }
        self.predicted += positions.iter().filter(|&&position| position + 1 < row.len()).count();
        self.positions += positions.len();
        Ok(())
    }

    fn finish(&self) -> Losses {
        let [plain, spliced, zero, mean] = self.ce.map(|sum| sum / self.predicted.max(1) as f64);
        let [_, kl_spliced, kl_zero, kl_mean] = self.kl.map(|sum| sum / self.positions.max(1) as f64);
        Losses {
            ce_plain: plain,
            ce_spliced: spliced,
            ce_zero_ablated: zero,
            ce_mean_ablated: mean,
            ce_recovered: (zero - spliced) / (zero - plain),
            kl_spliced,
            kl_zero_ablated: kl_zero,
            kl_mean_ablated: kl_mean,
            kl_recovered: (kl_zero - kl_spliced) / kl_zero,
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

/// Divergence of `new` from `plain`, in nats.
fn divergence(plain: &[f64], new: &[f64]) -> f64 {
    plain.iter().zip(new).map(|(p, q)| if p.is_finite() { p.exp() * (p - q) } else { 0.0 }).sum()
}
