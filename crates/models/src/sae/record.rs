//! Records of attached autoencoders: their sites, and the test of their reconstructions.

use super::SaeInfo;
use pellucid_engine::Site;
use serde::Serialize;

/// Unexplained variance at another site, as a fraction of that at the declared one, below which the
/// other site is taken for the right one.
const FAR_BETTER: f64 = 0.6;

/// The same fraction below which the other site is mentioned.
const BETTER: f64 = 0.9;

/// Explained variance that a site needs to be suggested.
const GOOD: f64 = 0.3;

/// An attached autoencoder as results record it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaeRecord {
    /// Its path, or `builtin`.
    pub path: String,
    /// The site that it reconstructs.
    #[serde(serialize_with = "as_text")]
    pub site: Site,
    /// From pre-activations to activations, such as `jumprelu`.
    pub kind: &'static str,
    /// Number of features.
    pub features: usize,
    /// The test of its reconstructions; `None` if it was left out.
    pub check: Option<SaeCheck>,
}

impl SaeRecord {
    /// The record of an autoencoder at the site that it reconstructs.
    pub(crate) fn new(info: &SaeInfo, site: Site, check: Option<SaeCheck>) -> SaeRecord {
        let path = info.path.display().to_string();
        SaeRecord { path, site, kind: info.kind, features: info.n_features, check }
    }
}

/// Reconstructions of a short text by an autoencoder at a site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaeCheck {
    /// The site that it reconstructs.
    #[serde(serialize_with = "as_text")]
    pub site: Site,
    /// Number of tokens; the first of the text is left out.
    pub tokens: usize,
    /// `1 − Σ‖x − x̂‖² / Σ‖x − mean‖²`.
    pub explained_variance: f64,
    /// Mean number of active features of a token.
    pub l0: f64,
    /// The number that its files declare.
    pub declared_l0: Option<f64>,
    /// Explained variance under other assumptions, best first; empty if the site explains enough.
    pub tried: Vec<Tried>,
}

/// An assumption other than the declared one, and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// The assumption: another site, centered activations, or no BOS token.
    pub assumption: String,
    /// The explained variance.
    pub explained_variance: f64,
}

fn as_text<S: serde::Serializer>(site: &Site, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(site)
}

impl SaeCheck {
    /// The best other assumption, if its unexplained variance is below a fraction of ours.
    fn better(&self, fraction: f64) -> Option<&Tried> {
        let unexplained = (1.0 - self.explained_variance) * fraction;
        self.tried.first().filter(|best| best.explained_variance > GOOD && 1.0 - best.explained_variance < unexplained)
    }

    /// A remark about a better site for an autoencoder that is not refused, if there is one.
    pub fn warning(&self) -> Option<String> {
        let best = self.better(BETTER)?;
        Some(format!(
            "explained variance {:.2} at {}, but {:.2} {}: is this the right site?",
            self.explained_variance, self.site, best.explained_variance, best.assumption
        ))
    }

    /// Why the autoencoder is refused; `None` if it fits.
    pub fn problem(&self) -> Option<String> {
        let best = self.tried.first().filter(|tried| tried.explained_variance > GOOD);
        if self.explained_variance > 0.0 && self.better(FAR_BETTER).is_none() {
            return None;
        }
        let here = format!("explained variance {:.2} at {}", self.explained_variance, self.site);
        Some(match best {
            Some(best) => format!("{here}; {:.2} {}", best.explained_variance, best.assumption),
            None => {
                let tried: Vec<&str> = self.tried.iter().map(|tried| tried.assumption.as_str()).collect();
                format!(
                    "{here}, worse than the mean of the activations; no better: {}. Is it made for this model and \
                     revision?",
                    tried.join(", ")
                )
            }
        })
    }
}
