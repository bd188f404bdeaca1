//! Attaches the sparse autoencoders that the arguments name.

use crate::args::{ModelArgs, PlanArgs};
use crate::commands::say;
use crate::failure::Failure;
use pellucid_engine::{Action, Splice, Tap};
use pellucid_models::LoadedModel;
use pellucid_models::sae::{AttachOptions, SaeCheck, read_named_sae};

/// Attaches the autoencoders of `--sae PATH[@SITE]`, and reports how well each reconstructs.
pub fn attach(loaded: &mut LoadedModel, args: &ModelArgs) -> Result<(), Failure> {
    for spec in &args.sae {
        // A path may contain `@` itself.
        let (path, site) = match spec.rsplit_once('@') {
            Some((path, site)) if !std::path::Path::new(spec).exists() => (path, Some(site.to_string())),
            _ => (spec.as_str(), None),
        };
        let sae = read_named_sae(path)?;
        let features = sae.sae.n_features();
        let check = loaded.attach_sae(&sae, &AttachOptions { site, unchecked: args.unchecked })?;
        let attached = loaded.model.saes().last().map(|attached| attached.write.to_string()).unwrap_or_default();
        let quality = check.map_or("not tested".into(), |check| describe(&check));
        say(&format!("{path}: {features} features at {attached}, {quality}"));
    }
    Ok(())
}

fn describe(check: &SaeCheck) -> String {
    let declared = check.declared_l0.map_or(String::new(), |l0| format!(" (declared {l0:.1})"));
    format!(
        "explained variance {:.2}, {:.1} active{declared} on {} tokens",
        check.explained_variance, check.l0, check.tokens
    )
}

/// Returns the taps of `--splice`: one for each attached autoencoder.
pub fn splice_taps(loaded: &LoadedModel, args: &PlanArgs) -> Result<Vec<Tap>, Failure> {
    if !args.splice {
        return Ok(Vec::new());
    }
    if loaded.model.saes().is_empty() {
        return Err(Failure::usage("--splice: no SAE is attached", "attach one with --sae PATH"));
    }
    let how = if args.error_term { Splice::ReconAndError } else { Splice::Recon };
    let sites = loaded.model.saes().iter().map(|attached| attached.write.to_string());
    Ok(sites.map(|site| Tap::new(site, Action::Splice(how))).collect())
}
