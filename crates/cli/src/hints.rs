//! Remedies of errors, worded for the command line.

use pellucid_engine::Remedy;

/// Words a remedy: commands and flags instead of names of the Rust API.
pub fn word(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Text(text) => text.clone(),
        Remedy::ListSites => "`pellucid sites` lists the sites of a model".into(),
        Remedy::Unchecked => "--unchecked attaches it all the same".into(),
        Remedy::NameSaeSite => "name the site: --sae PATH@layers.5.resid_post".into(),
        Remedy::AttachSae => "attach an SAE there with --sae PATH@SITE".into(),
        Remedy::RaiseMemoryLimit => {
            "use fewer or shorter rows, captures or weights (--dtype q8), or raise it: --memory-limit 95%, 12GB or none"
                .into()
        }
        Remedy::ReplaceStore => {
            "choose another `output.path` (--output DIR), or replace it with --replace; equal parts are reused".into()
        }
        Remedy::DidYouMean(names) => {
            format!("did you mean {}? `pellucid sites` lists them all", Remedy::quote(names))
        }
        Remedy::SiteShapes(rule) => format!("{rule}; `pellucid sites` shows each site's shape"),
        Remedy::GenerationOptions => "see `pellucid generate --help`".into(),
        Remedy::PromptTokens => "choose a token of the prompt; `pellucid run` prints them".into(),
        Remedy::GiveTokenIds => {
            "give token ids (--tokens 1,2,3), or put the model's tokenizer.json beside its weights".into()
        }
        Remedy::DropChat => "leave out --chat, or use an instruction-tuned model".into(),
        Remedy::GiveChat => "give the prompt with --messages F.json or --chat, or give positions as numbers".into(),
        Remedy::Assume { family, also } => {
            let also = also.as_ref().map_or_else(String::new, |also| format!("; {also}"));
            format!(
                "`--assume {family}` runs it as `{family}`, with a warning; compare its logits with the original before \
                 relying on them{also}"
            )
        }
        Remedy::AssumeShort { family } => format!("with --assume {family}"),
        Remedy::DropAssume(rest) => format!("leave out --assume{rest}"),
        Remedy::GiveModelPath => {
            "give a Hugging Face model directory or a .gguf file; `pellucid inspect` says what a directory is".into()
        }
        Remedy::UseAdapter { base, adapter } => {
            let base = base.as_deref().unwrap_or("BASE");
            format!("give its base model and the adapter: --model {base} --adapter {adapter}")
        }
        Remedy::AttachAdapter => "attach it with --adapter NAME=DIR".into(),
        Remedy::MergeAdapter { adapter } => format!("merge it into the weights instead: --adapter {adapter}"),
        Remedy::Pull(name) => format!("run `pellucid pull {name}` first"),
        Remedy::PullAgain(name) => format!("run `pellucid pull {name}` again"),
        Remedy::PullBase(name) => format!("pull the base model (`pellucid pull {name}`), or put its tokenizer here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wording_names_nothing_of_the_rust_or_python_api() {
        for remedy in Remedy::examples() {
            let text = word(&remedy);
            assert!(!text.is_empty());
            for name in ["LoadOptions", "Program", "Sampling", "::", "pellucid_", "pellucid.", "model."] {
                // `model.` would also match the end of a sentence, but no remedy ends with a
                // period.
                assert!(!text.contains(name), "{text:?} contains {name:?}");
            }
        }
    }

    #[test]
    fn the_wording_names_commands_and_flags() {
        let assume = Remedy::Assume { family: "llama".into(), also: Some("`granite` fits too".into()) };
        assert_eq!(
            word(&assume),
            "`--assume llama` runs it as `llama`, with a warning; compare its logits with the original before relying on \
             them; `granite` fits too"
        );
        let base = Remedy::UseAdapter { base: Some("owner/base".into()), adapter: "lora".into() };
        assert_eq!(word(&base), "give its base model and the adapter: --model owner/base --adapter lora");
        assert_eq!(word(&Remedy::DropAssume("; it is")), "leave out --assume; it is");
        assert_eq!(word(&Remedy::Pull("smollm2-135m".into())), "run `pellucid pull smollm2-135m` first");
    }
}
