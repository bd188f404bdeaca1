//! Computes the graph of a prompt.

use super::frozen::{Source, freeze, sources};
use super::influence::{influence, normalize_rows};
use super::{ActiveFeature, AttributionGraph, GraphOptions, Target, Targets};
use pellucid_engine::plan::{Combine, Expr, Fold};
use pellucid_engine::program::OpKind;
use pellucid_engine::{
    Action, Array, Error, Interrupt, Model, Plan, Point, Reduce, Result, RunOptions, SaePart, Site, Tap,
};

/// Batches of features between two rankings of the features that are still to come.
const BATCHES_PER_RANKING: usize = 4;
/// Smallest probability of a target that is a direction, so that its influence does not vanish.
const MIN_TARGET_PROBABILITY: f32 = 1e-6;

/// Computes the attribution graph of a prompt.
///
/// # Errors
/// If no autoencoder is attached, or the model has a step that cannot be frozen.
pub fn attribute(
    model: &Model,
    tokens: &[u32],
    targets: &Targets,
    options: &GraphOptions,
    interrupt: Option<Interrupt>,
) -> Result<AttributionGraph> {
    let prompt = Prompt::new(model, tokens, options.skip_positions, interrupt)?;
    let (targets, vectors) = prompt.targets(targets, options)?;
    let directions: Vec<Metric> = vectors.iter().map(|vector| Metric::Direction(vector)).collect();
    let width = prompt.n_sources() + targets.len();
    // For each node of the whole graph, with all active features, its edges; features as they come.
    let mut edges: Vec<Vec<f32>> = vec![Vec::new(); width];
    for (batch, first) in directions.chunks(options.batch.max(1)).zip((prompt.n_sources()..).step_by(options.batch)) {
        for (index, row) in prompt.rows(batch)?.into_iter().enumerate() {
            edges[first + index] = row;
        }
    }
    let mut weights = vec![0.0; prompt.n_sources()];
    weights.extend(targets.iter().map(|target| target.probability));
    let budget = options.max_features.min(prompt.features.len());
    let mut selected: Vec<usize> = Vec::with_capacity(budget);
    while selected.len() < budget {
        let left = (budget - selected.len()).min(BATCHES_PER_RANKING * options.batch.max(1));
        let next = match budget == prompt.features.len() {
            true => (selected.len()..selected.len() + left).collect(),
            false => most_influential(&edges, &weights, prompt.features.len(), left),
        };
        for batch in next.chunks(options.batch.max(1)) {
            let metrics: Vec<Metric> = batch.iter().map(|&node| Metric::Feature(prompt.features[node])).collect();
            for (&node, row) in batch.iter().zip(prompt.rows(&metrics)?) {
                edges[node] = row;
            }
        }
        selected.extend(next);
    }
    selected.sort_unstable();
    let nodes: Vec<usize> = selected.iter().copied().chain(prompt.features.len()..width).collect();
    let restrict = |node: &usize| match edges[*node].is_empty() {
        true => Vec::new(),
        false => nodes.iter().map(|&source| edges[*node].get(source).copied().unwrap_or(0.0)).collect(),
    };
    Ok(AttributionGraph {
        selected,
        error_sites: prompt.sources.iter().map(|source| source.site).collect(),
        positions: tokens.len(),
        targets,
        edges: nodes.iter().map(restrict).collect(),
        features: prompt.features,
    })
}

/// The features of most influence among those without edges yet, given the edges so far.
fn most_influential(edges: &[Vec<f32>], weights: &[f32], n_features: usize, count: usize) -> Vec<usize> {
    let influence = influence(&normalize_rows(edges, true), weights);
    let mut rest: Vec<usize> = (0..n_features).filter(|&node| edges[node].is_empty()).collect();
    rest.sort_by(|&a, &b| influence[b].total_cmp(&influence[a]).then(a.cmp(&b)));
    rest.truncate(count);
    rest
}

/// A quantity whose edges are computed.
enum Metric<'a> {
    /// The pre-activation of a feature at its position.
    Feature(ActiveFeature),
    /// The component of the unembedding's input at the last position along a direction.
    Direction(&'a [f32]),
}

/// A prompt with everything that its edges are computed from.
struct Prompt<'a> {
    model: &'a Model,
    tokens: &'a [u32],
    options: RunOptions,
    sources: Vec<Source>,
    features: Vec<ActiveFeature>,
    /// For each source its errors, `[positions, width]`.
    errors: Vec<Array>,
    /// The residual stream that enters the first layer, `[positions, width]`.
    embeddings: Array,
    /// Logits at the last position.
    logits: Vec<f32>,
}

const EMBEDDINGS: Site = Site { layer: Some(0), point: Point::ResidPre, sae: None };

