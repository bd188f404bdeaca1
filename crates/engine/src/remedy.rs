//! What the user can do about an error, as data that each front end words for its user.

use std::fmt;

/// What the user can do about an error.
///
/// The crate that reports an error does not know its reader. The remedy may be a flag on the
/// command line, an argument in Python and a field in Rust, so each such remedy is a variant, and
/// each front end words it (`hints.rs` of the command line and of the Python bindings).
/// [`fmt::Display`] words it for Rust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// A text that names no command, flag or function of Pellucid.
    Text(String),
    /// List the sites of the model.
    ListSites,
    /// Attach a sparse autoencoder to the model first.
    AttachSae,
    /// Attach the autoencoder without testing it.
    Unchecked,
    /// Name the site of the autoencoder.
    NameSaeSite,
    /// Ask for less, or raise the limit on memory.
    RaiseMemoryLimit,
    /// Replace the existing store, or write to another directory.
    ReplaceStore,
    /// Use one of these sites, whose names are similar to the one that does not exist.
    DidYouMean(Vec<String>),
    /// Look up the shapes of the sites, after a rule about shapes.
    SiteShapes(&'static str),
    /// Look up the options of generation.
    GenerationOptions,
    /// Choose a token that occurs in the prompt.
    PromptTokens,
    /// Give token ids instead of text, or add a tokenizer.
    GiveTokenIds,
    /// Give the prompt as text: the model has no chat template.
    DropChat,
    /// Give the prompt as a chat: positions name its messages.
    GiveChat,
    /// Run the model as a native family that fits it.
    Assume {
        /// The family.
        family: String,
        /// A sentence about another family that fits.
        also: Option<String>,
    },
    /// The short form of [`Remedy::Assume`], which follows the family's name.
    AssumeShort {
        /// The family.
        family: String,
    },
    /// Name no family. Holds the rest of the sentence, from the punctuation on.
    DropAssume(&'static str),
    /// Give a model; inspect the path to learn what it contains.
    GiveModelPath,
    /// Load the base model and merge the adapter into it. The error names the base model.
    UseAdapter {
        /// Name or path of the base model, if the adapter names it.
        base: Option<String>,
        /// Path of the adapter.
        adapter: String,
    },
    /// Attach an adapter to the model first.
    AttachAdapter,
    /// Merge the adapter into the weights when the model is loaded.
    MergeAdapter {
        /// Path of the adapter.
        adapter: String,
    },
    /// Pull this model first.
    Pull(String),
    /// Pull this model again.
    PullAgain(String),
    /// Pull this base model, or add its tokenizer.
    PullBase(String),
}

impl Remedy {
    /// Names sites as [`Remedy::DidYouMean`] shows them: quoted, with commas.
    pub fn quote(names: &[String]) -> String {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }

    /// One remedy of each variant, with and without its optional parts, for tests of the wordings.
    #[doc(hidden)]
    pub fn examples() -> Vec<Remedy> {
        let adapter = || "lora".to_owned();
        vec![
            Remedy::Text("check its permissions".into()),
            Remedy::ListSites,
            Remedy::AttachSae,
            Remedy::Unchecked,
            Remedy::NameSaeSite,
            Remedy::RaiseMemoryLimit,
            Remedy::ReplaceStore,
            Remedy::DidYouMean(vec!["layers.0.z".into(), "layers.1.z".into()]),
            Remedy::SiteShapes("shapes broadcast as in numpy"),
            Remedy::GenerationOptions,
            Remedy::PromptTokens,
            Remedy::GiveTokenIds,
            Remedy::DropChat,
            Remedy::GiveChat,
            Remedy::Assume { family: "llama".into(), also: None },
            Remedy::Assume { family: "llama".into(), also: Some("`granite` fits too".into()) },
            Remedy::AssumeShort { family: "llama".into() },
            Remedy::DropAssume(", or map the type to another family"),
            Remedy::GiveModelPath,
            Remedy::UseAdapter { base: None, adapter: adapter() },
            Remedy::UseAdapter { base: Some("owner/base".into()), adapter: adapter() },
            Remedy::AttachAdapter,
            Remedy::MergeAdapter { adapter: adapter() },
            Remedy::Pull("smollm2-135m".into()),
            Remedy::PullAgain("smollm2-135m".into()),
            Remedy::PullBase("owner/base".into()),
        ]
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Text(text) => f.write_str(text),
            Remedy::ListSites => f.write_str("`Program::sites` lists the sites of a model"),
            Remedy::AttachSae => f.write_str("attach an SAE there with `Model::attach`"),
            Remedy::Unchecked => f.write_str("`AttachOptions::unchecked` attaches it all the same"),
            Remedy::NameSaeSite => f.write_str("name the site in `AttachOptions::site`, such as layers.5.resid_post"),
            Remedy::RaiseMemoryLimit => {
                f.write_str("use fewer or shorter rows, captures or weights, or raise `set_memory_limit`")
            }
            Remedy::ReplaceStore => f.write_str(
                "choose another `output.path`, or replace it with `RunOptions::replace`; equal parts are reused",
            ),
            Remedy::DidYouMean(names) => {
                write!(f, "did you mean {}? `Program::sites` lists them all", Remedy::quote(names))
            }
            Remedy::SiteShapes(rule) => write!(f, "{rule}; `Program::edge` has each site's shape"),
            Remedy::GenerationOptions => f.write_str("see `Sampling`"),
            Remedy::PromptTokens => f.write_str("choose a token of the prompt; `Model::encode` returns them"),
            Remedy::GiveTokenIds => {
                f.write_str("give token ids (`Vec<u32>`), or put the model's tokenizer.json beside its weights")
            }
            Remedy::DropChat => f.write_str("give the prompt as text, or use an instruction-tuned model"),
            Remedy::GiveChat => f.write_str("give the prompt as messages (`Conversation`), or give positions as numbers"),
            Remedy::Assume { family, also } => {
                write!(
                    f,
                    "`LoadOptions::assume` set to `{family}` runs it as `{family}`, with a warning; compare its logits \
                     with the original before relying on them"
                )?;
                also.as_ref().map_or(Ok(()), |also| write!(f, "; {also}"))
            }
            Remedy::AssumeShort { .. } => f.write_str("with `LoadOptions::assume`"),
            Remedy::DropAssume(rest) => write!(f, "leave out `LoadOptions::assume`{rest}"),
            Remedy::GiveModelPath => f.write_str(
                "give a Hugging Face model directory or a .gguf file; `pellucid_models::inspect` says what a directory is",
            ),
            Remedy::UseAdapter { base, adapter } => {
                let base = base.as_deref().unwrap_or("BASE");
                write!(f, "load its base model, {base}, with the adapter in `LoadOptions::adapters`: {adapter}")
            }
            Remedy::AttachAdapter => f.write_str("attach it first, with `LoadedModel::attach_adapter`"),
            Remedy::MergeAdapter { adapter } => {
                write!(f, "merge it when the model is loaded: {adapter} in `LoadOptions::adapters`")
            }
            Remedy::Pull(name) => write!(f, "call `pellucid_models::pull::pull` with {name:?} first"),
            Remedy::PullAgain(name) => write!(f, "call `pellucid_models::pull::pull` with {name:?} again"),
            Remedy::PullBase(name) => {
                write!(
                    f,
                    "pull the base model (`pellucid_models::pull::pull` with {name:?}), or put its tokenizer here"
                )
            }
        }
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Remedy {
        Remedy::Text(text)
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Remedy {
        Remedy::Text(text.into())
    }
}

impl From<&Remedy> for Remedy {
    fn from(remedy: &Remedy) -> Remedy {
        remedy.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A number for each variant. A new variant must be added here, to [`VARIANTS`] and to
    /// [`Remedy::examples`].
    fn variant(remedy: &Remedy) -> usize {
        match remedy {
            Remedy::Text(_) => 0,
            Remedy::ListSites => 1,
            Remedy::DidYouMean(_) => 2,
            Remedy::SiteShapes(_) => 3,
            Remedy::GenerationOptions => 4,
            Remedy::PromptTokens => 5,
            Remedy::GiveTokenIds => 6,
            Remedy::DropChat => 7,
            Remedy::Assume { .. } => 8,
            Remedy::AssumeShort { .. } => 9,
            Remedy::DropAssume(_) => 10,
            Remedy::GiveModelPath => 11,
            Remedy::UseAdapter { .. } => 12,
            Remedy::Pull(_) => 13,
            Remedy::PullAgain(_) => 14,
            Remedy::PullBase(_) => 15,
            Remedy::GiveChat => 16,
            Remedy::AttachSae => 17,
            Remedy::Unchecked => 18,
            Remedy::NameSaeSite => 19,
            Remedy::ReplaceStore => 20,
            Remedy::RaiseMemoryLimit => 21,
            Remedy::AttachAdapter => 22,
            Remedy::MergeAdapter { .. } => 23,
        }
    }
    const VARIANTS: usize = 24;

    #[test]
    fn the_wording_for_rust_names_no_flag_and_no_command() {
        let examples = Remedy::examples();
        let seen: BTreeSet<usize> = examples.iter().map(variant).collect();
        assert_eq!(seen, (0..VARIANTS).collect(), "`Remedy::examples` lacks a variant");
        for remedy in &examples {
            let text = remedy.to_string();
            assert!(!text.is_empty() && !text.contains("--") && !text.contains("pellucid "), "{text}");
        }
    }
}
