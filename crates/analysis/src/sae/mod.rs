//! Analyses of attached sparse autoencoders: quality on a corpus, features of a prompt, strongest
//! examples of a feature.

mod corpus;
mod eval;
mod features;
mod html;
mod terminal;
mod top;

pub use corpus::read_texts;
pub use eval::{EvalOptions, Losses, SaeEval, evaluate};
pub use features::{FeatureTable, FiringFeature, TokenFeatures, features};
pub use html::{examples_html, features_html};
pub use terminal::{eval_text, examples_text, features_text};
pub use top::{Example, top_examples};

use pellucid_engine::{Error, Model, Result, Site};

/// Returns the site of the attached autoencoder: the only one, or the one at `site`.
pub fn attached_site(model: &Model, site: Option<&str>) -> Result<Site> {
    let all: Vec<Site> = model.saes().iter().map(|attached| attached.write).collect();
    let named = site.map(|text| model.find(text)).transpose()?;
    let found = match (&all[..], &named) {
        ([one], None) => Some(*one),
        (_, Some(named)) => all.iter().copied().find(|site| named.sites.contains(site)),
        _ => None,
    };
    found.ok_or_else(|| match all.is_empty() {
        true => Error::input("no SAE is attached", pellucid_engine::Remedy::AttachSae),
        false => {
            let names: Vec<String> = all.iter().map(Site::to_string).collect();
            Error::input("it is not clear which SAE is meant", format!("name one of the sites {}", names.join(", ")))
        }
    })
}
