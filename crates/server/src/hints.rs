//! Remedies of errors, worded for clients of the HTTP API.

use pellucid_engine::Remedy;

/// Words a remedy: routes and fields instead of names of the Rust API.
pub fn word(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Text(text) => text.clone(),
        Remedy::ListSites => "GET /v1/sites lists the sites of a model".into(),
        Remedy::Unchecked | Remedy::NameSaeSite | Remedy::AttachSae => {
            "start the server with --sae PATH[@SITE] to attach an SAE".into()
        }
        Remedy::RaiseMemoryLimit => {
            "use fewer or shorter rows or captures, or start the server with a higher --memory-limit".into()
        }
        Remedy::AttachAdapter | Remedy::MergeAdapter { .. } => {
            "start the server with the adapter: --adapter NAME=DIR".into()
        }
        Remedy::ReplaceStore => "choose another output path".into(),
        Remedy::DidYouMean(names) => {
            format!("did you mean {}? GET /v1/sites lists them all", Remedy::quote(names))
        }
        Remedy::SiteShapes(rule) => format!("{rule}; GET /v1/sites shows each site's shape"),
        Remedy::GenerationOptions => "/openapi.json describes the fields".into(),
        Remedy::PromptTokens => "choose a token of the prompt; POST /tokenize lists them".into(),
        Remedy::GiveTokenIds => "give token ids: this model has no tokenizer".into(),
        Remedy::DropChat => "use /v1/completions, or start the server with --chat-template F.jinja".into(),
        Remedy::GiveChat => "give `messages`, or give positions as numbers".into(),
        Remedy::Assume { .. }
        | Remedy::AssumeShort { .. }
        | Remedy::DropAssume(_)
        | Remedy::GiveModelPath
        | Remedy::UseAdapter { .. }
        | Remedy::Pull(_)
        | Remedy::PullAgain(_)
        | Remedy::PullBase(_) => "start the server with a model that loads; `pellucid inspect` checks one".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_remedy_is_worded_without_names_of_the_rust_api() {
        for remedy in Remedy::examples() {
            let text = word(&remedy);
            assert!(!text.is_empty() && !text.contains("::"), "{text}");
        }
    }
}
