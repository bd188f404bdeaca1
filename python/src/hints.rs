//! Remedies of errors, worded for Python.

use pellucid_engine::Remedy;

/// Words a remedy: functions and arguments of the package `pellucid` instead of names of the Rust
/// API.
pub fn word(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Text(text) => text.clone(),
        Remedy::ListSites => "`model.sites` lists the sites of a model".into(),
        Remedy::Unchecked => "`unchecked=True` attaches it all the same".into(),
        Remedy::NameSaeSite => "name the site: `model.attach(path, \"layers.5.resid_post\")`".into(),
        Remedy::AttachSae => "attach an SAE there with `model.attach(path, site)`".into(),
        Remedy::RaiseMemoryLimit => "use fewer or shorter rows, captures or weights (`dtype=\"q8\"`), or raise it: \
             `pellucid.set_memory_limit(\"95%\")`, `\"12GB\"` or `\"none\"`"
            .into(),
        Remedy::ReplaceStore => {
            "choose another `output.path`, or replace it with `session.run(replace=True)`; equal parts are reused"
                .into()
        }
        Remedy::DidYouMean(names) => format!("did you mean {}? `model.sites` lists them all", Remedy::quote(names)),
        Remedy::SiteShapes(rule) => format!("{rule}; `model.sites` shows each site's shape"),
        Remedy::GenerationOptions => "see `help(pellucid.Model.generate)`".into(),
        Remedy::PromptTokens => "choose a token of the prompt; `model.to_str_tokens` lists them".into(),
        Remedy::GiveTokenIds => {
            "give token ids (a list of integers), or put the model's tokenizer.json beside its weights".into()
        }
        Remedy::DropChat => "give the prompt as a string, or use an instruction-tuned model".into(),
        Remedy::GiveChat => "give the prompt as a list of messages, or give positions as numbers".into(),
        Remedy::Assume { family, also } => {
            let also = also.as_ref().map_or_else(String::new, |also| format!("; {also}"));
            format!(
                "`pellucid.load(..., assume={family:?})` runs it as `{family}`, with a warning; compare its logits with \
                 the original before relying on them{also}"
            )
        }
        Remedy::AssumeShort { family } => format!("with assume={family:?}"),
        Remedy::DropAssume(rest) => format!("leave out `assume`{rest}"),
        Remedy::GiveModelPath => {
            "give a Hugging Face model directory or a .gguf file; `pellucid.inspect` says what a directory is".into()
        }
        Remedy::UseAdapter { base, adapter } => {
            format!("load its base model with the adapter: {}", load_with_adapter(base.as_deref(), adapter))
        }
        Remedy::AttachAdapter => "attach it to the model first".into(),
        Remedy::MergeAdapter { adapter } => {
            format!("merge it when the model is loaded: {}", load_with_adapter(None, adapter))
        }
        Remedy::Pull(name) => format!("call `pellucid.pull({name:?})` first"),
        Remedy::PullAgain(name) => format!("call `pellucid.pull({name:?})` again"),
        Remedy::PullBase(name) => {
            format!("pull the base model (`pellucid.pull({name:?})`), or put its tokenizer here")
        }
    }
}

fn load_with_adapter(base: Option<&str>, adapter: &str) -> String {
    format!("`pellucid.load({:?}, adapters=[{adapter:?}])`", base.unwrap_or("BASE"))
}
