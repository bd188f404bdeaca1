//! Checks whether a native family fits a model of another type.
//!
//! A family fits if it accepts the configuration, every weight of its program is stored with the
//! right shape, and no tensor is left over. Its mathematics may still differ: two families can
//! share every name and shape and differ in a multiplier. So a fit is only suggested, with the keys
//! that the family does not read. It is used if the caller names it, with a warning.

use crate::category::Category;
use crate::compare::{Comparison, compare};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::families::{self, Family};
use crate::source::UnknownType;
use crate::tensors::Tensors;
use pellucid_engine::{Program, Remedy};
use schemars::JsonSchema;
use serde::Serialize;

/// A native family that a model of an unknown type fits.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Suggestion {
    /// Name of the family, for `assume`.
    pub family: String,
    /// Keys of the configuration that this family does not read and that may change the
    /// mathematics.
    pub unread: Vec<String>,
    /// Another family that fits: the one that reads most of these keys.
    pub also: Option<Alternative>,
    /// All native families that fit.
    pub fitting: Vec<String>,
}

/// A second family that fits.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Alternative {
    /// Name of the family, for `assume`.
    pub family: String,
    /// Keys that it reads and the first family does not.
    pub reads: Vec<String>,
}

/// The result of comparing native families with a model.
pub(super) enum Fit {
    /// A family fits.
    Fits(Suggestion),
    /// No family fits; the nearest one, and its misfits.
    Nothing { nearest: &'static str, because: String },
}

/// Compares every native family with a model whose own type is not native.
pub(super) fn find_fit(config: &Config, tensors: &Tensors) -> Fit {
    let mut fits: Vec<(&'static str, Vec<String>)> = Vec::new();
    let mut nearest: Option<(&'static str, Comparison)> = None;
    for family in in_order() {
        let Ok((_, comparison, unread)) = compare_with(config, family, tensors, false) else { continue };
        match comparison.misfits() {
            0 => fits.push((family, unread)),
            misfits if nearest.as_ref().is_none_or(|(_, other)| misfits < other.misfits()) => {
                nearest = Some((family, comparison));
            }
            _ => {}
        }
    }
    // If none fits, try name variants, only for the families that others commonly copy.
    if fits.is_empty() {
        let with_variants =
            copied().filter_map(|family| Some((family, compare_with(config, family, tensors, true).ok()?)));
        fits.extend(
            with_variants
                .filter(|(_, (_, comparison, _))| comparison.misfits() == 0)
                .map(|(family, (.., unread))| (family, unread)),
        );
    }
    match (fits.is_empty(), nearest) {
        (false, _) => Fit::Fits(suggest(fits)),
        (true, Some((nearest, comparison))) => Fit::Nothing { nearest, because: comparison.lines().join("; ") },
        (true, None) => {
            let because =
                compare_with(config, "llama", tensors, true).err().map(|error| error.to_string()).unwrap_or_default();
            Fit::Nothing { nearest: "llama", because }
        }
    }
}

/// Suggests the first of the families that fit, and names another that reads more of the
/// configuration.
fn suggest(fits: Vec<(&'static str, Vec<String>)>) -> Suggestion {
    let fitting = fits.iter().map(|(family, _)| family.to_string()).collect();
    let mut fits = fits.into_iter();
    let (family, unread) = fits.next().unwrap_or_default();
    let also = fits.min_by_key(|(_, left)| left.len()).filter(|(_, left)| left.len() < unread.len());
    let also = also.map(|(family, left)| Alternative {
        family: family.into(),
        reads: unread.iter().filter(|key| !left.contains(key)).cloned().collect(),
    });
    Suggestion { family: family.into(), unread, also, fitting }
}

/// Reads a model as the named family, if it fits; also returns the keys that the family does not
/// read.
pub(super) fn read_as(config: &Config, family: &str, tensors: &Tensors) -> Result<(Family, Vec<String>)> {
    let misfit = |why: &str| {
        Error::unsupported(
            format!("this model does not fit `{family}`: {why}"),
            Remedy::DropAssume(" to see which native family fits or is nearest"),
        )
    };
    let (read, comparison, unread) =
        compare_with(config, family, tensors, true).map_err(|error| misfit(&error.to_string()))?;
    match comparison.misfits() {
        0 => Ok((read, unread)),
        _ => Err(misfit(&comparison.lines().join("; "))),
    }
}

/// Compares one family with a model: the family built from the configuration, the match of the
/// tensors, and the keys that the family does not read.
fn compare_with(
    config: &Config,
    family: &str,
    tensors: &Tensors,
    try_variants: bool,
) -> Result<(Family, Comparison, Vec<String>)> {
    let (family, unread) = families::read_as(config, family)?;
    let Family { architecture, names } = family;
    let program = Program::new(architecture)?;
    let comparison = compare(&program, &names, tensors, try_variants);
    let family = Family { architecture: program.architecture().clone(), names };
    Ok((family, comparison, unread.into_iter().filter(|key| matters(key)).collect()))
}

/// The error for a model of an unknown type, with the result of comparing native families with it.
pub(super) fn refusal(config: &Config, unknown: &UnknownType, fit: Option<&Fit>) -> Error {
    let (more, fit_remedy) = fit.map_or_else(Default::default, describe);
    let own = config.model_type().ok();
    let problem = match (own, &unknown.own_code) {
        (Some(own), None) => format!("models of type `{}` do not run natively in this build", own.escape_debug()),
        (Some(own), Some(file)) => format!(
            "models of type `{}` do not run natively in this build, and its own code ({}) is never executed",
            own.escape_debug(),
            file.escape_debug()
        ),
        (None, _) if unknown.category == Category::Unknown => "it names neither a `model_type` nor a class".into(),
        (None, _) => "it does not name the model's family (no `model_type`)".into(),
    };
    let remedy = fit_remedy.unwrap_or_else(|| match (unknown.is_text(), own) {
        (false, _) => {
            format!("Pellucid runs language models; use another program for the category {}", unknown.category.name())
                .into()
        }
        (true, Some(own)) if fit.is_none() => families::nearest(own).into(),
        (true, Some(_)) => "check that config.json belongs to these weights, or use a model of a native type; \
                            docs/models.md lists them"
            .into(),
        (true, None) => "download config.json again, or add the key".into(),
    });
    match own {
        Some(_) => Error::unsupported(problem + &more, remedy),
        None => Error::invalid(config.origin(), problem + &more, remedy),
    }
}

/// Describes a fit: the end of a message that begins with the unknown type, and the remedy, if any.
fn describe(fit: &Fit) -> (String, Option<Remedy>) {
    match fit {
        Fit::Fits(suggestion) => (
            format!(
                ", but the configuration and all tensors of this one fit `{}`{}; its mathematics may differ nevertheless{}",
                suggestion.family,
                if suggestion.fitting.len() > 1 { " and other native families" } else { "" },
                unknown_keys(&suggestion.family, &suggestion.unread)
            ),
            Some(suggestion.remedy()),
        ),
        Fit::Nothing { nearest, because } => {
            (format!(", and no native family fits this one; the nearest is `{nearest}`: {because}"), None)
        }
    }
}

impl Suggestion {
    /// The suggestion of the only family that was compared.
    pub(super) fn only(family: &str, unread: Vec<String>) -> Suggestion {
        Suggestion { family: family.into(), unread, also: None, fitting: vec![family.into()] }
    }

    /// The remedy that names the family.
    fn remedy(&self) -> Remedy {
        let also = self.also.as_ref();
        let also = also.map(|also| format!("`{}` fits too, and knows {}", also.family, quoted(&also.reads)));
        Remedy::Assume { family: self.family.clone(), also }
    }
}

/// The warning about a model that runs as a family other than its own type.
pub(super) fn warning(own: Option<&str>, family: &str, because: &str, unread: &[String]) -> String {
    let own = own.map_or_else(
        || "this model does not say its type".into(),
        |own| format!("this model's type, `{}`, is not native", own.escape_debug()),
    );
    format!(
        "{own}; it runs as `{family}` {because}. Its configuration and tensors fit, its mathematics may differ \
         nevertheless{}",
        unknown_keys(family, unread)
    )
}

fn unknown_keys(family: &str, unread: &[String]) -> String {
    match unread.len() {
        0 => String::new(),
        1 => format!(": `{family}` does not know the key {}", quoted(unread)),
        _ => format!(": `{family}` does not know the keys {}", quoted(unread)),
    }
}

/// The first of a list of keys, escaped because they come from an untrusted file.
fn quoted(keys: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = keys.iter().take(SHOWN).map(|key| format!("`{}`", key.escape_debug())).collect();
    let more = if keys.len() > SHOWN { format!(" and {} more", keys.len() - SHOWN) } else { String::new() };
    shown.join(", ") + &more
}

/// The families in the order in which they are suggested: the commonly copied ones first.
fn in_order() -> impl Iterator<Item = &'static str> {
    copied().chain(families::native().filter(|name| !COPIED.contains(name)))
}

/// Families whose architecture and names other models commonly copy.
const COPIED: &[&str] = &["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt_neox", "gpt2"];

fn copied() -> impl Iterator<Item = &'static str> {
    COPIED.iter().copied().filter(|name| families::is_native(name))
}

/// Whether a key may change the model's computation. Other keys are about training, generation,
/// files and the library.
fn matters(path: &str) -> bool {
    const HARMLESS: &str = "\
        _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures \
        attn_implementation auto_map bad_words_ids begin_suppress_tokens chunk_size_feed_forward \
        diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size \
        exponential_decay_length_penalty finetuning_task gradient_checkpointing id2label initializer_factor \
        initializer_range js_config keys_to_ignore_at_inference label2id length_penalty max_length \
        min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences \
        output_attentions output_hidden_states output_router_logits output_scores prefix pretraining_tp \
        problem_type quantization_config remove_invalid_values repetition_penalty return_dict \
        return_dict_in_generate router_aux_loss_coef router_jitter_noise router_z_loss_coef suppress_tokens \
        task_specific_params temperature tf_legacy_loss tokenizer_class top_p torch_dtype torchscript \
        transformers_version typical_p use_bfloat16 use_cache use_return_dict";
    let key = path.rsplit('.').next().unwrap_or(path);
    // Dropout applies in training only; token ids and classifier heads do not change logits.
    let training = key.contains("dropout") || key.ends_with("_pdrop") || key == "layerdrop" || key == "init_std";
    let elsewhere = ["_token_id", "_token_index"].iter().any(|end| key.ends_with(end)) || key.starts_with("summary_");
    !training && !elsewhere && !HARMLESS.split_whitespace().any(|harmless| harmless == key)
}