impl<'a> Prompt<'a> {
    fn new(model: &'a Model, tokens: &'a [u32], skip: usize, interrupt: Option<Interrupt>) -> Result<Prompt<'a>> {
        let sources = sources(model)?;
        let options = RunOptions { interrupt, ..RunOptions::default() };
        let mut plan = Plan::of([Tap::capture("logits").last(), Tap::capture(EMBEDDINGS.to_string())]);
        for source in &sources {
            match source.sae {
                Some(_) => {
                    let acts = source.site.sae(SaePart::Acts).to_string();
                    plan.taps.push(Tap::new(acts, Action::Capture(Some(Reduce::Sparse))));
                    plan.taps.push(Tap::capture(source.site.sae(SaePart::Error).to_string()));
                }
                None => plan.taps.push(Tap::capture(source.site.to_string())),
            }
        }
        let run = model.run(&[tokens.to_vec()], &plan, &options)?;
        let mut captures = run.captures.into_iter();
        let mut next = || captures.next().ok_or_else(|| Error::Internal("a capture is missing".into()));
        let (logits, embeddings) = (next()?.array.values().to_vec(), next()?.array);
        let (mut features, mut errors) = (Vec::new(), Vec::new());
        for source in &sources {
            if let Some(sae) = source.sae {
                let capture = next()?;
                let rows = capture.sparse.ok_or_else(|| Error::Internal("a capture is not sparse".into()))?;
                for position in skip..rows.rows() {
                    for element in rows.row(position) {
                        let (feature, activation) = (rows.indices[element] as usize, capture.array.values()[element]);
                        let layer = source.site.layer.unwrap_or(0);
                        features.push(ActiveFeature { sae, layer, position, feature, activation });
                    }
                }
            }
            let error = next()?.array;
            let mut values = error.values().to_vec();
            let width = values.len() / tokens.len();
            values[..skip.min(tokens.len()) * width].fill(0.0);
            errors.push(Array::new(error.shape().to_vec(), values));
        }
        Ok(Prompt { model, tokens, options, sources, features, errors, embeddings, logits })
    }

    /// Number of nodes that are not targets.
    fn n_sources(&self) -> usize {
        self.features.len() + (self.sources.len() + 1) * self.tokens.len()
    }

    /// The targets, with the directions of the unembedding's input that they read.
    fn targets(&self, targets: &Targets, options: &GraphOptions) -> Result<(Vec<Target>, Vec<Vec<f32>>)> {
        let tokens = match targets {
            Targets::Direction { vector, tokens } => {
                let sum: f32 = tokens.iter().map(|&token| probability(&self.logits, token)).sum();
                let mean = if tokens.is_empty() { 1.0 } else { sum / tokens.len() as f32 };
                let probability = mean.max(MIN_TARGET_PROBABILITY);
                return Ok((vec![Target { token: None, probability }], vec![vector.clone()]));
            }
            Targets::Likely => likely(&self.logits, options),
            Targets::Tokens(tokens) => tokens.clone(),
        };
        let (rows, mean) = unembedding_rows(self.model, &tokens)?;
        let demeaned = |row: Vec<f32>| row.iter().zip(&mean).map(|(x, mean)| x - mean).collect();
        let target = |token: &u32| Target { token: Some(*token), probability: probability(&self.logits, *token) };
        Ok((tokens.iter().map(target).collect(), rows.into_iter().map(demeaned).collect()))
    }

    /// The edges of some targets from all features, errors and tokens: one forward pass, and one
    /// backward pass each.
    fn rows(&self, metrics: &[Metric]) -> Result<Vec<Vec<f32>>> {
        let mut plan = Plan::default();
        for metric in metrics {
            let read = match metric {
                Metric::Feature(node) => {
                    let pre = self.model.saes()[node.sae].write.sae(SaePart::Pre);
                    plan.read(Tap::read(pre.to_string()).positions(node.position as i64).units([node.feature]))
                }
                Metric::Direction(vector) => {
                    let read = plan.read(Tap::read(self.unembedding_input().to_string()).last());
                    let direction = plan.value(Expr::Constant(Array::new(vec![vector.len()], vector.to_vec())));
                    plan.value(Expr::Combine(Combine::Mul, read, direction))
                }
            };
            let sum = plan.value(Expr::Fold { of: read, how: Fold::Sum, axis: None, keep: false });
            let metric = plan.value(Expr::Row { of: sum, row: 0 });
            plan.add_metric(metric);
        }
        plan.taps.extend(self.sources.iter().filter_map(Source::splice));
        let mut first = Vec::with_capacity(metrics.len());
        for metric in 0..metrics.len() {
            plan.taps.extend(freeze(self.model, metric));
            // The backward pass meets the taps of a site from last to first: it captures, then
            // stops.
            plan.taps.extend(self.sources.iter().map(|source| source.stop(metric)));
            first.push(plan.taps.len());
            let sites = self.sources.iter().map(Source::out).chain([EMBEDDINGS]);
            plan.taps.extend(sites.map(|site| Tap::capture(site.to_string()).of_gradient(metric)));
        }
        let run = self.model.run(&[self.tokens.to_vec()], &plan, &self.options)?;
        let mut rows = Vec::with_capacity(metrics.len());
        for first in first {
            let mut gradients: Vec<Gradients> = vec![Gradients::default(); self.sources.len() + 1];
            for capture in run.captures.iter().filter(|capture| capture.tap >= first) {
                let Some(own) = gradients.get_mut(capture.tap - first) else { continue };
                let width = capture.array.len() / capture.positions.len().max(1);
                own.0 = vec![Vec::new(); self.tokens.len()];
                for (&position, line) in capture.positions.iter().zip(capture.array.values().chunks_exact(width)) {
                    own.0[position] = line.to_vec();
                }
            }
            rows.push(self.contract(&gradients));
        }
        Ok(rows)
    }

    /// The edges of one target, from the gradients at each source and at the embeddings.
    fn contract(&self, gradients: &[Gradients]) -> Vec<f32> {
        let mut row = Vec::with_capacity(self.n_sources());
        let source_of = |sae: usize| self.sources.iter().position(|source| source.sae == Some(sae));
        for node in &self.features {
            let attached = &self.model.saes()[node.sae];
            let mut scratch = vec![0.0; attached.sae.d_out()];
            // Decoder k of a cross-layer transcoder writes the k-th layer after its own.
            let decoded = attached.sae.decoders.iter().enumerate().map(|(later, decoder)| {
                let gradient = source_of(node.sae + later).and_then(|source| gradients[source].at(node.position));
                gradient.map_or(0.0, |gradient| decoder.dot_row(node.feature, gradient, &mut scratch))
            });
            row.push(node.activation * decoded.sum::<f32>());
        }
        let vectors = self.errors.iter().chain([&self.embeddings]);
        for (vectors, gradients) in vectors.zip(gradients) {
            let width = vectors.len() / self.tokens.len();
            for (position, vector) in vectors.values().chunks_exact(width).enumerate() {
                row.push(gradients.at(position).map_or(0.0, |gradient| dot(vector, gradient)));
            }
        }
        row
    }

    fn unembedding_input(&self) -> Site {
        let program = self.model.program();
        match program.architecture().final_norm {
            Some(_) => Site::model(Point::FinalNorm),
            None => {
                let last = Site::layer(program.architecture().layers.len() - 1, Point::ResidPost);
                let spliced = last.sae(SaePart::Out);
                if program.edge_of(spliced).is_some() { spliced } else { last }
            }
        }
    }
}

