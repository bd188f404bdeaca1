//! The frozen model: where sources write, and the taps that stop gradients.

use pellucid_engine::architecture::Layer;
use pellucid_engine::{Action, Error, Model, Point, Result, SaePart, Site, Splice, Tap};

/// A site whose activation is the sum of features and an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Source {
    pub site: Site,
    /// Its autoencoder; without one, the whole activation is the error.
    pub sae: Option<usize>,
    stop: Stop,
}

/// How gradients are stopped at a source.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    /// At the activation. An autoencoder that reads another site need not run.
    Activation,
    /// At the reconstruction: the autoencoder reads the activation itself, through which the
    /// gradient of its own features has to pass.
    Reconstruction,
    /// At the features: only the skip path of the transcoder passes.
    Features,
}

impl Source {
    /// The site with which the model continues.
    pub fn out(&self) -> Site {
        if self.sae.is_some() { self.site.sae(SaePart::Out) } else { self.site }
    }

    /// The tap without which the autoencoder is not part of the run, if it has to be.
    pub fn splice(&self) -> Option<Tap> {
        let spliced = Tap::new(self.site.to_string(), Action::Splice(Splice::ReconAndError));
        (self.stop != Stop::Activation).then_some(spliced)
    }

    /// The tap that stops gradients of a metric.
    pub fn stop(&self, metric: usize) -> Tap {
        let site = match self.stop {
            Stop::Activation => self.site,
            Stop::Reconstruction => self.site.sae(SaePart::Recon),
            Stop::Features => self.site.sae(SaePart::Acts),
        };
        Tap::zero(site.to_string()).of_gradient(metric)
    }
}

/// Returns the sources of a model in forward order: autoencoders, and the output of every MLP that
/// none reconstructs.
pub(super) fn sources(model: &Model) -> Result<Vec<Source>> {
    let (program, saes) = (model.program(), model.saes());
    check_frozen(model)?;
    let mut sources = Vec::new();
    for (index, attached) in saes.iter().enumerate() {
        let stop = match (&attached.sae.skip, attached.read == attached.write) {
            (Some(_), _) => Stop::Features,
            (None, true) => Stop::Reconstruction,
            (None, false) => Stop::Activation,
        };
        sources.push(Source { site: attached.write, sae: Some(index), stop });
    }
    let mlp_points = [Point::MlpOutPost, Point::MlpOut];
    for layer in 0..program.architecture().layers.len() {
        let own = |point: &Point| program.edge_of(Site::layer(layer, *point)).map(|_| Site::layer(layer, *point));
        let is_replaced = mlp_points.iter().any(|&point| saes.iter().any(|sae| sae.write == Site::layer(layer, point)));
        if let (false, Some(site)) = (is_replaced, mlp_points.iter().find_map(own)) {
            sources.push(Source { site, sae: None, stop: Stop::Activation });
        }
    }
    sources.sort_by_key(|source| (source.site.layer, source.site.point));
    Ok(sources)
}

/// The taps that stop gradients of a metric at attention weights, gates and the scales of norms.
pub(super) fn freeze(model: &Model, metric: usize) -> impl Iterator<Item = Tap> {
    let points = [Point::AttnProbs, Point::AttnGate, Point::AttnScale, Point::MlpScale, Point::FinalScale];
    let exists = |point: &Point| model.program().sites().any(|site| site.point == *point);
    let pattern = |point: Point| match point {
        Point::FinalScale => point.name().to_string(),
        _ => format!("layers.*.{}", point.name()),
    };
    let names: Vec<String> = points.into_iter().filter(exists).map(pattern).collect();
    names.into_iter().map(move |name| Tap::zero(name).of_gradient(metric))
}

/// Rejects models with nonlinear steps that have no site to freeze: the edges of their graph would
/// not be the effects of interventions.
fn check_frozen(model: &Model) -> Result<()> {
    let architecture = model.program().architecture();
    let saes = model.saes();
    if saes.is_empty() {
        return Err(Error::input("no autoencoder is attached", pellucid_engine::Remedy::AttachSae));
    }
    let refuse = |what: &str| {
        let problem = format!("an attribution graph of a {} model is not supported: {what}", architecture.family);
        Err(Error::input(problem, "attribute with `model_gradient` and `gradient_attribution` instead"))
    };
    if architecture.head.transform.is_some() || model.program().logits_edge().is_none() {
        return refuse("it has no plain unembedding");
    }
    for (index, layer) in architecture.layers.iter().enumerate() {
        if let Some(what) = nonlinear_step(layer) {
            return refuse(&format!("layer {index} has {what}"));
        }
        let is_before_post_norm = |sae: &&pellucid_engine::AttachedSae| sae.write == Site::layer(index, Point::MlpOut);
        if layer.mlp_post_norm.is_some() && saes.iter().any(|sae| is_before_post_norm(&sae)) {
            return refuse(&format!("layer {index} has a norm after `mlp_out`, which its transcoder reconstructs"));
        }
    }
    let mut layers: Vec<Option<usize>> = saes.iter().map(|sae| sae.write.layer).collect();
    layers.sort_unstable();
    if layers.windows(2).any(|pair| pair[0] == pair[1]) || layers.first() == Some(&None) {
        return Err(Error::input(
            "two autoencoders belong to one layer, or one to none",
            "attach one autoencoder per layer: a node of the graph is (layer, position, feature)",
        ));
    }
    Ok(())
}

/// A step of a layer, outside the MLP, that is not linear and that no tap can freeze.
fn nonlinear_step(layer: &Layer) -> Option<&'static str> {
    if layer.recurrence.is_some() || layer.shared.is_some() {
        return Some("a recurrence or a shared block");
    }
    if layer.attn_post_norm.is_some() {
        return Some("a norm after attention, whose scale is not a site");
    }
    if layer.attn_post_residual_norm.is_some() || layer.mlp_post_residual_norm.is_some() {
        return Some("a norm of the residual stream after a sublayer, whose scale is not a site");
    }
    let attention = layer.attention.as_ref()?;
    let steps = [
        (attention.latent.is_some(), "values from a normed latent"),
        (attention.experts.is_some(), "experts in its attention"),
        (attention.differential.is_some() || attention.out_norm.is_some(), "a norm of its heads' outputs"),
        (attention.clip.is_some(), "clipped queries, keys and values"),
    ];
    steps.into_iter().find(|(is_present, _)| *is_present).map(|(_, what)| what)
}