/// Gradients at a site, for each position; empty where there are none.
#[derive(Clone, Default)]
struct Gradients(Vec<Vec<f32>>);

impl Gradients {
    fn at(&self, position: usize) -> Option<&[f32]> {
        self.0.get(position).map(Vec::as_slice).filter(|gradient| !gradient.is_empty())
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// The smallest set of most probable tokens that reaches the threshold.
fn likely(logits: &[f32], options: &GraphOptions) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let mut sum = 0.0;
    let mut count = 0;
    for &token in order.iter().take(options.max_logits.max(1)) {
        sum += probability(logits, token);
        count += 1;
        if sum >= options.logit_threshold {
            break;
        }
    }
    order.truncate(count);
    order
}

/// Softmax probability of a token.
fn probability(logits: &[f32], token: u32) -> f32 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let own = logits.get(token as usize).map_or(0.0, |&x| f64::from(x - max).exp());
    (own / sum) as f32
}

/// Returns rows of the unembedding, and the mean of all its rows.
///
/// # Errors
/// If the model has no unembedding, or a token is not in its vocabulary.
pub fn unembedding_rows(model: &Model, tokens: &[u32]) -> Result<(Vec<Vec<f32>>, Vec<f32>)> {
    let program = model.program();
    let op = program.edge_of(Site::model(Point::LmHead)).map(|edge| &program.ops()[program.edge(edge).producer].kind);
    let Some(OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. }) = op else {
        return Err(Error::input("this model has no unembedding", "use a model with a language modeling head"));
    };
    let matrix = model.weights().matrix(linear.weight);
    let mut line = vec![0.0; matrix.cols()];
    let mut mean = vec![0.0_f64; matrix.cols()];
    for row in 0..matrix.rows() {
        matrix.row(row, &mut line);
        mean.iter_mut().zip(&line).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    let mean = mean.iter().map(|sum| (sum / matrix.rows() as f64) as f32).collect();
    let mut rows = Vec::with_capacity(tokens.len());
    for &token in tokens {
        if token as usize >= matrix.rows() {
            let problem = format!("token {token} is not in the unembedding's vocabulary of {}", matrix.rows());
            return Err(Error::input(problem, "choose another token"));
        }
        matrix.row(token as usize, &mut line);
        rows.push(line.clone());
    }
    Ok((rows, mean))
}
